"""Every factor of accord's teacher, on numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attar.blocks.ensemble import (
    Ensemble,
    Teachers,
    build_mixture,
    combine,
    even_shares,
    evidence_shares,
    sent_counts,
)
from attar.blocks.ensemble.gates import (
    BatchNormGap,
    FeatureDistance,
    GatedTeachers,
    evidence,
    gate_weights,
    gated_probabilities,
    reliability,
)
from attar.blocks.ensemble.hooks import variance_gap
from attar.blocks.images import Pool
from attar.blocks.student import (
    adversarial,
    blank_guidance,
    client_guidance,
    follow,
    guidance,
    hard_sample,
    pixel_losses,
    prepare_context,
)
from attar.core import Gate, Mixture, ModelSpec
from attar.errors import SettingsError
from attar.fusion import fuse, server_for
from attar.methods import METHODS
from attar.methods.accord.phases import sketch_batches, sketch_phase
from attar.methods.accord.teacher import (
    TeacherSettings,
    build_teacher,
    guess_counts,
    mix_with_labels,
)
from attar.nets.statistics import FeatureStatistics, shared_signs
from attar.seeds import rng
from attar.testing import (
    CLASSES,
    SHAPE,
    SMALL_DECODERS,
    World,
    check_repeats,
    check_resumes,
    model_bits,
    tiny_decoder,
    tiny_statistics,
    tiny_upload,
)

ALL = torch.ones(2, 2, dtype=torch.bool)


# --- shares ---------------------------------------------------------------------------------------


def test_evidence_by_hand():
    """n = (30, 10) of 40: 30 * (1 - 3/4) = 7.5, 10 * (1 - 1/4) = 7.5. A client of one class (50,
    0): 50 * (1 - 1) = 0.
    """
    found = evidence(torch.tensor([[30.0, 10.0], [50.0, 0.0]]))
    assert torch.allclose(found, torch.tensor([[7.5, 7.5], [0.0, 0.0]]).sqrt())


def test_guess_counts_by_hand():
    """n = 80, u = (3, 1): 80 * 3/4 = 60 and 20. A client that guides nowhere has none."""
    found = guess_counts(torch.tensor([[3.0, 1.0], [0.0, 0.0]]), torch.tensor([[80.0], [7.0]]))
    assert torch.allclose(found, torch.tensor([[60.0, 20.0], [0.0, 0.0]]))


def test_guess_counts_of_a_client_with_one_class():
    """Losses from 0 to 0 for class 0 and from 4 to 2 for class 1, floor 0.1: u = (4 / 0.1, 2 /
    2) = (40, 1); of 82 images 80 and 2.

    Each class's own highest loss would give (0, 1), all 82 images for the class that it does not
    hold.
    """
    losses = torch.tensor([[0.0, 4.0], [0.0, 2.0]])
    found = guess_counts(client_guidance(losses, 0.1)[None], torch.tensor([[82.0]]))
    assert torch.allclose(found, torch.tensor([[80.0, 2.0]]))
    assert torch.allclose(evidence(found), torch.tensor([[80 * 2 / 82, 2 * 80 / 82]]).sqrt())


def test_evidence_shares_are_normalised_over_clients():
    """(2, 2) and (18, 18) have evidence sqrt(2 / 2) = 1 and sqrt(18 / 2) = 3 -> 1/4, 3/4. Who
    does not know a class has no share of it.

    (0, 4) and (0, 1) have none: by sqrt(n) class 1 goes 2 : 1, and class 0, which nobody holds,
    to both.
    """
    counts = torch.tensor([[2.0, 2.0], [18.0, 18.0]])
    assert torch.allclose(
        evidence_shares(counts, ALL, gated=True), torch.tensor([[0.25, 0.25], [0.75, 0.75]])
    )
    alone = evidence_shares(torch.tensor([[0.0, 4.0], [0.0, 1.0]]), ALL, gated=True)
    assert torch.allclose(alone, torch.tensor([[0.5, 2 / 3], [0.5, 1 / 3]]))
    known = torch.tensor([[True, True], [True, False]])
    assert evidence_shares(counts, known, gated=True).tolist() == [[0.25, 1.0], [0.75, 0.0]]
    assert evidence_shares(torch.zeros(2, 2), known, gated=True).tolist() == [
        [0.5, 1.0],
        [0.5, 0.0],
    ]
    assert even_shares(known).tolist() == [[0.5, 1.0], [0.5, 0.0]]


def test_evidence_shares_of_clients_with_one_class_each():
    """(5, 0) and (0, 7): no evidence anywhere, and still it is known who holds what."""
    counts = torch.tensor([[5.0, 0.0], [0.0, 7.0]])
    assert evidence_shares(counts, ALL, gated=True).tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_reliability_by_hand():
    """Class 0: 60 images at somebody who has nothing else, of 100 in all: P = 0.6, e = 0, b =
    0.6. Class 1: P = 0.2, e = sqrt(20 / 2): b = 0.2 + 0.8 * sqrt(10) / 10. Class 3: nobody holds
    it, b = 1. From an evidence of 10 on nothing is taken off: two clients with 50 of 100 images
    each, e = sqrt(50 / 2) = 5 and 5, where one alone has b = 0.5 + 0.5 * 5 / 10. Times the
    shares where there is doubt.
    """
    counts = torch.tensor([[60.0, 0.0, 0.0, 0.0], [0.0, 20.0, 20.0, 0.0]])
    expected = torch.tensor([0.6, 0.2 + 0.8 * 10**0.5 / 10, 0.2 + 0.8 * 10**0.5 / 10, 1.0])
    assert torch.allclose(reliability(counts), expected)
    known = torch.ones(2, 4, dtype=torch.bool)
    assert torch.allclose(
        evidence_shares(counts, known, gated=False),
        evidence_shares(counts, known, gated=True) * expected,
    )
    assert reliability(torch.full((2, 2), 50.0)).tolist() == [1.0, 1.0]
    assert reliability(torch.full((1, 2), 50.0)).tolist() == [0.75, 0.75]


def test_sent_counts_are_in_the_order_of_the_task():
    uploads = [
        tiny_upload("a", classes=("cat", "dog")),
        tiny_upload("b", classes=("dog", "bird"), counts=False),
    ]
    counts, sent = sent_counts(uploads, ("bird", "cat", "dog"))
    assert sent.tolist() == [True, False]
    assert counts.tolist() == [[0, *uploads[0].label_counts], [0, 0, 0]]


def test_pixel_losses_fall_for_each_class():
    """A teacher whose logit 0 is the mean pixel: towards class 0 all pixels grow by lr a step,
    from the same noise.
    """

    def teacher(images):
        return torch.stack([images.mean((1, 2, 3)), torch.zeros(len(images))], 1)

    losses = pixel_losses(teacher, torch.tensor([0, 1]), (1, 2, 2), 3, steps=3, lr=0.05, images=2)
    assert losses.shape == (3, 2)
    assert (losses[1:] < losses[:-1]).all()
    start = torch.rand(2, 1, 2, 2, generator=rng(3, "pixels")).mean((1, 2, 3))
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


def test_feature_statistics_by_hand():
    """(2, 1): to (0, 0) sqrt(1 + 1), to (4, 0) the same: d = 1.4142, z = (d - 1) / 0.5. (9, 9)
    lies on a mean that is not held.
    """
    distance, score = statistics_by_hand()(torch.tensor([[2.0, 1.0], [4.0, 0.0], [9.0, 9.0]]))
    assert distance.tolist() == pytest.approx([math.sqrt(2), 0.0, math.sqrt(2.5**2 + 81)], abs=1e-5)
    assert score.tolist() == pytest.approx(
        [(math.sqrt(2) - 1) / 0.5, -2.0, (math.sqrt(87.25) - 1) / 0.5], abs=1e-4
    )


def test_project_clips_features():
    """(3, 4) has length 5 and is cut to (0.6, 0.8); (0.3, 0.4) stays."""
    found = statistics_by_hand(clip=1.0).project(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
    assert torch.allclose(found, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_shared_signs_keep_lengths_on_average():
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


def test_gate_weights_by_hand():
    """b = 1, z = (0, ln 3): exp(0) : exp(-ln 3) = 3/4 : 1/4; b = 0 makes no difference."""
    scores = torch.tensor([[0.0], [math.log(3)]])
    assert torch.allclose(gate_weights(scores, 1.0), torch.tensor([[0.75], [0.25]]))
    assert torch.allclose(gate_weights(scores, 0.0), torch.tensor([[0.5], [0.5]]))


def test_feature_distance_equals_each_net_alone():
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
    statistics = [u.parts.get("statistics") for u in uploads]
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    logits, scores = FeatureDistance(teachers, statistics)(teachers, images)
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
    swapped = Teachers([u.parts["classifier"] for u in uploads], CLASSES, memory=1)
    in_turns = FeatureDistance(swapped, statistics)(swapped, images)
    assert torch.allclose(in_turns[1], scores, atol=1e-4)


def test_variance_gap_by_hand():
    """Running variances 1 and 4. Maps (0, 2) vary by 1, (0, 4) by 4: no gap, cut off at 1e-6.
    Maps (0, 4) and (0, 0) vary by 4 and 0: the mean of |4 - 1| / 1 = 3 and |0 - 4| / 4 = 1 is 2.
    """
    layer = nn.BatchNorm2d(2, eps=0.0)
    layer.running_var.copy_(torch.tensor([1.0, 4.0]))
    maps = torch.tensor([[[[0.0, 2.0]], [[0.0, 4.0]]], [[[0.0, 4.0]], [[0.0, 0.0]]]])
    assert variance_gap(layer, maps).tolist() == pytest.approx([math.log(1e-6), math.log(2.0)])


def test_batchnorm_gap_equals_each_net_alone():
    """Each score is the mean over the net's BatchNorm layers, found with hooks of our own; who
    has none hears the others' mean.
    """
    uploads = [
        tiny_upload(name, arch)
        for name, arch in (("a", "resnet20"), ("b", "lenet5"), ("c", "resnet20"))
    ]
    teachers = Teachers([u.parts["classifier"] for u in uploads], CLASSES)
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    scorer = GatedTeachers(teachers, Gate((None,) * 3, sharpness=1.0)).scorer
    assert isinstance(scorer, BatchNormGap)
    logits, scores = scorer(teachers, images)
    assert torch.allclose(logits, teachers(images), atol=1e-5)
    alone = []
    for upload in (uploads[0], uploads[2]):
        net, seen = upload.parts["classifier"].build().eval(), list[torch.Tensor]()
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_pre_hook(
                    lambda layer, inputs, seen=seen: seen.append(variance_gap(layer, inputs[0]))
                )
        net(upload.parts["classifier"].preprocess(images))
        assert len(seen) == 19
        alone.append(torch.stack(seen).mean(0))
    assert torch.allclose(scores[[0, 2]], torch.stack(alone), atol=1e-4)
    assert torch.allclose(scores[1], torch.stack(alone).mean(0), atol=1e-4)
    swapped = Teachers([u.parts["classifier"] for u in uploads], CLASSES, memory=1)
    assert torch.allclose(BatchNormGap(swapped)(swapped, images)[1], scores, atol=1e-4)


def test_fuse_deploys_the_gate_of_batchnorm():
    uploads = [tiny_upload(name, "resnet20") for name in "ab"]
    student = server_for(uploads, student=ModelSpec.parse("mlp:hidden=8,layers=1"))
    fused = fuse(uploads, METHODS["accord"](**SMALL), student)
    teacher = fused.result.models["teacher"]
    assert teacher.gate == Gate((), 1.0, 1.5)
    assert fused.result.remarks[1] == "Familiarity gate: from BatchNorm of 2 of 2 clients."
    without = fuse(uploads, METHODS["accord"](**SMALL, spread=0.0), student).result
    assert without.remarks[1] == "Familiarity gate: none."
    images = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(1))
    assert isinstance(Ensemble(teacher).gated.scorer, BatchNormGap)
    assert Ensemble(without.models["teacher"]).gated.scorer is None
    assert not torch.allclose(
        Ensemble(teacher)(images), Ensemble(without.models["teacher"])(images)
    )
    assert torch.allclose(
        Ensemble(build_mixture("accord", uploads, CLASSES))(images),
        Ensemble(teacher)(images),
        atol=1e-5,
    )


# --- the teacher ----------------------------------------------------------------------------------


def test_gated_probabilities_by_hand():
    """Two clients, two classes, one image, t = 2, b = 1.

    f_1 = (2 ln 3, 0): softmax(f/2) = (3/4, 1/4); f_2 = (0, 2 ln 4): (1/5, 4/5). s = ((1/2, 1/4),
    (1/2, 3/4)). z = (0, ln 3): gates 3/4, 1/4. Class 0: 1/2 3/4 3/4 + 1/2 1/4 1/5 = 0.30625;
    class 1: 1/4 3/4 1/4 + 3/4 1/4 4/5 = 0.196875; p = (0.608696, 0.391304).
    """
    logits = torch.tensor([[[2 * math.log(3), 0.0]], [[0.0, 2 * math.log(4)]]])
    shares, scores = torch.tensor([[0.5, 0.25], [0.5, 0.75]]), torch.tensor([[0.0], [math.log(3)]])
    found = gated_probabilities(
        logits, scores, ALL, shares, Gate(sharpness=1.0, temperature=2.0)
    ).exp()
    assert torch.allclose(found, torch.tensor([[0.608696, 0.391304]]), atol=1e-6)


def world(*, statistics=True, counts=True):
    nets = ("lenet5", "mlp:hidden=8,layers=1", "lenet5")
    uploads = [tiny_upload(f"c{k}", net, counts=counts) for k, net in enumerate(nets)]
    return [tiny_statistics(upload) if statistics else upload for upload in uploads]


IMAGES = torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(2))


def teacher_of(uploads, **changed):
    """Accord's teacher, and guidance (K, C) before anything is guessed."""
    context = prepare_context(uploads, server_for(uploads))
    teacher = build_teacher(context, TeacherSettings(**{"spread": 0.0, **changed}))
    return teacher, blank_guidance(context)


def test_teacher_discounts_a_client_with_one_class():
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
    teacher, u = teacher_of([sure, *torn], use="counts")
    deployed = Ensemble(build_mixture("accord", [sure, *torn], CLASSES))
    for answers in (teacher.answer(IMAGES, u), deployed(IMAGES)):
        assert not (answers.argmax(1) == 0).any()
    shares = teacher.shares(u)
    assert torch.allclose(
        shares, torch.tensor([[600 / 12_600, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]])
    )
    assert torch.equal(deployed.mixture.weights, shares)
    telling = [sure, *map(tiny_statistics, torn)]
    gated, u = teacher_of(telling)
    assert gated.shares(u)[0].tolist() == [1.0, 0.0, 0.0]
    assert torch.equal(build_mixture("accord", telling, CLASSES).weights, gated.shares(u))


def test_teacher_without_factors_is_the_mean_of_probabilities():
    uploads = [tiny_upload("a", classes=CLASSES[:2]), tiny_upload("b"), tiny_upload("c", "lenet5")]
    teacher, u = teacher_of(uploads, use="models", shares="even", familiarity=0.0, temperature=1.0)
    plain = Ensemble(
        build_mixture("mean-probabilities", uploads, teacher.context.server.task.classes)
    )
    assert torch.allclose(teacher.answer(IMAGES, u), plain(IMAGES), atol=1e-6)


@given(st.permutations(range(3)))
def test_teacher_does_not_depend_on_the_order_of_clients(order):
    uploads = world()
    (teacher, u), (other, v) = teacher_of(uploads), teacher_of([uploads[k] for k in order])
    assert torch.allclose(teacher.answer(IMAGES, u), other.answer(IMAGES, v), atol=1e-5)


@pytest.mark.parametrize("use", ["models", "counts", "statistics", "all"])
def test_build_teacher_ignores_what_may_not_be_used(use):
    full, bare = (
        world(),
        world(statistics=use in ("statistics", "all"), counts=use in ("counts", "all")),
    )
    for uploads in (full, bare):
        teacher, u = teacher_of(uploads, use=use)
        u += torch.arange(9.0).view(3, 3)
        answers = teacher.answer(IMAGES, u)
        if uploads is full:
            first = answers
    assert torch.equal(first, answers)
    assert teacher.guesses == (use in ("models", "statistics"))
    assert (teacher.ensemble.scorer is not None) == (use in ("statistics", "all"))


def test_teacher_factors_change_answers_and_remarks():
    uploads = world()
    answers, told = [], []
    for changed in (
        {},
        {"shares": "even"},
        {"familiarity": 0.0},
        {"temperature": 1.0},
        {"shares": "guessed"},
    ):
        teacher, u = teacher_of(uploads, **changed)
        u += torch.arange(9.0).view(3, 3)
        answers.append(teacher.answer(IMAGES, u))
        told.append(teacher.remarks())
    assert all(not torch.allclose(answers[0], other, atol=1e-4) for other in answers[1:])
    assert "label counts of 3 of 3" in told[0][0]
    assert "statistics of 3 of 3" in told[0][1]
    assert "same for everybody" in told[1][0]
    assert told[2][1] == "Familiarity gate: none."
    assert "guessed by inversion for 3 of 3" in told[4][0]


def test_teacher_guesses_withheld_counts_alone():
    uploads = world()
    uploads[1] = replace(uploads[1], label_counts=None)
    teacher, u = teacher_of(uploads)
    u += torch.tensor([[9.0, 9.0, 9.0], [2.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
    counts = torch.tensor([[float(n) for n in u.label_counts or (0, 0, 0)] for u in uploads])
    counts[1] = uploads[1].num_examples * torch.tensor([0.5, 0.25, 0.25])
    strength = evidence(counts)
    assert torch.allclose(teacher.shares(u), strength / strength.sum(0))


def test_deploy_gives_the_same_answers():
    teacher, u = teacher_of(world())
    model = teacher.deploy(u)
    assert isinstance(model, Mixture)
    assert torch.allclose(Ensemble(model)(IMAGES), teacher.answer(IMAGES, u), atol=1e-6)
    assert torch.allclose(
        Ensemble(build_mixture("accord", world(), model.classes))(IMAGES),
        Ensemble(model)(IMAGES),
        atol=1e-6,
    )


def test_mix_with_labels_by_hand():
    """p = (0.6, 0.4), y = 1: (0.3, 0.7). Where nobody knows y the label is all."""
    answers, known = torch.tensor([[0.6, 0.4]]).log(), torch.ones(1, 2, dtype=torch.bool)
    assert torch.allclose(
        mix_with_labels(answers, torch.tensor([1]), known).exp(), torch.tensor([[0.3, 0.7]])
    )
    known[0, 1] = False
    assert torch.allclose(
        mix_with_labels(answers, torch.tensor([1]), known).exp(),
        torch.tensor([[0.0, 1.0]]),
        atol=1e-6,
    )


def test_combine_accord_keeps_the_weights():
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


def test_sketch_batches_are_balanced():
    """First choices 0 (30 times), 1 (6) and 2 (once): as many 0s as 1s; a 2 is repeated ten
    times as often as each 0 at most.
    """
    pool = Pool((1, 4, 4), 37, "cpu", extras={"answers": torch.zeros(3)})
    labels = torch.tensor([0] * 30 + [1] * 6 + [2])
    pool.add(torch.rand(37, 1, 4, 4), labels, answers=torch.eye(3)[labels])
    draws = torch.Generator().manual_seed(0)
    found = [answers.argmax(1) for _, answers in sketch_batches(pool, draws, 20_000, 64)]
    assert [len(batch) for batch in found][:-1] == [64] * (20_000 // 64)
    shares = torch.bincount(torch.cat(found)) / 20_000  # 30 : 30 : 10 of 70
    assert torch.allclose(shares, torch.tensor([3 / 7, 3 / 7, 1 / 7]), atol=0.015)


def test_sketch_phase_stores_the_answers_of_the_teacher():
    teacher, u = teacher_of(world())
    method = METHODS["accord"](sketches=503, batch_size=100)
    context = method.prepare(world(), teacher.context.server)
    state = method.start(context)
    phase = sketch_phase(context, 503, 100)
    assert phase.steps == 2
    for state.step in range(phase.steps):
        phase.step(state)
    places = torch.arange(len(state.sketched))
    assert len(places) == 503
    images = state.sketched.images(places)
    assert torch.allclose(
        state.sketched.extras("answers", places), teacher.answer(images, u), atol=1e-5
    )
    with_them, without = (
        fuse(world(), METHODS["accord"](**{**SMALL, "sketches": number})).result.models["student"]
        for number in (40, 0)
    )
    assert any(
        not torch.equal(with_them.state[name], without.state[name]) for name in with_them.state
    )


def test_fuse_without_a_generator_learns_from_sketches():
    fused = fuse(world(), METHODS["accord"](**{**SMALL, "generator_steps": 0}))
    assert set(fused.result.images) == {"sketches"}
    fresh = METHODS["accord"](**{**SMALL, "epochs": 0})
    assert model_bits(fused.result.models)[:4] != model_bits(fuse(world(), fresh).result.models)[:4]
    with pytest.raises(SettingsError, match="sketches"):
        METHODS["accord"](generator_steps=0, sketches=0)
    with pytest.raises(SettingsError, match=r"averaging = 1\.5"):
        METHODS["accord"](averaging=1.5)


def test_follow_by_hand():
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


def test_result_delivers_the_mean():
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


@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_generator_loss_by_hand(hard, weight):
    """Co-Boosting's (6) of the teacher's log p, or cross entropy; plus its (7) times a weight."""
    uploads = world()
    method = METHODS["accord"](**SMALL, hard_generation=hard, adversarial=weight)
    context = method.prepare(uploads, server_for(uploads))
    state = method.start(context)
    labels = torch.tensor([0, 1, 2, 0, 1])
    p = context.teacher.answer(IMAGES, state.guidance)
    student = context.student_logits(state.student, IMAGES)
    expected = hard_sample(p, labels) if hard else nn.functional.cross_entropy(p, labels)
    expected = expected + weight * adversarial(p, student)
    found = method.generator_loss(context, state, IMAGES, labels)
    torch.testing.assert_close(found, expected)


def test_distillation_loss_by_hand():
    """T^2 KL(p || f_S), written out, at T = 2."""
    uploads = world()
    method = METHODS["accord"](**SMALL, temperature=2.0)
    context = method.prepare(uploads, server_for(uploads))
    state = method.start(context)
    answers = context.teacher.answer(IMAGES, state.guidance)
    p = (answers / 2).softmax(1)
    q = (context.student_logits(state.student, IMAGES) / 2).softmax(1)
    expected = 4 * (p * (p.log() - q.log())).sum(1).mean()
    found = method.distillation_loss(context, state, IMAGES, answers)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_fuse_learns_a_class_from_decoders_alone():
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


def test_fuse_with_statistics_resumes_and_repeats():
    uploads = tuple(world(counts=False))
    there = World(uploads, server_for(uploads, student=ModelSpec.parse("mlp:hidden=8,layers=1")))
    method = METHODS["accord"](**SMALL, guess_steps=2)
    straight = model_bits(fuse(there.uploads, method, there.server).result.models)
    check_repeats(method, there, straight)
    check_resumes(method, there, straight)
    other = replace(there, uploads=tuple(world(counts=False, statistics=False)))
    assert model_bits(fuse(other.uploads, method, there.server).result.models)[:4] != straight[:4]
