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
    cross_entropy,
    divergence,
    gap_of,
    kl,
    largest_change,
    pixels,
    softplus,
    start_linear,
    start_precise,
)
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from attar.blocks.ensemble import Teachers, average, class_shares, data_shares, label_shares
from attar.blocks.ensemble.hooks import statistics_gap
from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import server_plan
from attar.fusion import server_for
from attar.methods.dense import Dense
from attar.methods.f_adi import FAdi
from attar.methods.f_dafl import FDafl
from attar.methods.fedftg import FedFtg
from attar.seeds import generator as seeded
from attar.testing import CLASSES, SHAPE, tiny_upload, tiny_world

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
def test_probed_measures_inside_each_teacher(stack):
    parts = [upload.parts["classifier"] for upload in tiny_world(MIXED).uploads]
    images = torch.rand(4, *SHAPE, generator=seeded(1)).requires_grad_()
    teachers = Teachers(parts, CLASSES, stack=stack)
    logits, found = teachers.probed(images, ["batchnorm", "activation", "mean activation"])
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
    images, labels = torch.rand(6, *SHAPE, generator=seeded(1)), torch.tensor([0, 1, 2, 0, 1, 2])
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
    """Every image of the pool at every use: four black pixels around it, cut at a random corner,
    mirrored or not.
    """

    def augment(self, images):
        corners = torch.randint(0, 9, (len(images), 2), generator=self.draws).tolist()
        mirror = torch.randint(0, 2, (len(images), 1), generator=self.draws).tolist()
        _, height, width = images[0].shape
        cut = []
        for image, (top, left), (flip,) in zip(images, corners, mirror, strict=True):
            wide = torch.zeros(1, height + 8, width + 8)
            wide[:, 4 : 4 + height, 4 : 4 + width] = image
            one = wide[:, top : top + height, left : left + width]
            cut.append(one.flip(2) if flip else one)
        return torch.stack(cut)


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
    context, state = start_precise(method, world)
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


# --- FedFTG ---------------------------------------------------------------------------------------


def counted(name, arch, classes, counts):
    return replace(tiny_upload(name, arch, classes), label_counts=counts, num_examples=sum(counts))


FTG_UPLOADS = [
    counted("one", "mlp:hidden=8,layers=1", CLASSES, (6, 0, 2)),
    counted("two", "mlp:hidden=8,layers=1", CLASSES, (2, 4, 1)),
    counted("three", "lenet5", ("bar", "ring"), (5, 0)),
]


def test_class_level_weights_and_label_odds():
    """ring 6, 2, 0; cross 0, 4, unknown; bar 2, 1, 5: 8, 4 and 8 of 20."""
    expected = torch.tensor([[6 / 8, 0.0, 2 / 8], [2 / 8, 1.0, 1 / 8], [0.0, 0.0, 5 / 8]])
    torch.testing.assert_close(class_shares(FTG_UPLOADS, CLASSES), expected)
    torch.testing.assert_close(label_shares(FTG_UPLOADS, CLASSES), torch.tensor([0.4, 0.2, 0.4]))


def test_labels_are_drawn_in_proportion():
    """Chi-square of 6,000 draws over 3 classes, two degrees of freedom: below 13.8 in 999 of
    1,000 cases.
    """
    for shares in (None, torch.tensor([0.4, 0.2, 0.4]), torch.tensor([6.0, 0.0, 2.0])):
        odds = torch.ones(3) / 3 if shares is None else shares / shares.sum()
        labels = draw_labels(6000, 3, seeded(5), "cpu", shares)
        counts, expected = torch.bincount(labels, minlength=3), 6000 * odds
        assert counts[expected == 0].sum() == 0
        kept = expected > 0
        assert ((counts[kept] - expected[kept]).square() / expected[kept]).sum() < 13.8
    uniform, skewed = (
        draw_labels(60, 3, seeded(5), "cpu", shares)
        for shares in (None, torch.tensor([0.4, 0.2, 0.4]))
    )
    assert not torch.equal(uniform, skewed)


class SlowFtg:
    """One epoch: each image has its label's weights, each client is asked alone over the classes
    it knows.
    """

    def __init__(self, server, method):
        self.method, self.server, self.draws = method, server, seeded(server.seed, "fedftg")
        self.parts = [upload.parts["classifier"] for upload in FTG_UPLOADS]
        self.plan = server_plan(server)
        self.student = self.plan.fresh(server.seed)
        alike = FTG_UPLOADS[:2]
        self.student.load_state_dict(
            average([u.parts["classifier"].state for u in alike], data_shares(alike))
        )
        self.generator = new_generator(SHAPE, method.noise + 3, method.generator_width, server.seed)
        self.sgd = SGD(self.student.parameters(), method.student_lr, method.momentum)
        self.adam = Adam(self.generator.parameters(), method.generator_lr)
        self.norms = []
        self.counts = torch.tensor([[6.0, 0.0, 2.0], [2.0, 4.0, 1.0], [0.0, 0.0, 5.0]])

    def imagine(self):
        y = draw_labels(
            self.method.batch_size, 3, self.draws, "cpu", torch.tensor([8.0, 4.0, 8.0]) / 20
        )
        z = draw_noise(self.method.batch_size, self.method.noise, self.draws, "cpu")
        return self.generator(torch.cat([z, torch.eye(3)[y]], 1)), z, y

    def terms(self, x, y, kind="kl"):
        student, discrepancy, loyalty = self.student(self.plan.preprocess(x)), 0.0, 0.0
        for k, part in enumerate(self.parts):
            columns = [CLASSES.index(name) for name in part.classes]
            logits = part.build()(part.preprocess(x))
            log_k = logits.log_softmax(-1)
            log_s = student[:, columns].log_softmax(-1)
            apart = {
                "kl": lambda i, p=log_s, q=log_k: (p[i].exp() * (p[i] - q[i])).sum(),
                "l1": lambda i, f=student[:, columns], g=logits: (f[i] - g[i]).abs().mean(),
                "soft-labels": lambda i, q=log_k, c=columns: (
                    -(q[i].exp() * student[i].log_softmax(-1)[c]).sum()
                ),
            }[kind]
            for i in range(len(x)):
                weight = self.counts[k, y[i]] / self.counts[:, y[i]].sum()
                if weight:
                    discrepancy = discrepancy + weight * apart(i) / len(x)
                    loyalty = loyalty - weight * log_k[i, columns.index(y[i].item())] / len(x)
        return discrepancy, loyalty

    def epoch(self):
        method = self.method
        self.student.eval()
        for _ in range(method.generator_steps):
            x, z, y = self.imagine()
            discrepancy, loyalty = self.terms(x, y, method.mining)
            count, pairs = len(x), 0.0
            for i in range(count):
                for j in range(count):
                    if i != j:
                        pairs = (
                            pairs
                            + (x[i] - x[j]).square().mean().sqrt()
                            * (z[i] - z[j]).square().mean().sqrt()
                        )
            loss = (
                -discrepancy + method.fidelity * loyalty + method.spread * (-pairs / count**2).exp()
            )
            self.down(self.adam, loss, self.generator)
        self.student.train()
        for _ in range(method.student_steps):
            with torch.no_grad():
                x, _, y = self.imagine()
            self.down(self.sgd, self.terms(x, y, method.teaching)[0], self.student)

    def down(self, optimiser, loss, net):
        optimiser.zero_grad()
        loss.backward()
        norm = sum(
            weight.grad.square().sum() for weight in net.parameters() if weight.grad is not None
        ).sqrt()
        self.norms.append(norm.item())
        if self.method.clip is not None and norm > self.method.clip:
            for weight in net.parameters():
                weight.grad *= self.method.clip / (norm + 1e-6)
        optimiser.step()


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize(
    ("clip", "mining", "teaching"),
    [(None, "kl", "kl"), (0.3, "kl", "kl"), (None, "l1", "soft-labels"), (None, "kl", "l1")],
)
def test_fedftg_epochs_equal_the_loop_written_out(clip, mining, teaching):
    method = FedFtg(
        **QUICK,
        student_steps=2,
        fidelity=0.7,
        spread=1.3,
        clip=clip,
        mining=mining,
        teaching=teaching,
    )
    server = server_for(FTG_UPLOADS, seed=2)
    room = method.prepare(FTG_UPLOADS, server)
    state, slow = method.start(room), SlowFtg(server, method)
    (phase,) = method.phases(room)
    begun = deepcopy(state.student.state_dict())
    for state.step in range(2):
        phase.step(state)
        slow.epoch()
        for mine, theirs in ((state.student, slow.student), (state.generator, slow.generator)):
            for key, value in theirs.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-4, atol=1e-6)
    assert (
        max(
            (state.student.state_dict()[key] - value).abs().max().item()
            for key, value in begun.items()
        )
        > 1e-3
    )
    assert clip is None or min(slow.norms) < clip < max(slow.norms)  # some are cut, some are not


def test_a_mined_image_is_one_on_which_student_and_clients_disagree_more():
    """The generator's loss holds -L_md: its own steps raise the discrepancy when nothing else is
    asked of it.
    """
    method = FedFtg(
        **{**QUICK, "generator_steps": 12},
        student_steps=1,
        fidelity=0.0,
        spread=0.0,
        generator_lr=0.01,
    )
    room = method.prepare(FTG_UPLOADS, server_for(FTG_UPLOADS))
    state = method.start(room)
    told = torch.cat(
        [draw_noise(6, 5, seeded(1), "cpu"), F.one_hot(torch.tensor([0, 1, 2, 0, 1, 2]), 3)], 1
    )
    slow = SlowFtg(room.server, method)

    def discrepancy(student):
        slow.student = student
        with torch.no_grad():
            return slow.terms(state.generator(told), torch.tensor([0, 1, 2, 0, 1, 2]))[0]

    student = deepcopy(state.student).eval()
    before = discrepancy(student)
    method.phases(room)[0].step(state)
    assert discrepancy(student) > before
