"""Local training is what it was, or it has another version: names of trained clients say no more
of it than that.
"""

import pytest
import training_pins as pins
from numerics import numerics


def test_training_pins_hold_while_the_version_stays():
    on_file = pins.recorded()
    changed = pins.differences(
        pins.calculate(), on_file["cases"], exactly=on_file["numerics"] == numerics()
    )
    told = pins.advice(changed, on_file["training_version"])
    assert not told, told


def test_numerics_are_the_same_twice():
    assert numerics() == numerics()


def test_differences_are_of_bits_or_of_numbers():
    before = {"a": {"sha256": "1", "values": [[1.0, 0.5]]}, "b": {"sha256": "2", "values": [[0.0]]}}
    close = {**before, "a": {"sha256": "3", "values": [[1.0, 0.5009]]}}
    assert pins.differences(before, before, exactly=True) == []
    assert pins.differences(close, before, exactly=True) == ["a: other bits"]
    assert pins.differences(close, before, exactly=False) == []
    far = {"a": {"sha256": "3", "values": [[1.0, 0.502]]}, "c": {"sha256": "4", "values": []}}
    assert pins.differences(far, before, exactly=False) == [
        "a: other numbers",
        "b: not calculated",
        "c: not on file",
    ]


def test_advice_says_what_to_do(monkeypatch):
    monkeypatch.setattr(pins, "TRAINING_VERSION", 4)
    assert pins.advice([], 4) == ""
    assert "TRAINING_VERSION is 4, the pins are of version 3: record anew" in pins.advice([], 3)
    told = pins.advice(["sgd: other bits"], 4)
    for words in (
        "Undo the change",
        "raise TRAINING_VERSION in src/attar/bench/versions.py",
        "python tests/golden/training_pins.py",
        "sgd",
    ):
        assert words in told


def test_changed_training_is_not_recorded_under_the_old_version(tmp_path, monkeypatch):
    monkeypatch.setattr(pins, "FILE", tmp_path / "pins.json")
    monkeypatch.setattr(pins, "calculate", lambda: {"a": {"sha256": "1", "values": [[1.0]]}})
    pins.record()
    assert pins.recorded()["training_version"] == pins.TRAINING_VERSION
    monkeypatch.setattr(pins, "calculate", lambda: {"a": {"sha256": "2", "values": [[2.0]]}})
    with pytest.raises(SystemExit, match="Undo the change"):
        pins.record()
    assert pins.recorded()["cases"]["a"]["sha256"] == "1"
    monkeypatch.setattr(pins, "TRAINING_VERSION", pins.TRAINING_VERSION + 1)
    pins.record()
    assert pins.recorded()["cases"]["a"]["sha256"] == "2"
