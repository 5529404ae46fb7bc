"""Cells of several rounds: the clients train anew in each, so nothing is shared between cells
but the data.
"""

import time
from dataclasses import asdict, replace
from pathlib import Path

from attar.bench.clients import Dealt
from attar.bench.defaults import training_defaults
from attar.bench.grid import Cell, digest
from attar.bench.records import Record, arrays_json, forget_if_finished, outcome_json
from attar.errors import OutOfTime, RunError, SettingsError
from attar.federation import Rounds, federate, running_bytes
from attar.models import Classifier, evaluate_on, load_start, parse_nets
from attar.running import Watch
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


def run_rounds(
    cell: Cell, data: Dealt, folder: Path, device: str, minutes: float | None, watch: Watch | None
) -> Record:
    """Play the rounds to the end, or go on with them; what a record says of the outcome."""
    federation, method = cell.federation, cell.method()
    (group,) = federation.group_names
    clients, nets = (
        share_out(data.dataset, data.partition, data.names),
        parse_nets(federation.group(group).net),
    )
    defaults = training_defaults(cell.defaults)
    if (
        any(net.kind == "cvae" for net in nets)
        and replace(defaults, classifier=DEFAULTS.classifier) != DEFAULTS
    ):
        fix = 'name newer defaults in the recipe, or defaults = "current"'
        raise SettingsError(
            f"{cell.title}: in rounds CVAEs can only train by today's defaults.", fix=fix
        )
    training = {**asdict(defaults.classifier), **federation.group(group).training}
    place = {name: number for number, name in enumerate(data.names)}

    def accuracy(model: Classifier) -> float:
        return evaluate_on(model, data.test, data.dataset.classes, device=device).accuracy

    forget_if_finished(folder)
    begun = time.monotonic()
    try:
        played = federate(
            clients,
            [nets[place[client.name] % len(nets)] for client in clients],
            method,
            Rounds(
                **{
                    **cell.defaults.section("rounds"),
                    "rounds": federation.rounds,
                    "fraction": federation.sample,
                }
            ),
            training=configure(LocalTraining, training, of="local training"),
            student=cell.student if method.needs.student else None,
            public=data.public(federation, labelled=False) if method.needs.public_data else None,
            initial=None if federation.start is None else load_start(Path(federation.start)),
            seed=cell.seed,
            device=device,
            precision=cell.precision,
            compile=cell.compile,
            out=folder,
            resume=(folder / "run.json").exists(),
            minutes=minutes,
            watch=watch,
            evaluate=accuracy,
            evaluated_on=f"the {federation.tested_on} part of {federation.data}",
        )
    except RunError:
        if minutes is None or time.monotonic() - begun < 60 * minutes:
            raise
        raise OutOfTime(
            "Out of time in the first round.",
            fix="run the same command again: it goes on from here",
        ) from None
    told = played.record
    if told["ending"] != "finished":
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    history = [
        {
            "phase": "rounds",
            "step": one["round"],
            "accuracy": one["accuracy"],
            "loss": one["loss"],
            "bytes": sent,
        }
        for one, sent in zip(told["rounds"], running_bytes(told["rounds"]), strict=True)
    ]
    found = {
        name: evaluate_on(
            Classifier(model).to(device), data.test, data.dataset.classes, device=device
        )
        for name, model in played.result.models.items()
    }
    return {
        **outcome_json(found, history),
        "settings": told["settings"],
        "steps": {"rounds": f"{len(told['rounds'])} of {federation.rounds}"},
        "rounds": [{key: one[key] for key in ROUND} for one in told["rounds"]],
        "arrays": arrays_json(played.result),
        "remarks": told["remarks"],
        "gallery": None,
        "seconds": told["seconds"],
        "seconds_by_phase": {
            "local training": round(sum(one["train_seconds"] for one in told["rounds"]), 3),
            "fusion": round(sum(one["fuse_seconds"] for one in told["rounds"]), 3),
        },
        "bytes_up": told["bytes_up"],
        "bytes_down": told["bytes_down"],
        "home_accuracy": told["home_accuracy"],
        "clients": _clients(cell, data),
        "ensemble_accuracy": None,
        "classes": list(data.dataset.classes),
        "tested_on": f"{federation.tested_on} part of {federation.data}, {len(data.test)} images",
    }


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
