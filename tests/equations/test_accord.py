"""Every factor of accord's teacher, on numbers worked out by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attar.blocks.ensemble import (
    Ensemble,
    Familiarity,
    Spread,
    Teachers,
    build_mixture,
    combine,
    even_shares,
    gate_from,
    guessed_counts,
    shares_of,
    told_counts,
)
from attar.blocks.ensemble.familiarity import familiarity_gate
from attar.blocks.ensemble.hooks import spread_gap
from attar.blocks.ensemble.rules import accord_of
from attar.blocks.ensemble.shares import belief, evidence
from attar.blocks.images import Pool
from attar.blocks.student import (
    GuidedState,
    blank_guidance,
    client_guidance,
    follow,
    guidance,
    open_classroom,
    pixel_losses,
)
from attar.core import Mixture, ModelSpec
from attar.errors import SettingsError
from attar.fusion import fuse, server_for
from attar.methods import METHODS
from attar.methods.accord.teacher import blend, sketch_batches, sketch_phase, with_labels
from attar.nets.statistics import FeatureStatistics, shared_signs
from attar.seeds import generator
from attar.testing import (
    CLASSES,
    SHAPE,
    SMALL_DECODERS,
    World,
    tiny_decoder,
    tiny_statistics,
    tiny_upload,
)
from attar.testing.contract import _bits, _check_repeats, _check_resumes

ALL = torch.ones(2, 2, dtype=torch.bool)


# --- shares ---------------------------------------------------------------------------------------


def test_evidence_is_the_root_of_images_times_the_share_of_others():
    """n = (30, 10) of 40: 30 * (1 - 3/4) = 7.5, 10 * (1 - 1/4) = 7.5. A client of one class (50,
    0): 50 * (1 - 1) = 0.
    """
    found = evidence(torch.tensor([[30.0, 10.0], [50.0, 0.0]]))
    assert torch.allclose(found, torch.tensor([[7.5, 7.5], [0.0, 0.0]]).sqrt())


def test_guessed_counts_share_a_clients_images_out_by_its_guidance():
    """n = 80, u = (3, 1): 80 * 3/4 = 60 and 20. A client that guides nowhere has none."""
    found = guessed_counts(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([[80.0], [7.0]]))
    assert torch.allclose(found, torch.tensor([[60.0, 20.0], [0.0, 0.0]]))


def test_who_answers_one_class_to_everything_is_guessed_to_hold_that_class_and_has_little_evidence():
    """Losses from 0 to 0 for class 0 and from 4 to 2 for class 1, floor 0.1: u = (4 / 0.1, 2 /
    2) = (40, 1); of 82 images 80 and 2.

    Each class's own highest loss would give (0, 1), all 82 images for the class that it does not
    hold.
    """
    losses = torch.tensor([[0.0, 4.0], [0.0, 2.0]])
    found = guessed_counts(client_guidance(losses, 0.1)[None], torch.tensor([[82.0]]))
    assert torch.allclose(found, torch.tensor([[80.0, 2.0]]))
    assert torch.allclose(evidence(found), torch.tensor([[80 * 2 / 82, 2 * 80 / 82]]).sqrt())


def test_shares_are_normalised_over_clients():
    """(2, 2) and (18, 18) have evidence sqrt(2 / 2) = 1 and sqrt(18 / 2) = 3 -> 1/4, 3/4. Who
    does not know a class has no share of it.

    (0, 4) and (0, 1) have none: by sqrt(n) class 1 goes 2 : 1, and class 0, which nobody holds,
    to both.
    """
    counts = torch.tensor([[2.0, 2.0], [18.0, 18.0]])
    assert torch.allclose(shares_of(counts, ALL), torch.tensor([[0.25, 0.25], [0.75, 0.75]]))
    alone = shares_of(torch.tensor([[0.0, 4.0], [0.0, 1.0]]), ALL)
    assert torch.allclose(alone, torch.tensor([[0.5, 2 / 3], [0.5, 1 / 3]]))
    known = torch.tensor([[True, True], [True, False]])
    assert shares_of(counts, known).tolist() == [[0.25, 1.0], [0.75, 0.0]]
    assert shares_of(torch.zeros(2, 2), known).tolist() == [[0.5, 1.0], [0.5, 0.0]]
    assert even_shares(known).tolist() == [[0.5, 1.0], [0.5, 0.0]]


def test_clients_of_a_single_class_each_keep_theirs():
    """(5, 0) and (0, 7): no evidence anywhere, and still it is known who holds what."""
    counts = torch.tensor([[5.0, 0.0], [0.0, 7.0]])
    assert shares_of(counts, ALL).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_who_saw_hardly_anything_else_is_believed_no_more_than_the_class_is_frequent():
    """Class 0: 60 images at somebody who has nothing else, of 100 in all: P = 0.6, e = 0, b =
    0.6. Class 1: P = 0.2, e = sqrt(20 / 2): b = 0.2 + 0.8 * sqrt(10) / 10. Class 3: nobody holds
    it, b = 1. From an evidence of 10 on nothing is taken off: two clients with 50 of 100 images
    each, e = sqrt(50 / 2) = 5 and 5, where one alone has b = 0.5 + 0.5 * 5 / 10. Times the
    shares where there is doubt.
    """
    counts = torch.tensor([[60.0, 0.0, 0.0, 0.0], [0.0, 20.0, 20.0, 0.0]])
    believed = torch.tensor([0.6, 0.2 + 0.8 * 10**0.5 / 10, 0.2 + 0.8 * 10**0.5 / 10, 1.0])
    assert torch.allclose(belief(counts), believed)
    known = torch.ones(2, 4, dtype=torch.bool)
    assert torch.allclose(shares_of(counts, known, doubt=True), shares_of(counts, known) * believed)
    assert belief(torch.full((2, 2), 50.0)).tolist() == [1.0, 1.0]
    assert belief(torch.full((1, 2), 50.0)).tolist() == [0.75, 0.75]


def test_told_counts_stand_in_the_tasks_order_and_say_who_withheld_them():
    uploads = [
        tiny_upload("a", classes=("cat", "dog")),
        tiny_upload("b", classes=("dog", "bird"), counts=False),
    ]
    counts, told = told_counts(uploads, ("bird", "cat", "dog"))
    assert told.tolist() == [True, False]
    assert counts.tolist() == [[0, *uploads[0].label_counts], [0, 0, 0]]


def test_pixel_losses_are_of_images_that_move_towards_each_class():
    """A teacher whose logit 0 is the mean pixel: towards class 0 all pixels grow by lr a step,
    from the same noise.
    """

    def teacher(images):
        return torch.stack([images.mean((1, 2, 3)), torch.zeros(len(images))], 1)

    losses = pixel_losses(teacher, torch.tensor([0, 1]), (1, 2, 2), 3, steps=3, lr=0.05, images=2)
    assert losses.shape == (3, 2)
    assert (losses[1:] < losses[:-1]).all()
    start = torch.rand(2, 1, 2, 2, generator=generator(3, "pixels")).mean((1, 2, 3))
    assert torch.allclose(
        losses[0],
        torch.stack([nn.functional.softplus(-start).mean(), nn.functional.softplus(start).mean()]),
    )
    u = guidance(losses, 1e-4)
    assert torch.allclose(u, (losses[0] - losses[2]) / losses[2])


# --- familiarity ----------------------------------------------------------------------------------


def statistics_by_hand(*, clip=0.0):
    """Means (0, 0) and (4, 0), covariance diag(4, 1), own distances 1 on average with spread
    0.5: W = diag(1/2, 1).
    """
    net = FeatureStatistics(3, 2, 0, clip)
    net.means.copy_(torch.tensor([[0.0, 0.0], [4.0, 0.0], [9.0, 9.0]]))
    net.held.copy_(torch.tensor([True, True, False]))
    net.whitening.copy_(torch.tensor([0.5, 0.0, 1.0]))
    net.own_mean.fill_(1.0)
    net.own_spread.fill_(0.5)
    return net


def test_distance_and_score_by_hand():
    """(2, 1): to (0, 0) sqrt(1 + 1), to (4, 0) the same: d = 1.4142, z = (d - 1) / 0.5. (9, 9)
    lies on a mean that is not held.
    """
    distance, score = statistics_by_hand()(torch.tensor([[2.0, 1.0], [4.0, 0.0], [9.0, 9.0]]))
    assert distance.tolist() == pytest.approx([math.sqrt(2), 0.0, math.sqrt(2.5**2 + 81)], abs=1e-5)
    assert score.tolist() == pytest.approx(
        [(math.sqrt(2) - 1) / 0.5, -2.0, (math.sqrt(87.25) - 1) / 0.5], abs=1e-4
    )


def test_clipped_features_have_at_most_that_length():
    """(3, 4) has length 5 and is cut to (0.6, 0.8); (0.3, 0.4) stays."""
    found = statistics_by_hand(clip=1.0).project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_signs_are_the_same_everywhere_and_keep_lengths_on_average():
    signs = shared_signs(300, 64)
    assert (signs.abs() == 1 / 8).all()
    assert (signs[:2, :6] * 8).tolist() == [
        [1, 1, -1, -1, 1, 1],
        [1, 1, -1, -1, 1, -1],
    ]  # of SHAKE-256, on any machine
    vectors = torch.randn(200, 300, generator=torch.Generator().manual_seed(0))
    assert ((vectors @ signs).norm(dim=1) / vectors.norm(dim=1)).mean() == pytest.approx(
        1.0, abs=0.03
    )


def test_gate_by_hand():
    """b = 1, z = (0, ln 3): exp(0) : exp(-ln 3) = 3/4 : 1/4; b = 0 makes no difference."""
    scores = torch.tensor([[0.0], [math.log(3)]])
    assert torch.allclose(familiarity_gate(scores, 1.0), torch.tensor([[0.75], [0.25]]))
    assert torch.allclose(familiarity_gate(scores, 0.0), torch.tensor([[0.5], [0.5]]))


def test_teachers_with_statistics_equal_each_net_alone():
    """Two architectures, one client without statistics, one with fewer classes: stacked scores
    are those of each net by itself.
    """
    uploads = [
        tiny_statistics(tiny_upload("a", "lenet5")),
        tiny_upload("b", "lenet5"),
        tiny_statistics(tiny_upload("c", "mlp:hidden=8,layers=1")),
        tiny_statistics(tiny_upload("d", "lenet5")),
        tiny_statistics(tiny_upload("e", "lenet5", CLASSES[:2])),
    ]
    teachers = Teachers([u.parts["classifier"] for u in uploads], CLASSES)
    told = [u.parts.get("statistics") for u in uploads]
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    logits, scores = Familiarity(teachers, told)(images)
    assert torch.allclose(logits, teachers(images))
    alone = []
    for upload in uploads:
        if "statistics" in upload.parts:
            part = upload.parts["classifier"]
            alone.append(
                upload.parts["statistics"].build()(part.build().features(part.preprocess(images)))[
                    1
                ]
            )
    assert torch.allclose(scores[[0, 2, 3, 4]], torch.stack(alone), atol=1e-4)
    assert torch.allclose(scores[1], torch.stack(alone).mean(0), atol=1e-4)
    in_turns = Familiarity(
        Teachers([u.parts["classifier"] for u in uploads], CLASSES, memory=1), told
    )(images)
    assert torch.allclose(in_turns[1], scores, atol=1e-4)


def test_spread_gap_by_hand():
    """Running variances 1 and 4. Maps (0, 2) vary by 1, (0, 4) by 4: no gap, cut off at 1e-6.
    Maps (0, 4) and (0, 0) vary by 4 and 0: the mean of |4 - 1| / 1 = 3 and |0 - 4| / 4 = 1 is 2.
    """
    layer = nn.BatchNorm2d(2, eps=0.0)
    layer.running_var.copy_(torch.tensor([1.0, 4.0]))
    maps = torch.tensor([[[[0.0, 2.0]], [[0.0, 4.0]]], [[[0.0, 4.0]], [[0.0, 0.0]]]])
    assert spread_gap(layer, maps).tolist() == pytest.approx([math.log(1e-6), math.log(2.0)])


def test_without_statistics_batchnorm_tells_who_is_familiar():
    """Each score is the mean over the net's BatchNorm layers, found with hooks of our own; who
    has none hears the others' mean.
    """
    uploads = [
        tiny_upload(name, arch)
        for name, arch in (("a", "resnet20"), ("b", "lenet5"), ("c", "resnet20"))
    ]
    teachers = Teachers([u.parts["classifier"] for u in uploads], CLASSES)
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    gate = gate_from(teachers, [None] * 3)
    assert isinstance(gate, Spread)
    logits, scores = gate(images)
    assert torch.allclose(logits, teachers(images), atol=1e-5)
    alone = []
    for upload in (uploads[0], uploads[2]):
        net, seen = upload.parts["classifier"].build().eval(), list[torch.Tensor]()
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_pre_hook(
                    lambda layer, inputs, seen=seen: seen.append(spread_gap(layer, inputs[0]))
                )
        net(upload.parts["classifier"].preprocess(images))
        assert len(seen) == 19
        alone.append(torch.stack(seen).mean(0))
    assert torch.allclose(scores[[0, 2]], torch.stack(alone), atol=1e-4)
    assert torch.allclose(scores[1], torch.stack(alone).mean(0), atol=1e-4)
    in_turns = gate_from(Teachers([u.parts["classifier"] for u in uploads], CLASSES, memory=1), ())
    assert torch.allclose(in_turns(images)[1], scores, atol=1e-4)


def test_the_gate_of_batchnorm_is_deployed_said_and_left_out_on_request():
    uploads = [tiny_upload(name, "resnet20") for name in "ab"]
    student = server_for(uploads, student=ModelSpec.parse("mlp:hidden=8,layers=1"))
    fused = fuse(uploads, METHODS["accord"](**SMALL), student)
    teacher = fused.result.models["teacher"]
    assert teacher.familiarity == 1.0
    assert fused.result.remarks[1] == "Familiarity gate: from BatchNorm of 2 of 2 clients."
    without = fuse(uploads, METHODS["accord"](**SMALL, spread=0.0), student).result
    assert without.remarks[1] == "Familiarity gate: none."
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert isinstance(Ensemble(teacher).familiar, Spread)
    assert Ensemble(without.models["teacher"]).familiar is None
    assert not torch.allclose(
        Ensemble(teacher)(images), Ensemble(without.models["teacher"])(images)
    )
    assert torch.allclose(
        Ensemble(build_mixture("accord", uploads, CLASSES))(images),
        Ensemble(teacher)(images),
        atol=1e-5,
    )


# --- the teacher ----------------------------------------------------------------------------------


def test_the_mixture_by_hand():
    """Two clients, two classes, one image, t = 2, b = 1.

    f_1 = (2 ln 3, 0): softmax(f/2) = (3/4, 1/4); f_2 = (0, 2 ln 4): (1/5, 4/5). s = ((1/2, 1/4),
    (1/2, 3/4)). z = (0, ln 3): gates 3/4, 1/4. Class 0: 1/2 3/4 3/4 + 1/2 1/4 1/5 = 0.30625;
    class 1: 1/4 3/4 1/4 + 3/4 1/4 4/5 = 0.196875; p = (0.608696, 0.391304).
    """
    logits = torch.tensor([[[2 * math.log(3), 0.0]], [[0.0, 2 * math.log(4)]]])
    shares, scores = torch.tensor([[0.5, 0.25], [0.5, 0.75]]), torch.tensor([[0.0], [math.log(3)]])
    found = accord_of(logits, scores, ALL, shares, 1.0, 2.0).exp()
    assert torch.allclose(found, torch.tensor([[0.608696, 0.391304]]), atol=1e-6)


def world(*, statistics=True, counts=True):
    nets = ("lenet5", "mlp:hidden=8,layers=1", "lenet5")
    uploads = [tiny_upload(f"c{k}", net, counts=counts) for k, net in enumerate(nets)]
    return [tiny_statistics(upload) if statistics else upload for upload in uploads]


IMAGES = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(2))


def teacher_of(uploads, **changed):
    settings = {
        "use": "all",
        "how": "sent",
        "familiarity": 0.25,
        "spread": 0.0,
        "temperature": 1.5,
        **changed,
    }
    room = open_classroom(uploads, server_for(uploads))
    return blend(room, **settings), GuidedState(blank_guidance(room))


def test_one_that_answers_its_only_class_to_everything_does_not_outvote_the_others():
    """It holds the class alone, a share of 1, and is certain: 1 for every image, where two
    others are torn between two classes each. Believed as often as the class comes (600 of
    12,600), it says 0.05. With statistics the gate has the word instead.
    """
    part = tiny_upload("a").parts["classifier"]
    state = {name: torch.zeros_like(value) for name, value in part.state.items()}
    state["head.bias"][0] = 50.0
    sure = replace(
        tiny_upload("a"), parts={"classifier": replace(part, state=state)}, label_counts=(600, 0, 0)
    )
    torn = [replace(tiny_upload(name), label_counts=(0, 3000, 3000)) for name in "bc"]
    teacher, guided = teacher_of([sure, *torn], use="counts")
    deployed = Ensemble(build_mixture("accord", [sure, *torn], CLASSES))
    for answers in (teacher.answer(IMAGES, guided), deployed(IMAGES)):
        assert not (answers.argmax(1) == 0).any()
    shares = teacher.shares(guided)
    assert torch.allclose(
        shares, torch.tensor([[600 / 12_600, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    )
    assert torch.equal(deployed.mixture.weights, shares)
    telling = [sure, *map(tiny_statistics, torn)]
    gated, guided = teacher_of(telling)
    assert gated.shares(guided)[0].tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(build_mixture("accord", telling, CLASSES).weights, gated.shares(guided))


def test_without_any_ingredient_the_teacher_is_the_mean_of_probabilities():
    uploads = [tiny_upload("a", classes=CLASSES[:2]), tiny_upload("b"), tiny_upload("c", "lenet5")]
    teacher, state = teacher_of(uploads, use="models", how="even", familiarity=0.0, temperature=1.0)
    plain = Ensemble(build_mixture("mean-probabilities", uploads, teacher.room.server.task.classes))
    assert torch.allclose(teacher.answer(IMAGES, state), plain(IMAGES), atol=1e-6)


@given(st.permutations(range(3)))
def test_the_order_of_clients_does_not_matter(order):
    uploads = world()
    (teacher, state), (other, again) = teacher_of(uploads), teacher_of([uploads[k] for k in order])
    assert torch.allclose(teacher.answer(IMAGES, state), other.answer(IMAGES, again), atol=1e-5)


@pytest.mark.parametrize("use", ["models", "counts", "statistics", "all"])
def test_what_may_not_be_used_changes_nothing(use):
    full, bare = (
        world(),
        world(statistics=use in ("statistics", "all"), counts=use in ("counts", "all")),
    )
    for uploads in (full, bare):
        teacher, state = teacher_of(uploads, use=use)
        state.guidance += torch.arange(9.0).view(3, 3)
        answers = teacher.answer(IMAGES, state)
        if uploads is full:
            first = answers
    assert torch.equal(first, answers)
    assert teacher.guesses == (use in ("models", "statistics"))
    assert (teacher.familiar is not None) == (use in ("statistics", "all"))


def test_every_ingredient_changes_the_answer_and_is_reported():
    uploads = world()
    answers, told = [], []
    for changed in (
        {},
        {"how": "even"},
        {"familiarity": 0.0},
        {"temperature": 1.0},
        {"how": "guessed"},
    ):
        teacher, state = teacher_of(uploads, **changed)
        state.guidance += torch.arange(9.0).view(3, 3)
        answers.append(teacher.answer(IMAGES, state))
        told.append(teacher.ingredients())
    assert all(not torch.allclose(answers[0], other, atol=1e-4) for other in answers[1:])
    assert "label counts of 3 of 3" in told[0][0]
    assert "statistics of 3 of 3" in told[0][1]
    assert "same for everybody" in told[1][0]
    assert told[2][1] == "Familiarity gate: none."
    assert "guessed by inversion for 3 of 3" in told[4][0]


def test_who_withheld_counts_is_guessed_and_the_others_are_believed():
    uploads = world()
    uploads[1] = replace(uploads[1], label_counts=None)
    teacher, state = teacher_of(uploads)
    state.guidance += torch.tensor([[9.0, 9.0, 9.0], [2.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
    counts = torch.tensor([[float(n) for n in u.label_counts or (0, 0, 0)] for u in uploads])
    counts[1] = uploads[1].num_examples * torch.tensor([0.5, 0.25, 0.25])
    strength = evidence(counts)
    assert torch.allclose(teacher.shares(state), strength / strength.sum(0))


def test_the_deployable_teacher_answers_alike():
    teacher, state = teacher_of(world())
    model = teacher.deployable(state)
    assert isinstance(model, Mixture)
    assert torch.allclose(Ensemble(model)(IMAGES), teacher.answer(IMAGES, state), atol=1e-6)
    assert torch.allclose(
        Ensemble(build_mixture("accord", world(), model.classes))(IMAGES),
        Ensemble(model)(IMAGES),
        atol=1e-6,
    )


def test_a_drawn_image_is_half_its_label():
    """p = (0.6, 0.4), y = 1: (0.3, 0.7). Where nobody knows y the label is all."""
    answers, known = torch.tensor([[0.6, 0.4]]).log(), torch.ones(1, 2, dtype=torch.bool)
    assert torch.allclose(
        with_labels(answers, torch.tensor([1]), known).exp(), torch.tensor([[0.3, 0.7]])
    )
    known[0, 1] = False
    assert torch.allclose(
        with_labels(answers, torch.tensor([1]), known).exp(), torch.tensor([[0.0, 1.0]]), atol=1e-6
    )


def test_the_sum_of_probabilities_keeps_the_weights_as_they_are():
    """w = ((1, 0.1), (1, 0.1)), p_1 = p_2 = (1/2, 1/2): p = (10/11, 1/11), where the mean would
    divide the weights out.
    """
    logits, weights = torch.zeros(2, 1, 2), torch.tensor([[1.0, 0.1], [1.0, 0.1]])
    assert torch.allclose(
        combine("accord", logits, ALL, weights).exp(), torch.tensor([[10 / 11, 1 / 11]])
    )
    assert torch.allclose(
        combine("probabilities", logits, ALL, weights).exp(), torch.tensor([[0.5, 0.5]])
    )


# --- the method -----------------------------------------------------------------------------------

SMALL = {
    "epochs": 2,
    "generator_steps": 2,
    "batch_size": 8,
    "noise": 8,
    "generator_width": 4,
    "sketches": 40,
    "sketches_of_epoch": 16,
}


def test_sketches_are_drawn_so_that_every_class_comes_up_equally_often():
    """First choices 0 (30 times), 1 (6) and 2 (once): as many 0s as 1s; a 2 is repeated ten
    times as often as each 0 at most.
    """
    pool = Pool((1, 4, 4), 37, "cpu", notes={"answers": torch.zeros(3)})
    labels = torch.tensor([0] * 30 + [1] * 6 + [2])
    pool.add(torch.rand(37, 1, 4, 4), labels, answers=torch.eye(3)[labels])
    state = SimpleNamespace(sketched=pool, draws=torch.Generator().manual_seed(0))
    found = [answers.argmax(1) for _, answers in sketch_batches(state, 20_000, 64)]
    assert [len(batch) for batch in found][:-1] == [64] * (20_000 // 64)
    shares = torch.bincount(torch.cat(found)) / 20_000  # 30 : 30 : 10 of 70
    assert torch.allclose(shares, torch.tensor([3 / 7, 3 / 7, 1 / 7]), atol=0.015)


def test_sketches_are_answered_by_the_teacher_and_learned():
    teacher, _ = teacher_of(world())
    method = METHODS["accord"](sketches=503, batch_size=100)
    context = method.prepare(world(), teacher.room.server)
    state, phase = method.start(context), sketch_phase(teacher, method)
    assert phase.steps == 2
    for state.step in range(phase.steps):
        phase.step(state)
    places = torch.arange(len(state.sketched))
    assert len(places) == 503
    images = state.sketched.images(places)
    assert torch.allclose(
        state.sketched.notes("answers", places), teacher.answer(images, state), atol=1e-5
    )
    with_them, without = (
        fuse(world(), METHODS["accord"](**{**SMALL, "sketches": number})).result.models["student"]
        for number in (40, 0)
    )
    assert any(
        not torch.equal(with_them.state[name], without.state[name]) for name in with_them.state
    )


def test_without_a_generator_sketches_alone_teach():
    fused = fuse(world(), METHODS["accord"](**{**SMALL, "generator_steps": 0}))
    assert set(fused.result.images) == {"sketches"}
    fresh = METHODS["accord"](**{**SMALL, "epochs": 0})
    assert _bits(fused.result.models)[:4] != _bits(fuse(world(), fresh).result.models)[:4]
    with pytest.raises(SettingsError, match="sketches"):
        METHODS["accord"](generator_steps=0, sketches=0)
    with pytest.raises(SettingsError, match=r"averaging = 1\.5"):
        METHODS["accord"](averaging=1.5)


def test_the_mean_of_the_weights_by_hand():
    """d = min(0.5, n / (n + 10)); weights 1, 2 after steps 1, 2 from a mean of 0: 10/11, then
    1/6 of that and 5/6 of 2.
    """
    net = nn.BatchNorm1d(1)
    mean = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    for steps, expected in ((1, 10 / 11), (2, 10 / 66 + 10 / 6)):
        nn.init.constant_(net.weight, float(steps))
        net.num_batches_tracked.fill_(steps)
        follow(mean, net, 0.5, steps)
        assert mean["weight"].item() == pytest.approx(expected)
    assert mean["num_batches_tracked"] == 2
    before = mean["weight"].item()
    follow(mean, net, 0.5, 1000)
    assert mean["weight"].item() == pytest.approx((before + 2) / 2)
    follow(mean, net, 0.0, 1001)
    assert mean["weight"].item() == 2


def test_the_mean_is_what_is_delivered():
    """Without averaging it is the student's last weights."""
    uploads = tuple(world())
    server = server_for(uploads, student=ModelSpec.parse("mlp:hidden=8,layers=1"))
    for averaging in (0.0, 0.98):
        method = METHODS["accord"](**SMALL, averaging=averaging)
        context = method.prepare(uploads, server)
        state = method.start(context)
        for phase in method.phases(context):
            for state.step in range(phase.steps):
                phase.step(state)
        delivered, last = (
            method.result(context, state).models["student"].state,
            state.student.state_dict(),
        )
        assert all(torch.equal(delivered[name], last[name]) for name in last) == (averaging == 0)
        assert all(torch.equal(delivered[name], state.mean[name]) for name in last)


def test_decoders_join_the_pool_and_teach_a_class_that_no_classifier_knows():
    uploads = [
        tiny_upload("a", classes=("cat", "dog")),
        tiny_decoder("b", SMALL_DECODERS[0], ("dog", "bird")),
    ]
    fused = fuse(uploads, METHODS["accord"](**SMALL, drawn=10))
    assert fused.model.classes == ("cat", "dog", "bird")
    assert "teacher" not in fused.result.models
    covered = fuse(
        [tiny_upload("c"), tiny_decoder("b", SMALL_DECODERS[0])],
        METHODS["accord"](**SMALL, drawn=10),
    )
    assert set(covered.result.models) == {"student", "teacher"}


def test_a_run_with_statistics_resumes_and_repeats():
    uploads = tuple(world(counts=False))
    there = World(uploads, server_for(uploads, student=ModelSpec.parse("mlp:hidden=8,layers=1")))
    method = METHODS["accord"](**SMALL, guess_steps=2)
    straight = _bits(fuse(there.uploads, method, there.server).result.models)
    _check_repeats(method, there, straight)
    _check_resumes(method, there, straight)
    other = replace(there, uploads=tuple(world(counts=False, statistics=False)))
    assert _bits(fuse(other.uploads, method, there.server).result.models)[:4] != straight[:4]
