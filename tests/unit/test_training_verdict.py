"""Whether training learns: suited settings, the floor of steps, early stopping, and the verdicts,
each on a small real training.
"""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attar.core import ModelSpec, Upload
from attar.errors import SettingsError
from attar.fusion import find_one_answers
from attar.nets import NETS
from attar.training import (
    ClassifierTraining,
    ClientData,
    LocalTraining,
    TrainingFlags,
    explain_floor,
    judge,
    make_stacks,
    stack_classifiers,
    suggest_training,
    train_classifiers,
    train_stack,
)
from attar.training.clients import count_training_images, split
from attar.training.early_stopping import StoppingState
from attar.training.step import TrainingState

NET = "mlp:hidden=16,layers=1"
CLASSES = ("bars", "stripes", "blank")


def draw(counts: tuple[int, ...], seed: int = 0, noise: float = 0.2) -> ClientData:
    """Noisy images: bars down, stripes across, nothing."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    images = torch.full((len(labels), 1, 16, 16), 0.4)
    images[labels == 0, :, :, ::2] = 0.6
    images[labels == 1, :, ::2] = 0.6
    images += noise * torch.randn(images.shape, generator=draws)
    pixels = (images.clamp(0, 1) * 255).to(torch.uint8)
    return ClientData("ann", pixels, labels, CLASSES)


def shuffled(client: ClientData, seed: int = 1) -> ClientData:
    """The same images with labels that say nothing of them."""
    order = torch.randperm(len(client.labels), generator=torch.Generator().manual_seed(seed))
    return replace(client, labels=client.labels[order])


def trained(client: ClientData, training: LocalTraining, net: str = NET) -> Upload:
    (upload,) = train_classifiers([client], [net], training)
    return upload


# --- the floor of steps ---------------------------------------------------------------------------


def test_floor_of_steps_raises_epochs_of_small_clients() -> None:
    small = replace(draw((10, 10, 5)), name="small")
    large = replace(draw((100, 100, 100)), name="large")
    training = LocalTraining(epochs=3, batch_size=10, min_steps=40)
    stacks = stack_classifiers([small, large], [ModelSpec.parse(NET)] * 2, training)
    assert {stack.clients[0].name: stack.training.epochs for stack in stacks} == {
        "small": 14,  # of 3 steps
        "large": 3,  # of 30 steps
    }
    uploads = train_classifiers([small, large], [NET] * 2, training)
    assert [upload.local_steps for upload in uploads] == [42, 90]


def test_floor_counts_images_that_are_not_held_out() -> None:
    client = draw((10, 10, 5))
    training = LocalTraining(epochs=1, batch_size=10, min_steps=7, validation=0.3)
    images = count_training_images(client, 0.3)
    assert images == len(split(client, 0.3, seed=4)[0]) == 17
    (stack,) = stack_classifiers([client], [ModelSpec.parse(NET)], training)
    assert stack.training.epochs == 4
    assert stack.training.fit_epochs(images) == stack.training


def test_floor_keeps_clients_of_about_one_size_in_one_stack() -> None:
    clients = [replace(draw((n, n, n)), name=f"client-{n}") for n in range(40, 60)]
    training = LocalTraining(epochs=1, batch_size=4, min_steps=3000)
    fitted = [training.fit_epochs(len(client.labels)) for client in clients]
    assert len(set(fitted)) <= 6
    for client, own in zip(clients, fitted, strict=True):
        steps = own.epochs * math.ceil(len(client.labels) / 4)
        assert 3000 <= steps <= 3000 * 1.2
        assert own.fit_epochs(len(client.labels)) == own


def test_floor_is_said() -> None:
    client = replace(draw((200, 100, 20)), name="paris")
    given = {"preset": "auto", "seed": 0, "device": "cpu", "initial": None}
    flags = TrainingFlags(batch_size=128, min_steps=400, validation=0.0)
    (stack,) = make_stacks([client], [ModelSpec.parse(NET)], flags, suited=True, **given)
    assert explain_floor(stack, flags) == (
        "paris: 30 epochs would be 90 steps: training 432 steps (144 epochs)"
    )
    asked = TrainingFlags(epochs=2)
    (stack,) = make_stacks([client], [ModelSpec.parse(NET)], asked, suited=True, **given)
    assert stack.training.epochs == 2, "epochs that are given stay"
    assert explain_floor(stack, asked) is None


def test_recipes_have_no_floor() -> None:
    given = {"preset": "auto", "seed": 0, "device": "cpu", "initial": None}
    stacks = make_stacks([draw((5, 5, 5))], [ModelSpec.parse(NET)], TrainingFlags(), **given)
    assert [stack.training for stack in stacks] == [LocalTraining()]
    assert (LocalTraining().min_steps, LocalTraining().patience, LocalTraining().warmup) == (
        0,
        0,
        0,
    )


def test_rate_rises_then_falls() -> None:
    training = LocalTraining(epochs=10, lr=1.0, warmup=0.3, schedule="cosine")
    rates = [training.rate(epoch) for epoch in range(10)]
    assert rates[:3] == [0.25, 0.5, 0.75]
    plain = replace(training, warmup=0.0)
    assert rates[3:] == [plain.rate(epoch) for epoch in range(3, 10)]


@pytest.mark.parametrize("bad", [{"min_steps": -1}, {"warmup": 1.0}, {"patience": 3}])
def test_settings_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(bad))):
        LocalTraining(**bad)


# --- suited settings ------------------------------------------------------------------------------


def test_suited_settings_for_every_classifier() -> None:
    for name, entry in NETS.items():
        if entry.kind != "classifier" or entry.required:
            continue
        for images in (60, 200, 1000, 10_000, 50_000):
            training = suggest_training(ModelSpec(name), images)
            assert training.optimiser == "adam"
            assert training.lr == (5e-4 if entry.tokens else 1e-3)
            assert (training.patience > 0) == (training.validation > 0) == (images >= 500)
    sizes = [suggest_training(ModelSpec("lenet5"), n).batch_size for n in (60, 900, 8000, 9000)]
    assert sizes == [16, 32, 64, 128]


def test_given_settings_win() -> None:
    lenet = ModelSpec("lenet5")
    training = suggest_training(lenet, 5000, {"optimiser": "sgd", "epochs": 7, "validation": 0.0})
    assert (training.lr, training.epochs, training.min_steps) == (0.01, 7, 0)
    assert (training.validation, training.patience) == (0.0, 0)
    assert suggest_training(lenet, 100, {"patience": 4}).validation == 0.1
    assert suggest_training(lenet, 100, from_start=True).lr == 2e-4
    assert suggest_training(lenet, 5000, early_stopping=False).validation == 0.0


def test_train_classifiers_without_settings_learns_from_few_images() -> None:
    client = draw((12, 12, 6))
    (upload,) = train_classifiers([client], ["lenet5"])
    assert upload.local_steps >= 600
    assert judge(upload.parts["classifier"], client, LocalTraining()).outcome == "learned"


# --- early stopping -------------------------------------------------------------------------------


def last_state(state: StoppingState) -> TrainingState:
    """The last weights in place of the best."""
    return TrainingState(state.params, state.buffers, state.moments, state.counts, step=state.step)


STOPPING = LocalTraining(
    epochs=14, batch_size=16, optimiser="adam", lr=0.003, validation=0.3, patience=3
)


def go_on(run: ClassifierTraining, state: TrainingState, epochs: int) -> TrainingState:
    (phase,) = run.phases()
    for _ in range(epochs):
        phase.step(state)
        state.step += 1
    return state


def stopping_run() -> ClassifierTraining:
    clients = [
        shuffled(replace(draw((30, 30, 30), seed=2), name="bob")),
        replace(draw((20, 20, 20), seed=3), name="cy"),
    ]
    (stack,) = stack_classifiers(clients, [ModelSpec.parse(NET)] * 2, STOPPING, seed=5)
    return stack


def test_early_stopping_keeps_best_weights() -> None:
    run = stopping_run()
    state = run.start()
    assert isinstance(state, StoppingState)
    seen = []
    for _ in range(STOPPING.epochs):
        go_on(run, state, 1)
        plain = last_state(state)
        seen.append((run.validation(plain), run.uploads(plain)))
        if state.best["places"]["ended"].all():
            break
    uploads = {upload.client: upload for upload in run.uploads(state)}
    for row, name in enumerate(["bob", "cy"]):
        accuracies = [accuracy[name] for accuracy, _ in seen]
        epoch = int(state.best["places"]["epoch"][row])
        stop = min(epoch + STOPPING.patience, len(accuracies))
        assert accuracies[epoch - 1] == max(accuracies[:stop])
        kept = next(one for one in seen[epoch - 1][1] if one.client == name)
        assert uploads[name].local_steps == kept.local_steps
        for key, value in kept.parts["classifier"].state.items():
            assert torch.equal(value, uploads[name].parts["classifier"].state[key])
        assert run.validation(state)[name] == accuracies[epoch - 1]
    assert int(state.best["places"]["epoch"][0]) < STOPPING.epochs, (
        "labels by lot: no long progress"
    )
    weights = copy.deepcopy(state.params)
    if bool(state.best["places"]["ended"].all()):
        assert run.phases()[0].step(state) == {}
        assert all(torch.equal(weights[key], value) for key, value in state.params.items())


def test_early_stopping_resumes_to_the_same_bits(tmp_path: Path) -> None:
    straight = stopping_run()
    whole = straight.uploads(go_on(straight, straight.start(), STOPPING.epochs))
    for epochs in (2, 9):
        killed = stopping_run()
        saved = copy.deepcopy(go_on(killed, killed.start(), epochs))
        resumed = stopping_run()
        again = resumed.uploads(go_on(resumed, saved, STOPPING.epochs - epochs))
        assert_same(whole, again)


def test_early_stopping_does_not_depend_on_others() -> None:
    together = stopping_run()
    both = together.uploads(go_on(together, together.start(), STOPPING.epochs))
    training = replace(STOPPING, stack="never")
    for client, upload in zip(together.clients, both, strict=True):
        (alone,) = stack_classifiers([client], [ModelSpec.parse(NET)], training, seed=5)
        (sent,), _ = train_stack(alone)
        assert sent.local_steps == upload.local_steps


def assert_same(one: list[Upload], other: list[Upload]) -> None:
    for first, second in zip(one, other, strict=True):
        assert first.local_steps == second.local_steps
        for key, value in first.parts["classifier"].state.items():
            assert torch.equal(value, second.parts["classifier"].state[key])


# --- verdicts -------------------------------------------------------------------------------------

QUICK = LocalTraining(epochs=40, batch_size=16, optimiser="adam", lr=0.003)
SLOW = LocalTraining(epochs=2, batch_size=64, lr=1e-3)


@pytest.mark.parametrize(
    ("outcome", "client", "training"),
    [
        ("learned", draw((40, 20, 20)), QUICK),
        ("learned", draw((150, 100, 100)), replace(QUICK, validation=0.3)),
        ("one class", draw((90, 6, 4)), SLOW),
        ("overfitted", shuffled(draw((60, 60, 60))), replace(QUICK, validation=0.3, epochs=120)),
        ("diverged", shuffled(draw((40, 20, 20))), replace(QUICK, lr=30.0, epochs=2)),
        ("too few", draw((6, 4, 4)), QUICK),
        ("too few", draw((50, 0, 0)), QUICK),
        ("untrained", draw((40, 20, 20)), replace(QUICK, epochs=0)),
    ],
)
def test_verdict(outcome: str, client: ClientData, training: LocalTraining) -> None:
    part = trained(client, training).parts["classifier"]
    verdict = judge(part, client, training)
    assert verdict.outcome == outcome, verdict
    assert verdict.is_bad == (outcome in ("one class", "diverged", "untrained"))
    assert bool(verdict.fix) == (outcome != "learned")
    assert (verdict.held_out is not None) == bool(training.validation)
    assert json.loads(json.dumps(verdict.as_json()))["outcome"] == outcome


def test_verdict_on_a_net_that_guesses() -> None:
    """Asked about labels that say nothing of the images."""
    client = draw((40, 40, 40))
    training = LocalTraining(lr=0.01, epochs=3, batch_size=16)
    part = trained(client, training).parts["classifier"]
    assert judge(part, client, training).outcome == "learned"
    verdict = judge(part, shuffled(client), training)
    assert verdict.outcome == "nothing"
    assert verdict.is_bad
    assert "--optimiser adam" in verdict.fix


# --- the server -----------------------------------------------------------------------------------


def test_server_names_uploads_of_one_answer() -> None:
    uneven = draw((90, 15, 15), noise=1.0)
    stuck = replace(trained(uneven, LocalTraining(), "lenet5"), client="stuck")
    taught = replace(trained(draw((90, 15, 15)), QUICK), client="taught")
    (found,) = find_one_answers([taught, stuck])
    assert (found.client, found.answer) == ("stuck", "bars")
    assert found.share > 0.9
    assert "client stuck answers one class to every image: bars" in str(found)
    withheld = replace(stuck, label_counts=None)
    assert [one.client for one in find_one_answers([withheld])] == ["stuck"]
    only = trained(draw((30, 0, 0)), QUICK)
    assert find_one_answers([only]) == [], "its counts say that it holds one class"


def test_settings_that_are_off_are_no_part_of_a_description() -> None:
    """Checkpoints and notes of versions without them fit."""
    assert not {"min_steps", "warmup", "patience"} & LocalTraining().describe().keys()
    assert LocalTraining(min_steps=5).describe()["min_steps"] == 5
