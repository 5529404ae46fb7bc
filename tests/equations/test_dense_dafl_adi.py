"""DENSE, F-DAFL, F-ADI and FedFTG: the terms as the methods use them, and their epochs written
out slowly beside them.
"""

from copy import deepcopy
from dataclasses import replace
from math import exp, log

import pytest
import torch
from by_hand import (
    QUICK,
    Twin,
    assert_same_draws,
    assert_same_run,
    crop_and_flip,
    cross_entropy,
    divergence,
    draw_crops,
    gap_of,
    kl,
    largest_change,
    pixels,
    prepare_and_start,
    softplus,
    start_linear,
)
from torch import nn
from torch.optim import Adam

from attar.blocks.ensemble import Teachers
from attar.blocks.ensemble.hooks import statistics_gap
from attar.blocks.images import draw_labels, draw_noise
from attar.methods.dense import Dense
from attar.methods.f_adi import FAdi
from attar.methods.f_dafl import FDafl
from attar.seeds import rng
from attar.testing import CLASSES, SHAPE, tiny_world

MIXED = ("resnet20", "mlp:hidden=8,layers=1", "resnet20")
STUDENT = [[0.0, 0.0], [1.0, 1.0]]  # x = (1, 3) has the logits (0, 4)
ONE = pixels([1.0, 3.0])  # the clients' mean of logits is (3.5, 1)


# --- the BatchNorm gap ----------------------------------------------------------------------------


def test_statistics_gap_by_hand():
    """Channel 0 is 3 everywhere (mean 3, variance 0), channel 1 is 3 and 7 (mean 5, variance 4,
    divided by n and not n - 1).

    Against running means (0, 1) and variances (1, 4): ||(3, 4)|| + ||(-1, 0)|| = 5 + 1. Not
    squared.
    """
    layer = nn.BatchNorm2d(2)
    layer.running_mean, layer.running_var = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 4.0])
    inputs = torch.tensor([[[[3.0, 3.0]], [[3.0, 7.0]]]])
    assert statistics_gap(layer, inputs).item() == pytest.approx(6)
    both = inputs[:, :, :, :1], inputs[:, :, :, 1:]  # the same numbers as a batch of two images
    assert statistics_gap(layer, torch.cat(both)).item() == pytest.approx(6)
    assert statistics_gap(
        layer, torch.tensor([[[[-1.0, 1.0]], [[-1.0, 3.0]]]])
    ).item() == pytest.approx(0)


def test_statistics_gap_of_flat_features():
    layer = nn.BatchNorm1d(2)
    assert statistics_gap(layer, torch.tensor([[3.0, 3.0], [3.0, 5.0]])).item() == pytest.approx(
        5 + 1
    )  # (3, 4), (-1, 0)


@pytest.mark.parametrize("stack", [True, False])
def test_with_hooks_measures_inside_each_teacher(stack):
    parts = [upload.parts["classifier"] for upload in tiny_world(MIXED).uploads]
    images = torch.rand(4, *SHAPE, generator=rng(1)).requires_grad_()
    teachers = Teachers(parts, CLASSES, stack=stack)
    logits, found = teachers.with_hooks(images, ["batchnorm", "activation", "mean activation"])
    torch.testing.assert_close(logits, teachers(images))
    gaps = torch.stack([gap_of(part, images) for part in parts])
    torch.testing.assert_close(found["batchnorm"], gaps, rtol=1e-4, atol=1e-5)
    assert gaps[1] == 0
    features = [part.build().features(part.preprocess(images)) for part in parts]
    sizes = torch.stack([f.abs().sum(1).mean() for f in features])
    torch.testing.assert_close(found["activation"], sizes, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found["mean activation"],
        torch.stack([f.abs().mean() for f in features]),
        rtol=1e-4,
        atol=1e-6,
    )
    (slope,) = torch.autograd.grad(found["batchnorm"].sum(), images)
    (expected,) = torch.autograd.grad(gaps.sum(), images)
    torch.testing.assert_close(slope, expected, rtol=1e-3, atol=1e-5)


# --- DENSE ----------------------------------------------------------------------------------------


def test_dense_generator_loss_by_hand():
    """y = a: CE = ln(1 + e^-2.5). First choices a and b differ: L_div = -KL of the margins 2.5
    and -4.
    """
    for transferability, label in ((0.5, 0), (0.25, 1)):
        method = Dense(**QUICK, stability=0.0, transferability=transferability)
        context, state = start_linear(method, STUDENT)
        loss = method.generator_loss(context, state, ONE, torch.tensor([label]))
        expected = softplus(2.5 if label else -2.5) - transferability * divergence(2.5, -4.0)
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_dense_generator_loss_counts_the_gap_of_every_client_with_or_without_batchnorm():
    world, losses = tiny_world(MIXED), []
    images, labels = torch.rand(6, *SHAPE, generator=rng(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    for stability in (0.0, 0.4):
        method = Dense(**QUICK, stability=stability)
        context = method.prepare(world.uploads, world.server)
        state = method.start(context)
        losses.append(method.generator_loss(context, state, images, labels).item())
    total = sum(gap_of(upload.parts["classifier"], images).item() for upload in world.uploads)
    assert losses[1] - losses[0] == pytest.approx(0.4 * total / 3, rel=1e-4)
    assert total > 1


class SlowDense(Twin):
    """DENSE's loop with each client alone; ``generator_loss`` and ``teacher`` written out."""

    def teacher(self, x):
        return sum(self.logits(k, x) for k in range(len(self.nets))) / len(self.nets)

    def generator_loss(self, x, y):
        answers, student = self.teacher(x), self.student_logits(x)
        loss = cross_entropy(answers, y) + self.method.stability * self.gap(x)
        apart = [
            -kl(answers[i], student[i], self.method.generator_temperature)
            if answers[i].argmax() != student[i].argmax()
            else 0 * answers[i, 0]
            for i in range(len(x))
        ]
        return loss + self.method.transferability * torch.stack(apart).mean()

    def targets(self):
        return draw_labels(self.method.batch_size, len(self.server.task.classes), self.draws, "cpu")

    def make(self):
        y, training = self.targets(), self.method.generator
        z = draw_noise(self.method.batch_size, training.noise, self.draws, "cpu")
        adam = Adam(self.generator.parameters(), training.lr)
        for _ in range(training.steps):
            x = self.generator(z)
            adam.zero_grad()
            self.generator_loss(x, y).backward()
            adam.step()
        return x.detach(), y

    def augment(self, images):
        return images

    def epoch(self):
        self.student.eval()
        self.grow(*self.make())
        self.student.train()
        batches = [images for images, _ in self.batches()]
        for images in batches:
            x = self.augment(images)
            with torch.no_grad():
                answers = self.teacher(x)
            loss = kl(answers, self.student_logits(x), self.method.student.temperature).mean()
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()


class SlowAugmented(SlowDense):
    """Every image of the pool is cropped and mirrored at every use."""

    def augment(self, images):
        return crop_and_flip(images, draw_crops(len(images), self.draws))


class SlowDafl(SlowDense):
    def targets(self):
        return None

    def generator_loss(self, x, y):
        answers = self.teacher(x)
        mean = answers.softmax(-1).mean(0)
        strengths = [
            net.features(part.preprocess(x)).abs()
            for net, part in zip(self.nets, self.parts, strict=True)
        ]
        strength = sum(
            s.mean() if self.method.per_feature else s.sum(1).mean() for s in strengths
        ) / len(strengths)
        return (
            cross_entropy(answers, answers.argmax(-1))
            - self.method.activation * strength
            + self.method.entropy * (mean * mean.log()).sum()
        )

    def make(self):
        x, _ = super().make()
        return x, self.teacher(x).argmax(-1)


class SlowAdi(SlowDense):
    def generator_loss(self, x, y):
        method, answers = self.method, self.teacher(x)
        p, q = (answers / 3).softmax(-1), (self.student_logits(x) / 3).softmax(-1)
        m = (p + q) / 2
        shannon = ((p * (p / m).log() + q * (q / m).log()).sum(-1) / 2).mean() / log(2)
        shifts = [((0, 1), (0, 0)), ((0, 0), (0, 1)), ((0, 1), (0, 1)), ((0, 1), (1, 0))]
        variation = x.new_zeros(())
        height, width = x.shape[2:]
        for (a, b), (c, d) in shifts:  # x at (i + b, j + d) against x at (i + a, j + c)
            rows, columns = height - max(a, b), width - max(c, d)
            first = x[:, :, b : b + rows, d : d + columns]
            second = x[:, :, a : a + rows, c : c + columns]
            variation = variation + (first - second).square().sum().sqrt()
        loss = cross_entropy(answers, y) + method.variation * variation
        loss = loss + method.magnitude * x.flatten(1).square().sum(1).mean()
        loss = loss + method.features * self.gap(x)
        return loss + method.competition * (1 - shannon)

    def make(self):
        y, method = self.targets(), self.method
        shape = (method.batch_size, *self.server.task.input_shape)
        x = (0.5 + 0.5 * torch.randn(shape, generator=self.draws)).clamp(0, 1).requires_grad_()
        adam = Adam([x], method.inversion_lr)
        for _ in range(method.inversion_steps):
            with torch.no_grad():
                x.clamp_(0, 1)
            made = x.detach().clone()
            adam.zero_grad()
            self.generator_loss(x, y).backward()
            adam.step()
        return made, y


ADI = {
    "epochs": 3,
    "inversion_steps": 3,
    "batch_size": 6,
    "variation": 0.01,
    "magnitude": 0.02,
    "features": 0.1,
}
EPOCHS = {
    "dense": (SlowDense, Dense(**QUICK, temperature=2.0, generator_temperature=1.5), MIXED),
    "dense without batchnorm": (SlowDense, Dense(**QUICK), ("mlp:hidden=8,layers=1",) * 3),
    "dense on augmented images": (SlowAugmented, Dense(**QUICK, augment="crop-flip"), MIXED),
    "f-dafl": (SlowDafl, FDafl(**QUICK), MIXED),
    "f-dafl per feature": (
        SlowDafl,
        FDafl(**QUICK, per_feature=True, activation=2.0),
        ("lenet5", "mlp:hidden=8,layers=1"),
    ),
    "f-adi": (SlowAdi, FAdi(**ADI), MIXED),
}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("name", EPOCHS)
def test_epoch_equals_the_loop_written_out(name):
    twin_kind, method, nets = EPOCHS[name]
    world = tiny_world(nets, seed=3)
    twin = twin_kind(world, method)
    context, state = prepare_and_start(method, world)
    before = deepcopy(state.student.state_dict())
    for state.step in range(2):
        method.epoch(context, state)
        twin.epoch()
        assert_same_run(state, twin)
    assert_same_draws(state, twin)
    assert largest_change(state.student, before) > 1e-3


# --- F-DAFL, F-ADI by hand ------------------------------------------------------------------------


def test_f_dafl_generator_loss_by_hand():
    """x = (1, 3): mean logits (3.5, 1). L_oh = ln(1 + e^-2.5); L_a = -|1| - |3|, the same for
    both clients; L_ie = p ln p + q ln q with p = 1 / (1 + e^-2.5).
    """
    for per_feature, strength in ((False, 4.0), (True, 2.0)):
        method = FDafl(**QUICK, per_feature=per_feature)
        context, state = start_linear(method, STUDENT)
        loss = method.generator_loss(context, state, ONE)
        p = 1 / (1 + exp(-2.5))
        expected = softplus(-2.5) - 0.1 * strength + 5 * (p * log(p) + (1 - p) * log(1 - p))
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_f_dafl_epoch_labels_images_by_the_ensemble():
    method = FDafl(**QUICK)
    context, state = start_linear(method, STUDENT)
    assert method.ensemble(context, ONE)[0].tolist() == pytest.approx([3.5, 1.0])
    method.epoch(context, state)
    everywhere = torch.arange(method.batch_size)
    answers = method.ensemble(context, state.pool.images(everywhere))
    assert torch.equal(state.pool.labels(everywhere), answers.argmax(-1))


def test_f_adi_inversion_loss_by_hand():
    """x = (1, 3), y = b: CE = ln(1 + e^2.5). TV: one pair of neighbours, 2. ||x||^2 = 10. JS of
    margins 2.5/3 and -4/3.
    """
    method = FAdi(features=0.0, variation=0.5, magnitude=0.1, competition=2.0)
    context, state = start_linear(method, STUDENT)
    p, q = 1 / (1 + exp(-2.5 / 3)), 1 / (1 + exp(4 / 3))
    m = (p + q) / 2
    parts = [(p, m), (1 - p, 1 - m), (q, m), (1 - q, 1 - m)]
    shannon = sum(a * log(a / b) for a, b in parts) / 2 / log(2)
    loss = method.inversion_loss(context, state, ONE, torch.tensor([1]))
    assert loss.item() == pytest.approx(
        softplus(2.5) + 0.5 * 2 + 0.1 * 10 + 2 * (1 - shannon), rel=1e-5
    )


def test_f_adi_competition_is_least_where_student_and_ensemble_disagree():
    """A step down the loss with nothing but competition in it raises JS."""
    method = FAdi(features=0.0, variation=0.0, magnitude=0.0, competition=1.0)
    without = replace(method, competition=0.0)
    context, state = start_linear(method, STUDENT)
    labels = torch.tensor([0])

    def competition(images):  # 1 - JS
        losses = (each.inversion_loss(context, state, images, labels) for each in (method, without))
        return next(losses) - next(losses)

    images = pixels([0.2, -0.1]).requires_grad_()
    before = competition(images)
    (slope,) = torch.autograd.grad(before, images)
    after = competition((images - 0.1 * slope / slope.norm()).detach())
    assert after < before
    assert 0 < before < 1
