"""A net as torch's graph, by torch.export."""

import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export

from attar.errors import AttarError, PackError
from attar.packing.torch_operators import NOT_DECOMPOSED


def export_net(net: nn.Module, images: Tensor) -> ExportedProgram:
    """Export a net for any batch size.

    Args:
        net: images -> logits, in eval mode.
        images: an example, (B, C, H, W).

    Returns:
        A functional graph with constants apart, in which the operators with a converter are
        left whole.

    Raises:
        PackError: if torch cannot export the net, with the line of the client's code; or if
            parts of it run under no_grad, autocast or control flow.
    """
    try:
        with warnings.catch_warnings(), _silence_torch():
            warnings.simplefilter("ignore")
            shapes = ({0: Dim("batch")},)
            program = export(net, (images,), dynamic_shapes=shapes, strict=False)
            _refuse_regions(program.graph_module)
            table = torch.export.default_decompositions()
            for operator in NOT_DECOMPOSED:
                table.pop(operator, None)
            decomposed: ExportedProgram = program.run_decompositions(table)
            return decomposed
    except AttarError:
        raise
    except Exception as error:
        where = _find_line(error)
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise PackError(
            "torch.export cannot follow the net for any number of images:",
            problems=[reason] if where is None else [where, reason],
            fix="the usual reasons: branches on the images' values, a fixed batch size, len(x) "
            "instead of x.shape[0]",
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message that is not empty, at most 300 characters."""
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")[:300]


@contextmanager
def _silence_torch() -> Iterator[None]:
    """Hide the graphs that torch prints when it gives up; the exception says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _find_line(error: Exception) -> str | None:
    """The last line of the client's own code on the way to an error."""
    foreign = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(foreign)]
    own = [frame for frame in own if frame.line and "site-packages" not in frame.filename]
    if not own:
        return None
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line}"


def _refuse_regions(module: fx.GraphModule) -> None:
    regions = sorted({str(node.target) for node in module.graph.nodes if _is_region(node)})
    if regions:
        raise PackError(
            "The net has parts that are switched or run differently:",
            problems=regions,
            fix="leave no_grad, autocast and control flow out of the net",
        )


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)
