"""An ONNX file -> an upload, on the client's side, compared with onnxruntime before it is used."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attar.core import Part, Preprocess, Upload
from attar.errors import PackError
from attar.internal.extras import import_extra
from attar.nets import Shape
from attar.packing.export import first_line
from attar.packing.onnx.file import OnnxGraph, fold_constants, read_onnx
from attar.packing.onnx.layout import ImageInput, Layout, find_input
from attar.packing.onnx.net import OnnxNet
from attar.packing.onnx.outputs import Ending, Logits, as_logits, find_logits, join_products
from attar.packing.pack import pack_part
from attar.uploads import class_name_problems

TOLERANCE = 1e-4  # relative difference of logits, for those above 1
BATCHES = (1, 4, 32)
_SEED = 0x6F6E6E78
_ENDINGS: dict[Ending, str] = {
    "softmax": "Its softmax at the end is left out: attar takes logits.",
    "logarithm": "Its log-softmax at the end is left out: attar takes logits.",
    "sigmoid": "It ends in a sigmoid: the two classes got logits whose softmax is the same.",
    "pair": "It ends in a sigmoid: the two classes got logits whose softmax is the same.",
}
_DTYPES = {1: torch.float32, 10: torch.float16, 11: torch.float64}


@dataclass(frozen=True)
class PackedOnnx:
    """A net from an ONNX file.

    Attributes:
        upload: with the net as its classifier.
        largest_difference: of its logits from onnxruntime's, relative where they are above 1.
        images_compared: on how many images.
        notes: what was done to the net, in sentences.
    """

    upload: Upload
    largest_difference: float
    images_compared: int
    notes: tuple[str, ...]


def pack_onnx(
    path: str | Path,
    *,
    input_shape: Shape | None = None,
    layout: Layout | None = None,
    output: str | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    client: str = "client",
    num_examples: int = 1,
    label_counts: Sequence[int] | None = None,
) -> PackedOnnx:
    """Make an upload of a classifier in an ONNX file.

    Args:
        path: the file. Weights outside of it and operators that are not ONNX's are refused.
        input_shape: of one image, (C, H, W); None: as the file says.
        layout: of the file's images, "nchw" or "nhwc"; None: the one that fits.
        output: name of the file's result to take; None: its only or usual one.
        classes: names in the order of the logits; None: those in the file, or numbers.
        mean: of each channel or of all, subtracted from images in [0, 1]; None for 0.
        std: of each channel or of all, divided by; None for 1.
        client: its name in the federation.
        num_examples: images that the net was trained on.
        label_counts: of each class; None withholds them.

    Returns:
        The upload, and how it compares with the file.

    Raises:
        SettingsError: if onnx or onnxruntime is missing.
        PackError: with every reason why the net cannot be sent.
    """
    runtime = import_extra("onnxruntime", "export")
    graph = read_onnx(Path(path))
    logits = find_logits(graph, output)
    images = find_input(graph, logits.nodes, input_shape, layout)
    nodes, constants = fold_constants(graph, logits.nodes)
    net = OnnxNet(graph, join_products(nodes, constants), constants, logits, images)
    preprocess = Preprocess(
        images.shape,
        _per_channel("mean", mean or [0.0], images.shape),
        _per_channel("std", std or [1.0], images.shape),
    )
    part, notes = _pack(net, classes, logits, preprocess)
    compared = _Comparison(runtime, graph, logits, images)
    difference = compared.measure(part)
    if images.layout == "nhwc":
        notes.append(
            "The file takes images with their channels last; the packed net takes them first."
        )
    if logits.ending in _ENDINGS:
        notes.append(_ENDINGS[logits.ending])
    counts = None if label_counts is None else tuple(label_counts)
    upload = Upload(client, {"classifier": part}, num_examples, counts)
    return PackedOnnx(upload, difference, sum(BATCHES), tuple(notes))


def _per_channel(name: str, numbers: Sequence[float], shape: Shape) -> tuple[float, ...]:
    """One number for each channel, from as many or one."""
    given = tuple(map(float, numbers))
    if len(given) not in (1, shape[0]):
        raise PackError(
            f"{name} has {len(given)} numbers; the images have {shape[0]} channels.",
            fix="give one number for each, or one for all",
        )
    wrong = not all(map(math.isfinite, given)) or (name == "std" and min(given) <= 0)
    if wrong or (name == "mean" and not all(0 <= number <= 1 for number in given)):
        raise PackError(
            f"{name} {', '.join(map(str, given))}: images are in [0, 1].",
            fix="divide mean and std by 255",
        )
    return given * shape[0] if len(given) == 1 else given


def _pack(
    net: OnnxNet, classes: Sequence[str] | None, logits: Logits, preprocess: Preprocess
) -> tuple[Part, list[str]]:
    """The part, with the names of classes that the file has unless others are given."""
    if classes is not None or logits.classes is None or class_name_problems(logits.classes):
        return pack_part(net, None if classes is None else tuple(classes), preprocess), []
    part = pack_part(net, logits.classes, preprocess)
    return part, ["The names of the classes are those in the file."]


class _Comparison:
    """Runs the file's own graph, up to the logits, in onnxruntime."""

    def __init__(self, runtime: Any, graph: OnnxGraph, logits: Logits, images: ImageInput) -> None:
        model = as_logits(graph, logits)
        (given,) = [one for one in model.graph.input if one.name == graph.input]
        self._dtype = _DTYPES[given.type.tensor_type.elem_type]
        given.type.tensor_type.shape.dim[0].dim_param = "batch"
        self._graph, self._logits, self._images = graph, logits, images
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        try:
            self._session = runtime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has its own errors
            raise PackError(
                "onnxruntime cannot read the file, so nothing can be compared with it:",
                problems=[first_line(error)],
            ) from None

    def measure(self, part: Part) -> float:
        """The largest difference of a packed net's logits from onnxruntime's.

        Raises:
            PackError: if it is too large.
        """
        net = part.build().eval()
        worst = 0.0
        for batch in BATCHES:
            draws = torch.Generator().manual_seed(_SEED + batch)
            inputs = torch.randn(batch, *self._images.shape, generator=draws)
            with torch.inference_mode():
                found = net(inputs)
            wanted = self._run(inputs)
            if batch == BATCHES[-1] and self._logits.ending == "logits":
                _refuse_probabilities(wanted)
            scale = wanted.abs().amax(-1, keepdim=True).clamp(min=1)
            difference = float(((found - wanted).abs() / scale).max())
            worst = max(worst, difference) if difference == difference else difference
            if not difference <= TOLERANCE:
                raise PackError(
                    f"The packed net does not compute what onnxruntime computes: on {batch} "
                    f"images their logits differ by {difference:.1e} ({TOLERANCE:.0e} is "
                    "allowed).",
                    fix="export the net in single precision and without a runtime's optimisations",
                )
        return worst

    def _run(self, images: Tensor) -> Tensor:
        arranged = self._images.arrange(images).to(self._dtype).contiguous()
        try:
            (result,) = self._session.run(
                [self._logits.value], {self._graph.input: arranged.numpy()}
            )
        except Exception as error:
            raise PackError(
                f"onnxruntime cannot run the file on {len(images)} images:",
                problems=[first_line(error)],
                fix="export the net for batches of any size",
            ) from None
        scores = torch.from_numpy(result).float()
        if self._logits.ending == "sigmoid":
            return torch.cat([-scores, scores], 1) / 2
        return scores / 2 if self._logits.ending == "pair" else scores


def _refuse_probabilities(results: Tensor) -> None:
    """Raise a PackError where results are probabilities that no known function made of logits."""
    if (results >= 0).all() and ((results.sum(1) - 1).abs() < 1e-4).all():
        raise PackError(
            "The net gives probabilities, and not by a softmax or sigmoid at its end: its logits "
            "cannot be found.",
            fix="export it without the last function, or name its logits with --output",
        )
