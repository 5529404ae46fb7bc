"""Save a State to one file and restore it, bit for bit, without pickle.

Saving walks the state field by field: numbers and texts go into a JSON skeleton, tensors beside
it, both into one safetensors file. Restoring builds nothing: the method's ``start`` has already
built modules, optimisers and generators of the right shape, and the saved values are put into
them.
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
    """Write a state to one file, whole or not at all.

    The images of a Pool are written once, as shards beside the file.

    Args:
        path: The checkpoint file.
        state: Its fields may hold numbers, texts, tensors, modules, optimisers, schedules,
            generators, pools, and dicts, lists and tuples of them.
        notes: JSON to keep beside the state.

    Raises:
        TypeError: The state holds something that cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    skeleton: dict[str, Any] = {}
    outdated = []
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
    """Delete a checkpoint and the shards beside it."""
    path.unlink(missing_ok=True)
    for shard in path.parent.glob(f"{path.stem}.*.shard"):
        shard.unlink()


def _append_shard(path: Path, field: str, pool: Pool) -> dict[str, Any]:
    """Write the images that were added since the last checkpoint as one more shard."""
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
    """Put the images of all shards back into a fresh pool."""
    for name, end, digest in packed:
        data = (path.parent / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"sha256 mismatch of {name}")
        pool.put_back(load(data), end)
    pool.shards = [Shard(name, end, digest) for name, end, digest in packed]
    return pool


def restore_state(path: Path, state: State, device: str = "cpu") -> dict[str, Any]:
    """Put a saved state into a freshly started one.

    Args:
        path: The checkpoint file.
        state: As the method's ``start`` returned it; its values are replaced.
        device: For tensors that the fresh state does not have; others go where theirs is.

    Returns:
        The notes that were saved with it.

    Raises:
        RunError: The file is damaged, or is of another method or of other shapes.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata["attar"]
        if _digest(text, tensors) != metadata["sha256"]:
            raise ValueError("sha256 mismatch")
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
    # KeyError, ValueError, RuntimeError: modules and optimisers of other shapes
    except (KeyError, ValueError, RuntimeError, OSError, SafetensorError) as error:
        raise RunError(
            f"The checkpoint {path} does not fit this run ({error}).", fix="start the run anew"
        ) from None
    return notes


def read_notes(path: Path) -> dict[str, Any]:
    """Read the notes of a checkpoint, without its state.

    Raises:
        RunError: The file cannot be read.
    """
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
    """Return JSON for ``value`` and put its tensors into ``tensors``."""

    def pack(inner: Any) -> Any:
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
            return {"holder": pack(value.state_dict())}
        case dict():
            return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
        case list():
            return {"list": [pack(item) for item in value]}
        case tuple():
            return {"tuple": [pack(item) for item in value]}
    raise TypeError(f"a State cannot hold a {type(value).__name__}")


def _unpack(packed: Any, current: Any, tensors: dict[str, Tensor], device: str) -> Any:
    """Return the value that was packed; modules, optimisers and generators are filled in place."""
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "tensor":
        value = tensors[content]
        if isinstance(current, Tensor) and current.requires_grad:
            with torch.no_grad():  # in place: an optimiser may hold this tensor
                return current.copy_(value)
        return value.to(current.device) if isinstance(current, Tensor) else value.to(device)
    if kind == "generator":
        raw = bytearray(base64.b64decode(content))
        current.set_state(torch.frombuffer(raw, dtype=torch.uint8))
        return current
    if kind == "holder":
        # load_state_dict moves the tensors to the device of its own.
        current.load_state_dict(_unpack(content, None, tensors, "cpu"))
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
