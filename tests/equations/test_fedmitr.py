"""FedMITR: masks and stops on constructed cases, Eq. (3) to (6) by hand on a toy of two tokens,
epochs beside their slow twin.
"""

from copy import deepcopy
from dataclasses import replace
from math import exp, hypot, log

import pytest
import torch
from by_hand import TWO, divergence, softplus
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, Adam

from attar.blocks.student import (
    average_classifiers,
    distillation,
    greyness,
    jensen_shannon,
    total_variation,
)
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import NeedsError, SettingsError
from attar.fusion import fuse, server_for
from attar.methods.fedmitr.inversion import (
    SparseInversion,
    Sparsity,
    draw_moves,
    left_after,
    mask_of,
    most_attended,
    move_images,
    move_patches,
    over_pixels,
    split_patches,
)
from attar.methods.fedmitr.method import FedMitr
from attar.methods.fedmitr.relabel import Batch, read_batch
from attar.nets.registry import NETS, Look, NetEntry
from attar.testing import SMALL_VITS, tiny_upload, tiny_world

QUICK = {
    "epochs": 2,
    "inversion_steps": 4,
    "batch_size": 4,
    "inversion_lr": 0.1,
    "mask_ratio": 0.5,
    "stop_at": (0.5,),
}
FINE = "vit:patch=4,width=12,depth=1,hidden=16"  # 4 x 4 patches


# --- which patches stop, and when -----------------------------------------------------------------


def left(patches=64, steps=10, **settings):
    return Sparsity(**settings).patches_left(patches, steps)


def test_patches_left_by_hand():
    """64, less 19 (0.3 of 64, rounded down), less 13 of 45, less 9 of 32, less 6 of 23: 17."""
    assert left() == [64, 64, 45, 45, 32, 32, 23, 23, 17, 17, 17]
    assert left(stop_at=(1.0,)) == [64] * 10 + [45], "the mask is taken after the last step"
    assert left(steps=1) == [64, 17], "a trial of one step ends with as many patches"
    assert left(mask_ratio=0.0) == [64] * 11
    assert left_after(10, 0.7) == 3, "0.7 * 10 is a little above 7 in floating point"
    assert left_after(1, 0.9) == left_after(2, 1.0) == 1, "one is always left"


def test_most_attended_by_hand():
    attention = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.9, 0.0, 0.05, 0.05001]])
    keep = torch.tensor([[2, 5, 7, 9], [0, 1, 4, 8]])
    assert most_attended(attention, keep, 2).tolist() == [[5, 9], [0, 8]]
    assert most_attended(attention, keep, 3).tolist() == [[5, 7, 9], [0, 4, 8]]


def test_masks_over_patches_and_pixels():
    mask = mask_of(torch.tensor([[[0, 3]]]), 4)
    assert mask.tolist() == [[[True, False, False, True]]]
    assert split_patches(mask[0], 2)[0].tolist() == [[0, 3]]
    assert split_patches(mask[0], 2)[1].tolist() == [[1, 2]]
    assert all(
        side.is_contiguous()
        for side in split_patches(mask_of(torch.tensor([[0, 3], [1, 2]]), 4), 2)
    ), "a copy keeps its strides"
    pixels = over_pixels(mask, (2, 2), 4, 2)
    assert pixels.shape == (1, 1, 1, 4, 2)
    assert pixels[0, 0, 0].tolist() == [[True, False], [True, False], [False, True], [False, True]]
    assert over_pixels(mask, (2, 2), 3, 3)[0, 0, 0].tolist() == [
        [True, True, False],
        [True, True, False],
        [False, False, True],
    ]


def invert(start, loss_of, *, steps, lr=0.1, stopped="frozen", **sparsity):
    """All steps of an inversion of images with 2 x 2 patches."""
    inversion = SparseInversion(
        start,
        loss_of,
        grid=(2, 2),
        left=left(4, steps, **sparsity),
        stopped=stopped,
        lr=lr,
        betas=(0.5, 0.99),
    )
    for _ in range(steps):
        inversion.step()
        inversion.stop_patches()
    return inversion


def test_stop_patches_follows_the_attention_of_the_last_step():
    """Four patches of one pixel. The attention that iteration t returns puts patch (t mod 4)
    last, whatever it is about.
    """
    seen = []

    def loss_of(images, keep):
        last = len(seen) % 4
        seen.append(keep.tolist())
        return (images * 0).sum((1, 2, 3, 4)), (keep != last).to(images.dtype)

    start = torch.full((1, 1, 1, 2, 2), 0.5)
    made = invert(start, loss_of, steps=4, mask_ratio=0.34, stop_at=(0.5, 0.75))
    # At t = 2 that of t = 1, which has 1 last; at t = 3 that of t = 2, which has 2 last.
    assert seen == [[[[0, 1, 2, 3]]], [[[0, 1, 2, 3]]], [[[0, 2, 3]]], [[[0, 3]]]]
    assert made.high.tolist() == [[[True, False, False, True]]]


def test_step_freezes_stopped_patches_or_lets_them_drift():
    """The loss pulls every pixel towards 1 by itself and by a prior over all of them; only kept
    patches have the first part.
    """

    def loss_of(images, keep):
        shown = over_pixels(mask_of(keep, 4), (2, 2), 4, 4)
        loss = -(images * shown).sum((1, 2, 3, 4)) - 0.1 * images.sum((1, 2, 3, 4))
        return loss, -keep.to(images.dtype)  # the first patches are the most attended

    start = torch.full((1, 2, 1, 4, 4), 0.2)
    plan = {"lr": 0.01, "mask_ratio": 0.5}
    halted = invert(start, loss_of, steps=2, stop_at=(), **plan)
    frozen, drifting = (
        invert(start, loss_of, steps=4, stop_at=(0.5,), stopped=stopped, **plan)
        for stopped in ("frozen", "drifting")
    )
    low = ~over_pixels(frozen.high, (2, 2), 4, 4)
    assert frozen.high.tolist() == drifting.high.tolist() == [[[True, True, False, False]] * 2]
    assert torch.equal(frozen.images[low], halted.images[low]), (
        "stopped pixels are those of the moment they stopped"
    )
    assert (drifting.images[low] > halted.images[low]).all()
    assert (frozen.images[~low] > halted.images[~low]).all()


def test_inversion_loss_has_gradients_on_kept_patches_only():
    """Through real nets: with no prior, a stopped patch of an image has no gradient; frozen or
    not, it is what it was.
    """
    world = tiny_world([FINE] * 2)
    method = FedMitr(**{**QUICK, "variation": 0.0, "magnitude": 0.0, "relabel": 0.0})
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    images = torch.rand(
        2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    keep = torch.tensor([0, 5, 10, 15]).expand(2, 3, 4)
    losses, attention = method.inversion_loss(
        context, state, images, keep, torch.zeros(2, 3, dtype=torch.int64)
    )
    (gradient,) = torch.autograd.grad(losses.sum(), images)
    touched = F.max_pool2d(gradient.abs().flatten(0, 1), 4).flatten(1) > 0
    assert torch.equal(touched, mask_of(keep, 16).flatten(0, 1))
    assert attention.shape == (2, 3, 4)


# --- a toy of two tokens: a patch is a pixel, its attention is its size ---------------------------
# logits = (w_0 s, w_1 s) with s the sum of the pixels that are shown.


class Toy(nn.Module):
    sign = 1  # of its attention

    def __init__(self, classes):
        super().__init__()
        self.grid = (1, 2)
        self.head = nn.Linear(1, classes, bias=False)

    def look(self, x, keep=None):
        tokens = x.flatten(1) if keep is None else x.flatten(1).gather(1, keep)
        return Look(self.head(tokens.sum(1, keepdim=True)), tokens[..., None], self.sign * tokens)

    def features(self, x, keep=None):
        return self.look(x, keep).tokens.sum(1)

    def forward(self, x, keep=None):
        return self.look(x, keep).logits


WEIGHTS = {"one": [2.0, 0.0], "two": [0.0, 1.0], "student": [1.0, -1.0]}


@pytest.fixture
def toys(monkeypatch, exact):
    monkeypatch.setitem(
        NETS, "toy", NetEntry("toy", lambda shape, classes: Toy(classes), "a toy", TWO, tokens=True)
    )

    def part(name):
        return Part(
            ModelSpec("toy"),
            {"head.weight": torch.tensor(WEIGHTS[name])[:, None]},
            ("a", "b"),
            Preprocess.plain(TWO),
        )

    def opened(**settings):
        uploads = [Upload(name, {"classifier": part(name)}, 1) for name in ("one", "two")]
        method = FedMitr(**{"batch_size": 1, "mask_ratio": 0.5, **settings})
        context = method.prepare(uploads, server_for(uploads, initial=part("student")))
        return method, context, method.start(context)

    return opened


def test_relabel_loss_by_hand(toys):
    """x = (0.2, 0.8), y = b; the second token is of high, the first of low density. T = 20,
    margins are logits of a less b.

    whole: s = 1, clients (2, 0) and (0, 1), E_S = (1, 0.5), margin 0.5; student (1, -1), margin 2.
    low:   s = 0.2, clients (0.4, 0) and (0, 0.2), E_S = (0.2, 0.1), margin 0.1; student 0.4.
    high:  s = 0.8, the student's margin is 1.6, and CE with b is softplus(1.6).
    """
    _, context, state = toys()
    x = torch.tensor([0.2, 0.8]).view(1, *TWO)
    asked = (context.teachers(x).mean(0), context.teachers(x, torch.tensor([[0]])).mean(0))
    assert asked[0].tolist() == [[1.0, 0.5]]
    assert asked[1].tolist() == [[pytest.approx(0.2), pytest.approx(0.1)]]
    batch = Batch(x, torch.tensor([1]), torch.tensor([[1]]), torch.tensor([[0]]), *asked)
    whole, high, low = 400 * divergence(0.025, 0.1), softplus(1.6), 400 * divergence(0.005, 0.02)
    for settings, expected in (
        ({}, whole + 0.5 * high + 0.5 * low),
        ({"pseudo_labels": 0.25, "relabel": 2.0}, whole + 0.25 * high + 2 * low),
        ({"pseudo_labels": 0.0}, whole + 0.5 * low),  # Table 5, without L_CLS
        ({"relabel": 0.0}, whole + 0.5 * high),  # Table 5, without L_KL
        ({"distil": 0.0, "pseudo_labels": 1.0, "relabel": 0.0}, high),
        (
            {"mask_ratio": 0.0, "pseudo_labels": 0.0, "relabel": 0.0},
            whole,
        ),  # DeepInversion, Inversion + KD
    ):
        method = FedMitr(**settings)
        assert method.relabel_loss(context, state, *batch).item() == pytest.approx(expected), (
            settings
        )


def test_inversion_loss_by_hand(toys):
    """Client one sees (0.2, 0.8), client two (0.5, 0.1); both are asked for b; JS at T = 1 is in
    units of ln 2.

    one: margin 2 s = 2, student 2 s = 2: they agree, JS = 0. two: margin -s = -0.6, student 1.2.
    TV: one pair of neighbours, |0.2 - 0.8| and |0.5 - 0.1|. l2: distance from (0.5, 0.5).
    With the second token left out s is 0.2 and 0.5; TV and l2 are of the whole image still.
    """
    settings = {
        "disagreement_temperature": 1.0,
        "disagreement": 0.7,
        "variation": 0.1,
        "magnitude": 0.01,
    }
    method, context, state = toys(**settings)
    images = torch.tensor([[0.2, 0.8], [0.5, 0.1]]).view(2, 1, *TWO)
    labels, whole, part = (
        torch.ones(2, 1, dtype=torch.int64),
        torch.tensor([0, 1]),
        torch.tensor([0]),
    )

    def js(m, n):
        p, q = 1 / (1 + exp(-m)), 1 / (1 + exp(-n))
        middle = (p + q) / 2
        kl = [a * log(a / middle) + (1 - a) * log((1 - a) / (1 - middle)) for a in (p, q)]
        return sum(kl) / 2 / log(2)

    prior = 0.1 * 0.6 + 0.01 * hypot(0.3, 0.3), 0.1 * 0.4 + 0.01 * hypot(0, 0.4)
    for keep, sums in ((whole, (1.0, 0.6)), (part, (0.2, 0.5))):
        losses, attention = method.inversion_loss(
            context, state, images, keep.expand(2, 1, -1), labels
        )
        one = softplus(2 * sums[0]) - 0.7 * js(2 * sums[0], 2 * sums[0]) + prior[0]
        two = softplus(-sums[1]) - 0.7 * js(-sums[1], 2 * sums[1]) + prior[1]
        assert losses.tolist() == [pytest.approx(one), pytest.approx(two)]
        assert torch.equal(attention.flatten(1), images.flatten(1)[:, keep]), (
            "of the client's own class token"
        )
    assert js(-0.6, 1.2) > 0.1


def test_inversion_loss_asks_clients_for_known_classes_alone(toys):
    """Who lists a alone is always right and always agrees: of Eq. (3) the priors remain."""
    method, context, _ = toys(variation=0.1, magnitude=0.0)
    part = context.uploads[0].parts["classifier"]
    narrow = replace(part, state={"head.weight": torch.tensor([[2.0]])}, classes=("a",))
    uploads = [Upload("narrow", {"classifier": narrow}, 1), context.uploads[1]]
    context = method.prepare(uploads, replace(context.server))
    images, keep = (
        torch.tensor([0.2, 0.8]).view(1, 1, *TWO).expand(2, 1, *TWO),
        torch.tensor([0, 1]).expand(2, 1, 2),
    )
    losses, _ = method.inversion_loss(
        context, method.start(context), images, keep, torch.zeros(2, 1, dtype=torch.int64)
    )
    assert losses[0].item() == pytest.approx(0.1 * 0.6)
    assert losses[1].item() > 0.5


def test_inversion_loss_gives_the_attention_of_the_server(toys):
    """The student attends most to what clients attend to least."""
    method, context, state = toys(attention="server", disagreement=0.0)
    state.student.sign = -1
    images = torch.tensor([0.2, 0.8]).view(1, 1, *TWO).expand(2, 1, *TWO)
    keep = torch.tensor([0, 1]).expand(2, 1, 2)
    labels = torch.zeros(2, 1, dtype=torch.int64)
    by_server = method.inversion_loss(context, state, images, keep, labels)[1]
    assert by_server.flatten(1).tolist() == [[-0.2, -0.8]] * 2
    nobody = replace(state, student=None)  # it need not be asked
    by_client = FedMitr(disagreement=0.0).inversion_loss(context, nobody, images, keep, labels)[1]
    assert by_client.flatten(1).tolist() == [pytest.approx([0.2, 0.8])] * 2


# --- whole epochs ---------------------------------------------------------------------------------


def slow_epochs(method, world):
    """Algorithm 1 client by client, batch by batch, in plain loops: the student's weights at the
    end, and the images of D_S.
    """
    uploads, server = world.uploads, world.server
    context = method.prepare(uploads, server)
    draws = method.start(context).draws
    nets = [upload.parts["classifier"].build() for upload in uploads]
    prepare = uploads[0].parts["classifier"].preprocess
    student = Part(**vars(average_classifiers(uploads))).build().requires_grad_(True).train()
    sgd = SGD(
        student.parameters(),
        lr=method.student.lr,
        momentum=method.student.momentum,
        weight_decay=method.student.weight_decay,
    )
    pool = []
    for _ in range(method.epochs):
        labels = torch.multinomial(
            torch.ones(len(nets), len(server.task.classes)),
            method.batch_size,
            True,
            generator=draws,
        )
        noise = torch.randn(len(nets), method.batch_size, *server.task.input_shape, generator=draws)
        frozen = deepcopy(student).eval().requires_grad_(False)
        for net, y, z in zip(nets, labels, noise, strict=True):
            x = (0.5 + 0.5 * z).clone()
            adam = Adam(
                [x], lr=method.inversion.lr, betas=(method.inversion.beta1, method.inversion.beta2)
            )
            keep, scores = torch.arange(16).expand(len(y), 16), torch.zeros(len(y), 16)
            for t in range(method.inversion.steps):
                x.clamp_(0, 1)
                if t == 2:  # half of the steps
                    best = [
                        row[score.topk(8).indices].sort().values
                        for row, score in zip(keep, scores, strict=True)
                    ]
                    keep = torch.stack(best)
                v = x.detach().requires_grad_()
                tokens, weights = net.attend(prepare(v), keep)
                scores = weights.mean(1)
                logits = net.head(tokens[:, 0])
                loss = (
                    F.cross_entropy(logits, y)
                    + method.inversion.variation * total_variation(v)
                    + method.inversion.magnitude * greyness(v)
                )
                loss = loss - jensen_shannon(logits, frozen(prepare(v), keep), 3.0)
                (x.grad,) = torch.autograd.grad(loss, v)
                before = x.clone()
                adam.step()
                for image, old, row in zip(x, before, keep.tolist(), strict=True):
                    for patch in set(range(16)) - set(row):
                        top, left = patch // 4 * 4, patch % 4 * 4
                        image[:, top : top + 4, left : left + 4] = old[
                            :, top : top + 4, left : left + 4
                        ]
            x = x.clamp(0, 1)
            rest = torch.tensor([sorted(set(range(16)) - set(row)) for row in keep.tolist()])
            answers = torch.stack([one(prepare(x)) for one in nets]).mean(0)
            relabelled = torch.stack([one(prepare(x), rest) for one in nets]).mean(0)
            pool += list(zip(x, y, keep, rest, answers, relabelled, strict=True))
        for places in torch.randperm(len(pool), generator=draws).split(method.batch_size):
            x, y, high, low, answers, relabelled = map(
                torch.stack, zip(*[pool[n] for n in places], strict=True)
            )
            loss = distillation(student(prepare(x)), answers, 20.0)
            loss = loss + 0.5 * F.cross_entropy(student(prepare(x), high), y)
            loss = loss + 0.5 * distillation(student(prepare(x), low), relabelled, 20.0)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    return student.state_dict(), torch.stack([row[0] for row in pool])


def test_epoch_equals_plain_loops_over_clients():
    world = tiny_world([FINE] * 3)
    method = FedMitr(**QUICK, beta1=0.3, beta2=0.6, student_lr=0.05)
    weights, images = slow_epochs(method, world)
    result = fuse(world.uploads, method, world.server).result
    torch.testing.assert_close(result.images["synthetic"], images, rtol=1e-4, atol=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(
            result.models["student"].state[name], value, rtol=1e-3, atol=1e-4
        )


class Watching(FedMitr):
    """FedMITR that notes the mode of the student whenever images are made."""

    def inversion_loss(self, context, state, *inputs):
        frozen = not any(weight.requires_grad for weight in state.student.parameters())
        MODES.append((state.student.training, frozen))
        return super().inversion_loss(context, state, *inputs)


MODES = []


def test_epoch_freezes_the_student_while_images_are_made():
    MODES.clear()
    _, _, state = run(Watching)
    assert set(MODES) == {(False, True)}
    assert state.student.training


def run(kind=FedMitr, **settings):
    world = tiny_world([FINE] * 3)
    method = kind(**{**QUICK, **settings})
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    for _ in range(method.epochs):
        method.phases(context)[0].step(state)
        state.step += 1
    return method, context, state


@pytest.mark.parametrize("whole_bytes", [False, True])
def test_epoch_adds_masks_and_answers_to_the_pool(whole_bytes):
    _, context, state = run(pool_bytes=whole_bytes)
    pool, places = state.pool, torch.arange(24)
    assert len(pool) == 2 * 3 * 4, "every epoch adds a batch of every client"
    assert pool.extras("high", places).sum(1).tolist() == [8] * 24
    batch = read_batch(pool, places, 8)
    torch.testing.assert_close(
        batch.answers, context.teachers(batch.images).mean(0), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(
        batch.low_answers, context.teachers(batch.images, batch.low).mean(0), rtol=1e-5, atol=1e-6
    )
    assert not torch.allclose(batch.answers, batch.low_answers, atol=1e-4)
    both = torch.cat([batch.high, batch.low], 1).sort(1).values
    assert torch.equal(both, torch.arange(16).expand(24, 16)), (
        "high and low are all patches, each once"
    )


def test_result_shows_patches_of_high_and_low_density():
    method, context, state = run()
    images = method.result(context, state).images
    whole, high, low = images["density"]
    assert images["density"].shape == (3, 12, 1, 16, 16)
    assert images["synthetic"].shape == (24, 1, 16, 16)
    mask = over_pixels(state.pool.extras("high", state.pool.latest(12)), (4, 4), 16, 16)
    assert torch.equal(high, torch.where(mask, whole, torch.ones(())))
    assert torch.equal(low, torch.where(mask, torch.ones(()), whole))


def test_epoch_without_mask_is_deepinversion():
    """No mask, no pseudo-labels, nothing relabelled: all patches are inverted to the end and
    whole images distilled.
    """
    _, _, state = run(mask_ratio=0.0, pseudo_labels=0.0, relabel=0.0)
    assert state.pool.extras("high", torch.arange(24)).all()


def test_start_from_average_uniform_or_fresh():
    world = tiny_world([FINE] * 3)
    mean = average_classifiers(world.uploads).state
    weights = {}
    for start in ("average", "uniform", "fresh"):
        method = FedMitr(**{**QUICK, "epochs": 0, "start_from": start})
        weights[start] = (
            fuse(world.uploads, method, world.server).result.models["student"].state["head.weight"]
        )
    assert torch.equal(weights["average"], mean["head.weight"])
    assert not torch.equal(weights["average"], weights["uniform"])
    assert not torch.equal(weights["average"], weights["fresh"])


def test_draw_labels_of_known_classes():
    world = tiny_world([FINE] * 2, classes=[("ring", "cross"), ("bar",)])
    method = FedMitr(**QUICK)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    method.phases(context)[0].step(state)
    labels = state.pool.labels(torch.arange(8))
    assert set(labels[:4].tolist()) <= {0, 1}
    assert set(labels[4:].tolist()) == {2}


def test_draw_labels_of_held_classes():
    uploads = [
        replace(tiny_upload("ann", FINE), label_counts=(5, 0, 0)),
        replace(tiny_upload("bob", FINE), label_counts=(0, 2, 9)),
    ]
    method = FedMitr(
        **{**QUICK, "batch_size": 20, "inversion_steps": 1, "epochs": 1}, labels="held"
    )
    context = method.prepare(uploads, server_for(uploads))
    state = method.start(context)
    method.phases(context)[0].step(state)
    labels = state.pool.labels(torch.arange(40))
    assert set(labels[:20].tolist()) == {0}
    assert set(labels[20:].tolist()) == {1, 2}
    with pytest.raises(NeedsError, match="client bob must send label counts"):
        fuse([uploads[0], replace(uploads[1], label_counts=None)], method)
    assert not FedMitr().needs.label_counts


# --- what it cannot take --------------------------------------------------------------------------


def test_settings_refuse_what_makes_no_sense():
    world = tiny_world([FINE])
    for none in ({"mask_ratio": 0.0}, {"stop_at": ()}, {"mask_ratio": 0.01}):  # 0.16 of 16 patches
        with pytest.raises(SettingsError, match="None of 16 patches stops"):
            fuse(world.uploads, FedMitr(**{**QUICK, **none}), world.server)
    with pytest.raises(SettingsError, match="learn nothing"):
        FedMitr(distil=0.0, pseudo_labels=0.0, relabel=0.0)
    with pytest.raises(SettingsError, match="stop_at"):
        fuse(world.uploads, FedMitr(stop_at=(0.5, 1.5)), world.server)
    with pytest.raises(SettingsError, match="mask_ratio"):
        FedMitr(mask_ratio=1.5)


def test_needs_refuse_nets_without_the_same_patches():
    uploads = [
        tiny_upload("ann", "lenet5"),
        tiny_upload("bob", SMALL_VITS[0]),
        tiny_upload("eve", FINE),
    ]
    with pytest.raises(NeedsError) as raised:
        fuse(uploads, FedMitr(**QUICK), server_for(uploads, student="lenet5"))
    text = str(raised.value)
    assert "client ann must have a net with tokens" in text
    assert "the student must have tokens, lenet5 has none" in text
    assert "1 x 2 x 2, 1 x 4 x 4" in text


def test_disagreement_in_nats_or_bits(toys):
    """A bit is ln 2 nats: with nothing but alpha JS the losses have this ratio, at one weight."""
    plain = {"variation": 0.0, "magnitude": 0.0, "disagreement_temperature": 1.0}
    images = torch.tensor([[0.2, 0.8], [0.5, 0.1]]).view(2, 1, *TWO)
    labels, keep = torch.ones(2, 1, dtype=torch.int64), torch.tensor([0, 1]).expand(2, 1, 2)
    losses = {}
    for name, settings in (
        ("none", {"disagreement": 0.0}),
        ("bits", {}),
        ("nats", {"disagreement_unit": "nats"}),
    ):
        method, context, state = toys(**plain, **settings)
        losses[name] = method.inversion_loss(context, state, images, keep, labels)[0][1].item()
    p, q = 1 / (1 + exp(0.6)), 1 / (1 + exp(-1.2))  # margins of client two and of the student
    m = (p + q) / 2
    nats = sum(a * log(a / m) + (1 - a) * log((1 - a) / (1 - m)) for a in (p, q)) / 2
    assert losses["none"] - losses["nats"] == pytest.approx(nats)
    assert losses["none"] - losses["bits"] == pytest.approx(nats / log(2))


def test_priors_of_normalised_pixels_by_hand(toys):
    """The student sees (x - 0.25) / 0.5: (-0.1, 1.1), whose neighbours differ by 1.2."""
    found = {}
    for kind in ("pixels", "normalised"):
        for name in ("variation", "magnitude"):
            weights = {"variation": 0.0, "magnitude": 0.0, name: 1.0}
            method, context, state = toys(disagreement=0.0, priors=kind, **weights)
            look = Preprocess(TWO, (0.25,), (0.5,))
            context = replace(context, plan=replace(context.plan, preprocess=look))
            images = torch.tensor([0.2, 0.8]).view(1, 1, *TWO).expand(2, 1, *TWO)
            keep = torch.tensor([0, 1]).expand(2, 1, 2)
            losses, _ = method.inversion_loss(
                context, state, images, keep, torch.zeros(2, 1, dtype=torch.int64)
            )
            found[kind, name] = losses[0].item() - softplus(-2)
    assert found["pixels", "variation"] == pytest.approx(0.6)
    assert found["pixels", "magnitude"] == pytest.approx(hypot(0.3, 0.3))
    assert found["normalised", "variation"] == pytest.approx(1.2)
    assert found["normalised", "magnitude"] == pytest.approx(hypot(0.1, 1.1))


@pytest.mark.parametrize(("spread", "saturated"), [(0.5, 0.317), (0.25, 0.046)])
def test_noise_spread_decides_how_many_first_pixels_saturate(spread, saturated):
    world = tiny_world([FINE] * 3)
    method = FedMitr(**{**QUICK, "batch_size": 32, "noise_spread": spread})
    context = method.prepare(world.uploads, world.server)
    images = method.start_inversion(context, method.start(context)).images
    assert images.shape == (3, 32, 1, 16, 16)
    share = ((images == 0) | (images == 1)).float().mean().item()
    assert share == pytest.approx(saturated, abs=0.01), "2 (1 - Phi(0.5 / spread))"


def test_move_images_rolls_and_flips():
    images = torch.rand(3, 2, 1, 4, 6, generator=torch.Generator().manual_seed(0))
    moves = torch.tensor([[0, 0, 0], [1, -2, 0], [-1, 3, 1]])
    moved = move_images(images, moves)
    assert torch.equal(moved[0], images[0])
    assert torch.equal(moved[1], images[1].roll((1, -2), (2, 3)))
    assert torch.equal(moved[2], images[2].roll((-1, 3), (2, 3)).flip(3))


def test_move_patches_follow_their_pixels():
    """Shifted by whole patches, the patch at the new number shows what the old one showed."""
    images = torch.rand(2, 3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    keep = torch.tensor([0, 5, 11, 14]).expand(2, 3, 4)
    moves = torch.tensor([[4, -8, 0], [-4, 4, 1]])
    moved, places = move_images(images, moves), move_patches(keep, moves, (4, 4), (16, 16))

    def shown(images, keep):
        cells = images.unfold(3, 4, 4).unfold(4, 4, 4).flatten(3, 4)[:, :, 0]
        return cells.gather(2, keep[..., None, None].expand(*keep.shape, 4, 4))

    assert torch.equal(shown(moved, places)[0], shown(images, keep)[0])
    assert torch.equal(shown(moved, places)[1], shown(images, keep)[1].flip(-1))
    near = move_patches(keep, torch.tensor([[1, -1, 0], [3, 3, 0]]), (4, 4), (16, 16))
    assert torch.equal(near[0], keep[0]), "less than half a patch"
    assert near[1, 0].tolist() == [5, 10, 12, 3], "more than half of one, around the edges"


def test_draw_moves_by_up_to_an_eighth():
    moves = draw_moves(200, 3, (32, 16), torch.Generator().manual_seed(0))
    assert moves.shape == (200, 3, 3)
    assert [set(each.flatten().tolist()) for each in moves.unbind(-1)] == [
        set(range(-4, 5)),
        {-2, -1, 0, 1, 2},
        {0, 1},
    ]


def test_jitter_spares_the_steps_that_decide_which_patches_stop():
    """Nets see moved images; the priors do not, and neither does the attention of Eq. (5)."""
    world = tiny_world([FINE] * 3)
    method = FedMitr(**QUICK, jitter=True)  # four steps, patches stop after the second
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    moves = [each for (each,) in method.draw_moves(context, state)]
    assert [bool(each.any()) for each in moves] == [True, False, True, True]
    images = torch.rand(3, 4, 1, 16, 16, generator=state.draws)
    keep, labels = torch.arange(16).expand(3, 4, 16), torch.zeros(3, 4, dtype=torch.int64)
    moved = method.inversion_loss(context, state, images, keep, labels, moves[0])[0]
    plain = replace(method, inversion=replace(method.inversion, variation=0.0, magnitude=0.0))
    by_hand = plain.inversion_loss(context, state, move_images(images, moves[0]), keep, labels)[0]
    for number, batch in enumerate(images):
        by_hand[number] += method.inversion.variation * total_variation(batch)
        by_hand[number] += method.inversion.magnitude * greyness(batch)
    torch.testing.assert_close(moved, by_hand, rtol=1e-4, atol=1e-6)
    still = method.inversion_loss(context, state, images, keep, labels, moves[1])
    assert torch.equal(still[1], method.inversion_loss(context, state, images, keep, labels)[1])


def test_learn_from_the_newest_images_equals_a_pool_of_them():
    newest, limited = (
        run(**settings)[2] for settings in ({"learn_from": "newest"}, {"pool_limit": 12})
    )
    for name, value in newest.student.state_dict().items():
        assert torch.equal(value, limited.student.state_dict()[name]), name
    assert (len(newest.pool), len(limited.pool)) == (24, 12)


@pytest.mark.parametrize(
    ("learn_from", "batches"), [("pool", 3 + 6), ("newest", 3 + 3), ("batch", 2)]
)
def test_learn_from_decides_how_many_steps_the_student_takes(learn_from, batches, monkeypatch):
    """Two epochs of three clients, a batch of four each."""
    seen = []

    def noted(pool, places, number):
        seen.append(places.tolist())
        return read_batch(pool, places, number)

    monkeypatch.setattr("attar.methods.fedmitr.method.read_batch", noted)
    run(learn_from=learn_from)
    assert len(seen) == batches
    last = {place for places in seen[-3:] for place in places}
    if learn_from == "newest":
        assert last == set(range(12, 24))
