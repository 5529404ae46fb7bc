"""The client's half of feature statistics: what is measured, what is refused, and what noise
promises.
"""

import math
from dataclasses import replace

import pytest
import torch

from attar.blocks.ensemble import build_mixture
from attar.core import ModelSpec, Part, Preprocess
from attar.errors import BundleError, DataError, NeedsError, RunError, SettingsError, SpecError
from attar.models import Classifier, load_model, save_model
from attar.privacy import check_membership, describe_upload, list_revelations
from attar.privacy.membership import auc
from attar.testing import CLASSES, SHAPE, SMALL_VITS, tiny_statistics, tiny_upload
from attar.training import (
    ClientData,
    StatisticsFlags,
    StatisticsSettings,
    add_statistics,
    penultimate_features,
    statistics,
)
from attar.training.gaussian import gaussian_delta, gaussian_mu
from attar.training.statistics import (
    FIRST_RELEASE,
    SENSITIVITY,
    GaussianMechanism,
    measure_statistics,
    pool_covariance,
    shrink_covariance,
    whitening_matrix,
)
from attar.uploads import decode, encode, feature_width

OF = Part(ModelSpec("lenet5"), {}, CLASSES, Preprocess.centred(SHAPE))


def cloud(per_class=50, width=4, classes=3, seed=0):
    """Features around means (3c, 0, ...), with unlike spreads."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    spread = torch.linspace(0.5, 2.0, width)
    features = torch.randn(len(labels), width, generator=draws) * spread
    features[:, 0] += 3.0 * labels
    return features, labels


def test_measure_statistics_means_and_whitening():
    features, labels = cloud()
    found = measure_statistics(features, labels, OF, StatisticsSettings(shrinkage=1e-9))
    means = torch.stack([features[labels == c].mean(0) for c in range(3)])
    assert torch.allclose(found.state["means"], means, atol=1e-5)
    apart = features - means[labels]
    covariance = apart.T @ apart / (len(features) - 3)
    net = found.build()
    w = net.whitening[net.places] * net.lower
    assert torch.allclose(w @ w.mT, torch.linalg.inv(covariance), rtol=1e-3, atol=1e-4)
    distances = net.distances(features)
    assert float(found.state["own_mean"]) == pytest.approx(float(distances.mean()), rel=1e-4)
    assert float(found.state["own_spread"]) == pytest.approx(
        float(distances.std(correction=0)), rel=1e-3
    )


def test_pool_covariance_by_hand():
    """Class 0: 0 and 2, class 1: 10 and 14. Within: (1 + 1 + 4 + 4) / (4 - 2) = 5."""
    squares = torch.tensor([[0.0 + 4 + 100 + 196]]).double()
    assert float(
        pool_covariance(
            squares, torch.tensor([2.0, 2.0]).double(), torch.tensor([[1.0], [12.0]]).double()
        )
    ) == pytest.approx(5)


def test_shrink_covariance_by_hand():
    """diag(1, 3), a = 1/2: half of it and half of 2 I -> diag(1.5, 2.5); no spread at all -> the
    identity.
    """
    assert shrink_covariance(torch.diag(torch.tensor([1.0, 3.0])), 0.5).tolist() == [
        [1.5, 0.0],
        [0.0, 2.5],
    ]
    assert shrink_covariance(torch.zeros(2, 2), 0.5).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert torch.allclose(
        whitening_matrix(torch.diag(torch.tensor([4.0, 1.0]))), torch.diag(torch.tensor([0.5, 1.0]))
    )


def test_measure_statistics_leaves_small_classes_out():
    features, labels = cloud()
    labels[labels == 2] = torch.tensor([0] * 46 + [2] * 4)
    found = measure_statistics(features, labels, OF)
    assert found.state["held"].tolist() == [True, True, False]
    assert not found.state["means"][2].any()
    assert measure_statistics(features[:4], labels[:4], OF) is None
    upload = tiny_upload("a")
    few = ClientData(
        "a", torch.zeros(3, *SHAPE, dtype=torch.uint8), torch.tensor([0, 1, 2]), CLASSES
    )
    assert add_statistics(upload, few) == upload


def test_measure_statistics_projects_wide_features():
    features, labels = cloud(per_class=220, width=2048)
    found = measure_statistics(features, labels, OF)
    assert dict(found.spec.options)["dimensions"] == 64
    assert sum(t.numel() * t.element_size() for t in found.state.values()) < 10_000
    assert found.build()(features)[1].mean().abs() < 0.1


def test_measure_statistics_of_equal_images():
    features = torch.ones(60, 4)
    found = measure_statistics(features, torch.zeros(60, dtype=torch.int64), OF)
    assert all(
        torch.isfinite(value).all() for value in found.state.values() if value.is_floating_point()
    )


# --- noise ----------------------------------------------------------------------------------------


def test_gaussian_mechanism_is_private_as_stated():
    """Balle and Wang, Theorem 8, at mu = 1, epsilon = 1: Phi(-1/2) - e Phi(-3/2) = 0.30854 -
    2.71828 * 0.06681 = 0.12693.
    """
    assert gaussian_delta(1.0, 1.0) == pytest.approx(0.126937, abs=1e-5)
    for epsilon, delta in ((1.0, 1e-5), (0.1, 1e-6), (8.0, 1e-3)):
        mu = gaussian_mu(epsilon, delta)
        assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(mu * 1.001, epsilon)
    noise = GaussianMechanism(StatisticsSettings(epsilon=1.0, clip=2.0))
    both = math.hypot(
        SENSITIVITY / noise.first_scale, SENSITIVITY / noise.second_scale
    )  # mu of the two releases together
    assert both == pytest.approx(gaussian_mu(1.0, 1e-5))
    assert SENSITIVITY / noise.first_scale == pytest.approx(both * math.sqrt(FIRST_RELEASE))


class FirstRelease(GaussianMechanism):
    """Adds nothing, and writes down the first release in the units of its sensitivity."""

    def __init__(self, settings):
        super().__init__(settings, torch.Generator())
        self.seen = []

    def release_first(self, exact, unit):
        self.seen.append((exact / unit).flatten())
        return exact

    def release_first_symmetric(self, exact, unit):
        self.release_first(exact.triu(), unit)
        return exact


def test_measure_statistics_sensitivity():
    """Neighbours: the same images and one more, of any feature and label. The second release is
    bounded by what it is divided by.
    """
    settings = StatisticsSettings(epsilon=1.0, clip=1.5)
    features, labels = cloud(per_class=200)
    draws = torch.Generator().manual_seed(5)
    for _ in range(5):
        more = torch.cat([features, 100 * torch.randn(1, 4, generator=draws)])
        more_labels = torch.cat([labels, torch.randint(0, 3, (1,), generator=draws)])
        released = []
        for some, of in ((features, labels), (more, more_labels)):
            mechanism = FirstRelease(settings)
            measure_statistics(some, of, OF, settings, mechanism)
            released.append(torch.cat(mechanism.seen))
        change = (released[1] - released[0]).norm()
        assert 1 <= change <= SENSITIVITY + 1e-6
    own = torch.tensor(
        [1.0, 1.0, 1.0]
    )  # the longest distance, its square and its number, each divided by its largest value
    assert own.norm() <= SENSITIVITY + 1e-6


def test_measure_statistics_noise_size():
    features, labels = cloud(per_class=400)
    settings = StatisticsSettings(epsilon=0.5, clip=6.0)
    first, again = (measure_statistics(features, labels, OF, settings) for _ in range(2))
    assert not torch.equal(first.state["means"], again.state["means"])
    seeded = [
        measure_statistics(
            features,
            labels,
            OF,
            settings,
            GaussianMechanism(settings, torch.Generator().manual_seed(1)),
        )
        for _ in range(2)
    ]
    assert torch.equal(seeded[0].state["means"], seeded[1].state["means"])
    clipped = first.build().project(features)
    exact = torch.stack([clipped[labels == c].mean(0) for c in range(3)])
    errors = torch.stack(
        [
            measure_statistics(features, labels, OF, settings).state["means"] - exact
            for _ in range(60)
        ]
    )
    sums = errors.std() * 400
    assert sums == pytest.approx(GaussianMechanism(settings).first_scale * 6.0, rel=0.15)
    assert dict(first.spec.options) == {"features": 4, "clip": 6.0, "epsilon": 0.5, "delta": 1e-5}


def test_statistics_settings_refuse_unbounded_noise():
    with pytest.raises(SettingsError, match="epsilon without clip"):
        StatisticsSettings(epsilon=1.0)
    with pytest.raises(SettingsError, match="delta below 1"):
        StatisticsSettings(epsilon=1.0, clip=1.0, delta=2.0)
    with pytest.raises(SettingsError, match="at most 100"):
        StatisticsSettings(epsilon=1000.0, clip=1.0)
    with pytest.raises(SettingsError, match="--statistics-epsilon: needs --statistics"):
        StatisticsFlags(statistics_epsilon=1.0).settings()


# --- on the way -----------------------------------------------------------------------------------


def test_encode_upload_with_statistics():
    upload = tiny_statistics(tiny_upload("a", "lenet5"))
    again = decode(encode(upload))
    assert all(
        torch.equal(again.parts["statistics"].state[k], v)
        for k, v in upload.parts["statistics"].state.items()
    )
    told = describe_upload(again, 1)["parts"]["statistics"]["statistics"]
    assert told["held"] == list(CLASSES)
    text = " ".join(list_revelations(again))
    assert "which classes are held" in text
    assert "no noise was added" in text


def test_encode_refuses_statistics_of_another_net():
    upload, other = (
        tiny_statistics(tiny_upload("a", "lenet5")),
        tiny_statistics(tiny_upload("a", "mlp:hidden=8,layers=1")),
    )
    swapped = replace(upload, parts={**upload.parts, "statistics": other.parts["statistics"]})
    with pytest.raises(BundleError, match="statistics of 8 features, lenet5 has 84"):
        encode(swapped)
    alone = replace(upload, parts={"statistics": upload.parts["statistics"]})
    with pytest.raises(BundleError, match="without the classifier"):
        encode(alone)
    posing = replace(upload, parts={"classifier": upload.parts["statistics"]})
    with pytest.raises(BundleError, match="is a statistics, not a classifier"):
        encode(posing)


@pytest.mark.parametrize(
    "net", ["lenet5", "resnet20", "vit:patch=8,width=12,depth=1,hidden=16", SMALL_VITS[1]]
)
def test_add_statistics_to_every_kind_of_head(net):
    upload = tiny_statistics(tiny_upload("a", net))
    part = upload.parts["classifier"]
    assert feature_width(part) == part.build().features(torch.zeros(1, *SHAPE)).shape[-1]
    assert decode(encode(upload)).parts.keys() == {"classifier", "statistics"}


def test_skeleton_of_statistics():
    spec = ModelSpec.parse("feature-statistics:features=100,dimensions=8")
    shapes = {name: value.shape for name, value in spec.skeleton(SHAPE, 3).state_dict().items()}
    assert shapes == {
        name: value.shape for name, value in spec.build(SHAPE, 3, 0).state_dict().items()
    }
    assert shapes["whitening"] == (36,)
    with pytest.raises(SpecError, match="at most 512"):
        ModelSpec.parse("feature-statistics:features=600").skeleton(SHAPE, 3)


def test_add_statistics_refuses_unknown_classes():
    stranger = ClientData(
        "a", torch.zeros(9, *SHAPE, dtype=torch.uint8), torch.zeros(9, dtype=torch.int64), ("owl",)
    )
    with pytest.raises(DataError, match="does not know: owl"):
        add_statistics(tiny_upload("a"), stranger)


def test_penultimate_features_need_a_head(monkeypatch):
    part = tiny_upload("a").parts["classifier"]
    monkeypatch.setattr(Part, "build", lambda self: torch.nn.Sequential(torch.nn.Flatten()))
    with pytest.raises(NeedsError, match="no penultimate features"):
        penultimate_features(part, torch.zeros(2, *SHAPE, dtype=torch.uint8))


def test_load_model_checks_statistics(tmp_path):
    uploads = [tiny_statistics(tiny_upload("a", "lenet5")), tiny_upload("b", "lenet5")]
    mixture = build_mixture("accord", uploads, CLASSES)
    images = torch.rand(3, *SHAPE)
    save_model(tmp_path / "m", mixture, card="")
    loaded = load_model(tmp_path / "m")
    assert loaded.description.gate.statistics[1] is None
    assert torch.equal(loaded(images), Classifier(mixture)(images))
    for old, new, reason in (
        ('"temperature": 1.5', '"temperature": 0', "temperature must be above 0"),
        ('"familiarity": 0.25', '"familiarity": -1', "familiarity must be a number"),
        ('"features": 84', '"features": 83', "statistics of 83 features, lenet5 has 84"),
    ):
        text = (tmp_path / "m" / "config.json").read_text()
        assert old in text
        (tmp_path / "m" / "config.json").write_text(text.replace(old, new))
        with pytest.raises(RunError, match=reason):
            load_model(tmp_path / "m")
        (tmp_path / "m" / "config.json").write_text(text)


# --- the attack -----------------------------------------------------------------------------------


def test_auc_by_hand():
    """Members 3, 1 against others 2, 1: of four pairs 3 > 2, 3 > 1, 1 < 2 and a tie: (1 + 1 + 0
    + 1/2) / 4.
    """
    assert auc(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 1.0])) == pytest.approx(0.625)


@pytest.mark.parametrize(
    ("images", "dimensions"),
    [(1280, 64), (640, 64), (639, 32), (160, 16), (159, 8), (40, 4), (39, None)],
)
def test_measure_statistics_dimensions(images, dimensions):
    """Ten images for each dimension, and nothing below four."""
    features = torch.randn(images, 100, generator=torch.Generator().manual_seed(0))
    found = measure_statistics(features, torch.arange(images) % 3, OF)
    assert (None if found is None else dict(found.spec.options)["dimensions"]) == dimensions


def test_check_membership_finds_members_of_small_classes(monkeypatch):
    upload, draws = tiny_upload("a", "lenet5"), torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (120, *SHAPE), dtype=torch.uint8, generator=draws)
    labels = torch.arange(120) % 3
    members = ClientData("a", pixels[:18], labels[:18], CLASSES)
    others = ClientData("others", pixels[60:], labels[60:], CLASSES)
    assert "statistics" not in add_statistics(upload, members).parts
    monkeypatch.setattr(statistics, "IMAGES_A_DIMENSION", 0)  # what that protects from
    few = check_membership(add_statistics(upload, members), members, others)
    assert few.images == 18
    assert few.distance > 0.75  # six images pull their mean towards themselves
    assert abs(few.loss - 0.5) < 0.25  # an untrained net remembers nothing
    noisy = add_statistics(
        upload,
        ClientData("a", pixels[:60], labels[:60], CLASSES),
        StatisticsSettings(epsilon=8.0, clip=1.0),
    )
    assert check_membership(noisy, members, others).distance < few.distance
    with pytest.raises(NeedsError, match="sent no statistics"):
        check_membership(upload, members, others)
