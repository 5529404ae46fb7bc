"""DENSE, F-DAFL and F-ADI: the terms as the methods use them, and their epochs written
out slowly beside them.
"""

from copy import deepcopy
from dataclasses import replace
from math import exp, log, log1p

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from attar.blocks.ensemble import Teachers
from attar.blocks.ensemble.hooks import statistics_gap
from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import Guide, server_plan
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.fusion import server_for
from attar.methods.dense import Dense
from attar.methods.f_adi import FAdi
from attar.methods.f_dafl import FDafl
from attar.seeds import generator as seeded
from attar.testing import CLASSES, SHAPE, tiny_world

QUICK = {"epochs": 3, "generator_steps": 2, "batch_size": 6, "noise": 5, "generator_width": 3}
MIXED = ("resnet20", "mlp:hidden=8,layers=1", "resnet20")
TWO = (1, 1, 2)
MATRICES = {
    "one": [[1.0, 0.0], [0.0, 1.0]],
    "two": [[0.0, 2.0], [-1.0, 0.0]],
    "student": [[0.0, 0.0], [1.0, 1.0]],
}


@pytest.fixture
def exact():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def linear(name):
    state = {"head.weight": torch.tensor(MATRICES[name]), "head.bias": torch.zeros(2)}
    return Part(ModelSpec.parse("mlp:layers=0"), state, ("a", "b"), Preprocess(TWO, (0.0,), (1.0,)))


def by_hand(method):
    """Two linear clients: x = (1, 3) has logits (1, 3) and (6, -1), mean (3.5, 1); the student
    says (0, 4).
    """
    uploads = [Upload(name, {"classifier": linear(name)}, 1) for name in ("one", "two")]
    room = method.prepare(uploads, server_for(uploads, initial=linear("student")))
    return room, method.start(room)


ONE = torch.tensor([[1.0, 3.0]]).view(1, *TWO)


def softplus(x):
    return log1p(exp(x))


def divergence(m, n):
    """KL of two pairs of logits with the margins m and n."""
    p = 1 / (1 + exp(-m))
    return p * (softplus(-n) - softplus(-m)) + (1 - p) * (softplus(n) - softplus(m))


# --- the BatchNorm gap ----------------------------------------------------------------------------


def test_the_statistics_gap_by_hand():
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


def test_the_gap_of_flat_features():
    layer = nn.BatchNorm1d(2)
    assert statistics_gap(layer, torch.tensor([[3.0, 3.0], [3.0, 5.0]])).item() == pytest.approx(
        5 + 1
    )  # (3, 4), (-1, 0)


def gap_of(part, images):
    """All layers of one client, written out."""
    net, caught = part.build(), []
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_pre_hook(lambda layer, inputs: caught.append((layer, inputs[0])))
    net(part.preprocess(images))
    total = images.new_zeros(())
    for layer, x in caught:
        mean = x.mean((0, 2, 3))
        variance = (x - mean[:, None, None]).square().mean((0, 2, 3))
        total = (
            total
            + (mean - layer.running_mean).square().sum().sqrt()
            + (variance - layer.running_var).square().sum().sqrt()
        )
    return total


@pytest.mark.parametrize("stack", [True, False])
def test_probes_look_into_each_teacher(stack):
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
        room, state = by_hand(method)
        loss = method._generator_loss(ONE, torch.tensor([label]), Guide(room, "uniform"), state)
        expected = softplus(2.5 if label else -2.5) - transferability * divergence(2.5, -4.0)
        assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_dense_counts_the_gap_of_every_client_with_or_without_batchnorm():
    world, losses = tiny_world(MIXED), []
    images, labels = torch.rand(6, *SHAPE, generator=seeded(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    for stability in (0.0, 0.4):
        method = Dense(**QUICK, stability=stability)
        room = method.prepare(world.uploads, world.server)
        losses.append(
            method._generator_loss(
                images, labels, Guide(room, "uniform"), method.start(room)
            ).item()
        )
    total = sum(gap_of(upload.parts["classifier"], images).item() for upload in world.uploads)
    assert losses[1] - losses[0] == pytest.approx(0.4 * total / 3, rel=1e-4)
    assert total > 1


class SlowDense:
    """DENSE's loop with each client alone; ``generator_loss`` and ``teacher`` written out."""

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
        self.generator = self.fresh() if "noise" in vars(method) else None
        self.draws = seeded(world.server.seed, "studio")
        self.pool = []

    def fresh(self):
        shape, method = self.server.task.input_shape, self.method
        return new_generator(shape, method.noise, method.generator_width, self.server.seed)

    def teacher(self, x):
        return sum(
            net(part.preprocess(x)) for net, part in zip(self.nets, self.parts, strict=True)
        ) / len(self.nets)

    def kl(self, teacher, student, temperature):
        p, q = (teacher / temperature).softmax(-1), (student / temperature).softmax(-1)
        return temperature**2 * (p * (p.log() - q.log())).sum(-1)

    def gap(self, x):
        return sum(gap_of(part, x) for part in self.parts) / len(self.parts)

    def generator_loss(self, x, y):
        answers, student = self.teacher(x), self.student(self.plan.preprocess(x))
        loss = -answers.log_softmax(-1)[torch.arange(len(y)), y].mean()
        loss = loss + self.method.stability * self.gap(x)
        apart = [
            -self.kl(answers[i], student[i], self.method.generator_temperature)
            if answers[i].argmax() != student[i].argmax()
            else 0 * answers[i, 0]
            for i in range(len(x))
        ]
        return loss + self.method.transferability * torch.stack(apart).mean()

    def targets(self):
        return draw_labels(self.method.batch_size, len(self.server.task.classes), self.draws, "cpu")

    def make(self):
        y = self.targets()
        z = draw_noise(self.method.batch_size, self.method.noise, self.draws, "cpu")
        adam = Adam(self.generator.parameters(), self.method.generator_lr)
        for _ in range(self.method.generator_steps):
            x = self.generator(z)
            adam.zero_grad()
            self.generator_loss(x, y).backward()
            adam.step()
        return x.detach(), y

    def shown(self, images):
        return torch.stack(images)

    def epoch(self):
        self.student.eval()
        x, y = self.make()
        self.pool += list(zip(x, y, strict=True))
        self.student.train()
        for batch in torch.randperm(len(self.pool), generator=self.draws).split(
            self.method.batch_size
        ):
            x = self.shown([self.pool[i][0] for i in batch])
            with torch.no_grad():
                answers = self.teacher(x)
            loss = self.kl(
                answers, self.student(self.plan.preprocess(x)), self.method.temperature
            ).mean()
            self.sgd.zero_grad()
            loss.backward()
            self.sgd.step()


class SlowAugmented(SlowDense):
    """Every image of the pool at every use: four black pixels around it, cut at a random corner,
    mirrored or not.
    """

    def shown(self, images):
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
        log_p = answers.log_softmax(-1)
        sure = -log_p[torch.arange(len(x)), answers.argmax(-1)].mean()
        mean = log_p.exp().mean(0)
        strengths = [
            net.features(part.preprocess(x)).abs()
            for net, part in zip(self.nets, self.parts, strict=True)
        ]
        strength = sum(
            s.mean() if self.method.per_feature else s.sum(1).mean() for s in strengths
        ) / len(strengths)
        return (
            sure
            - self.method.activation * strength
            + self.method.entropy * (mean * mean.log()).sum()
        )

    def make(self):
        x, _ = super().make()
        return x, self.teacher(x).argmax(-1)


class SlowAdi(SlowDense):
    def generator_loss(self, x, y):
        method, answers = self.method, self.teacher(x)
        student = self.student(self.plan.preprocess(x))
        p, q = (answers / 3).softmax(-1), (student / 3).softmax(-1)
        m = (p + q) / 2
        shannon = ((p * (p / m).log() + q * (q / m).log()).sum(-1) / 2).mean() / log(2)
        shifts = [((0, 1), (0, 0)), ((0, 0), (0, 1)), ((0, 1), (0, 1)), ((0, 1), (1, 0))]
        variation = x.new_zeros(())
        height, width = x.shape[2:]
        for (a, b), (c, d) in shifts:  # x at (i + b, j + d) against x at (i + a, j + c)
            rows, columns = height - max(a, b), width - max(c, d)
            first = x[:, :, b : b + rows, d : d + columns]
            variation = (
                variation + (first - x[:, :, a : a + rows, c : c + columns]).square().sum().sqrt()
            )
        loss = (
            -answers.log_softmax(-1)[torch.arange(len(y)), y].mean() + method.variation * variation
        )
        loss = (
            loss
            + method.magnitude * x.flatten(1).square().sum(1).mean()
            + method.features * self.gap(x)
        )
        return loss + method.competition * (1 - shannon)

    def make(self):
        y = self.targets()
        x = (
            0.5
            + 0.5
            * torch.randn(
                self.method.batch_size, *self.server.task.input_shape, generator=self.draws
            )
        ).clamp(0, 1)
        x.requires_grad_()
        adam = Adam([x], self.method.inversion_lr)
        for _ in range(self.method.inversion_steps):
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
def test_epochs_equal_the_loop_written_out(name):
    slow_kind, method, nets = EPOCHS[name]
    world = tiny_world(nets, seed=3)
    slow = slow_kind(world, method)
    room = method.prepare(world.uploads, world.server)
    state = method.start(room)
    state.pool._pixels = state.pool._pixels.double()
    (phase,) = method.phases(room)
    begun = deepcopy(state.student.state_dict())
    for state.step in range(2):
        phase.step(state)
        slow.epoch()
        for mine, theirs in ((state.student, slow.student), (state.generator, slow.generator)):
            for key, value in ({} if theirs is None else theirs.state_dict()).items():
                torch.testing.assert_close(mine.state_dict()[key], value, rtol=1e-5, atol=1e-7)
        places = torch.arange(len(state.pool))
        torch.testing.assert_close(
            state.pool.images(places), torch.stack([x for x, _ in slow.pool]), rtol=1e-5, atol=1e-8
        )
        assert torch.equal(state.pool.labels(places), torch.stack([y for _, y in slow.pool]))
    assert torch.equal(torch.rand(3, generator=state.draws), torch.rand(3, generator=slow.draws))
    assert (
        max(
            (state.student.state_dict()[key] - value).abs().max().item()
            for key, value in begun.items()
        )
        > 1e-3
    )


# --- F-DAFL, F-ADI by hand ------------------------------------------------------------------------


def test_f_dafl_generator_loss_by_hand(monkeypatch):
    """x = (1, 3): mean logits (3.5, 1). L_oh = ln(1 + e^-2.5); L_a = -|1| - |3|, the same for
    both clients; L_ie = p ln p + q ln q with p = 1 / (1 + e^-2.5).
    """
    for per_feature, strength in ((False, 4.0), (True, 2.0)):
        method, found = FDafl(**QUICK, per_feature=per_feature), []
        room, state = by_hand(method)

        def instead(room, settings, state, loss_of, found=found):
            found.append(loss_of(ONE))
            return ONE, found[0]

        monkeypatch.setattr("attar.methods.f_dafl.generate", instead)
        method.phases(room)[0].step(state)
        p = 1 / (1 + exp(-2.5))
        expected = softplus(-2.5) - 0.1 * strength + 5 * (p * log(p) + (1 - p) * log(1 - p))
        assert found[0].item() == pytest.approx(expected, rel=1e-5)
        assert state.pool.labels(torch.tensor([0])).tolist() == [0]  # the ensemble's own label


def test_f_adi_loss_by_hand():
    """x = (1, 3), y = b: CE = ln(1 + e^2.5). TV: one pair of neighbours, 2. ||x||^2 = 10. JS of
    margins 2.5/3 and -4/3.
    """
    method = FAdi(features=0.0, variation=0.5, magnitude=0.1, competition=2.0)
    room, state = by_hand(method)
    p, q = 1 / (1 + exp(-2.5 / 3)), 1 / (1 + exp(4 / 3))
    m = (p + q) / 2
    parts = [(p, m), (1 - p, 1 - m), (q, m), (1 - q, 1 - m)]
    shannon = sum(a * log(a / b) for a, b in parts) / 2 / log(2)
    loss = method._inversion_loss(ONE, torch.tensor([1]), room, state)
    assert loss.item() == pytest.approx(
        softplus(2.5) + 0.5 * 2 + 0.1 * 10 + 2 * (1 - shannon), rel=1e-5
    )


def test_competition_is_least_where_student_and_ensemble_disagree():
    """A step down the loss with nothing but competition in it raises JS."""
    method = FAdi(features=0.0, variation=0.0, magnitude=0.0, competition=1.0)
    room, state = by_hand(method)
    images = torch.tensor([[0.2, -0.1]]).view(1, *TWO).requires_grad_()
    labels = torch.tensor([0])
    with_it = method._inversion_loss(images, labels, room, state)
    without = replace(method, competition=0.0)._inversion_loss(images, labels, room, state)
    apart = with_it - without  # 1 - JS
    (slope,) = torch.autograd.grad(apart, images)
    moved = (images - 0.1 * slope / slope.norm()).detach()
    after = method._inversion_loss(moved, labels, room, state) - replace(
        method, competition=0.0
    )._inversion_loss(moved, labels, room, state)
    assert after < apart
    assert 0 < apart < 1
