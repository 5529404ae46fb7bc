"""FedHydra: Eqs. (12) to (19) by hand, gradients through the stratified aggregation, and
Algorithm 1 written out slowly.

By hand, on 1 x 1 x 2 pixels: client 0 has logits (x0, x1), client 1 has (2 x1, -x0); U = (1, 1)
and (3, 1). Over the clients: a 1/4 : 3/4, b 1/2 : 1/2. Over the classes: client 0 1/2, 1/2;
client 1 3/4, 1/4. x = (1, 3) has logits (1, 3) and (6, -1). As an image of class a: P = (1/4 *
1/2 * 1 + 3/4 * 3/4 * 6, 1/4 * 1/2 * 3 - 3/4 * 1/4) = (3.5, 0.1875); of class b: (1/2 * 1/2 * 1 +
1/2 * 3/4 * 6, 1/2 * 1/2 * 3 - 1/2 * 1/4) = (2.5, 0.625).
"""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from by_hand import (
    QUICK,
    Twin,
    assert_same_draws,
    assert_same_nets,
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
from torch.nn import functional as F
from torch.optim import Adam

from attar.blocks.images import draw_labels, draw_noise
from attar.blocks.student import adversarial, augmented_batches, distillation, student_step
from attar.errors import SettingsError
from attar.fusion import fuse
from attar.methods.fedhydra import VARIANTS, FedHydra
from attar.models import Classifier
from attar.seeds import rng
from attar.settings import filled_by_variant, flatten
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


def test_student_loss_of_the_code_divides_the_divergence_by_the_classes():
    """(17) over images and two classes, so that beta = 0.25 weighs twice as much beside it."""
    method = FedHydra(**QUICK, hard_labels=0.25, kl_reduction="mean")
    context, state = start_by_hand(method)
    loss = learn(method, context, state, IMAGES, LABELS)
    gaps = divergence(MARGIN_A, STUDENT_MARGIN), divergence(MARGIN_B, STUDENT_MARGIN)
    assert loss.item() == pytest.approx(sum(gaps) / 4 + 0.25 * softplus(-4.0), rel=1e-4)


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

    epochs_done = 0

    def stratify(self):  # Algorithm 2
        method, classes = self.method, len(self.server.task.classes)
        training, seed, b = method.generator, self.server.seed, method.batch_size
        beta1, start = method.stratification.beta1, method.stratification.start
        u = torch.zeros(classes, len(self.nets))  # (3)
        for k in range(len(self.nets)):
            for j in range(classes):
                own = (k, j) if start == "own" else ()
                generator = self.fresh_generator("stratify", *own)
                z = torch.randn(b, training.noise, generator=rng(seed, "stratify noise", *own))
                crops = draw_crops(b * training.steps, rng(seed, "stratify crops", *own))
                adam, losses = Adam(generator.parameters(), training.lr, (beta1, 0.999)), []
                for step in range(training.steps):
                    x = generator(z)
                    if method.stratification.augment != "none":
                        x = crop_and_flip(x, crops[b * step : b * (step + 1)])
                    loss = -self.logits(k, x).log_softmax(-1)[:, j].mean()  # (1)
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
        if self.method.augment != "none":
            x = crop_and_flip(x, next(self.crops))
        with torch.no_grad():
            p = self.aggregate(x, y)
        student = self.student_logits(x)
        loss = kl(p, student).mean()  # (17)
        if self.method.kl_reduction == "mean":
            loss = loss / student.shape[1]
        loss = loss + self.method.hard_labels * cross_entropy(student, p.argmax(-1))  # (18), (19)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()

    def epoch(self):  # lines 12 to 25 of Algorithm 1
        method, training = self.method, self.method.generator
        y = draw_labels(method.batch_size, len(self.server.task.classes), self.draws, "cpu")
        z = draw_noise(method.batch_size, training.noise, self.draws, "cpu")
        if training.reset:
            self.generator = self.fresh_generator(self.epochs_done)
        trained = [*self.generator.parameters()]
        if training.train_noise:
            trained.append(z.requires_grad_())
        adam, seen, losses = Adam(trained, training.lr, (training.beta1, 0.999)), [], []
        self.student.eval()
        for _ in range(training.steps):
            x = self.generator(z)
            seen.append(x.detach())
            p, student = self.aggregate(x, y), self.student_logits(x)  # (12)
            loss = cross_entropy(p, y) + method.stability * self.gap(x)  # (13), (14)
            apart = kl(p, student)
            if method.diversity_on == "disagreements":
                apart = apart * (p.argmax(1) != student.argmax(1))
            loss = loss - method.diversity * apart.mean()  # (15), (16)
            losses.append(loss.item())
            adam.zero_grad()
            loss.backward()
            adam.step()
        self.student.train()
        kept = seen[losses.index(min(losses))] if training.keep == "best" else seen[-1]
        self.grow(kept, y)
        batches = [(x, y) for x in (seen if method.replay == "intermediate" else [kept])]
        if method.replay == "pool":
            batches = list(self.batches())
        sizes = [len(x) for x, _ in batches]
        if method.augment != "none":
            self.crops = iter([draw_crops(size, self.draws) for size in sizes])
        for batch in batches:
            self.learn(*batch)
        self.epochs_done += 1


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("replay", ["last", "intermediate", "pool"])
@pytest.mark.parametrize(
    "nets",
    [("mlp:hidden=8,layers=1", "lenet5"), ("resnet20", "mlp:hidden=8,layers=1", "resnet20")],
    ids=["plain", "batchnorm"],
)
@pytest.mark.parametrize("variant", ["paper", "authors", "best"])
def test_phases_equal_the_algorithms(replay, nets, variant):
    world = tiny_world(nets, seed=3)
    method = FedHydra(
        **QUICK,
        replay=replay,
        hard_labels=0.7,
        variant=variant,
        pool_bytes=False,
        highest_of="class",
    )
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


def test_augmented_pool_is_asked_about_what_the_student_sees_with_its_stored_label():
    """15 images in batches of 4: 4, 4, 4, 3, asked one by one, two by two and all at once. The
    ensemble's answers are those of Eq. (11) on the augmented image; what is kept stays.
    """
    kept, labels = torch.rand(15, *SHAPE, generator=rng(1)), torch.arange(15) % 3
    found = []
    for together in (1, 2, 9):
        world = tiny_world(("lenet5", "mlp:hidden=8,layers=1"))
        context, state = prepare_and_start(FedHydra(**QUICK, augment="crop-flip"), world)
        context = replace(context, batches_together=together)
        state.guidance = torch.tensor([[1.0, 4.0, 0.5], [2.0, 0.0, 3.0]])
        state.pool.add(kept, labels)
        ahead = torch.Generator()
        ahead.set_state(state.draws.get_state())
        order = torch.randperm(15, generator=ahead).split(4)
        crops = [draw_crops(len(places), ahead) for places in order]
        for places, cut, (images, answers) in zip(
            order, crops, augmented_batches(context, state, 4, "crop-flip"), strict=True
        ):
            torch.testing.assert_close(images, crop_and_flip(kept[places], cut))
            expected = context.ensemble(state, images, labels[places])
            torch.testing.assert_close(answers, expected)
            found.append(places)
        assert torch.equal(state.pool.images(torch.arange(15)), kept)
        assert_same_draws_ahead(state, ahead)
    assert sorted(torch.cat(found[:4]).tolist()) == list(range(15))
    wrong = context.ensemble(state, images, (labels[places] + 1) % 3)
    assert (answers - wrong).abs().max() > 1e-3, "the label decides the answer"


def assert_same_draws_ahead(state, ahead):
    assert torch.equal(*(torch.rand(3, generator=each) for each in (state.draws, ahead)))


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


def test_variant_authors_is_what_their_code_sets():
    """All of the code that differs from the paper variant; weights, which it does not tell, stay
    the paper's, and what is given stays.
    """
    plain, authors = flatten(FedHydra()), flatten(FedHydra(variant="authors"))
    assert {name: value for name, value in authors.items() if value != plain[name]} == {
        "variant": "authors",
        "batch_size": 256,  # of synthesis and of distillation
        "beta1": 0.5,
        "reset_generator": True,
        "train_noise": True,
        "keep": "best",
        "pool_bytes": True,
        "augment": "crop-flip",
        "diversity_on": "disagreements",
        "kl_reduction": "mean",
        "stratify_augment": "crop-flip",
        "stratify_beta1": 0.5,
        "stratify_start": "own",
        "guidance_floor": 1e-8,
    }
    assert FedHydra(variant="authors", augment="none").augment == "none"
    assert filled_by_variant(FedHydra(variant="authors", batch_size=128)).keys() == (
        authors.keys() & VARIANTS["authors"].keys()
    ) - {"batch_size"}


def test_variant_best_is_ours_and_paper_changes_nothing():
    plain, best = flatten(FedHydra()), flatten(FedHydra(variant="best"))
    assert flatten(FedHydra(variant="paper")) == plain | {"variant": "paper"}
    assert {name: value for name, value in best.items() if value != plain[name]} == {
        "variant": "best",
        "highest_of": "client",
        "diversity": 0.0,
    }
