"""Fuzzing of what a stranger can send: ``python tests/fuzz/graph_fuzz.py --minutes 15 [--target
graph|bundle] [--seed N]``.

Every case must end in a net or in an AttarError, within a second and without memory. What the
reader of graphs accepts must also run, forth and back, on real images: nothing may pass the
check and fail later. Cases are drawn by hypothesis; where atheris is installed, ``--atheris``
lets it search by coverage instead. A failure prints the case and ends with status 1.
"""

import argparse
import json
import resource
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1]))

from attar.errors import AttarError
from attar.nets.graph import shapes
from attar.nets.graph.arguments import (
    Choice,
    Flag,
    Maybe,
    Number,
    OwnWeight,
    Scope,
    Sizes,
    Value,
    Values,
    Whole,
    Wholes,
)
from attar.nets.graph.format import check_graph, read_graph, read_node
from attar.nets.graph.net import GraphNet
from attar.nets.graph.operators import OPERATORS
from attar.testing import tiny_upload
from attar.uploads import decode, encode
from forge import compact, pack, reseal, unpack

SHAPE, CLASSES = (3, 6, 6), 2
SLOW = 5.0  # seconds for one case
RUNNABLE = 2**22  # elements and multiplications of a case that is also run
counts: Counter[str] = Counter()

hostile = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [
            -1,
            0,
            1,
            2**31,
            2**62,
            2**63,
            -(2**63),
            10**300,
            1e308,
            -0.0,
            "relu",
            "__class__",
            "",
            "\x00",
            [],
            {},
        ]
    ),
    st.recursive(
        st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ),
)
side = st.one_of(st.integers(1, 8), st.sampled_from([3, 6, 36, 108, 1024, 2**20, 2**30]))


class Draft:
    """A graph that grows node by node, with the shape of its last value for two images."""

    def __init__(self):
        self.weights, self.nodes, self.shapes = [], [], [(2, *SHAPE)]

    def shape(self):
        return self.shapes[-1]

    def weight(self, dtype, shape):
        self.weights.append([dtype, list(shape)])
        return {"weight": len(self.weights) - 1}


def weight_shapes(name, shape):
    """Shapes that an argument of this name may well have beside a value of this shape."""
    channels, last = (shape[1] if len(shape) > 1 else 1), (shape[-1] if shape else 1)
    if name in ("bias", "running_mean", "running_var"):
        return [(channels,), (last,)]
    kernels = [
        (4, channels, 3, 3),
        (channels, 1, 3, 3),
        (channels, channels, 1, 1),
        (4, channels, 2),
        (5, last),
        (channels,),
        (last,),
    ]
    return kernels if name == "weight" else [(1,), (), shape[1:], (last,), (last, 3), *kernels]


def argument(draw, draft, name, kind, first):
    """Mostly what the kind asks for; the first reference goes to the last node, so that none
    leads nowhere.
    """
    if isinstance(kind, Maybe):
        kind = kind.kind
    nodes, rank = len(draft.shapes), len(draft.shape())
    if isinstance(kind, OwnWeight) or (
        isinstance(kind, Value) and not first and draw(st.integers(0, 2))
    ):
        dtype = "bool" if isinstance(kind, OwnWeight) and kind.dtype is torch.bool else "float32"
        shape = draw(
            st.sampled_from(weight_shapes(name, draft.shape())) | st.lists(side, max_size=4)
        )
        return draft.weight(dtype, shape)
    if isinstance(kind, Value):
        if kind.number and not first and draw(st.booleans()):
            return draw(st.floats(-3, 3))
        return {
            "node": nodes - 1 if first or draw(st.booleans()) else draw(st.integers(0, nodes - 1))
        }
    if isinstance(kind, Values):
        return [{"node": nodes - 1}] + [
            {"node": draw(st.integers(0, nodes - 1))} for _ in range(draw(st.integers(0, 2)))
        ]
    if isinstance(kind, Sizes):
        shape = list(draft.shape())
        flat = [shape[1], max(1, torch.Size(shape[2:]).numel())] if len(shape) > 1 else shape
        tail = draw(
            st.permutations(shape[1:])
            | st.just([-(-torch.Size(shape).numel() // 2)])
            | st.just(flat)
        )
        usual = [{"batch": 1 if shape[:1] == [2] else 2}, *tail]
        batch = st.integers(1, 3).map(lambda times: {"batch": times})
        return (
            usual
            if draw(st.integers(0, 3))
            else draw(st.lists(batch | side, min_size=1, max_size=5))
        )
    if isinstance(kind, Whole):
        edge = st.sampled_from([kind.low, kind.high, *(1, 2, 3) * 3])
        return draw(st.integers(max(kind.low, -rank), max(kind.low, min(kind.high, 4))) | edge)
    if isinstance(kind, Wholes):
        if name == "normalized_shape" and draw(st.integers(0, 3)):
            return list(draft.shape()[-1:])
        if name == "dims" and draw(st.booleans()):
            return list(draw(st.permutations(range(rank))))
        low, high = (
            max(kind.low, -rank),
            min(kind.high, max(rank - 1, 1) if name in ("dim", "dims") else 4),
        )
        one = st.integers(low, max(low, high)) | st.sampled_from([low, high, kind.low, kind.high])
        return draw(st.lists(one, min_size=kind.least, max_size=min(kind.most, 5)))
    if isinstance(kind, Number):
        return draw(st.floats(max(kind.low, -5), min(kind.high, 5)) | st.sampled_from([0, 1, 1e30]))
    if isinstance(kind, Flag):
        return draw(st.booleans())
    assert isinstance(kind, Choice)
    return draw(st.sampled_from(kind.words))


def fits(draft, node):
    """The shape of the node's result where the reader takes it for two images."""
    dtypes = [torch.bool if dtype == "bool" else torch.float32 for dtype, _ in draft.weights]
    try:
        read = read_node(node, Scope(len(draft.shapes), dtypes))
        values = [torch.empty(shape, device="meta") for shape in draft.shapes]
        weights = [
            torch.empty(shape, dtype=dtype, device="meta")
            for (_, shape), dtype in zip(draft.weights, dtypes, strict=True)
        ]
        args = {
            name: shapes.fill_argument(arg, values, weights, 2) for name, arg in read.args.items()
        }
        return tuple(shapes.try_node(read, args, "")[0].shape)
    except (shapes.InvalidGraph, RuntimeError):
        return None


@st.composite
def graphs(draw):
    """Graphs of our own words with mostly sensible arguments, ending in logits; a few of them
    are then spoilt.
    """
    draft = Draft()
    for _ in range(draw(st.integers(1, 12))):
        op = draw(st.sampled_from(sorted(OPERATORS)))
        before, args = len(draft.weights), {}
        for place, (name, kind) in enumerate(OPERATORS[op].arguments.items()):
            first = place == (1 if op == "where" else 0)
            if not isinstance(kind, Maybe) or draw(st.booleans()):
                args[name] = argument(draw, draft, name, kind, first)
        node = {"op": op, "args": args}
        shape = fits(draft, node)
        if shape is None and draw(st.integers(0, 19)):
            del draft.weights[before:]
            continue
        draft.nodes.append(node)
        draft.shapes.append(shape or (2, *SHAPE))
    features = max(1, torch.Size(draft.shape()).numel() // 2)
    if draw(st.integers(0, 9)) and features < 2**20:  # a way from whatever there is to logits
        last = len(draft.nodes)
        draft.nodes.append(
            {"op": "reshape", "args": {"input": {"node": last}, "shape": [{"batch": 1}, features]}}
        )
        weight = draft.weight("float32", [CLASSES, features])
        draft.nodes.append(
            {"op": "linear", "args": {"input": {"node": last + 1}, "weight": weight}}
        )
    graph = {"graph": 1, "weights": draft.weights, "nodes": draft.nodes}
    if not draw(st.integers(0, 3)):
        spoil(draw, graph)
    return graph


def spoil(draw, value):
    """Put something hostile somewhere."""
    while isinstance(value, dict | list) and value:
        keys = sorted(value) if isinstance(value, dict) else range(len(value))
        key = draw(st.sampled_from(list(keys)))
        if not isinstance(value[key], dict | list) or not value[key] or not draw(st.integers(0, 3)):
            value[key] = draw(hostile)
            return
        value = value[key]


def try_graph(text):
    """A net that runs, or an AttarError; in time."""
    begun = time.monotonic()
    check_graph.cache_clear()
    try:
        graph = read_graph(text, SHAPE, CLASSES)
    except AttarError:
        counts["refused"] += 1
        assert time.monotonic() - begun < SLOW, "too slow"
        return
    assert time.monotonic() - begun < SLOW, "too slow"
    counts["read"] += 1
    if graph.work > RUNNABLE or graph.elements > RUNNABLE or sum(map(len, graph.shapes)) > 10**6:
        return
    if sum(torch.Size(shape).numel() for shape in graph.shapes) > RUNNABLE:
        return
    net = GraphNet(graph).eval()
    for batch in (1, 2, 3):
        x = torch.rand(batch, *SHAPE, requires_grad=True)
        logits = net(x)
        assert logits.shape == (batch, CLASSES), logits.shape
        assert logits.dtype is torch.float32, logits.dtype
        if logits.requires_grad:
            logits.sum().backward()
    counts["run"] += 1
    counts.update(f"op {op}" for op in graph.operators())


FILE = encode(tiny_upload("small", "mlp:hidden=2,layers=1", ("a", "b")))


def try_bundle(data):
    """An upload that survives the round trip, or an AttarError."""
    begun = time.monotonic()
    try:
        upload = decode(data)
    except AttarError:
        counts["refused"] += 1
    else:
        counts["read"] += 1
        encode(upload)
    assert time.monotonic() - begun < SLOW, "too slow"


@st.composite
def bundles(draw):
    """The bytes of a true file, changed, cut, joined, or sealed anew around a changed manifest."""
    data = bytearray(FILE)
    header, manifest, weights = unpack(FILE)
    match draw(st.integers(0, 3)):
        case 0:
            for _ in range(draw(st.integers(1, 4))):
                data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
            return (
                bytes(data[: draw(st.integers(0, len(data)))])
                if draw(st.booleans())
                else bytes(data)
            )
        case 1:
            return draw(st.binary(max_size=200))
        case 2:
            spoil(draw, header)
        case _:
            spoil(draw, manifest["parts"] if draw(st.booleans()) else manifest)
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"]["attar"] = compact(manifest)
    return reseal(pack(compact(header), weights))


TARGETS = {
    "graph": (graphs().map(lambda graph: json.dumps(graph)) | st.text(max_size=60), try_graph),
    "bundle": (bundles(), try_bundle),
}


def by_hypothesis(target, minutes, seed):
    strategy, check = TARGETS[target]
    ends, begun = time.monotonic() + 60 * minutes, time.monotonic()
    first = 0
    while time.monotonic() < ends:

        @seeded(seed)
        @settings(
            max_examples=500,
            deadline=None,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def batch(case):
            counts["cases"] += 1
            check(case)

        batch()
        seed += 1
        first = first or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - first) / 1024
    seen = {name.removeprefix("op ") for name in counts if name.startswith("op ")}
    numbers = ", ".join(
        f"{counts[name]:,} {name}" for name in ("cases", "refused", "read", "run") if counts[name]
    )
    print(f"{target}: {numbers} in {time.monotonic() - begun:.0f} s; next seed {seed}")
    print(f"memory grew by {grown:.0f} MiB after the first 500 cases")
    print(json.dumps({**counts, "target": target, "grew": round(grown * 2**20)}))
    if target == "graph":
        print(
            f"operators that ran: {len(seen)} of {len(OPERATORS)}; "
            f"never: {', '.join(sorted(set(OPERATORS) - seen)) or 'none'}"
        )


def by_atheris(target, minutes):
    import atheris

    strategy, check = TARGETS[target]

    @settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def one(case):
        check(case)

    atheris.instrument_all()
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={int(60 * minutes)}"], one.hypothesis.fuzz_one_input
    )
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", choices=sorted(TARGETS), default="graph")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true", help="search by coverage (needs atheris)")
    given_ = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given_.atheris:
        by_atheris(given_.target, given_.minutes)
    else:
        by_hypothesis(given_.target, given_.minutes, given_.seed)


if __name__ == "__main__":
    main()
