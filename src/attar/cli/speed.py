"""``attar speed``: time the real code paths on this machine."""

from collections.abc import Mapping
from typing import Annotated, Any

from tyro.conf import arg

from attar.blocks.execution import Precision
from attar.cli import timing
from attar.cli.arguments import Device, Json, parse_device
from attar.cli.output import console
from attar.internal.text import human_bytes
from attar.running import ProgressReport


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
        method=method,
        net=net,
        clients=clients,
        batch=batch,
        pool=pool,
        steps=steps,
        repeats=repeats,
        size=size,
        device=parse_device(device),
        precision=precision,
        compile=compile,
    )
    timings = []
    with console.progress(f"{method}, {clients} {net}", quiet=json) as watch:
        for number, result in enumerate(timing.measure(setting), 1):
            timings.append(result)
            watch(
                ProgressReport(
                    phase=result.what.strip(),
                    step=number,
                    steps=timing.NUMBER,
                    done=number / timing.NUMBER,
                    seconds_left=None,
                    metrics={},
                )
            )
        peak = timing.matrix_peak(setting)
    record = timing.as_record(setting, timings, peak)
    console.emit(record, lambda: _show(record), json=json)


def _show(record: Mapping[str, Any]) -> None:
    setting = record["setting"]
    title = (
        f"{setting['method']}, {setting['clients']} clients with {setting['net']}, "
        f"batches of {setting['batch']}, a pool of {setting['pool']} batches, "
        f"{setting['precision']}{', compiled' if setting['compile'] else ''}"
    )
    columns = ("", "ms", "images/s", "GFLOP", "of the matrix peak")
    rows = [_row(result) for result in record["timings"]]
    console.show_table(title, columns, rows, right=columns[1:])
    memory = f", {human_bytes(record['gpu_memory'])} of its memory" if record["gpu_memory"] else ""
    console.say(
        f"{record['machine']}{memory}, torch {record['torch']}; "
        f"matrix products reach {record['matrix_peak_tflops']:g} TFLOP/s"
    )


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    flops = result["gigaflops"]
    arithmetic = ("", "")
    if flops is not None:
        arithmetic = (f"{flops:,.1f}", f"{100 * result['share_of_peak']:.1f} %")
    return (
        result["what"],
        f"{result['milliseconds']:,.2f}",
        f"{result['images_per_second']:,}",
        *arithmetic,
    )
