"""Sums of features at the server: exact for any split, checked, and refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.blocks.heads import (
    Halves,
    Totals,
    add_clients,
    gaussian_head,
    moments_of,
    part_problems,
    regression,
)
from attar.core import Mixture, Upload
from attar.errors import NeedsError
from attar.fusion import fuse, server_for
from attar.methods import Analytic, FedPft, GaussianHead, LocalHeads, feature_groups
from attar.methods.contributions import measure_contributions
from attar.methods.feature_groups import Group, make_groups
from attar.methods.fedpft import Context
from attar.models import Classifier
from attar.seeds import rng
from attar.testing import SMALL_SUMS, model_bits, tiny_backbone, tiny_sums, tiny_world
from attar.uploads import receive, write_bundle
from attar.uploads.lazy import WeightsInFile
from feature_parts import BITS, CLASSES, draw_features, sums_part

PHI, LABELS, HALVES = draw_features(1000, width=4)
UNIT = 2**BITS


def one_by_one(phi, labels, halves):
    """The rounded sums of every image alone: counts, sums and squares, each (N, ...)."""
    rows, columns = torch.tril_indices(phi.shape[1], phi.shape[1])
    number = len(phi)
    places = torch.arange(number)
    counts = torch.zeros(number, 2, 3, dtype=torch.int64)
    counts[places, halves, labels] = 1
    sums = torch.zeros(number, 2, 3, phi.shape[1], dtype=torch.int64)
    sums[places, halves, labels] = (phi * UNIT).round().long()
    squares = torch.zeros(number, 2, 1, len(rows), dtype=torch.int64)
    products = (phi[:, :, None] * phi[:, None, :])[:, rows, columns]
    squares[places, halves, 0] = (products * UNIT).round().long()
    return {"counts": counts, "sums": sums, "squares": squares}


SINGLE = one_by_one(PHI, LABELS, HALVES)
LIKE = sums_part(PHI[:10], LABELS[:10], HALVES[:10])


def split(clients, seed):
    """The images dealt out at random to clients in a random order, some of them in groups."""
    draws = torch.Generator().manual_seed(seed)
    owners = torch.randint(0, clients, (len(PHI),), generator=draws)
    parts = []
    for client in torch.randperm(clients, generator=draws).tolist():
        rows = (owners == client).nonzero().squeeze(1)
        if len(rows):
            parts.append(replace(LIKE, state={k: v[rows].sum(0) for k, v in SINGLE.items()}))
    return parts


def total(parts):
    return add_clients({f"c{number}": part for number, part in enumerate(parts)}, CLASSES)


def bits_of(totals):
    moments = moments_of(totals)
    head = gaussian_head(moments, "lda", 0.01)
    ridge = regression(moments).head(0.01)
    tensors = (totals.counts, totals.sums, totals.squares, head.weight, head.bias, ridge.weight)
    return [tensor.numpy().tobytes() for tensor in tensors]


WHOLE = bits_of(total([replace(LIKE, state={k: v.sum(0) for k, v in SINGLE.items()})]))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 1000), st.integers(0, 2**20), st.integers(1, 40))
def test_any_split_gives_the_same_bits(clients, seed, regions):
    parts = split(clients, seed)
    assert bits_of(total(parts)) == WHOLE
    # the same clients, added region by region, and the regions' sums added
    groups = [parts[number::regions] for number in range(min(regions, len(parts)))]
    summed = [total(group).as_part(LIKE.spec, LIKE.preprocess) for group in groups]
    assert bits_of(total(summed)) == WHOLE


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 60), st.integers(0, 2**20))
def test_who_leaves_is_as_if_never_there(clients, seed):
    parts = split(clients, seed)
    totals = total(parts)
    totals.remove(parts[0], "first")
    rest = (
        total(parts[1:]) if len(parts) > 1 else Totals.empty(CLASSES, 4, per_class=False, bits=BITS)
    )
    for name in ("counts", "sums", "squares"):
        assert torch.equal(getattr(totals, name), getattr(rest, name))


@pytest.mark.parametrize("clients", [1, 50])
@pytest.mark.parametrize("share", [0.001, 0.1])
def test_logits_are_those_of_unrounded_features(clients, share):
    phi, labels, halves = draw_features(600, width=24)
    owners = torch.arange(600) % clients
    parts = [
        sums_part(phi[owners == client], labels[owners == client], halves[owners == client])
        for client in range(clients)
    ]
    moments = moments_of(total(parts))
    own = [phi[labels == label] for label in range(3)]
    means = torch.stack([one.mean(0) for one in own])
    rest = torch.cat([one - one.mean(0) for one in own])
    covariance = rest.T @ rest / (len(phi) - 3)
    eye = torch.eye(24, dtype=torch.float64)
    shrunk = (1 - share) * covariance + share * covariance.trace() / 24 * eye
    directions = torch.linalg.solve(shrunk, means.T).T
    expected = phi @ directions.T - (directions * means).sum(1) / 2
    found = gaussian_head(moments, "lda", share).logits(phi)
    gap = (found - found.mean(1, keepdim=True)) - (expected - expected.mean(1, keepdim=True))
    assert float(gap.abs().max()) <= 1e-6 * max(1.0, float(expected.abs().max()))
    centred = phi - phi.mean(0)
    one_hot = torch.nn.functional.one_hot(labels, 3).double()
    scatter = centred.T @ centred
    penalty = share / (1 - share) * scatter.trace() / 24
    weight = torch.linalg.solve(scatter + penalty * eye, centred.T @ one_hot)
    ridge = centred @ weight + one_hot.mean(0)
    torch.testing.assert_close(
        regression(moments).head(share).logits(phi), ridge, rtol=0, atol=1e-6
    )


def test_overflow_is_refused_before_it_happens():
    large = {"squares": torch.full_like(LIKE.state["squares"], 2**62)}
    part = replace(LIKE, state={**LIKE.state, **large})
    totals = Totals.empty(CLASSES, 4, per_class=False, bits=BITS)
    totals.add(part, "oslo")
    before = totals.squares.clone()
    with pytest.raises(NeedsError, match="sums of rome cannot be added"):
        totals.add(part, "rome")
    assert torch.equal(totals.squares, before)


def test_squares_by_class_join_shared_ones():
    by_class = sums_part(PHI, LABELS, HALVES, per_class=True)
    shared = sums_part(PHI, LABELS, HALVES)
    both = total([by_class, shared])
    assert not both.per_class
    twice = total([by_class, by_class])
    assert twice.per_class
    # rounded by class and then added: not the same integers, but the same numbers
    gap = (both.squares - twice.squares.sum(1, keepdim=True)).abs().max()
    assert int(gap) <= 3


def world(*kinds):
    return tiny_world(list(kinds))


def with_state(upload, **tensors):
    part = upload.parts["sums"]
    return replace(upload, parts={"sums": replace(part, state={**part.state, **tensors})})


def noisy(upload, epsilon=1.0):
    part = upload.parts["sums"]
    spec = part.spec.of(part.spec.arch, {**dict(part.spec.options), "epsilon": epsilon})
    return replace(upload, parts={"sums": replace(part, spec=spec)})


def run(method, uploads, server):
    """What a method delivers, without the checks of files, which refuse some of these earlier."""
    context = method.prepare(uploads, server)
    return method.result(context, method.start(context))


def test_indefinite_sums_are_refused_by_name():
    """Squares that keep |q_ij|^2 <= q_ii q_jj, as every file does, and have no square root."""
    these = world(*SMALL_SUMS[:1] * 3)
    bad = 100 * these.uploads[1].parts["sums"].state["squares"]
    size = 0.9 * bad[0, 0, [0, 2, 5]].double()  # the first three of the diagonal
    for entry, sign, (i, j) in ((1, 1, (0, 1)), (3, 1, (0, 2)), (4, -1, (1, 2))):
        bad[:, :, entry] = sign * int((size[i] * size[j]).sqrt())
    uploads = [these.uploads[0], with_state(these.uploads[1], squares=bad), these.uploads[2]]
    with pytest.raises(NeedsError) as caught:
        make_groups(uploads, these.server)
    assert list(caught.value.problems) == [
        "client1: the covariance is not positive, and no noise was declared"
    ]
    result = run(GaussianHead(), [noisy(one) for one in uploads], these.server)
    assert "negative eigenvalues" in " ".join(result.remarks)
    assert all(value.isfinite().all() for value in result.models["head"].state.values())


def test_indefinite_sums_that_others_hide(monkeypatch):
    """The sum of all clients is positive, one client's own is not: found where clients are few."""
    these = world(*SMALL_SUMS[:1] * 3)
    state = these.uploads[1].parts["sums"].state
    bad = state["squares"].clone()
    size = 0.9 * bad[0, 0, [0, 2, 5]].double()
    for entry, sign, (i, j) in ((1, 1, (0, 1)), (3, 1, (0, 2)), (4, -1, (1, 2))):
        bad[:, :, entry] = sign * int((size[i] * size[j]).sqrt())
    large = [
        with_state(one, squares=1000 * one.parts["sums"].state["squares"])
        for one in (these.uploads[0], these.uploads[2])
    ]
    wrong = with_state(these.uploads[1], squares=bad)
    uploads = [large[0], wrong, large[1]]
    with pytest.raises(NeedsError) as caught:
        make_groups(uploads, these.server)
    assert list(caught.value.problems) == [
        "client1: the covariance is not positive, and no noise was declared"
    ]
    make_groups([large[0], these.uploads[1], large[1]], these.server)
    make_groups([noisy(one) for one in uploads], these.server)
    assert part_problems(wrong.parts["sums"])
    assert not part_problems(these.uploads[1].parts["sums"])
    monkeypatch.setattr(feature_groups, "CHECKED_ONE_BY_ONE", 2)
    make_groups(uploads, these.server)  # of more clients, only the sum is looked at


def test_sums_of_many_clients_pass_as_one_file():
    """What a region has added is rounded more often than what one client sends."""
    these = world(*SMALL_SUMS[:1] * 8)
    first = these.uploads[0].parts["sums"]
    named = {one.client: one.parts["sums"] for one in these.uploads}
    totals = add_clients(named, first.classes)
    assert not part_problems(totals.as_part(first.spec, first.preprocess))


def test_negative_counts_need_noise():
    these = world(*SMALL_SUMS[:1] * 2)
    counts = these.uploads[0].parts["sums"].state["counts"].clone()
    counts[0, 0] = -50
    uploads = [with_state(these.uploads[0], counts=counts), these.uploads[1]]
    with pytest.raises(NeedsError) as caught:
        make_groups(uploads, these.server)
    assert list(caught.value.problems) == [
        "client0: a count is negative, and no noise was declared"
    ]
    images = torch.rand(3, *these.server.task.input_shape)
    result = run(Analytic(), [noisy(uploads[0]), uploads[1]], these.server)
    assert Classifier(result.models["head"])(images).isfinite().all()


def test_other_backbone_is_not_added():
    these = world(SMALL_SUMS[0], SMALL_SUMS[2])
    groups = make_groups(these.uploads, these.server)
    assert sorted(next(iter(group.named)) for group in groups) == ["client0", "client1"]
    model = next(iter(fuse(these.uploads, GaussianHead(), these.server).result.models.values()))
    assert isinstance(model, Mixture)
    assert model.rule == "log-odds"
    assert len(model.members) == 2


def test_missing_backbone_is_refused():
    these = world(*SMALL_SUMS[:1] * 2)
    with pytest.raises(NeedsError, match="The backbone toy of these sums is not at the server"):
        fuse(these.uploads, GaussianHead(), replace(these.server, backbones={}))
    wrong = {"toy": tiny_backbone("another")}
    with pytest.raises(NeedsError, match="not at the server"):
        fuse(these.uploads, GaussianHead(), replace(these.server, backbones=wrong))


def test_contradicting_options_are_refused_by_name():
    these = world(*SMALL_SUMS[:1] * 3)
    part = these.uploads[2].parts["sums"]
    spec = part.spec.of(part.spec.arch, {**dict(part.spec.options), "bits": 20})
    odd = replace(these.uploads[2], parts={"sums": replace(part, spec=spec)})
    with pytest.raises(NeedsError) as caught:
        fuse([*these.uploads[:2], odd], GaussianHead(), these.server)
    assert caught.value.problems[0].startswith("client2 sent sums with features 8")
    assert "bits 20" in caught.value.problems[0]


def test_order_of_clients_does_not_matter():
    kinds = [SMALL_SUMS[0], SMALL_SUMS[2], SMALL_SUMS[0], SMALL_SUMS[2]]
    these = world(*kinds)
    for method in (GaussianHead(), Analytic()):
        one = fuse(these.uploads, method, these.server).result
        other = fuse(these.uploads[::-1], method, these.server).result
        assert model_bits(one.models) == model_bits(other.models)


def test_classifiers_join_as_members():
    these = world(SMALL_SUMS[0], SMALL_SUMS[0], "lenet5")
    model = next(iter(fuse(these.uploads, GaussianHead(), these.server).result.models.values()))
    assert [part.spec.arch for part in model.members] == ["frozen-backbone", "lenet5"]
    # shares of the images of each class
    sums = torch.tensor([16.0, 16, 16])
    counts = torch.tensor(these.uploads[2].label_counts)
    torch.testing.assert_close(model.weights[1], counts / (counts + sums))


def test_contributions_of_clients():
    """Whoever holds a class alone contributes; of many that hold the others nobody does."""
    owners = torch.where(LABELS == 2, 8, torch.arange(len(LABELS)) % 8)
    named = {
        f"client{owner}": sums_part(
            PHI[owners == owner], LABELS[owners == owner], HALVES[owners == owner]
        )
        for owner in range(9)
    }
    totals = add_clients(named, CLASSES)
    group = Group(None, named, totals, len(PHI))

    def fit(moments):
        return gaussian_head(moments, "lda", 0.1)

    shares = measure_contributions(group, Halves.of(totals), fit, most=9)
    assert shares["client8"] > 0.2
    assert all(abs(shares[name]) < 0.02 for name in named if name != "client8")
    assert measure_contributions(group, Halves.of(totals), fit, most=8) == {}


def test_unused_head_of_an_absent_class_is_never_chosen():
    upload = tiny_sums("one", classes=CLASSES[:2])
    part = upload.parts["sums"]
    backbones = world(SMALL_SUMS[0]).server.backbones
    server = replace(server_for([upload]), backbones=backbones)
    state = {name: value.clone() for name, value in part.state.items()}
    state["counts"][:, 1] = 0
    state["sums"][:, 1] = 0
    # squares stay positive without the images of the second class: they are all of the first
    left = tuple(state["counts"].sum(0).tolist())
    empty = replace(
        upload,
        parts={"sums": replace(part, state=state)},
        num_examples=sum(left),
        label_counts=left,
    )
    model = Classifier(
        next(iter(fuse([empty], GaussianHead(shrinkage=0.5), server).result.models.values()))
    )
    assert bool((model(torch.rand(20, *server.task.input_shape)).argmax(1) == 0).all())


def test_fedpft_samples_the_gaussians_of_each_client():
    """Each class of a client with its own mean and covariance, in proportion to its images."""
    owners = torch.arange(len(PHI)) % 2
    shifted = PHI + 5.0 * owners[:, None]
    named = {
        name: sums_part(
            shifted[owners == owner],
            LABELS[owners == owner],
            HALVES[owners == owner],
            per_class=True,
        )
        for owner, name in enumerate(("a", "b"))
    }
    group = Group(None, named, add_clients(named, CLASSES), len(PHI))
    server = tiny_world(SMALL_SUMS[:1]).server
    sampled = FedPft(samples=20_000).sample(group, server)
    drawn = sampled.phi.double() * sampled.spread + sampled.mean
    first = 0
    for owner in (0, 1):
        for label in range(3):
            own = shifted[(owners == owner) & (label == LABELS)]
            number = round(20_000 * len(own) / int((label == LABELS).sum()))
            chosen = slice(first, first + number)
            first += number
            assert bool((sampled.labels[chosen] == label).all())
            size = float(own.std())
            torch.testing.assert_close(drawn[chosen].mean(0), own.mean(0), rtol=0, atol=0.05 * size)
            torch.testing.assert_close(
                drawn[chosen].T.cov(), own.T.cov(), rtol=0, atol=0.1 * size**2
            )
    assert first == len(drawn)


def test_fedpft_head_is_near_the_best_one():
    phi, labels, halves = draw_features(3000, width=6, apart=0.7)
    named = {
        str(owner): sums_part(phi[rows], labels[rows], halves[rows], per_class=True)
        for owner, rows in enumerate(torch.arange(2000).chunk(4))
    }
    group = Group(None, named, add_clients(named, CLASSES), 2000)
    method = FedPft(samples=2000, epochs=20, lr=0.01)
    context = Context((method.sample(group, tiny_world(SMALL_SUMS[:1]).server),), (), None)
    context = replace(context, server=tiny_world(SMALL_SUMS[:1]).server)
    state = method.start(context)
    for _ in range(20):
        method.epoch(context, state)
    right = context.sampled[0].head(state.heads[0]).logits(phi[2000:]).argmax(1) == labels[2000:]
    lda = gaussian_head(moments_of(group.totals), "lda", 0.01).logits(phi[2000:]).argmax(1)
    assert float(right.double().mean()) > float((lda == labels[2000:]).double().mean()) - 0.03


def test_many_files_need_the_memory_of_few(tmp_path):
    """Uploads stay in their files: a hundred of 256 features (0.5 MB each) are added one by one."""
    phi, labels, halves = draw_features(60, width=256)
    part = sums_part(phi, labels, halves)
    files = []
    for number in range(100):
        files.append(tmp_path / f"c{number}.attar")
        counts = tuple(part.state["counts"].sum(0).tolist())
        write_bundle(files[-1], Upload(f"c{number}", {"sums": part}, len(phi), counts))
    before = anonymous_memory()
    uploads = [one.upload for one in receive(files)]
    assert all(isinstance(one.parts["sums"].state, WeightsInFile) for one in uploads)
    totals = add_clients({one.client: one.parts["sums"] for one in uploads}, CLASSES)
    grown = anonymous_memory() - before
    assert torch.equal(totals.squares, 100 * part.state["squares"])
    size = files[0].stat().st_size
    assert size > 500_000
    assert grown < 30 * size  # some of what torch and Python keep, and not a hundred files


def anonymous_memory():
    """Bytes of this process that are in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


@pytest.mark.parametrize(
    "shares",
    [[("one", CLASSES[:2], 2)], [("one", "a", 2), ("two", "b", 3)], [("one", CLASSES, 4)]],
    ids=["one image a class", "one class a client", "a class twice"],
)
def test_few_images_give_a_head(shares):
    """No covariance, or that of rounding alone: distances to means decide."""
    uploads = []
    for client, classes, number in shares:
        upload = tiny_sums(client, SMALL_SUMS[1], tuple(classes))
        labels = torch.arange(number) % len(classes)
        phi = torch.randn(number, 8, dtype=torch.float64, generator=rng(0, client))
        halves = torch.arange(number) % 2
        made = sums_part(phi, labels, halves, classes=tuple(classes), per_class=True)
        part = replace(upload.parts["sums"], state=made.state)
        counts = tuple(labels.bincount(minlength=len(classes)).tolist())
        uploads.append(
            replace(upload, parts={"sums": part}, num_examples=number, label_counts=counts)
        )
    server = replace(server_for(uploads), backbones=world(SMALL_SUMS[1]).server.backbones)
    for method in (
        *(GaussianHead(kind=kind) for kind in ("nearest-mean", "naive-bayes", "lda", "qda")),
        Analytic(),
        Analytic(shrinkage=0.0),
        LocalHeads(),
        LocalHeads(combine="average", head="ridge"),
        FedPft(samples=5, epochs=1),
    ):
        model = fuse(uploads, method, server).model
        assert model(torch.rand(3, *server.task.input_shape)).isfinite().all(), method
