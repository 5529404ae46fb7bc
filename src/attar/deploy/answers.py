"""Image files as answers of a model: classes with probabilities, and a small picture of each."""

import base64
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attar.data.images import decode_image
from attar.models import Classifier

SHOWN = 5  # classes of an answer
UNSURE = 0.5  # an answer of a lower probability is called unsure
THUMBNAIL = 240  # pixels, the longest side of a small picture


@dataclass(frozen=True)
class Answer:
    """What a model says of one image.

    Attributes:
        image: its name.
        top: classes with their probabilities, the likeliest first; empty for a broken image.
        thumbnail: the image as an address that holds it all (``data:``); None for none.
        problem: why there is no answer.
    """

    image: str
    top: tuple[tuple[str, float], ...] = ()
    thumbnail: str | None = None
    problem: str | None = None

    @property
    def unsure(self) -> bool:
        """Whether the likeliest class has a probability below ``UNSURE``."""
        return bool(self.top) and self.top[0][1] < UNSURE

    def to_json(self) -> dict[str, Any]:
        """The answer for programs."""
        if self.problem is not None:
            return {"image": self.image, "error": self.problem}
        name, probability = self.top[0]
        top = [{"class": name, "probability": round(value, 6)} for name, value in self.top]
        return {
            "image": self.image,
            "class": name,
            "probability": round(probability, 6),
            "top": top,
        }


def rank(
    probabilities: Tensor, classes: Sequence[str], number: int = SHOWN
) -> list[tuple[tuple[str, float], ...]]:
    """The likeliest classes of each image, with their probabilities.

    Args:
        probabilities: (N, C).
        classes: their names.
        number: of classes for each image.
    """
    values, columns = probabilities.topk(min(number, len(classes)))
    return [
        tuple((classes[column], value) for column, value in zip(*pair, strict=True))
        for pair in zip(columns.tolist(), values.tolist(), strict=True)
    ]


def classify(
    classifier: Classifier, images: Tensor, device: str, number: int = SHOWN
) -> list[tuple[tuple[str, float], ...]]:
    """``rank`` of canonical images (N, C, H, W) that fit into memory at once."""
    with torch.inference_mode():
        probabilities = classifier(images.to(device)).float().softmax(-1).cpu()
    return rank(probabilities, classifier.classes, number)


def draw_thumbnail(data: bytes) -> str | None:
    """A small picture of a PNG or JPEG file as a ``data:`` address; None if it cannot be read.

    Args:
        data: the bytes of the file.
    """
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on metadata
        pixels = decode_image("image", data, None, THUMBNAIL)
    if isinstance(pixels, str):
        return None
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    small = max(image.size) <= THUMBNAIL // 2
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    kind = "png" if small else "jpeg"
    image.save(file, kind, **({} if small else {"quality": 82}))
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def draw_thumbnail_of(path: Path) -> str | None:
    """``draw_thumbnail`` of a file."""
    return draw_thumbnail(path.read_bytes())
