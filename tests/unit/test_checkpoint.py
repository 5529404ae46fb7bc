"""Checkpoints: everything that changes comes back bit for bit, into what ``start`` has built; a
damaged file never does.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from attar.core import State
from attar.errors import RunError
from attar.running import restore_state, save_state


@dataclass
class Anything(State):
    value: Any


def through(tmp_path, saved, fresh):
    """``saved`` written, and put back into a state that was started with ``fresh``."""
    path = tmp_path / "checkpoint.safetensors"
    save_state(path, Anything(saved, phase=1, step=7), {"note": 1})
    state = Anything(fresh)
    assert restore_state(path, state) == {"note": 1}
    assert (state.phase, state.step) == (1, 7)
    return state.value


def raw(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def net(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def train(module, optimiser, schedule, draws, steps):
    for _ in range(steps):
        loss = module(torch.randn(5, 3, generator=draws)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if isinstance(schedule, ReduceLROnPlateau):
            schedule.step(loss.detach())
        else:
            schedule.step()


OPTIMISERS = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "momentum": lambda parameters: SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
    ),
    "adam": lambda parameters: Adam(parameters, lr=0.01),
    "amsgrad": lambda parameters: Adam(parameters, lr=0.01, amsgrad=True),
}
SCHEDULES = {
    "cosine": lambda optimiser: CosineAnnealingLR(optimiser, 12),
    "step": lambda optimiser: StepLR(optimiser, 2, 0.3),
    "plateau": lambda optimiser: ReduceLROnPlateau(optimiser, patience=0, threshold=0.5),
    "onecycle": lambda optimiser: OneCycleLR(optimiser, 0.2, 12, cycle_momentum=False),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_restore_state_continues_training(tmp_path, optimiser, schedule):
    def started(seed):
        module = net(seed)
        steps = OPTIMISERS[optimiser](module.parameters())
        return [module, steps, SCHEDULES[schedule](steps), torch.Generator().manual_seed(seed)]

    straight = started(1)
    train(*straight, 10)
    interrupted = started(1)
    train(*interrupted, 4)
    # The fresh one comes from another seed: whatever is not restored shows.
    resumed = through(tmp_path, interrupted, started(2))
    train(*resumed, 6)
    for name, tensor in straight[0].state_dict().items():
        assert raw(tensor) == raw(resumed[0].state_dict()[name]), name
    assert resumed[1].param_groups[0]["lr"] == straight[1].param_groups[0]["lr"]
    assert torch.equal(torch.rand(3, generator=resumed[3]), torch.rand(3, generator=straight[3]))


def test_restore_state_fills_modules_in_place(tmp_path):
    module = net(2)
    optimiser = Adam(module.parameters())
    kept = [module, optimiser, next(module.parameters())]
    module_, optimiser_ = through(
        tmp_path, [net(1), Adam(net(1).parameters())], [module, optimiser]
    )
    assert module_ is kept[0]
    assert optimiser_ is kept[1]
    assert optimiser_.param_groups[0]["params"][0] is kept[2] is next(module_.parameters())


def test_restore_state_fills_leaves_in_place(tmp_path):
    """Ensemble weights or synthetic images: leaves of the State that an optimiser of the same
    State moves.
    """

    def started():
        weights = torch.ones(3, requires_grad=True)
        return {"weights": weights, "optimiser": Adam([weights], lr=0.1)}

    def step(value, times):
        for _ in range(times):
            value["optimiser"].zero_grad()
            value["weights"].square().sum().backward()
            value["optimiser"].step()

    straight, interrupted = started(), started()
    step(straight, 5)
    step(interrupted, 2)
    resumed = through(tmp_path, interrupted, started())
    step(resumed, 3)
    assert raw(resumed["weights"]) == raw(straight["weights"])
    assert resumed["weights"].requires_grad


def test_restore_state_continues_generators(tmp_path):
    draws = torch.Generator().manual_seed(3)
    torch.randn(7, generator=draws)  # an odd number: half a Box-Muller pair is pending
    fresh = torch.Generator().manual_seed(4)
    back = through(tmp_path, draws, fresh)
    assert back is fresh
    assert torch.equal(torch.randn(9, generator=back), torch.randn(9, generator=draws))


TENSORS = [
    torch.tensor([-0.0, 1e-45, float("inf"), float("nan")]),
    torch.tensor(3.5),
    torch.zeros(0, 3),
    torch.arange(6).view(2, 3).t(),
    torch.tensor([True, False]),
    torch.tensor([1.5, -2.5], dtype=torch.bfloat16),
    torch.tensor([1, 255], dtype=torch.uint8),
    torch.tensor([2**62, -(2**62)]),
    torch.ones(1, 3, 1, 1).expand(2, 3, 4, 4),
    torch.tensor(math.pi, dtype=torch.float64),
]


@pytest.mark.parametrize(
    "tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}"
)
def test_restore_state_keeps_tensors(tmp_path, tensor):
    back = through(tmp_path, tensor, torch.zeros(()))
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert raw(back) == raw(tensor)


def test_restore_state_shares_no_tensor(tmp_path):
    shared = torch.ones(3)
    one, other = through(tmp_path, [shared, shared], [torch.zeros(3), torch.zeros(3)])
    one += 1
    assert other.tolist() == [1.0, 1.0, 1.0]


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
keys = (
    st.text(max_size=5)
    | st.integers(-5, 5)
    | st.booleans()
    | st.tuples(st.integers(0, 3), st.text(max_size=2))
)
nested = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(nested, nested)
@settings(max_examples=100)
def test_restore_state_keeps_nested_values(tmp_path_factory, saved, fresh):
    back = through(tmp_path_factory.mktemp("nest"), saved, fresh)
    assert repr(back) == repr(
        saved
    )  # repr tells 1 from 1.0 and True, () from [], and sees nan equal to nan


def test_restore_state_keeps_reserved_names(tmp_path):
    saved = {
        "tensor": "000000",
        "list": [{"dict": {"generator": "x"}}],
        "tuple": ({"holder": None},),
    }
    assert through(tmp_path, saved, None) == saved


def test_restore_state_keeps_infinities(tmp_path):
    """``best = inf`` is how many searches begin; a State may hold it."""
    back = through(tmp_path, {"best": math.inf, "worst": -math.inf, "none": math.nan}, {})
    assert back["best"] == math.inf
    assert back["worst"] == -math.inf
    assert math.isnan(back["none"])


def test_restore_state_keeps_longer_lists(tmp_path):
    back = through(tmp_path, [torch.ones(2), torch.zeros(3)], [])
    assert [tensor.tolist() for tensor in back] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, b"bytes", torch.float32, 1j], ids=lambda value: type(value).__name__
)
def test_save_state_refuses_and_keeps_the_old_file(tmp_path, value):
    path = tmp_path / "checkpoint.safetensors"
    save_state(path, Anything(1), {})
    before = path.read_bytes()
    with pytest.raises(TypeError, match=f"cannot hold a {type(value).__name__}"):
        save_state(path, Anything({"deep": [value]}), {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_save_state_changes_nothing(tmp_path):
    module = net()
    optimiser = Adam(module.parameters())
    draws = torch.Generator().manual_seed(0)
    before = copy.deepcopy(module.state_dict())
    save_state(tmp_path / "c", Anything([module, optimiser, draws]), {})
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(
        torch.rand(2, generator=draws), torch.rand(2, generator=torch.Generator().manual_seed(0))
    )
    assert all(parameter.requires_grad for parameter in module.parameters())


# --- damaged files --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "c"
    save_state(path, Anything([net(), torch.Generator(), torch.ones(9)]), {"history": [1, 2]})
    return path.read_bytes()


def refused(folder, content):
    path = folder / "damaged"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged"):
        restore_state(path, Anything([net(), torch.Generator(), torch.ones(9)]))


def test_restore_state_refuses_missing_or_cut_file(tmp_path, written):
    with pytest.raises(RunError):
        restore_state(tmp_path / "missing", Anything(None))
    with pytest.raises(RunError):
        restore_state(tmp_path, Anything(None))
    for content in (
        b"",
        b"junk" * 10,
        written[:4],
        written[: len(written) // 2],
        written[:-1],
        written + b"x",
    ):
        refused(tmp_path, content)


def test_restore_state_refuses_foreign_safetensors(tmp_path):
    from safetensors.torch import save

    refused(tmp_path, save({"a": torch.ones(1)}))
    refused(tmp_path, save({"a": torch.ones(1)}, metadata={"attar": "{}"}))


@given(data=st.data(), pattern=st.integers(1, 255))
@settings(max_examples=150)
def test_restore_state_refuses_flipped_byte(tmp_path_factory, written, data, pattern):
    place = data.draw(st.integers(0, len(written) - 1))
    changed = bytearray(written)
    changed[place] ^= pattern
    refused(tmp_path_factory.mktemp("flip"), bytes(changed))


def test_restore_state_refuses_changed_header(tmp_path, written):
    for old, new in ((b'"F32"', b'"I32"'), (b'"000001"', b'"000000"'), (b'"000001"', b'"000009"')):
        assert old in written
        refused(tmp_path, written.replace(old, new, 1))


def test_restore_state_refuses_other_shapes(tmp_path):
    path = tmp_path / "c"
    save_state(path, Anything(net()), {})
    with pytest.raises(RunError, match="another version"):
        restore_state(path, State())
    with pytest.raises(RunError, match="does not fit"):
        restore_state(path, Anything(nn.Linear(3, 4)))
    save_state(path, Anything(Adam(net().parameters())), {})
    with pytest.raises(RunError, match="does not fit"):
        restore_state(path, Anything(Adam(nn.Linear(3, 4).parameters())))
