"""Who holds what: labels and a seed to lists of indices. Pure, deterministic, vectorised, and
always ending.

    iid                    images shuffled and dealt in equal numbers
    dirichlet:A            each class over the clients by Dir(A); a client that holds its share N/K gets no more (NIID-Bench)
    dirichlet-equal:A      the clients' images of dirichlet:A, by class, end to end, and cut into equal pieces (FedMHO's code)
    dirichlet-client:A     each client over the classes by Dir(A), clients of equal size (FedDyn, Co-Boosting)
    classes:C              each client C random classes, each class split equally among its holders
    disjoint:C             each client C classes of its own; classes left over are held by nobody (FedHydra's 2c/c)
    domain                 each client one domain; with m times as many clients, each domain is dealt to m of them
    … +lognormal:S         on top of any of them: client sizes in proportion to lognormal(0, S)

Complete: every image of a class that some client holds is given to exactly one client. So
``lognormal`` sets sizes where a rule is free to (``iid``, ``dirichlet-equal``,
``dirichlet-client``), and weighs the shares among the holders of a class (or domain) otherwise;
where a class has a single holder there is nothing to weigh.

A smallest size: ``iid`` and ``dirichlet-client`` raise the small sizes and lower the large ones.
``dirichlet`` is redrawn up to ``shares.REDRAWS`` times; when the last draw is still too uneven,
images chosen at random move from the largest clients to the small ones. ``dirichlet-equal`` is
redrawn likewise, before it is cut. The other rules cannot give a client foreign images, and say
so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attar.data.shares import (
    Indices,
    at_least,
    cut_anew,
    dirichlet,
    dirichlet_client,
    disjoint_classes,
    random_classes,
    sizes_by,
    whole_domains,
)
from attar.errors import DataError

RULES = {
    "iid": "iid",
    "dirichlet": "dirichlet:0.1",
    "dirichlet-equal": "dirichlet-equal:0.1",
    "dirichlet-client": "dirichlet-client:0.1",
    "classes": "classes:2",
    "disjoint": "disjoint:2",
    "domain": "domain",
}


def _nothing() -> Indices:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices into the training part, each list sorted."""

    rule: str
    seed: int
    clients: tuple[Indices, ...]
    held_out: Indices = field(
        default_factory=_nothing
    )  # set aside before the split, for the server
    left_out: Indices = field(default_factory=_nothing)  # the domain that no client sees


def partition(
    labels: NDArray[np.integer],
    rule: str,
    clients: int,
    seed: int = 0,
    *,
    hold_out: float = 0.0,
    min_size: int = 0,
    domains: NDArray[np.integer] | None = None,
    leave_out: int | None = None,
) -> Partition:
    """Deal the images to clients. ``hold_out`` is a fraction of each class, ``leave_out`` the
    number of a domain.
    """
    base, value, sigma = _parse(rule)
    classes: Indices = np.asarray(labels, np.int64)
    _check(
        classes,
        clients,
        seed,
        hold_out,
        min_size,
        domains,
        leave_out,
        needs_domains=base == "domain",
    )
    for_hold_out, for_sizes, for_split = (
        np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3)
    )

    pool = np.arange(len(classes))
    left_out = _nothing()
    if leave_out is not None and domains is not None:
        left_out, pool = pool[domains == leave_out], pool[domains != leave_out]
    aside = _stratified(classes[pool], hold_out, for_hold_out)
    held_out, pool = pool[aside], pool[~aside]
    if len(pool) < max(1, clients * min_size):
        raise DataError(
            f"{len(pool)} images are too few for {clients} clients with at least {min_size} each."
        )

    weights = np.full(clients, 1.0 / clients)
    if sigma is not None:
        weights = for_sizes.lognormal(0.0, sigma, clients)
        weights /= weights.sum()
    groups = np.unique(classes[pool], return_inverse=True)[
        1
    ]  # classes that occur, numbered without gaps
    if base == "iid":
        groups = np.zeros_like(groups)
        table = at_least(sizes_by(weights, len(pool)), min_size)[None, :]
    elif base == "dirichlet":
        table = dirichlet(np.bincount(groups), value, weights, min_size, for_split)
    elif base == "dirichlet-equal":
        lists = dirichlet(
            np.bincount(groups), value, np.full(clients, 1.0 / clients), min_size, for_split
        )
        table = cut_anew(lists, at_least(sizes_by(weights, len(pool)), min_size))
    elif base == "dirichlet-client":
        sizes = at_least(sizes_by(weights, len(pool)), min_size)
        table = dirichlet_client(np.bincount(groups), value, sizes, for_split)
    elif base == "classes":
        table = random_classes(np.bincount(groups), int(value), weights, for_split)
    elif base == "disjoint":
        table = disjoint_classes(np.bincount(groups), int(value), clients, for_split)
    else:
        assert domains is not None
        groups = np.unique(domains[pool], return_inverse=True)[1]
        table = whole_domains(np.bincount(groups), weights)
    owner = _deal(groups, table, for_split)
    if base == "dirichlet":
        owner = _moved(owner, at_least(np.bincount(owner, minlength=clients), min_size), for_split)
    parts = _lists(pool, owner, clients)
    if small := [
        f"client {number}: {len(part)}" for number, part in enumerate(parts) if len(part) < min_size
    ]:
        raise DataError(
            f"{rule!r} leaves clients with fewer than {min_size} images:",
            problems=small,
            fix="another seed, fewer clients or a smaller least size",
        )
    return Partition(rule, seed, parts, held_out, left_out)


def label_counts(
    labels: NDArray[np.integer], clients: Sequence[Indices], num_classes: int
) -> Indices:
    """How many images of each class each client holds: (K, C)."""
    rows = [np.bincount(labels[part], minlength=num_classes) for part in clients]
    return np.array(rows, np.int64).reshape(len(clients), num_classes)


def _parse(rule: str) -> tuple[str, float, float | None]:
    """Name, its number (0 where it has none) and the sigma of the sizes."""
    text, plus, top = rule.partition("+")
    base, colon, number = text.partition(":")
    if base not in RULES:
        raise _bad_rule(rule, f"there is no rule {base!r}")
    value, sigma = 0.0, None
    if ":" not in RULES[base]:
        if colon:
            raise _bad_rule(rule, f"{base} takes no number")
    elif base in ("classes", "disjoint"):
        if not number.isdecimal() or int(number) < 1:
            raise _bad_rule(rule, f"{base} needs a whole number of classes, at least 1")
        value = float(int(number))
    else:
        value = _number(number)
        if not 0 < value < math.inf:
            raise _bad_rule(rule, f"{base} needs a concentration above 0")
    if plus:
        name, _, number = top.partition(":")
        sigma = _number(number)
        if name != "lognormal" or not 0 <= sigma <= 10:
            raise _bad_rule(rule, f"after + comes lognormal:S with S from 0 to 10, not {top!r}")
    return base, value, sigma


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _bad_rule(rule: str, problem: str) -> DataError:
    examples = ", ".join(RULES.values())
    return DataError(
        f"The partition rule {rule!r} cannot be understood:",
        problems=[problem],
        fix=f"for example {examples}, each with or without +lognormal:0.5",
    )


def _check(
    labels: Indices,
    clients: int,
    seed: int,
    hold_out: float,
    min_size: int,
    domains: NDArray[np.integer] | None,
    leave_out: int | None,
    *,
    needs_domains: bool,
) -> None:
    problems = []
    if labels.ndim != 1 or not len(labels):
        problems.append(f"labels of shape {labels.shape}: nothing to deal")
    elif labels.min() < 0:
        problems.append("negative labels")
    if clients < 1:
        problems.append(f"clients = {clients}: at least 1")
    if seed < 0:
        problems.append(f"seed = {seed}: not below 0")
    if not 0 <= hold_out < 1:
        problems.append(f"hold-out = {hold_out}: a fraction from 0 to below 1")
    if min_size < 0:
        problems.append(f"least size = {min_size}: not below 0")
    if domains is None:
        if needs_domains or leave_out is not None:
            problems.append("the data have no domains (pacs and officehome do)")
    elif domains.shape != labels.shape:
        problems.append(f"{len(labels)} labels but domains of shape {domains.shape}")
    elif leave_out is not None and not (domains == leave_out).any():
        problems.append(f"domain {leave_out} to leave out: it does not occur")
    if problems:
        raise DataError("These data cannot be dealt like that:", problems=problems)


def _stratified(labels: Indices, fraction: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """A mask with the same rounded fraction of every class."""
    chosen = np.zeros(len(labels), np.bool_)
    if fraction > 0:
        order = _by_group(labels, rng)
        counts = np.bincount(labels)
        rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen[order] = rank < np.repeat(np.rint(counts * fraction), counts)
    return chosen


def _by_group(groups: Indices, rng: np.random.Generator) -> Indices:
    """Positions ordered by group, in random order within each."""
    shuffled = rng.permutation(len(groups))
    small = (
        np.uint16 if len(groups) and groups.max() < 1 << 16 else np.int64
    )  # numpy sorts 16 bits by radix
    return shuffled[np.argsort(groups[shuffled].astype(small), kind="stable")]


def _deal(groups: Indices, table: Indices, rng: np.random.Generator) -> Indices:
    """The owner of every image: table[g, k] random images of group g go to client k; -1 where a
    row sums to less.
    """
    given = np.column_stack([table, np.bincount(groups, minlength=len(table)) - table.sum(1)])
    columns = np.append(np.arange(table.shape[1]), -1)
    owner = np.empty(len(groups), np.int64)
    owner[_by_group(groups, rng)] = np.repeat(np.tile(columns, len(table)), given.ravel())
    return owner


def _lists(pool: Indices, owner: Indices, clients: int) -> tuple[Indices, ...]:
    order = np.argsort(owner, kind="stable")  # stable: each client's indices stay sorted
    ends = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(pool[order[start:end]] for start, end in pairwise(ends))


def _moved(owner: Indices, sizes: Indices, rng: np.random.Generator) -> Indices:
    """Owners with the given client sizes: random images of those who hold too many go to those
    who hold too few.
    """
    held = np.bincount(owner, minlength=len(sizes))
    if (held == sizes).all():
        return owner
    order = _by_group(owner, rng)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(held) - held, held)
    free = order[rank >= np.repeat(np.minimum(held, sizes), held)]
    moved = owner.copy()
    moved[rng.permutation(free)] = np.repeat(np.arange(len(sizes)), np.maximum(sizes - held, 0))
    return moved
