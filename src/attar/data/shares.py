"""How many images of each group go to each client: the tables behind the rules of ``partition``.

Every rule ends in a table of whole numbers, a row for each group (class or domain) and a column
for each client.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attar.errors import DataError

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

REDRAWS = 20  # of a Dirichlet split in which some client holds too little


def _apportion(weights: Floats, totals: Indices) -> Indices:
    """Each row's total in whole numbers close to the row's weights (a row of zeros gets nothing)."""
    reached = np.cumsum(weights, axis=1)
    whole = np.where(reached[:, -1:] > 0, reached[:, -1:], 1.0)
    ends: Indices = np.rint(reached / whole * totals[:, None]).astype(np.int64)
    ends[:, 1:] -= ends[:, :-1].copy()
    return ends


def sizes_by(weights: Floats, total: int) -> Indices:
    sizes: Indices = _apportion(weights[None, :], np.array([total]))[0]
    return sizes


def at_least(sizes: Indices, least: int) -> Indices:
    """Sizes with the same sum, none below ``least``: the largest are lowered to a common level."""
    lack = int(np.maximum(least - sizes, 0).sum())
    if not lack:
        return sizes
    low, high = least, int(sizes.max())  # the highest level that frees enough
    while low < high:
        level = (low + high + 1) // 2
        low, high = (
            (level, high) if np.maximum(sizes - level, 0).sum() >= lack else (low, level - 1)
        )
    lowered = np.maximum(np.minimum(sizes, low), least)
    spare = int(sizes.sum() - lowered.sum())  # the level freed a little more than needed
    lowered[np.flatnonzero(sizes > low)[:spare]] += 1
    return lowered


def dirichlet(
    totals: Indices, alpha: float, weights: Floats, least: int, rng: np.random.Generator
) -> Indices:
    for _ in range(REDRAWS):
        table = _dirichlet_once(totals, alpha, weights, rng)
        if table.sum(0).min() >= least:
            break
    return table


def _dirichlet_once(
    totals: Indices, alpha: float, weights: Floats, rng: np.random.Generator
) -> Indices:
    clients = len(weights)
    shares = rng.dirichlet(np.full(clients, alpha), len(totals)) * weights
    favourite = rng.integers(clients, size=len(totals))
    table = np.zeros((len(totals), clients), np.int64)
    held = np.zeros(clients, np.int64)
    capacity = weights * totals.sum()
    for row in rng.permutation(
        len(totals)
    ):  # no class is always the last one, which fills what is left
        share = np.where(held < capacity, np.nan_to_num(shares[row]), 0.0)
        if (
            not share.sum() > 0
        ):  # every client this class fell to is full, or alpha is too small for floats
            open_clients = np.flatnonzero(held < capacity)
            share[
                open_clients[favourite[row] % len(open_clients)]
                if len(open_clients)
                else favourite[row]
            ] = 1.0
        table[row] = sizes_by(share, int(totals[row]))
        held += table[row]
    return table


def cut_anew(table: Indices, sizes: Indices) -> Indices:
    """The clients' images in one row, client by client and class by class within each, cut into
    pieces of ``sizes``.
    """
    classes, clients = table.shape
    groups = np.repeat(np.tile(np.arange(classes), clients), table.T.ravel())
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return np.bincount(groups * len(sizes) + owners, minlength=classes * len(sizes)).reshape(
        classes, len(sizes)
    )


def dirichlet_client(
    totals: Indices, alpha: float, sizes: Indices, rng: np.random.Generator
) -> Indices:
    """Images are dealt one by one in random order of clients; each draws its class, again where
    that is exhausted.

    All draws are made at once. Then, class by class as they run out, only the draws that come
    too late are made again.
    """
    classes, clients = len(totals), len(sizes)
    prior = np.nan_to_num(rng.dirichlet(np.full(classes, alpha), clients))
    turns = rng.permutation(np.repeat(np.arange(clients), sizes))  # whose turn it is
    is_open = np.ones(classes, np.bool_)
    drawn = _draw(prior, is_open, turns, rng)
    small = np.uint16 if classes < 1 << 16 else np.int64
    for _ in range(classes):
        order = np.argsort(drawn.astype(small), kind="stable")
        asked = np.bincount(drawn, minlength=classes)
        over = np.flatnonzero(asked > totals)
        if not len(over):
            break
        too_late = order[
            (np.cumsum(asked) - asked)[over] + totals[over]
        ]  # the first turn that finds its class empty
        first = int(too_late.argmin())
        is_open[over[first]] = False
        again = np.flatnonzero(drawn[too_late[first] :] == over[first]) + too_late[first]
        drawn[again] = _draw(prior, is_open, turns[again], rng)
    return np.bincount(drawn * clients + turns, minlength=classes * clients).reshape(
        classes, clients
    )


def _draw(
    prior: Floats, is_open: NDArray[np.bool_], turns: Indices, rng: np.random.Generator
) -> Indices:
    """A class for each turn by its client's prior over the open classes (evenly, where the prior
    has none of them).
    """
    chances = np.where(is_open, prior, 0.0)
    chances[chances.sum(1) <= 0] = is_open
    reached = np.cumsum(chances, axis=1)
    steps = (
        reached / reached[:, -1:] + np.arange(len(prior))[:, None]
    )  # one rising staircase for all clients
    marks = turns + rng.random(len(turns)) * (1 - 1e-9)
    found: Indices = np.searchsorted(steps.ravel(), marks, side="right") - turns * prior.shape[1]
    return found


def random_classes(
    totals: Indices, each: int, weights: Floats, rng: np.random.Generator
) -> Indices:
    """First every class (as far as there are places) to one client in turn, then random others
    up to ``each``.
    """
    classes, clients = len(totals), len(weights)
    if each > classes:
        raise DataError(f"classes:{each} asks for more classes than there are ({classes}).")
    dealt = rng.permutation(classes)[: clients * each]
    keys = rng.random((clients, classes))
    keys[rng.permutation(clients)[np.arange(len(dealt)) % clients], dealt] = -1.0
    holds = np.zeros((clients, classes), np.bool_)
    np.put_along_axis(holds, np.argsort(keys, axis=1)[:, :each], True, axis=1)
    return _apportion(holds.T * weights, totals)


def disjoint_classes(totals: Indices, each: int, clients: int, rng: np.random.Generator) -> Indices:
    classes = len(totals)
    if clients * each > classes:
        raise DataError(
            f"disjoint:{each} needs {clients} x {each} classes, there are {classes}.",
            fix=f"at most {classes // each} clients, or classes:{each}, where classes are shared",
        )
    table = np.zeros((classes, clients), np.int64)
    chosen = rng.permutation(classes)[: clients * each]
    table[chosen, np.repeat(np.arange(clients), each)] = totals[chosen]
    return table


def whole_domains(totals: Indices, weights: Floats) -> Indices:
    domains, clients = len(totals), len(weights)
    if clients % domains:
        raise DataError(
            f"'domain' deals {domains} domains to as many clients, or to a multiple of that; not to {clients}.",
            fix=f"for example {domains} or {2 * domains} clients",
        )
    holds = np.arange(clients) % domains == np.arange(domains)[:, None]
    return _apportion(holds * weights, totals)
