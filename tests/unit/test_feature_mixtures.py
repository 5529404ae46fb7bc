"""Mixtures of Gaussians beside the sums of a client: EM, the file, what is refused, sampling."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from attar import METHODS, fuse
from attar.backbones import backbone_of
from attar.core import ModelSpec, Part, Preprocess, Server, Task, Upload
from attar.data import Split
from attar.data.streams import stream_split
from attar.errors import BundleError, NeedsError, SettingsError, Stopped
from attar.methods.fedpft import draw_mixture
from attar.privacy import describe_upload, list_few_per_gaussian, list_revelations
from attar.training import (
    SumsPass,
    SumsSettings,
    feature_mixtures,
    feature_pass,
    kept_features,
    sum_features,
)
from attar.training.feature_mixtures import FeatureFile, Fitted, fit_mixture, log_density
from attar.uploads import MIXTURES, decode, encode

SHAPE = (3, 16, 16)
KINDS = ["spherical", "diagonal", "full"]


def file_of(phi):
    kept = FeatureFile(None, phi.shape[1])
    kept.write(0, phi)
    return kept


def three_groups(number=900):
    """Rows of three groups that are far apart, of unequal sizes; and the means of the groups."""
    draws = torch.Generator().manual_seed(0)
    means = torch.tensor([[8.0, 0, 0, 1], [-8, 0, 4, 0], [0, 9, 0, 0]], dtype=torch.float64)
    groups = torch.arange(number) % 6
    groups = torch.tensor([0, 0, 0, 1, 1, 2])[groups]
    spread = torch.tensor([1.0, 0.5, 2.0, 1.0], dtype=torch.float64)
    rows = means[groups] + spread * torch.randn(number, 4, generator=draws, dtype=torch.float64)
    return rows, means


@pytest.mark.parametrize("covariance", KINDS)
def test_fit_mixture_finds_groups(covariance):
    rows, means = three_groups()
    fitted = fit_mixture(
        file_of(rows), np.arange(len(rows)), 3, covariance, torch.Generator().manual_seed(1)
    )
    order = torch.cdist(means, fitted.means).argmin(1)
    assert sorted(order.tolist()) == [0, 1, 2]
    torch.testing.assert_close(fitted.means[order], means, atol=0.3, rtol=0)
    expected = torch.tensor([1 / 2, 1 / 3, 1 / 6], dtype=torch.float64)
    torch.testing.assert_close(fitted.weights[order], expected, atol=0.02, rtol=0)
    if covariance == "diagonal":
        variances = torch.tensor([1, 0.25, 4, 1], dtype=torch.float64).expand(3, 4)
        torch.testing.assert_close(fitted.spreads[order], variances, atol=0.5, rtol=0.3)


@pytest.mark.parametrize("covariance", KINDS)
def test_one_gaussian_is_the_mean_and_covariance(covariance):
    rows, _ = three_groups(300)
    rows = rows.float().double()
    places = np.arange(0, 300, 2)
    fitted = fit_mixture(file_of(rows), places, 1, covariance, torch.Generator().manual_seed(1))
    chosen = rows[places]
    torch.testing.assert_close(fitted.means[0], chosen.mean(0))
    floor = feature_mixtures.FLOOR * chosen.var(0, correction=0).mean()
    matrix = chosen.T.cov(correction=0)
    if covariance == "full":
        made = fitted.spreads[0] @ fitted.spreads[0].T
        torch.testing.assert_close(made, matrix + floor * torch.eye(4), atol=1e-6, rtol=1e-6)
    elif covariance == "diagonal":
        torch.testing.assert_close(fitted.spreads[0], matrix.diagonal())
    else:
        torch.testing.assert_close(fitted.spreads[0, 0], matrix.diagonal().mean())


@pytest.mark.parametrize("covariance", KINDS)
def test_log_density_by_torch(covariance):
    draws = torch.Generator().manual_seed(3)
    rows = torch.randn(7, 3, generator=draws, dtype=torch.float64)
    means = torch.randn(2, 3, generator=draws, dtype=torch.float64)
    factors = torch.randn(2, 3, 3, generator=draws, dtype=torch.float64).tril()
    factors.diagonal(dim1=-2, dim2=-1).abs_().add_(0.3)
    if covariance != "full":
        factors = factors.diagonal(dim1=-2, dim2=-1)
        if covariance == "spherical":
            factors = factors[:, :1].expand(2, 3)
        spreads = factors.square()[:, : 1 if covariance == "spherical" else 3]
        factors = factors.diag_embed()
    else:
        spreads = factors
    expected = torch.stack(
        [
            torch.distributions.MultivariateNormal(mean, scale_tril=factor).log_prob(rows)
            for mean, factor in zip(means, factors, strict=True)
        ],
        1,
    )
    weights = torch.full((2,), 0.5, dtype=torch.float64)
    torch.testing.assert_close(log_density(rows, Fitted(weights, means, spreads)), expected)


def test_likelihood_never_falls(monkeypatch):
    rows, _ = three_groups()
    found = []
    step = feature_mixtures._em_step

    def watched(*given):
        likelihood, fitted = step(*given)
        found.append(likelihood)
        return likelihood, fitted

    monkeypatch.setattr(feature_mixtures, "_em_step", watched)
    fit_mixture(file_of(rows), np.arange(900), 5, "diagonal", torch.Generator().manual_seed(2))
    assert len(found) > 3
    assert all(after >= before - 1e-9 for before, after in pairwise(found))


def test_chunks_are_rounding(monkeypatch):
    """Memory holds some rows at a time; in how many pieces is a matter of the last digits."""
    rows, _ = three_groups()
    places = np.arange(900)
    whole = fit_mixture(file_of(rows), places, 3, "full", torch.Generator().manual_seed(2))
    seen = []
    pieces = FeatureFile.rows

    def in_pieces(self, places):
        for chunk in pieces(self, places):
            seen.append(len(chunk))
            yield from chunk.split(100)

    monkeypatch.setattr(FeatureFile, "rows", in_pieces)
    # the first means are drawn from the first piece, so start where the other one ended
    again = feature_mixtures._em_step(
        file_of(rows), places, torch.zeros(4, dtype=torch.float64), whole, "full", 1e-3
    )[1]
    monkeypatch.undo()
    once = feature_mixtures._em_step(
        file_of(rows), places, torch.zeros(4, dtype=torch.float64), whole, "full", 1e-3
    )[1]
    assert seen == [900]
    for name in ("weights", "means", "spreads"):
        torch.testing.assert_close(
            getattr(again, name), getattr(once, name), rtol=1e-10, atol=1e-10
        )


def lenet():
    spec = ModelSpec.parse("lenet5")
    state = spec.build(SHAPE, 4, 0).state_dict()
    return Part(spec, state, tuple("abcd"), Preprocess.plain(SHAPE))


def job(number=120, settings=None):
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (number, 16, 16, 3)).astype(np.uint8)
    labels = np.arange(number) % 5 % 3  # 48, 48 and 24 images
    stream = stream_split(Split(images, labels), ("a", "b", "c", "none"), "made up")
    how = settings or SumsSettings(features=12, clip=1.0, mixture=4)
    return SumsPass(stream, backbone_of("lenet", lenet()), how, "berlin")


@pytest.fixture(scope="module")
def upload():
    return sum_features(job())


def test_sum_features_with_mixtures(upload):
    """The part stands beside the sums, which are those without it; again with the same bits."""
    part = upload.parts[MIXTURES]
    assert part.state["counts"].tolist() == [48, 48, 24, 0]
    torch.testing.assert_close(
        part.state["weights"].sum(1), torch.tensor([1.0, 1, 1, 0]), atol=1e-6, rtol=0
    )
    sums = upload.parts["sums"].state["sums"].sum(0).double() / 2**24
    means = (part.state["weights"][:, :, None] * part.state["means"]).sum(1)[:3]
    counts = part.state["counts"][:3, None]
    torch.testing.assert_close(means.double(), sums[:3] / counts, atol=1e-5, rtol=1e-5)
    plain = sum_features(job(settings=SumsSettings(features=12, clip=1.0)))
    for name, value in plain.parts["sums"].state.items():
        assert torch.equal(value, upload.parts["sums"].state[name])
    again = sum_features(job())
    other = sum_features(job(settings=SumsSettings(features=12, clip=1.0, mixture=4, seed=1)))
    for name, value in part.state.items():
        assert torch.equal(value, again.parts[MIXTURES].state[name])
    assert not torch.equal(part.state["means"], other.parts[MIXTURES].state["means"])
    assert decode(encode(upload)).parts[MIXTURES].spec == part.spec


def test_few_images_get_few_gaussians():
    """One for every five images."""
    upload = sum_features(job(number=25))  # 10, 10 and 5 images
    used = (upload.parts[MIXTURES].state["weights"] > 0).sum(1).tolist()
    assert used == [2, 2, 1, 0]


def test_features_go_on_after_a_stop(tmp_path, monkeypatch):
    """The features of a pass that was broken off are beside its sums; a lost file starts anew."""
    partial = tmp_path / ".berlin.sums"
    monkeypatch.setattr(feature_pass, "WATCH_SECONDS", 0)  # told after every batch

    def stop(report):
        if report.step >= 512:
            raise KeyboardInterrupt

    with pytest.raises(Stopped):
        sum_features(job(900), partial=partial, watch=stop, save_seconds=0)
    assert partial.is_file()
    assert kept_features(partial).stat().st_size == 4 * 12 * 512
    done = []
    resumed = sum_features(
        job(900), partial=partial, watch=lambda report: done.append(report.step), save_seconds=0
    )
    straight = sum_features(job(900))
    assert done[0] >= 256
    kept_features(partial).unlink()
    anew = sum_features(job(900), partial=partial, save_seconds=0)
    for made in (resumed, anew):
        for name, value in straight.parts[MIXTURES].state.items():
            assert torch.equal(value, made.parts[MIXTURES].state[name]), name


def test_settings_refuse_noise_beside_mixtures():
    with pytest.raises(SettingsError, match="cannot be summed") as caught:
        SumsSettings(mixture=65, epsilon=1.0, clip=1.0)
    assert any("0 to 64" in problem for problem in caught.value.problems)
    assert any("does not cover mixtures" in problem for problem in caught.value.problems)


def damaged(upload, **changes):
    part = upload.parts[MIXTURES]
    state = {name: value.clone() for name, value in part.state.items()}
    for name, change in changes.items():
        change(state[name])
    return replace(upload, parts={**upload.parts, MIXTURES: replace(part, state=state)})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": lambda w: w[0].mul_(1.1)}, "do not add up to 1"),
        ({"weights": lambda w: w[3, 0].fill_(1)}, "do not add up to 1"),
        ({"weights": lambda w: w[0].copy_(torch.tensor([2.0, -1, 0, 0]))}, "a negative weight"),
        ({"spreads": lambda s: s[0, 0, 0].fill_(-1e-6)}, "a negative variance"),
        ({"means": lambda m: m[0, 0].fill_(math.nan)}, "NaN or infinite"),
        ({"means": lambda m: m[0, 0].fill_(1.0)}, "longer than the clip"),
        ({"counts": lambda c: c[0].add_(1)}, "other numbers of images than its sums"),
    ],
)
def test_wrong_mixtures_are_refused(upload, changes, says):
    with pytest.raises(BundleError) as caught:
        encode(damaged(upload, **changes))
    assert says in str(caught.value)


def test_mixtures_belong_to_the_sums(upload):
    alone = replace(upload, parts={MIXTURES: upload.parts[MIXTURES]})
    with pytest.raises(BundleError, match="without the sums"):
        encode(alone)
    part = upload.parts[MIXTURES]
    spec = ModelSpec.of(part.spec.arch, {**dict(part.spec.options), "fingerprint": "0" * 64})
    other = {**upload.parts, MIXTURES: replace(part, spec=spec)}
    with pytest.raises(BundleError, match="another backbone than the sums"):
        encode(replace(upload, parts=other))
    wrong = {**upload.parts, MIXTURES: upload.parts["sums"]}
    with pytest.raises(BundleError, match="not a mixtures"):
        encode(replace(upload, parts=wrong))


def test_inspect_names_small_groups(upload):
    weights = torch.tensor([0.05, 0.95, 0.0, 0.0])
    small = damaged(upload, weights=lambda w: w[1].copy_(weights))
    assert "b" in list_few_per_gaussian(small)  # 0.05 of 48 images
    described = describe_upload(small, 1)["parts"][MIXTURES][MIXTURES]
    assert described["components"] == 4
    assert "b" in described["few"]
    text = " ".join(list_revelations(small))
    assert "up to 4 Gaussians" in text
    assert "a group of a few images" in text
    assert "label counts were withheld" not in text


@pytest.mark.parametrize("covariance", KINDS)
def test_draw_mixture_has_its_moments(covariance):
    """Mean and covariance of many draws are those of the mixture."""
    draws = torch.Generator().manual_seed(5)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    means = torch.tensor([[0.0, 3.0], [2.0, -1.0]], dtype=torch.float64)
    factors = torch.tensor([[[1.0, 0], [0.5, 0.7]], [[0.4, 0], [-0.2, 0.3]]], dtype=torch.float64)
    spreads = {
        "spherical": torch.tensor([[2.0], [0.5]], dtype=torch.float64),
        "diagonal": torch.tensor([[2.0, 1.0], [0.5, 0.1]], dtype=torch.float64),
        "full": factors[:, [0, 1, 1], [0, 0, 1]],
    }[covariance]
    if covariance == "full":
        matrices = factors @ factors.mT
    else:
        matrices = spreads.expand(2, 2).diag_embed()
    phi = draw_mixture(weights, means, spreads, covariance, 200_000, draws)
    mean = weights @ means
    second = (weights[:, None, None] * (matrices + means[:, :, None] * means[:, None])).sum(0)
    torch.testing.assert_close(phi.mean(0), mean, atol=0.02, rtol=0)
    torch.testing.assert_close(phi.T.cov(), second - mean.outer(mean), atol=0.06, rtol=0)


def test_fedpft_from_mixtures(upload):
    """The head is trained on draws from the mixtures, and the record says so; a client without
    mixtures is named.
    """
    net = lenet()
    task = Task(SHAPE, ("a", "b", "c", "none"))
    server = Server(task, net.spec, net.preprocess, backbones={"lenet": net})
    method = METHODS["fedpft"](gaussians="mixtures", samples=60, epochs=2)
    context = method.prepare([upload], server)
    sampled = context.sampled[0]
    assert sampled.labels.bincount().tolist()[:3] == [60, 60, 60]
    mean = (sampled.phi[sampled.labels == 0].double().mean(0) * sampled.spread) + sampled.mean
    sums = upload.parts["sums"].state["sums"].sum(0)[0].double() / 2**24 / 48
    assert (mean - sums).norm() < 0.3 * sums.norm()
    result = fuse([upload], method, server).result
    assert any("sampled from the clients' mixtures" in remark for remark in result.remarks)
    without = Upload(
        "oslo", {"sums": upload.parts["sums"]}, upload.num_examples, upload.label_counts
    )
    with pytest.raises(NeedsError, match="No mixtures were sent by oslo"):
        method.prepare([upload, without], server)
