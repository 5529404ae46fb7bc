"""A client's own net -> an upload, at the client's side: exported by torch, written as a graph
of allowed operators.

The net runs here, where it was made; what travels is data. It is exported in eval mode with any
batch size, everything that does not depend on the images is computed once and becomes a weight,
torch's operators are translated into the words of ``nets/operators.py``, and the outcome is read
back as the server would and compared with the net itself before it is accepted.
"""

import importlib
import json
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors.torch import load_file
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram, export
from torch.serialization import get_unsafe_globals_in_checkpoint

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import AttarError, PackError
from attar.internal.text import list_some
from attar.nets.graph import GraphNet
from attar.nets.registry import Shape
from attar.packing.from_torch import Translation
from attar.packing.torch_operators import KEPT, WORDS

TOLERANCE = 1e-5
_SEED = 0x417461


def pack(
    net: nn.Module,
    *,
    input_shape: Shape,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    client: str = "client",
    num_examples: int = 1,
    label_counts: Sequence[int] | None = None,
) -> Upload:
    """The upload of any PyTorch classifier, or a PackError with the reasons why it cannot be sent.

    ``net`` takes a batch of images of ``input_shape``, normalised by ``mean`` and ``std`` ([0,
    1] as it is unless given), and gives logits over ``classes`` (numbered unless named): a
    tensor, or an output with the entry ``logits``. It is not changed.
    """
    plain = Preprocess.plain(input_shape)
    preprocess = Preprocess(input_shape, tuple(mean or plain.mean), tuple(std or plain.std))
    part = pack_part(net, None if classes is None else tuple(classes), preprocess)
    counts = None if label_counts is None else tuple(label_counts)
    return Upload(client, {"classifier": part}, num_examples, counts)


def pack_part(net: nn.Module, classes: tuple[str, ...] | None, preprocess: Preprocess) -> Part:
    """The net as a part whose architecture is its graph; its classes are numbered where no names
    are given.
    """
    original = _Logits(deepcopy(net).cpu().float()).eval().requires_grad_(False)
    shape = preprocess.input_shape
    width = _probe(original, shape, None if classes is None else len(classes))
    classes = classes or tuple(map(str, range(width)))
    graph, weights = Translation(_exported(original, shape), WORDS).finished()
    spec = ModelSpec(
        "graph", (("graph", json.dumps(graph, separators=(",", ":"), allow_nan=False)),)
    )
    try:
        rebuilt = spec.build(shape, len(classes), seed=0)
    except AttarError as error:
        raise PackError(
            "The net cannot be sent as a graph:", problems=error.problems or [error.what]
        ) from None
    assert isinstance(rebuilt, GraphNet)
    state = rebuilt.state_dict()
    state.update(zip(rebuilt.graph.names, weights, strict=True))
    rebuilt.load_state_dict(state)
    _compare(original, rebuilt.eval(), shape)
    return Part(spec, state, classes, preprocess)


def own_net(factory: str, weights: Path) -> nn.Module:
    """The client's own net: ``package.module:factory`` called, and its weights loaded, all of
    them. Runs the client's code.
    """
    place, _, name = factory.partition(":")
    if not place or not name.isidentifier():
        raise PackError(
            f"{factory!r} names no factory.", fix="write --module package.module:factory"
        )
    if place.endswith(".py"):
        module = place.removesuffix(".py").replace("/", ".")
        raise PackError(
            f"{factory!r} names a file.",
            fix=f"write --module {module}:{name}, and run where that can be imported",
        )
    try:
        there = vars(importlib.import_module(place))
    except Exception as error:  # the client's own code may fail in any way
        reason = f"{type(error).__name__}: {_first_line(error)}"
        fix = "run the command where the module can be imported"
        raise PackError(
            f"The module {place} cannot be imported:", problems=[reason], fix=fix
        ) from error
    if name not in there:
        offered = [
            word
            for word, made in there.items()
            if callable(made) and getattr(made, "__module__", None) == place
        ]
        fix = f"it has {list_some(offered)}" if offered else "name a factory in it"
        raise PackError(f"The module {place} has no {name}.", fix=fix)
    try:
        net = there[name]()
    except Exception as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise PackError(
            f"{factory} made no net:", problems=[reason], fix="the factory takes no arguments"
        ) from error
    if not isinstance(net, nn.Module):
        raise PackError(f"{factory} made a {type(net).__name__}, not a torch.nn.Module.")
    state = _state(weights)
    own = net.state_dict()
    problems = [f"missing: {name}" for name in own if name not in state]
    problems += [f"unexpected: {name}" for name in state if name not in own]
    problems += [
        f"{name} has shape {list(state[name].shape)}, the net needs {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    if problems:
        shown = (
            problems
            if len(problems) <= 6
            else [*problems[:6], f"and {len(problems) - 6} more of this kind"]
        )
        raise PackError(f"The weights in {weights} are not those of {factory}:", problems=shown)
    net.load_state_dict(state)
    return net


def _state(path: Path) -> dict[str, Tensor]:
    """A state dict from a safetensors file, or from a file of ``torch.save`` that holds nothing
    but tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        given = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise PackError(
            f"There is no file {path}.", fix="name the .safetensors or .pt file of the weights"
        ) from None
    except UnpicklingError as error:  # torch's own words are about its settings, not about the file
        fix = "torch.save(model.state_dict(), FILE) where the net was trained; and pack that file"
        raise PackError(
            f"{path} holds no plain weights:", problems=[_pickled(path)], fix=fix
        ) from error
    except Exception as error:  # torch and safetensors raise a dozen types
        fix = "save it as safetensors, or with torch.save(net.state_dict(), FILE)"
        raise PackError(
            f"{path} holds no plain weights:", problems=[_first_line(error)], fix=fix
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(given, dict) and isinstance(given.get(key), dict):
            given = given[key]
    if not isinstance(given, dict) or not all(
        isinstance(value, Tensor) for value in given.values()
    ):
        raise PackError(f"{path} is no state dict.", fix="torch.save(net.state_dict(), FILE)")
    return {name.removeprefix("module."): value for name, value in given.items()}


def _pickled(path: Path) -> str:
    """What a pickle holds that is not plain weights; nothing of it is run."""
    try:
        kinds = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # it is told for files of torch.save alone, and not for those of old versions
        return "it is a pickle of more than tensors, such as a whole module: not a state_dict"
    if any(kind.startswith("torch.nn.") for kind in kinds):
        return "it holds a whole module, not a state_dict"
    return f"it holds more than tensors: {', '.join(sorted(kinds))}"


class _Logits(nn.Module):
    """The net with its logits taken out of whatever it answers."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        answer = self.net(images)
        if isinstance(answer, Mapping):
            answer = answer.get("logits")
        elif isinstance(answer, tuple | list) and len(answer) == 1:
            answer = answer[0]
        if not isinstance(answer, Tensor):
            raise PackError(
                "The net gives neither a tensor nor an output with logits.",
                fix="wrap it: a factory whose module returns the logits alone",
            )
        return answer


def _images(shape: Shape, batch: int) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(_SEED + batch))


def _answer(net: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a sum over them with respect to the images."""
    images = images.clone().requires_grad_()
    logits = net(images)
    signs = torch.randn(logits.shape, generator=torch.Generator().manual_seed(_SEED))
    (gradient,) = torch.autograd.grad((logits * signs).sum(), images)
    return logits.detach(), gradient


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, beside the size of the numbers where that is above 1."""
    return float((one - other).abs().max() / one.abs().max().clamp(min=1))


def _probe(net: nn.Module, shape: Shape, classes: int | None) -> int:
    """How many classes it has. Refuses random answers, images that influence each other, and
    nets without a gradient.
    """
    images = _images(shape, 3)
    try:
        logits, gradient = _answer(net, images)
        again, _ = _answer(net, images)
        alone = torch.cat([_answer(net, image[None])[0] for image in images])
    except PackError:
        raise
    except Exception as error:
        raise PackError(
            f"The net cannot answer images of shape {list(shape)} in eval mode, forth and back:",
            problems=[f"{type(error).__name__}: {_first_line(error)}"],
            fix="check --sample-shape; parts under no_grad or detach cannot be fused",
        ) from error
    problems = []
    if logits.dim() != 2 or tuple(logits.shape) != (3, classes or logits.shape[1]):
        problems.append(
            f"it gives {list(logits.shape)} for 3 images and {classes or 'any number of'} classes"
        )
    elif not logits.isfinite().all() or not gradient.isfinite().all():
        problems.append("its logits or their gradients are NaN or infinite on normal images")
    elif _apart(logits, again) > TOLERANCE:
        problems.append("it answers the same images differently each time, although in eval mode")
    elif _apart(logits, alone) > 10 * TOLERANCE:
        problems.append("an image's logits depend on the other images of its batch")
    if problems:
        raise PackError("The net is no classifier that could be fused:", problems=problems)
    return int(logits.shape[1])


def _compare(original: nn.Module, rebuilt: nn.Module, shape: Shape) -> None:
    problems = []
    for batch in (1, 4):
        images = _images(shape, batch)
        for what, one, other in zip(
            ("logits", "gradients"),
            _answer(original, images),
            _answer(rebuilt, images),
            strict=True,
        ):
            if (apart := _apart(one, other)) > TOLERANCE or apart != apart:
                problems.append(f"{what} of {batch} images differ by {apart:.1e}")
    if problems:
        raise PackError(
            "The packed net is not the net itself:",
            problems=problems,
            fix="parts under no_grad, detach or autocast are not kept; leave them out",
        )


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")[:300]


def _exported(net: nn.Module, shape: Shape) -> ExportedProgram:
    """The net as torch's graph: functional, constants apart, operators that we have a word for
    left whole.
    """
    try:
        with warnings.catch_warnings(), _torch_silent():
            warnings.simplefilter("ignore")
            program = export(
                net, (_images(shape, 2),), dynamic_shapes=({0: Dim("batch")},), strict=False
            )
            _refuse_regions(program.graph_module)
            table = torch.export.default_decompositions()
            for kept in KEPT:
                table.pop(kept, None)
            decomposed: ExportedProgram = program.run_decompositions(table)
            return decomposed
    except AttarError:
        raise
    except Exception as error:
        where = _own_line(error)
        raise PackError(
            "torch.export cannot follow the net for any number of images:",
            problems=[
                *([] if where is None else [where]),
                f"{type(error).__name__}: {_first_line(error)}",
            ],
            fix="the usual reasons: branches on the images' values, a fixed batch size, len(x) instead of x.shape[0]",
        ) from error


@contextmanager
def _torch_silent() -> Iterator[None]:
    """Where torch gives up it prints its whole graph, several times, and logs besides; what
    matters is in its exception.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(before)


def _own_line(error: Exception) -> str | None:
    """The last line of the client's own code on the way to an error."""
    homes = str(Path(torch.__file__).parent), str(Path(__file__).parents[1])
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*homes, "<"))
    ]
    own = [frame for frame in own if frame.line and "site-packages" not in frame.filename]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}: {own[-1].line}" if own else None


def _refuse_regions(module: fx.GraphModule) -> None:
    found = sorted({str(node.target) for node in module.graph.nodes if _is_region(node)})
    if found:
        raise PackError(
            "The net has parts that are switched or run differently:",
            problems=found,
            fix=_NO_REGIONS,
        )


_NO_REGIONS = "leave no_grad, autocast and control flow out of the net"


def _is_region(node: fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)
