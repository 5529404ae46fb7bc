"""The CPU beside the authors' code: a generator step and a pool batch of Co-Boosting, with one and with two threads in turns.

    python benchmarks/cpu.py [--turns 5] -o results/speed/cpu.json

Timings on a shared machine are noisy, so one and two threads alternate and the medians are compared. The authors' code of Co-Boosting
takes, on one thread of such a machine, 2.5 s a generator step, 0.33 s for the weights and 0.87 s for the distillation of a pool batch.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from itertools import islice
from pathlib import Path

import torch

from attar.speed import Setting, measure

AUTHORS = {"generator step": 2500.0, "weights and distillation, a pool batch": 1200.0}  # ms of one core
SETTING = Setting(net="lenet5", pool=3, steps=1, repeats=2)


def timings(threads: int) -> dict[str, dict[str, float]]:
    """Milliseconds on the clock and of all cores, measured in a process that has so many threads."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    told = subprocess.run([sys.executable, __file__, "worker"], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, dict[str, float]] = json.loads(told.stdout)
    return found


def worker() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    found = {t.what: {"clock": t.took.clock, "processor": t.took.processor} for t in islice(measure(SETTING), len(AUTHORS))}
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    turns = [{threads: timings(threads) for threads in (1, 2)} for _ in range(arguments.turns)]
    found = {}
    for what, authors in AUTHORS.items():
        processor = statistics.median(turn[1][what]["processor"] for turn in turns)
        speed_up = statistics.median(turn[1][what]["clock"] / turn[2][what]["clock"] for turn in turns)
        found[what] = {
            "milliseconds_of_one_core": round(processor, 1),
            "authors_code": authors,
            "times_faster": round(authors / processor, 2),
            "two_threads_speed_up": round(speed_up, 2),
        }
        print(what, found[what], flush=True)
    record = {"net": SETTING.net, "clients": SETTING.clients, "batch": SETTING.batch, "machine": platform.processor(),
              "torch": torch.__version__, "turns": turns, "found": found}  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    worker() if sys.argv[1:] == ["worker"] else main()
