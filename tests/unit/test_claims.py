"""Numbers of images and weights that are out of all proportion do not count as they were sent."""

import json
from dataclasses import replace

import pytest
import torch

import attar
from attar.core import Upload
from attar.fusion import Safeguards, bound_claims, bound_weights, find_claims, fuse, server_for
from attar.methods import METHODS
from attar.testing import tiny_upload, tiny_world
from attar.training import add_statistics

BILLION = 10**9


def client(name, counts):
    upload = tiny_upload(name, classes=tuple("abcdefghij"[: len(counts)]))
    return replace(upload, num_examples=sum(counts), label_counts=tuple(counts))


def federation(*amounts):
    return [client(f"client{row}", (amount, amount)) for row, amount in enumerate(amounts)]


def test_bound_claims_a_billion():
    uploads = [client("liar", (BILLION, BILLION)), *federation(50, 60, 70)]
    bounded, (claim,) = bound_claims(uploads)
    assert (claim.client, claim.claimed, claim.counted) == ("liar", 2 * BILLION, 120)
    assert not claim.believed
    assert bounded[0].label_counts == (60, 60), "the median of the others"
    assert bounded[1:] == uploads[1:]
    assert "counted as 120" in str(claim)


def test_bound_claims_keeps_proportions():
    uploads = [client("liar", (3 * BILLION, BILLION, 0, 1)), client("a", (40, 0, 30, 30))]
    uploads += [client(name, (25, 25, 25, 25)) for name in "bc"]
    bounded, _ = bound_claims(uploads)
    assert bounded[0].label_counts == (75, 25, 0, 1)
    assert bounded[0].num_examples == 101


def test_bound_claims_two_liars():
    uploads = federation(50, 60, 70, 80, BILLION, 2 * BILLION)
    bounded, claims = bound_claims(uploads)
    assert [claim.client for claim in claims] == ["client4", "client5"]
    assert max(upload.num_examples for upload in bounded) == 160


def test_bound_claims_withheld_counts():
    uploads = federation(50, 60, 70)
    uploads[0] = replace(uploads[0], num_examples=BILLION, label_counts=None)
    bounded, _ = bound_claims(uploads)
    assert bounded[0].label_counts is None
    assert bounded[0].num_examples == 130


@pytest.mark.parametrize("amounts", [(5, 100), (5, 6, 7, 23), (10, 10, 10, 30, 90)])
def test_bound_claims_leaves_fair_ones(amounts):
    uploads = federation(*amounts)
    assert bound_claims(uploads)[0] == uploads


def test_find_claims_names_ten_times():
    (claim,) = find_claims(federation(10, 10, 10, 30, 100))
    assert claim.client == "client4"
    assert claim.believed, "30 stands between"
    assert "10 times the median" in str(claim)


def test_bound_claims_leaves_honest_splits_alone():
    """Dirichlet 0.05 to 0.5 among 5 to 50 clients; 2,000 splits are in results/trials.json."""
    labels = torch.arange(6000) % 10
    for rule in ("dirichlet:0.05", "dirichlet:0.5", "classes:2"):
        for clients in (5, 10, 50):
            split = attar.partition(labels, rule, clients=clients, seed=3)
            sizes = [len(part) for part in split.clients]
            uploads = [Upload(f"client{row}", {}, size) for row, size in enumerate(sizes)]
            assert bound_claims(uploads)[0] == uploads


def scaled(upload, factor):
    part = upload.parts["classifier"]
    state = {name: tensor * factor for name, tensor in part.state.items()}
    return replace(upload, parts={"classifier": replace(part, state=state)})


def test_bound_weights_divides():
    world = tiny_world(("mlp:hidden=8,layers=1",) * 4)
    attacked = [scaled(world.uploads[0], 100.0), *world.uploads[1:]]
    bounded, factors = bound_weights(attacked)
    assert list(factors) == ["client0"]
    assert 50 < factors["client0"] < 200
    was = world.uploads[0].parts["classifier"].state
    for name, tensor in bounded[0].parts["classifier"].state.items():
        assert tensor.norm() < 3 * max(was[name].norm(), torch.tensor(0.1))
    assert bounded[1:] == attacked[1:]


def test_bound_weights_leaves_ten_times_alone():
    world = tiny_world(("mlp:hidden=8,layers=1",) * 4)
    attacked = [scaled(world.uploads[0], 10.0), *world.uploads[1:]]
    assert bound_weights(attacked) == (attacked, {})


def test_bound_weights_needs_three_of_a_kind():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5", "mlp:hidden=8,layers=1"))
    attacked = [scaled(world.uploads[0], 100.0), *world.uploads[1:]]
    assert bound_weights(attacked)[1] == {}


@pytest.mark.parametrize(
    "method",
    [
        METHODS["ensemble"](rule="class-share"),
        METHODS["ensemble"](rule="accord"),
        METHODS["fedavg"](),
    ],
)
def test_fuse_counts_a_lie_like_an_ordinary_client(method, tmp_path):
    world = tiny_world(("mlp:hidden=8,layers=1",) * 4)
    classes = len(world.uploads[0].label_counts)
    lie = replace(
        world.uploads[0], num_examples=classes * BILLION, label_counts=(BILLION,) * classes
    )
    uploads = [lie, *world.uploads[1:]]
    server = server_for(uploads)
    believed = fuse(uploads, method, server)
    guarded = fuse(uploads, method, server, robustness=Safeguards(report=False), out=tmp_path / "x")
    fair = fuse(bound_claims(uploads)[0], method, server)
    images = torch.rand(4, *server.task.input_shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(guarded.model(images), fair.model(images))
    assert not torch.allclose(guarded.model(images), believed.model(images), atol=1e-3)
    assert guarded.record["bounded"]["claims"][0]["client"] == "client0"
    assert guarded.record["clients"][0]["num_examples"] == classes * BILLION, "as sent"
    assert json.loads((tmp_path / "x" / "run.json").read_text())["bounded"]


def test_fuse_without_lies_bounds_nothing():
    world = tiny_world(("mlp:hidden=8,layers=1",) * 3)
    fused = fuse(world.uploads, METHODS["fedavg"](), world.server, robustness=True)
    assert "bounded" not in fused.record


def test_guard_drops_impossible_statistics():
    data = attar.load_data("fashion-mini")
    split = attar.partition(data.train.labels, "iid", clients=20, seed=0)
    holder = attar.share_out(data, split)[0]
    training = attar.LocalTraining(epochs=1, batch_size=64)
    (upload,) = attar.train_classifiers([holder], ["mlp:hidden=16,layers=1"], training)
    honest = add_statistics(upload, holder)
    part = honest.parts["statistics"]
    state = {**part.state, "own_mean": part.state["own_mean"] * 0 + 1e38}
    liar = replace(
        honest, client="liar", parts={**honest.parts, "statistics": replace(part, state=state)}
    )
    guarded = Safeguards().guard([honest, liar])
    assert "statistics" in guarded.uploads[0].parts
    assert "statistics" not in guarded.uploads[1].parts
    assert list(guarded.describe()["bounded"]["statistics"]) == ["liar"]
    assert Safeguards(bound=False).guard([honest, liar]).uploads == [honest, liar]
