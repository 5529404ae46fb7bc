"""Cells of several rounds, whose clients train in every round; cells share the data alone."""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from attar.bench.cells import Cell, digest
from attar.bench.defaults import training_defaults
from attar.bench.federation_data import FederationData
from attar.bench.outcome import arrays_json, outcome_json
from attar.bench.records import FINISHED, Record, remove_finished_run
from attar.core import ModelSpec
from attar.data.tensors import to_pixels
from attar.errors import OutOfTime, RunError, SettingsError
from attar.federation import Federated, Rounds, cumulative_bytes, federate
from attar.fusion import ServerOptions
from attar.models import Classifier, Evaluation, load_start, parse_nets
from attar.models import evaluate as evaluate_images
from attar.running import RunOptions
from attar.settings import configure
from attar.training import DEFAULTS, LocalTraining, share_out

# Between two checkpoints: the clients' models are up to a gigabyte, and a run that reaches its time
# limit saves in any case.
CHECKPOINT_SECONDS = 120.0
# What a record says of a round.
ROUND_KEYS = ("round", "accuracy", "home_accuracy", "bytes_up", "bytes_down", "failed")


def run_rounds(
    cell: Cell, data: FederationData, folder: Path, device: str, options: RunOptions
) -> Record:
    """Run the rounds of a cell, or resume them.

    Args:
        cell: The cell.
        data: Its clients' data.
        folder: For the run.
        device: Where clients train and uploads are fused.
        options: Time limit and progress; folder and evaluation are set here.

    Returns:
        What the cell's record says of the outcome.

    Raises:
        OutOfTime: The time limit came before the last round; what was done is saved.
    """
    federated = _federate(cell, data, folder, device, options)
    record = federated.record
    if record["ending"] != FINISHED:
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    rounds = record["rounds"]
    history = [
        {
            "phase": "rounds",
            "step": entry["round"],
            "accuracy": entry["accuracy"],
            "loss": entry["loss"],
            "bytes": total,
        }
        for entry, total in zip(rounds, cumulative_bytes(rounds), strict=True)
    ]
    federation = cell.federation
    return {
        **outcome_json(federated.evaluations, history),
        "settings": record["settings"],
        "steps": {"rounds": f"{len(rounds)} of {federation.rounds}"},
        "rounds": [{key: entry[key] for key in ROUND_KEYS} for entry in rounds],
        "arrays": arrays_json(federated.result),
        "remarks": record["remarks"],
        "gallery": None,
        "seconds": record["seconds"],
        "seconds_by_phase": {
            "local training": round(sum(entry["train_seconds"] for entry in rounds), 3),
            "fusion": round(sum(entry["fuse_seconds"] for entry in rounds), 3),
        },
        "bytes_up": record["bytes_up"],
        "bytes_down": record["bytes_down"],
        "home_accuracy": record["home_accuracy"],
        "clients": _describe_clients(cell, data),
        "ensemble_accuracy": None,
        "classes": list(data.dataset.classes),
        "tested_on": f"{federation.tested_on} part of {federation.data}, {len(data.test)} images",
    }


def _rounds(cell: Cell) -> Rounds:
    """How many rounds and who takes part: what the recipe says, else its release's defaults."""
    federation = cell.federation
    given = {
        "rounds": federation.rounds,
        "fraction": federation.sample,
        "evaluate_every": federation.evaluate_every,
    }
    return Rounds(**{**cell.defaults.section("rounds"), **given})


def _training(cell: Cell, nets: Sequence[ModelSpec]) -> LocalTraining:
    """How classifiers train: what the recipe says, else its release's defaults."""
    defaults = training_defaults(cell.defaults)
    cvae_changed = replace(defaults, classifier=DEFAULTS.classifier) != DEFAULTS
    if cvae_changed and any(net.kind == "cvae" for net in nets):
        raise SettingsError(
            f"{cell.title}: in rounds CVAEs can only train by today's defaults.",
            fix='name newer defaults in the recipe, or defaults = "current"',
        )
    (name,) = cell.federation.group_names
    given = {**asdict(defaults.classifier), **cell.federation.group(name).training}
    return configure(LocalTraining, given, of="local training")


def _federate(
    cell: Cell, data: FederationData, folder: Path, device: str, options: RunOptions
) -> Federated:
    """Run or resume the federation of a cell."""
    federation = cell.federation
    method = cell.method()
    (name,) = federation.group_names
    group = federation.group(name)
    clients = share_out(data.dataset, data.partition, data.names)
    nets = parse_nets(group.net)
    place = {name: number for number, name in enumerate(data.names)}
    needs = method.needs
    public = data.public(federation, labelled=needs.public_labels) if needs.public_data else None

    pixels = to_pixels(data.test).to(device)  # once for all rounds
    labels = torch.from_numpy(data.test.labels)

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_images(
            model,
            pixels,
            labels,
            data.dataset.classes,
            model_classes=model.classes,
            device=device,
        )

    remove_finished_run(folder)
    start = time.monotonic()
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
                checkpoint_seconds=CHECKPOINT_SECONDS,
                evaluate=evaluate,
                evaluated_on=f"the {federation.tested_on} part of {federation.data}",
            ),
        )
    except RunError:
        if options.minutes is None or time.monotonic() - start < 60 * options.minutes:
            raise
        raise OutOfTime(
            "Out of time in the first round.",
            fix="run the same command again: it goes on from here",
        ) from None


def _describe_clients(cell: Cell, data: FederationData) -> list[Record]:
    """Who held what; what each client sent differs between rounds, so the record has the sum."""
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
