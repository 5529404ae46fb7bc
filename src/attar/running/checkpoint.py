"""State <-> one file, bit for bit, without pickle.

A state is walked field by field into a JSON skeleton whose leaves are numbers and texts, with
every tensor put aside; both go into one safetensors file. Restoring does not build anything: the
method's ``start`` has built modules, optimisers and generators of the right shape already, and
the saved values are put back into them.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from attar.blocks.images import Pool, Shard
from attar.core import State
from attar.errors import RunError
from attar.internal.files import write_atomic


def save_state(path: Path, state: State, notes: dict[str, Any]) -> None:
    """Write everything in ``state``, and JSON ``notes`` beside it, to one file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    skeleton, outdated = {}, []
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Pool):
            outdated += value.forget_old_shards()
            skeleton[field.name] = _append_shard(path, field.name, value)
        else:
            skeleton[field.name] = _pack(value, tensors)
    text = json.dumps({"state": skeleton, "notes": notes})
    write_atomic(path, save(tensors, metadata={"attar": text, "sha256": _digest(text, tensors)}))
    for shard in outdated:
        (path.parent / shard.name).unlink(missing_ok=True)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint with the shards beside it."""
    path.unlink(missing_ok=True)
    for shard in path.parent.glob(f"{path.stem}.*.shard"):
        shard.unlink()


def _append_shard(path: Path, field: str, pool: Pool) -> dict[str, Any]:
    """Write what the pool has gained since the last checkpoint as one more shard."""
    done = pool.shards[-1].end if pool.shards else 0
    if pool.added > done:
        data = save(pool.since(done))
        shard = Shard(
            f"{path.stem}.{field}.{done}-{pool.added}.shard",
            pool.added,
            hashlib.sha256(data).hexdigest(),
        )
        write_atomic(path.parent / shard.name, data)
        pool.shards.append(shard)
    return {"pool": [[shard.name, shard.end, shard.sha256] for shard in pool.shards]}


def _fill_pool(path: Path, pool: Pool, packed: list[list[Any]]) -> Pool:
    for name, end, digest in packed:
        data = (path.parent / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"the sha256 of {name} does not fit")
        pool.put_back(load(data), end)
    pool.shards = [Shard(name, end, digest) for name, end, digest in packed]
    return pool


def restore_state(path: Path, state: State, device: str = "cpu") -> dict[str, Any]:
    """Put what ``save_state`` wrote back into a freshly started state; returns the notes.

    A tensor goes where ``start`` has put its predecessor; one that ``start`` did not have goes
    to ``device``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["attar"]
        if _digest(text, tensors) != metadata["sha256"]:
            raise ValueError("its sha256 does not fit")
        saved = json.loads(text)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise RunError(
            f"The checkpoint {path} cannot be read ({error}).",
            fix="start the run anew, without --resume",
        ) from None
    skeleton: dict[str, Any] = saved["state"]
    notes: dict[str, Any] = saved["notes"]
    if set(skeleton) != {field.name for field in fields(state)}:
        raise RunError(
            f"The checkpoint {path} belongs to another version of this method.",
            fix="start the run anew",
        )
    try:
        for name, packed in skeleton.items():
            current = getattr(state, name)
            if isinstance(current, Pool):
                setattr(state, name, _fill_pool(path, current, packed["pool"]))
            else:
                setattr(state, name, _unpack(packed, current, tensors, device))
    except (
        KeyError,
        ValueError,
        RuntimeError,
        OSError,
        SafetensorError,
    ) as error:  # modules and optimisers of other shapes
        raise RunError(
            f"The checkpoint {path} does not fit this run ({error}).", fix="start the run anew"
        ) from None
    return notes


def notes_of(path: Path) -> dict[str, Any]:
    """The notes of a checkpoint alone: whose it is. Nothing else of it is looked at."""
    try:
        with safe_open(path, framework="pt") as file:
            notes: dict[str, Any] = json.loads((file.metadata() or {})["attar"])["notes"]
            return notes
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(
            f"The checkpoint {path} cannot be read ({error}).",
            fix="start the run anew, without --resume",
        ) from None


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    hasher = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        hasher.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def _pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """JSON for ``value``; its tensors go to ``tensors``."""

    def again(inner: Any) -> Any:
        return _pack(inner, tensors)

    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            name = f"{len(tensors):06d}"
            tensors[name] = value.detach().cpu().contiguous().clone()
            return {"tensor": name}
        case torch.Generator():
            return {"generator": base64.b64encode(value.get_state().numpy().tobytes()).decode()}
        case nn.Module() | Optimizer() | LRScheduler():
            return {"holder": again(value.state_dict())}
        case dict():
            return {"dict": [[again(key), again(item)] for key, item in value.items()]}
        case list():
            return {"list": [again(item) for item in value]}
        case tuple():
            return {"tuple": [again(item) for item in value]}
    raise TypeError(f"a State cannot hold a {type(value).__name__}")


def _unpack(packed: Any, current: Any, tensors: dict[str, Tensor], device: str) -> Any:
    """The value that ``packed`` stands for; modules, optimisers and generators are filled in place."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        value = tensors[content]
        if (
            isinstance(current, Tensor) and current.requires_grad
        ):  # an optimiser may hold this very tensor
            with torch.no_grad():
                return current.copy_(value)
        return value.to(current.device) if isinstance(current, Tensor) else value.to(device)
    if kind == "generator":
        raw = bytearray(base64.b64decode(content))
        current.set_state(torch.frombuffer(raw, dtype=torch.uint8))
        return current
    if kind == "holder":
        current.load_state_dict(
            _unpack(content, None, tensors, "cpu")
        )  # it moves them to where its own lie
        return current
    if kind == "dict":
        known = current if isinstance(current, dict) else {}
        keys = [(_unpack(key, None, tensors, device), item) for key, item in content]
        return {key: _unpack(item, known.get(key), tensors, device) for key, item in keys}
    inner = (
        current
        if isinstance(current, list | tuple) and len(current) == len(content)
        else [None] * len(content)
    )
    sequence: Callable[[Any], Any] = list if kind == "list" else tuple
    return sequence(
        _unpack(item, now, tensors, device) for item, now in zip(content, inner, strict=True)
    )
