"""A client's own net from its own code and weights."""

import importlib
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint

from attar.errors import PackError
from attar.internal.text import list_some
from attar.packing.export import first_line

MAX_PROBLEMS = 6  # in one message


def load_net(factory: str, weights: Path) -> nn.Module:
    """Make a net by a function and load all of its weights. Runs the client's code.

    Args:
        factory: ``package.module:function``; the function takes no arguments.
        weights: a safetensors file, or a file of ``torch.save`` with nothing but tensors.

    Returns:
        The net.

    Raises:
        PackError: if the module cannot be imported, the function makes no net, or the weights
            are not those of the net.
    """
    net = _call_factory(factory)
    state = _read_state(weights)
    expected = net.state_dict()
    problems = [f"missing: {name}" for name in expected if name not in state]
    problems += [f"unexpected: {name}" for name in state if name not in expected]
    for name, tensor in expected.items():
        if name in state and state[name].shape != tensor.shape:
            sizes = f"has shape {list(state[name].shape)}, the net needs {list(tensor.shape)}"
            problems.append(f"{name} {sizes}")
    more = len(problems) - MAX_PROBLEMS
    if more > 0:
        problems = [*problems[:MAX_PROBLEMS], f"and {more} more of this kind"]
    if problems:
        raise PackError(f"The weights in {weights} are not those of {factory}:", problems=problems)
    net.load_state_dict(state)
    return net


def _call_factory(factory: str) -> nn.Module:
    place, _, name = factory.partition(":")
    if not place or not name.isidentifier():
        fix = "write --module package.module:factory"
        raise PackError(f"{factory!r} names no factory.", fix=fix)
    if place.endswith(".py"):
        module = place.removesuffix(".py").replace("/", ".")
        fix = f"write --module {module}:{name}, and run where that can be imported"
        raise PackError(f"{factory!r} names a file.", fix=fix)
    try:
        content = vars(importlib.import_module(place))
    except Exception as error:  # the client's own code may fail in any way
        raise PackError(
            f"The module {place} cannot be imported:",
            problems=[_describe_error(error)],
            fix="run the command where the module can be imported",
        ) from error
    if name not in content:
        own = [key for key, value in content.items() if _is_factory(value, place)]
        fix = f"it has {list_some(own)}" if own else "name a factory in it"
        raise PackError(f"The module {place} has no {name}.", fix=fix)
    try:
        net = content[name]()
    except Exception as error:
        raise PackError(
            f"{factory} made no net:",
            problems=[_describe_error(error)],
            fix="the factory takes no arguments",
        ) from error
    if not isinstance(net, nn.Module):
        raise PackError(f"{factory} made a {type(net).__name__}, not a torch.nn.Module.")
    return net


def _is_factory(value: Any, module: str) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"


def _read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a file of weights."""
    if path.suffix == ".attar":
        raise PackError(
            f"{path} is an upload already: there is nothing to pack.",
            fix="send it as it is, or name the .safetensors or .pt file of the weights",
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        fix = "name the .safetensors or .pt file of the weights"
        raise PackError(f"There is no file {path}.", fix=fix) from None
    except UnpicklingError as error:  # torch's message is about its settings, not about the file
        raise PackError(
            f"{path} holds no plain weights:",
            problems=[_describe_pickle(path)],
            fix="torch.save(model.state_dict(), FILE) where the net was trained; and pack that "
            "file",
        ) from error
    except Exception as error:  # torch and safetensors raise a dozen types
        raise PackError(
            f"{path} holds no plain weights:",
            problems=[first_line(error)],
            fix="save it as safetensors, or with torch.save(net.state_dict(), FILE)",
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()):
        raise PackError(f"{path} is no state dict.", fix="torch.save(net.state_dict(), FILE)")
    return {name.removeprefix("module."): value for name, value in content.items()}


def _describe_pickle(path: Path) -> str:
    """What a pickle holds beside plain weights; nothing of it is run."""
    try:
        kinds = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # only files of torch.save can be listed, and not those of old versions
        return "it is a pickle of more than tensors, such as a whole module: not a state_dict"
    if any(kind.startswith("torch.nn.") for kind in kinds):
        return "it holds a whole module, not a state_dict"
    return f"it holds more than tensors: {', '.join(sorted(kinds))}"
