"""A model as one file for programs without attar: ONNX, or a program of torch.export.

Nothing is written before the file's own answers were compared with the model's.
"""

import io
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from attar.blocks.images import procedural_images
from attar.core import Deployable
from attar.deploy.module import Deployed
from attar.errors import RunError
from attar.internal.extras import import_extra
from attar.internal.files import write_atomic
from attar.models import Classifier
from attar.nets import Shape, to_shape
from attar.seeds import rng
from attar.version import __version__

LARGEST_DIFFERENCE = 1e-4
BATCHES = (1, 5, 26, 32)  # of drawn images, to try several sizes of the batch
BATCHES_OF_LARGE = (1, 2, 3)
LARGE = 3 * 512 * 512  # numbers in an image
BATCH = 64  # of given images
OPSET = 18
MOST_BYTES = 2**31 - 2**24  # of an ONNX file, whose format ends at 2 GiB
FACTS = "attar.json"  # in a file of torch.export

Run = Callable[[Tensor], Tensor]
"""Images (B, C, H, W) in [0, 1] -> logits (B, classes)."""


@dataclass(frozen=True)
class Exported:
    """A file that was written and checked.

    Attributes:
        path: where it is.
        format: "onnx" or "torch".
        image_shape: of the images that it takes, (C, H, W).
        classes: names in the order of its outputs.
        bytes: its size.
        images_checked: how many images it was compared on.
        largest_difference: of its logits from the model's; of an image whose largest logit is
            above 1, as a share of that.
    """

    path: Path
    format: str
    image_shape: Shape
    classes: tuple[str, ...]
    bytes: int
    images_checked: int
    largest_difference: float


def export_onnx(
    model: Deployable,
    path: Path,
    *,
    image_shape: Shape | None = None,
    pixels: Tensor | None = None,
) -> Exported:
    """Write a model as ONNX: images (batch, C, H, W) in [0, 1] -> logits and probabilities.

    Its metadata has the class names as JSON (``classes``).

    Args:
        model: a net or a mixture of nets.
        path: the file.
        image_shape: of the images that it will be given; None: the smallest that loses nothing.
        pixels: more images to compare on, uint8 (N, C, H, W); they are brought to ``image_shape``.

    Returns:
        What was written, and how well it agrees with the model.

    Raises:
        SettingsError: if a package is missing.
        RunError: if the model cannot be exported, or the file's answers are not the model's;
            nothing is written then.
    """
    onnx = import_extra("onnx", "export")
    import_extra("onnxscript", "export")
    runtime = import_extra("onnxruntime", "export")
    job = _Job(model, image_shape)
    with _telling(path, "ONNX"):
        converted = torch.onnx.export(
            job.program(),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits", "probabilities"],
        )
        assert converted is not None
        proto = converted.model_proto
    if (size := proto.ByteSize()) > MOST_BYTES:
        raise RunError(
            f"The model needs {size:,} bytes; an ONNX file has at most {MOST_BYTES:,}.",
            fix="export it with --format torch",
        )
    _tidy(proto.graph)
    onnx.helper.set_model_props(proto, job.facts())
    proto.producer_name, proto.producer_version = "attar", __version__
    onnx.checker.check_model(proto)
    data = proto.SerializeToString()

    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run(["logits"], {"images": images.numpy()})
        return torch.from_numpy(logits)

    return job.write(path, "onnx", data, run, pixels)


def export_torch(
    model: Deployable,
    path: Path,
    *,
    image_shape: Shape | None = None,
    pixels: Tensor | None = None,
) -> Exported:
    """Write a model for ``torch.export.load``, which needs PyTorch and nothing else.

    Its extra file ``attar.json`` has the class names. Arguments, result and errors are those of
    ``export_onnx``.
    """
    job = _Job(model, image_shape)
    file = io.BytesIO()
    with _telling(path, "torch.export"):
        extra = {FACTS: json.dumps({**job.facts(), "classes": job.classes}, indent=1)}
        torch.export.save(job.program(), file, extra_files=extra)
        data = file.getvalue()
        loaded = torch.export.load(io.BytesIO(data)).module()

    def run(images: Tensor) -> Tensor:
        logits: Tensor = loaded(images)[0]
        return logits

    return job.write(path, "torch", data, run, pixels)


class _Job:
    """One export of one model."""

    def __init__(self, model: Deployable, image_shape: Shape | None) -> None:
        self.model = model
        self.reference = Classifier(model)
        self.classes = model.classes
        self.image_shape = image_shape or self.reference.input_shape()

    def program(self) -> ExportedProgram:
        """The model as a graph, for batches of any size."""
        module = Deployed(self.model, self.image_shape)
        example = torch.zeros(2, *self.image_shape)
        program = torch.export.export(
            module, (example,), dynamic_shapes=({0: Dim("batch")},), strict=False
        )
        for node in list(program.graph.nodes):
            node.meta.pop("stack_trace", None)  # names files on this machine
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                program.graph.erase_node(node)  # would refuse to run on another device
        return program

    def facts(self) -> dict[str, str]:
        """What the file says about itself."""
        channels, height, width = self.image_shape
        colours = {1: ", grey", 3: ", red, green, blue"}.get(channels, "")
        shape = f"batch x {channels} x {height} x {width}"
        return {
            "classes": json.dumps(self.classes),
            "input": f"images: float32, {shape}, from 0 to 1{colours}",
            "output": "logits and probabilities: float32, batch x classes",
            "made_by": f"attar {__version__}",
        }

    def write(
        self, path: Path, format: str, data: bytes, run: Run, pixels: Tensor | None
    ) -> Exported:
        """Compare the answers of a file with the model's, and write it.

        Raises:
            RunError: if they differ.
        """
        checked, difference = 0, 0.0
        with torch.inference_mode():
            for images in self._images(pixels):
                checked += len(images)
                found = measure_difference(self.reference(images), run(images))
                difference = found if found > difference or found != found else difference
                if not difference <= LARGEST_DIFFERENCE:  # also if it is no number
                    raise RunError(
                        f"The exported file does not agree with the model: its logits differ by "
                        f"{difference:.1e}, at most {LARGEST_DIFFERENCE:.0e} is allowed. "
                        "Nothing was written.",
                        fix="try the other --format, and report this net to the authors of attar",
                    )
        write_atomic(path, data)
        return Exported(
            path, format, self.image_shape, self.classes, len(data), checked, difference
        )

    def _images(self, pixels: Tensor | None) -> Iterator[Tensor]:
        """Noise and drawings, then what was given."""
        draws = rng(0, "export")
        large = math.prod(self.image_shape) > LARGE
        for number in BATCHES_OF_LARGE if large else BATCHES:
            shape = (number, *self.image_shape)
            yield torch.rand(shape, generator=draws)
            yield procedural_images(number, self.image_shape, draws)
        if pixels is not None:
            for batch in pixels.split(1 if large else BATCH):
                yield to_shape(batch.float() / 255, self.image_shape).contiguous()


def measure_difference(wanted: Tensor, found: Tensor) -> float:
    """The largest difference of logits (B, C), of each image as a share of its largest one if that
    is above 1; NaN if any is no number.
    """
    scale = wanted.abs().amax(-1, keepdim=True).clamp(min=1)
    return float(((wanted - found).abs() / scale).max())


def _tidy(graph: Any) -> None:
    """Call the first axis of inputs and outputs ``batch``, and forget which lines of which files
    on this machine the nodes came from.
    """
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for item in (*graph.input, *graph.output, *graph.node, *graph.value_info, *graph.initializer):
        del item.metadata_props[:]


@contextmanager
def _telling(path: Path, target: str) -> Iterator[None]:
    """Turn a failed conversion into an error, and keep torch's remarks on itself quiet."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # torch's converters raise errors of many kinds
        lines = str(error).strip().splitlines() or [""]
        raise RunError(
            f"The model cannot be written as {target} to {path}:",
            problems=[f"{type(error).__name__}: {lines[0][:300]}"],
            fix="a net from another package may use operators that cannot be exported; try the "
            "other --format",
        ) from error
    finally:
        logger.setLevel(level)
