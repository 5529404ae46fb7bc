"""What shapes forbid in a packed net: an axis that is not there, a window that does not fit,
weights of another size.

Asked when the shapes are known and nothing is allocated yet; the answer is the problem in words,
or None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attar.nets.graph.arguments import MAX_LENGTH

Args = Mapping[str, Any]
Check = Callable[[Args], str | None]


def axis_problem(axes: Sequence[int], rank: int) -> str | None:
    if any(not -rank <= axis < rank for axis in axes):
        return f"axes {list(axes)} of a value with {rank} axes"
    if len({axis % rank for axis in axes}) != len(axes):
        return f"axes {list(axes)} name one twice"
    return None


def axes(name: str) -> Check:
    def check(args: Args) -> str | None:
        given = args[name]
        return axis_problem([given] if isinstance(given, int) else given, args["input"].dim())

    return check


def rank(name: str, *allowed: int) -> Check:
    def check(args: Args) -> str | None:
        rank = args[name].dim()
        return (
            None
            if rank in allowed
            else f"{name} has {rank} axes, not {' or '.join(map(str, allowed))}"
        )

    return check


def conv(args: Args) -> str | None:
    image, weight, groups = args["input"], args["weight"], args.get("groups", 1)
    space = weight.dim() - 2
    if image.dim() != weight.dim() or space not in (1, 2):
        return f"an input of {image.dim()} axes and a weight of {weight.dim()}"
    if any(
        len(args.get(name, (1,) * space)) != space for name in ("stride", "padding", "dilation")
    ):
        return f"stride, padding and dilation must be lists of {space}"
    if image.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        return (
            f"{image.shape[1]} channels, a weight of shape {list(weight.shape)} and {groups} groups"
        )
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} channels"
    return None


def pool(args: Args) -> str | None:
    if args["input"].dim() != 4:
        return f"input has {args['input'].dim()} axes, not 4"
    if any(
        2 * pad > kernel
        for pad, kernel in zip(args.get("padding", (0, 0)), args["kernel_size"], strict=True)
    ):
        return "padding is more than half of the window"
    return None


def select(args: Args) -> str | None:
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if -size <= args["index"] < size else f"index {args['index']} of an axis of {size}"


def slice(args: Args) -> str | None:
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    if not 0 <= args["start"] < args["end"] <= size:
        return f"from {args['start']} to {args['end']} of an axis of {size}"
    return None


def index_select(args: Args) -> str | None:
    if problem := axes("dim")(args):
        return problem
    size = args["input"].shape[args["dim"]]
    return None if max(args["index"]) < size else f"index {max(args['index'])} of an axis of {size}"


def roll(args: Args) -> str | None:
    if len(args["shifts"]) != len(args["dims"]):
        return "as many shifts as axes are needed"
    return axes("dims")(args)


def permute(args: Args) -> str | None:
    if len(args["dims"]) != args["input"].dim():
        return f"axes {list(args['dims'])} of a value with {args['input'].dim()} axes"
    return axes("dims")(args)


def cat(args: Args) -> str | None:
    return axis_problem([args["dim"]], args["tensors"][0].dim())


def pad(args: Args) -> str | None:
    image, pad = args["input"], args["pad"]
    if len(pad) % 2 or len(pad) > 2 * image.dim():
        return f"{len(pad)} paddings of a value with {image.dim()} axes"
    if args.get("mode", "constant") != "constant":
        if "value" in args:
            return "a value goes with the mode constant only"
        if image.dim() != 4 or len(pad) != 4:
            return "this mode pads the two last of four axes"
        sides = (image.shape[3], image.shape[3], image.shape[2], image.shape[2])
        if args["mode"] == "reflect" and any(
            given >= side for given, side in zip(pad, sides, strict=True)
        ):
            return f"paddings {list(pad)} reflect more than there is"
    return None


def sized(name: str) -> Check:
    def check(args: Args) -> str | None:
        product, own = math.prod(args[name]), args["input"].numel()
        if name == "shape" and product != own:
            return f"{own} elements cannot have the shape {list(args[name])}"
        if product > 1024 * MAX_LENGTH:
            return f"the shape {list(args[name])} is too large"
        return None

    return check


def layer_norm(args: Args) -> str | None:
    shape = args["normalized_shape"]
    if tuple(args["input"].shape[-len(shape) :]) != shape:
        return f"the last sizes of {list(args['input'].shape)} are not {list(shape)}"
    return affine(args, shape)


def group_norm(args: Args) -> str | None:
    image = args["input"]
    if image.dim() < 2 or image.shape[1] % args["num_groups"]:
        return f"{args['num_groups']} groups of a value of shape {list(image.shape)}"
    return affine(args, (image.shape[1],))


def batch_norm(args: Args) -> str | None:
    image = args["input"]
    if not 2 <= image.dim() <= 4:
        return f"input has {image.dim()} axes, not 2 to 4"
    channels = (image.shape[1],)
    wrong = [
        name for name in ("running_mean", "running_var") if tuple(args[name].shape) != channels
    ]
    return (
        f"{wrong[0]} has another shape than {list(channels)}" if wrong else affine(args, channels)
    )


def affine(args: Args, shape: tuple[int, ...]) -> str | None:
    if ("weight" in args) != ("bias" in args):  # torch cannot always go back through one alone
        return "weight and bias come together or not at all"
    wrong = [
        name for name in ("weight", "bias") if name in args and tuple(args[name].shape) != shape
    ]
    return f"{wrong[0]} has another shape than {list(shape)}" if wrong else None


def linear(args: Args) -> str | None:
    weight = args["weight"]
    if weight.dim() != 2 or args["input"].dim() < 1 or args["input"].shape[-1] != weight.shape[1]:
        return f"an input of shape {list(args['input'].shape)} and a weight of shape {list(weight.shape)}"
    if "bias" in args and args["bias"].shape != weight.shape[:1]:
        return f"a bias of shape {list(args['bias'].shape)} for {weight.shape[0]} features"
    return None


def matmul(args: Args) -> str | None:
    one, other = args["input"], args["other"]
    if one.dim() < 2 or other.dim() < 2 or one.shape[-1] != other.shape[-2]:
        return f"shapes {list(one.shape)} and {list(other.shape)}"
    return None


def attention(args: Args) -> str | None:
    query, key, value = args["query"], args["key"], args["value"]
    if (
        not query.dim() == key.dim() == value.dim() >= 3
        or not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    ):
        return "query, key and value of different shapes"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return "query, key and value that do not fit together"
    return None


def prelu(args: Args) -> str | None:
    image, weight = args["input"], args["weight"]
    channels = image.shape[1] if image.dim() > 1 else 1
    return (
        None
        if weight.dim() == 1 and weight.numel() in (1, channels)
        else f"{weight.numel()} slopes, {channels} channels"
    )
