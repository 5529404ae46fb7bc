"""How cost and memory grow with clients, pool and image size: ``attar speed`` along three axes,
as a table and a plot.

python benchmarks/growth.py run --device cuda --precision tf32 -o growth.json
python benchmarks/growth.py draw growth.json -o docs/growth.svg
"""

import argparse
import gc
import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch

from attar.cli.timing import Setting, measure, surroundings

AXES = {"clients": (10, 100, 1000), "pool": (10, 100, 500), "size": (32, 64, 128)}
COLOURS = {"generator step": "#1b6ca8", "pool batch": "#c8553d", "GPU memory": "#6b7a3a"}


def timed(setting: Setting) -> dict[str, float | None]:
    gc.collect()
    if setting.cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    made, passed = islice(measure(setting), 2)
    memory = surroundings(setting)["gpu_memory"]
    return {
        "generator step": round(made.took.clock, 3),
        "pool batch": round(passed.took.clock, 3),
        "GPU memory": None if memory is None else round(memory / 2**30, 2),
    }


def run(arguments: argparse.Namespace) -> None:
    base = Setting(
        net="lenet5",
        pool=arguments.pool,
        steps=arguments.steps,
        repeats=3,
        device=arguments.device,
        precision=arguments.precision,
    )
    found: dict[str, dict[int, dict[str, float | None]]] = {}
    for axis, values in AXES.items():
        found[axis] = {}
        for value in values:
            found[axis][value] = timed(replace(base, **{axis: value}))
            print(axis, value, found[axis][value], flush=True)
    record = {
        "net": base.net,
        "batch": base.batch,
        "precision": base.precision,
        **surroundings(base),
        "found": found,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


def draw(arguments: argparse.Namespace) -> None:
    """Three panels side by side, both axes logarithmic."""
    record = json.loads(arguments.record.read_text())
    width, height, left, top = 280, 240, 54, 44
    panels = []
    for number, (axis, points) in enumerate(record["found"].items()):
        xs = sorted(map(int, points))
        values = [v for p in points.values() for k, v in p.items() if v and k != "GPU memory"]
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        x0 = number * (width + 20)

        def place(
            x: float, y: float, x0: int = x0, xs: list[int] = xs, low: int = low, high: int = high
        ) -> tuple[float, float]:
            across = (math.log10(x) - math.log10(xs[0])) / (math.log10(xs[-1]) - math.log10(xs[0]))
            up = (math.log10(y) - low) / (high - low)
            return x0 + left + across * (width - left - 30), top + (1 - up) * (height - top - 40)

        marks = [f'<text x="{x0 + left}" y="22" class="title">{axis}</text>']
        for power in range(low, high + 1):
            a, b = place(xs[0], 10.0**power), place(xs[-1], 10.0**power)
            marks += [f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" class="grid"/>',
                      f'<text x="{a[0] - 6:.1f}" y="{a[1] + 4:.1f}" class="tick end">{10.0**power:g} ms</text>']  # fmt: skip
        marks += [
            f'<text x="{place(x, 10.0**low)[0]:.1f}" y="{height - 20}" class="tick mid">{x}</text>'
            for x in xs
        ]
        for what in ("generator step", "pool batch"):
            spots = [place(x, points[str(x)][what]) for x in xs]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in spots)
            marks.append(
                f'<polyline points="{path}" fill="none" stroke="{COLOURS[what]}" stroke-width="2.5"/>'
            )
            marks += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{COLOURS[what]}"/>'
                for a, b in spots
            ]
        panels.append("".join(marks))
    legend = "".join(
        f'<circle cx="{60 + 150 * i}" cy="{height + 8}" r="4" fill="{COLOURS[what]}"/>'
        f'<text x="{70 + 150 * i}" y="{height + 12}" class="tick">{what}</text>'
        for i, what in enumerate(("generator step", "pool batch"))
    )
    total = len(panels) * (width + 20)
    style = (
        "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}.grid{stroke:#ddd}"
        ".end{text-anchor:end}.mid{text-anchor:middle}"
    )
    arguments.output.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height + 24}" role="img" '
        f'aria-label="Milliseconds against clients, pool batches and image size"><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(panels)}{legend}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("--device", default="cuda")
    runner.add_argument("--precision", default="tf32")
    runner.add_argument("--pool", type=int, default=20)
    runner.add_argument("--steps", type=int, default=10)
    runner.add_argument("-o", "--output", type=Path, required=True)
    runner.set_defaults(run=run)
    drawer = verbs.add_parser("draw")
    drawer.add_argument("record", type=Path)
    drawer.add_argument("-o", "--output", type=Path, required=True)
    drawer.set_defaults(run=draw)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
