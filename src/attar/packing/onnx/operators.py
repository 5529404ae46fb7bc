"""ONNX's layers and arithmetic in torch: the table ``OPERATORS``.

An operator that is not in it cannot be sent. What torch makes of each is again translated to the
operators of packed nets, which is where the last word is spoken.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from attar.packing.onnx import shapes
from attar.packing.onnx.values import Call, Refused, Value
from attar.packing.onnx.windows import convolve, pool_average, pool_largest

Operator = Callable[[Call], Value | list[Tensor]]

# --- layers ---------------------------------------------------------------------------------------


def _linear(call: Call) -> Tensor:
    """``Gemm``: a linear layer where the second factor is a constant."""
    if call.attribute("transA", 0):
        raise Refused("exchanges the images with their features (transA)")
    weight = call.tensor(1)
    if not call.attribute("transB", 0):
        weight = weight.t()
    bias = call.optional(2)
    if (alpha := call.attribute("alpha", 1.0)) != 1:
        weight = weight * alpha
    if bias is not None:
        bias = bias.expand(weight.shape[0]) if bias.dim() == 0 else bias.reshape(-1)
        bias = bias.expand(weight.shape[0]) * call.attribute("beta", 1.0)
    return F.linear(call.tensor(), weight, bias)


def _product(call: Call) -> Tensor:
    """``MatMul``, perhaps with the sum after it, which ``join_products`` put here."""
    second = call.value(1)
    if isinstance(second, np.ndarray) and second.ndim == 2:
        bias = call.optional(2)
        return F.linear(
            call.tensor(), call.tensor(1).t(), None if bias is None else bias.reshape(-1)
        )
    return torch.matmul(call.tensor(), call.tensor(1))


def _batch_norm(call: Call) -> Tensor:
    if call.attribute("training_mode", 0):
        raise Refused("takes its statistics from the batch: export the net for inference")
    scale, bias, mean, variance = (call.tensor(place) for place in (1, 2, 3, 4))
    epsilon = call.attribute("epsilon", 1e-5)
    return F.batch_norm(call.tensor(), mean, variance, scale, bias, False, 0.1, epsilon)


def _layer_norm(call: Call) -> Tensor:
    value = call.tensor()
    axis = call.attribute("axis", -1) % value.dim()
    sizes = list(value.shape[axis:])
    return F.layer_norm(
        value, sizes, call.tensor(1), call.optional(2), call.attribute("epsilon", 1e-5)
    )


def _instance_norm(call: Call) -> Tensor:
    value = call.tensor()
    epsilon = call.attribute("epsilon", 1e-5)
    return F.group_norm(value, value.shape[1], call.tensor(1), call.tensor(2), epsilon)


def _group_norm(call: Call) -> Tensor:
    value, groups = call.tensor(), call.attribute("num_groups")
    scale, bias = call.tensor(1), call.tensor(2)
    if scale.shape[0] != value.shape[1]:  # up to opset 20 one number for each group
        repeats = value.shape[1] // groups
        scale, bias = (one.repeat_interleave(repeats) for one in (scale, bias))
    return F.group_norm(value, groups, scale, bias, call.attribute("epsilon", 1e-5))


def _softmax(function: Callable[..., Tensor]) -> Operator:
    def apply(call: Call) -> Tensor:
        value = call.tensor()
        if call.opset >= 13:
            return function(value, call.attribute("axis", -1))
        axis = call.attribute("axis", 1) % value.dim()  # all axes from it on together
        return function(value.flatten(axis), -1).reshape(value.shape)

    return apply


def _scaler(call: Call) -> Tensor:
    """scikit-learn's scaling of features."""
    value = call.tensor()
    offset, scale = (
        torch.tensor(list(call.attribute(name) or [default]), dtype=torch.float32)
        for name, default in (("offset", 0.0), ("scale", 1.0))
    )
    return (value - offset) * scale


def _linear_classifier(call: Call) -> list[Tensor]:
    """scikit-learn's linear models; the label, its first result, is left out."""
    if call.attribute("post_transform", "NONE") != "NONE":
        raise Refused("makes probabilities before the end of the net")
    coefficients = torch.tensor(list(call.attribute("coefficients")), dtype=torch.float32)
    value = call.tensor()
    weight = coefficients.reshape(-1, value.shape[1])
    bias = torch.tensor(list(call.attribute("intercepts") or [0.0] * len(weight)))
    scores = F.linear(value, weight, bias.float())
    return [scores, scores]


# --- single numbers -------------------------------------------------------------------------------


def _unary(function: Callable[[Tensor], Tensor]) -> Operator:
    return lambda call: function(call.tensor())


def _binary(function: Callable[[Any, Any], Any]) -> Operator:
    def apply(call: Call) -> Value:
        if any(isinstance(value, list) for value in call.given):
            pairs = zip(*_even(call), strict=True)
            return [function(first, second) for first, second in pairs]
        first, second = call.tensor(), call.tensor(1)
        result: Tensor = function(first, second)
        return result

    def _even(call: Call) -> tuple[list[Any], list[Any]]:
        first, second = call.sizes(0), call.sizes(1)
        longest = max(len(first), len(second))
        return (
            first * longest if len(first) == 1 else first,
            second * longest if len(second) == 1 else second,
        )

    return apply


def _divide(first: Any, second: Any) -> Any:
    return first / second if isinstance(first, Tensor) else first // second


def _several(function: Callable[[Tensor, Tensor], Tensor], *, mean: bool = False) -> Operator:
    def apply(call: Call) -> Tensor:
        values = [call.tensor(place) for place in range(len(call.given))]
        total = reduce(function, values)
        return total / len(values) if mean else total

    return apply


def _clip(call: Call) -> Tensor:
    bounds = [
        call.number(place) if call.has(place) else call.attribute(name)
        for place, name in ((1, "min"), (2, "max"))
    ]
    low, high = bounds
    if low is None and high is None:
        return call.tensor()
    return call.tensor().clamp(low, high)


def _power(call: Call) -> Tensor:
    exponent = call.number(1)
    value = call.tensor()
    return value * value if exponent == 2 else value.pow(exponent)


def _elu(call: Call) -> Tensor:
    return F.elu(call.tensor(), call.attribute("alpha", 1.0))


def _selu(call: Call) -> Tensor:
    alpha = call.attribute("alpha", 1.6732632423543772)
    gamma = float(call.attribute("gamma", 1.0507009873554805))
    return F.elu(call.tensor(), alpha) * gamma


def _leaky(call: Call) -> Tensor:
    return F.leaky_relu(call.tensor(), call.attribute("alpha", 0.01))


def _slopes(call: Call) -> Tensor:
    return F.prelu(call.tensor(), call.tensor(1).reshape(-1))


def _hard_sigmoid(call: Call) -> Tensor:
    slope, height = float(call.attribute("alpha", 0.2)), float(call.attribute("beta", 0.5))
    return (call.tensor() * slope + height).clamp(0, 1)


def _gelu(call: Call) -> Tensor:
    return F.gelu(call.tensor(), approximate=call.attribute("approximate", "none"))


def _cast(call: Call) -> Value:
    """A change of type among floats; sizes stay sizes."""
    value = call.value()
    if isinstance(value, list):
        return value
    if call.attribute("to") not in (1, 10, 11, 16):  # single, half, double, bfloat
        raise Refused("makes whole numbers or truth values of the images")
    return call.tensor()


def _where(call: Call) -> Tensor:
    if not isinstance(call.value(), np.ndarray):
        raise Refused("chooses by a condition that depends on the images")
    return torch.where(call.tensor(), call.tensor(1), call.tensor(2))


def _reduction(function: Callable[..., Tensor]) -> Operator:
    def apply(call: Call) -> Tensor:
        value = call.tensor()
        axes = call.listed("axes", 1)
        if not axes:
            if call.attribute("noop_with_empty_axes", 0):
                return value
            raise Refused("takes all images of a batch together")
        return function(value, tuple(axes), bool(call.attribute("keepdims", 1)))

    return apply


def _over_places(function: Callable[..., Tensor]) -> Operator:
    """A reduction over all axes but those of images and channels."""

    def apply(call: Call) -> Tensor:
        value = call.tensor()
        return function(value, tuple(range(2, value.dim())), True)

    return apply


OPERATORS: Mapping[str, Operator] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(lambda first, second: first + second),
    "AveragePool": pool_average,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": shapes.concat,
    "ConstantOfShape": shapes.constant_of_shape,
    "Conv": convolve,
    "DepthToSpace": shapes.depth_to_space,
    "Div": _binary(_divide),
    "Dropout": _unary(lambda value: value),
    "Elu": _elu,
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Expand": shapes.expand,
    "Flatten": shapes.flatten,
    "Gather": shapes.gather,
    "Gelu": _gelu,
    "Gemm": _linear,
    "GlobalAveragePool": _over_places(torch.mean),
    "GlobalMaxPool": _over_places(torch.amax),
    "GroupNormalization": _group_norm,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _unary(F.hardswish),
    "Identity": lambda call: call.value(),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": _leaky,
    "LinearClassifier": _linear_classifier,
    "LogSoftmax": _softmax(F.log_softmax),
    "MatMul": _product,
    "Max": _several(torch.maximum),
    "MaxPool": pool_largest,
    "Mean": _several(torch.add, mean=True),
    "Min": _several(torch.minimum),
    "Mish": _unary(F.mish),
    "Mul": _binary(lambda first, second: first * second),
    "Neg": _unary(torch.neg),
    "PRelu": _slopes,
    "Pad": shapes.pad,
    "Pow": _power,
    "Reciprocal": _unary(torch.reciprocal),
    "ReduceL2": _reduction(
        lambda value, axes, keep: torch.linalg.vector_norm(value, 2, axes, keep)
    ),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "Relu": _unary(F.relu),
    "Reshape": shapes.reshape,
    "Scaler": _scaler,
    "Selu": _selu,
    "Shape": shapes.shape,
    "Sigmoid": _unary(torch.sigmoid),
    "Slice": shapes.slices,
    "Softmax": _softmax(F.softmax),
    "Softplus": _unary(F.softplus),
    "Split": shapes.split,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": shapes.squeeze,
    "Sub": _binary(lambda first, second: first - second),
    "Sum": _several(torch.add),
    "Swish": _unary(F.silu),
    "Tanh": _unary(torch.tanh),
    "Transpose": shapes.transpose,
    "Unsqueeze": shapes.unsqueeze,
    "Where": _where,
}
