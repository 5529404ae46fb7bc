"""FedHydra: Eqs. (12) to (19) by hand, gradients through the stratified aggregation, and
Algorithm 1 written out slowly.

By hand, on 1 x 1 x 2 pixels: client 0 has logits (x0, x1), client 1 has (2 x1, -x0); U = (1, 1)
and (3, 1). Over the clients: a 1/4 : 3/4, b 1/2 : 1/2. Over the classes: client 0 1/2, 1/2;
client 1 3/4, 1/4. x = (1, 3) has logits (1, 3) and (6, -1). As an image of class a: P = (1/4 *
1/2 * 1 + 3/4 * 3/4 * 6, 1/4 * 1/2 * 3 - 3/4 * 1/4) = (3.5, 0.1875); of class b: (1/2 * 1/2 * 1 +
1/2 * 3/4 * 6, 1/2 * 1/2 * 3 - 1/2 * 1/4) = (2.5, 0.625).
"""

from copy import deepcopy
from math import exp, log1p

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from attar.blocks.images import draw_labels, draw_noise, new_generator
from attar.blocks.student import Guide, adversarial, distillation, learn, server_plan
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import SettingsError
from attar.fusion import fuse, server_for
from attar.methods.fedhydra import FedHydra
from attar.models import Classifier
from attar.seeds import generator as seeded
from attar.testing import SHAPE, tiny_world

QUICK = {"epochs": 3, "generator_steps": 2, "batch_size": 6, "noise": 5, "generator_width": 3}
TWO = (1, 1, 2)
MATRICES = {
    "one": [[1.0, 0.0], [0.0, 1.0]],
    "two": [[0.0, 2.0], [-1.0, 0.0]],
    "student": [[1.0, 1.0], [0.0, 0.0]],
}
P_A, P_B = (3.5, 0.1875), (2.5, 0.625)
STUDENT = (4.0, 0.0)  # (x0 + x1, 0)


@pytest.fixture
def exact():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def linear(name):
    state = {"head.weight": torch.tensor(MATRICES[name]), "head.bias": torch.zeros(2)}
    return Part(ModelSpec.parse("mlp:layers=0"), state, ("a", "b"), Preprocess(TWO, (0.0,), (1.0,)))


def by_hand(method):
    uploads = [Upload(name, {"classifier": linear(name)}, 1) for name in ("one", "two")]
    room = method.prepare(uploads, server_for(uploads, initial=linear("student")))
    state = method.start(room)
    state.guidance = torch.tensor([[1.0, 1.0], [3.0, 1.0]])
    return room, Guide(room, "stratified"), state


def generator_loss(monkeypatch, method, guide, state, images, labels):
    """Eq. (16) as the method gives it to its generator."""
    found = []

    def instead(room, settings, state, loss_of, *given, show=None):
        found.append(loss_of(images, *given))
        return images, found[0]

    monkeypatch.setattr("attar.methods.fedhydra.generate", instead)
    monkeypatch.setattr("attar.methods.fedhydra.draw_labels", lambda *_: labels)
    method._epoch(guide, state)
    return found[0]


def pixels(*images):
    return torch.tensor(images).view(-1, *TWO)


def softplus(x):
    return log1p(exp(x))


def divergence(teacher, student):
    """KL of two pairs of logits, written out over their margins."""
    m, n = teacher[0] - teacher[1], student[0] - student[1]
    p = 1 / (1 + exp(-m))
    return p * (softplus(-n) - softplus(-m)) + (1 - p) * (softplus(n) - softplus(m))


IMAGES, LABELS = pixels([1.0, 3.0], [1.0, 3.0]), torch.tensor([0, 1])


# --- (12), (13), (15), (16) -----------------------------------------------------------------------


def test_the_stratified_logits_by_hand():
    _, guide, state = by_hand(FedHydra(**QUICK))
    answers = guide.answer(IMAGES, LABELS, state)  # (12)
    assert answers[0].tolist() == pytest.approx(P_A)
    assert answers[1].tolist() == pytest.approx(P_B)


def test_the_generator_loss_by_hand(monkeypatch):
    """(13): the mean of ln(1 + e^-(3.5 - 0.1875)) and ln(1 + e^(2.5 - 0.625)). (15): minus the
    mean KL from P to the student.
    """
    method = FedHydra(**{**QUICK, "batch_size": 2}, stability=0.0, diversity=0.3)
    _, guide, state = by_hand(method)
    cross_entropy = (softplus(P_A[1] - P_A[0]) + softplus(P_B[0] - P_B[1])) / 2
    apart = -(divergence(P_A, STUDENT) + divergence(P_B, STUDENT)) / 2
    loss = generator_loss(monkeypatch, method, guide, state, IMAGES, LABELS)
    assert loss.item() == pytest.approx(cross_entropy + 0.3 * apart, rel=1e-5)


def test_lambda_1_weighs_the_batchnorm_gap_of_all_clients(monkeypatch):
    """(14): 1/m over every client, here a third of what the two with BatchNorm have."""
    world = tiny_world(("resnet20", "lenet5", "resnet20"))
    images, labels = torch.rand(6, 1, 16, 16, generator=seeded(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = []
    for stability in (0.0, 0.7):
        method = FedHydra(**QUICK, stability=stability)
        room = method.prepare(world.uploads, world.server)
        state = method.start(room)
        losses.append(
            generator_loss(
                monkeypatch, method, Guide(room, "stratified"), state, images, labels
            ).item()
        )
    total = sum(gap_of(upload.parts["classifier"], images).item() for upload in world.uploads)
    assert total > 1
    assert losses[1] - losses[0] == pytest.approx(0.7 * total / 3, rel=1e-4)


def gap_of(part, images):
    """(14) for one client: every BatchNorm's inputs caught, means and variances written out."""
    net, caught = part.build(), []
    layers = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    for layer in layers:
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
    assert len(caught) == len(layers)
    return total


@pytest.mark.usefixtures("exact")
def test_gradients_flow_through_the_aggregation():
    """(12), (13): CE(P, y) to the images by finite differences; the weights U are constants on
    the way.
    """
    world = tiny_world(("mlp:hidden=8,layers=1",) * 2)
    method = FedHydra(**QUICK)
    room = method.prepare(world.uploads, world.server)
    state, guide = method.start(room), Guide(room, "stratified")
    state.guidance = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.0, 3.0]])
    labels = torch.tensor([2, 0])
    images = torch.rand(2, 1, 16, 16, generator=seeded(1)).requires_grad_()

    def loss(x):
        return F.cross_entropy(guide.answer(x, labels, state), labels)

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
def test_a_generator_step_down_eq_15_drives_aggregation_and_student_apart():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    method = FedHydra(**QUICK)
    room = method.prepare(world.uploads, world.server)
    state, guide = method.start(room), Guide(room, "stratified")
    state.guidance = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.0, 3.0]])
    noise, labels = draw_noise(6, 5, seeded(1), "cpu"), torch.tensor([0, 1, 2, 0, 1, 2])
    weights = list(state.generator.parameters())

    def both():
        images = state.generator(noise)
        return guide.answer(images, labels, state), room.plan.logits(state.student, images)

    before = distillation(*reversed(both())).item()  # KL(P || F_g)
    slopes = torch.autograd.grad(adversarial(*both()), weights)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight.sub_(1e-2 * slope)
    expected = 1e-2 * sum(slope.square().sum().item() for slope in slopes)
    assert distillation(*reversed(both())).item() - before == pytest.approx(expected, rel=0.1)
    assert expected > 0


# --- (17) to (19) ---------------------------------------------------------------------------------


def learned(method, room, guide, state, images, labels):
    """One step of the student on (19)."""
    answers = guide.answer(images, labels, state)
    return learn(room, method, state, lambda x, p: method._loss(x, p, room, state), images, answers)


def test_the_student_loss_by_hand():
    """(17): KL from P to (4, 0). (18): H[P] = a for both: ln(1 + e^-4). (19): their sum with
    beta = 0.25.
    """
    method = FedHydra(**QUICK, hard_labels=0.25)
    room, guide, state = by_hand(method)
    before = deepcopy(state.student.state_dict())
    loss = learned(method, room, guide, state, IMAGES, LABELS)
    expected = (divergence(P_A, STUDENT) + divergence(P_B, STUDENT)) / 2 + 0.25 * softplus(-4.0)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert not torch.equal(before["head.weight"], state.student.state_dict()["head.weight"])


def test_hard_labels_are_the_aggregations_and_not_the_targets():
    """The second image has target b and H[P] = a; with beta alone the student is driven towards a."""
    method = FedHydra(**QUICK, hard_labels=1e4)
    room, guide, state = by_hand(method)
    before = deepcopy(state.student.state_dict())
    learned(method, room, guide, state, IMAGES[1:], LABELS[1:])
    moved = state.student.state_dict()["head.bias"] - before["head.bias"]
    assert moved[0] > 0 > moved[1]


# --- Algorithm 1, slowly --------------------------------------------------------------------------


class Slow:
    """Algorithms 1 to 3 in plain loops: a generator for each client and class, the paper's
    matrices, each client alone.
    """

    def __init__(self, world, method):
        self.method, self.server = method, world.server
        self.parts = [upload.parts["classifier"] for upload in world.uploads]
        self.nets = [part.build() for part in self.parts]
        self.plan = server_plan(world.server)
        self.student = self.plan.fresh(world.server.seed)
        self.sgd = SGD(self.student.parameters(), method.student_lr, method.momentum)
        self.generator = self.fresh()
        self.draws = seeded(world.server.seed, "studio")
        self.pool = []

    def fresh(self, *purpose):
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

    def stratify(self):  # Algorithm 2
        method, classes = self.method, len(self.server.task.classes)
        u = torch.zeros(classes, len(self.nets))  # (3)
        for k in range(len(self.nets)):
            for j in range(classes):
                generator = self.fresh("stratify")
                z = torch.randn(
                    method.batch_size,
                    method.noise,
                    generator=seeded(self.server.seed, "stratify noise"),
                )
                adam, losses = Adam(generator.parameters(), method.generator_lr), []
                for _ in range(method.generator_steps):
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

    def kl(self, p, q):
        p, q = p.softmax(-1), q.softmax(-1)
        return (p * (p.log() - q.log())).sum(-1).mean()

    def learn(self, x, y):
        with torch.no_grad():
            p = self.aggregate(x, y)
        student = self.student(self.plan.preprocess(x))
        loss = self.kl(p, student)  # (17)
        loss = (
            loss
            - self.method.hard_labels
            * student.log_softmax(-1)[torch.arange(len(x)), p.argmax(-1)].mean()
        )  # (18), (19)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()

    def epoch(self):  # lines 12 to 25 of Algorithm 1
        method = self.method
        y = draw_labels(method.batch_size, len(self.server.task.classes), self.draws, "cpu")
        z = draw_noise(method.batch_size, method.noise, self.draws, "cpu")
        adam, seen = Adam(self.generator.parameters(), method.generator_lr), []
        self.student.eval()
        for _ in range(method.generator_steps):
            x = self.generator(z)
            seen.append(x.detach())
            p = self.aggregate(x, y)  # (12)
            loss = -p.log_softmax(-1)[torch.arange(len(y)), y].mean()  # (13)
            loss = loss + method.stability * sum(gap_of(part, x) for part in self.parts) / len(
                self.parts
            )  # (14)
            loss = loss - method.diversity * self.kl(
                p, self.student(self.plan.preprocess(x))
            )  # (15), (16)
            adam.zero_grad()
            loss.backward()
            adam.step()
        self.student.train()
        self.pool += list(zip(seen[-1], y, strict=True))
        if method.replay == "pool":
            for batch in torch.randperm(len(self.pool), generator=self.draws).split(
                method.batch_size
            ):
                self.learn(
                    torch.stack([self.pool[i][0] for i in batch]),
                    torch.stack([self.pool[i][1] for i in batch]),
                )
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
def test_stratification_and_epochs_equal_the_algorithms(replay, nets):
    world, method = tiny_world(nets, seed=3), FedHydra(**QUICK, replay=replay, hard_labels=0.7)
    slow = Slow(world, method)
    room = method.prepare(world.uploads, world.server)
    state = method.start(room)
    state.pool._pixels = state.pool._pixels.double()
    stratify, distil = method.phases(room)
    for state.step in range(stratify.steps):
        stratify.step(state)
    slow.stratify()
    torch.testing.assert_close(state.guidance, slow.u.T, rtol=1e-6, atol=1e-9)
    begun = deepcopy(state.student.state_dict())
    for state.step in range(2):
        distil.step(state)
        slow.epoch()
        for mine, theirs in ((state.student, slow.student), (state.generator, slow.generator)):
            for name, value in theirs.state_dict().items():
                torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    assert torch.equal(torch.rand(3, generator=state.draws), torch.rand(3, generator=slow.draws))
    assert (
        max(
            (state.student.state_dict()[name] - value).abs().max().item()
            for name, value in begun.items()
        )
        > 1e-3
    )


def test_the_student_takes_as_many_steps_as_replay_says(monkeypatch):
    """Two epochs of three generator steps, batches of 6: 1 + 1, 3 + 3, and the pool's 1 + 2."""
    counts = {}
    for replay in ("last", "intermediate", "pool"):
        steps = []
        monkeypatch.setattr(
            "attar.methods.fedhydra.learn",
            lambda room, method, state, loss, x, p, steps=steps: (
                steps.append(len(x)),
                learn(room, method, state, loss, x, p),
            )[1],
        )
        world = tiny_world()
        fuse(
            world.uploads,
            FedHydra(**{**QUICK, "epochs": 2, "generator_steps": 3}, replay=replay),
            world.server,
        )
        counts[replay] = len(steps)
        assert set(steps) == {6}
    assert counts == {"last": 2, "intermediate": 6, "pool": 3}


# --- what is delivered ----------------------------------------------------------------------------


def test_u_and_its_two_forms_are_delivered_with_the_ensemble():
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


def test_the_floor_reaches_the_guidance():
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
        method.generator_steps,
        method.generator_lr,
        method.student_lr,
        method.stability,
        method.diversity,
    )
    assert named == (200, 30, 1e-3, 0.01, 1.0, 0.5)
