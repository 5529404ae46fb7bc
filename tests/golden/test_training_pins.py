"""Local training is unchanged, or ``TRAINING_VERSION`` is another, which names trained clients."""

import pytest
import training_pins as pins
from numerics import numerics


def test_training_pins():
    on_file = pins.recorded()
    changed = pins.differences(
        pins.calculate(), on_file["cases"], exactly=on_file["numerics"] == numerics()
    )
    advice = pins.advice(changed, on_file["training_version"])
    assert not advice, advice


def test_numerics_repeat():
    assert numerics() == numerics()


def test_differences():
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


def test_advice(monkeypatch):
    monkeypatch.setattr(pins, "TRAINING_VERSION", 4)
    assert pins.advice([], 4) == ""
    assert "TRAINING_VERSION is 4, the pins are of version 3: record anew" in pins.advice([], 3)
    advice = pins.advice(["sgd: other bits"], 4)
    for words in (
        "Undo the change",
        "raise TRAINING_VERSION in src/attar/bench/versions.py",
        "python tests/golden/training_pins.py",
        "sgd",
    ):
        assert words in advice


def test_record_refuses_old_version(tmp_path, monkeypatch):
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
