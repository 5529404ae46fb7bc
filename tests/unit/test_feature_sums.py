"""Sums of features: equal to a plain computation, on one grid, split by the image, and with noise
of the stated size; and which sums are refused.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attar.backbones import Backbone
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import BundleError, DataError, SettingsError
from attar.nets import build_body, describe_net
from attar.nets.statistics import clip_length
from attar.privacy import describe_upload, list_revelations, list_small_classes
from attar.training import SumsFlags, SumsSettings, SumTables, make_sums
from attar.training.feature_pass import half_of
from attar.training.feature_sums import SHARES, check_size, noise_scales
from attar.training.gaussian import gaussian_mu
from attar.uploads import LARGEST_SUM, decode, encode

SHAPE = (1, 16, 16)
CLASSES = ("ring", "cross", "bar")
SPEC = ModelSpec.parse("lenet5")
WIDTH = 84


@pytest.fixture(scope="module")
def backbone():
    with torch.random.fork_rng(devices=[]):
        net = build_body(SPEC, SHAPE).eval()
    return Backbone("lenet5", net, Preprocess.plain(SHAPE), WIDTH, describe_net(SPEC), SPEC)


def draw(images=40, width=5, seed=0, length=0.0):
    draws = torch.Generator().manual_seed(seed)
    phi = torch.randn(images, width, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, 3, (images,), generator=draws)
    halves = torch.randint(0, 2, (images,), generator=draws)
    return (clip_length(phi, length) if length else phi), labels, halves


def tables_of(phi, labels, halves, *, per_class=False, batch=7):
    tables = SumTables(3, phi.shape[1], per_class=per_class)
    for start in range(0, len(phi), batch):
        rows = slice(start, start + batch)
        tables.add(phi[rows], labels[rows], halves[rows])
    return tables


def summed(backbone, *drawn, **values):
    """An upload of what was drawn; its noise, where there is any, is always the same."""
    how = SumsSettings(features=drawn[0].shape[1], **values)
    tables = tables_of(*drawn, per_class=how.per_class)
    part = make_sums(tables, backbone, CLASSES, how, torch.Generator().manual_seed(0))
    counts = part.state["counts"].sum(0).tolist()
    return Upload("berlin", {"sums": part}, sum(counts), tuple(counts))


# What the numbers are


@pytest.mark.parametrize("per_class", [False, True])
def test_make_sums_plain_computation(backbone, per_class):
    phi, labels, halves = draw()
    state = summed(backbone, phi, labels, halves, per_class=per_class, bits=20).parts["sums"].state
    width = phi.shape[1]
    for half in range(2):
        rows = [row for row in range(len(phi)) if halves[row] == half]
        for label in range(3):
            own = [row for row in rows if labels[row] == label]
            assert int(state["counts"][half, label]) == len(own)
            for i in range(width):
                exact = math.fsum(float(phi[row, i]) for row in own) * 2**20
                assert abs(int(state["sums"][half, label, i]) - exact) <= 0.5 + 1e-6
        for matrix in range(3 if per_class else 1):
            own = [row for row in rows if not per_class or labels[row] == matrix]
            place = 0
            for i in range(width):
                for j in range(i + 1):  # the lower triangle row by row
                    exact = (
                        math.fsum(float(phi[row, i]) * float(phi[row, j]) for row in own) * 2**20
                    )
                    assert abs(int(state["squares"][half, matrix, place]) - exact) <= 0.5 + 1e-6
                    place += 1
            assert place == state["squares"].shape[2]


def test_sum_tables_batches_do_not_matter():
    drawn = draw(200, 6)
    one = tables_of(*drawn, batch=200).state()
    many = tables_of(*drawn, batch=3).state()
    for name in one:
        torch.testing.assert_close(one[name], many[name], atol=1e-12, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=30, max_size=30), st.integers(0, 5))
def test_sums_of_any_split_are_near_those_of_all(backbone, owners, seed):
    """Each client rounds once, so K clients are at most K / 2 steps of the grid from the whole."""
    phi, labels, halves = draw(30, 4, seed)
    whole = summed(backbone, phi, labels, halves).parts["sums"].state
    owner = torch.tensor(owners)
    clients = [owner == number for number in sorted(set(owners))]
    parts = [summed(backbone, phi[c], labels[c], halves[c]).parts["sums"].state for c in clients]
    for name, tensor in whole.items():
        total = sum(part[name] for part in parts)
        limit = 0 if name == "counts" else (len(clients) + 1) / 2
        assert int((total - tensor).abs().max()) <= limit


def test_half_of_is_fair_and_of_the_image_alone():
    import hashlib

    halves = [half_of(hashlib.sha256(str(number).encode()).digest()) for number in range(4000)]
    assert set(halves) == {0, 1}
    assert abs(np.mean(halves) - 0.5) < 0.03


def test_make_sums_options(backbone):
    spec = summed(backbone, *draw(), clip=2.0, per_class=True).parts["sums"].spec
    assert dict(spec.options) == {
        "backbone": "lenet5",
        "fingerprint": backbone.fingerprint(5, 2.0, 24),
        "features": WIDTH,
        "dimensions": 5,
        "clip": 2.0,
        "per_class": True,
    }


def test_make_sums_too_large(backbone):
    phi, labels, halves = draw()
    with pytest.raises(DataError, match="too large for a grid"):
        summed(backbone, phi * 1e6, labels, halves)
    assert summed(backbone, phi * 1e6, labels, halves, bits=1)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"features": 5000}, "features = 5000"),
        ({"bits": 0}, "bits = 0"),
        ({"clip": -1.0}, "clip = -1"),
        ({"epsilon": 1.0}, "epsilon without clip"),
        ({"epsilon": 0.0, "clip": 1.0}, "epsilon above 0"),
        ({"epsilon": 1.0, "clip": 1.0, "delta": 0.0}, "delta above 0"),
        ({"epsilon": 101.0, "clip": 1.0}, "at most 100"),
    ],
)
def test_sums_settings_refused(values, says):
    with pytest.raises(SettingsError, match=says):
        SumsSettings(**values)


def test_sums_flags():
    assert SumsFlags().settings(None) is None
    assert SumsFlags().settings(2.0) is None  # the gradient's, of training
    with pytest.raises(SettingsError, match="--features, --per-class: needs --backbone"):
        SumsFlags(features=2, per_class=True).settings(None)
    flags = SumsFlags(backbone="x", features=8, epsilon=2.0)
    assert flags.settings(1.5) == SumsSettings(features=8, clip=1.5, epsilon=2.0)


def test_check_size(backbone):
    with pytest.raises(SettingsError, match="lenet5 has 84"):
        check_size(backbone, 3, SumsSettings(features=84))
    check_size(backbone, 3, SumsSettings(features=83))
    with pytest.raises(SettingsError, match="--features 256"):
        check_size(backbone, 100_000, SumsSettings(per_class=True))
    wide = Backbone("wide", backbone.net, backbone.preprocess, 5000, "wide")
    with pytest.raises(SettingsError, match="5000 features"):
        check_size(wide, 3, SumsSettings())


# Noise

vectors = st.lists(st.floats(-3, 3), min_size=4, max_size=4)


@settings(max_examples=60, deadline=None)
@given(vectors, st.integers(0, 2), st.integers(0, 1), st.floats(0.1, 8), st.booleans())
def test_joint_sensitivity(vector, label, half, clip, per_class):
    """One image more changes the release by at most mu in units of its noise: counts, sums and
    whole matrices together, and nothing of the other half. A phi of the full length attains it.
    """
    epsilon, delta = 1.0, 1e-5
    scales = noise_scales(epsilon, delta, clip)
    others = draw(12, 4, length=clip)
    one = clip_length(torch.tensor([vector], dtype=torch.float64), clip)
    neighbour = (
        torch.cat([others[0], one]),
        torch.cat([others[1], torch.tensor([label])]),
        torch.cat([others[2], torch.tensor([half])]),
    )
    without = tables_of(*others, per_class=per_class).state()
    with_it = tables_of(*neighbour, per_class=per_class).state()
    changes = {name: (with_it[name] - without[name]) / scales[name] for name in scales}
    moved = math.sqrt(sum(float(change.square().sum()) for change in changes.values()))
    mu = gaussian_mu(epsilon, delta)
    assert moved <= mu * (1 + 1e-9)
    for change in changes.values():
        assert not change[1 - half].any()
    full = one.norm() >= clip * (1 - 1e-12)
    assert not full or moved == pytest.approx(mu)
    assert sum(SHARES.values()) == pytest.approx(1)


def test_noise_has_the_stated_size(backbone):
    """Standard deviations on counts, sums, the diagonal, and beside it, where two are averaged."""
    clip, epsilon, width = 2.0, 0.5, 40
    how = SumsSettings(features=width, clip=clip, epsilon=epsilon, per_class=True)
    scales = noise_scales(epsilon, how.delta, clip)
    tables = SumTables(3, width, per_class=True)
    draws = torch.Generator().manual_seed(5)
    releases = [make_sums(tables, backbone, CLASSES, how, draws).state for _ in range(60)]
    stacked = {
        name: torch.stack([release[name] for release in releases]).double() for name in scales
    }
    assert float(stacked["counts"].std()) == pytest.approx(scales["counts"], rel=0.15)
    grid = 2.0**-how.bits
    assert float(stacked["sums"].std()) * grid == pytest.approx(scales["sums"], rel=0.03)
    places = torch.arange(width)
    on = places * (places + 3) // 2
    beside = torch.ones(stacked["squares"].shape[-1], dtype=torch.bool)
    beside[on] = False
    diagonal = float(stacked["squares"][..., on].std()) * grid
    others = float(stacked["squares"][..., beside].std()) * grid
    assert diagonal == pytest.approx(scales["squares"], rel=0.05)
    assert others == pytest.approx(scales["squares"] / math.sqrt(2), rel=0.02)
    halves = stacked["sums"][:, 0].flatten(), stacked["sums"][:, 1].flatten()
    assert abs(float(torch.corrcoef(torch.stack(halves))[0, 1])) < 0.05


def test_noise_is_drawn_anew(backbone):
    tables = tables_of(*draw(length=1.0))
    how = SumsSettings(features=5, clip=1.0, epsilon=1.0)
    first, second = (make_sums(tables, backbone, CLASSES, how).state["sums"] for _ in range(2))
    assert not torch.equal(first, second)


# At the server


def test_upload_round_trip(backbone):
    upload = summed(backbone, *draw())
    again = decode(encode(upload))
    for name, tensor in upload.parts["sums"].state.items():
        assert torch.equal(tensor, again.parts["sums"].state[name])
    assert (again.num_examples, again.label_counts) == (upload.num_examples, upload.label_counts)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 30),
    st.integers(1, 6),
    st.integers(0, 100),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.booleans(),
    st.sampled_from([1, 4, 24, 40]),
    st.sampled_from([1e-9, 1.0, 100.0]),
)
def test_true_sums_are_accepted(backbone, images, width, seed, clip, per_class, bits, size):
    assume(bits < 40 or size < 100)  # beyond the largest number
    phi, labels, halves = draw(images, width, seed)
    phi = clip_length(phi * size, clip) if clip else phi * size
    encode(summed(backbone, phi, labels, halves, clip=clip, per_class=per_class, bits=bits))


def broken(upload, name, place, value, **changes):
    """The upload with one number changed."""
    part = upload.parts["sums"]
    state = {key: tensor.clone() for key, tensor in part.state.items()}
    state[name][place] = value
    return Upload(
        **{
            **vars(upload),
            "parts": {"sums": Part(part.spec, state, part.classes, part.preprocess)},
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("name", "place", "value", "says"),
    [
        ("counts", (0, 1), -1, "negative counts"),
        ("counts", (0, 1), 1000, "counts add up to"),
        ("sums", (0, 1, 2), 2**53 + 1, "too large"),
        ("sums", (0, 1, 2), -(2**63), "too large"),
        ("sums", (1, 0, 3), 20 * 2**24, "longer than its count and the clip of 2"),
        ("squares", (0, 0, 2), -1, "negative sum of squares"),
        ("squares", (0, 0, 2), 400 * 2**24, "squares are larger"),
        ("squares", (0, 0, 2), 0, "a variance would be negative"),
        ("squares", (1, 0, 4), 17 * 2**24, "no sum of products"),
        ("squares", (1, 0, 4), -17 * 2**24, "no sum of products"),
    ],
)
def test_impossible_sums_refused(backbone, name, place, value, says):
    upload = summed(backbone, *draw(length=2.0), clip=2.0)
    with pytest.raises(BundleError, match=f"berlin(.|\n)*{says}"):
        encode(broken(upload, name, place, value))


def test_impossible_sums_refused_by_reader(backbone, tmp_path):
    """Also where the writer did not check: the file says who, the server why."""
    from attar.uploads import receive
    from forge import reseal

    file = encode(summed(backbone, *draw()))
    at = file.index(b'"sums/sums":{')
    start = int(file[at:].split(b'"data_offsets":[')[1].split(b",")[0])
    body = 8 + int.from_bytes(file[:8], "little")
    damaged = bytearray(file)
    damaged[body + start : body + start + 8] = (2**60).to_bytes(8, "little")
    (tmp_path / "berlin.attar").write_bytes(reseal(bytes(damaged)))
    with pytest.raises(BundleError, match=r"berlin\.attar: .*too large"):
        receive([tmp_path / "berlin.attar"])


def test_other_problems_refused(backbone):
    upload = summed(backbone, *draw())
    empty = (draw()[0], torch.zeros(40, dtype=torch.int64), draw()[2])
    alone = summed(backbone, *empty)
    with pytest.raises(BundleError, match="sums of a class without images"):
        encode(broken(alone, "sums", (0, 2, 0), 5))
    with pytest.raises(BundleError, match="num_examples"):
        encode(Upload(**{**vars(upload), "num_examples": 41, "label_counts": None}))
    counts = upload.label_counts
    changed = (counts[0] + 1, counts[1] - 1, counts[2])
    with pytest.raises(BundleError, match="not the label counts"):
        encode(Upload(**{**vars(upload), "label_counts": changed}))


def test_noisy_sums_accepted_but_not_beside_a_classifier(backbone):
    """Negative counts and indefinite matrices are what noise makes."""
    upload = summed(backbone, *draw(length=1.0), clip=1.0, epsilon=0.1)
    state = upload.parts["sums"].state
    part = upload.parts["sums"]
    assert bool((state["squares"][..., [0, 2, 5]] < 0).any())  # of the diagonal
    noisy = Upload("berlin", {"sums": part}, 1)
    assert decode(encode(noisy)).parts["sums"].spec == part.spec
    with pytest.raises(BundleError, match="too large"):
        encode(broken(noisy, "counts", (0, 0), LARGEST_SUM + 1))
    net = SPEC.build(SHAPE, 3, 0)
    classifier = Part(SPEC, net.state_dict(), CLASSES, Preprocess.plain(SHAPE))
    both = {"sums": part, "classifier": classifier}
    with pytest.raises(BundleError, match="beside classifier, which it does not cover"):
        encode(Upload("berlin", both, 1))
    exact = summed(backbone, *draw())
    encode(Upload(**{**vars(exact), "parts": {**exact.parts, "classifier": classifier}}))
    options = {**dict(part.spec.options), "clip": 0.0}
    claimed = Part(ModelSpec.of("feature-sums", options), state, CLASSES, part.preprocess)
    with pytest.raises(BundleError, match="epsilon without clip"):
        encode(Upload("berlin", {"sums": claimed}, 1))


# What is said of them


def test_revelations(backbone):
    phi, labels, halves = draw(60)
    labels[:58] = 0
    labels[58:] = 1
    upload = summed(backbone, phi, labels, halves)
    assert list_small_classes(upload.parts["sums"]) == ["cross"]
    said = " ".join(list_revelations(upload))
    assert "60 images were summed" in said
    assert "exactly how many images of each class" in said
    assert "that image's features" in said
    assert "cross" in said
    assert "no noise was added" in said
    described = describe_upload(upload, 10)["parts"]["sums"]["sums"]
    assert described["few"] == ["cross"]
    assert np.sum(described["counts"]) == 60
    noisy = summed(backbone, *draw(length=1.0), clip=1.0, epsilon=4.0)
    said = " ".join(list_revelations(Upload("berlin", noisy.parts, 37)))
    assert "about 37 images" in said
    assert "(4, 1e-05)-differential privacy for adding or removing one image" in said
    assert list_small_classes(noisy.parts["sums"]) == []
