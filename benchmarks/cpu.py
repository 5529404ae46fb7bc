"""The CPU beside the authors' code: ``attar speed`` with one and with two threads, in turns.

    python benchmarks/cpu.py [--turns 5] -o results/speed/cpu.json

Timings on a shared machine are noisy, so one and two threads alternate and the medians are compared. The authors' code of Co-Boosting
takes, on one thread of such a machine, 2.5 s a generator step, 0.33 s for the weights and 0.87 s for the distillation of a pool batch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

AUTHORS = {"generator step": 2500.0, "weights and distillation, a pool batch": 1200.0}


def timings(threads: int, words: list[str]) -> dict[str, dict[str, float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "attar", "speed", "--device", "cpu", "--json", *words]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return {timing["what"]: timing for timing in json.loads(told)["timings"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments, words = parser.parse_known_args()
    words = words or ["--net", "lenet5", "--repeats", "2", "--steps", "1", "--pool", "3"]
    turns = [{threads: timings(threads, words) for threads in (1, 2)} for _ in range(arguments.turns)]
    found = {}
    for what in turns[0][1]:
        processor = statistics.median(turn[1][what]["processor_milliseconds"] for turn in turns)
        found[what] = {
            "processor_milliseconds_one_thread": round(processor, 1),
            "authors_processor_milliseconds": AUTHORS.get(what),
            "times_faster_than_authors": round(AUTHORS[what] / processor, 2) if what in AUTHORS else None,
            "two_threads_speed_up": round(
                statistics.median(turn[1][what]["milliseconds"] / turn[2][what]["milliseconds"] for turn in turns), 2
            ),
        }
        print(what, found[what], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps({"words": words, "turns": arguments.turns, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
