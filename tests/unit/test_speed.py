"""``attar speed``: slopes of whole epochs, counted arithmetic, and what it refuses."""

import json
from dataclasses import replace

import pytest

from attar.cli import main, timing
from attar.cli.timing import Setting, Timing, Took, as_record, measure
from attar.errors import SettingsError

TINY = Setting(net="mlp:hidden=8,layers=1", clients=2, batch=4, pool=3, steps=2, repeats=1)


def test_measure_takes_slopes_of_epochs(monkeypatch):
    """An epoch that costs 7 + 5 g + 3 p ms: 5 a generator step, 3 a pool batch, whatever it
    costs once.
    """

    def epoch(setting, room, method, steps, pool):
        blind = method.weight_steps == "never"
        return Took(7 + 5 * steps + (2 if blind else 3) * pool, 70 + 50 * steps + 30 * pool)

    monkeypatch.setattr(timing, "_epoch", epoch)
    made, passed, weights, *_ = measure(TINY)
    assert (made.took, passed.took) == (Took(5, 50), Took(3, 30))
    assert weights.took.clock == pytest.approx(3 * 3 / 2 - 2 * 3 / 2)


def test_measure_counts_flops():
    """One more batch of pool, 2 linear clients with 784 x 10 weights on 4 images: forth for the
    step of the weights, forth for u^T A, back to x, forth again, and the student forth, back to its
    weights. 2 FLOP a product: 2 (2 + 2 + 2 + 2) + (2 + 2) = 20 times 784 * 10 * 4.
    """
    setting = replace(TINY, net="mlp:layers=0")
    found = {timing.what: timing for timing in measure(setting)}
    one = 784 * 10 * 4 / 1e9
    assert found["weights and distillation, a pool batch"].gigaflops == pytest.approx(20 * one)
    local = found["local training, an epoch of all clients"]
    assert local.gigaflops == pytest.approx(local.images * 4 * 784 * 10 / 1e9)


def test_as_record_rates():
    timing = Timing("generator step", Took(2.0, 3.0), 128, 4.0)
    record = as_record(TINY, [timing, replace(timing, gigaflops=None)], peak=10e12)
    first, second = record["timings"]
    assert first["images_per_second"] == 64_000
    assert first["share_of_peak"] == 0.2  # 4 GFLOP in 2 ms are 2 TFLOP/s
    assert second["share_of_peak"] is None
    assert record["setting"]["pool"] == 3


def test_measure_refuses_methods_without_pool():
    with pytest.raises(SettingsError, match="fedavg has no generator"):
        list(measure(replace(TINY, method="fedavg")))


def test_speed_prints_record_and_table(capsys):
    words = [
        "--net",
        "mlp:hidden=8,layers=1",
        "--clients",
        "2",
        "--batch",
        "4",
        "--pool",
        "2",
        "--steps",
        "1",
        "--repeats",
        "1",
    ]
    assert main(["speed", *words, "--device", "cpu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["timings"][0]["what"] == "generator step"
    assert main(["speed", *words, "--device", "cpu", "--method", "dense"]) == 0
    assert "of the matrix peak" in capsys.readouterr().out
