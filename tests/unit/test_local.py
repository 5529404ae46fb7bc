"""Local training against its textbook twin: one client after the other, ``nn.Module`` in train
mode, ``torch.optim``.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from attar import seeds
from attar.blocks.execution.cuda_graphs import Replay
from attar.blocks.images import augment
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import DataError, DivergedError, RunError, SettingsError, SpecError
from attar.fusion import server_for
from attar.nets import registry
from attar.nets.registry import Shape
from attar.running import save_state
from attar.settings import configure
from attar.training import ClassifierTraining, group_clients, stacking, train_classifiers
from attar.training import loop as session
from attar.training.classifier import ClientData, LocalTraining, TrainingState
from attar.training.clients import split

CLASSES = ("a", "b", "c")
SHAPE = (1, 6, 6)
PREPROCESS = Preprocess.centred(SHAPE)
PLAIN, NORMED, DROPPING = (
    ModelSpec("test-plain"),
    ModelSpec("test-normed"),
    ModelSpec("test-dropping"),
)
SIZES = {"ann": 40, "bob": 17, "cy": 33, "dee": 1}
QUICK = LocalTraining(epochs=2, batch_size=16, lr=0.05)


class Tiny(nn.Module):
    def __init__(self, shape: Shape, classes: int, middle: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3, padding=1), middle, nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(4 * shape[1] * shape[2], classes)
        self.unused = nn.Linear(2, 2)  # torch.optim leaves parameters without a gradient alone

    def features(self, x: Tensor) -> Tensor:
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def plain(input_shape: Shape, num_classes: int) -> nn.Module:
    return Tiny(input_shape, num_classes, nn.Identity())


def normed(input_shape: Shape, num_classes: int) -> nn.Module:
    return Tiny(input_shape, num_classes, nn.BatchNorm2d(4))


def dropping(input_shape: Shape, num_classes: int) -> nn.Module:
    return Tiny(input_shape, num_classes, nn.Dropout(0.5))


@pytest.fixture(autouse=True)
def _nets(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, builder in ((PLAIN, plain), (NORMED, normed), (DROPPING, dropping)):
        monkeypatch.setitem(
            registry.NETS, spec.arch, registry.NetEntry(spec.arch, builder, "for tests")
        )


def client(name: str, size: int) -> ClientData:
    draw = seeds.generator(0, "data", name)
    pixels = torch.randint(0, 256, (size, *SHAPE), generator=draw, dtype=torch.uint8)
    return ClientData(
        name, pixels, torch.randint(0, len(CLASSES), (size,), generator=draw), CLASSES
    )


def clients() -> list[ClientData]:
    return [client(name, size) for name, size in SIZES.items()]


def double_start(spec: ModelSpec) -> Part:
    """A model in double precision to start from: then stack and twin must agree to many digits."""
    net = spec.build(SHAPE, len(CLASSES), seed=5).double()
    return Part(spec, net.state_dict(), CLASSES, PREPROCESS)


def twin(data: ClientData, start: Part, training: LocalTraining, seed: int) -> dict[str, Tensor]:
    """The obvious code."""
    net = start.spec.build(SHAPE, len(CLASSES), seed=0).double()
    net.load_state_dict(dict(start.state))
    net.train()
    optimiser: torch.optim.Optimizer
    if training.optimiser == "adam":
        optimiser = torch.optim.Adam(
            net.parameters(), training.lr, weight_decay=training.weight_decay
        )
    else:
        optimiser = torch.optim.SGD(
            net.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
        )
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for epoch in range(training.epochs):
        for group in optimiser.param_groups:
            group["lr"] = training.rate(epoch)
        order = torch.randperm(
            len(data.labels), generator=seeds.generator(seed, "shuffle", data.name, epoch)
        )
        cuts = augment.draw(
            training.augment, len(order), seeds.generator(seed, "augment", data.name, epoch)
        )
        for start_at in range(0, len(order), training.batch_size):
            rows = order[start_at : start_at + training.batch_size]
            pixels = data.pixels[rows]
            if training.augment != "none":
                pixels = cut_one_by_one(pixels, cuts[start_at : start_at + training.batch_size])
            inputs, labels = PREPROCESS(pixels.double() / 255), data.labels[rows]
            if len(rows) == 1:
                inputs, labels = inputs.repeat(2, 1, 1, 1), labels.repeat(2)
            optimiser.zero_grad()
            F.cross_entropy(net(inputs), labels).backward()
            if training.sam:
                used = [param for param in net.parameters() if param.grad is not None]
                norm = torch.cat([param.grad.flatten() for param in used]).norm()
                before = [param.detach().clone() for param in used]
                with torch.no_grad():
                    for param in used:
                        param.add_(training.sam * param.grad / norm)
                statistics = [copy.deepcopy(module.state_dict()) for module in norms]
                optimiser.zero_grad()
                F.cross_entropy(net(inputs), labels).backward()
                for module, values in zip(norms, statistics, strict=True):
                    module.running_mean.copy_(values["running_mean"])
                    module.running_var.copy_(values["running_var"])
                    module.num_batches_tracked.copy_(values["num_batches_tracked"])
                with torch.no_grad():
                    for param, value in zip(used, before, strict=True):
                        param.copy_(value)
            if training.clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), training.clip)
            optimiser.step()
    return net.state_dict()


def cut_one_by_one(pixels: Tensor, cuts: Tensor) -> Tensor:
    done = []
    for image, (top, left, mirror) in zip(pixels, cuts.tolist(), strict=True):
        cut = F.pad(image, (4, 4, 4, 4))[
            :, top : top + image.shape[1], left : left + image.shape[2]
        ]
        done.append(cut.flip(2) if mirror else cut)
    return torch.stack(done)


def weights(upload: Upload) -> dict[str, Tensor]:
    return dict(upload.parts["classifier"].state)


def assert_same_bits(one: Sequence[Upload], other: Sequence[Upload]) -> None:
    for a, b in zip(one, other, strict=True):
        assert replace(a, parts={}) == replace(b, parts={})
        assert weights(a).keys() == weights(b).keys()
        assert all(torch.equal(weights(a)[key], weights(b)[key]) for key in weights(a))


VARIANTS = {
    "sgd": QUICK,
    "no momentum": replace(QUICK, momentum=0.0),
    "adam": replace(QUICK, optimiser="adam", lr=0.003),
    "decay": replace(QUICK, weight_decay=0.1),
    "adam decay": replace(QUICK, optimiser="adam", lr=0.003, weight_decay=0.1),
    "sam": replace(QUICK, sam=0.1),
    "clip": replace(QUICK, clip=0.2),
    "all": replace(
        QUICK,
        sam=0.05,
        clip=0.5,
        weight_decay=0.01,
        schedule="cosine",
        augment="crop-flip",
        epochs=3,
    ),
}


@pytest.mark.parametrize("stack", ["always", "never"])
@pytest.mark.parametrize("spec", [PLAIN, NORMED], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_twin(variant: str, spec: ModelSpec, stack: str) -> None:
    training, start = replace(VARIANTS[variant], stack=stack), double_start(spec)
    uploads = train_classifiers(clients(), [spec] * 4, training, seed=3, initial=start)
    for data, upload in zip(clients(), uploads, strict=True):
        expected = twin(data, start, training, seed=3)
        assert upload.client == data.name
        torch.testing.assert_close(weights(upload), expected, atol=1e-9, rtol=1e-9)
        assert not torch.equal(weights(upload)["head.weight"], start.state["head.weight"])
        assert upload.local_steps == training.epochs * -(-len(data.labels) // 16)


@pytest.mark.parametrize("spec", [PLAIN, NORMED], ids=str)
def test_stacked_equals_one_by_one_in_single_precision(spec: ModelSpec) -> None:
    stacked, single = (
        train_classifiers(clients(), [spec] * 4, replace(QUICK, stack=stack))
        for stack in ("always", "never")
    )
    for one, other in zip(stacked, single, strict=True):
        torch.testing.assert_close(weights(one), weights(other), atol=1e-5, rtol=1e-4)
        assert weights(one)["head.weight"].dtype == torch.float32


@pytest.mark.parametrize("stack", ["always", "never"])
def test_same_seed_same_bits_and_global_randomness_untouched(stack: str) -> None:
    training = replace(QUICK, stack=stack, augment="crop")
    torch.manual_seed(1)
    first = train_classifiers(clients(), [DROPPING] * 4, training, seed=7)
    after = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(3))
    assert_same_bits(first, train_classifiers(clients(), [DROPPING] * 4, training, seed=7))
    other = train_classifiers(clients(), [DROPPING] * 4, training, seed=8)
    assert not torch.equal(weights(first[0])["head.weight"], weights(other[0])["head.weight"])


@pytest.mark.parametrize("stack", ["always", "never"])
def test_a_client_does_not_depend_on_company_or_order(stack: str) -> None:
    training = replace(QUICK, stack=stack, augment="crop-flip")
    together = {u.client: u for u in train_classifiers(clients(), [NORMED] * 4, training)}
    for data in clients():
        (alone,) = train_classifiers([data], [NORMED], training)
        torch.testing.assert_close(
            weights(alone), weights(together[data.name]), atol=1e-5, rtol=1e-4
        )
    backwards = train_classifiers(clients()[::-1], [NORMED] * 4, training)
    assert [upload.client for upload in backwards] == list(SIZES)[::-1]
    assert_same_bits(backwards[::-1], list(together.values()))


def test_one_by_one_dropout_is_each_clients_own() -> None:
    training = replace(QUICK, stack="never")
    together = train_classifiers(clients(), [DROPPING] * 4, training)
    (alone,) = train_classifiers([clients()[1]], [DROPPING], training)
    assert_same_bits([alone], [together[1]])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("stack", ["always", "never"])
def test_going_on_from_a_saved_state_gives_the_same_bits(stack: str, optimiser: str) -> None:
    settings = {
        "epochs": 4,
        "stack": stack,
        "optimiser": optimiser,
        "schedule": "step",
        "augment": "crop-flip",
    }
    training = configure(
        LocalTraining, {**settings, "batch_size": 16, "validation": 0.2}, of="training"
    )

    def fresh() -> ClassifierTraining:
        return ClassifierTraining(clients(), DROPPING, PREPROCESS, training, seed=2)

    def go_on(run: ClassifierTraining, state: TrainingState, epochs: int) -> TrainingState:
        (phase,) = run.phases()
        for _ in range(epochs):
            phase.step(state)
            state.step += 1
        return state

    straight = fresh()
    whole = go_on(straight, straight.start(), 4)
    killed = fresh()
    saved = copy.deepcopy(go_on(killed, killed.start(), 2))
    resumed = fresh()
    assert_same_bits(straight.uploads(whole), resumed.uploads(go_on(resumed, saved, 2)))


def test_shared_and_separate_beginnings() -> None:
    shared = ClassifierTraining(clients(), PLAIN, PREPROCESS, QUICK).start().params["head.weight"]
    assert all(torch.equal(shared[0], other) for other in shared)
    separate = ClassifierTraining(
        clients(), PLAIN, PREPROCESS, replace(QUICK, init="separate")
    ).start()
    assert len({tuple(own.flatten().tolist()) for own in separate.params["head.weight"]}) == len(
        SIZES
    )


def test_inputs_are_never_changed() -> None:
    data, start = clients(), double_start(NORMED)
    before = copy.deepcopy((data, start))
    train_classifiers(data, [NORMED] * 4, replace(QUICK, validation=0.3, sam=0.1), initial=start)
    for held, kept in zip(data, before[0], strict=True):
        assert torch.equal(held.pixels, kept.pixels)
        assert torch.equal(held.labels, kept.labels)
    assert all(torch.equal(value, before[1].state[key]) for key, value in start.state.items())


def test_uploads_do_not_share_memory_with_the_state() -> None:
    run = ClassifierTraining(clients(), NORMED, PREPROCESS, QUICK)
    state = run.start()
    uploads = run.uploads(state)
    before = [copy.deepcopy(weights(upload)) for upload in uploads]
    run.phases()[0].step(state)
    for upload, kept in zip(uploads, before, strict=True):
        torch.testing.assert_close(weights(upload), kept, atol=0, rtol=0)


def separable(name: str, size: int) -> ClientData:
    """Class k lights up the k-th pair of rows."""
    draw = seeds.generator(0, "separable", name)
    labels = torch.arange(size) % len(CLASSES)
    pixels = torch.randint(0, 60, (size, *SHAPE), generator=draw, dtype=torch.uint8)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 2 * label : 2 * label + 2] += 150
    return ClientData(name, pixels, labels, CLASSES)


def test_learning_happens_and_validation_reports_it() -> None:
    data = [separable("x", 90), separable("y", 60)]
    seen = []
    run = ClassifierTraining(data, NORMED, PREPROCESS, replace(QUICK, epochs=8, validation=0.25))
    state = run.start()
    for _ in range(8):
        seen.append(run.phases()[0].step(state))
        state.step += 1
    assert float(seen[-1]["loss"]) < 0.3 * float(seen[0]["loss"])
    assert float(seen[-1]["accuracy"]) > 0.9
    accuracies = run.validation(state)
    assert list(accuracies) == ["x", "y"]
    assert min(accuracies.values()) > 0.9
    assert [(u.num_examples, u.label_counts) for u in run.uploads(state)] == [
        (66, (22,) * 3),
        (45, (15,) * 3),
    ]


def test_validation_is_stratified_and_leaves_no_class_without_images() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10 + [2])
    data = ClientData("z", torch.zeros(31, *SHAPE, dtype=torch.uint8), labels, CLASSES)
    train, kept = split(data, 0.3, seed=0)
    assert labels[kept].bincount(minlength=3).tolist() == [6, 3, 0]
    assert sorted([*train.tolist(), *kept.tolist()]) == list(range(31))
    assert torch.equal(kept, split(data, 0.3, seed=0)[1])
    assert not torch.equal(kept, split(data, 0.3, seed=1)[1])
    assert len(split(data, 0.99, seed=0)[0]) == 3


def test_clients_too_small_to_keep_images_back_are_absent() -> None:
    run = ClassifierTraining([client("dee", 1)], PLAIN, PREPROCESS, replace(QUICK, validation=0.5))
    state = run.start()
    assert run.phases()[0].step(state).keys() == {"loss"}
    assert run.validation(state) == {}


def test_augmentation_cuts_and_flips() -> None:
    draw = seeds.generator(0, "images")
    images = torch.rand(50, 3, 7, 5, generator=draw)
    for kind in ("flip", "crop", "crop-flip"):
        choice = augment.draw(kind, 50, draw)  # type: ignore[arg-type]
        result = augment.apply(images, choice)
        assert result.shape == images.shape
        assert 0 <= float(result.min()) <= float(result.max()) <= 1
        assert torch.equal(result, cut_one_by_one(images, choice))
        assert bool(choice[:, 2].any()) == ("flip" in kind)
        assert bool((choice[:, :2] == augment.PAD).all()) == (kind == "flip")
    middle = torch.tensor([[4, 4, 0], [4, 4, 1]])
    kept, mirrored = augment.apply(images[:1].repeat(2, 1, 1, 1), middle)
    assert torch.equal(kept, images[0])
    assert torch.equal(mirrored, images[0].flip(2))


def test_nets_may_be_called_by_their_names_one_for_each_client() -> None:
    data = clients()
    named, built = (
        train_classifiers(data, [net] * len(data), QUICK) for net in (str(PLAIN), PLAIN)
    )
    assert [one.parts["classifier"].fingerprint() for one in named] == [
        one.parts["classifier"].fingerprint() for one in built
    ]
    with pytest.raises(SpecError, match="4 clients, but 1 nets"):
        train_classifiers(data, [PLAIN], QUICK)


def test_groups_by_architecture_shape_and_classes() -> None:
    small = ClientData(
        "small", torch.zeros(4, 1, 4, 4, dtype=torch.uint8), torch.arange(4) % 2, ("b", "z")
    )
    data = [*clients(), small]
    specs = [PLAIN, NORMED, PLAIN, NORMED, PLAIN]
    groups = group_clients(data, specs, QUICK)
    assert [[c.name for c in group.clients] for group in groups] == [
        ["ann", "cy"],
        ["bob", "dee"],
        ["small"],
    ]
    uploads = train_classifiers(data, specs, QUICK, withhold_counts=True)
    assert [(u.client, u.parts["classifier"].spec) for u in uploads] == [
        (c.name, spec) for c, spec in zip(data, specs, strict=True)
    ]
    assert {u.label_counts for u in uploads} == {None}
    last = uploads[-1].parts["classifier"]
    assert (last.classes, last.preprocess) == (("b", "z"), Preprocess.centred((1, 4, 4)))
    assert last.build()(torch.zeros(2, 1, 4, 4)).shape == (2, 2)


def test_images_reach_a_net_as_the_training_says_and_it_tells_the_server() -> None:
    """The same images in [0, 1]: other weights, and a part that says which; a model to start
    from keeps its own form.
    """
    data = clients()
    centred, plain_ones = (
        train_classifiers(data, [PLAIN] * 4, replace(QUICK, normalise=n))
        for n in ("centred", "plain")
    )
    first, second = (uploads[0].parts["classifier"] for uploads in (centred, plain_ones))
    assert (first.preprocess, second.preprocess) == (PREPROCESS, Preprocess.plain(SHAPE))
    assert not torch.equal(first.state["head.weight"], second.state["head.weight"])
    assert second.preprocess(torch.full((1, *SHAPE), 0.25)).unique().tolist() == [0.25]
    server = server_for(plain_ones)
    assert server.student_preprocess == second.preprocess
    (run,) = group_clients(data, [PLAIN] * 4, replace(QUICK, normalise="centred"), initial=second)
    assert run.preprocess == second.preprocess


def test_watch_sees_every_epoch() -> None:
    seen = []
    train_classifiers(
        clients(),
        [PLAIN] * 4,
        QUICK,
        watch=lambda run, state, metrics: seen.append((run.spec, state.step, metrics)),
    )
    assert [(spec, step) for spec, step, _ in seen] == [(PLAIN, 1), (PLAIN, 2)]
    assert all(float(metrics["loss"]) > 0 for _, _, metrics in seen)


def test_no_epochs_sends_the_beginning() -> None:
    start = double_start(NORMED)
    (upload,) = train_classifiers(
        [client("ann", 3)], [NORMED], replace(QUICK, epochs=0), initial=start
    )
    torch.testing.assert_close(weights(upload), dict(start.state), atol=0, rtol=0)
    assert upload.local_steps == 0


def test_every_problem_of_every_client_in_one_error() -> None:
    empty = ClientData(
        "empty",
        torch.zeros(0, *SHAPE, dtype=torch.uint8),
        torch.zeros(0, dtype=torch.int64),
        CLASSES,
    )
    wrong = replace(client("wrong", 4), labels=torch.tensor([0, 1, 2, 3]))
    short = replace(client("short", 4), labels=torch.tensor([0, 1]))
    floats = replace(client("floats", 2), pixels=torch.zeros(2, *SHAPE))
    data = [empty, wrong, short, floats, client("twice", 2), client("twice", 2)]
    with pytest.raises(DataError) as raised:
        train_classifiers(data, [PLAIN] * 6, QUICK)
    assert len(raised.value.problems) == 5
    for words in (
        "'empty': has no images",
        "'wrong': labels from 0 to 3",
        "'short'",
        "'floats'",
        "'twice'",
    ):
        assert words in str(raised.value)


def test_a_start_that_does_not_fit_is_refused() -> None:
    start = double_start(NORMED)
    with pytest.raises(SpecError) as raised:
        train_classifiers(
            [client("ann", 4), client("bob", 4), client("eve", 4)],
            [PLAIN, NORMED, PLAIN],
            QUICK,
            initial=start,
        )
    assert len(raised.value.problems) == 2
    broken = replace(start, state={**start.state, "head.bias": torch.zeros(9)})
    with pytest.raises(SpecError, match=r"head\.bias"):
        train_classifiers([client("ann", 4)], [NORMED], QUICK, initial=broken)
    with pytest.raises(SpecError, match="prepares"):
        ClassifierTraining(
            [client("ann", 4)], NORMED, Preprocess(SHAPE, (0.1,), (1.0,)), QUICK, initial=start
        )


def test_a_start_for_other_classes_keeps_its_body_and_gets_one_fresh_head() -> None:
    start = double_start(NORMED)
    data = [replace(client(name, 4), classes=("a", "b", "x", "y")) for name in ("ann", "bob")]
    uploads = train_classifiers(data, [NORMED] * 2, replace(QUICK, epochs=0), initial=start)
    ann, bob = (upload.parts["classifier"] for upload in uploads)
    assert ann.classes == ("a", "b", "x", "y")
    for name, weight in ann.state.items():
        assert torch.equal(weight, bob.state[name]), "all clients get the same head"
        if name.startswith("head."):
            assert weight.dtype == start.state[name].dtype
            assert len(weight) == 4
        else:
            assert torch.equal(weight, start.state[name])
    assert not torch.equal(ann.state["head.weight"][:3], start.state["head.weight"])
    trained = train_classifiers(data, [NORMED] * 2, QUICK, initial=start)
    assert not torch.equal(
        trained[0].parts["classifier"].state["head.weight"], ann.state["head.weight"]
    )


def test_a_training_does_not_go_on_from_another_start(tmp_path: Path) -> None:
    start, where = double_start(NORMED), tmp_path / ".training"
    stack = ClassifierTraining(
        [client("ann", 4)], NORMED, start.preprocess, replace(QUICK, epochs=2), initial=start
    )
    state = stack.start()
    save_state(where, state, {"training": session.described(stack, "fp32")})
    other = replace(start, state={**start.state, "head.bias": start.state["head.bias"] + 1})
    with pytest.raises(RunError, match="other settings"):
        session.train_stack(replace(stack, initial=other), checkpoint=where)
    read_again = replace(
        start, state=dict(reversed(start.state.items()))
    )  # a file's tensors come in any order
    session.train_stack(replace(stack, initial=read_again), checkpoint=where)


def test_a_training_that_diverges_ends_at_once_and_leaves_nothing_in_the_way(
    tmp_path: Path,
) -> None:
    where, calm = tmp_path / ".training", replace(QUICK, epochs=9)
    stack = ClassifierTraining(
        [client("ann", 9), client("bob", 9)], NORMED, PREPROCESS, replace(calm, lr=1e30)
    )
    with pytest.raises(
        DivergedError,
        match=r"diverged in epoch [1-4] of 9(.|\n)*client ann(.|\n)*smaller learning rate than 1e\+30",
    ):
        session.train_stack(stack, checkpoint=where, checkpoint_seconds=0)
    assert not where.exists()
    session.train_stack(replace(stack, training=calm), checkpoint=where)


def test_a_start_in_half_precision_is_trained_in_single() -> None:
    start = double_start(NORMED)
    halved = replace(
        start,
        state={key: v.bfloat16() if v.is_floating_point() else v for key, v in start.state.items()},
    )
    (upload,) = train_classifiers(
        [client("ann", 3)], [NORMED], replace(QUICK, epochs=0), initial=halved
    )
    for name, weight in upload.parts["classifier"].state.items():
        assert torch.equal(
            weight, halved.state[name].float() if weight.is_floating_point() else halved.state[name]
        )
        assert weight.dtype in (torch.float32, torch.int64)


def test_settings_out_of_range_are_all_named() -> None:
    bad = {
        "epochs": "-1",
        "lr": "0",
        "sam": "-1",
        "validation": "1",
        "clip": "0",
        "momentum": "1",
        "batch_size": "0",
    }
    with pytest.raises(SettingsError) as raised:
        configure(LocalTraining, bad, of="local training")
    assert all(name in str(raised.value) for name in bad)


def test_schedules() -> None:
    step = LocalTraining(epochs=4, lr=1.0, schedule="step")
    assert [round(step.rate(epoch), 6) for epoch in range(4)] == [1, 1, 0.1, 0.01]
    cosine = LocalTraining(epochs=4, lr=1.0, schedule="cosine")
    assert [round(cosine.rate(epoch), 4) for epoch in range(4)] == [1, 0.8536, 0.5, 0.1464]
    assert LocalTraining(lr=0.3).rate(17) == 0.3


@pytest.mark.parametrize("width", [1, 2, 10])
def test_the_plan_gives_every_image_once_and_nothing_in_vain(width: int) -> None:
    sizes = [40, 33, 33, 17, 16, 1]
    given: list[list[int]] = [[] for _ in sizes]
    for call in stacking.plan(sizes, 16, width):
        assert 0 < call.last - call.first <= width
        for index in range(call.first, call.last):
            given[index] += range(call.start, call.start + call.number)
    assert given == [list(range(size)) for size in sizes]
    assert (
        len(list(stacking.plan(sizes, 16, 10))) == 6
    )  # in batches of 16 x 5, 1; 16 x 3, 1; 8, 1 x 2


def test_width_follows_the_net_the_device_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    net, dense = plain(SHAPE, 3), nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    assert stacking.width("auto", net, 5, 16, SHAPE, "cpu") == 1
    assert stacking.width("auto", dense, 5, 16, SHAPE, "cpu") == 5
    assert stacking.width("auto", net, 5, 16, SHAPE, "cuda") == 5
    assert stacking.width("never", dense, 5, 16, SHAPE, "cuda") == 1
    monkeypatch.setattr(
        stacking, "ACTIVATION_BYTES", 2 * 16 * stacking.activation_bytes(net, SHAPE)
    )
    assert stacking.width("always", net, 5, 16, SHAPE, "cpu") == 2


def test_a_narrow_stack_gives_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    training = replace(QUICK, stack="always")
    wide = train_classifiers(clients(), [NORMED] * 4, training, initial=double_start(NORMED))
    monkeypatch.setattr(stacking, "width", lambda *_: 2)
    narrow = train_classifiers(clients(), [NORMED] * 4, training, initial=double_start(NORMED))
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(weights(one), weights(other), atol=1e-9, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_agrees_with_the_cpu() -> None:
    training = replace(QUICK, augment="crop-flip", sam=0.05)
    start = double_start(NORMED)
    here = train_classifiers(clients(), [NORMED] * 4, training, initial=start)
    there = train_classifiers(clients(), [NORMED] * 4, training, initial=start, device="cuda")
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(weights(one), weights(other), atol=1e-8, rtol=1e-8)
    train_classifiers(clients(), [DROPPING] * 4, replace(training, validation=0.2), device="cuda")


# --- recorded steps -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"sam": 0.05, "clip": 1.0}, {"optimiser": "adam", "schedule": "cosine"}]
)
def test_recorded_training_equals_plain_training(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Steps written down as operations (see tests/contract), for a stack with clients of unequal
    sizes.
    """
    training, spec = replace(QUICK, stack="always", batch_size=4, epochs=3, **settings), PLAIN
    plain = train_classifiers(clients(), [spec] * 4, training)
    replay = Replay(
        lambda work, inputs: make_fx(work)(*(torch.zeros_like(value) for value in inputs))
    )
    monkeypatch.setattr("attar.training.resident.run_on", lambda device: replay)
    recorded = train_classifiers(clients(), [spec] * 4, training)
    assert sum(recording is not None for recording in replay._recordings.values()) > 1
    for one, other in zip(plain, recorded, strict=True):
        for name, value in one.parts["classifier"].state.items():
            torch.testing.assert_close(
                value, other.parts["classifier"].state[name], rtol=1e-4, atol=1e-6
            )


@pytest.mark.parametrize("net", [PLAIN, NORMED], ids=str)
@pytest.mark.parametrize(
    "changes", [{}, {"validation": 0.3}, {"sam": 0.05}, {"batch_size": 7, "epochs": 3}], ids=str
)
def test_a_training_sends_what_it_promises(net: ModelSpec, changes: dict[str, Any]) -> None:
    held = clients()
    (stack,) = group_clients(held, [net] * len(held), replace(QUICK, **changes))
    sent, _ = session.train_stack(stack)
    for upload, promised in zip(sent, session.promise(stack), strict=True):
        assert session.unlike(upload, promised) == []
        other = replace(
            promised, client="eve", num_examples=promised.num_examples + 1, label_counts=None
        )
        assert [told.split(":")[0] for told in session.unlike(upload, other)] == [
            "client",
            "images",
            "images of each class",
        ]


@pytest.mark.parametrize(
    ("name", "classes", "told"),
    [("Köln", CLASSES, "its name must be 1 to 64"), ("ann", ("a", "b", "a "), "same name")],
)
def test_names_that_cannot_be_sent_are_said_before_training(
    name: str, classes: tuple[str, ...], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        group_clients([replace(clients()[0], name=name, classes=classes)], [PLAIN], QUICK)
