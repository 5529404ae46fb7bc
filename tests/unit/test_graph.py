"""Packed nets at the server: a graph is read or refused, without memory; what is read runs,
stacks and shows its statistics.
"""

import json
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from attar.blocks.ensemble import Teachers
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import AttarError, BundleError, NeedsError, SpecError
from attar.fusion import fuse, server_for
from attar.methods.f_dafl import FDafl
from attar.methods.fedavg import FedAvg
from attar.nets.graph.format import check_graph, read_graph
from attar.nets.graph.net import GraphNet
from attar.nets.graph.operators import OPERATORS
from attar.uploads import decode, encode

SHAPE, CLASSES = (3, 8, 8), ("a", "b")
IMAGE = {"node": 0}


def text(nodes, weights=()):
    return json.dumps(
        {
            "graph": 1,
            "weights": list(weights),
            "nodes": [{"op": op, "args": args} for op, args in nodes],
        }
    )


def linear_end(number, features, first_weight=0):
    """mean over the map, then the logits: two nodes and two weights that make a net of whatever
    came before.
    """
    nodes = [
        ("mean", {"input": {"node": number}, "dim": [2, 3]}),
        (
            "linear",
            {
                "input": {"node": number + 1},
                "weight": {"weight": first_weight},
                "bias": {"weight": first_weight + 1},
            },
        ),
    ]
    return nodes, [["float32", [2, features]], ["float32", [2]]]


def with_end(*nodes, weights=(), features=3):
    """A graph of these nodes on a map, ending in logits over two classes."""
    more, own = linear_end(len(nodes), features, len(weights))
    return text([*nodes, *more], [*weights, *own])


NORM = (
    "batch_norm",
    {
        "input": {"node": 1},
        "running_mean": {"weight": 1},
        "running_var": {"weight": 2},
        "weight": {"weight": 3},
        "bias": {"weight": 4},
        "eps": 1e-5,
    },
)
SMALL = with_end(
    ("conv2d", {"input": IMAGE, "weight": {"weight": 0}, "padding": [1, 1]}),
    NORM,
    ("relu", {"input": {"node": 2}}),
    ("index_select", {"input": {"node": 3}, "dim": 1, "index": [3, 1, 0, 2]}),
    ("add", {"input": {"node": 4}, "other": {"node": 3}}),
    weights=[["float32", [4, 3, 3, 3]], *[["float32", [4]]] * 4],
    features=4,
)


def spec_of(graph):
    return ModelSpec("graph", (("graph", graph),))


def part(seed=0, graph=SMALL, shape=SHAPE):
    """A part of that graph with weights drawn from the seed."""
    net = spec_of(graph).build(shape, len(CLASSES), 0)
    draw = torch.Generator().manual_seed(seed)
    state = {
        name: torch.rand(value.shape, generator=draw) + (0.5 if name.endswith("var") else -0.5)
        if value.is_floating_point()
        else value
        for name, value in net.state_dict().items()
    }
    return Part(spec_of(graph), state, CLASSES, Preprocess.plain(shape))


class Twin(nn.Module):
    """SMALL, written by hand."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.Linear(4, 2),
        )

    def forward(self, x):
        maps = self.norm(self.conv(x)).relu()
        return self.head((maps[:, [3, 1, 0, 2]] + maps).mean((2, 3)))


def twin(given):
    names = {
        "w0": "conv.weight",
        **{f"norm2.{n}": f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")},
    }
    names |= {"norm2.num_batches_tracked": "norm.num_batches_tracked"}
    net = Twin()
    net.load_state_dict({names.get(name, name): value for name, value in given.state.items()})
    return net.eval()


def images(batch=3, shape=SHAPE):
    return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(batch))


# --- what is read, runs ---------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_graph_net_computes_what_the_graph_says(batch):
    given = part()
    net, own = given.build(), twin(given)
    x, y = images(batch).requires_grad_(), images(batch).requires_grad_()
    assert torch.allclose(net(x), own(y), atol=1e-6)
    one, other = (
        torch.autograd.grad(net(x).square().sum(), x)[0],
        torch.autograd.grad(own(y).square().sum(), y)[0],
    )
    assert other.abs().sum() > 0
    assert torch.allclose(one, other, atol=1e-6)


def test_graph_net_features_and_head_give_logits():
    net = part().build()
    x = images()
    assert net.features(x).shape == (3, 4)
    assert torch.equal(net.head(net.features(x)), net(x))


def test_graph_net_stacked_equals_loop():
    nets = [part(seed).build().double() for seed in (0, 1, 2)]
    names = [name for name, _ in [*nets[0].named_parameters(), *nets[0].named_buffers()]]
    states = [{**dict(net.named_parameters()), **dict(net.named_buffers())} for net in nets]
    stacked = {name: torch.stack([state[name] for state in states]) for name in names}
    x = images().double()
    together = vmap(lambda state: functional_call(nets[0], state, (x,)))(stacked)
    assert torch.allclose(together, torch.stack([net(x) for net in nets]), atol=1e-12)


@pytest.mark.parametrize("stack", [True, False])
def test_graph_net_shows_batchnorm_statistics(stack):
    parts = [part(seed) for seed in (0, 1)]
    teachers = Teachers(parts, CLASSES, stack=stack)
    assert teachers.have_batchnorm()
    x = images().requires_grad_()
    logits, found = teachers.with_hooks(x, ["batchnorm", "activation", "mean activation"])
    for row, given in enumerate(parts):
        own, seen = twin(given), {}
        own.norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.update(norm=inputs[0]))
        own.head.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.update(head=inputs[0]))
        y = images().requires_grad_()
        assert torch.allclose(logits[row], own(y), atol=1e-5)
        variance, mean = torch.var_mean(seen["norm"], (0, 2, 3), correction=0)
        gap = (mean - own.norm.running_mean).norm() + (variance - own.norm.running_var).norm()
        assert torch.allclose(found["batchnorm"][row], gap, atol=1e-5)
        assert torch.allclose(found["activation"][row], seen["head"].abs().sum(1).mean(), atol=1e-5)
        (slope,) = torch.autograd.grad(gap, y)
        (same,) = torch.autograd.grad(found["batchnorm"][row], x, retain_graph=True)
        assert torch.allclose(slope, same, atol=1e-5)


def test_graph_net_without_a_head_has_no_features():
    graph = text(
        [
            ("mean", {"input": IMAGE, "dim": [2, 3]}),
            ("matmul", {"input": {"node": 1}, "other": {"weight": 0}}),
        ],
        [["float32", [3, 2]]],
    )
    net = part(graph=graph).build()
    with pytest.raises(SpecError, match="no penultimate features"):
        net.features(images())
    teachers = Teachers([part(graph=graph)], CLASSES)
    assert not teachers.have_batchnorm()
    with pytest.raises(NeedsError, match="no penultimate features"):
        teachers.with_hooks(images(), ["activation"])
    uploads = [
        Upload("oslo", {"classifier": part(graph=graph)}, 5),
        Upload("rome", {"classifier": part()}, 5),
    ]
    with pytest.raises(NeedsError, match="client oslo must have a net with features"):
        fuse(uploads, FDafl(), server_for(uploads))


def test_graph_net_shares_a_layer_used_twice():
    again = ("batch_norm", {**NORM[1], "input": {"node": 2}})
    weights = [["float32", [4, 3, 1, 1]], *[["float32", [4]]] * 4]
    conv = ("conv2d", {"input": IMAGE, "weight": {"weight": 0}})
    net = part(graph=with_end(conv, NORM, again, weights=weights, features=4)).build()
    assert [name for name, module in net.named_modules() if isinstance(module, nn.BatchNorm2d)] == [
        "norm2"
    ]
    x = images()
    maps = nn.functional.conv2d(x, net.w0)
    assert torch.allclose(net.head(net.norm2(net.norm2(maps)).mean((2, 3))), net(x))


def test_decode_restores_a_packed_net():
    upload = Upload("oslo", {"classifier": part()}, 7)
    back = decode(encode(upload)).parts["classifier"]
    assert back.spec == part(1).spec
    assert all(
        torch.equal(back.state[name], value)
        for name, value in upload.parts["classifier"].state.items()
    )
    assert torch.equal(back.build()(images()), part().build()(images()))


def test_spec_title_of_a_graph_is_short():
    name = str(part().spec)
    assert name.startswith("graph:")
    assert name.endswith("nodes)")
    assert len(name) < 40
    assert str(part(graph=SMALL.replace("1e-05", "1e-04")).spec) != name


def test_fedavg_averages_equal_packed_nets():
    uploads = [Upload(name, {"classifier": part(seed)}, 5) for name, seed in (("a", 0), ("b", 1))]
    result = next(iter(fuse(uploads, FedAvg(), server_for(uploads)).result.models.values()))
    assert torch.allclose(result.state["w0"], (part(0).state["w0"] + part(1).state["w0"]) / 2)


def test_server_for_refuses_a_packed_student_without_start():
    upload = Upload("a", {"classifier": part()}, 5)
    assert server_for([upload]).student == ModelSpec("resnet20")
    with pytest.raises(SpecError, match="no initial weights"):
        server_for([upload], student=part().spec)
    assert server_for([upload], initial=part()).student == part().spec
    with pytest.raises(SpecError, match="without the options: graph"):
        ModelSpec("graph").skeleton(SHAPE, 2)


def test_skeleton_of_a_graph_has_no_memory():
    skeleton = part().spec.skeleton(SHAPE, 2).state_dict()
    assert all(value.is_meta for value in skeleton.values())
    assert {k: (v.shape, v.dtype) for k, v in skeleton.items()} == {
        k: (v.shape, v.dtype) for k, v in part().state.items()
    }


# --- what is refused ------------------------------------------------------------------------------


@pytest.fixture(autouse=True, scope="module")
def _torch_has_imported_what_it_needs():
    """What torch imports at the first shape, good or bad, is no memory of the graph that happens
    to come first.
    """
    read_graph(SMALL, SHAPE, 2)
    with pytest.raises(SpecError):
        read_graph(SMALL, (1, 8, 8), 2)


def refused(graph, shape=SHAPE, classes=2):
    """The problems of a graph: found quickly, in little memory, and without a single tensor that
    has any.
    """
    check_graph.cache_clear()
    begun = time.monotonic()
    tracemalloc.start()
    try:
        with NoMemory(), pytest.raises(SpecError) as caught:
            read_graph(graph, shape, classes)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20 + 40 * len(graph)
    assert time.monotonic() - begun < 30
    assert caught.value.problems
    return "\n".join(caught.value.problems)


class NoMemory(torch.overrides.TorchFunctionMode):
    """Fails at any tensor that is not on ``meta``."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            assert result.is_meta, f"{func} allocated {tuple(result.shape)}"
        return result


RELU = ("relu", {"input": IMAGE})
W3 = [["float32", [3]]]


def chain(length):
    return [("relu", {"input": {"node": number}}) for number in range(length)]


HOSTILE = {
    "unknown operator": (with_end(("system", {"input": IMAGE})), "no operator 'system'"),
    "an operator of torch that is not ours": (
        with_end(("as_strided", {"input": IMAGE})),
        "no operator 'as_strided'",
    ),
    "attribute access": (
        with_end(("__class__.__subclasses__", {})),
        "no operator '__class__.__subclasses__'",
    ),
    "dotted operator": (with_end(("relu.__globals__", {"input": IMAGE})), "no operator"),
    "an argument that is code": (
        with_end(("relu", {"input": IMAGE, "__class__": 1})),
        "no argument '__class__'",
    ),
    "a word that is not ours": (
        with_end(("gelu", {"input": IMAGE, "approximate": "__import__('os')"})),
        "one of none, tanh",
    ),
    "attribute of a reference": (
        with_end(("relu", {"input": {"node": 0, "attr": "data"}})),
        'expected {"node": number}',
    ),
    "other reference": (
        with_end(("relu", {"input": {"module": "os"}})),
        'expected {"node": number}',
    ),
    "text for a reference": (with_end(("relu", {"input": "x"})), 'expected {"node": number}'),
    "forward reference": (with_end(("relu", {"input": {"node": 2}})), "an earlier node, 0 to 0"),
    "cycle": (with_end(("relu", {"input": {"node": 1}})), "an earlier node, 0 to 0"),
    "negative reference": (with_end(("relu", {"input": {"node": -1}})), "an earlier node"),
    "boolean reference": (
        with_end(("relu", {"input": {"node": False}})),
        'expected {"node": number}',
    ),
    "weight that is not there": (
        with_end(("add", {"input": IMAGE, "other": {"weight": 9}})),
        "a weight that there is",
    ),
    "argument missing": (with_end(("softmax", {"input": IMAGE})), "dim is missing"),
    "axis out of range": (
        with_end(("softmax", {"input": IMAGE, "dim": 77})),
        "a whole number from -8 to 7",
    ),
    "axis that the value lacks": (
        with_end(("softmax", {"input": IMAGE, "dim": 5})),
        "axes [5] of a value with 4 axes",
    ),
    "axis twice": (with_end(("flip", {"input": IMAGE, "dims": [1, -3]})), "name one twice"),
    "half an axis": (with_end(("softmax", {"input": IMAGE, "dim": 1.5})), "a whole number"),
    "huge stride": (
        with_end(
            ("conv2d", {"input": IMAGE, "weight": {"weight": 0}, "stride": [2**62, 1]}),
            weights=[["float32", [3, 3, 1, 1]]],
        ),
        "stride: expected a whole number from 1 to 1024",
    ),
    "stride zero": (
        with_end(("max_pool2d", {"input": IMAGE, "kernel_size": [2, 2], "stride": [0, 1]})),
        "a whole number from 1",
    ),
    "padding beyond the window": (
        with_end(
            (
                "max_pool2d",
                {"input": IMAGE, "kernel_size": [2, 2], "stride": [1, 1], "padding": [2, 2]},
            )
        ),
        "more than half",
    ),
    "window larger than the image": (
        with_end(("avg_pool2d", {"input": IMAGE, "kernel_size": [9, 9], "stride": [1, 1]})),
        "node 1 (avg_pool2d)",
    ),
    "groups that do not divide": (
        with_end(
            ("conv2d", {"input": IMAGE, "weight": {"weight": 0}, "groups": 2}),
            weights=[["float32", [3, 3, 1, 1]]],
        ),
        "2 groups",
    ),
    "index out of range": (
        with_end(("index_select", {"input": IMAGE, "dim": 1, "index": [3]})),
        "index 3 of an axis of 3",
    ),
    "slice out of range": (
        with_end(("slice", {"input": IMAGE, "dim": 1, "start": 0, "end": 4})),
        "from 0 to 4",
    ),
    "empty slice": (
        with_end(("slice", {"input": IMAGE, "dim": 1, "start": 2, "end": 2})),
        "from 2 to 2",
    ),
    "select out of range": (
        with_end(("select", {"input": IMAGE, "dim": 1, "index": 3})),
        "index 3 of an axis of 3",
    ),
    "reflecting too much": (
        with_end(("pad", {"input": IMAGE, "pad": [9, 0, 0, 0], "mode": "reflect"})),
        "reflect more",
    ),
    "size bomb by expansion": (
        with_end(
            ("reshape", {"input": IMAGE, "shape": [{"batch": 1}, 3, 64, 1]}),
            ("expand", {"input": {"node": 1}, "size": [{"batch": 1}, 3, 64, 2**30]}),
        ),
        "elements",
    ),
    "shape beyond whole numbers": (
        with_end(("expand", {"input": IMAGE, "size": [2**30] * 8})),
        "too large",
    ),
    "negative size": (
        with_end(("reshape", {"input": IMAGE, "shape": [-1, 3, 8, 8]})),
        "a whole number from 1",
    ),
    "number of 300 digits": (
        with_end(("reshape", {"input": IMAGE, "shape": [10**300]})),
        "a whole number from 1",
    ),
    "wrong number of elements": (
        with_end(("reshape", {"input": IMAGE, "shape": [{"batch": 1}, 3, 8, 9]})),
        "cannot have the shape",
    ),
    "a batch that is fixed": (
        with_end(("reshape", {"input": IMAGE, "shape": [1, 3, 8, 8]})),
        "cannot have the shape",
    ),
    "growth with the square of the batch": (
        with_end(
            ("reshape", {"input": IMAGE, "shape": [{"batch": 1}, 192]}),
            ("permute", {"input": {"node": 1}, "dims": [1, 0]}),
            ("matmul", {"input": {"node": 1}, "other": {"node": 2}}),
        ),
        "does not grow with the batch",
    ),
    "padding bomb": (
        with_end(*[("pad", {"input": {"node": n}, "pad": [1024] * 4}) for n in range(8)]),
        "more than 268,435,456 elements",
    ),
    "doubling bomb": (
        with_end(*[("cat", {"tensors": [{"node": n}] * 1000, "dim": 2}) for n in range(4)]),
        "more than 268,435,456 elements",
    ),
    "convolution with a window of a million": (
        with_end(
            ("conv2d", {"input": IMAGE, "weight": {"weight": 0}, "padding": [1000, 1000]}),
            weights=[["float32", [3, 3, 1000, 1000]]],
        ),
        "more than",
    ),
    "work bomb": (
        with_end(
            ("pad", {"input": IMAGE, "pad": [512] * 4}),
            (
                "max_pool2d",
                {
                    "input": {"node": 1},
                    "kernel_size": [901, 901],
                    "stride": [1, 1],
                    "padding": [450, 450],
                },
            ),
        ),
        "multiplications for one image",
    ),
    "too many nodes": (text(chain(5000)), "1 to 4096"),
    "too long": (" " * 2**20 + "{}", "more than 1,048,576"),
    "nested deeply": ("[" * 100_000 + "]" * 100_000, "no JSON"),
    "nested arguments": (
        with_end(("relu", {"input": json.loads("[" * 200 + "]" * 200)})),
        'expected {"node": number}',
    ),
    "weight bomb": (
        with_end(RELU, weights=[["float32", [2**30]], ["float32", [2**30]]]),
        "more than 1,073,741,824",
    ),
    "weights of nothing": (with_end(RELU, weights=[["float32", [0, 3]]]), "a whole number from 1"),
    "weights of another type": (
        with_end(RELU, weights=[["complex64", [3]]]),
        "a type of float32, bool",
    ),
    "weights with too many axes": (with_end(RELU, weights=[["float32", [1] * 9]]), "at most 8"),
    "ten thousand weights": (with_end(RELU, weights=W3 * 10_000), "at most 8192"),
    "weight that nobody uses": (with_end(RELU, weights=W3), "used by no node"),
    "node that leads nowhere": (with_end(RELU, ("relu", {"input": IMAGE})), "node 1 leads nowhere"),
    "weight of two layers": (
        with_end(
            ("mul", {"input": IMAGE, "other": {"weight": 0}}),
            (
                "batch_norm",
                {
                    "input": {"node": 1},
                    "running_mean": {"weight": 0},
                    "running_var": {"weight": 1},
                    "eps": 0.1,
                },
            ),
            weights=[*W3, *W3],
        ),
        "layers cannot share weights",
    ),
    "statistics from the image": (
        with_end(
            (
                "batch_norm",
                {"input": IMAGE, "running_mean": IMAGE, "running_var": {"weight": 0}, "eps": 0.1},
            ),
            weights=W3,
        ),
        "running_mean: expected a weight",
    ),
    "truth for a number": (with_end(("add", {"input": IMAGE, "other": True})), "a number from"),
    "infinite number": (
        with_end(("add", {"input": IMAGE, "other": 1})).replace('"other": 1', '"other": 1e999'),
        "a number from",
    ),
    "not a number": (
        with_end(("add", {"input": IMAGE, "other": 1})).replace('"other": 1', '"other": NaN'),
        "no JSON",
    ),
    "key twice": (with_end(RELU).replace('"op": "relu"', '"op": "relu", "op": "relu"'), "twice"),
    "no object": ("[]", "exactly: graph, weights, nodes"),
    "other format": (with_end(RELU).replace('"graph": 1', '"graph": 2'), "format 2"),
    "format as truth": (with_end(RELU).replace('"graph": 1', '"graph": true'), "format True"),
    "nodes as an object": ('{"graph": 1, "weights": [], "nodes": {}}', "nodes must be a list"),
    "node as text": ('{"graph": 1, "weights": [], "nodes": ["relu"]}', "exactly: op, args"),
    "operator as a list": (
        '{"graph": 1, "weights": [], "nodes": [{"op": ["relu"], "args": {}}]}',
        "no operator",
    ),
    "no logits": (text([RELU]), "for 1 images and 2 classes"),
    "logits that forget the batch": (
        text(
            [
                ("mean", {"input": IMAGE, "dim": [0, 2, 3]}),
                ("slice", {"input": {"node": 1}, "dim": 0, "start": 0, "end": 2}),
            ]
        ),
        "for 1 images",
    ),
    "control characters": (with_end(("\x1b[2J", {})), "no operator"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_read_graph_refuses_hostile_graphs_without_memory(name):
    graph, reason = HOSTILE[name]
    told = refused(graph)
    assert reason in told
    assert told.replace("\n", "").isprintable()


def test_read_graph_names_all_problems():
    told = refused(
        with_end(("relu", {}), ("flow", {}), ("softmax", {"input": {"node": 9}, "dim": "x"}))
    )
    assert "node 1 (relu): input is missing" in told
    assert "node 2: there is no operator 'flow'" in told
    assert "node 3 (softmax): input" in told
    assert "node 3 (softmax): dim" in told


def test_decode_refuses_a_hostile_graph():
    graph = HOSTILE["size bomb by expansion"][0]
    bomb = replace(part(), spec=spec_of(graph))
    with pytest.raises(BundleError, match="elements"):
        encode(Upload("mallory", {"classifier": bomb}, 1))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_decode_refuses_nan_weights_of_a_graph(value):
    given = part()
    given.state["w0"][0, 0, 0, 0] = value
    with pytest.raises(BundleError, match="NaN or infinite"):
        encode(Upload("mallory", {"classifier": given}, 1))


def test_decode_refuses_weights_of_other_shapes():
    state = {**part().state, "w0": torch.zeros(4, 3, 3, 4)}
    with pytest.raises(BundleError, match=r"w0 has shape \[4, 3, 3, 4\]"):
        encode(Upload("mallory", {"classifier": replace(part(), state=state)}, 1))


def test_read_graph_checks_each_shape():
    assert isinstance(part().build(), GraphNet)
    assert "for 1 images and 3 classes" in refused(SMALL, classes=3)
    assert "channels" in refused(SMALL, shape=(1, 8, 8))


def test_read_graph_takes_bounded_time():
    graph = with_end(*chain(4000))
    begun = time.monotonic()
    read_graph(graph, SHAPE, 2)
    assert time.monotonic() - begun < 30


def test_operators_are_neither_random_nor_in_place():
    assert not {
        name for name in OPERATORS if name.endswith("_") or "rand" in name or "dropout" in name
    }


def test_read_graph_raises_attar_errors():
    for graph in ("", "null", "0", '"x"', "{}", '{"graph":1,"weights":null,"nodes":null}'):
        with pytest.raises(AttarError):
            read_graph(graph, SHAPE, 2)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["graph", "bundle"])
def test_fuzzers_find_nothing(target):
    script = Path(__file__).parents[1] / "fuzz" / "graph_fuzz.py"
    command = [sys.executable, str(script), "--minutes", "0.1", "--target", target, "--seed", "42"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{target}: " in done.stdout
