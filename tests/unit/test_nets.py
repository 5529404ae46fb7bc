"""Every registered net: shapes, gradients, states, seeds, published sizes, stacked calls, and
what it refuses.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from attar.core import ModelSpec
from attar.errors import SettingsError, SpecError
from attar.nets.initialisation import SkipInitialisation
from attar.nets.registry import NETS, Shape, register
from attar.nets.vit import ViT

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

# The transformers run with fewer blocks; their full shapes and counts are checked on ``meta``.
RUN_AS = {
    "vit": "vit:depth=2,width=24,hidden=48",
    "vit-tiny": "vit-tiny:depth=2",
    "vit-small": "vit-small:depth=2",
    "vit-base": "vit-base:depth=1",
    "deit-tiny": "deit-tiny:depth=2",
    "deit-small": "deit-small:depth=2,distilled=true",
    "deit-base": "deit-base:depth=1",
}
HEAVY = {
    "vgg9",
    "resnet34",
    "resnet50",
    "efficientnetv2-s",
}  # built once at full size, else smaller or on ``meta``
VARIANTS = [
    "cnn-mho:form=emnist",
    "cnn-mho:form=cifar",
    "vgg11:batchnorm=false",
    "vgg11:batchnorm=false,hidden=512",
    "lenet5:batchnorm=true",
    "cnn-dense:batchnorm=false",
    "mlp:layers=0",
    "mobilenetv2:stem=imagenet",
    "mobilenetv3-small:stem=imagenet",
    "shufflenetv2:stem=imagenet",
    "googlenet:stem=imagenet",
    "deit-tiny:depth=1,distilled=true,dropout=0.1",
    "vit:depth=1,width=24,heads=2,hidden=40,qkv_bias=false,epsilon=0.001,distillation=token",
    "vit:depth=1,width=24,hidden=40,distillation=head",
]
CLASSIFIERS = sorted(
    name for name in NETS if NETS[name].kind == "classifier" and not NETS[name].required
)  # test_cvae.py and test_graph.py have the others
SPECS = [RUN_AS.get(name, name) for name in CLASSIFIERS]
LIGHT = [spec for spec in SPECS + VARIANTS if spec not in HEAVY]

SMALLEST = {
    "lenet5": 16,
    "cnn1": 18,
    "cnn2": 16,
    "cnn5": 18,
    "cnn-dense": 4,
    "cnn-mho": 16,
    "cnn-mho:form=emnist": 8,
    "cnn-mho:form=cifar": 8,
    "vgg9": 8,
    "vgg11": 17,
    "resnet18": 5,
    "resnet34": 5,
    "resnet50": 5,
    "resnet20": 3,
    "resnet32": 3,
    "resnet44": 3,
    "wrn16-1": 3,
    "wrn40-1": 3,
    "mobilenetv2": 5,
    "mobilenetv2:stem=imagenet": 17,
    "mobilenetv3-small": 5,
    "mobilenetv3-small:stem=imagenet": 17,
    "shufflenetv2": 5,
    "shufflenetv2:stem=imagenet": 17,
    "googlenet": 5,
    "googlenet:stem=imagenet": 17,
    "efficientnetv2-s": 5,
    "efficientnetv2-s:stem=imagenet": 17,
    "efficientnet-lite0": 17,
    "efficientnet-lite0:stem=small": 5,
    "efficientnet-lite1": 17,
    "efficientnet-lite1:stem=small": 5,
    "vit-tiny": 4,
    "deit-base:patch=16": 16,
}


def shape_of(spec: str) -> Shape:
    return NETS[spec.partition(":")[0]].usual_shape


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fresh(spec: str, shape: Shape, seed: int = 0) -> nn.Module:
    """A net in eval mode with BatchNorm statistics that differ from their beginnings."""
    net = ModelSpec.parse(spec).build(shape, 10, seed)
    draw = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=draw)
            module.running_var.uniform_(0.8, 1.2, generator=draw)
    return net.eval()


built = cache(fresh)  # for tests that share a net and do not change it


def images(shape: Shape, batch: int = 2, seed: int = 0) -> Tensor:
    return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def parameters(spec: str, shape: Shape, classes: int) -> int:
    return sum(p.numel() for p in ModelSpec.parse(spec).skeleton(shape, classes).parameters())


# Shapes, gradients, states


def check_forward(net: nn.Module, shape: Shape) -> None:
    x = images(shape).requires_grad_()
    logits = net(x)
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()
    features = net.features(x)
    assert features.ndim == 2
    assert torch.equal(net.head(features), logits)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([1, 7])), x)
    assert gradient.isfinite().all()
    assert (gradient.abs().sum((1, 2, 3)) > 0).all()


@pytest.mark.parametrize("spec", SPECS + VARIANTS)
def test_build_forward_and_backward(spec: str) -> None:
    check_forward(built(spec, shape_of(spec)), shape_of(spec))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (spec, shape)
        for spec in LIGHT
        for shape in (GREY, COLOUR, (2, 36, 44))
        if shape != shape_of(spec)
    ],
    ids=str,
)
def test_build_other_channels_and_sizes(spec: str, shape: Shape) -> None:
    check_forward(fresh(spec, shape), shape)


@pytest.mark.parametrize("spec", sorted(HEAVY | {"vit-base", "deit-base"}))
@pytest.mark.parametrize("shape", [GREY, (3, 64, 64)], ids=str)
def test_build_heavy_nets_for_other_shapes(spec: str, shape: Shape) -> None:
    with torch.device("meta"):
        assert ModelSpec.parse(spec).skeleton(shape, 7)(torch.empty(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("spec", LIGHT)
def test_state_dict_round_trip(spec: str) -> None:
    shape = shape_of(spec)
    net, other = built(spec, shape), ModelSpec.parse(spec).build(shape, 10, seed=1).eval()
    assert not torch.equal(net(images(shape)), other(images(shape)))
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(images(shape)), other(images(shape)))
    blank = (
        ModelSpec.parse(spec).blank(shape, 10).eval()
    )  # nothing drawn, all loaded; what is not loaded is computed as ever
    blank.load_state_dict(net.state_dict())
    assert torch.equal(net(images(shape)), blank(images(shape)))


@pytest.mark.parametrize("spec", SPECS)
def test_blank_leaves_the_random_state(spec: str) -> None:
    before = torch.get_rng_state()
    blank = ModelSpec.parse(spec).blank(shape_of(spec), 10)
    assert torch.equal(torch.get_rng_state(), before)
    large = [value for value in blank.parameters() if value.ndim > 1]
    assert not any(bool(value.any()) for value in large), "weights were drawn"


def test_skip_initialisation_with_truncated_draws() -> None:
    """``trunc_normal_`` would wait for ever for a 0 that lies in its range."""
    weight = nn.Parameter(torch.empty(4, 4))
    with torch.random.fork_rng(devices=[]), SkipInitialisation():
        nn.init.trunc_normal_(weight, mean=1.0, std=1.0, a=0.5, b=3.0)
    assert bool((weight >= 0.5).all())


@pytest.mark.parametrize("spec", [*LIGHT, "efficientnetv2-s"])
def test_build_same_seed_same_bits(spec: str) -> None:
    shape = shape_of(spec)
    first = ModelSpec.parse(spec).build(shape, 10, seed=3).state_dict()
    torch.rand(7)  # what was drawn before must not matter
    second = ModelSpec.parse(spec).build(shape, 10, seed=3).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("spec", SPECS + VARIANTS)
def test_skeleton_has_the_shapes_of_the_net(spec: str) -> None:
    shape = shape_of(spec)
    state = built(spec, shape).state_dict()
    skeleton = ModelSpec.parse(spec).skeleton(shape, 10).state_dict()
    assert all(value.is_meta for value in skeleton.values())
    assert {k: (v.shape, v.dtype) for k, v in skeleton.items()} == {
        k: (v.shape, v.dtype) for k, v in state.items()
    }


def test_cnn_mho_softmax_before_cross_entropy() -> None:
    """As FedMHO's code has its small CNN: the same weights, and probabilities where logits are
    expected.
    """
    usual, softened = (
        ModelSpec.parse(f"cnn-mho:form=mnist{end}").build(GREY, 10, seed=3)
        for end in ("", ",softmax=true")
    )
    assert softened.state_dict().keys() == usual.state_dict().keys()
    images = torch.rand(4, *GREY)
    torch.testing.assert_close(softened(images), usual(images).softmax(-1))
    torch.testing.assert_close(softened.features(images), usual.features(images))


# Published sizes


@pytest.mark.parametrize("name", sorted(name for name in NETS if NETS[name].published_parameters))
def test_build_has_published_parameters(name: str) -> None:
    assert parameters(name, NETS[name].usual_shape, 10) == NETS[name].published_parameters


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "published"),
    [
        ("cnn5", COLOUR, 100, 503_652),
        ("cnn-mho", GREY, 47, 298_927),
        ("cnn-mho", COLOUR, 10, 117_930),
        ("vgg9", GREY, 47, 69_317_935),  # the paper's code: 69.32 M
        ("vgg11:batchnorm=false", COLOUR, 10, 9_225_610),
        ("vgg11:batchnorm=false,hidden=512", COLOUR, 10, 9_750_922),
        ("mobilenetv2", COLOUR, 1000, 3_504_872),
        ("mobilenetv2:stem=imagenet", COLOUR, 1000, 3_504_872),
        ("mobilenetv3-small", COLOUR, 1000, 2_542_856),
        ("shufflenetv2", COLOUR, 1000, 2_278_604),
        ("googlenet", COLOUR, 1000, 6_624_904),
        ("efficientnetv2-s", COLOUR, 1000, 21_458_488),
        ("efficientnet-lite0", (3, 224, 224), 1000, 4_652_008),
        ("efficientnet-lite1", (3, 240, 240), 1000, 5_416_680),
        ("vit-base:patch=16", (3, 224, 224), 1000, 86_567_656),
        ("deit-tiny:patch=16", (3, 224, 224), 1000, 5_717_416),
        ("deit-small:patch=16", (3, 224, 224), 1000, 22_050_664),
        ("deit-base:patch=16", (3, 224, 224), 1000, 86_567_656),
        ("deit-tiny:patch=16,distilled=true", (3, 224, 224), 1000, 5_910_800),
    ],
)
def test_build_has_parameters_published_elsewhere(
    spec: str, shape: Shape, classes: int, published: int
) -> None:
    assert parameters(spec, shape, classes) == published


@pytest.mark.parametrize(
    "spec", ["resnet18", "mobilenetv2", "mobilenetv3-small", "shufflenetv2", "googlenet"]
)
def test_small_stem_ends_in_four_by_four(spec: str) -> None:
    """Up to V3's pooled end, which is one pixel by design."""
    sides = []
    net = ModelSpec.parse(spec).skeleton(COLOUR, 10)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _, __, output: sides.append(output.shape[-1]))
    with torch.device("meta"):
        net(torch.empty(2, *COLOUR))
    assert sides[0] == 32
    assert sides[-1] == 4


# Stacked calls


def stacked_and_looped(nets: list[nn.Module], x: Tensor) -> tuple[Tensor, Tensor]:
    state, buffers = stack_module_state(nets)
    stacked = vmap(lambda s, b: functional_call(nets[0], (s, b), (x,)))(state, buffers)
    return stacked, torch.stack([net(x) for net in nets])


@pytest.mark.parametrize("spec", LIGHT)
def test_nets_stacked_equal_loop(spec: str) -> None:
    shape = shape_of(spec)
    with torch.no_grad():
        stacked, looped = stacked_and_looped(
            [built(spec, shape, seed) for seed in (0, 1)], images(shape)
        )
    assert torch.allclose(stacked, looped, atol=1e-5)


@pytest.mark.parametrize("spec", ["resnet34", "resnet50", "efficientnetv2-s"])
def test_heavy_nets_stacked_equal_loop(spec: str) -> None:
    with torch.no_grad():
        stacked, looped = stacked_and_looped(
            [fresh(spec, (3, 16, 16), seed) for seed in (0, 1)], images((3, 16, 16))
        )
    assert torch.allclose(stacked, looped, atol=1e-5)


def test_vgg9_stacked_equals_loop() -> None:
    """Its hidden layers are two linear ones, and 68 million parameters."""
    trunk = built("vgg9", COLOUR).get_submodule("trunk")
    other = deepcopy(trunk)
    other.load_state_dict({name: 0.5 * value for name, value in trunk.state_dict().items()})
    with torch.no_grad():
        stacked, looped = stacked_and_looped([trunk, other], images(COLOUR))
    assert torch.allclose(stacked, looped, atol=1e-5)


@pytest.mark.parametrize("spec", [*LIGHT, "resnet50", "efficientnetv2-s"])
def test_nets_run_stacked_in_training_mode(spec: str) -> None:
    shape = (shape_of(spec)[0], 24, 24)
    nets = [ModelSpec.parse(spec).build(shape, 10, seed).train() for seed in (0, 1)]
    state, buffers = stack_module_state(nets)
    x = images(shape)
    with torch.no_grad():
        logits = vmap(lambda s, b: functional_call(nets[0], (s, b), (x,)), randomness="different")(
            state, buffers
        )
    assert logits.shape == (2, 2, 10)
    assert logits.isfinite().all()
    counts = [value for name, value in buffers.items() if name.endswith("num_batches_tracked")]
    assert all((count == 1).all() for count in counts)


@pytest.mark.parametrize(
    "spec", ["cnn5", "resnet20", "wrn16-1", "shufflenetv2", "mobilenetv3-small", "vit-tiny:depth=1"]
)
def test_stacked_training_step_equals_loop(spec: str) -> None:
    """Gradients and, where there is BatchNorm, running statistics: one step of two nets on their
    own batches.
    """
    shape = (3, 24, 24)
    x = torch.stack([images(shape, 8, seed) for seed in (0, 1)])
    y = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
    nets = [ModelSpec.parse(spec).build(shape, 10, seed).train() for seed in (0, 1)]
    weights, buffers = stack_module_state(nets)
    logits = vmap(lambda w, b, x: functional_call(nets[0], (w, b), (x,)))(weights, buffers, x)
    gradients = torch.autograd.grad(
        F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum"), tuple(weights.values())
    )
    for number, net in enumerate(nets):
        F.cross_entropy(net(x[number]), y[number], reduction="sum").backward()
        for name, gradient in zip(weights, gradients, strict=True):
            own = net.get_parameter(name).grad
            assert own is not None
            assert torch.allclose(gradient[number], own, rtol=1e-3, atol=1e-4), name
        for name, value in buffers.items():
            assert torch.allclose(value[number], net.get_buffer(name), atol=1e-5), name
    if spec == "resnet20":
        assert (buffers["trunk.stem.1.num_batches_tracked"] == 1).all()
        assert (buffers["trunk.stem.1.running_mean"] != 0).all()


def test_dropout_runs_stacked_with_randomness() -> None:
    nets = [
        ModelSpec.parse("vit-tiny:depth=1,dropout=0.5").build(COLOUR, 10, seed).train()
        for seed in (0, 0)
    ]
    weights, _ = stack_module_state(nets)
    x = images(COLOUR)
    logits = vmap(lambda w: functional_call(nets[0], w, (x,)), randomness="different")(weights)
    assert not torch.allclose(logits[0], logits[1])


# What is refused


@pytest.mark.parametrize("spec", sorted(SMALLEST))
def test_require_side_names_the_smallest_size(spec: str) -> None:
    smallest = SMALLEST[spec]
    channels = shape_of(spec)[0]
    skeleton = ModelSpec.parse(spec).skeleton((channels, smallest, smallest), 10).eval()
    assert skeleton(torch.empty(2, channels, smallest, smallest, device="meta")).shape == (2, 10)
    with pytest.raises(SpecError, match=f"at least {smallest} x {smallest}"):
        ModelSpec.parse(spec).skeleton((channels, smallest + 4, smallest - 1), 10)


def test_build_names_the_smallest_size() -> None:
    without = {"mlp"} | {
        name for name in NETS if name.startswith(("vit", "deit"))
    }  # their patch is the smallest
    assert {spec.partition(":")[0] for spec in SMALLEST} | without == set(CLASSIFIERS)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("mlp:hidden=0", "hidden = 0"),
        ("mlp:layers=65", "layers = 65"),
        ("vgg9:dropout=1", "dropout = 1"),
        ("vit-tiny:dropout=1,depth=0,patch=0", "(?s)dropout = 1.*depth = 0.*patch = 0"),
        ("vit-tiny:depth=4096", "depth = 4096"),
        ("vit:heads=5", "heads = 5"),
        ("vit:width=0", "width = 0"),
        ("vit-tiny:patch=5", "must divide"),
    ],
)
def test_require_options_refuses_values_out_of_range(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        ModelSpec.parse(spec).skeleton(COLOUR, 10)


@pytest.mark.parametrize(
    "text", ["mlp:width=3", "cnn-mho:form=svhn", "vit-tiny:patch=small", "resnet18:depth=3"]
)
def test_check_options_refuses_unknown_options(text: str) -> None:
    with pytest.raises(SettingsError):
        ModelSpec.parse(text)


def test_register_refuses_options_without_type() -> None:
    def mine(
        input_shape: Shape, num_classes: int, width=8, depth: int = 2, *, wide=False
    ) -> nn.Module:  # type: ignore[no-untyped-def]
        return nn.Identity()

    with pytest.raises(SpecError, match="Net 'mine' has options without a type: width, wide"):
        register("mine", "Mine.")(mine)
    assert "mine" not in NETS


def test_vit_refuses_too_many_patches() -> None:
    with pytest.raises(SpecError, match="more than 4096 patches"):
        ModelSpec.parse("vit-tiny:patch=1").skeleton((3, 128, 128), 10)


# FedMHO's forms


@pytest.mark.parametrize(
    ("shape", "classes", "form"),
    [(GREY, 10, "mnist"), (GREY, 47, "emnist"), (COLOUR, 10, "cifar"), (COLOUR, 47, "cifar")],
)
def test_cnn_mho_form_follows_the_task(shape: Shape, classes: int, form: str) -> None:
    assert parameters("cnn-mho", shape, classes) == parameters(
        f"cnn-mho:form={form}", shape, classes
    )


# Tokens of the transformers


@pytest.fixture(params=["vit-tiny:depth=2", "deit-tiny:depth=2,distilled=true"])
def vit(request: pytest.FixtureRequest) -> ViT:
    net = built(request.param, COLOUR)
    assert isinstance(net, ViT)
    return net


def test_look_with_all_patches_is_the_full_net(vit: ViT) -> None:
    x = images(COLOUR)
    everything = torch.arange(64).expand(2, -1)
    full, attention = vit.attend(x)
    assert full.shape == (2, vit.extra + 64, 192)
    assert attention.shape == (2, 3, 64)
    kept, kept_attention = vit.attend(x, everything)
    assert torch.equal(full, kept)
    assert torch.equal(attention, kept_attention)
    assert torch.equal(vit.tokens(x)[:, : vit.extra].flatten(1), vit.features(x))


def test_look_ignores_the_order_of_patches(vit: ViT) -> None:
    x = images(COLOUR)
    order = torch.stack(
        [torch.randperm(64, generator=torch.Generator().manual_seed(s)) for s in (0, 1)]
    )
    shuffled, attention = vit.attend(x, order)
    full, full_attention = vit.attend(x)
    assert torch.allclose(shuffled[:, : vit.extra], full[:, : vit.extra], atol=1e-5)
    assert torch.allclose(
        attention, full_attention.gather(2, order[:, None].expand(-1, 3, -1)), atol=1e-6
    )


def test_look_gathers_a_subset_of_patches(vit: ViT) -> None:
    """One image at a time, its tokens picked by hand behind the position embedding."""
    x = images(COLOUR)
    keep = torch.tensor([[3, 0, 63, 17], [5, 6, 7, 40]])
    tokens, attention = vit.attend(x, keep)
    assert tokens.shape == (2, vit.extra + 4, 192)
    assert attention.shape == (2, 3, 4)
    for number in range(2):
        grid = vit.embed(x[number : number + 1])[0]  # width x 8 x 8
        picked = [
            grid[:, i // 8, i % 8] + vit.positions[0, vit.extra + i] for i in keep[number].tolist()
        ]
        extra = [vit.tokens_extra[0, i] + vit.positions[0, i] for i in range(vit.extra)]
        expected = torch.stack(extra + picked)[None]
        for block in vit.blocks:
            expected, weights = block(expected)
        assert torch.allclose(tokens[number], vit.norm(expected)[0], atol=1e-5)
        assert torch.allclose(attention[number], weights[0, :, 0, vit.extra :], atol=1e-6)


def test_look_gives_left_out_patches_no_gradient(vit: ViT) -> None:
    x = images(COLOUR).requires_grad_()
    keep = torch.tensor([[0, 1], [9, 63]])
    (gradient,) = torch.autograd.grad(vit.tokens(x, keep).square().sum(), x)
    touched = F.max_pool2d(gradient.abs().sum(1), 4).flatten(1) > 0
    assert torch.equal(touched, F.one_hot(keep, 64).sum(1) > 0)


def test_attention_equals_the_fused_kernel(vit: ViT) -> None:
    attention = vit.blocks[0].get_submodule("attention")
    x = torch.randn(2, 5, 192, generator=torch.Generator().manual_seed(0))
    mixed, weights = attention(x)
    query, key, value = (
        attention.get_submodule("qkv")(x).view(2, 5, 3, 3, 64).permute(2, 0, 3, 1, 4)
    )
    fused = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(2, 5, 192)
    assert torch.allclose(mixed, attention.get_submodule("project")(fused), atol=1e-5)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 3, 5))


def test_look_runs_stacked() -> None:
    nets = [built("vit-tiny:depth=2", COLOUR, seed) for seed in (0, 1)]
    weights, _ = stack_module_state(nets)
    x, keep = images(COLOUR), torch.tensor([[[1, 2], [3, 4]], [[5, 6], [7, 8]]])

    class Tokens(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            assert isinstance(self.net, ViT)
            return self.net.tokens(x, keep)

    named = {f"net.{name}": value for name, value in weights.items()}
    stacked = vmap(lambda w, k: functional_call(Tokens(nets[0]), w, (x, k)))(named, keep)
    looped = torch.stack([Tokens(net)(x, k) for net, k in zip(nets, keep, strict=True)])
    assert torch.allclose(stacked, looped, atol=1e-5)
