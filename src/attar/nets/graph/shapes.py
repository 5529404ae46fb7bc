"""The shapes of a packed net's values, followed without allocating them.

They are followed on torch's ``meta`` device for several batch sizes, against bounds on memory
and work.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attar.nets.graph.arguments import MAX_RANK, At, Batch, Weight
from attar.nets.graph.operators import OPERATORS, Cost
from attar.nets.registry import Shape

MAX_ELEMENTS = 2**28  # of all values of one image together: 1 GiB
MAX_WORK = 2**40  # multiply-accumulates for one image

# A number of elements that is constant or proportional to the batch for all of these is so for
# every other batch size.
_BATCHES = (1, 2, 1000)


class InvalidGraph(Exception):
    """A graph that is not used; ``args`` are the problems."""


@dataclass(frozen=True)
class Node:
    """One step of a graph.

    Attributes:
        op: name of the operator.
        args: its arguments: references, numbers, texts, and tuples of these.
    """

    op: str
    args: Mapping[str, Any]


def follow_shapes(
    nodes: Sequence[Node],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[torch.dtype],
    input_shape: Shape,
    num_classes: int,
) -> tuple[tuple[int, ...], int, int]:
    """Follow shapes from the images to the logits.

    Args:
        nodes: of the graph.
        shapes: of the weights.
        dtypes: of the weights.
        input_shape: of one image, (C, H, W).
        num_classes: of the logits.

    Returns:
        The ranks of all values, and the multiply-accumulates and elements for one image.

    Raises:
        InvalidGraph: if shapes do not match, a bound is exceeded, or the result is not one row
            of logits per image.
    """
    weights = [
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    values = {batch: [torch.empty(batch, *input_shape, device="meta")] for batch in _BATCHES}
    work = 0
    elements = math.prod(input_shape)
    temporary = 0  # the most elements that one operator needs beside its result
    for number, node in enumerate(nodes, 1):
        where = f"node {number} ({node.op}): "
        for batch, known in values.items():
            args = {n: fill_argument(arg, known, weights, batch) for n, arg in node.args.items()}
            result, cost = try_node(node, args, where)
            known.append(result)
            if batch > 1:
                continue
            work += cost.work
            elements += result.numel()
            temporary = max(temporary, cost.temporary)
            if elements + temporary > MAX_ELEMENTS:
                limit = f"more than {MAX_ELEMENTS:,} elements"
                raise InvalidGraph(f"{where}its values for one image have {limit}")
            if work > MAX_WORK:
                limit = f"more than {MAX_WORK:,} multiplications"
                raise InvalidGraph(f"{where}it takes {limit} for one image")
        one, two, many = (values[batch][number].numel() for batch in _BATCHES)
        if (two, many) not in ((one, one), (2 * one, 1000 * one)):
            raise InvalidGraph(f"{where}its result does not grow with the batch as it must")
    for batch, known in values.items():
        shape = list(known[-1].shape)
        if shape != [batch, num_classes]:
            asked = f"{batch} images and {num_classes} classes"
            raise InvalidGraph(f"its last node gives {shape} for {asked}")
    ranks = tuple(value.dim() for value in values[1])
    return ranks, work, elements + temporary


def try_node(node: Node, args: Mapping[str, Any], where: str) -> tuple[Tensor, Cost]:
    """Run one node on the ``meta`` device.

    Args:
        node: the node.
        args: its arguments, with tensors in place of references.
        where: the beginning of error messages.

    Returns:
        The result without its memory, and what it costs.

    Raises:
        InvalidGraph: if the shapes do not match.
    """
    operator = OPERATORS[node.op]
    problem = operator.check(args)
    if problem is not None:
        raise InvalidGraph(where + problem)
    if node.op == "index_select":
        index = torch.empty(len(args["index"]), dtype=torch.int64, device="meta")
        args = {**args, "index": index}
    try:
        result = operator.call(**args)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:  # shapes do not match
        reason = str(error).splitlines()[0][:200] if str(error) else "torch refuses it"
        raise InvalidGraph(f"{where}{reason}") from None
    if result.dim() > MAX_RANK or not result.numel():
        raise InvalidGraph(f"{where}its result has the shape {list(result.shape)}")
    return result, operator.cost(args, result)


def fill_argument(
    arg: Any, values: Sequence[Tensor | None], weights: Sequence[Tensor], batch: int
) -> Any:
    """Put tensors and numbers in the place of references.

    Args:
        arg: an argument of a node.
        values: of the nodes before it.
        weights: of the graph.
        batch: number of images.
    """
    if isinstance(arg, At):
        return values[arg.node]
    if isinstance(arg, Weight):
        return weights[arg.number]
    if isinstance(arg, Batch):
        return arg.times * batch
    if isinstance(arg, tuple):
        return tuple(fill_argument(item, values, weights, batch) for item in arg)
    return arg
