"""Nets without their random initial weights, for weights that will be loaded."""

from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_DRAWS = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
)


class SkipInitialisation(TorchFunctionMode):
    """Context in which the parameters of new nets are zeroed instead of drawn.

    Drawing the weights of a large net takes longer than loading them, and on the ``meta`` device
    it would import torch's compiler, which takes two seconds. Only these functions are replaced,
    and only for parameters: ``trunc_normal_`` draws again until every number lies in its range.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _DRAWS:
            tensor = args[0] if args else (kwargs or {})["tensor"]
            if isinstance(tensor, nn.Parameter):
                tensor.detach().zero_()
                return tensor
        return func(*args, **(kwargs or {}))
