"""Partitions: disjoint, complete, deterministic, always ending; and the file they travel in."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.data import Partition, label_counts, partition, read_partition, write_partition
from attar.data.shares import deal_windows, raise_to, recut, split_dirichlet_client
from attar.errors import DataError

LABELS = np.repeat(np.arange(10), 60)
labels_drawn = st.builds(
    lambda seed, classes, images: np.random.default_rng(seed).integers(0, classes, images),
    st.integers(0, 10_000),
    st.integers(1, 12),
    st.integers(1, 400),
)
complete_rules = st.one_of(
    st.sampled_from(
        [
            "iid",
            "dirichlet:0.01",
            "dirichlet:0.5",
            "dirichlet-client:0.01",
            "dirichlet-client:1",
            "classes:1",
        ]
    ),
    st.sampled_from(
        ["iid+lognormal:1", "dirichlet:0.1+lognormal:2", "dirichlet-client:0.1+lognormal:0.5"]
    ),
    st.sampled_from(
        ["dirichlet-equal:0.01", "dirichlet-equal:0.5", "dirichlet-equal:0.1+lognormal:1"]
    ),
    st.just("classes:1+lognormal:1"),
)


def same(left: Partition, right: Partition) -> bool:
    lists = [(*p.clients, p.held_out, p.left_out) for p in (left, right)]
    return len(lists[0]) == len(lists[1]) and all(
        np.array_equal(a, b) for a, b in zip(*lists, strict=True)
    )


def everything(dealt: Partition) -> list[int]:
    return np.sort(np.concatenate([*dealt.clients, dealt.held_out, dealt.left_out])).tolist()


@given(
    labels_drawn,
    complete_rules,
    st.integers(1, 30),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.2, 0.5]),
)
@settings(max_examples=150)
def test_partition_is_disjoint_complete_deterministic(
    labels: np.ndarray, rule: str, clients: int, seed: int, hold_out: float
) -> None:
    dealt = partition(labels, rule, clients, seed, hold_out=hold_out)
    assert len(dealt.clients) == clients
    assert all((np.diff(part) > 0).all() for part in dealt.clients)
    given_out = everything(dealt)
    assert len(given_out) == len(set(given_out))
    held = {int(label) for part in dealt.clients for label in labels[part]}
    expected = [
        index
        for index, label in enumerate(labels)
        if label in held or index in set(dealt.held_out.tolist())
    ]
    assert given_out == expected
    if not rule.startswith("classes") or clients >= len(np.unique(labels)):
        assert given_out == list(range(len(labels)))
    assert same(dealt, partition(labels, rule, clients, seed, hold_out=hold_out))


@given(
    labels_drawn,
    st.integers(0, 99),
    st.sampled_from(
        ["dirichlet:0.01", "dirichlet-equal:0.01", "dirichlet-client:0.01", "classes:1"]
    ),
)
@settings(max_examples=40)
def test_partition_ends_for_tiny_alpha_and_200_clients(
    labels: np.ndarray, seed: int, rule: str
) -> None:
    assert everything(partition(labels, rule, 200, seed)) == list(range(len(labels)))


@pytest.mark.parametrize("alpha", ["1e-300", "1e-8", "1e9"])
@pytest.mark.parametrize("rule", ["dirichlet", "dirichlet-equal", "dirichlet-client"])
def test_partition_extreme_alphas(rule: str, alpha: str) -> None:
    assert everything(partition(LABELS, f"{rule}:{alpha}", 7)) == list(range(600))


@given(
    st.sampled_from(
        [
            "iid+lognormal:2",
            "dirichlet:0.01",
            "dirichlet:0.1+lognormal:1",
            "dirichlet-equal:0.01",
            "dirichlet-equal:1+lognormal:2",
            "dirichlet-client:0.1+lognormal:2",
        ]
    ),
    st.integers(1, 60),
    st.integers(0, 10),
    st.integers(0, 50),
)
@settings(max_examples=100)
def test_partition_honours_min_size(rule: str, clients: int, least: int, seed: int) -> None:
    dealt = partition(LABELS, rule, clients, seed, min_size=least)
    assert min(map(len, dealt.clients)) >= least
    assert everything(dealt) == list(range(600))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.integers(0, 20))
def test_raise_to_keeps_the_sum(sizes: list[int], least: int) -> None:
    if sum(sizes) < least * len(sizes):
        return
    before = np.array(sizes)
    after = raise_to(before, least)
    assert after.sum() == before.sum()
    assert after.min() >= min(least, before.min() if before.min() >= least else least)
    assert after.max() <= before.max()
    assert np.array_equal(before, np.array(sizes))


def test_partition_refuses_too_large_min_size() -> None:
    with pytest.raises(DataError, match="too few"):
        partition(LABELS, "dirichlet:1", 10, min_size=61)
    with pytest.raises(DataError, match="0 images are too few"):
        partition(np.arange(3), "iid", 2, hold_out=0.9)
    with pytest.raises(DataError, match="fewer than 100"):
        partition(LABELS, "disjoint:1", 6, min_size=100)


def test_partition_seeds_differ() -> None:
    for rule in (
        "iid",
        "dirichlet:0.5",
        "dirichlet-equal:0.5",
        "dirichlet-client:0.5",
        "classes:2",
        "disjoint:2",
    ):
        assert not same(partition(LABELS, rule, 5, 0), partition(LABELS, rule, 5, 1))


def test_partition_iid_sizes_are_equal() -> None:
    assert {len(part) for part in partition(np.zeros(103, int), "iid", 10).clients} == {10, 11}


def test_partition_dirichlet_is_skewed_by_alpha() -> None:
    labels = np.repeat(np.arange(10), 1000)

    def largest_share(rule: str) -> float:
        counts = label_counts(labels, partition(labels, rule, 10, 3).clients, 10)
        return float((counts.max(0) / 1000).mean())

    assert largest_share("dirichlet:0.05") > 0.6
    assert largest_share("dirichlet:1000") < 0.15


def test_recut_by_hand() -> None:
    """Two clients hold (3 a, 1 b) and (1 a, 3 b): in one row aaab abbb. Cut 5 and 3: aaaba, bbb;
    cut in halves nothing changes.
    """
    table = np.array([[3, 1], [1, 3]])  # a row for each class
    assert recut(table, np.array([5, 3])).tolist() == [[4, 0], [1, 3]]
    assert recut(table, np.array([4, 4])).tolist() == table.tolist()


def test_partition_dirichlet_equal_has_equal_sizes() -> None:
    """The clients' shares of the classes, in the order of the row, are those of dirichlet: only
    the cuts lie elsewhere.
    """
    labels = np.repeat(np.arange(10), 1000)
    drawn, cut = (
        label_counts(labels, partition(labels, f"{rule}:0.1", 10, 5, min_size=500).clients, 10)
        for rule in ("dirichlet", "dirichlet-equal")
    )
    assert set(cut.sum(1)) == {1000}
    assert set(drawn.sum(1)) != {1000}
    row, again = (np.repeat(np.tile(np.arange(10), 10), table.ravel()) for table in (drawn, cut))
    ends = np.arange(1000, 10_000, 1000)
    for own, new in zip(np.split(row, ends), np.split(again, ends), strict=True):
        assert np.array_equal(np.sort(own), np.sort(new))


# Facts about the splits of FedMHO's code: images of each class that the clients 5 to 9 hold.
# seed, alpha, MNIST, Fashion-MNIST
WEAK_OF_FEDMHO = [
    (
        (2023, 0.5),
        [3154, 4558, 3869, 2654, 2255, 3150, 4529, 2192, 2061, 1578],
        [4870, 3340, 3345, 2719, 2764, 3069, 3552, 1429, 3253, 1659],
    ),
    (
        (2023, 0.3),
        [4911, 3732, 3493, 1562, 4954, 2878, 2354, 471, 2186, 3459],
        [4975, 3322, 3517, 1529, 5088, 3185, 2386, 451, 2242, 3305],
    ),
    (
        (2023, 0.1),
        [44, 3869, 1358, 2789, 3647, 3853, 5, 5697, 2847, 5891],
        [5972, 5265, 3759, 271, 2, 2528, 153, 5991, 5983, 76],
    ),
]
MNIST_CLASSES = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize(("draw", "mnist", "fashion"), WEAK_OF_FEDMHO)
def test_partition_dirichlet_windows_is_the_split_of_fedmho(
    draw: tuple[int, float], mnist: list[int], fashion: list[int]
) -> None:
    """The counts depend on the order of the labels only by the numbers of each class."""
    seed, alpha = draw
    for totals, expected in ((MNIST_CLASSES, mnist), ([6000] * 10, fashion)):
        labels = np.repeat(np.arange(10), totals)
        dealt = partition(labels, f"dirichlet-windows:{alpha}", 10, seed)
        assert {len(part) for part in dealt.clients} == {6000}
        assert label_counts(labels, dealt.clients, 10)[5:].sum(0).tolist() == expected


def windows_one_by_one(labels: np.ndarray, alpha: float, clients: int, seed: int) -> list[set[int]]:
    """The slow, obvious twin of ``deal_windows``."""
    rng = np.random.RandomState(seed)
    rows = rng.permutation(len(labels)).tolist()
    line: list[int] = []
    groups = [range(start, min(start + 10, clients)) for start in range(0, clients, 10)]
    for number, group in enumerate(groups):
        step = int(10 / clients * len(rows))
        last = number == len(groups) - 1
        own = rows[number * step :] if last else rows[number * step : (number + 1) * step]
        lists: list[list[int]] = [[] for _ in group]
        while min(map(len, lists)) < int(0.5 * len(own) / len(group)):
            lists = [[] for _ in group]
            for label in range(labels.max() + 1):
                of_class = [row for row in own if labels[row] == label]
                shares = rng.dirichlet([alpha] * len(group))
                shares *= [len(held) < len(own) / len(group) for held in lists]
                ends = [int(end * len(of_class)) for end in (shares / shares.sum()).cumsum()]
                starts, ends[-1] = [0, *ends[:-1]], len(of_class)
                for held, start, end in zip(lists, starts, ends, strict=True):
                    held.extend(of_class[start:end])
        line += [row for held in lists for row in held]
    size = len(labels) // clients
    return [set(line[place : place + size]) for place in range(0, len(line), size)]


@pytest.mark.parametrize("clients", [4, 10, 12, 20])
def test_deal_windows_equals_dealing_one_by_one(clients: int) -> None:
    labels = np.random.default_rng(clients).permutation(np.repeat(np.arange(6), 100))
    for seed in range(8):
        owner = deal_windows(labels, 0.5, np.full(clients, len(labels) // clients), seed)
        found = [set(np.flatnonzero(owner == client).tolist()) for client in range(clients)]
        assert found == windows_one_by_one(labels, 0.5, clients, seed)


def test_deal_windows_that_cannot_be_half_full() -> None:
    with pytest.raises(DataError, match="none of 10,000 draws gives each of 10 clients half"):
        partition(np.zeros(60, np.int64), "dirichlet-windows:0.001", 10)
    with pytest.raises(DataError, match="takes seeds below 4294967296"):
        partition(LABELS, "dirichlet-windows:0.5", 10, 1 << 32)


def test_partition_dirichlet_client_follows_the_prior() -> None:
    labels = np.repeat(np.arange(10), 1000)
    dealt = partition(labels, "dirichlet-client:0.1", 10, 0)
    assert {len(part) for part in dealt.clients} == {1000}
    assert (
        label_counts(labels, dealt.clients, 10).max(1).mean() > 400
    )  # late draws drift from the prior
    even = label_counts(labels, partition(labels, "dirichlet-client:10000", 10, 0).clients, 10)
    assert even.min() > 60
    assert even.max() < 140


def one_by_one(
    totals: np.ndarray, alpha: float, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The slow, obvious twin of ``split_dirichlet_client``."""
    prior = rng.dirichlet(np.full(len(totals), alpha), len(sizes))
    left, table = totals.copy(), np.zeros((len(totals), len(sizes)), np.int64)
    for client in rng.permutation(np.repeat(np.arange(len(sizes)), sizes)):
        chances = np.where(left > 0, prior[client], 0)
        label = rng.choice(len(totals), p=chances / chances.sum())
        left[label] -= 1
        table[label, client] += 1
    return table


def test_split_dirichlet_client_equals_dealing_one_by_one() -> None:
    totals, sizes = np.array([40, 20, 30]), np.array([30, 30, 15, 15])
    fast = np.stack(
        [
            split_dirichlet_client(totals, 0.5, sizes, np.random.default_rng(seed))
            for seed in range(600)
        ]
    )
    slow = np.stack(
        [one_by_one(totals, 0.5, sizes, np.random.default_rng(1000 + seed)) for seed in range(600)]
    )
    for statistic in (
        lambda tables: tables,
        lambda tables: np.sort(tables, axis=1),
        lambda tables: tables**2,
    ):
        left, right = statistic(fast), statistic(slow)
        spread = np.sqrt((left.var(0) + right.var(0)) / 600) + 1e-9
        assert (np.abs(left.mean(0) - right.mean(0)) / spread).max() < 4


@given(st.integers(1, 10), st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=60)
def test_partition_classes_gives_every_class_a_holder(each: int, clients: int, seed: int) -> None:
    counts = label_counts(LABELS, partition(LABELS, f"classes:{each}", clients, seed).clients, 10)
    assert ((counts > 0).sum(1) == each).all()
    assert (counts.sum(0) > 0).sum() == min(10, clients * each)
    for column in counts.T:  # equal shares
        shares = column[column > 0]
        assert not len(shares) or shares.max() - shares.min() <= 1


def test_partition_disjoint_shares_no_class() -> None:
    counts = label_counts(LABELS, partition(LABELS, "disjoint:2", 4, 1).clients, 10)
    assert ((counts > 0).sum(0) <= 1).all()
    assert (counts[counts > 0] == 60).all()
    assert (counts.sum(0) > 0).sum() == 8  # two classes are held by nobody
    with pytest.raises(DataError, match="at most 5 clients"):
        partition(LABELS, "disjoint:2", 6)


def test_partition_lognormal_sizes_spread() -> None:
    for rule in ("iid", "dirichlet-client:1", "classes:5", "domain"):
        domains = np.zeros(600, int)
        plain = [len(part) for part in partition(LABELS, rule, 10, 0, domains=domains).clients]
        skewed = [
            len(part)
            for part in partition(LABELS, f"{rule}+lognormal:1", 10, 0, domains=domains).clients
        ]
        assert np.std(skewed) > np.std(plain) + 10
        assert sum(skewed) == 600


def test_partition_domains() -> None:
    domains = np.tile(np.arange(4), 150)
    dealt = partition(LABELS, "domain", 8, domains=domains)
    assert [set(domains[part].tolist()) for part in dealt.clients] == [{0}, {1}, {2}, {3}] * 2
    assert {len(part) for part in dealt.clients} == {75}
    without = partition(LABELS, "domain", 3, domains=domains, leave_out=1)
    assert [set(domains[part].tolist()) for part in without.clients] == [{0}, {2}, {3}]
    assert np.array_equal(without.left_out, np.flatnonzero(domains == 1))
    assert everything(partition(LABELS, "dirichlet:0.5", 3, domains=domains, leave_out=1)) == list(
        range(600)
    )
    with pytest.raises(DataError, match="4 or 8 clients"):
        partition(LABELS, "domain", 5, domains=domains)
    with pytest.raises(DataError, match="no domains"):
        partition(LABELS, "domain", 4)
    with pytest.raises(DataError, match="does not occur"):
        partition(LABELS, "iid", 4, domains=domains, leave_out=9)


def test_partition_hold_out_is_stratified() -> None:
    parts = [
        partition(LABELS, rule, 5, 4, hold_out=0.2)
        for rule in ("iid", "dirichlet:0.1", "disjoint:2")
    ]
    assert np.bincount(LABELS[parts[0].held_out]).tolist() == [12] * 10
    assert all(np.array_equal(parts[0].held_out, other.held_out) for other in parts)


@pytest.mark.parametrize(
    "rule",
    [
        "",
        "dir:0.1",
        "dirichlet",
        "dirichlet:",
        "dirichlet:0",
        "dirichlet:-1",
        "dirichlet:nan",
        "dirichlet:inf",
        "iid:3",
        "classes:0",
        "classes:1.5",
        "classes:11",
        "disjoint:x",
        "iid+lognormal",
        "iid+lognormal:-1",
        "iid+normal:1",
        "iid+lognormal:nan",
    ],
)
def test_partition_explains_bad_rules(rule: str) -> None:
    with pytest.raises(DataError):
        partition(LABELS, rule, 3)


def test_partition_unknown_rule_gets_examples() -> None:
    with pytest.raises(DataError, match=r"dirichlet-client:0\.1.*lognormal"):
        partition(LABELS, "random", 3)


def test_partition_names_all_bad_arguments() -> None:
    with pytest.raises(DataError) as caught:
        partition(np.empty(0, int), "iid", 0, -1, hold_out=1.0, min_size=-1, leave_out=0)
    assert len(caught.value.problems) == 6


def test_write_partition_round_trip(tmp_path: Path) -> None:
    domains = np.tile(np.arange(4), 150)
    dealt = partition(LABELS, "dirichlet:0.01", 20, 7, hold_out=0.1, domains=domains, leave_out=2)
    path = tmp_path / "deep" / "partition.json"
    write_partition(path, dealt, "fashion-mini", LABELS)
    assert [entry.name for entry in path.parent.iterdir()] == ["partition.json"]
    read = read_partition(path)
    assert (read.source, read.partition.rule, read.partition.seed) == (
        "fashion-mini",
        "dirichlet:0.01",
        7,
    )
    assert same(read.partition, dealt)
    read.check(LABELS)
    read.check(LABELS.astype(np.int32))
    with pytest.raises(DataError, match="other data"):
        read.check(LABELS[::-1])


def test_read_partition_refuses_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "partition.json"
    write_partition(path, partition(LABELS, "iid", 3), "fashion-mini", LABELS)
    good = json.loads(path.read_text())

    def refused(**changes: object) -> str:
        path.write_text(json.dumps(good | changes))
        with pytest.raises(DataError) as caught:
            read_partition(path)
        return str(caught.value)

    assert "attar-partition/1" in refused(format="attar-partition/2")
    assert "image 5: in client 0 and in client 1" in refused(clients=[[5, 6], [5]])
    assert "image 5: in client 0 and in held_out" in refused(clients=[[5]], held_out=[5])
    assert "outside 0 to 599" in refused(clients=[[-1, 600]])
    assert "whole numbers" in refused(clients=[[1.5], "x", [True]])
    assert "seed" in refused(seed="0")
    assert "clients" in refused(clients={})
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="not JSON"):
        read_partition(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError):
        read_partition(path)
    with pytest.raises(DataError, match="attar partition"):
        read_partition(tmp_path / "absent.json")
    with pytest.raises(DataError, match="cannot be written"):
        write_partition(path / "below", partition(LABELS, "iid", 3), "fashion-mini", LABELS)
