"""Cells of several rounds: the clients train anew in each, so nothing is shared between cells
but the data.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from attar.bench.clients import Dealt
from attar.bench.defaults import training_defaults
from attar.bench.grid import Cell, digest
from attar.bench.records import Record, arrays_json, forget_if_finished, outcome_json
from attar.core import ModelSpec
from attar.errors import OutOfTime, RunError, SettingsError
from attar.federation import Federated, Rounds, cumulative_bytes, federate
from attar.fusion import ServerOptions
from attar.models import Classifier, Evaluation, evaluate_on, load_start, parse_nets
from attar.running import RunOptions
from attar.settings import configure
from attar.training import DEFAULTS, LocalTraining, share_out

ROUND = (
    "round",
    "accuracy",
    "home_accuracy",
    "bytes_up",
    "bytes_down",
    "failed",
)  # what a record keeps of one


def run_rounds(cell: Cell, data: Dealt, folder: Path, device: str, options: RunOptions) -> Record:
    """Run the rounds of a cell, or resume them, and return what its record says of the outcome.

    Args:
        cell: The cell.
        data: Its clients' data.
        folder: For the run.
        device: Where clients train and uploads are fused.
        options: Time limit and progress; folder and evaluation are set here.

    Raises:
        OutOfTime: The time limit came before the last round; what was done is saved.
    """
    federated = _federate(cell, data, folder, device, options)
    record = federated.record
    if record["ending"] != "finished":
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    rounds = record["rounds"]
    history = [
        {
            "phase": "rounds",
            "step": one["round"],
            "accuracy": one["accuracy"],
            "loss": one["loss"],
            "bytes": total,
        }
        for one, total in zip(rounds, cumulative_bytes(rounds), strict=True)
    ]
    federation = cell.federation
    return {
        **outcome_json(federated.evaluations, history),
        "settings": record["settings"],
        "steps": {"rounds": f"{len(rounds)} of {federation.rounds}"},
        "rounds": [{key: one[key] for key in ROUND} for one in rounds],
        "arrays": arrays_json(federated.result),
        "remarks": record["remarks"],
        "gallery": None,
        "seconds": record["seconds"],
        "seconds_by_phase": {
            "local training": round(sum(one["train_seconds"] for one in rounds), 3),
            "fusion": round(sum(one["fuse_seconds"] for one in rounds), 3),
        },
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "home_accuracy": record["home_accuracy"],
        "clients": _clients(cell, data),
        "ensemble_accuracy": None,
        "classes": list(data.dataset.classes),
        "tested_on": f"{federation.tested_on} part of {federation.data}, {len(data.test)} images",
    }


def _rounds(cell: Cell) -> Rounds:
    """How many rounds and who takes part: what the recipe says, else its release's defaults."""
    given = {"rounds": cell.federation.rounds, "fraction": cell.federation.sample}
    return Rounds(**{**cell.defaults.section("rounds"), **given})


def _training(cell: Cell, nets: Sequence[ModelSpec]) -> LocalTraining:
    """How classifiers train: what the recipe says, else its release's defaults."""
    defaults = training_defaults(cell.defaults)
    changed = replace(defaults, classifier=DEFAULTS.classifier) != DEFAULTS
    if changed and any(net.kind == "cvae" for net in nets):
        raise SettingsError(
            f"{cell.title}: in rounds CVAEs can only train by today's defaults.",
            fix='name newer defaults in the recipe, or defaults = "current"',
        )
    (name,) = cell.federation.group_names
    given = {**asdict(defaults.classifier), **cell.federation.group(name).training}
    return configure(LocalTraining, given, of="local training")


def _federate(cell: Cell, data: Dealt, folder: Path, device: str, options: RunOptions) -> Federated:
    """Run or resume the federation of a cell."""
    federation = cell.federation
    method = cell.method()
    (name,) = federation.group_names
    group = federation.group(name)
    clients = share_out(data.dataset, data.partition, data.names)
    nets = parse_nets(group.net)
    place = {name: number for number, name in enumerate(data.names)}
    public = data.public(federation, labelled=False) if method.needs.public_data else None

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, data.test, data.dataset.classes, device=device)

    forget_if_finished(folder)
    begun = time.monotonic()
    try:
        return federate(
            clients,
            [nets[place[client.name] % len(nets)] for client in clients],
            method,
            _rounds(cell),
            training=_training(cell, nets),
            server=ServerOptions(
                student=cell.student if method.needs.student else None,
                public=public,
                initial=None if federation.start is None else load_start(Path(federation.start)),
                precision=cell.precision,
                compile=cell.compile,
            ),
            seed=cell.seed,
            device=device,
            options=replace(
                options,
                out=folder,
                resume=(folder / "run.json").exists(),
                evaluate=evaluate,
                evaluated_on=f"the {federation.tested_on} part of {federation.data}",
            ),
        )
    except RunError:
        if options.minutes is None or time.monotonic() - begun < 60 * options.minutes:
            raise
        raise OutOfTime(
            "Out of time in the first round.",
            fix="run the same command again: it goes on from here",
        ) from None


def _clients(cell: Cell, data: Dealt) -> list[Record]:
    """Who held what; what each sent changes from round to round, and is counted in the whole."""
    return [
        {
            "client": name,
            "parts": {},
            "num_examples": sum(counts),
            "label_counts": counts,
            "bytes": None,
            "sha256": digest([cell.federation.data, cell.federation.rule, cell.seed, name, counts]),
            "accuracy": None,
        }
        for name, counts in zip(data.names, data.counts(), strict=True)
    ]
