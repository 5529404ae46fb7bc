"""Making batches of images: which batch is kept, what is trained and clipped; teachers stay as
they are; remarks.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attar.blocks.images import GeneratorTraining, PixelBatch, generate_batch
from attar.blocks.student import add_with_answers, cached_batches, frozen
from attar.blocks.student.distil import NO_BATCHNORM
from attar.fusion import fuse
from attar.methods import METHODS
from attar.methods.co_boosting.method import CoBoosting
from attar.methods.dense import Dense
from attar.methods.f_adi import FAdi
from attar.methods.fedhydra import FedHydra
from attar.testing import tiny_world
from attar.uploads import encode

QUICK = {"epochs": 2, "generator_steps": 2, "batch_size": 6, "noise": 5, "generator_width": 3}


class Scale(nn.Module):
    """One weight: images = weight * noise."""

    def __init__(self, weight=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, noise):
        return self.weight * noise


class Seen:
    """A loss that remembers what it was shown."""

    def __init__(self, loss):
        self.loss, self.images, self.values = loss, [], []

    def __call__(self, images):
        value = self.loss(images)
        self.images.append(images.detach().clone())
        self.values.append(value.item())
        return value


def overshooting():
    """Adam steps of 0.4 from 0 towards 1: it runs past the minimum."""
    return Seen(lambda images: (images - 1).square().mean())


ONES = torch.ones(2, 1, 1, 1)


def train(generator, noise, loss_of, *, clip=None, history=False, **settings):
    """All steps of a batch of the generator."""
    training = GeneratorTraining(**settings)
    batch = generate_batch(generator, noise, loss_of, training, clip=clip, history=history)
    for _ in range(training.steps):
        batch.step()
    return batch


def invert(start, loss_of, steps, lr, keep="last"):
    """All steps of a batch of pixels."""
    batch = PixelBatch(start, loss_of, lr=lr, keep=keep)
    for _ in range(steps):
        batch.step()
    return batch


# --- generate_batch -------------------------------------------------------------------------------


def test_step_keeps_the_images_of_the_last_step_before_its_update():
    seen = overshooting()
    batch = train(Scale(), ONES, seen, steps=6, lr=0.4, keep="last")
    assert len(seen.images) == 6
    assert torch.equal(batch.images, seen.images[-1])
    assert batch.loss.item() == seen.values[-1]


def test_step_keeps_the_images_of_the_lowest_loss():
    seen = overshooting()
    batch = train(Scale(), ONES, seen, steps=6, lr=0.4, keep="best")
    best = seen.values.index(min(seen.values))
    assert 0 < best < 5  # neither the first nor the last, or this test would say nothing
    assert torch.equal(batch.images, seen.images[best])
    assert batch.loss.item() == seen.values[-1]


@pytest.mark.parametrize("keep", ["last", "best"])
def test_step_keeps_images_without_history(keep):
    batch = train(Scale(), ONES, overshooting(), steps=3, lr=0.4, keep=keep)
    assert not batch.images.requires_grad
    assert not batch.loss.requires_grad


@pytest.mark.parametrize("keep", ["last", "best"])
def test_every_step_has_the_images_of_every_step_where_they_are_asked_for(keep):
    seen = overshooting()
    batch = train(Scale(), ONES, seen, steps=3, lr=0.4, keep=keep, history=True)
    assert torch.equal(torch.stack(batch.every_step), torch.stack(seen.images))
    assert train(Scale(), ONES, overshooting(), steps=3, lr=0.4).every_step == []


def test_steps_are_adams():
    """The first step of Adam is lr * sign(gradient) whatever beta1; the second depends on it."""
    ends = {}
    for beta1 in (0.5, 0.9):
        seen, weight = overshooting(), torch.zeros((), requires_grad=True)
        train(Scale(), ONES, seen, steps=3, lr=0.1, beta1=beta1)
        adam = torch.optim.Adam([weight], lr=0.1, betas=(beta1, 0.999))
        for images in seen.images:
            assert images[0].item() == pytest.approx(weight.item())
            adam.zero_grad()
            (weight - 1).square().backward()
            adam.step()
        ends[beta1] = weight.item()
    assert ends[0.5] != pytest.approx(ends[0.9], rel=1e-4)


def test_step_trains_a_copy_of_the_noise_where_train_noise_says_so():
    for train_noise in (False, True):
        noise, generator, seen = ONES.clone(), Scale(0.5), overshooting()
        train(generator, noise, seen, steps=3, lr=0.1, train_noise=train_noise)
        weights = [0.5, 0.6, 0.7]  # steps of lr towards larger images
        used = [
            images[0].item() / weight for images, weight in zip(seen.images, weights, strict=True)
        ]
        assert used == pytest.approx([1.0, 1.1, 1.2] if train_noise else [1.0] * 3, abs=0.02)
        assert torch.equal(noise, ONES)
        assert not noise.requires_grad


def test_step_clips_the_generators_gradient_and_not_the_noises():
    norms = {}
    for clip in (None, 0.25):
        generator = Scale(0.5)
        train(generator, 10 * ONES, overshooting(), steps=1, lr=0.1, clip=clip, train_noise=True)
        norms[clip] = generator.weight.grad.norm().item()
    assert norms[None] == pytest.approx(80)  # d/dw mean (10 w - 1)^2 = 20 (5 - 1)
    assert norms[0.25] == pytest.approx(0.25, rel=1e-4)
    found = []
    # Adam's first step has size lr unless the gradient is next to nothing, as clipped here.
    for clip in (None, 1e-9):
        seen, generator = overshooting(), Scale(0.5)
        train(generator, 10 * ONES, seen, steps=2, lr=0.1, clip=clip, train_noise=True)
        found.append((seen.images[1][0].item(), generator.weight.item()))
    # The weight hardly moved, the noise did.
    assert found[1][0] == pytest.approx(0.5 * 9.9, abs=0.1)
    assert found[0][0] == pytest.approx(0.4 * 9.9, abs=0.1)


# --- PixelBatch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["last", "best"])
@pytest.mark.parametrize("sign", [1, -1])
def test_pixel_batch_stays_between_zero_and_one(sign, keep):
    start = torch.tensor([-0.5, 0.2, 0.9, 1.7]).view(1, 1, 2, 2)
    before, seen = start.clone(), Seen(lambda images: sign * images.sum())
    images = invert(start, seen, steps=15, lr=0.3, keep=keep).images
    assert images.flatten().tolist() == [0.0 if sign == 1 else 1.0] * 4
    assert all(((shown >= 0) & (shown <= 1)).all() for shown in seen.images)
    assert torch.equal(start, before)
    assert seen.values[0] == pytest.approx(sign * 2.1)  # 0 + 0.2 + 0.9 + 1


def test_pixel_batch_keeps_the_best():
    seen = Seen(lambda images: (images - 0.5).square().sum())
    images = invert(torch.zeros(1, 1, 1, 1), seen, steps=6, lr=0.2, keep="best").images
    best = seen.values.index(min(seen.values))
    assert 0 < best < 5
    assert torch.equal(images, seen.images[best])


def test_pixel_batch_has_gradients_in_the_layout_of_the_pixels():
    """Fused Adam on CUDA asks for it; a net with channels last gives another layout back."""
    layouts = []

    def run(name, work, inputs, captured):
        images, loss, *slopes = work(*inputs)
        layouts.append(slopes[-1].is_contiguous())
        return images, loss, *slopes

    def loss_of(images):
        return images.contiguous(memory_format=torch.channels_last).mul(2).square().sum()

    batch = PixelBatch(torch.rand(2, 3, 4, 4), loss_of, lr=0.1, run=run)
    for _ in range(2):
        batch.step()
    assert layouts == [True, True]


# --- around them ----------------------------------------------------------------------------------


def test_frozen_is_eval_mode_without_gradients_until_the_end_whatever_happens():
    student, found = nn.Sequential(nn.Linear(2, 2), nn.Dropout()), []

    def fail():
        with frozen(student):
            found.append(
                (student[1].training, any(weight.requires_grad for weight in student.parameters()))
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found == [(False, False)]
    assert student[1].training
    assert all(weight.requires_grad for weight in student.parameters())


FAMILY = {
    "dense": QUICK,
    "f-dafl": QUICK,
    "f-adi": {"epochs": 2, "inversion_steps": 2, "batch_size": 6},
    "fedftg": {**QUICK, "student_steps": 2},
    "co-boosting": {**QUICK, "ensemble": "stratified"},
    "fedhydra": QUICK,
}


@pytest.mark.parametrize("name", FAMILY)
def test_teachers_never_change_and_get_no_gradients(name):
    world = tiny_world(("resnet20", "lenet5", "resnet20"))
    method = METHODS[name](**FAMILY[name])
    uploads = [encode(upload) for upload in world.uploads]
    context = method.prepare(world.uploads, world.server)
    teachers = context.teachers
    tensors = {**dict(teachers.named_parameters()), **dict(teachers.named_buffers())}
    assert len(tensors) > 10
    before, state = {name: value.clone() for name, value in tensors.items()}, method.start(context)
    for state.phase, phase in enumerate(method.phases(context)):
        for state.step in range(phase.steps):
            phase.step(state)
    for key, value in tensors.items():
        assert torch.equal(value, before[key]), key
        assert not value.requires_grad
        assert value.grad is None
    assert not any(
        module.training for group in teachers.groups for module in group.code().modules()
    )
    assert [encode(upload) for upload in world.uploads] == uploads
    assert state.student.training
    assert all(weight.grad is not None for weight in state.student.parameters())


@pytest.mark.parametrize(
    ("method", "term"),
    [
        (Dense(**QUICK), "stability"),
        (FedHydra(**QUICK), "stability"),
        (FAdi(epochs=2, inversion_steps=1, batch_size=6), "features"),
    ],
    ids=["dense", "fedhydra", "f-adi"],
)
def test_student_result_remarks_a_batchnorm_term_without_batchnorm(method, term):
    plain, normed = tiny_world(), tiny_world(("lenet5", "resnet20"))
    fused = fuse(plain.uploads, method, plain.server)
    assert fused.result.remarks == (NO_BATCHNORM,)
    assert fused.record["remarks"] == [NO_BATCHNORM]
    assert fuse(normed.uploads, method, normed.server).result.remarks == ()
    assert fuse(plain.uploads, replace(method, **{term: 0.0}), plain.server).result.remarks == ()


def test_student_result_remarks_nothing_where_the_term_is_left_out():
    world = tiny_world()
    assert fuse(world.uploads, Dense(**QUICK, variant="authors"), world.server).result.remarks == ()
    assert fuse(world.uploads, CoBoosting(**QUICK), world.server).result.remarks == ()


@pytest.mark.parametrize("reset", [False, True])
def test_start_batch_resets_the_generator_where_asked(reset):
    """With steps of next to nothing, what a generator is at the end of an epoch is what it was
    at the beginning.
    """
    world, method = tiny_world(), Dense(**QUICK, reset_generator=reset, generator_lr=1e-12)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    (phase,) = method.phases(context)
    weights = []
    for state.step in range(2):
        phase.step(state)
        weights.append(state.generator.linear.weight.detach().clone())
    assert torch.allclose(*weights, atol=1e-6) is not reset


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_schedule_changes_the_students_step_size(schedule):
    """Cosine over two epochs: 0.01, 0.005, 0."""
    world, method = tiny_world(), Dense(**QUICK, schedule=schedule)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    (phase,) = method.phases(context)
    sizes = [state.optimiser.param_groups[0]["lr"]]
    for state.step in range(2):
        phase.step(state)
        sizes.append(state.optimiser.param_groups[0]["lr"])
    assert sizes == pytest.approx([0.01, 0.005, 0.0] if schedule == "cosine" else [0.01] * 3)


def test_cached_batches_have_every_image_once_with_its_answer():
    world, method, asked = tiny_world(), Dense(**QUICK), []
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)

    def answer(images, labels):
        asked.append(len(images))
        return images.mean((1, 2, 3))[:, None] + labels[:, None] * torch.ones(3)

    add_with_answers(context, state, torch.rand(8, 1, 16, 16), torch.arange(8) % 3, answer)
    for _ in range(2):
        batches = list(cached_batches(state.pool, method.batch_size, state.draws))
        assert [len(images) for images, _ in batches] == [6, 2]
        pairs = [
            (image, said)
            for images, answers in batches
            for image, said in zip(images, answers, strict=True)
        ]
        places = [
            next(
                place
                for place in range(8)
                if torch.equal(state.pool.images(torch.tensor([place]))[0], image)
            )
            for image, _ in pairs
        ]
        assert sorted(places) == list(range(8))
        for (image, said), place in zip(pairs, places, strict=True):
            torch.testing.assert_close(said, image.mean() + place % 3 * torch.ones(3))
    assert asked == [8], "the clients were asked once"


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("name", ["dense", "f-dafl", "f-adi", "fedhydra"])
def test_cached_answers_are_those_that_the_ensemble_would_give_again(name, as_bytes):
    """The slow twin asks the ensemble about every image of the pool at the end of the run."""
    world, settings = tiny_world(), {"epochs": 3, "batch_size": 6, "pool_bytes": as_bytes}
    steps = (
        {"inversion_steps": 2}
        if name == "f-adi"
        else {"generator_steps": 2, "noise": 5, "generator_width": 3}
    )
    method = METHODS[name](**settings, **steps)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    for phase in method.phases(context):
        for state.step in range(phase.steps):
            phase.step(state)
    everywhere = torch.arange(18)
    images, labels = state.pool.images(everywhere), state.pool.labels(everywhere)
    twin = context.ensemble(state, images, labels)
    torch.testing.assert_close(state.pool.extras("answers", everywhere), twin)
    assert twin.std() > 0


def test_student_result_shows_the_newest_images():
    world = tiny_world()
    result = fuse(world.uploads, Dense(**{**QUICK, "batch_size": 40}), world.server).result
    assert result.images["synthetic"].shape == (64, 1, 16, 16)
    assert fuse(world.uploads, Dense(**{**QUICK, "epochs": 0}), world.server).result.images == {}
