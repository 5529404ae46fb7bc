"""In which order methods are recommended for some uploads, and which uploads stand in the way.

The rule is short, and docs/methods.md has it: methods that fit come in the order of ``ORDER``,
those that would take too long or too much memory here after them. The order is that of the
records in ``results/``. What was measured on a user's own images plays no part.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from attar.core import AnyMethod, Server, Upload
from attar.methods import unmet_needs
from attar.training import STATISTICS

HOURS = 12.0  # a method that takes longer is recommended after the others
# Best first. Means are over ten splits, of results/accord-table1.csv: accord 54.9 with statistics,
# 52.6 with counts, 52.3 with nets alone; Co-Boosting 38.9, DENSE 35.3, FedHydra 31.5. The
# places of the others are those of docs/methods.md.
ORDER = {
    "gaussian-head": "a head in closed form from sums of a backbone",
    "analytic": "a linear head in closed form from sums of a backbone",
    "fisher-mix": "a cosine head trained on features that are drawn from the sums",
    "fedpft": "a head trained on features that are drawn from the sums",
    "accord": "one small net; the best student on record, on all of ten splits",
    "feddf": "learns from the server's real images",
    "fedmho": "made for decoders beside classifiers",
    "fedcvae": "made for decoders",
    "ensemble": "no training; as large as all nets together",
    "fedmitr": "made for vision transformers",
    "co-boosting": "second of four students on record",
    "dense": "third of four students on record",
    "f-adi": "level with dense on record, and slower",
    "fedhydra": "last of four students on record",
    "fedftg": "below dense on record",
    "local-heads": "a baseline for heads",
    "fedavg": "averages weights; below the ensemble on record",
    "f-dafl": "learns little on record",
    "fedkem": "made for several rounds",
    "fedprox": "made for several rounds",
    "fednova": "made for several rounds",
    "scaffold": "made for several rounds",
}
NO_RECORD = "nothing on record"


@dataclass(frozen=True)
class Recommendation:
    """A method's place among those that fit.

    Attributes:
        place: 1 is the first to try.
        reason: A few words.
        settings: What to set, as ``--set`` takes it; empty: the defaults are right.
    """

    place: int
    reason: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Obstacle:
    """Uploads without which more methods fit.

    Attributes:
        clients: Who sent them.
        sent: The parts that they sent.
        methods: What fits without them, in the order of recommendation.
    """

    clients: tuple[str, ...]
    sent: tuple[str, ...]
    methods: tuple[str, ...]


def best_rule(uploads: Sequence[Upload]) -> str:
    """The rule of an ensemble that is best on record for what the uploads carry.

    Means over ten splits: accord 63.4 with statistics and 59.1 with counts, mean of probabilities
    50.4, mean of logits 39.0.
    """
    counts = all(upload.label_counts is not None for upload in uploads)
    statistics = any(STATISTICS in upload.parts for upload in uploads)
    return "accord" if counts or statistics else "mean-probabilities"


def recommend(
    costs: Mapping[str, tuple[float, int]],
    uploads: Sequence[Upload],
    device: str,
    *,
    minutes: float | None = None,
) -> dict[str, Recommendation]:
    """Rank methods that fit some uploads.

    Args:
        costs: Of each method that fits: seconds, and bytes of memory.
        uploads: What would be fused.
        device: Where.
        minutes: The time limit; None: ``HOURS``.

    Returns:
        By method, the first to try in front.
    """
    limit = 60 * minutes if minutes is not None else 3600 * HOURS
    room = machine_memory(device)
    order = list(ORDER)

    def key(name: str) -> tuple[bool, int]:
        seconds, memory = costs[name]
        place = order.index(name) if name in ORDER else len(order)
        return seconds > limit or memory > room, place

    ranked = {}
    for place, name in enumerate(sorted(costs, key=key), 1):
        seconds, memory = costs[name]
        reason = _reason(name, uploads)
        if memory > room:
            reason = f"more memory than this machine has; {reason}"
        elif seconds > limit:
            reason = f"too long here; {reason}"
        settings = (f"rule={best_rule(uploads)}",) if name == "ensemble" else ()
        ranked[name] = Recommendation(place, reason, settings)
    return ranked


def _reason(name: str, uploads: Sequence[Upload]) -> str:
    """Why a method has its place, with what it uses of these uploads."""
    reason = ORDER.get(name, NO_RECORD)
    if name == "accord":
        used = {
            "statistics": any(STATISTICS in upload.parts for upload in uploads),
            "label counts": any(upload.label_counts is not None for upload in uploads),
            "decoders": any("decoder" in upload.parts for upload in uploads),
        }
        sent = [what for what, there in used.items() if there]
        return f"{reason}; uses the {' and '.join(sent) if sent else 'nets alone'}"
    return reason


def machine_memory(device: str) -> float:
    """Bytes of the device's memory; infinite where it cannot be told."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")


def find_obstacles(
    methods: Mapping[str, AnyMethod], uploads: Sequence[Upload], server: Server
) -> list[Obstacle]:
    """Groups of uploads without which more methods fit than with them, the worst first.

    A group is all clients that sent the same parts, such as decoders among classifiers. The
    smaller part of the clients may stand in the way, not the larger.

    Args:
        methods: By name, with their settings.
        uploads: What would be fused.
        server: Made for them.
    """
    groups: dict[frozenset[str], list[str]] = {}
    for upload in uploads:
        kinds = frozenset(upload.parts) - {STATISTICS}
        groups.setdefault(kinds, []).append(upload.client)
    fitting = {
        name for name, method in methods.items() if not unmet_needs(method.needs, uploads, server)
    }
    obstacles = []
    for kinds, clients in groups.items():
        rest = [upload for upload in uploads if upload.client not in clients]
        if len(clients) >= len(rest):
            continue
        known = {name for upload in rest for part in upload.parts.values() for name in part.classes}
        classes = tuple(name for name in server.task.classes if name in known)
        smaller = replace(server, task=replace(server.task, classes=classes))
        more = [
            name
            for name, method in methods.items()
            if name not in fitting and not unmet_needs(method.needs, rest, smaller)
        ]
        if more:
            more.sort(key=lambda name: list(ORDER).index(name) if name in ORDER else len(ORDER))
            obstacles.append(Obstacle(tuple(clients), tuple(sorted(kinds)), tuple(more)))
    return sorted(obstacles, key=lambda obstacle: -len(obstacle.methods))
