"""Packing at the client's side: what comes out is the net itself, or there is a reason why not."""

import errno
import json
import os
from argparse import Namespace
from functools import cache

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import attar
from attar.blocks.ensemble import Teachers
from attar.blocks.ensemble.hooks import statistics_gap
from attar.core import ModelSpec, Part, Preprocess
from attar.errors import BundleError, PackError
from attar.internal.files import write_atomic
from attar.packing import load_net
from attar.privacy import describe_upload, list_revelations
from attar.uploads import decode, encode, read_bundle

CLASSES = tuple("abcdefghij")
SHAPE = (3, 32, 32)


def shaken(net, seed=0):
    """In eval mode, with BatchNorm statistics that differ from their beginnings."""
    draw = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.8, 1.2, generator=draw)
    return net.eval()


class Hand(nn.Module):
    """Skip connections, depthwise convolution, squeeze-excite, concatenation, adaptive pooling
    to 2 x 2, a channel shuffle.
    """

    def __init__(self, width=8):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()
        )
        self.deep = nn.Conv2d(width, width, 3, padding="same", groups=width)
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2, width, 1),
            nn.Hardsigmoid(),
        )
        self.norm = nn.GroupNorm(2, 2 * width)
        self.drop = nn.Dropout(0.5)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(8 * width, 10)
        self.register_buffer("order", torch.arange(2 * width).flip(0))

    def forward(self, x):
        x = self.stem(x)
        x = x + self.deep(x) * self.squeeze(x)
        one, two = x.chunk(2, dim=1)
        x = torch.cat([x, two, one], 1)
        x = nn.functional.leaky_relu(self.norm(x[:, self.order]), 0.1)
        return self.head(self.drop(self.pool(x)).flatten(1))


def hand():
    torch.manual_seed(0)
    return Hand()


def hugging_face(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    if kind == "vit":
        config = transformers.ViTConfig(**small, image_size=32, patch_size=8, num_labels=10)
        return transformers.ViTForImageClassification(config)
    if kind == "resnet":
        config = transformers.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="bottleneck",
            num_labels=10,
        )
        return transformers.ResNetForImageClassification(config)
    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=32, num_labels=10)
    return transformers.MobileNetV2ForImageClassification(config)


def logits_of(net, x):
    answer = net(x)
    return answer if isinstance(answer, torch.Tensor) else answer.logits


@cache
def packed(name):
    net, shape = made(name)
    return net, attar.pack(net, input_shape=shape, classes=CLASSES, client="oslo").parts[
        "classifier"
    ]


def made(name):
    if name == "hand":
        return shaken(hand()), SHAPE
    if name.startswith("hf-"):
        return shaken(hugging_face(name.removeprefix("hf-"))), SHAPE
    shape = (
        (3, 24, 24)
        if name.startswith(("efficientnet", "vgg", "googlenet", "resnet18", "cnn"))
        else (1, 16, 16)
    )
    shape = (3, 16, 16) if name.startswith(("vit", "deit")) else shape
    return shaken(ModelSpec.parse(name).build(shape, 10, seed=0)), shape


QUICK = [
    "lenet5",
    "mlp:hidden=8",
    "resnet20",
    "wrn16-1",
    "vit-tiny:depth=1",
    "hand",
    "hf-vit",
    "hf-resnet",
]
LONG = [
    "cnn5",
    "cnn-mho",
    "vgg11",
    "resnet18",
    "mobilenetv2",
    "mobilenetv3-small",
    "shufflenetv2",
    "googlenet",
    "efficientnetv2-s",
    "deit-tiny:depth=1,distilled=true",
    "hf-mobilenet",
]
NETS = QUICK + [pytest.param(name, marks=pytest.mark.slow) for name in LONG]


@pytest.mark.parametrize("name", NETS)
def test_pack_computes_what_the_net_computes(name):
    net, part = packed(name)
    upload = attar.Upload("oslo", {"classifier": part}, 3)
    rebuilt = decode(encode(upload)).parts["classifier"].build()
    for batch in (1, 2, 5):
        x = torch.randn(
            batch, *part.preprocess.input_shape, generator=torch.Generator().manual_seed(batch)
        ).requires_grad_()
        one, other = logits_of(net, x), rebuilt(x)
        assert other.shape == (batch, 10)
        assert torch.allclose(one, other, atol=1e-5, rtol=1e-5)
        slopes = [
            torch.autograd.grad(logits.square().sum(), x, retain_graph=True)[0]
            for logits in (one, other)
        ]
        assert slopes[0].abs().sum() > 0
        assert (slopes[0] - slopes[1]).abs().max() <= 1e-5 * slopes[0].abs().max().clamp(min=1)


@pytest.mark.parametrize("name", ["resnet20", "hand", "vit-tiny:depth=1", "hf-vit"])
def test_graph_net_stacked_equals_loop(name):
    _, part = packed(name)
    nets = [part.build().double() for _ in range(2)]
    with torch.no_grad():
        for parameter in nets[1].parameters():
            parameter.mul_(0.9)
    parameters, buffers = stack_module_state(nets)
    x = torch.randn(
        3, *part.preprocess.input_shape, generator=torch.Generator().manual_seed(0)
    ).double()
    with torch.no_grad():
        stacked = vmap(lambda p, b: functional_call(nets[0], (p, b), (x,)))(parameters, buffers)
        looped = torch.stack([net(x) for net in nets])
    assert not torch.allclose(looped[0], looped[1])
    assert torch.allclose(stacked, looped, atol=1e-10)


@pytest.mark.parametrize("name", ["resnet20", "hand", "wrn16-1", "hf-resnet"])
def test_graph_net_has_the_batchnorm_gap_of_the_net(name):
    net, part = packed(name)
    x = torch.rand(4, *part.preprocess.input_shape, generator=torch.Generator().manual_seed(1))
    gaps = []
    layers = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    hooks = [
        m.register_forward_pre_hook(lambda m, inputs: gaps.append(statistics_gap(m, inputs[0])))
        for m in layers
    ]
    net(x)
    for hook in hooks:
        hook.remove()
    _, found = Teachers([part], CLASSES).with_hooks(x, ["batchnorm"])
    assert len(gaps) == len(layers) > 0
    assert torch.allclose(found["batchnorm"][0], sum(gaps), rtol=1e-5)


def test_graph_net_has_the_activation_loss_of_the_net():
    net, part = packed("lenet5")
    ours = Part(ModelSpec.parse("lenet5"), net.state_dict(), CLASSES, part.preprocess)
    x = torch.rand(4, *part.preprocess.input_shape, generator=torch.Generator().manual_seed(1))
    found = [
        Teachers([given], CLASSES).with_hooks(x, ["activation", "mean activation"])[1]
        for given in (part, ours)
    ]
    assert torch.allclose(found[0]["activation"], found[1]["activation"])
    assert torch.allclose(found[0]["mean activation"], found[1]["mean activation"])


def test_pack_equal_architectures_have_equal_graphs():
    one, other = (ModelSpec.parse("lenet5").build((1, 16, 16), 10, seed) for seed in (0, 1))
    specs = {
        attar.pack(net, input_shape=(1, 16, 16)).parts["classifier"].spec for net in (one, other)
    }
    assert len(specs) == 1


def test_pack_leaves_the_net_and_numbers_classes():
    net = hand().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    upload = attar.pack(
        net,
        input_shape=SHAPE,
        mean=(0.5,) * 3,
        std=(0.2,) * 3,
        label_counts=range(10),
        num_examples=45,
    )
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert upload.parts["classifier"].classes == tuple(map(str, range(10)))
    assert upload.parts["classifier"].preprocess == Preprocess(SHAPE, (0.5,) * 3, (0.2,) * 3)


def test_graph_builder_folds_constants_and_drops_copies():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.weight = (
                nn.Parameter(torch.ones(10, 1)),
                nn.Parameter(torch.randn(10, 48)),
            )

        def forward(self, x):
            mask = torch.arange(48) % 2 == 0
            x = x.flatten(1).clone().contiguous().masked_fill(mask, 0.5)
            return nn.functional.linear(
                x, self.scale * self.weight / self.weight.norm(dim=1, keepdim=True)
            )

    torch.manual_seed(0)
    part = attar.pack(Masked(), input_shape=(3, 4, 4)).parts["classifier"]
    assert part.build().graph.operators() == {"linear": 1, "reshape": 1, "where": 1}


def test_graph_builder_converts_masks_and_whole_numbers():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(12, 2)
            self.register_buffer("mask", torch.arange(12) % 3 == 0)

        def forward(self, x):
            x = torch.add(x.flatten(1) * self.mask, torch.arange(12), alpha=2) - x.new_ones(
                x.shape[0], 12
            )
            return self.head(1 - x / 3)

    torch.manual_seed(0)
    net = Masked().eval()
    x = torch.rand(3, 3, 2, 2)
    rebuilt = attar.pack(net, input_shape=(3, 2, 2)).parts["classifier"].build()
    assert torch.allclose(net(x), rebuilt(x), atol=1e-6)


# --- what is refused ------------------------------------------------------------------------------


class Odd(nn.Module):
    """A linear net with something odd done to its input."""

    def __init__(self, change):
        super().__init__()
        self.change, self.head = change, nn.Linear(12, 2)

    def forward(self, x):
        return self.change(self, x)


def without_grad(net, x):
    with torch.no_grad():
        y = x * 2
    return net.head((x + y).flatten(1))


def in_half(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        return net.head(x.flatten(1)).float()


REFUSED = {
    "random": (
        lambda net, x: net.head((x + torch.randn_like(x)).flatten(1)),
        "differently each time",
    ),
    "across the batch": (
        lambda net, x: net.head((x - x.mean(0)).flatten(1)),
        "other images of its batch",
    ),
    "batch statistics": (
        lambda net, x: net.head(nn.functional.batch_norm(x, None, None, training=True).flatten(1)),
        "other images of its batch",
    ),
    "no gradient": (lambda net, x: net.head(x.flatten(1).detach()), "does not run on images"),
    "half without gradient": (without_grad, "switched|does not compute what|not supported"),
    "autocast": (in_half, "switched|no word"),
    "detached branch": (
        lambda net, x: net.head((x + x.detach()).flatten(1)),
        "does not compute what|not supported",
    ),
    "a branch on the data": (
        lambda net, x: net.head(x.flatten(1)) if x.max() > -99 else x,
        "cannot follow",
    ),
    "an operator that is not supported": (
        lambda net, x: net.head(x.flatten(1).cumsum(1)),
        "aten.cumsum.default: operator is not supported",
    ),
    "several answers": (lambda net, x: (net.head(x.flatten(1)), x), "neither a tensor"),
    "NaN": (lambda net, x: net.head(x.flatten(1)) * float("nan"), "NaN or infinite"),
    "a map for logits": (lambda net, x: x, "for 3 images"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_pack_refuses_nets_that_cannot_be_fused(name):
    change, reason = REFUSED[name]
    with pytest.raises(PackError, match=reason):
        attar.pack(Odd(change), input_shape=(3, 2, 2), classes=("a", "b"))


def test_export_net_names_the_line_of_a_branch(tmp_path, monkeypatch, capfd):
    """torch prints its graph three times on the way, and logs that it knows no line."""
    forward = "def forward(self, x):\n        return x if x.max() > -99 else -x\n"
    lines = f"from torch import nn\nclass Flow(nn.Module):\n    {forward}"
    (tmp_path / "flow_for_tests.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    from flow_for_tests import Flow

    with pytest.raises(PackError, match="cannot follow") as caught:
        attar.pack(nn.Sequential(nn.Flatten(), nn.Linear(12, 2), Flow()), input_shape=(3, 2, 2))
    assert (
        caught.value.problems[0] == "flow_for_tests.py, line 4: return x if x.max() > -99 else -x"
    )
    assert capfd.readouterr() == ("", "")


def test_list_revelations_without_examples():
    told = list_revelations(
        attar.pack(Odd(lambda net, x: net.head(x.flatten(1))), input_shape=(3, 2, 2))
    )
    assert any("not how many examples were trained on" in line for line in told)
    told = list_revelations(
        attar.pack(
            Odd(lambda net, x: net.head(x.flatten(1))), input_shape=(3, 2, 2), num_examples=7
        )
    )
    assert any("that 7 examples were trained on" in line for line in told)


def test_pack_names_every_unsupported_operator():
    with pytest.raises(PackError) as caught:
        attar.pack(
            Odd(lambda net, x: net.head(x.flatten(1).cumsum(1).sort(1)[0])), input_shape=(3, 2, 2)
        )
    told = "\n".join(caught.value.problems)
    assert "cumsum" in told
    assert "sort" in told


def test_pack_refuses_a_wrong_number_of_classes():
    with pytest.raises(PackError, match="3 images and 3 classes"):
        attar.pack(hand(), input_shape=SHAPE, classes=("a", "b", "c"))


def test_pack_refuses_a_wrong_shape():
    with pytest.raises(PackError, match="does not run on images"):
        attar.pack(hand(), input_shape=(1, 32, 32))


# --- the client's own files -----------------------------------------------------------------------


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "ours_for_tests.py").write_text(
        "from torch import nn\nmake = lambda: nn.Linear(3, 2)\n"
        "nothing = lambda: 3\nfails = lambda: 1 / 0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("wrapped", [False, True])
def test_load_net_reads_weights_of_torch_save(own, wrapped):
    state = {f"module.{k}" if wrapped else k: v for k, v in nn.Linear(3, 2).state_dict().items()}
    torch.save({"state_dict": state} if wrapped else state, own / "w.pt")
    net = load_net("ours_for_tests:make", own / "w.pt")
    assert torch.equal(net.weight, next(iter(state.values())))


@pytest.mark.parametrize(
    ("factory", "content", "reason"),
    [
        ("ours_for_tests", {}, "names no factory"),
        ("ours_for_tests:missing", {}, "(?s)has no missing.*it has make, nothing, fails"),
        ("no_such_module_here:make", {}, "(?s)cannot be imported.*No module named"),
        ("ours_for_tests:fails", {}, "(?s)made no net.*ZeroDivisionError"),
        ("ours_for_tests.py:make", {}, "(?s)names a file.*--module ours_for_tests:make"),
        ("ours_for_tests:nothing", {}, "made a int"),
        (
            "ours_for_tests:make",
            {"weight": torch.zeros(2, 4), "other": torch.zeros(1)},
            "(?s)missing: bias.*unexpected: other.*shape",
        ),
        ("ours_for_tests:make", {"weight": 3}, "no state dict"),
        (
            "ours_for_tests:make",
            nn.Linear(3, 2),
            r"(?s)a whole module, not a state_dict.*model.state_dict\(\)",
        ),
        ("ours_for_tests:make", {"args": Namespace(lr=1)}, "more than tensors: argparse.Namespace"),
    ],
    ids=[
        "no factory",
        "missing factory",
        "missing module",
        "a factory that fails",
        "a file",
        "no net",
        "other weights",
        "numbers",
        "a pickled module",
        "arguments",
    ],
)
def test_load_net_explains_mistakes(own, factory, content, reason):
    torch.save(content, own / "w.pt")
    with pytest.raises(PackError, match=reason) as told:
        load_net(factory, own / "w.pt")
    assert "\x1b" not in str(told.value)


def test_load_net_refuses_an_old_pickled_module(own):
    torch.save(nn.Linear(3, 2), own / "w.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(PackError, match="such as a whole module: not a state_dict") as told:
        load_net("ours_for_tests:make", own / "w.pt")
    assert "weights_only" not in str(told.value)


def test_write_bundle_names_a_file_that_cannot_be_written(tmp_path, monkeypatch):
    with pytest.raises(IsADirectoryError) as told:
        write_atomic(tmp_path, b"x")
    assert (told.value.filename, told.value.filename2) == (str(tmp_path), None)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as told:
        write_atomic(tmp_path / "x.attar", b"x")
    assert (told.value.errno, told.value.filename) == (errno.ENOSPC, str(tmp_path / "x.attar"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".pt2", ".pt", ".pth", ".pkl", ".attar"])
def test_read_bundle_refuses_pickles_and_archives(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    torch.save(nn.Linear(3, 2), path)
    with pytest.raises(BundleError, match="attar pack --module") as caught:
        read_bundle(path)
    assert "can run code" in str(caught.value)


def test_describe_upload_of_a_packed_net():
    _, part = packed("hand")
    described = describe_upload(attar.Upload("oslo", {"classifier": part}, 3), 5)
    json.dumps(described)
    assert described["parts"]["classifier"]["graph"]["batchnorm_layers"] == 1
    assert described["parts"]["classifier"]["graph"]["operators"]["conv2d"] == 4
    assert any("how a packed net is built" in line for line in described["reveals"])
