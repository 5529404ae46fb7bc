"""Co-Boosting: Eqs. (2) to (12) by hand on linear clients, and Algorithm 1 written out slowly
beside the method's own epochs.

By hand: images of 1 x 1 x 2 pixels, client 0 has logits (x0, x1), client 1 has (2 x1, -x0); the
student has (x0 + x1, 0).
"""

from copy import deepcopy
from dataclasses import replace
from math import exp, log, log1p

import pytest
import torch
from attar.methods.co_boosting.perturb import diversified
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import Guide, distillation, server_plan
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import SettingsError
from attar.fusion import fuse, server_for
from attar.methods.co_boosting.hard_samples import (
    Hardened,
    hardened,
    normalised,
    pool_batches,
    sign_step,
)
from attar.methods.co_boosting.method import CoBoosting
from attar.seeds import generator as seeded
from attar.testing import tiny_world

QUICK = {"epochs": 3, "generator_steps": 2, "batch_size": 6, "noise": 5, "generator_width": 3}
TWO = (1, 1, 2)
PLAIN = Preprocess(TWO, (0.0,), (1.0,))
MATRICES = {
    "one": [[1.0, 0.0], [0.0, 1.0]],
    "two": [[0.0, 2.0], [-1.0, 0.0]],
    "student": [[1.0, 1.0], [0.0, 0.0]],
}


@pytest.fixture
def exact():
    """Everything in float64: two ways to the same number differ by 1e-12, not by what Adam makes
    of rounding errors.
    """
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def started(method, world):
    """The classroom, how its ensemble answers, and the state at the beginning, with a pool as
    precise as everything else.
    """
    room = method.prepare(world.uploads, world.server)
    state = method.start(room)
    state.pool._pixels = state.pool._pixels.to(torch.get_default_dtype())
    return room, Guide(room, method.ensemble), state


def linear(name):
    matrix = torch.tensor(MATRICES[name])
    return Part(
        ModelSpec.parse("mlp:layers=0"),
        {"head.weight": matrix, "head.bias": torch.zeros(2)},
        ("a", "b"),
        PLAIN,
    )


@pytest.fixture
def by_hand():
    """The two linear clients and the linear student, of 1 and 3 examples."""

    def begin(method):
        uploads = [
            Upload(name, {"classifier": linear(name)}, count)
            for name, count in (("one", 1), ("two", 3))
        ]
        room = method.prepare(uploads, server_for(uploads, initial=linear("student")))
        return room, Guide(room, method.ensemble), method.start(room)

    return begin


def pixels(*images):
    return torch.tensor(images).view(-1, *TWO)


def softplus(x):
    return log1p(exp(x))


# --- (2) ------------------------------------------------------------------------------------------


def test_the_ensemble_is_a_sum_that_nobody_divides(by_hand):
    """x = (1, 3): f = (1, 3) and (6, -1). w = (0.2, 0.7): (0.2 + 4.2, 0.6 - 0.7) = (4.4, -0.1)."""
    method = CoBoosting()
    room, guide, state = by_hand(method)
    state.weights = torch.tensor([0.2, 0.7])
    answers = method._ensemble(room.teachers(pixels([1.0, 3.0])), torch.tensor([0]), guide, state)
    assert answers[0].tolist() == pytest.approx([4.4, -0.1])
    divided = replace(method, divide=True)._ensemble(
        room.teachers(pixels([1.0, 3.0])), torch.tensor([0]), guide, state
    )
    assert divided[0].tolist() == pytest.approx([4.4 / 0.9, -0.1 / 0.9])


def test_weights_start_at_one_over_n_or_at_the_shares_of_data(by_hand):
    """1/n: (3.5, 1). Shares of data 1/4 and 3/4: (1/4 + 18/4, 3/4 - 3/4) = (4.75, 0)."""
    for weighing, expected in (("uniform", [3.5, 1.0]), ("data", [4.75, 0.0])):
        method = CoBoosting(ensemble=weighing)
        room, guide, state = by_hand(method)
        assert state.weights.tolist() == [0.5, 0.5]
        answers = method._ensemble(
            room.teachers(pixels([1.0, 3.0])), torch.tensor([0]), guide, state
        )
        assert answers[0].tolist() == pytest.approx(expected, abs=1e-6)


# --- (3), (5) to (8) ------------------------------------------------------------------------------


def test_generator_losses_by_hand(by_hand):
    """x = (1, 3), w = 1/2: A = (3.5, 1), margin 2.5; student (4, 0).

    (3) y = 1: CE = ln(1 + e^2.5).  (5) d = 1 - 1 / (1 + e^2.5).  (6) d CE.  (7) -KL of the margins 2.5 and 4.
    """
    p = 1 / (1 + exp(-2.5))
    cross_entropy, difficulty = softplus(2.5), p
    divergence = p * (-softplus(-2.5) + softplus(-4.0)) + (1 - p) * (-softplus(2.5) + softplus(4.0))
    images, labels = pixels([1.0, 3.0]), torch.tensor([1])
    expected = {
        CoBoosting(hard_generation=False): cross_entropy,  # (3) alone
        CoBoosting(adversarial=0.0): difficulty * cross_entropy,  # (6)
        CoBoosting(): difficulty * cross_entropy - divergence,  # (8), beta = 1
        CoBoosting(adversarial=0.5): difficulty * cross_entropy - 0.5 * divergence,
    }
    for method, loss in expected.items():
        _, guide, state = by_hand(method)
        assert method._generator_loss(images, labels, guide, state).item() == pytest.approx(
            loss, rel=1e-5
        )


def test_without_hard_generation_the_student_does_not_matter():
    method, world = CoBoosting(**QUICK, hard_generation=False), tiny_world()
    room, guide, state = started(method, world)
    images, labels = torch.rand(4, 1, 16, 16, generator=seeded(1)), torch.tensor([0, 1, 2, 0])
    before = method._generator_loss(images, labels, guide, state)
    logits = torch.stack(
        [u.parts["classifier"].build()(room.plan.preprocess(images)) for u in world.uploads]
    ).mean(0)
    torch.testing.assert_close(before, torch.nn.functional.cross_entropy(logits, labels))
    with torch.no_grad():
        for weight in state.student.parameters():
            weight.mul_(3)
    assert torch.equal(method._generator_loss(images, labels, guide, state), before)
    hard = replace(method, hard_generation=True)
    after = hard._generator_loss(images, labels, guide, state)
    assert not torch.equal(after, hard._generator_loss(images, labels, guide, method.start(room)))


@pytest.mark.usefixtures("exact")
def test_a_generator_step_down_eq_7_drives_ensemble_and_student_apart():
    """A plain gradient step of the generator's weights on (7) raises KL(A_w(G(z)) || f_S(G(z)))."""
    method, world = CoBoosting(**QUICK), tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    room, guide, state = started(method, world)
    noise, labels = draw_noise(6, 5, seeded(1), "cpu"), torch.tensor([0, 1, 2, 0, 1, 2])

    def apart():
        images = state.generator(noise)
        answers = method._ensemble(room.teachers(images), labels, guide, state)
        return distillation(room.plan.logits(state.student, images), answers)

    images = state.generator(noise)
    both = method._generator_loss(images, labels, guide, state)  # (8)
    first = replace(method, adversarial=0.0)._generator_loss(images, labels, guide, state)  # (6)
    weights = list(state.generator.parameters())
    slopes = torch.autograd.grad(both - first, weights)  # of (7) alone
    before = apart().item()
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight.sub_(1e-3 * slope)
    expected = 1e-3 * sum(slope.square().sum().item() for slope in slopes)
    assert apart().item() - before == pytest.approx(expected, rel=0.05)
    assert expected > 0


# --- (9), (10) ------------------------------------------------------------------------------------


def test_the_step_of_eq_10_by_hand():
    """A(x) = (x0 + 2 x1, x1), u = (1, -1): the gradient of u^T A is (1, 2 - 1) = (1, 1), of
    length sqrt(2).
    """
    matrix = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    images, direction = pixels([0.3, 0.4], [0.9, 0.1]), torch.tensor([[1.0, -1.0], [2.0, -4.0]])

    def teacher(x):
        return x.flatten(1) @ matrix.T

    moved = diversified(images, teacher, direction, 0.1, "l2").flatten(1)
    step = 0.1 / 2**0.5
    assert moved[0].tolist() == pytest.approx([0.3 + step, 0.4 + step])
    assert moved[1].tolist() == pytest.approx(
        [1.0, 0.1]
    )  # u = (2, -4): the gradient is (2, 0), of length 2
    moved = diversified(images, teacher, direction, 0.1, "sign").flatten(1)
    assert moved.flatten().tolist() == pytest.approx([0.4, 0.5, 1.0, 0.1])


def test_an_image_without_gradient_stays():
    images = torch.rand(2, *TWO)
    for norm in ("l2", "sign"):
        assert torch.equal(
            diversified(images, lambda x: x.flatten(1) * 0, torch.ones(2, 2), 0.1, norm), images
        )


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("perturb", ["logits", "probabilities"])
@pytest.mark.parametrize("direction", ["l2", "sign"])
def test_a_step_along_eq_10_has_length_epsilon_and_raises_the_likeness(direction, perturb):
    method = CoBoosting(**QUICK, direction=direction, perturb=perturb)
    room, guide, state = started(method, tiny_world(("mlp:hidden=8,layers=1", "lenet5")))
    images, labels = torch.rand(5, 1, 16, 16, generator=seeded(1)), torch.tensor([0, 1, 2, 0, 1])

    def answer(x):
        return method._ensemble(room.teachers(x), labels, guide, state)

    towards = 2 * torch.rand(5, 3, generator=seeded(7)) - 1  # u
    moved = hardened(images, answer, towards, method)

    def likeness(x):
        outputs = answer(x) if perturb == "logits" else (answer(x) / 4).softmax(-1)
        return (towards * outputs).sum(1)

    assert (likeness(moved) > likeness(images)).all()
    away = (moved - images).flatten(1)
    if direction == "l2":
        torch.testing.assert_close(away.norm(dim=1), torch.full((5,), 8 / 255))
    else:
        torch.testing.assert_close(away.abs().amax(1), torch.full((5,), 8 / 255))
        assert (away.abs() > 0).double().mean() > 0.9
    leaf = images.clone().requires_grad_()
    (slope,) = torch.autograd.grad(likeness(leaf).sum(), leaf)
    slope = (
        slope.sign()
        if direction == "sign"
        else slope / slope.flatten(1).norm(dim=1)[:, None, None, None]
    )
    torch.testing.assert_close(moved, images + 8 / 255 * slope)


def test_every_image_and_every_time_has_its_own_direction():
    """u ~ Unif([-1, 1])^d for 600 equal images, in two passes over the pool."""
    room, _, state = started(CoBoosting(**QUICK, pool_limit=600), tiny_world())
    state.pool.add(
        torch.rand(1, 1, 16, 16).expand(600, -1, -1, -1), torch.zeros(600, dtype=torch.int64)
    )
    seen = [[], []]
    for told in seen:
        list(
            pool_batches(
                room, state, 7, lambda x, y, towards, told=told: (told.append(towards), x)[1]
            )
        )
    first, second = (torch.cat(told) for told in seen)
    assert first.shape == second.shape == (600, 3)
    assert len(torch.cat([first, second]).flatten().unique()) > 3590
    assert (first.min() < -0.98, first.max() > 0.98, first.abs().max() <= 1) == (True, True, True)
    assert abs(first.mean()) < 0.05


@pytest.mark.parametrize("augment", ["none", "crop-flip"])
@pytest.mark.parametrize(
    "harden", [None, lambda x, y, towards: x + 0.1 * towards.mean(1)[:, None, None, None]]
)
def test_batches_shown_together_are_the_same_batches(harden, augment):
    """15 images in batches of 4: 4, 4, 4, 3, asked one by one, two by two and all at once."""
    found = []
    for together in (1, 2, 9):
        room, _, state = started(
            CoBoosting(**QUICK, pool_limit=15), tiny_world(("lenet5", "mlp:hidden=8,layers=1"))
        )
        state.pool.add(torch.rand(15, 1, 16, 16, generator=seeded(1)), torch.arange(15) % 3)
        found.append(list(pool_batches(room, state, 4, harden, augment=augment, together=together)))
    assert [[len(batch.labels) for batch in batches] for batches in found] == [[4, 4, 4, 3]] * 3
    for batches in found[1:]:
        for one, other in zip(found[0], batches, strict=True):
            assert torch.equal(one.labels, other.labels)
            torch.testing.assert_close(one.images, other.images)
            torch.testing.assert_close(one.logits, other.logits)


def test_an_augmented_pool_is_mirrored_anew_at_every_use_and_clients_answer_what_the_student_sees():
    """Each of 12 images is itself or its mirror image, not the same ones in two passes; what is
    kept stays as it was.
    """
    room, _, state = started(CoBoosting(**QUICK, pool_limit=12), tiny_world())
    kept = torch.rand(12, 1, 16, 16, generator=seeded(1))
    state.pool.add(kept, torch.arange(12) % 3)
    choices = []
    for _ in range(2):
        ahead = torch.Generator()
        ahead.set_state(state.draws.get_state())
        order = torch.randperm(12, generator=ahead)
        (batch,) = pool_batches(room, state, 12, augment="flip")
        plain, mirrored = (
            (batch.images == one).flatten(1).all(1) for one in (kept[order], kept[order].flip(3))
        )
        assert bool((plain ^ mirrored).all())
        torch.testing.assert_close(batch.logits, room.teachers(batch.images))
        choices.append(mirrored[order.argsort()].tolist())
    assert any(choices[0])
    assert not all(choices[0])
    assert choices[0] != choices[1]
    assert torch.equal(state.pool.images(torch.arange(12)), kept)


# --- (11), (12) -----------------------------------------------------------------------------------


def batch_of(logits, labels):
    """``logits`` as (K, B, C)."""
    return Hardened(torch.zeros(len(labels), *TWO), torch.tensor(labels), torch.tensor(logits))


def weighted(logits, labels, weights):
    return (weights[:, None, None] * logits).sum(0)


def test_the_sign_step_by_hand(by_hand):
    """dCE/dw_k = sum_c (p_c - [c = y]) f_kc. Client 0 says (ln 3, 0), client 1 (0, ln 3), w =
    1/2: p = (1/2, 1/2).

    y = 0: -1/2 ln 3 and +1/2 ln 3, signs (-1, +1): w = 1/2 -+ mu with mu = 0.1/2: (0.55, 0.45).
    """
    weights = torch.tensor([0.5, 0.5], requires_grad=True)
    batch = batch_of([[[log(3), 0.0]], [[0.0, log(3)]]], [0])
    assert sign_step(weights, [batch], weighted).tolist() == [-1.0, 1.0]
    method = CoBoosting()
    _, guide, state = by_hand(method)
    method._reweigh([batch], guide, state)
    assert state.weights.tolist() == pytest.approx([0.55, 0.45])
    state.step = 2
    replace(method, weight_step=0.2, weight_step_decay=0.5)._reweigh(
        [batch], guide, state
    )  # mu = 0.2 / 4 in epoch 2
    assert state.weights.tolist() == pytest.approx([0.60, 0.40])
    assert not state.weights.requires_grad


def test_whole_epochs_outvote_batches():
    """Client 0 says (1, 0). One image of y = 0 in a batch of one, and three of y = 1: two
    batches that pull apart.

    At w = 0: p = 1/2, the gradient is -1/2 and 3/2: +1 over all; the signs of the batches one by
    one would cancel.
    """
    weights = torch.tensor([0.0], requires_grad=True)
    small, large = batch_of([[[1.0, 0.0]]], [0]), batch_of([[[1.0, 0.0]] * 3], [1, 1, 1])
    assert sign_step(weights, [small], weighted).tolist() == [-1.0]
    assert sign_step(weights, [large], weighted).tolist() == [1.0]
    assert sign_step(weights, [small, large], weighted).tolist() == [1.0]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_step_of_an_epoch_does_not_depend_on_its_batches(sizes, seed):
    """Equal to the sign of the gradient of (11) over all images at once, however they are split."""
    draws, total = seeded(seed), sum(sizes)
    logits = 3 * torch.randn(4, total, 3, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 3, (total,), generator=draws)
    weights = torch.rand(4, generator=draws, dtype=torch.float64).requires_grad_()
    loss = (
        -(weights[:, None, None] * logits)
        .sum(0)
        .log_softmax(-1)[torch.arange(total), labels]
        .mean()
    )  # (11)
    (slope,) = torch.autograd.grad(loss, weights)
    split = [
        Hardened(torch.zeros(len(own), *TWO), own, part)
        for part, own in zip(logits.split(sizes, 1), labels.split(sizes), strict=True)
    ]
    assert torch.equal(sign_step(weights, split, weighted), slope.sign())


def test_normalize_bounds_each_weight_and_survives_nothing():
    given = torch.tensor([-0.2, 0.3, 1.4])
    assert normalised(given).tolist() == pytest.approx(
        [0.0, 0.3, 1.0]
    )  # bounded one by one, no sum of one
    assert given.tolist() == pytest.approx([-0.2, 0.3, 1.4])
    assert normalised(torch.tensor([0.0, -0.1, -3.0, 0.0])).tolist() == [0.25] * 4
    assert normalised(torch.zeros(1)).tolist() == [1.0]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
@settings(max_examples=60)
def test_normalised_weights_are_an_ensemble(values):
    weights = normalised(torch.tensor(values))
    assert ((weights >= 0) & (weights <= 1)).all()
    assert weights.sum() > 0


# --- the switches of Table 7, and which images each step sees -------------------------------------


def recorded(monkeypatch, method, epochs=2):
    """Run epochs; what ``pool_batches`` handed out in each, with the places in the pool it came
    from, and w after each.
    """
    passes, weights = [], []

    def watching(room, state, batch_size, harden=None, *, augment="none", together=1):
        pool, draws, ahead = state.pool, state.draws, torch.Generator()
        ahead.set_state(draws.get_state())
        plain = (
            list(torch.randperm(len(pool), generator=ahead).split(batch_size)) if len(pool) else []
        )
        seen = []
        passes.append((len(pool), seen))
        for places, batch in zip(
            plain,
            pool_batches(room, state, batch_size, harden, augment=augment, together=together),
            strict=True,
        ):
            seen.append((pool.images(places).clone(), batch))
            yield batch

    monkeypatch.setattr("attar.methods.co_boosting.method.pool_batches", watching)
    _, guide, state = started(method, tiny_world(("mlp:hidden=8,layers=1", "lenet5")))
    for state.step in range(epochs):
        method._epoch(guide, state)
        weights.append(state.weights.tolist())
    return passes, weights, state


def test_without_hard_distillation_the_pool_is_seen_as_it_is(monkeypatch):
    passes, weights, _ = recorded(monkeypatch, CoBoosting(**QUICK, hard_distillation=False))
    assert [size for size, _ in passes] == [6, 12]
    assert all(torch.equal(plain, batch.images) for _, seen in passes for plain, batch in seen)
    assert weights[0] != [0.5, 0.5]


def test_with_hard_distillation_every_image_moves_by_epsilon_and_the_pool_keeps_the_plain_ones(
    monkeypatch,
):
    passes, _, state = recorded(monkeypatch, CoBoosting(**QUICK))
    for _, seen in passes:
        for plain, batch in seen:
            lengths = (batch.images - plain).flatten(1).norm(dim=1)
            torch.testing.assert_close(
                lengths, torch.full_like(lengths, 8 / 255), rtol=1e-3, atol=0
            )
    first = torch.cat([plain for plain, _ in passes[0][1]]).flatten(1)
    kept = state.pool.images(torch.arange(6)).flatten(1)
    assert (
        torch.cdist(first, kept).amin(1).max() < 1e-6
    )  # after the second epoch they are still the unperturbed ones


def test_weights_never_move_when_told_so(monkeypatch):
    _, weights, _ = recorded(monkeypatch, CoBoosting(**QUICK, weight_steps="never"))
    assert weights == [[0.5, 0.5]] * 2


def test_one_step_an_epoch_has_the_size_mu(monkeypatch):
    _, weights, _ = recorded(monkeypatch, CoBoosting(**QUICK))
    for before, after in zip([[0.5, 0.5], *weights], weights, strict=False):
        assert all(
            abs(b - a) == pytest.approx(0.05, abs=1e-6) for a, b in zip(after, before, strict=True)
        )


@pytest.mark.parametrize(
    ("steps", "expected"), [("epoch", [1, 2]), ("batch", [1, 1, 1]), ("old", [1]), ("never", [])]
)
def test_how_many_batches_each_weight_step_sees(monkeypatch, steps, expected):
    """Two epochs: 6 images in one batch, then 12 in two."""
    sizes, plain = [], CoBoosting._reweigh

    def counting(self, batches, guide, state):
        sizes.append(len(batches))
        plain(self, batches, guide, state)

    monkeypatch.setattr(CoBoosting, "_reweigh", counting)
    recorded(monkeypatch, CoBoosting(**QUICK, weight_steps=steps))
    assert sizes == expected


def test_old_weights_steps_see_the_plain_pool_before_it_grows(monkeypatch):
    passes, weights, _ = recorded(monkeypatch, CoBoosting(**QUICK, weight_steps="old"))
    assert [size for size, _ in passes] == [0, 6, 6, 12]  # weights, student, weights, student
    assert weights[0] == [0.5, 0.5]
    assert weights[1] != weights[0]
    assert all(torch.equal(plain, batch.images) for plain, batch in passes[2][1])


# --- Algorithm 1, slowly --------------------------------------------------------------------------


class Slow:
    """Algorithm 1 in plain loops: each client and each image alone, KL and CE written out."""

    def __init__(self, world, method):
        self.method, self.server = method, world.server
        self.parts = [upload.parts["classifier"] for upload in world.uploads]
        self.nets = [part.build() for part in self.parts]
        self.plan = server_plan(world.server)
        self.student = self.plan.fresh(world.server.seed)
        self.sgd = SGD(
            self.student.parameters(),
            method.student_lr,
            method.momentum,
            weight_decay=method.weight_decay,
        )
        self.generator = self.new_generator()
        self.draws = seeded(world.server.seed, "studio")
        self.w = [1 / len(self.nets)] * len(self.nets)
        self.images, self.labels = [], []  # D_S

    def new_generator(self, *purpose):
        method = self.method
        return new_generator(
            self.server.task.input_shape,
            method.noise,
            method.generator_width,
            self.server.seed,
            *purpose,
        )

    def logits(self, k, x):
        return self.nets[k](self.parts[k].preprocess(x))

    def ensemble(self, x, w=None):
        w = self.w if w is None else w
        return sum(w[k] * self.logits(k, x) for k in range(len(self.nets)))  # (2)

    def kl(self, teacher, student, temperature=1.0):
        p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
        return temperature**2 * (p * (p.log() - q.log())).sum(-1).mean()

    def generator_loss(self, x, y):
        answers = self.ensemble(x)
        right = answers.softmax(-1)[torch.arange(len(y)), y]
        difficulty = (1 - right).detach()  # (5)
        hard = (difficulty * -right.log()).mean()  # (6)
        apart = -self.kl(
            answers, self.student(self.plan.preprocess(x)), self.method.generator_temperature
        )  # (7)
        return hard + self.method.adversarial * apart  # (8)

    def perturbed(self, x, u):
        x = x[None].clone().requires_grad_()
        (u * self.ensemble(x)[0]).sum().backward()
        return (x + self.method.epsilon * x.grad / x.grad.square().sum().sqrt())[0].detach()  # (10)

    def clipped(self, weights):
        if self.method.clip is None:
            return
        norm = sum(weight.grad.square().sum() for weight in weights).sqrt()
        for weight in weights:
            weight.grad *= min(1.0, self.method.clip / (norm.item() + 1e-6))

    def weight_step(self, x, y, mu):
        w = torch.tensor(self.w, requires_grad=True)
        answers = self.ensemble(x, w)
        (-answers.log_softmax(-1)[torch.arange(len(y)), y].mean()).backward()  # (11)
        self.w = [
            min(1.0, max(0.0, w[k].item() - mu * w.grad[k].sign().item())) for k in range(len(w))
        ]  # (12)

    def learn(self, x, y):
        with torch.no_grad():
            answers = self.ensemble(x)
        loss = self.kl(
            answers, self.student(self.plan.preprocess(x)), self.method.temperature
        )  # (4)
        self.sgd.zero_grad()
        loss.backward()
        self.clipped(list(self.student.parameters()))
        self.sgd.step()

    def epoch(self):
        method, classes = self.method, len(self.server.task.classes)
        y = draw_labels(method.batch_size, classes, self.draws, "cpu")  # line 5
        z = draw_noise(method.batch_size, method.noise, self.draws, "cpu")
        self.student.eval()
        adam = Adam(self.generator.parameters(), method.generator_lr)
        for _ in range(method.generator_steps):  # lines 6 to 9
            x = self.generator(z)
            adam.zero_grad()
            self.generator_loss(x, y).backward()
            adam.step()
        self.images += list(x.detach())  # line 10
        self.labels += list(y)
        order = torch.randperm(len(self.images), generator=self.draws).split(method.batch_size)
        hard = []
        for batch in order:  # line 11
            u = 2 * torch.rand(len(batch), classes, generator=self.draws) - 1
            hard.append(
                torch.stack([self.perturbed(self.images[i], u[n]) for n, i in enumerate(batch)])
            )
        targets = [torch.stack([self.labels[i] for i in batch]) for batch in order]
        self.weight_step(torch.cat(hard), torch.cat(targets), 0.1 / len(self.w))  # lines 13, 14
        self.student.train()
        for x, y in zip(hard, targets, strict=True):  # lines 16 to 18
            self.learn(x, y)


class SlowCode(Slow):
    """What the authors' code does (REFERENCE 1.1), as far as ``variant="code"`` follows it."""

    def __init__(self, world, method):
        super().__init__(world, method)
        self.schedule = CosineAnnealingLR(self.sgd, method.epochs)
        self.t = 0

    def ensemble(self, x, w=None):
        w = self.w if w is None else w
        return super().ensemble(x, w) / sum(w)

    def epoch(self):
        method, classes = self.method, len(self.server.task.classes)
        y = draw_labels(method.batch_size, classes, self.draws, "cpu")
        z = draw_noise(method.batch_size, method.noise, self.draws, "cpu").requires_grad_()
        self.generator = self.new_generator(self.t)
        self.student.eval()
        adam = Adam([*self.generator.parameters(), z], 1e-3, betas=(0.5, 0.999))
        made = []
        for _ in range(method.generator_steps):
            x = self.generator(z)
            loss = self.generator_loss(x, y)
            made.append((loss.item(), x.detach()))
            adam.zero_grad()
            loss.backward()
            self.clipped(list(self.generator.parameters()))
            adam.step()
        for batch in (
            torch.randperm(len(self.images), generator=self.draws).split(method.batch_size)
            if self.t
            else []
        ):
            old = (
                torch.stack([self.images[i] for i in batch]),
                torch.stack([self.labels[i] for i in batch]),
            )
            self.weight_step(*old, 0.1 / len(self.w) * 0.99**self.t)
        self.images += list(min(made, key=lambda pair: pair[0])[1])
        self.labels += list(y)
        self.student.train()
        for batch in torch.randperm(len(self.images), generator=self.draws).split(
            method.batch_size
        ):
            x, y = (
                torch.stack([self.images[i] for i in batch]),
                torch.stack([self.labels[i] for i in batch]),
            )
            u = 2 * torch.rand(len(batch), classes, generator=self.draws) - 1
            x.requires_grad_()
            (u * (self.ensemble(x) / 4).softmax(-1)).sum().backward()
            self.learn((x + 4 / 255 * x.grad.sign()).detach(), y)
        self.schedule.step()
        self.t += 1


def same_after(method, world, slow, epochs):
    """Run both; the epochs of the method against the slow ones."""
    room, _, state = started(method, world)
    (phase,) = method.phases(room)
    begun = deepcopy(state.student.state_dict())
    for state.step in range(epochs):
        phase.step(state)
        slow.epoch()
        torch.testing.assert_close(state.weights, torch.tensor(slow.w), rtol=0, atol=1e-9)
        for mine, theirs in ((state.student, slow.student), (state.generator, slow.generator)):
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(
                    mine.state_dict()[name],
                    value,
                    rtol=1e-5,
                    atol=1e-7,
                    msg=f"{name}, {state.step}",
                )
        torch.testing.assert_close(
            state.pool.images(torch.arange(len(state.pool))), torch.stack(slow.images)
        )
        assert torch.equal(
            state.pool.labels(torch.arange(len(state.pool))), torch.stack(slow.labels)
        )
    assert torch.equal(torch.rand(3, generator=state.draws), torch.rand(3, generator=slow.draws))
    assert (
        max(
            (state.student.state_dict()[name] - value).abs().max().item()
            for name, value in begun.items()
        )
        > 1e-3
    )


MIXTURES = {
    "alike": ("mlp:hidden=8,layers=1",) * 3,
    "mixed": ("mlp:hidden=8,layers=1", "lenet5", "lenet5"),
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("mixture", MIXTURES)
def test_epochs_equal_algorithm_1(mixture):
    method, world = CoBoosting(**QUICK), tiny_world(MIXTURES[mixture], seed=3)
    same_after(method, world, Slow(world, method), 3)


@pytest.mark.usefixtures("exact")
def test_epochs_equal_algorithm_1_with_a_student_that_has_batchnorm():
    """Eval mode while images are made, train mode while it learns: running statistics would show
    any slip.
    """
    world = tiny_world(("resnet20", "mlp:hidden=8,layers=1"), seed=4)
    world = replace(world, server=replace(world.server, student=ModelSpec("resnet20")))
    method = CoBoosting(**QUICK)
    same_after(method, world, Slow(world, method), 2)


@pytest.mark.usefixtures("exact")
def test_epochs_of_the_code_variant_equal_the_code_written_out():
    method, world = (
        CoBoosting(**QUICK, variant="code", clip=0.02),
        tiny_world(seed=5),
    )  # a clip that bites
    same_after(method, world, SlowCode(world, method), 3)


# --- what is delivered ----------------------------------------------------------------------------


@pytest.mark.parametrize("divide", [False, True])
def test_the_learned_ensemble_is_delivered_with_its_weights(divide):
    world = tiny_world()
    fused = fuse(world.uploads, CoBoosting(**QUICK, divide=divide), world.server)
    learned, weights = fused.result.models["ensemble"], fused.result.arrays["weights"]
    assert learned.rule == ("logits" if divide else "sum")
    torch.testing.assert_close(learned.weights, weights)
    assert not torch.equal(weights, torch.full((3,), 1 / 3))


def test_settings_out_of_range_are_named():
    with pytest.raises(SettingsError) as caught:
        CoBoosting(epsilon=-1.0, weight_step=-0.1)
    assert [problem.split()[0] for problem in caught.value.problems] == ["epsilon", "weight_step"]
    for wrong in (
        {"guidance_floor": 0.0},
        {"weight_step_decay": -0.5},
        {"clip": 0.0},
        {"adversarial": -1.0},
    ):
        with pytest.raises(SettingsError) as caught:
            CoBoosting(**wrong)
        assert [problem.split()[0] for problem in caught.value.problems] == list(wrong)
