"""The bubble plot is sound XML and shows what it was given."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from attar.data import draw_partition

SVG = "{http://www.w3.org/2000/svg}"


def test_draw_partition_circles_have_the_area_of_counts() -> None:
    counts = np.array([[100, 0], [25, 400]])
    root = ElementTree.fromstring(
        draw_partition(counts, ["cat", "dog <&> wolf"], ["a", "b"], 'two "clients"')
    )
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'two "clients": 2 clients, 2 classes, 525 images'
    tips = {
        circle.findtext(f"{SVG}title"): float(circle.get("r", "0"))
        for circle in root.iter(f"{SVG}circle")
    }
    drawn = {tip: radius for tip, radius in tips.items() if tip}
    assert set(drawn) == {"a, cat: 100", "b, cat: 25", "b, dog <&> wolf: 400"}
    assert drawn["b, dog <&> wolf: 400"] / drawn["a, cat: 100"] == pytest.approx(2, rel=0.01)
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {
        "cat",
        "dog <&> wolf",
        "a",
        "b",
        "100",
        "425",
        "125",
        "400",
    } <= texts  # names and totals


@pytest.mark.parametrize("clients", [1, 5, 20, 100])
def test_draw_partition_stays_inside_the_picture(clients: int) -> None:
    counts = np.random.default_rng(0).integers(0, 5000, (clients, 10))
    root = ElementTree.fromstring(
        draw_partition(counts, [f"class {label}" for label in range(10)], title="many")
    )
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert width < 2000
    for circle in root.iter(f"{SVG}circle"):
        x, y, radius = (float(circle.get(key, "nan")) for key in ("cx", "cy", "r"))
        assert radius <= x <= width - radius
        assert radius <= y <= height - radius


def test_draw_partition_without_images() -> None:
    ElementTree.fromstring(draw_partition(np.zeros((3, 2), np.int64), ["a", "b"]))


def test_draw_partition_refuses_other_numbers_of_names() -> None:
    with pytest.raises(ValueError, match="3 clients"):
        draw_partition(np.ones((2, 2), np.int64), ["a", "b"], ["x", "y", "z"])
