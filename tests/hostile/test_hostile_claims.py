"""What a file says of itself: impossible statements are refused, the others are called claims."""

from dataclasses import replace

import pytest
import torch

from attar.core import ModelSpec
from attar.errors import BundleError
from attar.privacy import describe_upload, list_claims
from attar.testing import tiny_statistics, tiny_sums, tiny_upload
from attar.training import StatisticsSettings, add_statistics
from attar.training.clients import ClientData
from attar.uploads import decode, encode
from e2e.commands import run
from forge import encode_unchecked

pytestmark = pytest.mark.hostile

GOOD = tiny_statistics(tiny_upload("evil", "lenet5"))


def stated(upload=GOOD, role="statistics", state=None, **options):
    """The upload with other options or values of its statistics."""
    part = upload.parts[role]
    spec = ModelSpec.of(part.spec.arch, {**dict(part.spec.options), **options})
    new = {name: (state or {}).get(name, lambda old: old)(old) for name, old in part.state.items()}
    changed = replace(part, spec=spec, state=new)
    return replace(upload, parts={**upload.parts, role: changed})


IMPOSSIBLE = {
    "delta of 1": (stated(epsilon=1.0, delta=1.0, clip=1.0), "below 1"),
    "delta of 4096": (stated(epsilon=1.0, delta=4096.0, clip=1.0), "below 1"),
    "epsilon alone": (stated(epsilon=1.0), "without clip and delta"),
    "epsilon without clip": (stated(epsilon=1.0, delta=1e-5), "without clip and delta"),
    "epsilon without delta": (stated(epsilon=1.0, clip=1.0), "without clip and delta"),
    "delta alone": (stated(delta=1e-5), "a delta without an epsilon"),
    "whitening of 0": (stated(state={"whitening": torch.zeros_like}), "diagonal is not positive"),
    "whitening below 0": (stated(state={"whitening": torch.neg}), "diagonal is not positive"),
    "spread of 0": (stated(state={"own_spread": torch.zeros_like}), "not positive"),
    "spread below 0": (stated(state={"own_spread": lambda old: -old}), "not positive"),
    "mean distance below 0": (stated(state={"own_mean": lambda old: -old}), "negative mean"),
    "nothing held": (stated(state={"held": torch.zeros_like}), "hold no class"),
    "means beyond the clip": (stated(clip=1e-30), "features were clipped"),
    "sums with a delta of 4096": (
        stated(tiny_sums("evil"), "sums", epsilon=1.0, delta=4096.0, clip=1.0),
        "below 1",
    ),
    "sums with a delta alone": (stated(tiny_sums("evil"), "sums", delta=0.5), "without an epsilon"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_statements_are_refused(name):
    upload, words = IMPOSSIBLE[name]
    with pytest.raises(BundleError) as caught:
        decode(encode_unchecked(upload))
    assert words in str(caught.value)
    with pytest.raises(BundleError, match=r"cannot be written"):
        encode(upload)


def test_epsilon_below_zero_is_refused():
    with pytest.raises(BundleError, match="at least 0"):
        decode(encode_unchecked(_raw_option("epsilon", -1.0)))


def _raw_option(name, value):
    part = GOOD.parts["statistics"]
    spec = ModelSpec(part.spec.arch, (*part.spec.options, (name, value)))
    return replace(GOOD, parts={**GOOD.parts, "statistics": replace(part, spec=spec)})


def noisy(epsilon=4.0):
    upload = tiny_upload("told", "lenet5")
    pixels = torch.randint(0, 256, (200, 1, 16, 16), dtype=torch.uint8)
    labels = torch.arange(200) % 3
    client = ClientData("told", pixels, labels, upload.parts["classifier"].classes)
    settings = StatisticsSettings(epsilon=epsilon, clip=1.0)
    measured = add_statistics(
        replace(upload, num_examples=200, label_counts=(67, 67, 66)), client, settings
    )
    assert "statistics" in measured.parts
    return measured


def test_list_claims_calls_honest_noise_a_claim():
    (claim,) = list_claims(decode(encode(noisy())))
    assert "no number in the file proves it" in claim
    assert "CONTRADICTED" not in claim
    assert list_claims(decode(encode(GOOD))) == []


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_list_claims_accepts_noise_that_is_there(epsilon):
    for _ in range(5):
        try:
            upload = noisy(epsilon)
        except AssertionError:  # the noise hid every class
            continue
        assert not [claim for claim in list_claims(upload) if "CONTRADICTED" in claim]


def test_list_claims_finds_noise_that_is_not_there():
    exact = stated(epsilon=0.001, delta=1e-5, clip=10.0)
    claims = list_claims(decode(encode(exact)))
    assert any("CONTRADICTED: the noise of epsilon 0.001" in claim for claim in claims)


def test_list_claims_compares_held_classes_with_the_counts():
    evil = replace(GOOD, num_examples=40, label_counts=(40, 0, 0))
    (claim,) = list_claims(decode(encode(evil)))
    assert "CONTRADICTED: statistics of 2 classes" in claim


def test_inspect_shows_claims(tmp_path):
    (tmp_path / "x.attar").write_bytes(encode(stated(epsilon=0.001, delta=1e-5, clip=10.0)))
    told = " ".join(run("inspect", "x.attar", cwd=tmp_path).stdout.split())
    assert "evil claims" in told
    assert "CONTRADICTED" in told
    assert "as their sender says" in told
    described = describe_upload(decode((tmp_path / "x.attar").read_bytes()), 1)
    assert len(described["claims"]) == 2
