"""Who holds which images: labels and a seed -> lists of indices.

    iid                    images shuffled and divided equally
    dirichlet:A            each class over the clients by Dir(A); a client that holds its share N/K
                           gets no more (NIID-Bench)
    dirichlet-equal:A      the clients' images of dirichlet:A, by class, end to end, and cut into
                           equal pieces (FedMHO's code)
    dirichlet-windows:A    the same, draw by draw as FedMHO's code: with its seed, its very split
    dirichlet-client:A     each client over the classes by Dir(A), clients of equal size (FedDyn,
                           Co-Boosting)
    classes:C              each client C random classes, each class split equally among its holders
    disjoint:C             each client C classes of its own; classes left over are held by nobody
                           (FedHydra's 2c/c)
    domain                 each client one domain; with m times as many clients, each domain is
                           divided among m of them
    … +lognormal:S         on top of any of them: client sizes in proportion to lognormal(0, S)

Complete: every image of a class that some client holds goes to exactly one client. So
``lognormal`` sets sizes where a rule leaves them free (``iid``, ``dirichlet-equal``,
``dirichlet-windows``, ``dirichlet-client``), and weights the shares among the holders of a class
(or domain) otherwise; where a class has a single holder there is nothing to weight.

A smallest size: ``iid`` and ``dirichlet-client`` raise the small sizes and lower the large ones.
``dirichlet`` is redrawn up to ``shares.REDRAWS`` times; if the last draw is still too uneven,
images chosen at random move from the largest clients to the small ones. ``dirichlet-equal`` is
redrawn likewise, before it is cut, ``dirichlet-windows`` until each client has half a share before
it is cut, whatever the smallest size. The other rules cannot give a client images of other classes,
and raise an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attar.data.shares import (
    Indices,
    assign_classes,
    assign_disjoint_classes,
    assign_domains,
    deal_windows,
    divide,
    raise_to,
    recut,
    split_dirichlet,
    split_dirichlet_client,
)
from attar.errors import DataError

RULES = {
    "iid": "iid",
    "dirichlet": "dirichlet:0.1",
    "dirichlet-equal": "dirichlet-equal:0.1",
    "dirichlet-windows": "dirichlet-windows:0.1",
    "dirichlet-client": "dirichlet-client:0.1",
    "classes": "classes:2",
    "disjoint": "disjoint:2",
    "domain": "domain",
}


def _no_indices() -> Indices:
    return np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices into the training part of a data set, each list sorted.

    Attributes:
        rule: by which they were made.
        seed: of the draws.
        clients: one list for each.
        held_out: set aside for the server before the split.
        left_out: the domain that no client sees.
    """

    rule: str
    seed: int
    clients: tuple[Indices, ...]
    held_out: Indices = field(default_factory=_no_indices)
    left_out: Indices = field(default_factory=_no_indices)


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
    """Divide images among clients.

    Args:
        labels: of the images, (N,).
        rule: one of ``RULES`` with its number, with or without ``+lognormal:S``.
        clients: how many.
        seed: of the draws.
        hold_out: fraction of each class to set aside for the server, from 0 to below 1.
        min_size: images that each client holds at least.
        domains: of the images, (N,); None for data without domains.
        leave_out: the number of a domain that no client gets.

    Returns:
        The indices of each client.

    Raises:
        DataError: if the rule is unknown, the data do not allow it, or a client would hold too few.
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
    streams = np.random.SeedSequence(seed).spawn(3)
    for_hold_out, for_sizes, for_split = (np.random.default_rng(stream) for stream in streams)

    pool = np.arange(len(classes))
    left_out = _no_indices()
    if leave_out is not None and domains is not None:
        left_out = pool[domains == leave_out]
        pool = pool[domains != leave_out]
    aside = _choose_fraction(classes[pool], hold_out, for_hold_out)
    held_out = pool[aside]
    pool = pool[~aside]
    if len(pool) < max(1, clients * min_size):
        wanted = f"{clients} clients with at least {min_size} each"
        raise DataError(f"{len(pool)} images are too few for {wanted}.")

    weights = np.full(clients, 1.0 / clients)
    if sigma is not None:
        weights = for_sizes.lognormal(0.0, sigma, clients)
        weights /= weights.sum()
    # The classes that occur, numbered without gaps.
    _, groups = np.unique(classes[pool], return_inverse=True)
    sizes = raise_to(divide(weights, len(pool)), min_size)
    if base == "dirichlet-windows":
        owner = deal_windows(groups, value, sizes, seed)
    else:
        if base == "iid":
            groups = np.zeros_like(groups)
        elif domains is not None and base == "domain":
            _, groups = np.unique(domains[pool], return_inverse=True)
        totals = np.bincount(groups)
        table = _tabulate(base, value, totals, weights, sizes, min_size, for_split)
        owner = _deal(groups, table, for_split)
    if base == "dirichlet":
        raised = raise_to(np.bincount(owner, minlength=clients), min_size)
        owner = _move(owner, raised, for_split)
    parts = _split_by_owner(pool, owner, clients)
    small = [number for number, part in enumerate(parts) if len(part) < min_size]
    if small:
        raise DataError(
            f"{rule!r} leaves clients with fewer than {min_size} images:",
            problems=[f"client {number}: {len(parts[number])}" for number in small],
            fix="use another seed, fewer clients or a smaller least size",
        )
    return Partition(rule, seed, parts, held_out, left_out)


def label_counts(
    labels: NDArray[np.integer], clients: Sequence[Indices], num_classes: int
) -> Indices:
    """Count the images of each class that each client holds.

    Args:
        labels: of all images, (N,).
        clients: the indices of each client.
        num_classes: C.

    Returns:
        (K, C).
    """
    rows = [np.bincount(labels[part], minlength=num_classes) for part in clients]
    return np.array(rows, np.int64).reshape(len(clients), num_classes)


def _tabulate(
    base: str,
    value: float,
    totals: Indices,
    weights: NDArray[np.float64],
    sizes: Indices,
    min_size: int,
    rng: np.random.Generator,
) -> Indices:
    """How many images of each group go to each client: a row for each group."""
    clients = len(weights)
    if base == "iid":
        return sizes[None, :]
    if base == "dirichlet":
        return split_dirichlet(totals, value, weights, min_size, rng)
    if base == "dirichlet-equal":
        even = np.full(clients, 1.0 / clients)
        return recut(split_dirichlet(totals, value, even, min_size, rng), sizes)
    if base == "dirichlet-client":
        return split_dirichlet_client(totals, value, sizes, rng)
    if base == "classes":
        return assign_classes(totals, int(value), weights, rng)
    if base == "disjoint":
        return assign_disjoint_classes(totals, int(value), clients, rng)
    return assign_domains(totals, weights)


def _parse(rule: str) -> tuple[str, float, float | None]:
    """Name of the rule, its number (0 if it has none) and the sigma of the sizes."""
    text, plus, top = rule.partition("+")
    base, colon, number = text.partition(":")
    if base not in RULES:
        close = get_close_matches(base, RULES, 1)
        meant = f": did you mean {close[0]}?" if close else ""
        raise _bad_rule(rule, f"there is no rule {base!r}{meant}")
    value = 0.0
    sigma = None
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


def _choose_fraction(
    labels: Indices, fraction: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
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
    # numpy sorts 16 bits by radix.
    small = np.uint16 if len(groups) and groups.max() < 1 << 16 else np.int64
    return shuffled[np.argsort(groups[shuffled].astype(small), kind="stable")]


def _deal(groups: Indices, table: Indices, rng: np.random.Generator) -> Indices:
    """The owner of every image: table[g, k] random images of group g go to client k.

    -1 for what is left where a row sums to less.
    """
    left = np.bincount(groups, minlength=len(table)) - table.sum(1)
    counts = np.column_stack([table, left])
    columns = np.append(np.arange(table.shape[1]), -1)
    owner = np.empty(len(groups), np.int64)
    owner[_by_group(groups, rng)] = np.repeat(np.tile(columns, len(table)), counts.ravel())
    return owner


def _split_by_owner(pool: Indices, owner: Indices, clients: int) -> tuple[Indices, ...]:
    order = np.argsort(owner, kind="stable")  # stable: each client's indices stay sorted
    ends = np.searchsorted(owner[order], np.arange(clients + 1))
    return tuple(pool[order[start:end]] for start, end in pairwise(ends))


def _move(owner: Indices, sizes: Indices, rng: np.random.Generator) -> Indices:
    """Owners with the given client sizes; random images move from large clients to small ones."""
    held = np.bincount(owner, minlength=len(sizes))
    if (held == sizes).all():
        return owner
    order = _by_group(owner, rng)
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(held) - held, held)
    free = order[rank >= np.repeat(np.minimum(held, sizes), held)]
    moved = owner.copy()
    moved[rng.permutation(free)] = np.repeat(np.arange(len(sizes)), np.maximum(sizes - held, 0))
    return moved
