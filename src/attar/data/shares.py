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
WINDOW_REDRAWS = 10_000  # the same, of ``deal_windows``
WINDOW_GROUP = 10  # clients that ``deal_windows`` serves at a time


def _apportion(weights: Floats, totals: Indices) -> Indices:
    """Each row's total in whole numbers close to the row's weights; a row of zeros gets nothing."""
    reached = np.cumsum(weights, axis=1)
    whole = np.where(reached[:, -1:] > 0, reached[:, -1:], 1.0)
    ends: Indices = np.rint(reached / whole * totals[:, None]).astype(np.int64)
    ends[:, 1:] -= ends[:, :-1].copy()
    return ends


def divide(weights: Floats, total: int) -> Indices:
    """Divide a total into whole numbers close to weights.

    Args:
        weights: (K,), not negative.
        total: what to divide.

    Returns:
        (K,), summing to ``total``.
    """
    sizes: Indices = _apportion(weights[None, :], np.array([total]))[0]
    return sizes


def raise_to(sizes: Indices, least: int) -> Indices:
    """Raise small sizes to a least size, and lower the largest to a common level.

    Args:
        sizes: (K,).
        least: what none may be below.

    Returns:
        (K,) with the same sum.
    """
    lack = int(np.maximum(least - sizes, 0).sum())
    if not lack:
        return sizes
    low = least  # bisects for the highest level that frees enough
    high = int(sizes.max())
    while low < high:
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= lack:
            low = level
        else:
            high = level - 1
    lowered = np.maximum(np.minimum(sizes, low), least)
    spare = int(sizes.sum() - lowered.sum())  # the level freed a little more than needed
    lowered[np.flatnonzero(sizes > low)[:spare]] += 1
    return lowered


def split_dirichlet(
    totals: Indices, alpha: float, weights: Floats, least: int, rng: np.random.Generator
) -> Indices:
    """Divide each class over the clients by Dir(alpha), as NIID-Bench.

    A client that holds its share of the images gets no more.

    Args:
        totals: images of each class, (C,).
        alpha: concentration.
        weights: each client's share of all images, (K,).
        least: images that each client should hold: redrawn up to ``REDRAWS`` times for it.
        rng: draws.

    Returns:
        Images of each class for each client, (C, K).
    """
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
    # In random order, so that no class is always the last one, which fills what is left.
    for row in rng.permutation(len(totals)):
        share = np.where(held < capacity, np.nan_to_num(shares[row]), 0.0)
        # Every client with a share is full, or alpha is too small for floats.
        if not share.sum() > 0:
            chosen = favourite[row]
            open_clients = np.flatnonzero(held < capacity)
            if len(open_clients):
                chosen = open_clients[chosen % len(open_clients)]
            share[chosen] = 1.0
        table[row] = divide(share, int(totals[row]))
        held += table[row]
    return table


def recut(table: Indices, sizes: Indices) -> Indices:
    """Line up the clients' images, by class within each client, and cut the line into new pieces.

    Args:
        table: images of each class for each client, (C, K).
        sizes: of the new pieces, with the same sum.

    Returns:
        Images of each class in each piece, (C, pieces).
    """
    classes, clients = table.shape
    groups = np.repeat(np.tile(np.arange(classes), clients), table.T.ravel())
    owners = np.repeat(np.arange(len(sizes)), sizes)
    cells = np.bincount(groups * len(sizes) + owners, minlength=classes * len(sizes))
    return cells.reshape(classes, len(sizes))


def deal_windows(groups: Indices, alpha: float, sizes: Indices, seed: int) -> Indices:
    """Divide images as FedMHO's code does, draw by draw: its seed gives its very split.

    All draws come from one legacy generator of numpy, whose numbers never change. The images are
    shuffled. Class after class, one Dir(alpha) of the clients is drawn; a client that holds its
    share of the images gets no more; cumulated shares are rounded down. This is repeated until
    every client holds at least half its share. Then the clients' images stand in a row, client by
    client and class by class, and the row is cut into pieces of the given sizes.

    More than ten clients are served ten at a time, each ten with its part of the shuffled images.

    Args:
        groups: class of each image, without gaps, (N,).
        alpha: concentration.
        sizes: of the pieces, (K,).
        seed: of the legacy generator.

    Returns:
        The owner of every image, (N,).

    Raises:
        DataError: if no draw gives every client half its share, or the seed is too large.
    """
    if seed >= 1 << 32:
        raise DataError(f"seed = {seed}: dirichlet-windows takes seeds below {1 << 32}.")
    rng = np.random.RandomState(seed)
    images, clients = len(groups), len(sizes)
    rows = rng.permutation(images)
    line = []
    for first in range(0, clients, WINDOW_GROUP):
        start = first // WINDOW_GROUP * int(WINDOW_GROUP / clients * images)
        last = first + WINDOW_GROUP >= clients
        part = rows[start : None if last else start + int(WINDOW_GROUP / clients * images)]
        by_class = part[np.argsort(groups[part], kind="stable")]
        totals = np.bincount(groups[part], minlength=int(groups.max()) + 1)
        table = _draw_until_half_full(totals, alpha, min(clients - first, WINDOW_GROUP), rng)
        owners = np.repeat(np.tile(np.arange(table.shape[1]), len(table)), table.ravel())
        line.append(by_class[np.argsort(owners, kind="stable")])
    owner = np.empty(images, np.int64)
    owner[np.concatenate(line)] = np.repeat(np.arange(clients), sizes)
    return owner


def _draw_until_half_full(
    totals: Indices, alpha: float, clients: int, rng: np.random.RandomState
) -> Indices:
    """Images of each class for each client, (C, K), of which each has at least half a share."""
    share = totals.sum() / clients
    for _ in range(WINDOW_REDRAWS):
        table = np.zeros((len(totals), clients), np.int64)
        for row, total in enumerate(totals):
            weights = np.nan_to_num(rng.dirichlet(np.repeat(alpha, clients)))
            weights *= table.sum(0) < share
            if not weights.sum() > 0:  # every client with a share is full
                break
            ends = (np.cumsum(weights / weights.sum()) * total).astype(np.int64)
            ends[-1] = total
            table[row] = np.diff(ends, prepend=0)
        if table.sum() == totals.sum() and table.sum(0).min() >= int(0.5 * share):
            return table
    raise DataError(
        f"dirichlet-windows:{alpha:g}: none of {WINDOW_REDRAWS:,} draws gives each of {clients} "
        "clients half its share.",
        fix="use a larger concentration, or dirichlet-equal, which takes its last draw",
    )


def split_dirichlet_client(
    totals: Indices, alpha: float, sizes: Indices, rng: np.random.Generator
) -> Indices:
    """Divide images one by one, in random order of clients, by each client's own Dir(alpha).

    Each turn draws a class; one that is exhausted is drawn again. All draws are made at once; then,
    class by class as they run out, only the draws that come too late are made again.

    Args:
        totals: images of each class, (C,).
        alpha: concentration.
        sizes: images of each client, (K,).
        rng: draws.

    Returns:
        Images of each class for each client, (C, K).
    """
    classes = len(totals)
    clients = len(sizes)
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
        # The first turn that finds its class exhausted, of each such class.
        too_late = order[(np.cumsum(asked) - asked)[over] + totals[over]]
        first = int(too_late.argmin())
        is_open[over[first]] = False
        again = np.flatnonzero(drawn[too_late[first] :] == over[first]) + too_late[first]
        drawn[again] = _draw(prior, is_open, turns[again], rng)
    cells = np.bincount(drawn * clients + turns, minlength=classes * clients)
    return cells.reshape(classes, clients)


def _draw(
    prior: Floats, is_open: NDArray[np.bool_], turns: Indices, rng: np.random.Generator
) -> Indices:
    """A class for each turn by its client's prior over the open classes.

    Evenly among them, if the prior is zero for all.
    """
    chances = np.where(is_open, prior, 0.0)
    chances[chances.sum(1) <= 0] = is_open
    reached = np.cumsum(chances, axis=1)
    # One rising staircase for all clients, in which every draw is found by one search.
    steps = reached / reached[:, -1:] + np.arange(len(prior))[:, None]
    marks = turns + rng.random(len(turns)) * (1 - 1e-9)
    drawn: Indices = np.searchsorted(steps.ravel(), marks, side="right") - turns * prior.shape[1]
    return drawn


def assign_classes(
    totals: Indices, each: int, weights: Floats, rng: np.random.Generator
) -> Indices:
    """Give each client some classes, and divide each class among the clients that have it.

    First every class goes to one client in turn (as far as there are places), then random others
    until each client has enough.

    Args:
        totals: images of each class, (C,).
        each: classes of each client.
        weights: by which a class is divided, (K,).
        rng: draws.

    Returns:
        Images of each class for each client, (C, K).

    Raises:
        DataError: if there are fewer classes than a client needs.
    """
    classes = len(totals)
    clients = len(weights)
    if each > classes:
        raise DataError(f"classes:{each} asks for more classes than there are ({classes}).")
    dealt = rng.permutation(classes)[: clients * each]
    keys = rng.random((clients, classes))
    keys[rng.permutation(clients)[np.arange(len(dealt)) % clients], dealt] = -1.0
    holds = np.zeros((clients, classes), np.bool_)
    np.put_along_axis(holds, np.argsort(keys, axis=1)[:, :each], True, axis=1)
    return _apportion(holds.T * weights, totals)


def assign_disjoint_classes(
    totals: Indices, each: int, clients: int, rng: np.random.Generator
) -> Indices:
    """Give each client some classes that no other client has; classes left over go to nobody.

    Args:
        totals: images of each class, (C,).
        each: classes of each client.
        clients: K.
        rng: draws.

    Returns:
        Images of each class for each client, (C, K).

    Raises:
        DataError: if there are too few classes.
    """
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


def assign_domains(totals: Indices, weights: Floats) -> Indices:
    """Give each client one domain, and divide each domain among the clients that have it.

    Args:
        totals: images of each domain, (D,).
        weights: by which a domain is divided, (K,).

    Returns:
        Images of each domain for each client, (D, K).

    Raises:
        DataError: if the number of clients is no multiple of the domains.
    """
    domains = len(totals)
    clients = len(weights)
    if clients % domains:
        allowed = "as many clients, or to a multiple of that"
        raise DataError(
            f"'domain' deals {domains} domains to {allowed}; not to {clients}.",
            fix=f"for example {domains} or {2 * domains} clients",
        )
    holds = np.arange(clients) % domains == np.arange(domains)[:, None]
    return _apportion(holds * weights, totals)
