"""A picture of pairs: synthetic images beside the training images nearest to them, in words."""

import io
from collections.abc import Sequence

from torch import Tensor

from attar.nets import to_shape
from attar.privacy.decoder_check import Pair

SIDE = 160  # pixels, the least side that an image is shown with
GAP, LINE = 8, 14  # pixels
HEADS = ("synthetic", "nearest training image")


def draw_pairs(title: str, pairs: Sequence[Pair]) -> bytes:
    """Draw pairs below each other, each with a caption.

    Args:
        title: What the pairs have in common.
        pairs: At least one.

    Returns:
        A PNG file.
    """
    from PIL import Image, ImageDraw

    times = max(1, -(-SIDE // pairs[0].pictures.shape[-1]))
    height, width = (times * side for side in pairs[0].pictures.shape[-2:])
    row = height + 2 * LINE + GAP
    size = (3 * GAP + 2 * max(width, SIDE), 3 * LINE + GAP + len(pairs) * row)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    columns = (GAP, 2 * GAP + max(width, SIDE))
    draw.text((GAP, GAP // 2), title, "black")
    for left, head in zip(columns, HEADS, strict=True):
        draw.text((left, GAP // 2 + LINE), head, "black")
    for number, pair in enumerate(pairs):
        top = 3 * LINE + number * row
        for left, picture in zip(columns, pair.pictures, strict=True):
            sheet.paste(Image.fromarray(_enlarge(picture, times).numpy()), (left, top))
        draw.text((columns[0], top + height + 2), f"made as {pair.label}", "black")
        draw.text((columns[1], top + height + 2), pair.real_label, "black")
        relative = f"{pair.relative:.2f} of the distance to its next neighbour"
        draw.text((GAP, top + height + LINE), relative, "black")
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _enlarge(picture: Tensor, times: int) -> Tensor:
    """A canonical image (C, H, W) as bytes (H, W, 3), enlarged by a whole factor."""
    colour = to_shape(picture[None].cpu().float(), (3, *picture.shape[1:]))[0].clamp(0, 1)
    large = colour.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return (large * 255).round().byte().permute(1, 2, 0).contiguous()
