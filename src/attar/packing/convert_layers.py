"""Torch's layers as nodes of a packed net: convolutions, pools, norms, products, attention."""

from typing import Any

import torch
from torch import Tensor, fx

from attar.packing.convert_shapes import to_sizes
from attar.packing.from_torch import BatchConstant, Converter, GraphBuilder, UnsupportedOperator


def convert_convolution(op: str) -> Converter:
    """A converter for convolutions; padding by name becomes widths.

    Args:
        op: the operator of the packed net.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        image = args["input"]
        padding = args["padding"]
        weight = node.args[1]
        assert isinstance(weight, fx.Node)
        kernel = weight.meta["val"].shape[2:]
        sizes = {name: to_sizes(args[name], len(kernel)) for name in ("stride", "dilation")}
        if padding == "same":
            dilations = zip(sizes["dilation"], kernel, strict=True)
            total = [dilation * (side - 1) for dilation, side in dilations]
            padding = [width // 2 for width in total]
            if any(width % 2 for width in total):
                both = [side for w in reversed(total) for side in (w // 2, w - w // 2)]
                image = builder.add_node("pad", input=image, pad=both)
                padding = [0] * len(kernel)
        elif padding == "valid":
            padding = [0] * len(kernel)
        more = {"padding": to_sizes(padding, len(kernel)), **sizes, "groups": args["groups"]}
        return builder.add_node(op, input=image, weight=args["weight"], bias=args["bias"], **more)

    return convert


def convert_pool(op: str) -> Converter:
    """A converter for pools over images.

    Args:
        op: the operator of the packed net.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        kernel = to_sizes(args["kernel_size"], 2)
        sizes = {
            "kernel_size": kernel,
            "stride": to_sizes(args["stride"] or kernel, 2),
            "padding": to_sizes(args["padding"], 2),
        }
        if op == "max_pool2d":
            sizes["dilation"] = to_sizes(args["dilation"], 2)
        elif args["divisor_override"] is not None:
            raise UnsupportedOperator("divides by another number than the window's size")
        modes = {name: args.get(name) for name in ("ceil_mode", "count_include_pad")}
        return builder.add_node(op, input=args["self"], **sizes, **modes)

    return convert


def _complete_affine(weight: Any, bias: Any) -> dict[str, Any]:
    """Weight and bias of a layer that may have only one of them."""
    if isinstance(bias, Tensor) and weight is None:
        weight = torch.ones_like(bias)
    if isinstance(weight, Tensor) and bias is None:
        bias = torch.zeros_like(weight)
    return {"weight": weight, "bias": bias}


def convert_batch_norm(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """BatchNorm in eval mode; its tensors become its own weights.

    Raises:
        UnsupportedOperator: if its statistics come from the batch or depend on the images.
    """
    mean = args["running_mean"]
    variance = args["running_var"]
    if args.get("training", False) or mean is None or variance is None:
        advice = "call .eval(), and keep running statistics"
        raise UnsupportedOperator(f"takes its statistics from the batch ({advice})")
    affine = _complete_affine(args["weight"], args["bias"])
    tensors = {"running_mean": mean, "running_var": variance, **affine}
    if any(isinstance(tensor, dict) for tensor in tensors.values()):
        raise UnsupportedOperator("has statistics that depend on the images")
    own = {
        name: None if tensor is None else builder.add_own_weight(tensor)
        for name, tensor in tensors.items()
    }
    return builder.add_node("batch_norm", input=args["input"], **own, eps=args["eps"])


def convert_native_batch_norm(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """BatchNorm as torch decomposes it, without the statistics that it returns for training."""
    return [convert_batch_norm(builder, node, args)]


def convert_norm(op: str, *names: str) -> Converter:
    """A converter for LayerNorm and GroupNorm.

    Args:
        op: the operator of the packed net.
        names: of its arguments beside weight, bias and eps.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        affine = _complete_affine(args["weight"], args["bias"])
        more = {name: args[name] for name in ("eps", *names)}
        return builder.add_node(op, input=args["input"], **affine, **more)

    return convert


def convert_linear(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A linear layer; the last one of the net, the head, has its own weights."""
    weights = {name: args[name] for name in ("weight", "bias")}
    if _is_last(node):
        for name, tensor in weights.items():
            if isinstance(tensor, Tensor):
                weights[name] = builder.add_own_weight(tensor)
    return builder.add_node("linear", input=args["input"], **weights)


def _is_last(node: fx.Node) -> bool:
    return all(user.op == "output" for user in node.users)


def convert_addmm(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """A product of matrices plus a value.

    Raises:
        UnsupportedOperator: if they are scaled.
    """
    if args.get("alpha", 1) != 1 or args.get("beta", 1) != 1:
        raise UnsupportedOperator("alpha or beta")
    names = ("mat1", "mat2") if "mat1" in args else ("batch1", "batch2")
    product = builder.add_node("matmul", input=args[names[0]], other=args[names[1]])
    return builder.add_node("add", input=product, other=args["self"])


def convert_matmul(second: str) -> Converter:
    """A converter for products of matrices.

    Args:
        second: torch's name of the second factor.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        return builder.add_node("matmul", input=args["self"], other=args[second])

    return convert


def convert_attention(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
    """Attention; a mask of booleans becomes a large negative summand.

    Raises:
        UnsupportedOperator: if it has dropout, a causal mask or grouped queries.
    """
    if args["dropout_p"] or args["is_causal"] or args["enable_gqa"]:
        raise UnsupportedOperator("with dropout, a causal mask or grouped queries")
    mask = args["attn_mask"]
    if isinstance(mask, BatchConstant):
        mask = mask.value  # it is added to scores that are as large as the batch
    if isinstance(mask, Tensor) and mask.dtype is torch.bool:
        mask = None if mask.all() else torch.zeros(mask.shape).masked_fill(~mask, -1e9)
    names = {name: args[name] for name in ("query", "key", "value")}
    return builder.add_node(
        "scaled_dot_product_attention", **names, attn_mask=mask, scale=args["scale"]
    )


def convert_softmax(op: str) -> Converter:
    """A converter for softmax and its logarithm, in single precision.

    Args:
        op: the operator of the packed net.
    """

    def convert(builder: GraphBuilder, node: fx.Node, args: dict[str, Any]) -> Any:
        if node.meta["val"].dtype is not torch.float32:
            raise UnsupportedOperator(f"makes {node.meta['val'].dtype}")
        return builder.add_node(op, input=args["self"], dim=args["dim"])

    return convert
