"""Local training against its textbook twin: one client after the other, ``nn.Module`` in train
mode, ``torch.optim``.
"""

import copy
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import seeds
from attar.blocks.images import apply_augmentation, draw_augmentation
from attar.blocks.images.augment import PAD
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import (
    DataError,
    DivergedError,
    OutOfTime,
    RunError,
    SettingsError,
    SpecError,
)
from attar.fusion import server_for
from attar.nets import registry
from attar.nets.registry import Shape
from attar.running import ProgressReport, save_state
from attar.settings import configure
from attar.training import (
    ClassifierTraining,
    ClientData,
    LocalTraining,
    RoundInput,
    expected_uploads,
    stack_classifiers,
    stacking,
    train_classifiers,
    train_stack,
)
from attar.training.clients import split
from attar.training.loop import describe_training, upload_differences
from attar.training.resident import load_clients
from attar.training.step import TrainingState
from tiny_clients import count_recordings, random_client, record_operations

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
    return random_client(name, size, SHAPE, CLASSES)


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
            len(data.labels), generator=seeds.rng(seed, "shuffle", data.name, epoch)
        )
        cuts = draw_augmentation(
            training.augment, len(order), seeds.rng(seed, "augment", data.name, epoch)
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
def test_train_classifiers_equals_torch_optim(variant: str, spec: ModelSpec, stack: str) -> None:
    training, start = replace(VARIANTS[variant], stack=stack), double_start(spec)
    uploads = train_classifiers(clients(), [spec] * 4, training, seed=3, initial=start)
    for data, upload in zip(clients(), uploads, strict=True):
        expected = twin(data, start, training, seed=3)
        assert upload.client == data.name
        torch.testing.assert_close(weights(upload), expected, atol=1e-9, rtol=1e-9)
        assert not torch.equal(weights(upload)["head.weight"], start.state["head.weight"])
        assert upload.local_steps == training.epochs * -(-len(data.labels) // 16)


@pytest.mark.parametrize("spec", [PLAIN, NORMED], ids=str)
def test_train_classifiers_stacked_equals_one_by_one(spec: ModelSpec) -> None:
    stacked, single = (
        train_classifiers(clients(), [spec] * 4, replace(QUICK, stack=stack))
        for stack in ("always", "never")
    )
    for one, other in zip(stacked, single, strict=True):
        torch.testing.assert_close(weights(one), weights(other), atol=1e-5, rtol=1e-4)
        assert weights(one)["head.weight"].dtype == torch.float32


@pytest.mark.parametrize("stack", ["always", "never"])
def test_train_classifiers_repeats_and_restores_randomness(stack: str) -> None:
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
def test_train_classifiers_ignores_company_and_order(stack: str) -> None:
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


def test_train_classifiers_one_by_one_has_own_dropout() -> None:
    training = replace(QUICK, stack="never")
    together = train_classifiers(clients(), [DROPPING] * 4, training)
    (alone,) = train_classifiers([clients()[1]], [DROPPING], training)
    assert_same_bits([alone], [together[1]])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("stack", ["always", "never"])
def test_phases_resume_to_the_same_bits(stack: str, optimiser: str) -> None:
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


def test_start_shared_and_separate() -> None:
    shared = ClassifierTraining(clients(), PLAIN, PREPROCESS, QUICK).start().params["head.weight"]
    assert all(torch.equal(shared[0], other) for other in shared)
    separate = ClassifierTraining(
        clients(), PLAIN, PREPROCESS, replace(QUICK, init="separate")
    ).start()
    assert len({tuple(own.flatten().tolist()) for own in separate.params["head.weight"]}) == len(
        SIZES
    )


def test_train_classifiers_leaves_its_inputs() -> None:
    data, start = clients(), double_start(NORMED)
    before = copy.deepcopy((data, start))
    train_classifiers(data, [NORMED] * 4, replace(QUICK, validation=0.3, sam=0.1), initial=start)
    for held, copied in zip(data, before[0], strict=True):
        assert torch.equal(held.pixels, copied.pixels)
        assert torch.equal(held.labels, copied.labels)
    assert all(torch.equal(value, before[1].state[key]) for key, value in start.state.items())


def test_uploads_have_memory_of_their_own() -> None:
    run = ClassifierTraining(clients(), NORMED, PREPROCESS, QUICK)
    state = run.start()
    uploads = run.uploads(state)
    before = [copy.deepcopy(weights(upload)) for upload in uploads]
    run.phases()[0].step(state)
    for upload, copied in zip(uploads, before, strict=True):
        torch.testing.assert_close(weights(upload), copied, atol=0, rtol=0)


def separable(name: str, size: int) -> ClientData:
    """Class k lights up the k-th pair of rows."""
    draw = seeds.rng(0, "separable", name)
    labels = torch.arange(size) % len(CLASSES)
    pixels = torch.randint(0, 60, (size, *SHAPE), generator=draw, dtype=torch.uint8)
    for row, label in enumerate(labels.tolist()):
        pixels[row, :, 2 * label : 2 * label + 2] += 150
    return ClientData(name, pixels, labels, CLASSES)


def test_validation_reports_learning() -> None:
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


def test_split_is_stratified_and_empties_no_class() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10 + [2])
    data = ClientData("z", torch.zeros(31, *SHAPE, dtype=torch.uint8), labels, CLASSES)
    train, held_out = split(data, 0.3, seed=0)
    assert labels[held_out].bincount(minlength=3).tolist() == [6, 3, 0]
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(31))
    assert torch.equal(held_out, split(data, 0.3, seed=0)[1])
    assert not torch.equal(held_out, split(data, 0.3, seed=1)[1])
    assert len(split(data, 0.99, seed=0)[0]) == 3


def test_validation_leaves_small_clients_out() -> None:
    run = ClassifierTraining([client("dee", 1)], PLAIN, PREPROCESS, replace(QUICK, validation=0.5))
    state = run.start()
    assert run.phases()[0].step(state).keys() == {"loss"}
    assert run.validation(state) == {}


def test_augment_crops_and_flips() -> None:
    draw = seeds.rng(0, "images")
    images = torch.rand(50, 3, 7, 5, generator=draw)
    for kind in ("flip", "crop", "crop-flip"):
        choice = draw_augmentation(kind, 50, draw)  # type: ignore[arg-type]
        result = apply_augmentation(images, choice)
        assert result.shape == images.shape
        assert 0 <= float(result.min()) <= float(result.max()) <= 1
        assert torch.equal(result, cut_one_by_one(images, choice))
        assert bool(choice[:, 2].any()) == ("flip" in kind)
        assert bool((choice[:, :2] == PAD).all()) == (kind == "flip")
    middle = torch.tensor([[4, 4, 0], [4, 4, 1]])
    unchanged, mirrored = apply_augmentation(images[:1].repeat(2, 1, 1, 1), middle)
    assert torch.equal(unchanged, images[0])
    assert torch.equal(mirrored, images[0].flip(2))


def test_augment_reflects_borders() -> None:
    """Mirrored by 4 pixels, then padded by 4 zeros, and cropped by up to 8."""
    draw = seeds.rng(0, "images")
    images = torch.rand(50, 3, 7, 6, generator=draw)
    choice = draw_augmentation("reflect-crop-flip", 50, draw)
    assert int(choice[:, :2].max()) > 2 * PAD
    padded = F.pad(F.pad(images, (4, 4, 4, 4), mode="reflect"), (4, 4, 4, 4))
    for image, whole, (top, left, mirror, _) in zip(
        apply_augmentation(images, choice), padded, choice.tolist(), strict=True
    ):
        cut = whole[:, top : top + 7, left : left + 6]
        assert torch.equal(image, cut.flip(2) if mirror else cut)
    pixels = (255 * images).to(torch.uint8)
    assert apply_augmentation(pixels, choice).dtype == torch.uint8


def test_train_classifiers_takes_names_of_nets() -> None:
    data = clients()
    named, built = (
        train_classifiers(data, [net] * len(data), QUICK) for net in (str(PLAIN), PLAIN)
    )
    assert [one.parts["classifier"].fingerprint() for one in named] == [
        one.parts["classifier"].fingerprint() for one in built
    ]
    with pytest.raises(SpecError, match="4 clients, but 1 nets"):
        train_classifiers(data, [PLAIN], QUICK)


def test_stack_classifiers_by_net_shape_and_classes() -> None:
    small = ClientData(
        "small", torch.zeros(4, 1, 4, 4, dtype=torch.uint8), torch.arange(4) % 2, ("b", "z")
    )
    data = [*clients(), small]
    specs = [PLAIN, NORMED, PLAIN, NORMED, PLAIN]
    groups = stack_classifiers(data, specs, QUICK)
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


def test_train_classifiers_normalises_as_set() -> None:
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
    (run,) = stack_classifiers(
        data, [PLAIN] * 4, replace(QUICK, normalise="centred"), initial=second
    )
    assert run.preprocess == second.preprocess


def test_train_classifiers_reports_every_epoch() -> None:
    moments: list[ProgressReport] = []
    history: list[dict[str, Any]] = []
    train_classifiers(clients(), [PLAIN] * 4, QUICK, watch=moments.append, history=history)
    assert [(row["phase"], row["step"]) for row in history] == [
        (f"train {PLAIN}", 1),
        (f"train {PLAIN}", 2),
    ]
    assert all(row["loss"] > 0 for row in history)
    last = moments[-1]
    assert (last.phase, last.step, last.steps, last.done) == (f"train {PLAIN}", 2, 2, 1.0)
    assert last.metrics["loss"] == history[-1]["loss"]


def test_train_classifiers_refuses_a_watch_of_three_arguments() -> None:
    with pytest.raises(SettingsError, match="one argument, a ProgressReport"):
        train_classifiers(
            clients(),
            [PLAIN] * 4,
            QUICK,
            watch=lambda stack, state, metrics: None,  # type: ignore[arg-type, misc]
        )


def test_train_classifiers_resumes_several_stacks(tmp_path: Path) -> None:
    """Interrupted in the second stack: the first is not trained again."""
    specs = [PLAIN, NORMED, PLAIN, NORMED]
    straight = train_classifiers(clients(), specs, QUICK)
    phases: list[str] = []

    def interrupt(moment: ProgressReport) -> None:
        phases.append(moment.phase)
        if moment.phase == f"train {NORMED}":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_classifiers(clients(), specs, QUICK, checkpoint=tmp_path, watch=interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["stack-0.training"]
    resumed_phases: list[str] = []
    resumed = train_classifiers(
        clients(),
        specs,
        QUICK,
        checkpoint=tmp_path,
        watch=lambda moment: resumed_phases.append(moment.phase),
    )
    assert set(resumed_phases) == {f"train {NORMED}"}
    assert_same_bits(resumed, straight)
    assert list(tmp_path.iterdir()) == []


def test_train_classifiers_stops_after_its_minutes(tmp_path: Path) -> None:
    training = replace(QUICK, epochs=3)
    with pytest.raises(OutOfTime, match="after 1 of 3 epochs"):
        train_classifiers(clients(), [PLAIN] * 4, training, checkpoint=tmp_path, minutes=0)
    resumed = train_classifiers(clients(), [PLAIN] * 4, training, checkpoint=tmp_path)
    assert_same_bits(resumed, train_classifiers(clients(), [PLAIN] * 4, training))


def test_train_classifiers_raises_when_it_diverges() -> None:
    with pytest.raises(DivergedError, match="its loss is NaN or infinite"):
        train_classifiers(clients(), [NORMED] * 4, replace(QUICK, epochs=9, lr=1e30))


def test_train_classifiers_without_epochs_sends_the_start() -> None:
    start = double_start(NORMED)
    (upload,) = train_classifiers(
        [client("ann", 3)], [NORMED], replace(QUICK, epochs=0), initial=start
    )
    torch.testing.assert_close(weights(upload), dict(start.state), atol=0, rtol=0)
    assert upload.local_steps == 0


def test_check_clients_names_every_problem() -> None:
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


def test_check_initial_refuses_other_nets() -> None:
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


def test_start_for_other_classes_shares_a_fresh_head() -> None:
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


def test_training_state_keeps_the_keys_of_checkpoints() -> None:
    """A training that an older version has begun can be finished by this one."""
    keys = {"phase", "step", "params", "buffers", "moments", "counts", "given"}
    assert {field.name for field in fields(TrainingState)} == keys


def test_train_stack_refuses_a_checkpoint_of_another_start(tmp_path: Path) -> None:
    start, where = double_start(NORMED), tmp_path / ".training"
    stack = ClassifierTraining(
        [client("ann", 4)], NORMED, start.preprocess, replace(QUICK, epochs=2), initial=start
    )
    state = stack.start()
    save_state(where, state, {"training": describe_training(stack, "fp32")})
    other = replace(start, state={**start.state, "head.bias": start.state["head.bias"] + 1})
    with pytest.raises(RunError, match="other settings"):
        train_stack(replace(stack, initial=other), checkpoint=where)
    read_again = replace(
        start, state=dict(reversed(start.state.items()))
    )  # a file's tensors come in any order
    train_stack(replace(stack, initial=read_again), checkpoint=where)


def test_train_stack_stops_when_it_diverges(
    tmp_path: Path,
) -> None:
    where, calm = tmp_path / ".training", replace(QUICK, epochs=9)
    stack = ClassifierTraining(
        [client("ann", 9), client("bob", 9)], NORMED, PREPROCESS, replace(calm, lr=1e30)
    )
    with pytest.raises(
        DivergedError,
        match=r"diverged in epoch [1-4] of 9(.|\n)*client ann(.|\n)*"
        r"smaller learning rate than 1e\+30",
    ):
        train_stack(stack, checkpoint=where, checkpoint_seconds=0)
    assert not where.exists()
    train_stack(replace(stack, training=calm), checkpoint=where)


def test_start_in_half_precision_trains_in_single() -> None:
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


def test_local_training_names_all_bad_settings() -> None:
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


def test_rate_of_each_schedule() -> None:
    step = LocalTraining(epochs=4, lr=1.0, schedule="step")
    assert [round(step.rate(epoch), 6) for epoch in range(4)] == [1, 1, 0.1, 0.01]
    cosine = LocalTraining(epochs=4, lr=1.0, schedule="cosine")
    assert [round(cosine.rate(epoch), 4) for epoch in range(4)] == [1, 0.8536, 0.5, 0.1464]
    assert LocalTraining(lr=0.3).rate(17) == 0.3


@pytest.mark.parametrize("width", [1, 2, 10])
def test_plan_calls_gives_every_image_once(width: int) -> None:
    sizes = [40, 33, 33, 17, 16, 1]
    given: list[list[int]] = [[] for _ in sizes]
    for call in stacking.plan_calls(sizes, 16, width):
        assert 0 < call.last - call.first <= width
        for index in range(call.first, call.last):
            given[index] += range(call.start, call.start + call.number)
    assert given == [list(range(size)) for size in sizes]
    assert (
        len(list(stacking.plan_calls(sizes, 16, 10))) == 6
    )  # in batches of 16 x 5, 1; 16 x 3, 1; 8, 1 x 2


def test_clients_per_call_follows_net_device_and_memory() -> None:
    net, dense = plain(SHAPE, 3), nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    assert stacking.clients_per_call("auto", net, 5, 16, SHAPE, "cpu") == 1
    assert stacking.clients_per_call("auto", dense, 5, 16, SHAPE, "cpu") == 5
    assert stacking.clients_per_call("auto", net, 5, 16, SHAPE, "cuda") == 5
    assert stacking.clients_per_call("never", dense, 5, 16, SHAPE, "cuda") == 1
    memory = 2 * 16 * stacking.activation_bytes(net, SHAPE)
    assert stacking.clients_per_call("always", net, 5, 16, SHAPE, "cpu", memory) == 2


def train_resident(spec: ModelSpec, training: LocalTraining, **more: Any) -> list[Upload]:
    """Train all clients where ``load_clients`` puts them."""
    start = double_start(spec)
    code = spec.build(SHAPE, len(CLASSES), 0)
    resident = load_clients(clients(), code, PREPROCESS, training, seed=0, device="cpu", **more)
    stack = ClassifierTraining(
        clients(),
        spec,
        PREPROCESS,
        training,
        initial=start,
        round_input=RoundInput(resident=resident),
    )
    uploads, _ = train_stack(stack)
    return uploads


def test_load_clients_width_keeps_the_weights() -> None:
    training = replace(QUICK, stack="always")
    wide = train_classifiers(clients(), [NORMED] * 4, training, initial=double_start(NORMED))
    narrow = train_resident(NORMED, training, width=2)
    for one, other in zip(wide, narrow, strict=True):
        torch.testing.assert_close(weights(one), weights(other), atol=1e-9, rtol=1e-9)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_train_classifiers_on_cuda_equals_cpu() -> None:
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
def test_recorded_steps_equal_plain_steps(settings: dict[str, Any]) -> None:
    """Steps written down as operations (see tests/contract), for a stack with clients of unequal
    sizes.
    """
    training = replace(QUICK, stack="always", batch_size=4, epochs=3, **settings)
    plain = train_classifiers(clients(), [PLAIN] * 4, training)
    replay = record_operations()
    recorded, _ = train_stack(
        ClassifierTraining(clients(), PLAIN, PREPROCESS, training, run=replay)
    )
    assert count_recordings(replay) > 1
    for one, other in zip(plain, recorded, strict=True):
        torch.testing.assert_close(weights(one), weights(other), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("net", [PLAIN, NORMED], ids=str)
@pytest.mark.parametrize(
    "changes", [{}, {"validation": 0.3}, {"sam": 0.05}, {"batch_size": 7, "epochs": 3}], ids=str
)
def test_expected_uploads_are_those_sent(net: ModelSpec, changes: dict[str, Any]) -> None:
    held = clients()
    (stack,) = stack_classifiers(held, [net] * len(held), replace(QUICK, **changes))
    sent, _ = train_stack(stack)
    for upload, expected in zip(sent, expected_uploads(stack), strict=True):
        assert upload_differences(upload, expected) == []
        other = replace(
            expected, client="eve", num_examples=expected.num_examples + 1, label_counts=None
        )
        assert [difference.split(":")[0] for difference in upload_differences(upload, other)] == [
            "client",
            "images",
            "images of each class",
        ]


@pytest.mark.parametrize(
    ("name", "classes", "problem"),
    [("Köln", CLASSES, "its name must be 1 to 64"), ("ann", ("a", "b", "a "), "same name")],
)
def test_check_clients_refuses_unsendable_names(
    name: str, classes: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        stack_classifiers([replace(clients()[0], name=name, classes=classes)], [PLAIN], QUICK)
