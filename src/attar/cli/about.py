"""Verbs that show attar itself: a demo, a list of what there is, and how fast it runs here."""

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from attar.blocks.execution import Precision
from attar.cli import speed as timing
from attar.cli.app import Device, Json, Seed, app
from attar.cli.arguments import parse_device
from attar.cli.demo import run_demo
from attar.cli.output import console, listing, tables
from attar.running import ProgressReport


@app.command
def demo(
    out: Path = Path("demo"),
    *,
    short: Annotated[
        bool,
        arg(help="Leave out the students that never see an image; they take most of the time."),
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Five clients with different nets on a skewed split, one too weak for a classifier:
    trained, fused, compared. A minute.
    """
    run_demo(out, short=short, seed=seed, json=json)


@app.command
def ls(what: Positional[Literal["nets", "methods", "data"]], /, *, json: Json = False) -> None:
    """What there is: nets, methods, or data sources."""
    rows = {"nets": listing.list_nets, "methods": listing.list_methods, "data": listing.list_data}[
        what
    ]()
    console.show_json(rows) if json else tables.show_list(what, rows)
    for reason in listing.refused_plugins(what):
        console.note(f"warning: {reason}")


@app.command
def speed(
    *,
    method: Annotated[str, arg(help="A method with a generator and a pool.")] = "co-boosting",
    net: Annotated[str, arg(help="Architecture of the clients and of the student.")] = "cnn5",
    clients: int = 10,
    batch: int = 128,
    pool: Annotated[
        int | None, arg(help="Batches in the pool; 100 on CUDA, 4 on a CPU unless given.")
    ] = None,
    steps: Annotated[
        int | None, arg(help="Generator steps; 30 on CUDA, 3 on a CPU unless given.")
    ] = None,
    repeats: Annotated[int, arg(help="The median of so many is shown.")] = 5,
    size: Annotated[
        int | None, arg(help="Side of the images, unless it is the net's usual one.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[bool, arg(help="On CUDA: compile the nets.")] = False,
    json: Json = False,
) -> None:
    """Time the real code paths on this machine: generator step, pool batch, stratification,
    local training.
    """
    setting = timing.Setting(
        method,
        net,
        clients,
        batch,
        pool,
        steps,
        repeats,
        size,
        parse_device(device),
        precision,
        compile,
    )
    found = []
    with console.progress(f"{method}, {clients} {net}", quiet=json) as watch:
        for number, one in enumerate(timing.measure(setting), 1):
            found.append(one)
            watch(
                ProgressReport(
                    one.what.strip(), number, timing.NUMBER, number / timing.NUMBER, None, {}
                )
            )
        peak = timing.matrix_peak(setting)
    record = timing.as_record(setting, found, peak)
    console.show_json(record) if json else tables.show_speed(record)
