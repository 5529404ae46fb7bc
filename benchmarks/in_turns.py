"""More clients than fit into memory: 200 resnet18 (9 GB of weights) are read in turns.

    python benchmarks/in_turns.py --folder BIG -o in_turns.json [--clients 200]

Writes random uploads into the folder (unless they are there), fuses them by one epoch of DENSE
in a process of its own and measures the memory that process ever held; then compares answers and
input gradients in turns with resident ones, for 20 of them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from attar import read_bundles, write_bundle
from attar.blocks.ensemble import Teachers
from attar.cli.timing import CLASSES, random_uploads

SETTINGS = ("epochs=1", "generator_steps=1", "batch_size=16")


def fuse_apart(files: list[Path], out: Path, memory: float) -> dict[str, float]:
    """Fuse by one epoch in a process of its own.

    Returns:
        Seconds on the clock and of the processor, and the largest memory of such a process so far.
    """
    words = ["fuse", *map(str, files), "--method", "dense", "--device", "cpu"]
    words += ["--teacher-memory", str(memory), "--out", str(out)]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "attar", *words, "--no-robustness", "--json"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "clients": len(files),
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
        ),
        "peak_memory_gib": round(after.ru_maxrss * 1024 / 2**30, 3),
    }


def compare_answers(files: list[Path]) -> dict[str, float]:
    """Largest differences of logits and input gradients between clients in turns and resident."""
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    found = []
    for resident, memory in ((True, None), (False, 2**28)):
        uploads = read_bundles(files, resident=resident)
        teachers = Teachers(
            [upload.parts["classifier"] for upload in uploads], CLASSES, memory=memory
        )
        inputs = images.clone().requires_grad_()
        logits = teachers(inputs)
        (gradient,) = torch.autograd.grad(logits.square().sum(), inputs)
        found.append((logits.detach(), gradient))
    return {
        "largest_difference_of_logits": (found[0][0] - found[1][0]).abs().max().item(),
        "largest_difference_of_gradients": (found[0][1] - found[1][1]).abs().max().item(),
        "largest_logit": found[0][0].abs().max().item(),
        "largest_gradient": found[0][1].abs().max().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--memory", type=float, default=1.0, help="GiB of weights at once")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    files = [arguments.folder / f"client{number:04d}.attar" for number in range(arguments.clients)]
    for number, file in enumerate(files):
        if not file.exists():
            write_bundle(file, random_uploads("resnet18", 1, first=number)[0])
    size = sum(file.stat().st_size for file in files)
    runs = []
    for number in (arguments.clients // 4, arguments.clients // 2, arguments.clients):
        runs.append(
            fuse_apart(
                files[:number], arguments.folder / f"run-{os.getpid()}-{number}", arguments.memory
            )
        )
        print(runs[-1], flush=True)
    record = {"net": "resnet18", "weights_gib": round(size / 2**30, 2), "memory_for_weights_gib": arguments.memory,
              "method": "dense", "settings": SETTINGS, "threads": torch.get_num_threads(), "torch": torch.__version__,
              "runs": runs, "in_turns_beside_resident_20": compare_answers(files[:20])}  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["in_turns_beside_resident_20"]))


if __name__ == "__main__":
    main()
