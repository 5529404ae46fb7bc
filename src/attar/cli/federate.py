"""``attar federate``: rounds of training and fusion on this machine."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction, arg

from attar.blocks.execution import Precision
from attar.cli.arguments import (
    Device,
    Json,
    Seed,
    Track,
    load_partition,
    load_public_images,
    parse_device,
)
from attar.cli.output import console
from attar.cli.output.console import human_seconds
from attar.federation import Rounds, cumulative_bytes, federate_data
from attar.fusion import ServerOptions
from attar.internal.text import human_bytes
from attar.methods import find_method
from attar.models import describe_data, load_start, parse_trainable_nets
from attar.running import RunOptions
from attar.settings import configure, flatten, pairs
from attar.tracking import check_trackers, track
from attar.training import LocalTraining, TrainingFlags

DEFAULT_TRAINING = TrainingFlags()
DEFAULT_ROUNDS = Rounds()


@dataclass(frozen=True, kw_only=True)
class FederateOptions:
    """The flags of ``attar federate``."""

    partition: Annotated[Positional[Path], arg(help="Who holds what: a file of `attar partition`.")]
    method: Annotated[
        str, arg(help="Any method of `attar ls methods`; those made for rounds: fedavg … fedkem.")
    ] = "fedavg"
    net: Annotated[
        str | None,
        arg(
            help="Architecture, lenet5 unless given; several, separated by commas, go round the "
            "clients."
        ),
    ] = None
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")
    ] = ()
    rounds: OmitArgPrefixes[Rounds] = DEFAULT_ROUNDS
    training: OmitArgPrefixes[TrainingFlags] = DEFAULT_TRAINING
    student: Annotated[
        str | None,
        arg(help="Architecture of the fused model; the clients' commonest unless given."),
    ] = None
    public: Annotated[
        str | None,
        arg(
            help="The server's images: a data source, images:DIR, a partition's held-out ones, "
            "or sketches; PARTITION's unless given."
        ),
    ] = None
    public_labels: Annotated[bool, arg(help="The server knows their labels, too.")] = False
    start: Annotated[
        Path | None, arg(help="A model folder or upload that the server sends in the first round.")
    ] = None
    out: Annotated[Path, arg(help="The run and model folder.")] = Path("federation")
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False
    minutes: Annotated[
        float | None, arg(help="End in time with the model of the last whole round.")
    ] = None
    withhold_counts: Annotated[
        bool, arg(help="Clients do not tell how many examples of each class they have.")
    ] = False
    seed: Seed = 0
    device: Device = "auto"
    precision: Precision = "fp32"
    compile: Annotated[
        bool, arg(help="On CUDA: compile the clients' nets in fusions that ask them often.")
    ] = False
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0
    track: Track = ()
    json: Json = False


def federate(options: FederateOptions) -> None:
    """Simulate several rounds on this machine: the clients of a partition train, upload and are
    fused in each round; one round is one-shot.
    """
    check_trackers(options.track)
    method = configure(
        find_method(options.method), pairs(options.settings), of=f"method {options.method}"
    )
    specs = parse_trainable_nets(options.net, None)
    file, dataset = load_partition(options.partition, quiet=options.json)
    public = None
    if options.public is not None or len(file.partition.held_out):
        public = load_public_images(
            options.public or str(options.partition),
            quiet=options.json,
            labelled=options.public_labels,
        )
    title = f"{options.method}, {file.source}"
    settings = {"method": options.method, **flatten(method), **asdict(options.rounds)}
    with (
        track(options.track, options.out.resolve().name, "federate", settings, console.note) as on,
        console.progress(title, quiet=options.json) as watch,
    ):
        federated = federate_data(
            dataset,
            file.partition,
            specs,
            method,
            options.rounds,
            training=LocalTraining(**options.training.settings()),
            weak=options.training.settings(),
            withhold_counts=options.withhold_counts,
            server=ServerOptions(
                student=options.student,
                public=public,
                initial=None if options.start is None else load_start(options.start),
                precision=options.precision,
                compile=options.compile,
            ),
            seed=options.seed,
            device=parse_device(options.device),
            options=RunOptions(
                out=options.out,
                resume=options.resume,
                minutes=options.minutes,
                watch=watch,
                checkpoint_seconds=options.checkpoint_seconds,
                evaluated_on=describe_data(len(dataset.test), f"the test part of {file.source}"),
                on_point=on.log_point,
            ),
        )
        record = federated.record
        told = {key: record[key] for key in ("accuracy", "seconds", "bytes_up", "bytes_down")}
        on.describe_end(told, record["ending"])
    console.emit(
        {"out": str(options.out), **record}, lambda: _show(record, options.out), json=options.json
    )


def _show(record: Mapping[str, Any], out: Path) -> None:
    """Accuracy and megabytes, round by round, and what it took to reach the target."""
    columns = (
        "round",
        "clients",
        "without",
        "MB down",
        "MB up",
        "MB in all",
        "accuracy",
        "at home",
        "time",
    )
    totals = cumulative_bytes(record["rounds"])
    console.show_table(
        f"{record['method']}, {len(record['clients'])} clients",
        columns,
        [_row(entry, total) for entry, total in zip(record["rounds"], totals, strict=True)],
        right=("round", "clients", *columns[3:]),
    )
    console.show_pairs("Federation", [*_summary(record), ("folder", str(out))])


def _row(entry: Mapping[str, Any], total_bytes: int) -> tuple[str, ...]:
    """One round."""
    megabytes = [count / 1e6 for count in (entry["bytes_down"], entry["bytes_up"], total_bytes)]
    return (
        str(entry["round"]),
        str(len(entry["drawn"])),
        ", ".join([*entry["dropped"], *entry["failed"]]),
        *(f"{size:,.2f}" for size in megabytes),
        _percent(entry["accuracy"]),
        _percent(entry["home_accuracy"]),
        human_seconds(entry["seconds"]),
    )


def _summary(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The whole run, name and value."""
    accuracy = "not measured"
    if record["accuracy"] is not None:
        accuracy = f"{_percent(record['accuracy'])} of {record['evaluated_on']}"
    down, up = (human_bytes(record[key]) for key in ("bytes_down", "bytes_up"))
    rows = [("accuracy", accuracy), ("bytes", f"{down} down, {up} up")]
    if record["equation_6_bytes"] is not None:
        size = human_bytes(record["equation_6_bytes"])
        rows.append(("by Eq. (6)", f"{size}: 2 x model x clients x rounds"))
    if record["home_accuracy"] is not None:
        number = len(record["home_accuracies"])
        mean = _percent(record["home_accuracy"])
        rows.append(("at home", f"{mean}, mean of {number} deployed models"))
    if (target := record["plan"]["target"]) is not None:
        rows.append((f"to {_percent(target)}", _cost_of_target(record["to_target"])))
    rows += [("remark", remark) for remark in record["remarks"]]
    rows += [
        (f"round {entry['round']}", f"{name} failed: {reason}")
        for entry in record["rounds"]
        for name, reason in entry["failed"].items()
    ]
    rows.append(("time", human_seconds(record["seconds"])))
    if record["ending"] != "finished":
        rounds = f"{len(record['rounds'])} of {record['plan']['rounds']} rounds"
        rows.append(("ended early", f"after {rounds}; --resume goes on"))
    return rows


def _cost_of_target(cost: Mapping[str, Any] | None) -> str:
    return (
        "not reached" if cost is None else f"{cost['rounds']} rounds, {human_bytes(cost['bytes'])}"
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f} %"
