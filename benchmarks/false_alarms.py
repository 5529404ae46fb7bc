"""How often the robustness report blames an honest client, and how often it finds a planted one.

    python benchmarks/false_alarms.py --federations 10 --out build/false-alarms.json
    python benchmarks/false_alarms.py --scans 2 --out build/backdoors.json

Each federation is a split of robustness_bank.py whose clients have nets and training lengths drawn
at random: all mixed, one net with mixed lengths, or one client that trained longer than all others.
The same federations again have one client with moved labels, without training, with ten to a
million times the median's images, or with impossible statistics. --scans searches for backdoors.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import robustness_bank as bank
import torch

from attar.blocks.ensemble import Teachers
from attar.core import Result, Upload
from attar.fusion import find_outliers, server_for
from attar.fusion.backdoors import compare_triggers, measure_triggers
from attar.fusion.claims import bound_claims
from attar.fusion.impossible import impossible_statistics
from attar.fusion.probe_images import collect_images
from attar.training import add_statistics

KINDS = ("mixed", "mixed", "one net", "one longer", "alike")
Honest = dict[str, list[list[Upload]]]


def compose(
    place: bank.Place, honest: Honest, number: int
) -> tuple[str, list[tuple[str, int]], list[Upload]]:
    """A federation: its kind, the net and the stage of each client, and the uploads."""
    draws = random.Random(f"{place.name}, federation {number}")
    kind = KINDS[number % len(KINDS)]
    clients = len(honest[place.nets[0]][0])
    net, stage = draws.choice(place.nets), draws.randrange(3)
    if kind == "mixed":
        chosen = [
            (draws.choice(place.nets), draws.randrange(len(bank.STAGES))) for _ in range(clients)
        ]
    elif kind == "one net":
        chosen = [(net, draws.randrange(len(bank.STAGES))) for _ in range(clients)]
    else:
        chosen = [(net, stage)] * clients
        if kind == "one longer":
            chosen[draws.randrange(clients)] = (net, len(bank.STAGES) - 1)
    uploads = [honest[net][stage][row] for row, (net, stage) in enumerate(chosen)]
    return kind, chosen, uploads


def examine(uploads: Sequence[Upload]) -> dict[str, Any]:
    """The report in short: flags and agreements by client."""
    report = find_outliers(uploads, server_for(uploads), Result({}))
    return {
        "flags": {one.client: list(one.flags) for one in report.clients if one.flags},
        "agreement": [
            None if one.agreement is None else round(one.agreement, 3) for one in report.clients
        ],
        "clients": len(report.clients),
    }


def untrained(upload: Upload, seed: int) -> Upload:
    """The upload with a fresh net."""
    part = upload.parts["classifier"]
    net = part.spec.build(part.preprocess.input_shape, len(part.classes), seed=1000 + seed)
    return replace(upload, parts={"classifier": replace(part, state=net.state_dict())})


def named_claim(uploads: Sequence[Upload], number: int) -> tuple[bool, bool]:
    """Whether ten to a million times the median is named, and whether it is bounded."""
    draws = random.Random(f"claims {number}")
    row = draws.randrange(len(uploads))
    others = sorted(one.num_examples for place, one in enumerate(uploads) if place != row)
    usual = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
    claimed = math.ceil(usual * 10 ** draws.uniform(1, 6))
    liar = replace(uploads[row], num_examples=claimed, label_counts=None)
    _, claims = bound_claims([liar if place == row else one for place, one in enumerate(uploads)])
    found = [claim for claim in claims if claim.client == liar.client]
    return bool(found), bool(found) and not found[0].believed


def statistics_lies(upload: Upload, number: int) -> Upload:
    """Statistics that cannot be, in one of five ways."""
    part = upload.parts["statistics"]
    state = dict(part.state)
    match number % 5:
        case 0:
            state["own_mean"] = state["own_mean"] * 0 + 1e38
        case 1:
            state["whitening"] = state["whitening"] * 0
        case 2:
            state["own_spread"] = state["own_spread"] * 0
        case 3:
            state["whitening"] = state["whitening"] * 1e-3
        case 4:
            state["own_spread"] = state["own_spread"] * 100
    return replace(upload, parts={**upload.parts, "statistics": replace(part, state=state)})


def measure(place: bank.Place, number: int, *, plant: bool) -> dict[str, Any]:
    """One federation, honest and with one planted client."""
    honest, bad = bank.load(place)
    kind, chosen, uploads = compose(place, honest, number)
    row: dict[str, Any] = {
        "place": place.name,
        "rule": place.rule,
        "classes": len(place.classes) or 10,
        "kind": kind,
        "chosen": chosen,
        "honest": examine(uploads),
        "claim": named_claim(uploads, number),
    }
    clients = bank.clients_of(place)
    at = number % bank.BAD
    measured = add_statistics(uploads[at], clients[at])
    if "statistics" in measured.parts:
        row["statistics"] = {
            "honest": impossible_statistics(measured),
            "lie": impossible_statistics(statistics_lies(measured, number)),
        }
    if plant:
        for attack, liar in (
            ("labels", bad["labels"][at]),
            ("untrained", untrained(uploads[at], number)),
        ):
            row[attack] = examine([*uploads[:at], liar, *uploads[at + 1 :]])
            row[attack]["planted"] = liar.client
    return row


def scan(place: bank.Place, number: int) -> dict[str, Any]:
    """The residuals r_k of an honest federation, and of three with a backdoor."""
    honest, bad = bank.load(place)
    kind, _, uploads = compose(place, honest, number)
    server = server_for(uploads)
    sizes, probes = _sizes(uploads)
    row: dict[str, Any] = {
        "place": place.name,
        "rule": place.rule,
        "kind": kind,
        "honest": [None if one is None else one.residual for one in compare_triggers(sizes)],
        "backdoors": [],
    }
    for at in range(bank.BAD):
        traitor = bad["backdoor"][at]
        teachers = Teachers([traitor.parts["classifier"]], server.task.classes)
        mixed = sizes.clone()
        mixed[at] = measure_triggers(teachers, 0, probes, server.seed)
        found = compare_triggers(mixed)[at]
        target, _ = bank.backdoor_of(place, at)
        row["backdoors"].append(
            {
                "residual": None if found is None else found.residual,
                "found": None if found is None else found.target,
                "target": target,
            }
        )
    return row


def _sizes(uploads: Sequence[Upload]) -> tuple[torch.Tensor, torch.Tensor]:
    """s_kc of all clients, and the images that triggers are put on."""
    server = server_for(uploads)
    parts = [upload.parts["classifier"] for upload in uploads]
    teachers = Teachers(parts, server.task.classes, partial=True)
    probes = collect_images(uploads, teachers.known, teachers, server, Result({}))
    rows = range(len(uploads))
    sizes = [measure_triggers(teachers, row, probes.images, server.seed) for row in rows]
    return torch.stack(sizes), probes.images


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--federations", type=int, default=0, help="Of each split.")
    words.add_argument("--scans", type=int, default=0, help="Of each split with ten classes.")
    words.add_argument("--only", default="", help="Names of splits.")
    words.add_argument("--out", type=Path, required=True)
    asked = words.parse_args()
    rows: list[dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else []
    chosen = asked.only.split(",") if asked.only else [place.name for place in bank.places()]
    for place in bank.places():
        if place.name not in chosen or (asked.scans and place.classes):
            continue
        done = sum(row["place"] == place.name for row in rows)
        for number in range(done, asked.federations or asked.scans):
            if asked.scans:
                rows.append(scan(place, number))
            else:
                rows.append(measure(place, number, plant=number % 3 == 0))
            asked.out.write_text(json.dumps(rows))
            print(place.name, number, rows[-1].get("honest"), flush=True)


if __name__ == "__main__":
    main()
