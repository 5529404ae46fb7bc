"""Averages of weights and the weights of clients, by hand; the average of equals is that model,
bit for bit.
"""

from dataclasses import replace

import pytest
import torch
from by_hand import upload_with_counts
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.blocks.ensemble import Ensemble, average, class_shares, combine, data_shares
from attar.blocks.ensemble.averages import PIECE
from attar.core import Server, Task
from attar.fusion import fuse
from attar.methods.fedavg import FedAvg
from attar.testing import SHAPE, tiny_upload, tiny_world


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def test_average_by_hand():
    """(1 * 2 + 3 * 6) / 4 = 5 and (1 * -4 + 3 * 0) / 4 = -1."""
    result = average(
        [{"w": torch.tensor([2.0, -4.0])}, {"w": torch.tensor([6.0, 0.0])}],
        torch.tensor([1.0, 3.0]),
    )
    assert result["w"].tolist() == [5.0, -1.0]
    assert result["w"].dtype == torch.float32


def test_average_rounds_whole_numbers():
    """(10 + 2 * 20) / 3 = 16.67 -> 17."""
    states = [{"n": torch.tensor(10)}, {"n": torch.tensor(20)}]
    result = average(states, torch.tensor([1.0, 2.0]))["n"]
    assert result.item() == 17
    assert result.dtype == torch.int64
    assert result.shape == ()


def test_average_matches_tensors_by_name():
    one = {"a": torch.tensor([1.0]), "b": torch.tensor([10.0])}
    two = {"b": torch.tensor([30.0]), "a": torch.tensor([3.0])}
    result = average([one, two], torch.ones(2))
    assert {name: tensor.item() for name, tensor in result.items()} == {"a": 2.0, "b": 20.0}


@pytest.mark.parametrize("size", [0, 1, PIECE, 2 * PIECE + 3])
def test_average_in_pieces_equals_the_whole_sum(size):
    """The obvious twin sums the whole layer at once."""
    draws = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(size, generator=draws)} for _ in range(3)]
    shares = [0.5, 0.3, 0.2]
    whole = sum(share * state["w"].double() for share, state in zip(shares, states, strict=True))
    result = average(states, torch.tensor(shares, dtype=torch.float64))["w"]
    assert raw(result) == raw(whole.float())


def test_average_of_another_memory_format():
    """A net in training may have its channels last."""
    one, two = torch.arange(24.0).view(1, 2, 3, 4), torch.zeros(1, 2, 3, 4)
    result = average([{"w": one.to(memory_format=torch.channels_last)}, {"w": two}], torch.ones(2))[
        "w"
    ]
    assert torch.equal(result, one / 2)


def test_average_leaves_its_inputs_alone():
    state = {"w": torch.ones(2)}
    result = average([state, state], torch.ones(2))
    result["w"] += 1
    average([state], torch.ones(1))["w"].add_(1)
    assert state["w"].tolist() == [1.0, 1.0]


numbers = st.lists(
    st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8
)
amounts = st.lists(st.integers(1, 10**6), min_size=1, max_size=12)


@given(numbers, amounts, st.integers(0, 2**40))
@settings(max_examples=150)
def test_average_of_equals_is_that_model_bit_for_bit(values, weights, counter):
    """Also for -0.0, denormals and the largest floats, whatever the weights."""
    state = {"w": torch.tensor([*values, -0.0, 1e-45, 3.4028235e38]), "n": torch.tensor(counter)}
    result = average([state] * len(weights), torch.tensor(weights, dtype=torch.float32))
    assert raw(result["w"]) == raw(state["w"])
    assert torch.equal(result["n"], state["n"])


@given(st.permutations(range(4)))
@settings(max_examples=24)
def test_average_ignores_the_order_of_clients(order):
    draws = torch.Generator().manual_seed(0)
    states = [{"w": torch.randn(50, generator=draws)} for _ in range(4)]
    weights = torch.tensor([1.0, 5.0, 2.0, 7.0])
    torch.testing.assert_close(
        average([states[k] for k in order], weights[list(order)]),
        average(states, weights),
        rtol=1e-6,
        atol=0,
    )


def test_fedavg_of_equals_is_that_upload_bit_for_bit():
    first = tiny_upload("a", "resnet20")
    uploads = [
        replace(first, client=name, num_examples=n, label_counts=None)
        for name, n in (("a", 3), ("b", 7), ("c", 11))
    ]
    for weights in ("examples", "uniform"):
        result = fuse(uploads, FedAvg(weights)).result.models["average"]
        assert all(
            raw(result.state[name]) == raw(tensor)
            for name, tensor in first.parts["classifier"].state.items()
        )


def test_fedavg_weighs_by_examples_or_not():
    """Two clients with 1 and 3 examples: (theta_1 + 3 theta_2) / 4, or (theta_1 + theta_2) / 2."""
    one, two = (
        replace(tiny_upload(name), num_examples=n, label_counts=None)
        for name, n in (("a", 1), ("b", 3))
    )
    states = [upload.parts["classifier"].state for upload in (one, two)]
    for weights, (w1, w2) in {"examples": (0.25, 0.75), "uniform": (0.5, 0.5)}.items():
        result = fuse([one, two], FedAvg(weights)).result.models["average"].state
        for name, tensor in result.items():
            torch.testing.assert_close(tensor, w1 * states[0][name] + w2 * states[1][name])


def test_fedavg_averages_within_architectures_and_votes_between():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5", "mlp:hidden=8,layers=1"))
    result = fuse(
        world.uploads, FedAvg(weights="uniform", mixed="vote"), world.server
    ).result.models["vote"]
    assert result.rule == "vote"
    assert [part.spec.arch for part in result.members] == ["mlp", "lenet5"]
    first, second, third = (upload.parts["classifier"].state for upload in world.uploads)
    for name, tensor in result.members[0].state.items():
        torch.testing.assert_close(tensor, (first[name] + third[name]) / 2)
    assert all(
        torch.equal(tensor, second[name]) for name, tensor in result.members[1].state.items()
    )


def test_fedavg_takes_mean_logits_of_the_averages():
    """Two voters who disagree: the mean of logits listens to who is surer, here the second by 5
    to 1.
    """
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5"))
    result = fuse(world.uploads, FedAvg(mixed="mean-logits"), world.server).result.models[
        "mean-logits"
    ]
    images = torch.rand(5, *SHAPE)
    said = [part.build().eval()(part.preprocess(images)) for part in result.members]
    torch.testing.assert_close(Ensemble(result)(images), (said[0] + said[1]) / 2)
    logits = torch.tensor([[[1.0, 0.0]], [[0.0, 5.0]]])
    assert combine(result.rule, logits, torch.ones(2, 2, dtype=torch.bool)).tolist() == [[0.5, 2.5]]


def test_fuse_takes_a_method_by_name():
    world = tiny_world(("lenet5", "lenet5"))
    called, made = (
        fuse(world.uploads, method, world.server).result.models["average"]
        for method in ("fedavg", FedAvg())
    )
    assert called.fingerprint() == made.fingerprint()


def test_data_shares_by_hand():
    """1, 3 and 4 examples: 1/8, 3/8, 1/2."""
    uploads = [upload_with_counts(name, (n,), ("x",)) for name, n in (("a", 1), ("b", 3), ("c", 4))]
    assert data_shares(uploads).tolist() == [0.125, 0.375, 0.5]


def test_class_shares_by_hand():
    """a holds 2 ring, 6 cross; b lists (bar, ring) and holds 0 bar, 2 ring. Of ring each has
    half, of cross a has all; nobody holds bar, though b lists it: shares 0, not NaN.
    """
    uploads = [
        upload_with_counts("a", (2, 6), ("ring", "cross")),
        upload_with_counts("b", (0, 2), ("bar", "ring")),
    ]
    assert class_shares(uploads, ("ring", "cross", "bar")).tolist() == [
        [0.5, 1.0, 0.0],
        [0.5, 0.0, 0.0],
    ]


@pytest.mark.parametrize("mixed", ["error", "vote", "mean-logits"])
def test_fedavg_of_one_client_is_that_client(mixed):
    world = tiny_world(("lenet5",))
    result = fuse(world.uploads, FedAvg(mixed=mixed), world.server).result.models["average"]
    assert isinstance(world.server, Server)
    assert world.server.task == Task(SHAPE, result.classes)
    own = world.uploads[0].parts["classifier"].state
    assert all(raw(tensor) == raw(own[name]) for name, tensor in result.state.items())
