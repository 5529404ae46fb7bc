"""What the shapes of a packed net's operators must fulfil, one function per operator.

Each is called when the shapes are known and nothing is allocated yet: an axis that does not
exist, a window that is too large, weights of another size. It takes the operator's arguments
and returns the problem in words, or None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attar.nets.graph.arguments import MAX_LENGTH

Args = Mapping[str, Any]
Check = Callable[[Args], str | None]


def axis_problem(axes: Sequence[int], rank: int) -> str | None:
    """Check axes, which may be negative.

    Args:
        axes: numbers of axes.
        rank: how many axes there are.

    Returns:
        The problem if one does not exist or is named twice.
    """
    if any(not -rank <= axis < rank for axis in axes):
        return f"axes {list(axes)} of a value with {rank} axes"
    if len({axis % rank for axis in axes}) != len(axes):
        return f"axes {list(axes)} name one twice"
    return None


def axes(name: str) -> Check:
    """A check that the axes in the argument ``name`` exist in the input and differ."""

    def check(args: Args) -> str | None:
        value = args[name]
        return axis_problem([value] if isinstance(value, int) else value, args["input"].dim())

    return check


def rank(name: str, *allowed: int) -> Check:
    """A check that the argument ``name`` has one of the ``allowed`` numbers of axes."""

    def check(args: Args) -> str | None:
        rank = args[name].dim()
        if rank in allowed:
            return None
        return f"{name} has {rank} axes, not {' or '.join(map(str, allowed))}"

    return check


def conv(args: Args) -> str | None:
    """Channels, groups and windows of a convolution over one or two axes."""
    image = args["input"]
    weight = args["weight"]
    groups = args.get("groups", 1)
    space = weight.dim() - 2
    if image.dim() != weight.dim() or space not in (1, 2):
        return f"an input of {image.dim()} axes and a weight of {weight.dim()}"
    windows = [args[name] for name in ("stride", "padding", "dilation") if name in args]
    if any(len(window) != space for window in windows):
        return f"stride, padding and dilation must be lists of {space}"
    channels = image.shape[1]
    if channels != weight.shape[1] * groups or weight.shape[0] % groups:
        return f"{channels} channels, a weight of shape {list(weight.shape)} and {groups} groups"
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} channels"
    return None


def pool(args: Args) -> str | None:
    """Windows of a pool over images."""
    if args["input"].dim() != 4:
        return f"input has {args['input'].dim()} axes, not 4"
    sides = zip(args.get("padding", (0, 0)), args["kernel_size"], strict=True)
    if any(2 * pad > kernel for pad, kernel in sides):
        return "padding is more than half of the window"
    return None


def select(args: Args) -> str | None:
    """The index of one entry of an axis."""
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if -size <= args["index"] < size else f"index {args['index']} of an axis of {size}"


def slice(args: Args) -> str | None:
    """The first entry and the end of a range of an axis."""
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    if not 0 <= args["start"] < args["end"] <= size:
        return f"from {args['start']} to {args['end']} of an axis of {size}"
    return None


def index_select(args: Args) -> str | None:
    """The indices of entries of an axis."""
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if max(args["index"]) < size else f"index {max(args['index'])} of an axis of {size}"


def roll(args: Args) -> str | None:
    """One shift for each axis."""
    if len(args["shifts"]) != len(args["dims"]):
        return "as many shifts as axes are needed"
    return axes("dims")(args)


def permute(args: Args) -> str | None:
    """Every axis once."""
    if len(args["dims"]) != args["input"].dim():
        return f"axes {list(args['dims'])} of a value with {args['input'].dim()} axes"
    return axes("dims")(args)


def cat(args: Args) -> str | None:
    """The axis along which values are joined."""
    return axis_problem([args["dim"]], args["tensors"][0].dim())


def pad(args: Args) -> str | None:
    """Widths and mode of a padding."""
    image = args["input"]
    pad = args["pad"]
    if len(pad) % 2 or len(pad) > 2 * image.dim():
        return f"{len(pad)} paddings of a value with {image.dim()} axes"
    if args.get("mode", "constant") != "constant":
        if "value" in args:
            return "a value goes with the mode constant only"
        if image.dim() != 4 or len(pad) != 4:
            return "this mode pads the two last of four axes"
        sides = (image.shape[3], image.shape[3], image.shape[2], image.shape[2])
        too_wide = any(width >= side for width, side in zip(pad, sides, strict=True))
        if args["mode"] == "reflect" and too_wide:
            return f"paddings {list(pad)} reflect more than there is"
    return None


def size_matches(name: str) -> Check:
    """A check that the argument ``name`` is a shape of the input's size, or not too large."""

    def check(args: Args) -> str | None:
        product = math.prod(args[name])
        elements = args["input"].numel()
        if name == "shape" and product != elements:
            return f"{elements} elements cannot have the shape {list(args[name])}"
        if product > 1024 * MAX_LENGTH:
            return f"the shape {list(args[name])} is too large"
        return None

    return check


def layer_norm(args: Args) -> str | None:
    """The last sizes, and those of weight and bias."""
    shape = args["normalized_shape"]
    if tuple(args["input"].shape[-len(shape) :]) != shape:
        return f"the last sizes of {list(args['input'].shape)} are not {list(shape)}"
    return affine(args, shape)


def group_norm(args: Args) -> str | None:
    """Groups of channels, and the sizes of weight and bias."""
    image = args["input"]
    if image.dim() < 2 or image.shape[1] % args["num_groups"]:
        return f"{args['num_groups']} groups of a value of shape {list(image.shape)}"
    return affine(args, (image.shape[1],))


def batch_norm(args: Args) -> str | None:
    """One running mean and variance for each channel, and the sizes of weight and bias."""
    image = args["input"]
    if not 2 <= image.dim() <= 4:
        return f"input has {image.dim()} axes, not 2 to 4"
    channels = (image.shape[1],)
    for name in ("running_mean", "running_var"):
        if tuple(args[name].shape) != channels:
            return f"{name} has another shape than {list(channels)}"
    return affine(args, channels)


def affine(args: Args, shape: tuple[int, ...]) -> str | None:
    """Weight and bias of a normalisation, which both have ``shape`` or are both missing."""
    # torch cannot always compute gradients through one of them alone.
    if ("weight" in args) != ("bias" in args):
        return "weight and bias come together or not at all"
    for name in ("weight", "bias"):
        if name in args and tuple(args[name].shape) != shape:
            return f"{name} has another shape than {list(shape)}"
    return None


def linear(args: Args) -> str | None:
    """Features in and out of a linear layer."""
    value = args["input"]
    weight = args["weight"]
    if weight.dim() != 2 or value.dim() < 1 or value.shape[-1] != weight.shape[1]:
        shapes = f"{list(value.shape)} and a weight of shape {list(weight.shape)}"
        return f"an input of shape {shapes}"
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} features"
    return None


def matmul(args: Args) -> str | None:
    """Two matrices, or stacks of them, that can be multiplied."""
    first = args["input"]
    second = args["other"]
    if first.dim() < 2 or second.dim() < 2 or first.shape[-1] != second.shape[-2]:
        return f"shapes {list(first.shape)} and {list(second.shape)}"
    return None


def attention(args: Args) -> str | None:
    """Query, key and value, (..., N, F) each."""
    query = args["query"]
    key = args["key"]
    value = args["value"]
    same_rank = query.dim() == key.dim() == value.dim() >= 3
    if not same_rank or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
        return "query, key and value of different shapes"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return "query, key and value of sizes that do not match"
    return None


def prelu(args: Args) -> str | None:
    """One slope, or one for each channel."""
    image = args["input"]
    weight = args["weight"]
    channels = image.shape[1] if image.dim() > 1 else 1
    if weight.dim() == 1 and weight.numel() in (1, channels):
        return None
    return f"{weight.numel()} slopes, {channels} channels"
