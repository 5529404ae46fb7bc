"""A stand-in for an Apple GPU: tensors that say ``device="mps"`` and are computed on the CPU.

What torch refuses on an Apple GPU is refused here, too: float64, operators that it lacks there,
and tensors of two devices in one operator. So a run shows that the code sends the right types to
the right device. It does not show how fast an Apple GPU is, or how it rounds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

MPS = torch.device("mps", 0)  # without a number torch would ask for the real backend
REFUSED = (torch.float64, torch.complex128)
LACKING = ("_linalg_eigh", "_linalg_svd", "linalg_lstsq", "unique_dim")
# Operators that take values of one device to another.
CROSSINGS = ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_")
# Their indices may be on the CPU while the values are not.
INDEXED = ("aten::index.Tensor", "aten::index_put")


class MpsTensor(torch.Tensor):
    """A tensor of the stand-in. Torch itself takes it for one of the CPU, as its gradients need
    threads of a real device.

    Attributes:
        values: The numbers.
    """

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "MpsTensor":
        if values.dtype in REFUSED:
            raise TypeError(f"The stand-in for MPS has no {values.dtype}")
        made = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, strides=values.stride(), storage_offset=values.storage_offset(),
            dtype=values.dtype, layout=values.layout, device="cpu",
        )  # fmt: skip
        made.values = values
        return made

    def __repr__(self, **_: object) -> str:
        return f"mps({self.values!r})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        return compute(function, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl


class Calls(TorchFunctionMode):
    """Calls as Python sees them: the device of a tensor, and tensors that move."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        owner = getattr(function, "__self__", None)
        if owner is torch.Tensor.device and name == "__get__":
            return MPS if is_here(args[0]) else function(*args)
        if name == "tolist" and isinstance(args[0], MpsTensor):
            return args[0].values.tolist()
        args, kwargs = tree_map(with_number, (args, kwargs))
        if name == "cpu" and is_here(args[0]):
            return torch.ops.aten._to_copy.default(args[0], device=torch.device("cpu"))
        if name == "one_hot" and is_here(args[0]):  # asks in C++ which device this is
            source = args[0].values if isinstance(args[0], MpsTensor) else args[0]
            return MpsTensor(function(source, *args[1:], **kwargs))
        if name == "to" and isinstance(args[0], torch.Tensor):
            return move(args, kwargs)
        if kwargs.get("device") == MPS:  # made on the CPU first
            made = function(*args, **{**kwargs, "device": torch.device("cpu")})
            moved = torch.ops.aten._to_copy.default(made.detach(), device=MPS)
            return moved.requires_grad_(made.requires_grad)
        return function(*args, **kwargs)


class Operators(TorchDispatchMode):
    """While it is on, ``device="mps"`` makes tensors of the stand-in.

    Attributes:
        used: The names of the operators that ran on it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        kwargs = kwargs or {}
        if any(isinstance(value, MpsTensor) for value in tree_leaves((args, kwargs))):
            self.used.add(function.name())
        return compute(function, args, kwargs)


def is_here(tensor: torch.Tensor) -> bool:
    """Whether the tensor, or what vmap and grad have wrapped in it, is on the stand-in."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return isinstance(tensor, MpsTensor)


def with_number(value: Any) -> Any:
    """``MPS`` for any way of writing this device."""
    named = value if isinstance(value, torch.device) else None
    if isinstance(value, str) and value.startswith("mps"):
        named = torch.device(value)
    return MPS if named is not None and named.type == "mps" else value


def move(args: Any, kwargs: Any) -> Any:
    """``Tensor.to``, where torch would take the stand-in for the CPU."""
    source, *asked = args
    other = asked[0] if asked and isinstance(asked[0], torch.Tensor) else kwargs.get("other")
    words = [*asked, *kwargs.values()]
    devices = [torch.device(word) for word in words if isinstance(word, str | torch.device)]
    dtypes = [word for word in words if isinstance(word, torch.dtype)]
    if other is not None:
        devices, dtypes = [MPS if is_here(other) else other.device], [other.dtype]
    form = {"memory_format": kwargs["memory_format"]} if kwargs.get("memory_format") else {}
    dtype = dtypes[0] if dtypes else source.dtype
    if devices and (devices[0].type == "mps") != is_here(source):
        return torch.ops.aten._to_copy.default(source, device=devices[0], dtype=dtype, **form)
    if dtype == source.dtype and not form and not kwargs.get("copy"):
        return source
    return torch.ops.aten._to_copy.default(source, dtype=dtype, **form)


def compute(function: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on the CPU; its result is where a real one would be."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    device = kwargs.get("device")
    here = any(isinstance(value, MpsTensor) for value in tensors)
    asked = device is not None and torch.device(device).type == "mps"
    if not here and not asked:
        return function(*args, **kwargs)
    name = function.name()
    crossing = name.startswith(CROSSINGS)
    if asked or name.startswith("aten::_to_copy") or not crossing:
        result_here = asked or (device is None and here)
    else:
        result_here = isinstance(tensors[0], MpsTensor)
    if not crossing:
        check(name, tensors)
    plain_args, plain = tree_map(
        lambda value: value.values if isinstance(value, MpsTensor) else value, (args, kwargs)
    )
    if asked:
        plain["device"] = torch.device("cpu")
    result = function(*plain_args, **plain)
    if result_here:
        result = tree_map(
            lambda value: MpsTensor(value) if isinstance(value, torch.Tensor) else value, result
        )
    if name.startswith("aten::_to_copy"):
        return result
    return return_and_correct_aliasing(function, args, kwargs, result)


def check(name: str, tensors: list[torch.Tensor]) -> None:
    """Refuse what an Apple GPU has not."""
    if any(name.startswith(f"aten::{lacking}") for lacking in LACKING):
        raise NotImplementedError(f"The operator {name} is not implemented for the MPS device")
    apart = [value for value in tensors if not isinstance(value, MpsTensor) and value.dim() > 0]
    if apart and not name.startswith(INDEXED):
        raise RuntimeError(f"{name}: all tensors must be on the same device, found mps and cpu")


@contextmanager
def apple_gpu() -> Iterator[Operators]:
    """Run a block on a machine with the stand-in."""
    future = torch.__future__
    before = future.get_overwrite_module_params_on_conversion()
    future.set_overwrite_module_params_on_conversion(True)  # .to() gives a net new parameters
    seeds: list[int] = []
    found = {"get_rng_state": lambda device: torch.zeros(1), "set_rng_state": lambda *_: None}
    try:
        with (
            patch.object(torch.backends.mps, "is_available", lambda: True),
            patch.multiple(torch.mps, **found, manual_seed=seeds.append, synchronize=lambda: None),
            Operators() as operators,
            Calls(),
        ):
            yield operators
    finally:
        future.set_overwrite_module_params_on_conversion(before)
