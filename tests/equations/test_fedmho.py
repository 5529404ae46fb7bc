"""FedMHO: Eq. (3) to (8) and Algorithm 2 on numbers worked out by hand, and a whole run against
its slow twin.
"""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import decoder_with_counts, run_until
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from attar.blocks.images import Decoders, allocate_images
from attar.blocks.student import (
    cvae_loss,
    reconstruction,
    retention_loss,
    trade_off_loss,
    uncertainty_weighted_loss,
)
from attar.blocks.student.losses import divergence
from attar.core import Part, Preprocess
from attar.errors import SettingsError
from attar.fusion import fuse, server_for
from attar.methods.fedmho.image_filter import count_dropped, select_images, select_nearest
from attar.methods.fedmho.method import FedMho
from attar.seeds import rng
from attar.testing import (
    CLASSES,
    SHAPE,
    SMALL_DECODERS,
    SMALL_NETS,
    tiny_decoder,
    tiny_upload,
    tiny_world,
)

LN2, LN3 = math.log(2), math.log(3)
STRONG = (tiny_upload("a"), tiny_upload("b"))
WEAK = (tiny_decoder("c"), tiny_decoder("d"), tiny_decoder("e", SMALL_DECODERS[1]))
MIXED = (*STRONG, *WEAK)
SMALL = {"samples": 40, "epochs": 1, "batch_size": 64}


def run_mho(method, uploads=MIXED, server=None, until=None):
    """Context and state before the phase ``until``, or after all phases."""
    return run_until(method, uploads, server or server_for(uploads), until)


# Eq. (3)


def test_reconstruction_by_hand():
    """Pixels (1, 0), logits (0, ln 3): -log s(0) - log(1 - s(ln 3)) = ln 2 + ln 4 = ln 8."""
    logits = torch.tensor([0.0, LN3]).view(1, 1, 1, 2)
    images = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    assert reconstruction(logits, images).tolist() == pytest.approx([math.log(8)])


def test_divergence_by_hand():
    """Mean (1, 0), variance (1, 4): ((1 + 1 - 1 - 0) + (0 + 4 - 1 - ln 4)) / 2 = (4 - ln 4) / 2
    = 2 - ln 2.
    """
    found = divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(4)]]))
    assert found.tolist() == pytest.approx([2 - LN2])
    assert divergence(torch.zeros(3, 5), torch.zeros(3, 5)).tolist() == [0.0] * 3


def test_cvae_loss_is_the_sum_and_the_mean_over_images():
    """Image 1 as above: ln 8 + 2 - ln 2 = 2 + ln 4. Image 2: pixels (1, 1), logits 0: ln 4, and
    no divergence. Mean: 1 + ln 4.
    """
    logits = torch.tensor([[0.0, LN3], [0.0, 0.0]]).view(2, 1, 1, 2)
    images = torch.tensor([[1.0, 0.0], [1.0, 1.0]]).view(2, 1, 1, 2)
    mean, log_variance = (
        torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        torch.tensor([[0.0, math.log(4)], [0.0, 0.0]]),
    )
    assert float(cvae_loss(logits, mean, log_variance, images)) == pytest.approx(1 + math.log(4))
    stacked = cvae_loss(
        *(value[None].expand(3, *value.shape) for value in (logits, mean, log_variance, images))
    )
    assert stacked.tolist() == pytest.approx([1 + math.log(4)] * 3)


def test_cvae_loss_falls_towards_the_image_and_the_prior():
    """The paper prints (3) with the signs of an evidence bound; descending must make pixels
    likelier, not less likely.
    """
    images = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    right, wrong = (torch.tensor([s, -s]).view(1, 1, 1, 2) for s in (2.0, -2.0))
    at_prior = torch.zeros(1, 1)
    assert cvae_loss(right, at_prior, at_prior, images) < cvae_loss(
        wrong, at_prior, at_prior, images
    )
    assert cvae_loss(right, at_prior, at_prior, images) < cvae_loss(
        right, at_prior + 1, at_prior, images
    )


def test_cvae_loss_gradients_are_finite_differences():
    draws = torch.Generator().manual_seed(0)
    logits, images = (
        torch.randn(2, 1, 2, 2, generator=draws).double(),
        torch.rand(2, 1, 2, 2, generator=draws).double(),
    )
    code = torch.randn(2, 2, 3, generator=draws).double()
    inputs = (
        logits.requires_grad_(),
        code[0].clone().requires_grad_(),
        code[1].clone().requires_grad_(),
        images,
    )
    assert torch.autograd.gradcheck(lambda *x: cvae_loss(*x).sum(), inputs)


# Eq. (4)


def test_start_is_the_plain_mean_of_the_classifiers():
    """Whoever has more data counts no more."""
    uploads = (replace(STRONG[0], num_examples=1000), STRONG[1], *WEAK)
    _, state = run_mho(FedMho(**SMALL), uploads, until="generate")
    first, second = (upload.parts["classifier"].state for upload in STRONG)
    for name, value in state.student.state_dict().items():
        assert torch.allclose(value, (first[name] + second[name]) / 2, atol=1e-7)


def test_start_prefers_the_weights_of_the_server():
    given = STRONG[1].parts["classifier"]
    _, state = run_mho(
        FedMho(**SMALL), server=replace(server_for(MIXED), initial=given), until="generate"
    )
    assert all(
        torch.equal(value, given.state[name]) for name, value in state.student.state_dict().items()
    )


# Eq. (5) to (8)


def test_trade_off_loss_of_cross_entropy_alone():
    """Logits (ln 3, 0), label 1: -log(1/4); logits (0, 0), label 0: ln 2. Mean: (ln 4 + ln 2) /
    2 = 1.5 ln 2, whatever lambda.
    """
    loss = F.cross_entropy(torch.tensor([[LN3, 0.0], [0.0, 0.0]]), torch.tensor([1, 0]))
    assert float(trade_off_loss([loss], 0.3)) == pytest.approx(1.5 * LN2)


@pytest.mark.parametrize(("reduction", "share"), [("batchmean", 1.0), ("mean", 0.5)])
def test_retention_loss_by_hand(reduction, share):
    """Clients' logits (2 ln 3, 1) and (0, -1): mean (ln 3, 0), so p = (3/4, 1/4); the student
    says (1/2, 1/2).

    KL = 3/4 ln(3/2) + 1/4 ln(1/2). The authors' "mean" divides by the two classes as well.
    """
    teacher = torch.tensor([[[2 * LN3, 1.0]], [[0.0, -1.0]]]).mean(0)
    found = retention_loss(torch.zeros(1, 2), teacher, reduction)
    assert float(found) == pytest.approx(share * (0.75 * math.log(1.5) - 0.25 * LN2), rel=1e-5)


def test_retention_loss_from_oneself_is_zero():
    logits = torch.tensor([[0.3, -2.0, 5.0]])
    assert float(retention_loss(logits, logits + 7)) == pytest.approx(0.0, abs=1e-6)


def test_trade_off_loss_by_hand():
    """CE 2, KL 4: at lambda 1/4 it is 0.5 + 3 = 3.5, at 1/2 it is 3; with a second KL of 6, 1 +
    (4 + 6) / 2 = 6 at 1/2.
    """
    terms = [torch.tensor(value) for value in (2.0, 4.0, 6.0)]
    assert float(trade_off_loss(terms[:2], 0.25)) == 3.5
    assert float(trade_off_loss(terms[:2], 0.5)) == 3.0
    assert float(trade_off_loss(terms, 0.5)) == 6.0


def test_uncertainty_weighted_loss_by_hand():
    """s = (0, ln 2): 2 + 0 + 4 / 2 + ln 2 = 4 + ln 2. At the minimum over s, exp(-s) L = 1:
    weights 1/2 and 1/4.
    """
    terms = [torch.tensor(2.0), torch.tensor(4.0)]
    assert float(uncertainty_weighted_loss(terms, torch.tensor([0.0, LN2]))) == pytest.approx(
        4 + LN2
    )
    best = torch.tensor([LN2, 2 * LN2], requires_grad=True)
    uncertainty_weighted_loss(terms, best).backward()
    assert best.grad.tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_loss_by_hand():
    """Student (0, 0, 0) of label 2: CE = ln 3. Of the first two classes it says (1/2, 1/2), the
    teacher (3/4, 1/4): KL = 3/4 ln(3/2) + 1/4 ln(1/2). lambda = 1/4.
    """
    student = torch.zeros(1, 3)
    labels = torch.tensor([2])
    teacher = torch.tensor([[LN3, 0.0]])
    columns = torch.tensor([0, 1])
    divergence = 0.75 * math.log(1.5) - 0.25 * LN2
    uncertainty = torch.tensor([0.0, LN2])
    alone = FedMho(trade_off=0.25).loss(student, labels, [], columns, uncertainty)
    assert float(alone) == pytest.approx(LN3)  # Eq. (5)
    both = FedMho(trade_off=0.25).loss(student, labels, [teacher], columns, uncertainty)
    assert float(both) == pytest.approx(0.25 * LN3 + 0.75 * divergence, rel=1e-5)  # Eq. (8)
    learned = FedMho(weights="learned").loss(student, labels, [teacher], columns, uncertainty)
    assert float(learned) == pytest.approx(LN3 + divergence / 2 + LN2, rel=1e-5)


def test_answers_of_md_are_the_mean_logits_and_of_sd_the_initial_model():
    """Eq. (6): h_k averaged over K_C; Eq. (7): h(w0), which for clients that were averaged is
    not the same.
    """
    context, state = run_mho(FedMho(remember="both", **SMALL), until="train")
    places = torch.arange(len(state.pool))
    images = Preprocess.centred(SHAPE)(state.pool.images(places))
    nets = [upload.parts["classifier"].build() for upload in STRONG]
    mean = (nets[0](images) + nets[1](images)) / 2
    assert torch.allclose(state.answers["md"], mean, atol=1e-5)
    w0 = FedMho(**SMALL).start(context).student.eval()
    assert torch.allclose(state.answers["sd"], w0(images), atol=1e-5)
    assert not torch.allclose(state.answers["sd"], mean, atol=1e-3)


def test_answers_of_sd_are_without_dropout():
    nets = ("vit-tiny:patch=8,depth=1,dropout=0.5", SMALL_DECODERS[0])
    world = tiny_world(nets)
    context, state = run_mho(FedMho(**SMALL), world.uploads, world.server, until="train")
    images = state.pool.images(torch.arange(len(state.pool)))
    plan, w0 = context.synthetic.plan, FedMho(**SMALL).start(context).student.eval()
    assert torch.allclose(state.answers["sd"], plan.logits(w0, images), atol=1e-5)
    assert state.student.training


def test_start_averages_classes_in_another_order():
    """The rows of the head move with their names: the start is that of clients who list their
    classes alike, and is no distillation.
    """
    first, second = (tiny_upload(name, "lenet5") for name in "ab")
    part = second.parts["classifier"]
    order = [2, 0, 1]
    rows = {
        name: value[order] if name.startswith("head.") else value
        for name, value in part.state.items()
    }
    listed = tuple(part.classes[place] for place in order)
    turned = replace(second, parts={"classifier": replace(part, state=rows, classes=listed)})
    expected, found = (
        run_mho(
            FedMho(**SMALL),
            (first, other, *WEAK),
            server_for((first, other, *WEAK), student="lenet5"),
            until="generate",
        )
        for other in (second, turned)
    )
    assert not found[0].distils
    for name, value in expected[1].student.state_dict().items():
        assert torch.equal(found[1].student.state_dict()[name], value), name
    images = torch.rand(4, *SHAPE)
    said = turned.parts["classifier"].build().eval()(part.preprocess(images))
    assert torch.equal(said, part.build().eval()(part.preprocess(images))[:, order])


# Algorithm 2


def test_select_nearest_drops_the_farthest_from_the_mean():
    """Pixels 0, 0.1, 0.2, 0.3, 1: mean 0.32; distances 0.32, 0.22, 0.12, 0.02, 0.68.

    R_th 0.8 drops the last, 0.6 the first as well, 0.2 leaves 0.3 alone; 1 keeps all.
    """
    images = torch.tensor([0.0, 0.1, 0.2, 0.3, 1.0]).view(5, 1, 1, 1)
    assert select_nearest(images, 0.8).tolist() == [0, 1, 2, 3]
    assert select_nearest(images, 0.6).tolist() == [1, 2, 3]
    assert select_nearest(images, 0.2).tolist() == [3]
    assert select_nearest(images, 1.0).tolist() == [0, 1, 2, 3, 4]


def test_select_nearest_measures_all_pixels():
    """Three images of two pixels, (0, 0), (0, 0), (1, 1), and one, (0, 1), that only one pixel
    sets apart: (1, 1) is farthest.
    """
    images = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0]]).view(4, 1, 1, 2)
    assert select_nearest(images, 0.75).tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("number", "ratio", "gone"),
    [(10, 0.8, 2), (5, 0.8, 1), (4, 0.8, 0), (1200, 0.9, 120), (0, 0.8, 0), (7, 1.0, 0)],
)
def test_count_dropped(number, ratio, gone):
    assert count_dropped(number, ratio) == gone
    assert len(select_nearest(torch.rand(number, 1, 2, 2), ratio)) == number - gone


pictures = st.lists(
    st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=12
)  # few levels: many ties


@given(pictures, st.floats(0.1, 1.0), st.randoms())
@settings(max_examples=150)
def test_select_nearest_ignores_order_and_drops_no_nearer_one(rows, ratio, randoms):
    images = torch.tensor(rows).float().view(-1, 1, 2, 2) / 3
    shuffled = list(range(len(rows)))
    randoms.shuffle(shuffled)
    kept = select_nearest(images, ratio)
    kept_shuffled = select_nearest(images[shuffled], ratio)
    assert sorted(images[kept].flatten(1).tolist()) == sorted(
        images[shuffled][kept_shuffled].flatten(1).tolist()
    )
    exact = [
        sum(
            (x - sum(column) / len(rows)) ** 2
            for x, column in zip(row, zip(*rows, strict=True), strict=True)
        )
        for row in rows
    ]
    gone = set(range(len(rows))) - set(kept.tolist())
    assert all(exact[away] >= exact[stays] - 1e-9 for away in gone for stays in kept.tolist())


def test_select_images_keeps_as_many_at_random():
    images = torch.tensor([0.0] * 9 + [1.0]).view(10, 1, 1, 1)
    kept = [
        set(select_images(images, 0, ratio=0.8, rule="random", seed=seed).tolist())
        for seed in range(20)
    ]
    assert all(len(some) == 8 for some in kept)
    assert any(9 in some for some in kept), "the farthest stays sometimes"
    assert 9 not in select_images(images, 0, ratio=0.8, rule="nearest", seed=0)


def test_select_nearest_breaks_ties_by_pixels():
    """A slash and a backslash are equally far from their mean and equally bright: one of them
    goes, the same in either order.
    """
    first = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]).view(2, 1, 2, 2)
    turned = first.flip(0)
    assert torch.equal(first[select_nearest(first, 0.5)], turned[select_nearest(turned, 0.5)])


# Who makes how many images


def test_allocate_images_by_label_counts():
    """Counts (3, 1) and (0, 4), eight images.

    labels, exponent 1: as the counts. Exponent 2: 8 x (9, 1, 0, 16) / 26 = 2.77, 0.31, 0, 4.92;
    floors 2, 0, 0, 4 and the two left over to the largest remainders: 3, 0, 0, 5. classes,
    exponent 2: four each; class 1 as 1 : 16, so 0.24, 3.76: 0, 4.
    """
    uploads = [
        decoder_with_counts("a", (3, 1), CLASSES[:2]),
        decoder_with_counts("b", (0, 4), CLASSES[:2]),
    ]
    server = server_for(uploads)
    assert allocate_images(uploads, server, 8, 1.0, "labels").tolist() == [[3, 1], [0, 4]]
    assert allocate_images(uploads, server, 8, 2.0, "labels").tolist() == [[3, 0], [0, 5]]
    assert allocate_images(uploads, server, 8, 2.0, "classes").tolist() == [[4, 0], [0, 4]]
    assert allocate_images(uploads, server, 7, 0.0, "classes").sum(0).tolist() == [4, 3]


def test_allocate_images_of_a_class_without_images():
    """Counts (3, 0) and (1, 0), eight images. classes: all of class 0, as 9 : 1. all-classes:
    four each, class 1 from both alike.
    """
    uploads = [
        decoder_with_counts("a", (3, 0), CLASSES[:2]),
        decoder_with_counts("b", (1, 0), CLASSES[:2]),
    ]
    server = server_for(uploads)
    assert allocate_images(uploads, server, 8, 2.0, "classes").tolist() == [[7, 0], [1, 0]]
    assert allocate_images(uploads, server, 8, 2.0, "all-classes").tolist() == [[4, 2], [0, 2]]
    other = decoder_with_counts("c", (1,), CLASSES[:1])
    who = [*uploads, other]  # cannot be asked for class 1
    assert allocate_images(who, server_for(who), 8, 2.0, "all-classes")[:, 1].tolist() == [2, 2, 0]


def test_default_draws_a_scarce_class_as_often_as_any_other():
    """Counts (5, 495) and (0, 500), 100 images: 50 of each class, of class 1 as 495 : 500. By
    label counts class 0 would have a single one.
    """
    uploads = [
        *STRONG,
        decoder_with_counts("c", (5, 495, 0)),
        decoder_with_counts("d", (0, 500, 0)),
    ]
    made = {
        tuple(given.items()): fuse(
            uploads, FedMho(samples=100, epochs=0, **given), server_for(uploads)
        ).result.arrays["images made"]
        for given in ({}, {"allocation": "labels"})
    }
    assert [table[len(STRONG) :].tolist() for table in made.values()] == [
        [[50, 25, 0], [0, 25, 0]],
        [[1, 49, 0], [0, 50, 0]],
    ]


def test_allocate_images_refuses_an_overflow():
    uploads = [decoder_with_counts("a", (1000, 1), CLASSES[:2])]
    with pytest.raises(
        SettingsError, match="count_exponent = 200: too large for label counts of up to 1,000"
    ):
        allocate_images(uploads, server_for(uploads), 8, 200.0, "labels")


@given(
    st.lists(st.tuples(*[st.integers(0, 50)] * 3), min_size=1, max_size=4),
    st.integers(1, 500),
    st.floats(0, 3),
)
@settings(max_examples=60)
def test_allocate_images_shares_all_and_only_with_holders(counts, samples, exponent):
    counts = [(row[0] + (not any(row)), *row[1:]) for row in counts]
    uploads = [decoder_with_counts(f"k{i}", row) for i, row in enumerate(counts)]
    for how in ("labels", "classes"):
        found = allocate_images(uploads, server_for(uploads), samples, exponent, how)
        assert int(found.sum()) == samples
        assert not bool(found[torch.tensor(counts) == 0].any())


def test_decoders_generate_independently_of_other_clients():
    server = server_for(WEAK)
    together, alone = Decoders(WEAK, server), Decoders(WEAK[2:], server)
    assert torch.equal(
        together.generate(1, torch.tensor([0, 0, 4])), alone.generate(1, torch.tensor([4]))
    )


def test_decoders_generate_the_class_asked_for():
    part = WEAK[0].parts["decoder"]
    decoders = Decoders(WEAK[:1], server_for(WEAK[:1]))
    codes = decoders.draw_codes(0, 2, 3)
    expected = part.build()(codes, F.one_hot(torch.tensor([2, 2, 2]), 3).float())
    assert torch.equal(decoders.generate(2, torch.tensor([3])), expected)


def test_decoders_apply_their_own_preprocessing():
    part = WEAK[0].parts["decoder"]
    darker = replace(
        WEAK[0], parts={"decoder": replace(part, preprocess=Preprocess(SHAPE, (0.25,), (1.0,)))}
    )
    plain, dark = (
        Decoders([u], server_for([u])).generate(0, torch.tensor([2])) for u in (WEAK[0], darker)
    )
    assert torch.allclose(dark, (plain - 0.25).clamp(0, 1), atol=1e-6)


# The whole against its twin


def twin(method, uploads, server):
    """Algorithm 1 written out for averaged classifiers: no pool, no stored answers, nothing
    shared with the blocks but seeds.
    """
    strong = [upload.parts["classifier"] for upload in uploads if "classifier" in upload.parts]
    weak = [upload for upload in uploads if "decoder" in upload.parts]
    teachers = [part.build() for part in strong]
    student, w0 = strong[0].build(), strong[0].build()
    mean = {
        name: sum(part.state[name] for part in strong) / len(strong) for name in strong[0].state
    }  # (4)
    student.load_state_dict(mean)
    w0.load_state_dict(mean)
    held = [sum(upload.label_counts[label] for upload in weak) for label in range(len(CLASSES))]
    asked = (
        [method.samples * n / sum(held) for n in held]
        if method.allocation == "labels"
        else [method.samples / sum(n > 0 for n in held) * (n > 0) for n in held]
    )
    numbers = torch.tensor(
        [
            [n * asked[label] / held[label] for label, n in enumerate(upload.label_counts)]
            for upload in weak
        ]
    )
    assert torch.equal(numbers, numbers.round()), "the twin does not round"
    images, labels = [], []
    for label, name in enumerate(CLASSES):
        made = []
        for row, upload in enumerate(weak):
            net = upload.parts["decoder"].build()
            codes = torch.randn(
                int(numbers[row, label]),
                net.latent,
                generator=rng(server.seed, "codes", upload.client, name),
            )
            made.append(net(codes, F.one_hot(torch.full((len(codes),), label), 3).float()))
        made = torch.cat(made)
        distance = (made - made.mean(0)).square().flatten(1).sum(1).sqrt()
        stay = distance.argsort()[: round(method.keep_ratio * len(made))].sort().values
        images.append(made[stay])
        labels.append(torch.full((len(stay),), label))
    images, labels = torch.cat(images), torch.cat(labels)
    student.train().requires_grad_(True)
    optimiser = torch.optim.Adam(student.parameters(), method.lr)
    draws = rng(server.seed, "fedmho")
    for _ in range(method.epochs):
        for batch in torch.randperm(len(images), generator=draws).split(method.batch_size):
            x, y = Preprocess.centred(SHAPE)(images[batch]), labels[batch]
            log_q = student(x).log_softmax(-1)
            loss = -log_q.gather(1, y[:, None]).mean()  # (5)
            answers = []
            if method.remember in ("md", "both"):
                answers.append(sum(teacher(x) for teacher in teachers) / len(teachers))  # (6)
            if method.remember in ("sd", "both"):
                answers.append(w0(x))  # (7)
            if answers:
                kl = sum(
                    (a.softmax(-1) * (a.log_softmax(-1) - log_q)).sum(-1).mean() for a in answers
                )
                loss = method.trade_off * loss + (1 - method.trade_off) * kl  # (8)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return student.state_dict()


@pytest.mark.parametrize("remember", ["nothing", "md", "sd", "both"])
@pytest.mark.parametrize("given", [{}, {"allocation": "labels"}])
def test_fedmho_equals_algorithm_1_written_out(remember, given):
    weak = [replace(upload, label_counts=(10, 20, 20), num_examples=50) for upload in WEAK[:2]]
    uploads = (*STRONG, *weak)
    server = server_for(uploads)
    few = {"samples": 120 if not given else 100, "epochs": 3, "batch_size": 16, "lr": 1e-3}
    method = FedMho(**few, **given, remember=remember, trade_off=0.3)
    fused = fuse(uploads, method, server).result.models["student"]
    assert isinstance(fused, Part)
    for name, value in twin(method, uploads, server).items():
        assert torch.allclose(fused.state[name], value, atol=1e-5), name


# Several architectures, classes that some lack, settings


def test_initialise_distils_several_architectures():
    """5.6: where there is nothing to average, the first model learns the classifiers' mean
    logits on the synthetic images.
    """
    uploads = (tiny_upload("a", SMALL_NETS[1]), tiny_upload("b"), *WEAK)
    server = server_for(uploads, student=SMALL_NETS[2])
    names = [phase.name for phase in FedMho().phases(FedMho().prepare(uploads, server))]
    assert names == ["generate", "ask clients", "initialise", "ask initial model", "train"]
    errors = []
    for epochs in (0, 30):
        method = FedMho(samples=60, initial_epochs=epochs, batch_size=16, initial_lr=3e-3)
        context, state = run_mho(method, uploads, server, until="ask initial model")
        images = state.pool.images(torch.arange(len(state.pool)))
        said = context.synthetic.plan.eval_logits(state.student, images).softmax(-1)
        errors.append(float((said - state.answers["md"].softmax(-1)).abs().mean()))
    assert errors[1] < 0.7 * errors[0]


def test_phases_of_one_architecture_do_not_distil():
    names = [
        phase.name
        for phase in FedMho(remember="nothing").phases(FedMho().prepare(MIXED, server_for(MIXED)))
    ]
    assert names == ["generate", "train"]


def test_epoch_learns_unknown_classes_from_decoders_alone():
    """KL compares the classes that classifiers know; a class that only a decoder knows is not
    pushed to zero by it.
    """
    uploads = (tiny_upload("a", classes=CLASSES[:2]), tiny_decoder("c", classes=CLASSES[1:]))
    server = server_for(uploads, student=SMALL_NETS[0])
    for remember in ("md", "sd"):
        method = FedMho(
            samples=60, epochs=40, lr=1e-2, batch_size=16, remember=remember, initial_epochs=5
        )
        context, state = run_mho(method, uploads, server)
        assert state.answers["md"].shape[1] == 2
        places = torch.arange(len(state.pool))
        said = context.synthetic.plan.eval_logits(state.student, state.pool.images(places)).argmax(
            1
        )
        assert bool((said[state.pool.labels(places) == 2] == 2).all())
    result = fuse(uploads, FedMho(**SMALL), server).result
    assert "No image was made of: ring" in result.remarks[0]
    assert result.arrays["images made"].shape == (2, 3)


def test_epoch_moves_learned_weights():
    _, state = run_mho(FedMho(samples=40, epochs=3, remember="both", weights="learned", lr=1e-2))
    assert state.uncertainty.shape == (3,)
    assert bool((state.uncertainty != 0).all())


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("mnist", (10, 1e-5, 6000)),
        ("fashion", (20, 5e-4, 6000)),
        ("svhn", (20, 5e-5, 6000)),
        ("emnist", (30, 5e-5, 12_000)),
    ],
)
def test_preset_is_a_column_of_table_3(preset, expected):
    method = FedMho(preset=preset)
    assert (method.epochs, method.lr, method.samples) == expected
    assert (method.batch_size, method.keep_ratio, method.trade_off) == (64, 0.8, 0.5)
    assert FedMho(preset=preset, epochs=7).epochs == 7


def test_variant_code_is_the_authors_choices():
    method = FedMho(variant="code", preset="emnist")
    chosen = (method.allocation, method.count_exponent, method.kl_reduction, method.keep)
    assert chosen == ("all-classes", 2.0, "mean", "random")
    assert method.epochs == 30
    assert FedMho(variant="code", preset="mnist").epochs == 20


def test_settings_name_all_values_out_of_range():
    with pytest.raises(SettingsError, match=r"(?s)lr = -1.*keep_ratio = 1.5.*trade_off = 2"):
        FedMho(keep_ratio=1.5, trade_off=2.0, lr=-1.0)


def test_result_shows_classes_before_and_after_the_filter():
    result = fuse(MIXED, FedMho(**SMALL), server_for(MIXED)).result
    assert set(result.images) == {
        "synthetic before filter",
        "synthetic after filter",
        "dropped by filter",
    }
    assert all(sheet.shape == (3, 5, *SHAPE) for sheet in result.images.values())
