"""Verbs for several rounds: federate clients of a partition on this machine, and plan which
device gets which net.
"""

from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from attar.blocks.execution import Precision
from attar.cli.app import Device, Json, Seed, app
from attar.cli.arguments import load_partition, load_public_images, parse_device
from attar.cli.output import console, tables
from attar.federation import Rounds, allocate, federate_data, read_devices
from attar.fusion import ServerOptions
from attar.methods import find_method
from attar.models import load_start, parse_trainable_nets
from attar.running import RunOptions
from attar.settings import configure, pairs
from attar.training import LocalTraining, TrainingFlags

DEFAULT_TRAINING = TrainingFlags()
DEFAULT_ROUNDS = Rounds()


@app.command
def federate(
    partition: Annotated[
        Positional[Path], arg(help="Who holds what: a file of `attar partition`.")
    ],
    /,
    *,
    method: Annotated[
        str, arg(help="Any method of `attar ls methods`; those made for rounds: fedavg … fedkem.")
    ] = "fedavg",
    net: Annotated[
        str | None,
        arg(
            help="Architecture, lenet5 unless given; several, separated by commas, go round the clients."
        ),
    ] = None,
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")
    ] = (),
    rounds: OmitArgPrefixes[Rounds] = DEFAULT_ROUNDS,
    training: OmitArgPrefixes[TrainingFlags] = DEFAULT_TRAINING,
    student: Annotated[
        str | None,
        arg(help="Architecture of the fused model; the clients' commonest unless given."),
    ] = None,
    public: Annotated[
        str | None,
        arg(
            help="The server's images: a data source, images:DIR, a partition's held-out ones, or sketches; PARTITION's unless given."
        ),
    ] = None,
    public_labels: Annotated[bool, arg(help="The server knows their labels, too.")] = False,
    start: Annotated[
        Path | None, arg(help="A model folder or upload that the server sends in the first round.")
    ] = None,
    out: Annotated[Path, arg(help="The run and model folder.")] = Path("federation"),
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False,
    minutes: Annotated[
        float | None, arg(help="End in time with the model of the last whole round.")
    ] = None,
    withhold_counts: Annotated[
        bool, arg(help="Clients do not tell how many examples of each class they have.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[
        bool, arg(help="On CUDA: compile the clients' nets in fusions that ask them often.")
    ] = False,
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0,
    json: Json = False,
) -> None:
    """Rounds on this machine: the clients of a partition train, upload and are fused, again and
    again; one round is one-shot.
    """
    configured = configure(find_method(method), pairs(settings), of=f"method {method}")
    specs = parse_trainable_nets(net, None)
    file, dataset = load_partition(partition, quiet=json)
    images = None
    if public is not None or len(file.partition.held_out):
        images = load_public_images(public or str(partition), quiet=json, labelled=public_labels)
    with console.progress(f"{method}, {file.source}", quiet=json) as watch:
        done = federate_data(
            dataset,
            file.partition,
            specs,
            configured,
            rounds,
            training=LocalTraining(**training.settings()),
            weak=training.settings(),
            withhold_counts=withhold_counts,
            server=ServerOptions(
                student=student,
                public=images,
                initial=None if start is None else load_start(start),
                precision=precision,
                compile=compile,
            ),
            seed=seed,
            device=parse_device(device),
            options=RunOptions(
                out=out,
                resume=resume,
                minutes=minutes,
                watch=watch,
                checkpoint_seconds=checkpoint_seconds,
                evaluated_on=f"the test part of {file.source}",
            ),
        )
    console.show_json({"out": str(out), **done.record}) if json else tables.show_federated(
        done.record, out
    )


@app.command
def plan(
    devices: Annotated[Positional[Path], arg(help="A TOML file: examples/devices.toml.")],
    /,
    *,
    json: Json = False,
) -> None:
    """Which device gets which net: the largest that fits its memory and its
    multiply-accumulates, for training at home.
    """
    rows = allocate(read_devices(devices))
    console.show_json(rows) if json else tables.show_allocation(rows)
