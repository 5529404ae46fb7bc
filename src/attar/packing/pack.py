"""A client's own net -> an upload, on the client's side.

The net runs here, where it was made; what travels is data. It is exported by torch in eval mode
for any batch size, and torch's operators are converted to those of packed nets. The result is
read back as the server would and compared with the net itself before it is used.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import AttarError, PackError
from attar.nets import GraphNet, Shape
from attar.packing.export import export_net, first_line
from attar.packing.from_torch import GraphBuilder
from attar.packing.torch_operators import CONVERTERS

TOLERANCE = 1e-5  # relative difference of logits and gradients
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
    """Make an upload of any PyTorch classifier; the net is not changed.

    Args:
        net: normalised images ``(B, *input_shape)`` -> logits (B, C): a tensor, or an output
            with the entry ``logits``.
        input_shape: of one image, (C, H, W).
        classes: names in the order of the logits; None numbers them.
        mean: of each channel, subtracted from images in [0, 1]; None for 0.
        std: of each channel, divided by; None for 1.
        client: its name in the federation.
        num_examples: images that the net was trained on.
        label_counts: of each class; None withholds them.

    Returns:
        An upload with the net as its classifier.

    Raises:
        PackError: with every reason why the net cannot be sent.
    """
    plain = Preprocess.plain(input_shape)
    preprocess = Preprocess(input_shape, tuple(mean or plain.mean), tuple(std or plain.std))
    part = pack_part(net, None if classes is None else tuple(classes), preprocess)
    counts = None if label_counts is None else tuple(label_counts)
    return Upload(client, {"classifier": part}, num_examples, counts)


def pack_part(net: nn.Module, classes: tuple[str, ...] | None, preprocess: Preprocess) -> Part:
    """Make a part of a PyTorch classifier; its architecture is its graph.

    Args:
        net: as for ``pack``.
        classes: names in the order of the logits; None numbers them.
        preprocess: canonical image -> its input.

    Raises:
        PackError: with every reason why the net cannot be sent.
    """
    original = _Logits(deepcopy(net).cpu().float()).eval().requires_grad_(False)
    shape = preprocess.input_shape
    width = _probe(original, shape, None if classes is None else len(classes))
    classes = classes or tuple(map(str, range(width)))
    program = export_net(original, _draw_images(shape, 2))
    graph, weights = GraphBuilder(program, CONVERTERS).finish()
    text = json.dumps(graph, separators=(",", ":"), allow_nan=False)
    spec = ModelSpec("graph", (("graph", text),))
    try:
        rebuilt = spec.build(shape, len(classes), seed=0)
    except AttarError as error:
        problems = error.problems or [error.what]
        raise PackError("The net cannot be sent as a graph:", problems=problems) from None
    assert isinstance(rebuilt, GraphNet)
    state = rebuilt.state_dict()
    state.update(zip(rebuilt.graph.names, weights, strict=True))
    rebuilt.load_state_dict(state)
    _compare(original, rebuilt.eval(), shape)
    return Part(spec, state, classes, preprocess)


class _Logits(nn.Module):
    """A net that returns its logits as a tensor, whatever else it returns."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        output = self.net(images)
        if isinstance(output, Mapping):
            output = output.get("logits")
        elif isinstance(output, tuple | list) and len(output) == 1:
            output = output[0]
        if not isinstance(output, Tensor):
            raise PackError(
                "The net gives neither a tensor nor an output with logits.",
                fix="wrap it: a factory whose module returns the logits alone",
            )
        return output


def _draw_images(shape: Shape, batch: int) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(_SEED + batch))


def _run(net: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the gradient of a sum over them with respect to the images."""
    images = images.clone().requires_grad_()
    logits = net(images)
    signs = torch.randn(logits.shape, generator=torch.Generator().manual_seed(_SEED))
    (gradient,) = torch.autograd.grad((logits * signs).sum(), images)
    return logits.detach(), gradient


def _difference(first: Tensor, second: Tensor) -> float:
    """The largest difference, relative to the largest number if that is above 1."""
    return float((first - second).abs().max() / first.abs().max().clamp(min=1))


def _probe(net: nn.Module, shape: Shape, classes: int | None) -> int:
    """How many classes a net has.

    Refuses nets whose logits are random, depend on other images of the batch, or have no
    gradient.
    """
    images = _draw_images(shape, 3)
    try:
        logits, gradient = _run(net, images)
        again, _ = _run(net, images)
        alone = torch.cat([_run(net, image[None])[0] for image in images])
    except PackError:
        raise
    except Exception as error:
        what = f"The net does not run on images of shape {list(shape)} in eval mode with gradients"
        raise PackError(
            f"{what}:",
            problems=[f"{type(error).__name__}: {first_line(error)}"],
            fix="check --sample-shape; parts under no_grad or detach cannot be fused",
        ) from error
    problems = []
    if logits.dim() != 2 or tuple(logits.shape) != (3, classes or logits.shape[1]):
        asked = f"3 images and {classes or 'any number of'} classes"
        problems.append(f"it gives {list(logits.shape)} for {asked}")
    elif not logits.isfinite().all() or not gradient.isfinite().all():
        problems.append("its logits or their gradients are NaN or infinite on normal images")
    elif _difference(logits, again) > TOLERANCE:
        problems.append("it answers the same images differently each time, although in eval mode")
    elif _difference(logits, alone) > 10 * TOLERANCE:
        problems.append("an image's logits depend on the other images of its batch")
    if problems:
        raise PackError("The net is no classifier that could be fused:", problems=problems)
    return int(logits.shape[1])


def _compare(original: nn.Module, rebuilt: nn.Module, shape: Shape) -> None:
    problems = []
    for batch in (1, 4):
        images = _draw_images(shape, batch)
        pairs = zip(_run(original, images), _run(rebuilt, images), strict=True)
        for name, (first, second) in zip(("logits", "gradients"), pairs, strict=True):
            difference = _difference(first, second)
            if not difference <= TOLERANCE:  # also true for NaN
                problems.append(f"{name} of {batch} images differ by {difference:.1e}")
    if problems:
        raise PackError(
            "The packed net does not compute what the net computes:",
            problems=problems,
            fix="leave out parts under no_grad, detach or autocast, which are not packed",
        )
