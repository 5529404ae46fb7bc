"""Every registered method keeps the contract, with settings that make it quick."""

import dataclasses

import pytest
import torch

from attar.core import Result, State
from attar.methods import METHODS
from attar.testing import check_method

SMALL = {"epochs": 3, "generator_steps": 2, "batch_size": 8, "noise": 8, "generator_width": 4}
MHO = {"epochs": 3, "samples": 41, "batch_size": 8}
QUICK = {
    "dense": [
        SMALL,
        {**SMALL, "variant": "co-boosting", "ensemble": "data"},
        {**SMALL, "ensemble": "stratified", "pool_limit": 12},
    ],
    "f-dafl": [SMALL, {**SMALL, "per_feature": True, "pool_bytes": True}],
    "f-adi": [{"epochs": 3, "inversion_steps": 2, "batch_size": 8}],
    "fedftg": [{**SMALL, "student_steps": 2}],
    "co-boosting": [
        SMALL,
        {**SMALL, "variant": "code"},
        {**SMALL, "weight_steps": "batch", "ensemble": "stratified"},
        {**SMALL, "hard_generation": False, "hard_distillation": False, "weight_steps": "never", "ensemble": "data"},
    ],
    "fedhydra": [SMALL, {**SMALL, "replay": "pool"}, {**SMALL, "replay": "last"}],
    "fedavg": [{}, {"weights": "uniform"}, {"mixed": "vote"}],
    "ensemble": [
        {"rule": rule} for rule in ("mean-logits", "data-weighted", "mean-probabilities", "max-logits", "vote", "class-share")
    ],
    "fedcvae": [
        {"samples": 40, "epochs": 2, "batch_size": 13},
        {"samples": 40, "epochs": 2, "mode": "kd", "decoder_epochs": 2, "truncation": None},
    ],
    "fedmho": [
        {**MHO, "remember": "nothing"},
        {**MHO, "remember": "md"},
        MHO,
        {**MHO, "remember": "both", "weights": "learned", "start_from": "distil", "initial_epochs": 2},
        {**MHO, "variant": "code", "preset": "mnist", "start_from": "fresh"},
    ],
    "feddf": [{"steps": 4, "batch_size": 8}, {"steps": 3, "batch_size": 8, "mixed": "vote", "teacher": "class-share"}],
}


def test_every_method_has_quick_settings_here():
    assert set(QUICK) == set(METHODS)


@pytest.mark.parametrize(
    ("name", "settings"),
    [(name, settings) for name, choices in QUICK.items() for settings in choices],
    ids=lambda value: (
        value
        if isinstance(value, str)
        else "-".join(str(value[key]) for key in value if key not in (*SMALL, "samples")) or "plain"
    ),
)
def test_contract(name, settings):
    check_method(METHODS[name](**settings))


@dataclasses.dataclass(frozen=True)
class _Leaky:
    """A method that breaks the contract on purpose: it draws from the global random state."""

    size: int = 3

    @property
    def needs(self):
        return METHODS["fedavg"]().needs

    def prepare(self, uploads, server):
        torch.rand(self.size)
        return uploads

    def start(self, context):
        return State()

    def phases(self, context):
        return ()

    def result(self, context, state):
        return Result({"first": context[0].parts["classifier"]})


def test_the_contract_can_fail(monkeypatch):
    monkeypatch.setitem(METHODS, "leaky", _Leaky)
    with pytest.raises(AssertionError, match="global random state"):
        check_method(_Leaky())
