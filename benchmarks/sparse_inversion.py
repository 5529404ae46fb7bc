"""What it saves to stop patches: FedMITR's inversion with a mask ratio of 0.3 at four stops,
beside the dense one, in one run.

    python benchmarks/sparse_inversion.py -o sparse_inversion-NAME.json [--device cuda] [--precision bf16] [--compile]

Both invert the same clients from the same noise by the method's own code, in turns. Times are
medians; FLOPs are counted in plain steps.
"""

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from attar.blocks.ensemble.teachers import TeacherGroup
from attar.blocks.execution import arithmetic, eager
from attar.blocks.student import DataFreeState, DistillationContext, frozen
from attar.cli.timing import CLASSES, Flops, Setting, random_uploads, surroundings
from attar.core import ModelSpec, Part, Preprocess
from attar.fusion import server_for
from attar.methods import FedMitr
from attar.seeds import derive

SHAPE = (3, 32, 32)
WARM_UPS = 2  # plain, recorded


def invert(method: FedMitr, context: DistillationContext, state: DataFreeState) -> None:
    """Lines 5 to 12 of Algorithm 1, as in ``FedMitr.epoch``."""
    labels = method.draw_labels(context, state)
    inversion = method.start_inversion(context, state)
    with frozen(state.student):
        for _ in range(method.inversion.steps):
            inversion.step(labels)
            inversion.stop_patches()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--net", default="vit-tiny")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", action="store_true", help="as attar fuse --compile")
    parser.add_argument(
        "--apart", action="store_true", help="compiled nets in streams, not stacked"
    )
    parser.add_argument("--commit", default="unknown")
    how = parser.parse_args()
    cuda = how.device.startswith("cuda")
    if how.apart:
        TeacherGroup.stacks_blocks = lambda group, images: False  # type: ignore[method-assign]
    spec, uploads = ModelSpec.parse(how.net), random_uploads(how.net, how.clients, shape=SHAPE)
    start = spec.build(SHAPE, len(CLASSES), derive(0, "student")).state_dict()
    initial = Part(spec, start, CLASSES, Preprocess.centred(SHAPE))
    server = server_for(
        uploads, initial=initial, device=how.device, precision=how.precision, compile=how.compile
    )
    sparse = FedMitr(epochs=1, inversion_steps=how.steps, batch_size=how.batch)
    methods = {"dense": replace(sparse, mask_ratio=0.0, relabel=0.0), "sparse": sparse}
    contexts = {name: method.prepare(uploads, server) for name, method in methods.items()}
    states = {name: method.start(contexts[name]) for name, method in methods.items()}
    times: dict[str, list[tuple[float, float]]] = {
        name: [] for name in methods
    }  # on the clock, of the processor
    record = {"net": how.net, "clients": how.clients, "batch": how.batch, "steps": how.steps, "precision": how.precision,
              "compiled": how.compile, "apart": how.apart,
              "commit": how.commit, **surroundings(Setting(device=how.device))}  # fmt: skip
    with arithmetic(how.precision, how.device):
        for number in range(how.repeats + (WARM_UPS if cuda else 0)):
            for name, method in methods.items():
                states[name].draws.manual_seed(number)  # the same noise for both
                begun = time.perf_counter(), time.process_time()
                invert(method, contexts[name], states[name])
                if cuda:
                    torch.cuda.synchronize()
                times[name].append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
            print({name: round(taken[-1][0], 3) for name, taken in times.items()}, flush=True)
        for name, method in methods.items():
            context = replace(contexts[name], run=eager)
            with Flops() as counter:
                invert(method, context, states[name])
            taken = times[name][WARM_UPS if cuda else 0 :]
            left = method.patches_left(context)
            sparsity = method.sparsity
            record[name] = {"mask_ratio": sparsity.mask_ratio, "stop_at": sparsity.stop_at if sparsity.mask_ratio else [],
                            "patches": sorted(set(left), reverse=True), "mean_patches": round(statistics.mean(left[:-1]), 2),
                            "teraflops": round(counter.total / 1e12, 6),
                            "seconds": round(statistics.median(clock for clock, _ in taken), 4),
                            "processor_seconds": round(statistics.median(own for _, own in taken), 4),
                            "all_seconds": [round(clock, 4) for clock, _ in taken]}  # fmt: skip
    for what in ("teraflops", "seconds", "processor_seconds"):
        record[f"{what}_sparse_to_dense"] = round(record["sparse"][what] / record["dense"][what], 4)
    how.output.parent.mkdir(parents=True, exist_ok=True)
    how.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
