"""Presets: what the authors' code does by one name, without touching what was asked for."""

import inspect
import pickle
from dataclasses import dataclass, replace

import pytest

from attar.errors import SettingsError
from attar.methods.co_boosting.method import VARIANTS as CO_BOOSTING_VARIANTS
from attar.methods.co_boosting.method import CoBoosting
from attar.methods.dense import VARIANTS, Dense
from attar.methods.fedmho.method import FedMho
from attar.settings import configure, filled_by_variant, flatten, settings


@settings(lambda given: {"fast": {"rate": 0.5, "steps": 1}, "plain": {}}[given.name])
@dataclass(frozen=True)
class Config:
    rate: float = 0.1
    steps: int = 30
    name: str = "plain"

    def __post_init__(self):
        assert self.steps > 0


def values(config):
    return config.rate, config.steps, config.name


def test_settings_fill_what_was_not_given_from_the_preset():
    assert values(Config()) == (0.1, 30, "plain")
    assert values(Config(name="fast")) == (0.5, 1, "fast")
    assert values(Config(rate=0.3, name="fast")) == (0.3, 1, "fast")
    assert values(Config(0.3, name="fast")) == (0.3, 1, "fast")


def test_settings_keep_what_was_given_even_where_it_is_the_default():
    assert values(Config(steps=30, name="fast")) == (0.5, 30, "fast")
    assert values(configure(Config, {"steps": "30", "name": "fast"}, of="it")) == (0.5, 30, "fast")
    method = CoBoosting(variant="code", reset_generator=False, epsilon=8 / 255, schedule="constant")
    assert (method.generator.reset, method.epsilon) == (False, 8 / 255)
    assert (method.student.schedule, method.student.clip) == ("constant", 10.0)
    assert FedMho(preset="mnist", epochs=20).epochs == 20
    assert FedMho(preset="emnist", samples=6000).samples == 6000


def test_replace_changes_what_it_names_and_nothing_else():
    assert values(replace(Config(name="fast"), rate=0.1)) == (0.1, 1, "fast")
    assert values(replace(Config(name="fast"), name="plain")) == (0.5, 1, "plain")


@pytest.mark.parametrize("kind", [CoBoosting, Dense, FedMho])
def test_settings_refuse_an_unknown_variant(kind):
    with pytest.raises(SettingsError, match=r"variant = 'coed': expected one of (code, )?paper, "):
        kind(variant="coed")


def test_settings_leave_a_dataclass_like_any_other():
    assert Config(rate=0.5, steps=1, name="fast") == Config(name="fast")
    assert pickle.loads(pickle.dumps(Config(0.3, name="fast"))) == Config(0.3, name="fast")
    assert list(inspect.signature(Config).parameters) == ["rate", "steps", "name"]
    with pytest.raises(AssertionError):
        Config(steps=0)
    with pytest.raises(TypeError):
        Config(stesp=3)


# REFERENCE.md 1.1: argparse defaults and run line of the authors' code; 8/255 in [-1, 1] is 4/255
# of the pixel range.
CO_BOOSTING_CODE = {
    "batch_size": 128,
    "generator_steps": 30,
    "generator_lr": 1e-3,
    "student_lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "temperature": 4.0,
    "generator_temperature": 3.0,
    "adversarial": 1.0,
    "clip": 10.0,
    "beta1": 0.5,
    "epsilon": 4 / 255,
    "direction": "sign",
    "perturb": "probabilities",
    "weight_steps": "old",
    "weight_step_decay": 0.99,
    "divide": True,
    "reset_generator": True,
    "train_noise": True,
    "keep": "best",
    "noise": 256,
    "generator_width": 64,
}
# REFERENCE.md 1.2: README run of DENSE; its BatchNorm term is identically 0.
DENSE_AUTHORS = {
    "epochs": 200,
    "batch_size": 256,
    "generator_steps": 30,
    "generator_lr": 1e-3,
    "student_lr": 0.005,
    "momentum": 0.9,
    "weight_decay": 0.0,
    "schedule": "constant",
    "stability": 0.0,
    "transferability": 1.0,
    "temperature": 20.0,
    "generator_temperature": 1.0,
    "clip": None,
    "beta1": 0.5,
    "reset_generator": True,
    "train_noise": True,
    "keep": "best",
}
# REFERENCE.md 1.3: DENSE inside Co-Boosting's code, with the same arguments as Co-Boosting.
DENSE_IN_CO_BOOSTING = {
    "epochs": 200,
    "batch_size": 128,
    "generator_steps": 30,
    "generator_lr": 1e-3,
    "student_lr": 0.01,
    "weight_decay": 1e-4,
    "schedule": "cosine",
    "stability": 0.0,
    "transferability": 1.0,
    "temperature": 4.0,
    "generator_temperature": 3.0,
    "clip": 10.0,
    "beta1": 0.5,
    "reset_generator": True,
    "train_noise": True,
    "keep": "best",
}
# Co-Boosting B.1 (eta_G printed as 1e3); DENSE by REFERENCE.md 5b.
CO_BOOSTING_PAPER = {
    "epochs": 500,
    "generator_steps": 30,
    "batch_size": 128,
    "generator_lr": 1e-3,
    "student_lr": 0.01,
    "momentum": 0.9,
    "temperature": 4.0,
    "generator_temperature": 1.0,
    "adversarial": 1.0,
    "epsilon": 8 / 255,
    "direction": "l2",
    "perturb": "logits",
    "weight_step": None,
    "weight_step_decay": 1.0,
    "weight_steps": "epoch",
    "divide": False,
    "hard_generation": True,
    "hard_distillation": True,
    "reset_generator": False,
    "train_noise": False,
    "keep": "last",
}
# Printed, but for the division by the sum of w and steps by signs.
CO_BOOSTING_REVISED = CO_BOOSTING_PAPER | {
    "epsilon": 4 / 255,
    "direction": "sign",
    "divide": True,
}
DENSE_PAPER = {
    "epochs": 200,
    "generator_steps": 30,
    "batch_size": 128,
    "generator_lr": 1e-3,
    "student_lr": 0.01,
    "stability": 1.0,
    "transferability": 0.5,
    "temperature": 1.0,
    "generator_temperature": 1.0,
    "reset_generator": False,
    "keep": "last",
}


@pytest.mark.parametrize(
    ("method", "published"),
    [
        (CoBoosting(), CO_BOOSTING_CODE | {"epochs": 500}),
        (CoBoosting(variant="paper"), CO_BOOSTING_PAPER),
        (CoBoosting(variant="revised"), CO_BOOSTING_REVISED),
        (CoBoosting(variant="code"), flatten(CoBoosting())),
        (Dense(), DENSE_PAPER),
        (Dense(variant="authors"), DENSE_AUTHORS),
        (Dense(variant="co-boosting"), DENSE_IN_CO_BOOSTING),
    ],
    ids=[
        "co-boosting",
        "co-boosting paper",
        "co-boosting revised",
        "co-boosting code",
        "dense",
        "dense authors",
        "dense in co-boosting",
    ],
)
def test_variants_have_the_published_values(method, published):
    values = flatten(method)
    assert {name: values[name] for name in published} == published


@pytest.mark.parametrize(
    ("kind", "variant", "preset"),
    [
        (CoBoosting, "paper", CO_BOOSTING_VARIANTS["paper"]),
        *((Dense, name, VARIANTS[name]) for name in ("authors", "co-boosting")),
    ],
)
def test_variant_changes_the_settings_it_names_and_no_other(kind, variant, preset):
    default, other = flatten(kind()), flatten(kind(variant=variant))
    changed = {name for name in default if default[name] != other[name]}
    assert changed == {*preset, "variant"}
    assert {name: other[name] for name in preset} == preset


def test_settings_that_are_given_survive_a_variant():
    method = CoBoosting(variant="paper", epsilon=0.1, direction="l2", keep="last", beta1=0.7)
    assert (method.epsilon, method.generator.beta1, method.student.clip) == (0.1, 0.7, None)
    dense = Dense(variant="authors", temperature=3.0, stability=0.5)
    assert (dense.student.temperature, dense.stability, dense.batch_size) == (3.0, 0.5, 256)
    filled = filled_by_variant(method)
    printed = CO_BOOSTING_VARIANTS["paper"]
    assert filled == {name: printed[name] for name in printed.keys() - {"epsilon", "beta1"}}
