"""FedHydra: Eqs. (12) to (19) by hand, gradients through the stratified aggregation, and
Algorithm 1 written out slowly.

By hand, on 1 x 1 x 2 pixels: client 0 has logits (x0, x1), client 1 has (2 x1, -x0); U = (1, 1)
and (3, 1). Over the clients: a 1/4 : 3/4, b 1/2 : 1/2. Over the classes: client 0 1/2, 1/2;
client 1 3/4, 1/4. x = (1, 3) has logits (1, 3) and (6, -1). As an image of class a: P = (1/4 *
1/2 * 1 + 3/4 * 3/4 * 6, 1/4 * 1/2 * 3 - 3/4 * 1/4) = (3.5, 0.1875); of class b: (1/2 * 1/2 * 1 +
1/2 * 3/4 * 6, 1/2 * 1/2 * 3 - 1/2 * 1/4) = (2.5, 0.625).
"""

from copy import deepcopy

import pytest
import torch
from by_hand import (
    QUICK,
    Twin,
    assert_same_draws,
    assert_same_nets,
    cross_entropy,
    divergence,
    gap_of,
    kl,
    largest_change,
    pixels,
    prepare_and_start,
    softplus,
    start_linear,
)
from torch.nn import functional as F
from torch.optim import Adam

from attar.blocks.images import draw_labels, draw_noise
from attar.blocks.student import adversarial, distillation, student_step
from attar.errors import SettingsError
from attar.fusion import fuse
from attar.methods.fedhydra import FedHydra
from attar.models import Classifier
from attar.seeds import rng
from attar.testing import SHAPE, tiny_world

P_A, P_B = (3.5, 0.1875), (2.5, 0.625)
STUDENT = [[1.0, 1.0], [0.0, 0.0]]
IMAGES, LABELS = pixels([1.0, 3.0], [1.0, 3.0]), torch.tensor([0, 1])
MARGIN_A, MARGIN_B, STUDENT_MARGIN = P_A[0] - P_A[1], P_B[0] - P_B[1], 4.0


def start_by_hand(method):
    context, state = start_linear(method, STUDENT)
    state.guidance = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    return context, state


# --- (12), (13), (15), (16) -----------------------------------------------------------------------


def test_ensemble_is_stratified_by_hand():
    context, state = start_by_hand(FedHydra(**QUICK))
    answers = context.ensemble(state, IMAGES, LABELS)  # (12)
    assert answers[0].tolist() == pytest.approx(P_A)
    assert answers[1].tolist() == pytest.approx(P_B)


def test_generator_loss_by_hand():
    """(13): the mean of ln(1 + e^-(3.5 - 0.1875)) and ln(1 + e^(2.5 - 0.625)). (15): minus the
    mean KL from P to the student.
    """
    method = FedHydra(**QUICK, stability=0.0, diversity=0.3)
    context, state = start_by_hand(method)
    entropy = (softplus(-MARGIN_A) + softplus(MARGIN_B)) / 2
    gaps = divergence(MARGIN_A, STUDENT_MARGIN), divergence(MARGIN_B, STUDENT_MARGIN)
    loss = method.generator_loss(context, state, IMAGES, LABELS)
    assert loss.item() == pytest.approx(entropy - 0.3 * sum(gaps) / 2, rel=1e-5)


def test_generator_loss_weighs_the_batchnorm_gap_of_all_clients():
    """(14): 1/m over every client, here a third of what the two with BatchNorm have."""
    world = tiny_world(("resnet20", "lenet5", "resnet20"))
    images, labels = torch.rand(6, 1, 16, 16, generator=rng(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = []
    for stability in (0.0, 0.7):
        method = FedHydra(**QUICK, stability=stability)
        context = method.prepare(world.uploads, world.server)
        state = method.start(context)
        losses.append(method.generator_loss(context, state, images, labels).item())
    total = sum(gap_of(upload.parts["classifier"], images).item() for upload in world.uploads)
    assert total > 1
    assert losses[1] - losses[0] == pytest.approx(0.7 * total / 3, rel=1e-4)


@pytest.mark.usefixtures("exact")
def test_ensemble_lets_gradients_flow_through_the_aggregation():
    """(12), (13): CE(P, y) to the images by finite differences; the weights U are constants on
    the way.
    """
    world = tiny_world(("mlp:hidden=8,layers=1",) * 2)
    method = FedHydra(**QUICK)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    state.guidance = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.0, 3.0]])
    labels = torch.tensor([2, 0])
    images = torch.rand(2, 1, 16, 16, generator=rng(1)).requires_grad_()

    def loss(x):
        return F.cross_entropy(context.ensemble(state, x, labels), labels)

    (slope,) = torch.autograd.grad(loss(images), images)
    for place in range(0, images.numel(), 37):
        nudge = torch.zeros(images.numel())
        nudge[place] = 1e-6
        nudge = nudge.view_as(images)
        with torch.no_grad():
            found = (loss(images + nudge) - loss(images - nudge)) / 2e-6
        assert slope.flatten()[place].item() == pytest.approx(found.item(), rel=1e-4, abs=1e-9)
    with torch.no_grad():  # downhill, the ensemble recognises the targets better
        assert loss(images - 0.1 * slope) < loss(images)
    assert not state.guidance.requires_grad


@pytest.mark.usefixtures("exact")
def test_adversarial_drives_aggregation_and_student_apart():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    method = FedHydra(**QUICK)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    state.guidance = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.0, 3.0]])
    noise, labels = draw_noise(6, 5, rng(1), "cpu"), torch.tensor([0, 1, 2, 0, 1, 2])
    weights = list(state.generator.parameters())

    def both():
        images = state.generator(noise)
        student = context.student_logits(state.student, images)
        return context.ensemble(state, images, labels), student

    before = distillation(*reversed(both())).item()  # KL(P || F_g)
    slopes = torch.autograd.grad(adversarial(*both()), weights)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight.sub_(1e-2 * slope)
    expected = 1e-2 * sum(slope.square().sum().item() for slope in slopes)
    assert distillation(*reversed(both())).item() - before == pytest.approx(expected, rel=0.1)
    assert expected > 0


# --- (17) to (19) ---------------------------------------------------------------------------------


def learn(method, context, state, images, labels):
    """One step of the student on (19); the loss before it."""
    answers = context.ensemble(state, images, labels)
    return student_step(context, state, method.student, method.student_loss, images, answers)


def test_student_loss_by_hand():
    """(17): KL from P to (4, 0). (18): H[P] = a for both: ln(1 + e^-4). (19): their sum with
    beta = 0.25.
    """
    method = FedHydra(**QUICK, hard_labels=0.25)
    context, state = start_by_hand(method)
    before = deepcopy(state.student.state_dict())
    loss = learn(method, context, state, IMAGES, LABELS)
    gaps = divergence(MARGIN_A, STUDENT_MARGIN), divergence(MARGIN_B, STUDENT_MARGIN)
    assert loss.item() == pytest.approx(sum(gaps) / 2 + 0.25 * softplus(-4.0), rel=1e-4)
    assert not torch.equal(before["head.weight"], state.student.state_dict()["head.weight"])


def test_student_loss_takes_the_hard_labels_of_the_aggregation():
    """The second image has target b and H[P] = a; with beta alone the student moves towards a."""
    method = FedHydra(**QUICK, hard_labels=1e4)
    context, state = start_by_hand(method)
    before = deepcopy(state.student.state_dict())
    learn(method, context, state, IMAGES[1:], LABELS[1:])
    moved = state.student.state_dict()["head.bias"] - before["head.bias"]
    assert moved[0] > 0 > moved[1]


# --- Algorithm 1, slowly --------------------------------------------------------------------------


class Slow(Twin):
    """Algorithms 1 to 3 in plain loops: a generator for each client and class, the paper's
    matrices, each client alone.
    """

    def stratify(self):  # Algorithm 2
        method, classes = self.method, len(self.server.task.classes)
        training = method.generator
        u = torch.zeros(classes, len(self.nets))  # (3)
        for k in range(len(self.nets)):
            for j in range(classes):
                generator = self.fresh_generator("stratify")
                draws = rng(self.server.seed, "stratify noise")
                z = torch.randn(method.batch_size, training.noise, generator=draws)
                adam, losses = Adam(generator.parameters(), training.lr), []
                for _ in range(training.steps):
                    loss = -self.logits(k, generator(z)).log_softmax(-1)[:, j].mean()  # (1)
                    losses.append(loss.item())
                    adam.zero_grad()
                    loss.backward()
                    adam.step()
                u[j, k] = (max(losses) - min(losses)) / min(losses)  # (2)
        self.u = u
        self.u_r = u / u.sum(1, keepdim=True)  # (4), (5)
        self.u_c = u / u.sum(0, keepdim=True)  # (6), (7)

    def aggregate(self, x, y):  # Algorithm 3
        ones = torch.ones(len(x), 1)
        hats = [
            self.logits(k, x) * (ones @ self.u_c[:, k : k + 1].T) for k in range(len(self.nets))
        ]  # (8)
        rows = []
        for i in range(len(x)):
            p_i = torch.stack([hat[i] for hat in hats])  # (9)
            rows.append(self.u_r[y[i]] @ p_i)  # (10), (11)
        return torch.stack(rows)

    def learn(self, x, y):
        with torch.no_grad():
            p = self.aggregate(x, y)
        student = self.student_logits(x)
        loss = kl(p, student).mean()  # (17)
        loss = loss + self.method.hard_labels * cross_entropy(student, p.argmax(-1))  # (18), (19)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()

    def epoch(self):  # lines 12 to 25 of Algorithm 1
        method, training = self.method, self.method.generator
        y = draw_labels(method.batch_size, len(self.server.task.classes), self.draws, "cpu")
        z = draw_noise(method.batch_size, training.noise, self.draws, "cpu")
        adam, seen = Adam(self.generator.parameters(), training.lr), []
        self.student.eval()
        for _ in range(training.steps):
            x = self.generator(z)
            seen.append(x.detach())
            p = self.aggregate(x, y)  # (12)
            loss = cross_entropy(p, y) + method.stability * self.gap(x)  # (13), (14)
            loss = loss - method.diversity * kl(p, self.student_logits(x)).mean()  # (15), (16)
            adam.zero_grad()
            loss.backward()
            adam.step()
        self.student.train()
        self.grow(seen[-1], y)
        if method.replay == "pool":
            for batch in list(self.batches()):
                self.learn(*batch)
        else:
            for x in seen if method.replay == "intermediate" else seen[-1:]:
                self.learn(x, y)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("replay", ["last", "intermediate", "pool"])
@pytest.mark.parametrize(
    "nets",
    [("mlp:hidden=8,layers=1", "lenet5"), ("resnet20", "mlp:hidden=8,layers=1", "resnet20")],
    ids=["plain", "batchnorm"],
)
def test_phases_equal_the_algorithms(replay, nets):
    world, method = tiny_world(nets, seed=3), FedHydra(**QUICK, replay=replay, hard_labels=0.7)
    twin = Slow(world, method)
    context, state = prepare_and_start(method, world)
    stratify, distil = method.phases(context)
    for state.step in range(stratify.steps):
        stratify.step(state)
    twin.stratify()
    torch.testing.assert_close(state.guidance, twin.u.T, rtol=1e-6, atol=1e-9)
    before = deepcopy(state.student.state_dict())
    for state.step in range(2):
        distil.step(state)
        twin.epoch()
        assert_same_nets(state, twin)
    assert_same_draws(state, twin)
    assert largest_change(state.student, before) > 1e-3


@pytest.mark.parametrize(("replay", "expected"), [("last", 2), ("intermediate", 6), ("pool", 3)])
def test_replay_images_gives_as_many_batches_as_replay_says(replay, expected):
    """Two epochs of three generator steps, batches of 6: 1 + 1, 3 + 3, and the pool's 1 + 2."""
    sizes = []

    class Counted(FedHydra):
        def replay_images(self, context, state, batch, labels):
            batches = list(super().replay_images(context, state, batch, labels))
            sizes.extend(len(images) for images, _ in batches)
            return batches

    world, quick = tiny_world(), {**QUICK, "epochs": 2, "generator_steps": 3}
    fuse(world.uploads, Counted(**quick, replay=replay), world.server)
    assert sizes == [6] * expected


# --- what is delivered ----------------------------------------------------------------------------


def test_result_has_u_its_two_forms_and_the_ensemble():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    result = fuse(world.uploads, FedHydra(**QUICK), world.server).result
    table = result.arrays["guidance"]
    assert table.shape == (2, 3)
    assert (table > 0).all()
    torch.testing.assert_close(result.arrays["across clients"], table / table.sum(0))
    torch.testing.assert_close(result.arrays["across classes"], table / table.sum(1, keepdim=True))
    ensemble = result.models["ensemble"]
    weights = table / table.sum(0) * (table / table.sum(1, keepdim=True))
    torch.testing.assert_close(ensemble.weights, weights)
    images = torch.rand(4, *SHAPE)
    each = torch.stack([Classifier(upload.parts["classifier"])(images) for upload in world.uploads])
    answers = (weights[:, None] * each).sum(0) / weights.sum(0)
    torch.testing.assert_close(
        Classifier(ensemble)(images), answers, msg="no class is louder for its larger weights"
    )


def test_guidance_floor_reaches_the_guidance():
    """Where a floor above every loss divides, u = (max - min) / floor: ten times the floor, a
    tenth of the guidance.
    """
    world, found = tiny_world(), []
    for floor in (10.0, 100.0):
        found.append(
            fuse(
                world.uploads, FedHydra(**QUICK, guidance_floor=floor), world.server
            ).result.arrays["guidance"]
        )
    torch.testing.assert_close(found[0], 10 * found[1])
    with pytest.raises(SettingsError, match="guidance_floor"):
        FedHydra(guidance_floor=0.0)


def test_defaults_are_the_papers():
    method = FedHydra()
    named = (
        method.epochs,
        method.generator.steps,
        method.generator.lr,
        method.student.lr,
        method.stability,
        method.diversity,
    )
    assert named == (200, 30, 1e-3, 0.01, 1.0, 0.5)
