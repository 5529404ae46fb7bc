"""Training with differential privacy: its claim, what it refuses, and its plain twin."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from attar.core import ModelSpec
from attar.errors import BundleError, RunError, SettingsError, SpecError
from attar.privacy import describe_upload, list_revelations
from attar.privacy_claim import PrivacyClaim
from attar.running import save_state
from attar.testing import tiny_upload
from attar.training import (
    LocalTraining,
    PrivacyFlags,
    PrivacySettings,
    PrivateTraining,
    TrainingFlags,
    accountant,
    check_reuse,
    make_private_stacks,
    private_training,
    stack_classifiers,
    stack_cvaes,
    suggest_private_training,
    train_stack,
    training_metadata,
    write_metadata,
)
from attar.training.private_steps import SystemDraws
from attar.uploads import decode, encode, read_bundle, write_bundle
from attar.uploads.bundle import describe
from attar.uploads.claims import least_epsilon
from tiny_clients import random_client

CLASSES = ("a", "b", "c")
CLIENT = random_client("ann", 24, (1, 8, 8), CLASSES)
QUICK = LocalTraining(epochs=2, batch_size=8, optimiser="adam", lr=1e-2)
EIGHT = PrivacySettings(8.0)
CLAIM = PrivacyClaim(8.0, 1e-5, 1.0, 0.8, 0.04, 240)


class NoChance:
    """Every image takes part, and the noise is zero."""

    def uniforms(self, number: int) -> Tensor:
        return torch.zeros(number, dtype=torch.float64)

    def normals(self, number: int) -> Tensor:
        return torch.zeros(number, dtype=torch.float64)

    def seed(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def quick_accountant(monkeypatch):
    """Stand-ins for the accountant, whose own tests are in tests/equations."""
    monkeypatch.setattr(private_training, "solve_noise", lambda *_: 0.8)
    monkeypatch.setattr(private_training, "spent_epsilon", lambda *_: 5.0)


def private(net="mlp:hidden=5", training=QUICK, privacy=EIGHT, **more):
    (base,) = stack_classifiers([CLIENT], [ModelSpec.parse(net)], training)
    return PrivateTraining(base, privacy, **more)


def weights(upload):
    return torch.cat([value.flatten() for value in upload.parts["classifier"].state.values()])


def test_without_noise_and_clipping_it_is_plain_training():
    """Full batches, gradients that no clip shortens, noise of zero: plain gradient descent."""
    training = LocalTraining(epochs=3, batch_size=24, lr=0.1, momentum=0.9)
    (plain,) = stack_classifiers([CLIENT], [ModelSpec.parse("mlp:hidden=5")], training)
    settings = PrivacySettings(8.0, clip=1e5, noise_multiplier=1.0)
    (expected,), _ = train_stack(plain)
    (upload,), _ = train_stack(PrivateTraining(plain, settings, NoChance()))
    torch.testing.assert_close(weights(upload), weights(expected), rtol=1e-4, atol=1e-5)


def test_the_noise_comes_from_the_system_and_not_from_the_seed():
    (first,), _ = train_stack(private())
    (second,), _ = train_stack(private())
    assert not torch.equal(weights(first), weights(second))


def test_uploads_carry_the_claim_and_no_counts():
    (upload,), validation = train_stack(private())
    # 24 images, 8 expected in a step: a rate of 1/3 and 3 steps in each of 2 epochs
    assert upload.privacy == PrivacyClaim(8.0, 1e-5, 1.0, 0.8, 8 / 24, 6)
    assert upload.local_steps == 6
    assert upload.label_counts is None
    assert validation == {}
    again = decode(encode(upload))
    assert again.privacy == upload.privacy
    assert describe_upload(again, 1)["privacy_claim"]["noise_multiplier"] == 0.8
    (sentence,) = [line for line in list_revelations(again) if "claims" in line]
    assert "(8, 1e-05)-differential privacy" in sentence
    assert "nothing in the file proves" in sentence


def test_cvaes_train_privately():
    (base,) = stack_cvaes(
        [CLIENT], [ModelSpec.parse("cvae-small")], {"epochs": 1, "batch_size": 12}
    )
    (upload,), _ = train_stack(PrivateTraining(base, PrivacySettings(8.0)))
    assert set(upload.parts) == {"decoder"}
    assert upload.privacy is not None
    assert all(value.isfinite().all() for value in upload.parts["decoder"].state.values())


def test_augmented_images_and_dropout_train_privately():
    training = replace(QUICK, augment="crop-flip", epochs=1)
    (upload,), _ = train_stack(private("mlp:hidden=5", training))
    assert weights(upload).isfinite().all()


@pytest.mark.parametrize(
    ("setting", "value"),
    [("validation", 0.2), ("sam", 0.1), ("clip", 1.0), ("compile_blocks", True)],
)
def test_settings_that_look_past_the_noise_are_refused(setting, value):
    with pytest.raises(SettingsError, match=setting):
        private(training=replace(QUICK, **{setting: value}))


def test_early_stopping_is_refused():
    with pytest.raises(SettingsError, match="patience"):
        private(training=replace(QUICK, validation=0.2, patience=3))


def test_a_delta_that_gives_images_away_is_refused():
    with pytest.raises(SettingsError, match="24 images"):
        private(privacy=PrivacySettings(8.0, 0.05))


def test_batchnorm_is_refused():
    with pytest.raises(SpecError, match="BatchNorm"):
        private("cnn-dense")


@pytest.mark.parametrize("wrong", [{"epsilon": 0}, {"delta": 1.0}, {"clip": 0}])
def test_privacy_settings_out_of_range(wrong):
    with pytest.raises(SettingsError):
        PrivacySettings(**{"epsilon": 8.0, **wrong})


def test_privacy_flags_need_an_epsilon():
    assert PrivacyFlags().settings() is None
    with pytest.raises(SettingsError, match="--dp-epsilon"):
        PrivacyFlags(dp_clip=2.0).settings()


def test_make_private_stacks_suits_each_client_and_keeps_what_is_given():
    other = random_client("bob", 3000, (1, 8, 8), CLASSES)
    stacks = make_private_stacks(
        [CLIENT, other],
        [ModelSpec.parse("mlp:hidden=5"), ModelSpec.parse("cvae-small")],
        TrainingFlags(epochs=3),
        PrivacySettings(8.0),
        seed=0,
        device="cpu",
        initial=None,
    )
    assert [stack.training.epochs for stack in stacks] == [3, 3]
    assert [stack.training.batch_size for stack in stacks] == [24, 120]
    net = ModelSpec("lenet5")
    assert suggest_private_training(net, 60_000, EIGHT).batch_size == 2400
    strong = suggest_private_training(net, 60_000, PrivacySettings(1.0, clip=0.5))
    assert (strong.batch_size, strong.lr) == (15_000, 1.0), "a step is in units of the clip"


def test_a_checkpoint_holds_no_state_of_the_noise(tmp_path):
    saved = tmp_path / "kept.training"
    stack = private()
    save_state(saved, stack.start(), {})
    with safe_open(saved, "pt") as file:
        skeleton = json.loads(file.metadata()["attar"])["state"]
        names = set(file.keys())
    assert set(skeleton) <= {"phase", "step", "params", "buffers", "moments", "counts", "given"}
    assert not any("generator" in name or "noise" in name for name in names)
    assert vars(SystemDraws()) == {}


def test_check_reuse_keeps_a_private_upload(tmp_path):
    stack = private()
    (upload,), _ = train_stack(stack)
    path = tmp_path / "ann.attar"
    write_bundle(path, upload)
    write_metadata(path, training_metadata(stack, CLIENT, "fp32"))
    assert check_reuse([stack], {"ann": path}) == []
    other = private(privacy=PrivacySettings(1.0))
    with pytest.raises(RunError, match="privacy"):
        check_reuse([other], {"ann": path})


# --- claims in files ------------------------------------------------------------------------------


def claimed(**changes):
    claim = replace(CLAIM, **changes)
    return replace(tiny_upload("ann"), label_counts=None, local_steps=claim.steps, privacy=claim)


def test_a_file_without_a_claim_keeps_its_schema():
    upload = tiny_upload("ann")
    assert describe(upload)["schema"] == 1
    assert "privacy" not in describe(upload)
    assert describe(claimed())["schema"] == 2
    assert decode(encode(upload)).privacy is None


def test_a_claim_survives_the_file(tmp_path):
    write_bundle(tmp_path / "a.attar", claimed())
    assert read_bundle(tmp_path / "a.attar").privacy == CLAIM


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"epsilon": float("nan")}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"sampling_rate": 1.5}, "sampling_rate"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"steps": 0}, "steps"),
        ({"unit": "client"}, "unit"),
        ({"accountant": "trust me"}, "accountant"),
        ({"epsilon": 0.01, "noise_multiplier": 0.1}, "a single step"),
    ],
)
def test_impossible_claims_are_refused(changes, reason):
    with pytest.raises(BundleError, match=reason):
        encode(claimed(**changes))


def test_claims_that_contradict_the_file_are_refused():
    with pytest.raises(BundleError, match="label counts"):
        encode(replace(tiny_upload("ann"), local_steps=240, privacy=CLAIM))
    with pytest.raises(BundleError, match="local_steps"):
        encode(replace(claimed(), local_steps=3))


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 1.0), (1.0, 0.1), (3.0, 0.5)])
def test_least_epsilon_is_below_the_accountants(sigma, rate):
    pytest.importorskip("dp_accounting", reason="attar[dp] is not installed")
    least = least_epsilon(replace(CLAIM, noise_multiplier=sigma, sampling_rate=rate, steps=1))
    spent = accountant.spent_epsilon(sigma, rate, 1, 1e-5, 1e-3)
    assert 0.5 * spent < least <= 1.001 * spent
