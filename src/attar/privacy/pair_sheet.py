"""A picture of pairs: synthetic images beside the training images nearest to them, in words."""

import io
from collections.abc import Sequence
from textwrap import wrap

from torch import Tensor

from attar.nets import to_shape
from attar.privacy.decoder_check import REPEATED, Pair

SIDE = 200  # pixels, the least side that an image is shown with
GAP, LINE, TEXT = 10, 18, 13  # pixels: between images, of a line, and the height of its letters
INK, SOFT, WARNING = "#1f2933", "#5b6472", "#a3341f"
HEADS = ("synthetic", "nearest training image")
LEGEND = (
    "The number: the distance between the two, divided by that from the training image to the "
    "nearest other one. Near 1 or above, the synthetic image is as far away as another image of "
    f"its kind; far below 1 (red: below {REPEATED}), the decoder may repeat this image."
)


def draw_pairs(title: str, pairs: Sequence[Pair]) -> bytes:
    """Draw pairs below each other, each with a caption, and a legend below all.

    Args:
        title: What the pairs have in common.
        pairs: At least one.

    Returns:
        A PNG file.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(TEXT)
    times = max(1, -(-SIDE // pairs[0].pictures.shape[-1]))
    height, width = (times * side for side in pairs[0].pictures.shape[-2:])
    row = height + 2 * LINE + GAP + 4
    whole = 3 * GAP + 2 * max(width, SIDE)
    legend = wrap(LEGEND, int((whole - 2 * GAP) / (0.52 * TEXT)))
    head = 3 * LINE + GAP
    size = (whole, head + len(pairs) * row + len(legend) * LINE + GAP)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    columns = (GAP, 2 * GAP + max(width, SIDE))
    draw.text((GAP, GAP), title, INK, ImageFont.load_default(TEXT + 3))
    for left, words in zip(columns, HEADS, strict=True):
        draw.text((left, GAP + LINE + 6), words, SOFT, font)
    for number, pair in enumerate(pairs):
        top = head + number * row
        for left, picture in zip(columns, pair.pictures, strict=True):
            sheet.paste(Image.fromarray(_enlarge(picture, times).numpy()), (left, top))
        below = top + height + 2
        draw.text((columns[0], below), f"made as {pair.label}", INK, font)
        draw.text((columns[1], below), pair.real_label, INK, font)
        relative = f"{pair.relative:.2f} of the distance to the nearest other one"
        draw.text((GAP, below + LINE), relative, WARNING if pair.relative < REPEATED else INK, font)
    for number, line in enumerate(legend):
        draw.text((GAP, head + len(pairs) * row + number * LINE), line, SOFT, font)
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _enlarge(picture: Tensor, times: int) -> Tensor:
    """A canonical image (C, H, W) as bytes (H, W, 3), enlarged by a whole factor."""
    colour = to_shape(picture[None].cpu().float(), (3, *picture.shape[1:]))[0].clamp(0, 1)
    large = colour.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return (large * 255).round().byte().permute(1, 2, 0).contiguous()
