"""Co-Boosting: Eqs. (2) to (12) by hand on linear clients, and Algorithm 1 written out slowly
beside the method's own epochs.

By hand: images of 1 x 1 x 2 pixels, client 0 has logits (x0, x1), client 1 has (2 x1, -x0); the
student has (x0 + x1, 0).
"""

from copy import deepcopy
from dataclasses import replace
from math import exp, log

import pytest
import torch
from by_hand import (
    QUICK,
    TWO,
    Twin,
    assert_same_draws,
    assert_same_run,
    cross_entropy,
    divergence,
    kl,
    largest_change,
    pixels,
    prepare_and_start,
    softplus,
    start_linear,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from attar.blocks.images import draw_labels, draw_noise
from attar.blocks.student import distillation
from attar.core import ModelSpec
from attar.errors import SettingsError
from attar.fusion import fuse
from attar.methods.co_boosting.hard_samples import (
    PoolBatch,
    normalise_weights,
    perturb_images,
    pool_batches,
    weight_gradient_sign,
)
from attar.methods.co_boosting.method import CoBoosting
from attar.seeds import rng
from attar.testing import tiny_world

STUDENT = [[1.0, 1.0], [0.0, 0.0]]  # x = (1, 3) has the logits (4, 0)


def start_by_hand(method):
    """The two linear clients, of 1 and 3 examples, and the linear student."""
    return start_linear(method, STUDENT, counts=(1, 3))


# --- (2) ------------------------------------------------------------------------------------------


def test_weighted_ensemble_is_a_sum_as_printed_and_divided_by_default():
    """x = (1, 3): f = (1, 3) and (6, -1). w = (0.2, 0.7): (0.2 + 4.2, 0.6 - 0.7) = (4.4, -0.1)."""
    method = CoBoosting(variant="paper")
    context, state = start_by_hand(method)
    state.weights = torch.tensor([0.2, 0.7])
    logits, labels = context.teachers(pixels([1.0, 3.0])), torch.tensor([0])
    answers = method.weighted_ensemble(context, state, logits, labels)
    assert answers[0].tolist() == pytest.approx([4.4, -0.1])
    for other in (replace(method, divide=True), CoBoosting()):
        divided = other.weighted_ensemble(context, state, logits, labels)
        assert divided[0].tolist() == pytest.approx([4.4 / 0.9, -0.1 / 0.9])


def test_step_weights_cannot_change_the_scale_of_a_divided_ensemble():
    """(11) divided by sum(w): sum_k w_k dL/dw_k = 0, as L does not change with w -> c w.

    Client 0 says (2, 0), client 1 (1, 0), y = 0: more of either raises the plain sum, so (12) as
    printed raises both weights; divided, client 1 is in client 0's way and loses.
    """
    batch = batch_of([[[2.0, 0.0]], [[1.0, 0.0]]], [0])
    for method, expected in (
        (CoBoosting(variant="paper"), [0.55, 0.55]),
        (CoBoosting(), [0.55, 0.45]),
    ):
        context, state = start_by_hand(method)
        method.step_weights(context, state, [batch])
        assert state.weights.tolist() == pytest.approx(expected)


def test_weighted_ensemble_starts_at_one_over_n_or_at_the_shares_of_data():
    """1/n: (3.5, 1). Shares of data 1/4 and 3/4: (1/4 + 18/4, 3/4 - 3/4) = (4.75, 0)."""
    for weighting, expected in (("uniform", [3.5, 1.0]), ("data", [4.75, 0.0])):
        method = CoBoosting(ensemble=weighting)
        context, state = start_by_hand(method)
        assert state.weights.tolist() == [0.5, 0.5]
        logits = context.teachers(pixels([1.0, 3.0]))
        answers = method.weighted_ensemble(context, state, logits, torch.tensor([0]))
        assert answers[0].tolist() == pytest.approx(expected, abs=1e-6)


# --- (3), (5) to (8) ------------------------------------------------------------------------------


def test_generator_loss_by_hand():
    """x = (1, 3), w = 1/2: A = (3.5, 1), margin 2.5; student (4, 0).

    (3) y = 1: CE = ln(1 + e^2.5).  (5) d = 1 - 1 / (1 + e^2.5).  (6) d CE.  (7) -KL of the margins
    2.5 and 4; by default 9 times that of a third of them.
    """
    difficulty = 1 / (1 + exp(-2.5))
    hard, apart = difficulty * softplus(2.5), divergence(2.5, 4.0)
    cooler = 9 * divergence(2.5 / 3, 4 / 3)
    images, labels = pixels([1.0, 3.0]), torch.tensor([1])
    expected = {
        CoBoosting(hard_generation=False): softplus(2.5),  # (3) alone
        CoBoosting(adversarial=0.0): hard,  # (6)
        CoBoosting(variant="paper"): hard - apart,  # (8), beta = 1
        CoBoosting(variant="revised", adversarial=0.5): hard - 0.5 * apart,
        CoBoosting(): hard - cooler,
    }
    for method, value in expected.items():
        context, state = start_by_hand(method)
        loss = method.generator_loss(context, state, images, labels)
        assert loss.item() == pytest.approx(value, rel=1e-5)


def test_generator_loss_without_hard_generation_ignores_the_student():
    method, world = CoBoosting(**QUICK, hard_generation=False), tiny_world()
    context, state = prepare_and_start(method, world)
    images, labels = torch.rand(4, 1, 16, 16, generator=rng(1)), torch.tensor([0, 1, 2, 0])
    before = method.generator_loss(context, state, images, labels)
    logits = torch.stack(
        [u.parts["classifier"].build()(context.plan.preprocess(images)) for u in world.uploads]
    ).mean(0)
    torch.testing.assert_close(before, torch.nn.functional.cross_entropy(logits, labels))
    with torch.no_grad():
        for weight in state.student.parameters():
            weight.mul_(3)
    assert torch.equal(method.generator_loss(context, state, images, labels), before)
    hard = replace(method, hard_generation=True)
    after = hard.generator_loss(context, state, images, labels)
    fresh = method.start(context)
    assert not torch.equal(after, hard.generator_loss(context, fresh, images, labels))


@pytest.mark.usefixtures("exact")
def test_generator_loss_of_eq_7_drives_ensemble_and_student_apart():
    """A plain gradient step of the generator's weights on (7) raises KL(A_w(G(z)) || f_S(G(z)))."""
    method, world = CoBoosting(**QUICK), tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    context, state = prepare_and_start(method, world)
    noise, labels = draw_noise(6, 5, rng(1), "cpu"), torch.tensor([0, 1, 2, 0, 1, 2])

    def apart():
        images = state.generator(noise)
        answers = method.weighted_ensemble(context, state, context.teachers(images), labels)
        student = context.student_logits(state.student, images)
        return distillation(student, answers, method.generator_temperature)

    images = state.generator(noise)
    both = method.generator_loss(context, state, images, labels)  # (8)
    alone = replace(method, adversarial=0.0)
    first = alone.generator_loss(context, state, images, labels)  # (6)
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


def test_perturb_images_by_hand():
    """A(x) = (x0 + 2 x1, x1), u = (1, -1): the gradient of u^T A is (1, 2 - 1) = (1, 1), of
    length sqrt(2).
    """
    matrix = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    images, direction = pixels([0.3, 0.4], [0.9, 0.1]), torch.tensor([[1.0, -1.0], [2.0, -4.0]])

    def teacher(x):
        return x.flatten(1) @ matrix.T

    moved = perturb_images(images, teacher, direction, 0.1, "l2").flatten(1)
    step = 0.1 / 2**0.5
    assert moved[0].tolist() == pytest.approx([0.3 + step, 0.4 + step])
    assert moved[1].tolist() == pytest.approx(
        [1.0, 0.1]
    )  # u = (2, -4): the gradient is (2, 0), of length 2
    moved = perturb_images(images, teacher, direction, 0.1, "sign").flatten(1)
    assert moved.flatten().tolist() == pytest.approx([0.4, 0.5, 1.0, 0.1])


def test_perturb_images_leaves_images_without_gradient():
    images = torch.rand(2, *TWO)
    for norm in ("l2", "sign"):
        assert torch.equal(
            perturb_images(images, lambda x: x.flatten(1) * 0, torch.ones(2, 2), 0.1, norm), images
        )


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("perturb", ["logits", "probabilities"])
@pytest.mark.parametrize("direction", ["l2", "sign"])
def test_harden_has_length_epsilon_and_raises_the_likeness(direction, perturb):
    method = CoBoosting(**QUICK, epsilon=8 / 255, direction=direction, perturb=perturb)
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    context, state = prepare_and_start(method, world)
    images, labels = torch.rand(5, 1, 16, 16, generator=rng(1)), torch.tensor([0, 1, 2, 0, 1])

    def answer(x):
        return method.weighted_ensemble(context, state, context.teachers(x), labels)

    towards = 2 * torch.rand(5, 3, generator=rng(7)) - 1  # u
    moved = method.harden(context, state, images, labels, towards)

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


def test_pool_batches_draw_a_direction_for_every_image_and_every_pass():
    """u ~ Unif([-1, 1])^d for 600 equal images, in two passes over the pool."""
    context, state = prepare_and_start(CoBoosting(**QUICK, pool_limit=600), tiny_world())
    state.pool.add(
        torch.rand(1, 1, 16, 16).expand(600, -1, -1, -1), torch.zeros(600, dtype=torch.int64)
    )

    def directions_of_a_pass():
        drawn = []
        list(pool_batches(context, state, 7, lambda x, y, u: (drawn.append(u), x)[1]))
        return torch.cat(drawn)

    first, second = directions_of_a_pass(), directions_of_a_pass()
    assert first.shape == second.shape == (600, 3)
    assert len(torch.cat([first, second]).flatten().unique()) > 3590
    assert (first.min() < -0.98, first.max() > 0.98, first.abs().max() <= 1) == (True, True, True)
    assert abs(first.mean()) < 0.05


@pytest.mark.parametrize("augment", ["none", "crop-flip"])
@pytest.mark.parametrize(
    "harden", [None, lambda x, y, towards: x + 0.1 * towards.mean(1)[:, None, None, None]]
)
def test_pool_batches_together_are_the_same_batches(harden, augment):
    """15 images in batches of 4: 4, 4, 4, 3, asked one by one, two by two and all at once."""
    found = []
    for together in (1, 2, 9):
        context, state = prepare_and_start(
            CoBoosting(**QUICK, pool_limit=15), tiny_world(("lenet5", "mlp:hidden=8,layers=1"))
        )
        state.pool.add(torch.rand(15, 1, 16, 16, generator=rng(1)), torch.arange(15) % 3)
        batches = pool_batches(context, state, 4, harden, augment=augment, together=together)
        found.append(list(batches))
    assert [[len(batch.labels) for batch in batches] for batches in found] == [[4, 4, 4, 3]] * 3
    for batches in found[1:]:
        for one, other in zip(found[0], batches, strict=True):
            assert torch.equal(one.labels, other.labels)
            torch.testing.assert_close(one.images, other.images)
            torch.testing.assert_close(one.logits, other.logits)


def test_pool_batches_augment_anew_and_clients_answer_what_the_student_sees():
    """Each of 12 images is itself or its mirror image, not the same ones in two passes; what is
    kept stays as it was.
    """
    context, state = prepare_and_start(CoBoosting(**QUICK, pool_limit=12), tiny_world())
    kept = torch.rand(12, 1, 16, 16, generator=rng(1))
    state.pool.add(kept, torch.arange(12) % 3)
    choices = []
    for _ in range(2):
        ahead = torch.Generator()
        ahead.set_state(state.draws.get_state())
        order = torch.randperm(12, generator=ahead)
        (batch,) = pool_batches(context, state, 12, augment="flip")
        plain, mirrored = (
            (batch.images == one).flatten(1).all(1) for one in (kept[order], kept[order].flip(3))
        )
        assert bool((plain ^ mirrored).all())
        torch.testing.assert_close(batch.logits, context.teachers(batch.images))
        choices.append(mirrored[order.argsort()].tolist())
    assert any(choices[0])
    assert not all(choices[0])
    assert choices[0] != choices[1]
    assert torch.equal(state.pool.images(torch.arange(12)), kept)


# --- (11), (12) -----------------------------------------------------------------------------------


def batch_of(logits, labels):
    """``logits`` as (K, B, C)."""
    return PoolBatch(torch.zeros(len(labels), *TWO), torch.tensor(labels), torch.tensor(logits))


def weighted(logits, labels, weights):
    return (weights[:, None, None] * logits).sum(0)


def test_step_weights_by_hand():
    """dCE/dw_k = sum_c (p_c - [c = y]) f_kc. Client 0 says (ln 3, 0), client 1 (0, ln 3), w =
    1/2: p = (1/2, 1/2).

    y = 0: -1/2 ln 3 and +1/2 ln 3, signs (-1, +1): w = 1/2 -+ mu with mu = 0.1/2: (0.55, 0.45).
    """
    weights = torch.tensor([0.5, 0.5], requires_grad=True)
    batch = batch_of([[[log(3), 0.0]], [[0.0, log(3)]]], [0])
    assert weight_gradient_sign(weights, [batch], weighted).tolist() == [-1.0, 1.0]
    method = CoBoosting()
    context, state = start_by_hand(method)
    method.step_weights(context, state, [batch])
    assert state.weights.tolist() == pytest.approx([0.55, 0.45])
    state.step = 2
    smaller = replace(method, weight_step=0.2, weight_step_decay=0.5)
    smaller.step_weights(context, state, [batch])  # mu = 0.2 / 4 in epoch 2
    assert state.weights.tolist() == pytest.approx([0.60, 0.40])
    assert not state.weights.requires_grad


def test_weight_gradient_sign_of_an_epoch_outvotes_its_batches():
    """Client 0 says (1, 0). One image of y = 0 in a batch of one, and three of y = 1: two
    batches that pull apart.

    At w = 0: p = 1/2, the gradient is -1/2 and 3/2: +1 over all; the signs of the batches one by
    one would cancel.
    """
    weights = torch.tensor([0.0], requires_grad=True)
    small, large = batch_of([[[1.0, 0.0]]], [0]), batch_of([[[1.0, 0.0]] * 3], [1, 1, 1])
    assert weight_gradient_sign(weights, [small], weighted).tolist() == [-1.0]
    assert weight_gradient_sign(weights, [large], weighted).tolist() == [1.0]
    assert weight_gradient_sign(weights, [small, large], weighted).tolist() == [1.0]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 10**6))
@settings(max_examples=40)
def test_weight_gradient_sign_does_not_depend_on_the_batches(sizes, seed):
    """Equal to the sign of the gradient of (11) over all images at once, however they are split."""
    draws, total = rng(seed), sum(sizes)
    logits = 3 * torch.randn(4, total, 3, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 3, (total,), generator=draws)
    weights = torch.rand(4, generator=draws, dtype=torch.float64).requires_grad_()
    loss = cross_entropy(weighted(logits, labels, weights), labels)  # (11)
    (slope,) = torch.autograd.grad(loss, weights)
    split = [
        PoolBatch(torch.zeros(len(own), *TWO), own, part)
        for part, own in zip(logits.split(sizes, 1), labels.split(sizes), strict=True)
    ]
    assert torch.equal(weight_gradient_sign(weights, split, weighted), slope.sign())


def test_normalise_weights_bounds_each_weight_and_survives_nothing():
    given = torch.tensor([-0.2, 0.3, 1.4])
    bounded = normalise_weights(given).tolist()
    assert bounded == pytest.approx([0.0, 0.3, 1.0])  # one by one, no sum of one
    assert given.tolist() == pytest.approx([-0.2, 0.3, 1.4])
    assert normalise_weights(torch.tensor([0.0, -0.1, -3.0, 0.0])).tolist() == [0.25] * 4
    assert normalise_weights(torch.zeros(1)).tolist() == [1.0]


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6))
@settings(max_examples=60)
def test_normalise_weights_gives_an_ensemble(values):
    weights = normalise_weights(torch.tensor(values))
    assert ((weights >= 0) & (weights <= 1)).all()
    assert weights.sum() > 0


# --- the switches of Table 7, and which images each step sees -------------------------------------


class Watched(CoBoosting):
    """Notes every pass over the pool, and how many batches every step of the weights sees."""

    def pool_batches(self, context, state, harden=None):
        pool, ahead = state.pool, torch.Generator()
        ahead.set_state(state.draws.get_state())
        places = torch.randperm(len(pool), generator=ahead).split(self.batch_size)
        seen = []
        self.passes.append((len(pool), seen))
        batches = super().pool_batches(context, state, harden)
        for plain, batch in zip(places if len(pool) else (), batches, strict=True):
            seen.append((pool.images(plain).clone(), batch))
            yield batch

    def step_weights(self, context, state, batches):
        self.steps.append(len(batches))
        super().step_weights(context, state, batches)


def watch_epochs(epochs=2, **settings):
    """Run epochs: the watched method, w after each epoch, the state.

    ``passes`` of the method are the size of the pool at each pass, and the batches with the plain
    images that they came from.
    """
    method = Watched(**QUICK, **settings)
    vars(method).update(passes=[], steps=[])
    context, state = prepare_and_start(method, tiny_world(("mlp:hidden=8,layers=1", "lenet5")))
    weights = []
    for state.step in range(epochs):
        method.epoch(context, state)
        weights.append(state.weights.tolist())
    return method, weights, state


def test_epoch_without_hard_distillation_sees_the_pool_as_it_is():
    method, weights, _ = watch_epochs(variant="paper", hard_distillation=False)
    assert [size for size, _ in method.passes] == [6, 12]
    for _, seen in method.passes:
        assert all(torch.equal(plain, batch.images) for plain, batch in seen)
    assert weights[0] != [0.5, 0.5]


@pytest.mark.parametrize(("variant", "step"), [("paper", 8 / 255), ("revised", 4 / 255)])
def test_epoch_with_hard_distillation_moves_every_image_and_keeps_the_plain_ones(variant, step):
    """As printed an image moves by 8/255 as a whole, by signs each of its pixels by 4/255."""
    method, _, state = watch_epochs(variant=variant)
    for _, seen in method.passes:
        for plain, batch in seen:
            away = (batch.images - plain).flatten(1)
            lengths = away.norm(dim=1) if variant == "paper" else away.abs().amax(1)
            torch.testing.assert_close(lengths, torch.full_like(lengths, step), rtol=1e-3, atol=0)
            if variant == "revised":
                assert (away.abs() > 0.99 * step).double().mean() > 0.9
    first = torch.cat([plain for plain, _ in method.passes[0][1]]).flatten(1)
    kept = state.pool.images(torch.arange(6)).flatten(1)
    # After the second epoch they are still the unperturbed ones.
    assert torch.cdist(first, kept).amin(1).max() < 1e-6


def test_boost_weights_never_moves_them():
    _, weights, _ = watch_epochs(weight_steps="never")
    assert weights == [[0.5, 0.5]] * 2


def test_boost_weights_as_printed_takes_one_step_of_mu_an_epoch():
    _, weights, _ = watch_epochs(variant="paper")
    for before, after in zip([[0.5, 0.5], *weights], weights, strict=False):
        assert all(
            abs(b - a) == pytest.approx(0.05, abs=1e-6) for a, b in zip(after, before, strict=True)
        )


@pytest.mark.parametrize(
    ("steps", "expected"), [("epoch", [1, 2]), ("batch", [1, 1, 1]), ("old", [1]), ("never", [])]
)
def test_step_weights_sees_as_many_batches_as_weight_steps_says(steps, expected):
    """Two epochs: 6 images in one batch, then 12 in two."""
    method, _, _ = watch_epochs(weight_steps=steps)
    assert method.steps == expected


def test_boost_weights_on_old_pool_sees_the_plain_pool_before_it_grows():
    method, weights, _ = watch_epochs(weight_steps="old")
    sizes = [size for size, _ in method.passes]
    assert sizes == [0, 6, 6, 12]  # weights, student, weights, student
    assert weights[0] == [0.5, 0.5]
    assert weights[1] != weights[0]
    assert all(torch.equal(plain, batch.images) for plain, batch in method.passes[2][1])


# --- Algorithm 1, slowly --------------------------------------------------------------------------


class Slow(Twin):
    """Algorithm 1 in plain loops: each client and each image alone, KL and CE written out."""

    def __init__(self, world, method):
        super().__init__(world, method)
        self.w = [1 / len(self.nets)] * len(self.nets)

    def ensemble(self, x, w=None):
        w = self.w if w is None else w
        return sum(w[k] * self.logits(k, x) for k in range(len(self.nets)))  # (2)

    def generator_loss(self, x, y):
        answers = self.ensemble(x)
        right = answers.softmax(-1)[torch.arange(len(y)), y]
        difficulty = (1 - right).detach()  # (5)
        hard = (difficulty * -right.log()).mean()  # (6)
        student = self.student_logits(x)
        apart = -kl(answers, student, self.method.generator_temperature).mean()  # (7)
        return hard + self.method.adversarial * apart  # (8)

    def perturbed(self, x, u):
        x = x[None].clone().requires_grad_()
        (u * self.ensemble(x)[0]).sum().backward()
        return (x + self.method.epsilon * x.grad / x.grad.square().sum().sqrt())[0].detach()  # (10)

    def clipped(self, weights):
        clip = self.method.student.clip
        if clip is None:
            return
        norm = sum(weight.grad.square().sum() for weight in weights).sqrt()
        for weight in weights:
            weight.grad *= min(1.0, clip / (norm.item() + 1e-6))

    def weight_step(self, x, y, mu):
        w = torch.tensor(self.w, requires_grad=True)
        cross_entropy(self.ensemble(x, w), y).backward()  # (11)
        self.w = [
            min(1.0, max(0.0, w[k].item() - mu * w.grad[k].sign().item())) for k in range(len(w))
        ]  # (12)

    def learn(self, x, y):
        with torch.no_grad():
            answers = self.ensemble(x)
        loss = kl(answers, self.student_logits(x), self.method.student.temperature).mean()  # (4)
        self.sgd.zero_grad()
        loss.backward()
        self.clipped(list(self.student.parameters()))
        self.sgd.step()

    def epoch(self):
        method, classes = self.method, len(self.server.task.classes)
        y = draw_labels(method.batch_size, classes, self.draws, "cpu")  # line 5
        z = draw_noise(method.batch_size, method.generator.noise, self.draws, "cpu")
        self.student.eval()
        adam = Adam(self.generator.parameters(), method.generator.lr)
        for _ in range(method.generator.steps):  # lines 6 to 9
            x = self.generator(z)
            adam.zero_grad()
            self.generator_loss(x, y).backward()
            adam.step()
        self.grow(x.detach(), y)  # line 10
        hard, targets = [], []
        for images, labels in list(self.batches()):  # line 11
            u = 2 * torch.rand(len(images), classes, generator=self.draws) - 1
            hard.append(
                torch.stack([self.perturbed(*pair) for pair in zip(images, u, strict=True)])
            )
            targets.append(labels)
        self.weight_step(torch.cat(hard), torch.cat(targets), 0.1 / len(self.w))  # lines 13, 14
        self.student.train()
        for x, y in zip(hard, targets, strict=True):  # lines 16 to 18
            self.learn(x, y)


class SlowRevised(Slow):
    """``variant="revised"``: (2) divided by the sum of w, (10) by signs of four grey levels."""

    def ensemble(self, x, w=None):
        w = self.w if w is None else w
        return super().ensemble(x, w) / sum(w)

    def perturbed(self, x, u):
        x = x[None].clone().requires_grad_()
        (u * self.ensemble(x)[0]).sum().backward()
        return (x + 4 / 255 * x.grad.sign())[0].detach()


class SlowCode(Slow):
    """The default: what the authors' code does (REFERENCE 1.1), as far as we follow it."""

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
        z = draw_noise(method.batch_size, method.generator.noise, self.draws, "cpu")
        z.requires_grad_()
        self.generator = self.fresh_generator(self.t)
        self.student.eval()
        adam = Adam([*self.generator.parameters(), z], 1e-3, betas=(0.5, 0.999))
        made = []
        for _ in range(method.generator.steps):
            x = self.generator(z)
            loss = self.generator_loss(x, y)
            made.append((loss.item(), x.detach()))
            adam.zero_grad()
            loss.backward()
            self.clipped(list(self.generator.parameters()))
            adam.step()
        for old in self.batches():
            self.weight_step(*old, 0.1 / len(self.w) * 0.99**self.t)
        self.grow(min(made, key=lambda pair: pair[0])[1], y)
        self.student.train()
        for x, y in list(self.batches()):
            u = 2 * torch.rand(len(x), classes, generator=self.draws) - 1
            x.requires_grad_()
            (u * (self.ensemble(x) / 4).softmax(-1)).sum().backward()
            self.learn((x + 4 / 255 * x.grad.sign()).detach(), y)
        self.schedule.step()
        self.t += 1


def assert_same_epochs(method, world, twin, epochs):
    """Run both; the method's epochs against the slow ones."""
    context, state = prepare_and_start(method, world)
    before = deepcopy(state.student.state_dict())
    for state.step in range(epochs):
        method.epoch(context, state)
        twin.epoch()
        torch.testing.assert_close(state.weights, torch.tensor(twin.w), rtol=0, atol=1e-9)
        assert_same_run(state, twin)
    assert_same_draws(state, twin)
    assert largest_change(state.student, before) > 1e-3


MIXTURES = {
    "alike": ("mlp:hidden=8,layers=1",) * 3,
    "mixed": ("mlp:hidden=8,layers=1", "lenet5", "lenet5"),
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(("variant", "slow"), [("paper", Slow), ("revised", SlowRevised)])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_epoch_equals_algorithm_1(mixture, variant, slow):
    world = tiny_world(MIXTURES[mixture], seed=3)
    method = CoBoosting(**QUICK, variant=variant)
    assert_same_epochs(method, world, slow(world, method), 3)


@pytest.mark.usefixtures("exact")
def test_epoch_equals_algorithm_1_with_a_student_that_has_batchnorm():
    """Eval mode while images are made, train mode while it learns: running statistics would show
    any slip.
    """
    world = tiny_world(("resnet20", "mlp:hidden=8,layers=1"), seed=4)
    world = replace(world, server=replace(world.server, student=ModelSpec("resnet20")))
    method = CoBoosting(**QUICK, variant="paper")
    assert_same_epochs(method, world, Slow(world, method), 2)


@pytest.mark.usefixtures("exact")
def test_epoch_of_the_default_equals_the_authors_code_written_out():
    method, world = CoBoosting(**QUICK, clip=0.02), tiny_world(seed=5)
    # 0.02: gradients are clipped indeed
    assert_same_epochs(method, world, SlowCode(world, method), 3)


# --- what is delivered ----------------------------------------------------------------------------


@pytest.mark.parametrize("divide", [False, True])
def test_result_has_the_learned_ensemble_with_its_weights(divide):
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
