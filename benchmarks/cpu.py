"""The CPU beside the authors' code: a generator step and a pool batch of Co-Boosting, on one
thread, on two, and in bf16, in turns.

    python benchmarks/cpu.py [--turns 5] -o cpu.json

Timings on a shared machine are noisy, so the three alternate and the medians are compared. The
authors' code of Co-Boosting takes, on one thread of such a machine, 2.5 s a generator step, 0.33
s for the weights and 0.87 s for the distillation of a pool batch.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from attar.blocks.execution import Precision
from attar.cli.timing import Setting, measure

# Milliseconds of one core that the authors' code takes.
AUTHORS = {"generator step": 2500.0, "weights and distillation, a pool batch": 1200.0}
SETTING = Setting(net="lenet5", pool=3, steps=1, repeats=2)
# Threads and precision.
WAYS: dict[str, tuple[int, Precision]] = {"1": (1, "fp32"), "2": (2, "fp32"), "bf16": (1, "bf16")}


def measure_apart(way: str) -> dict[str, dict[str, float]]:
    """Milliseconds on the clock and of all cores, measured in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(WAYS[way][0])}
    done = subprocess.run(
        [sys.executable, __file__, "worker", way],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    times: dict[str, dict[str, float]] = json.loads(done.stdout)
    return times


def worker(way: str) -> None:
    threads, precision = WAYS[way]
    torch.set_num_threads(threads)
    timed = islice(measure(replace(SETTING, precision=precision)), len(AUTHORS))
    print(
        json.dumps({t.what: {"clock": t.took.clock, "processor": t.took.processor} for t in timed})
    )


def speed_up(turns: list[dict[str, dict[str, dict[str, float]]]], what: str, way: str) -> float:
    return round(
        statistics.median(turn["1"][what]["clock"] / turn[way][what]["clock"] for turn in turns), 2
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    turns = [{way: measure_apart(way) for way in WAYS} for _ in range(arguments.turns)]
    found = {}
    for what, authors in AUTHORS.items():
        processor = statistics.median(turn["1"][what]["processor"] for turn in turns)
        found[what] = {
            "milliseconds_of_one_core": round(processor, 1),
            "authors_code": authors,
            "times_faster": round(authors / processor, 2),
            "two_threads_speed_up": speed_up(turns, what, "2"),
            "bf16_speed_up": speed_up(turns, what, "bf16"),
        }
        print(what, found[what], flush=True)
    record = {"net": SETTING.net, "clients": SETTING.clients, "batch": SETTING.batch, "machine": platform.processor(),
              "torch": torch.__version__, "turns": turns, "found": found}  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    worker(sys.argv[2]) if sys.argv[1:2] == ["worker"] else main()
