"""How often the robustness report blames an honest client, and how often it finds a planted one.

    python benchmarks/false_alarms.py --federations 10 --out build/false-alarms.json
    python benchmarks/false_alarms.py --scans 2 --out build/backdoors.json
    python benchmarks/false_alarms.py --splits 200 --out build/splits.json

Each federation is a split of robustness_bank.py whose clients have nets and training lengths drawn
at random: all mixed (two of five), one net with mixed lengths, one client that trained longer
than all others, or all alike.
The same federations again have one client with moved labels, without training, with ten to a
million times the median's images, or with impossible statistics. --scans searches for backdoors. --splits
counts how unequal the clients of random splits are, and how often the bound on claims bites.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import robustness_bank as bank
import torch
from torch import Tensor

import attar
from attar.blocks.ensemble import Teachers
from attar.core import Result, Server, Upload
from attar.fusion import server_for
from attar.fusion.agreement import ClientAnswers, held_classes, measure_agreements
from attar.fusion.backdoors import Trigger, compare_triggers, measure_triggers
from attar.fusion.claims import bound_claims
from attar.fusion.impossible import impossible_statistics
from attar.fusion.outliers import judge_answers
from attar.fusion.probe_images import IMAGES, Probes, collect_images, invert_clients
from attar.fusion.proportions import relative_norm
from attar.training import add_statistics

SCANNED = (1, 3)  # stages whose nets are searched for triggers
KINDS = ("mixed", "mixed", "one net", "one longer", "alike")
SPLITS = (
    "dirichlet:0.05",
    "dirichlet:0.1",
    "dirichlet:0.3",
    "dirichlet:0.5",
    "dirichlet-client:0.1",
    "dirichlet-client:0.1+lognormal:1.2",
    "classes:2",
)


@dataclass(frozen=True)
class Member:
    """A net that may take part in federations of a split.

    Attributes:
        upload: What it is.
        row: Of its client.
        wrong: What is wrong with it; None: it is honest.
        norm: Of its weights.
    """

    upload: Upload
    row: int
    wrong: str | None
    norm: float


class Answers:
    """What all nets of a split answer to the images inverted from each of them.

    So any number of federations can be composed of them, as the report would ask their members.
    """

    def __init__(self, place: bank.Place) -> None:
        honest, bad = bank.load(place)
        self.place = place
        self.members: dict[tuple[Any, ...], Member] = {}
        for net in place.nets:
            for stage, uploads in enumerate(honest[net]):
                for row, upload in enumerate(uploads):
                    self._add((net, stage, row), upload, row, None)
        for row in range(bank.BAD):
            self._add(("labels", row), bad["labels"][row], row, "labels")
            self._add(
                ("untrained", row), untrained(honest[place.nets[row]][0][row], row), row, "no"
            )
        uploads = [member.upload for member in self.members.values()]
        self.classes = uploads[0].parts["classifier"].classes
        server = server_for([replace(uploads[0])])
        parts = [upload.parts["classifier"] for upload in uploads]
        teachers = Teachers(parts, self.classes)
        self.places = {key: number for number, key in enumerate(self.members)}
        clients = len(honest[place.nets[0]][0])
        each = IMAGES // clients  # images that the report inverts from each client
        found = [self._invert(teachers, number, each, server) for number in range(len(parts))]
        self.owner = torch.cat([torch.full((len(one.images),), n) for n, one in enumerate(found)])
        self.target = torch.cat([one.target for one in found])
        images = torch.cat([one.images for one in found])
        with torch.no_grad():
            logits = [teachers(batch) for batch in images.split(500)]
        self.logits = torch.cat(logits, 1)

    def _add(self, key: tuple[Any, ...], upload: Upload, row: int, wrong: str | None) -> None:
        self.members[key] = Member(upload, row, wrong, relative_norm(upload))

    def _invert(self, teachers: Teachers, number: int, each: int, server: Server) -> Probes:
        upload = list(self.members.values())[number].upload
        seeded = replace(server, seed=number)
        part = upload.parts["classifier"]
        alone = Teachers([part], self.classes)
        return invert_clients([upload], alone.known, alone, seeded, most=each)

    def examine(self, keys: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
        """The report on a federation of these members, in short."""
        rows = [self.places[key] for key in keys]
        members = [self.members[key] for key in keys]
        of_row = {number: row for row, number in enumerate(rows)}
        chosen = torch.isin(self.owner, torch.tensor(rows))
        source = torch.tensor([of_row[int(number)] for number in self.owner[chosen]])
        uploads = [member.upload for member in members]
        logits = self.logits[rows][:, chosen]
        known = torch.ones(len(rows), len(self.classes), dtype=torch.bool)
        answers = ClientAnswers(
            uploads=uploads,
            logits=logits,
            known=known,
            held=held_classes(uploads, known, logits, self.classes),
            source=source,
            target=self.target[chosen],
        )
        agreements = measure_agreements(answers)
        norms = {member.upload.client: member.norm for member in members}
        nothing = [None] * len(rows)
        reports = judge_answers(answers, agreements, norms, nothing, self.classes)
        return {
            "flags": [list(report.flags) for report in reports],
            "agreement": [
                None if report.agreement is None else round(report.agreement, 3)
                for report in reports
            ],
        }


def compose(place: bank.Place, clients: int, number: int) -> tuple[str, list[tuple[Any, ...]]]:
    """A federation: its kind, and the net, the stage and the client of each member."""
    draws = random.Random(f"{place.name}, federation {number}")
    kind = KINDS[number % len(KINDS)]
    stages = len(bank.STAGES)
    net, stage = draws.choice(place.nets), draws.randrange(stages - 1)
    if kind == "mixed":
        chosen = [(draws.choice(place.nets), draws.randrange(stages)) for _ in range(clients)]
    elif kind == "one net":
        chosen = [(net, draws.randrange(stages)) for _ in range(clients)]
    else:
        chosen = [(net, stage)] * clients
        if kind == "one longer":
            chosen[draws.randrange(clients)] = (net, stages - 1)
    return kind, [(net, stage, row) for row, (net, stage) in enumerate(chosen)]


def measure(answers: Answers, number: int) -> dict[str, Any]:
    """One federation, honest and with a planted client."""
    place = answers.place
    clients = len({member.row for member in answers.members.values()})
    kind, keys = compose(place, clients, number)
    row: dict[str, Any] = {
        "place": place.name,
        "rule": place.rule,
        "classes": len(answers.classes),
        "kind": kind,
        "honest": answers.examine(keys),
        "claim": named_claim([answers.members[key].upload for key in keys], number),
    }
    at = number % bank.BAD
    for attack in ("labels", "untrained"):
        planted = [*keys[:at], (attack, at), *keys[at + 1 :]]
        row[attack] = {"at": at, **answers.examine(planted)}
    upload = add_statistics(answers.members[keys[at]].upload, bank.clients_of(place)[at])
    if "statistics" in upload.parts:
        row["statistics"] = {
            "honest": impossible_statistics(upload),
            "lie": impossible_statistics(statistics_lies(upload, number)),
        }
    return row


def untrained(upload: Upload, seed: int) -> Upload:
    """The upload with a fresh net."""
    part = upload.parts["classifier"]
    net = part.spec.build(part.preprocess.input_shape, len(part.classes), seed=1000 + seed)
    return replace(upload, parts={"classifier": replace(part, state=net.state_dict())})


def named_claim(uploads: Sequence[Upload], number: int) -> tuple[bool, bool]:
    """Whether ten to a million times the median is named, and whether it is bounded."""
    draws = random.Random(f"claims {number}")
    row = draws.randrange(len(uploads))
    usual = median(one.num_examples for place, one in enumerate(uploads) if place != row)
    claimed = math.ceil(usual * 10 ** draws.uniform(1, 6))
    liar = replace(uploads[row], num_examples=claimed, label_counts=None)
    _, claims = bound_claims([*uploads[:row], liar, *uploads[row + 1 :]])
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


def measure_splits(rule: str, clients: int, number: int) -> dict[str, Any]:
    """How unequal the clients of random splits of 6,000 images are."""
    labels = np.arange(6000) % 10
    nexts, medians, bitten = [], [], 0
    for seed in range(number):
        split = attar.partition(labels, rule, clients=clients, seed=seed)
        sizes = sorted(len(part) for part in split.clients if len(part))
        nexts.append(sizes[-1] / sizes[-2])
        medians.append(sizes[-1] / median(sizes[:-1]))
        uploads = [Upload(f"client-{row}", {}, size) for row, size in enumerate(sizes)]
        bitten += any(not claim.believed for claim in bound_claims(uploads)[1])
    return {
        "rule": rule,
        "clients": clients,
        "splits": number,
        "largest of next": round(max(nexts), 2),
        "largest of median": round(max(medians), 2),
        "bitten": bitten,
    }


class Triggers:
    """Trigger sizes of some nets of a split, from which federations are composed."""

    def __init__(self, place: bank.Place, stages: Sequence[int]) -> None:
        honest, bad = bank.load(place)
        self.place = place
        self.stages = stages
        first = [uploads[-2] for uploads in (honest[net] for net in place.nets)]
        probes = self._probe(first[0])
        self.sizes = {
            (net, stage, row): self._measure(upload, probes)
            for net in place.nets
            for stage in stages
            for row, upload in enumerate(honest[net][stage])
        }
        for row in range(bank.BAD):
            self.sizes[("backdoor", row)] = self._measure(bad["backdoor"][row], probes)

    def _probe(self, uploads: Sequence[Upload]) -> Tensor:
        server = server_for(uploads)
        parts = [upload.parts["classifier"] for upload in uploads]
        teachers = Teachers(parts, server.task.classes)
        return collect_images(uploads, teachers.known, teachers, server, Result({})).images

    def _measure(self, upload: Upload, probes: Tensor) -> Tensor:
        part = upload.parts["classifier"]
        return measure_triggers(Teachers([part], part.classes), 0, probes, 0)

    def compose(self, number: int) -> dict[str, Any]:
        """The residuals of an honest federation, and of three clients with a backdoor."""
        draws = random.Random(f"{self.place.name}, scan {number}")
        clients = max(key[-1] for key in self.sizes) + 1
        keys = [
            (draws.choice(self.place.nets), draws.choice(list(self.stages)), row)
            for row in range(clients)
        ]
        row: dict[str, Any] = {"place": self.place.name, "rule": self.place.rule, "backdoors": []}
        table = torch.stack([self.sizes[key] for key in keys])
        row["honest"] = [_residual(found) for found in compare_triggers(table)]
        for at in range(bank.BAD):
            mixed = table.clone()
            mixed[at] = self.sizes[("backdoor", at)]
            found = compare_triggers(mixed)[at]
            target, _ = bank.backdoor_of(self.place, at)
            right = found is not None and found.target == target
            row["backdoors"].append({"residual": _residual(found), "target": right})
        return row


def _residual(found: Trigger | None) -> float | None:
    return None if found is None else round(found.residual, 3)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--federations", type=int, default=0, help="Of each split.")
    words.add_argument("--scans", type=int, default=0, help="Of each split with ten classes.")
    words.add_argument("--splits", type=int, default=0, help="Of each rule and number of clients.")
    words.add_argument("--only", default="", help="Names of splits.")
    words.add_argument("--out", type=Path, required=True)
    asked = words.parse_args()
    rows: list[dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else []
    if asked.splits:
        rows = [
            measure_splits(rule, k, asked.splits) for rule in SPLITS for k in (3, 5, 10, 20, 50)
        ]
        asked.out.write_text(json.dumps(rows))
        return
    chosen = asked.only.split(",") if asked.only else [place.name for place in bank.places()]
    for place in bank.places():
        if place.name not in chosen or any(row["place"] == place.name for row in rows):
            continue
        if asked.scans and not place.classes:
            triggers = Triggers(place, SCANNED)
            rows += [triggers.compose(number) for number in range(asked.scans)]
        elif asked.federations:
            answers = Answers(place)
            rows += [measure(answers, number) for number in range(asked.federations)]
        asked.out.write_text(json.dumps(rows))
        print(place.name, len(rows), flush=True)


if __name__ == "__main__":
    main()
