"""Rounds: one of them is the one-shot path, a killed federation resumes to the same bits, who
fails is left out.
"""

import json
import os
import signal
from dataclasses import fields, replace

import pytest
import torch
from evaluations import evaluate_to, evaluation_of
from torch.fx.experimental.proxy_tensor import make_fx

from attar import seeds
from attar.blocks.execution import eager, gradient_step
from attar.blocks.execution.cuda_graphs import GraphRunner
from attar.core import Images, ModelSpec, Preprocess
from attar.errors import NeedsError, RunError, SettingsError, SpecError, Stopped
from attar.federation import Rounds, federate
from attar.fusion import ServerOptions, fuse, server_for
from attar.methods import METHODS
from attar.models import load_model
from attar.running import RunOptions
from attar.training import (
    ClassifierTraining,
    ClientData,
    LocalTraining,
    MutualTraining,
    stacking,
    train_classifiers,
)
from attar.uploads import encode, read_bundle

CLASSES = ("a", "b", "c")
SHAPE = (1, 8, 8)
SIZES = {"ann": 40, "bob": 17, "cy": 35, "dee": 9}
MLP, OTHER = ModelSpec.parse("mlp:hidden=6,layers=1"), ModelSpec.parse("mlp:hidden=5,layers=2")
NORMED = ModelSpec("resnet20")
TRAINING = LocalTraining(epochs=2, batch_size=16, lr=0.05)
SMALL = {"epochs": 2, "generator_steps": 2, "batch_size": 8, "noise": 8, "generator_width": 4}
KEM = {"knowledge": str(MLP), "steps": 3, "batch_size": 8}
CODE = {**KEM, "variant": "code", "labels": 0.0, "drawn": 12}


def client(name: str, size: int) -> ClientData:
    draw = seeds.rng(0, "data", name)
    pixels = torch.randint(0, 256, (size, *SHAPE), generator=draw, dtype=torch.uint8)
    return ClientData(
        name, pixels, torch.randint(0, len(CLASSES), (size,), generator=draw), CLASSES
    )


CLIENTS = [client(name, size) for name, size in SIZES.items()]
PUBLIC = Images(
    torch.randint(0, 256, (24, *SHAPE), dtype=torch.uint8, generator=seeds.rng(0, "public")),
    None,
    "noise",
)


def run(name="fedavg", settings=None, rounds=None, specs=None, training=TRAINING, **more):
    """A federation that is watched at every step; keywords of either options may be given."""

    def given(group):
        return {field.name: more.pop(field.name) for field in fields(group) if field.name in more}

    method = METHODS[name](**(settings or {}))
    server = ServerOptions(public=PUBLIC, **given(ServerOptions))
    options = RunOptions(watch_seconds=0.0, **given(RunOptions))
    return federate(
        CLIENTS,
        specs or [MLP] * 4,
        method,
        rounds or Rounds(),
        training=training,
        server=server,
        options=options,
        **{"seed": 3, **more},
    )


def bits(models) -> list[bytes]:
    parts = [part for model in models.values() for part in getattr(model, "members", (model,))]
    return [value.numpy().tobytes() for part in parts for _, value in sorted(part.state.items())]


def home_bits(done) -> dict[str, list[bytes]]:
    return {name: bits(parts) for name, parts in sorted(done.client_state.items())}


# --- one round is the one-shot path ---------------------------------------------------------------

ONE_SHOT = [
    ("fedavg", {}),
    ("fedprox", {"mu": 0.0}),
    ("ensemble", {"rule": "class-share"}),
    ("feddf", {"steps": 4, "batch_size": 8}),
    ("dense", SMALL),
    ("f-dafl", SMALL),
    ("co-boosting", SMALL),
    ("fedhydra", SMALL),
    ("fedftg", {**SMALL, "student_steps": 1}),
]


@pytest.mark.parametrize(("name", "settings"), ONE_SHOT, ids=[name for name, _ in ONE_SHOT])
def test_federate_one_round_equals_one_shot(name, settings):
    specs = [MLP] * 4 if METHODS[name]().needs.same_architecture else [MLP, OTHER, MLP, MLP]
    uploads = train_classifiers(CLIENTS, specs, TRAINING, seed=3)
    by_hand = fuse(uploads, METHODS[name](**settings), server_for(uploads, public=PUBLIC, seed=3))
    done = run(name, settings, specs=specs)
    assert bits(done.result.models) == bits(by_hand.result.models)
    assert done.record["bytes_up"] == sum(len(encode(upload)) for upload in uploads)
    assert [one["round"] for one in done.record["rounds"]] == [1]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fednova", {}), ("scaffold", {"global_lr": 0.5}), ("fedprox", {"mu": 0.3})],
)
def test_federate_one_round_equals_fuse(name, settings):
    """Files of one round, fused by `attar fuse --start`, give the round's model: plain training
    where c = 0.
    """
    done = run(name, settings)
    start = MLP.build(SHAPE, 3, seeds.derive(3, "init")).state_dict()
    uploads = train_classifiers(CLIENTS, [MLP] * 4, TRAINING, seed=3)
    initial = replace(uploads[0].parts["classifier"], state=start)
    fused = fuse(uploads, METHODS[name](**settings), server_for(uploads, initial=initial, seed=3))
    same = all(
        torch.allclose(one, other, atol=1e-6)
        for one, other in zip(
            done.result.models["average"].state.values(),
            fused.result.models["average"].state.values(),
            strict=True,
        )
    )
    assert same == (name != "fedprox")  # its term bends the training itself


def test_federate_one_round_of_fedkem():
    method = METHODS["fedkem"](**KEM)
    stack = MutualTraining(
        CLIENTS, OTHER, Preprocess.centred(SHAPE), TRAINING, method.objective.mutual, seed=3
    )
    state = stack.start()
    for _ in range(TRAINING.epochs):
        stack.phases()[0].step(state)
        state.step += 1
    uploads = stack.uploads(state)
    knowledge = MLP.build(SHAPE, 3, seeds.derive(3, "knowledge")).state_dict()
    initial = replace(uploads[0].parts["knowledge"], state=knowledge)
    by_hand = fuse(uploads, method, server_for(uploads, initial=initial, public=PUBLIC, seed=3))
    done = run("fedkem", KEM, specs=[OTHER] * 4)
    assert bits(done.result.models) == bits(by_hand.result.models)
    homes = stack.next_client_states(state, uploads)
    assert home_bits(done) == {name: bits(parts) for name, parts in sorted(homes.items())}
    assert done.record["remarks"] == ["Server images: 24 unlabelled from noise."]


def test_federate_fedprox_with_mu_0_is_fedavg():
    rounds = Rounds(3, fraction=0.5)
    plain, none, some = (
        run(*how, rounds=rounds)
        for how in (("fedavg", {}), ("fedprox", {"mu": 0.0}), ("fedprox", {"mu": 0.1}))
    )
    assert bits(plain.result.models) == bits(none.result.models) != bits(some.result.models)


# --- killed and resumed ---------------------------------------------------------------------------


class Killed(Exception):
    pass


def killer(after: int):
    seen = 0

    def watch(moment):
        nonlocal seen
        seen += 1
        if seen > after:
            raise Killed

    return watch


KILLS = [
    ("fedavg", {}, [MLP, OTHER, OTHER, MLP], "vote"),
    ("scaffold", {}, [MLP] * 4, ""),
    ("fedkem", KEM, [MLP, OTHER, OTHER, MLP], ""),
    ("fedkem", CODE, [OTHER] * 4, ""),
    ("feddf", {"steps": 3, "batch_size": 8}, [MLP, OTHER, OTHER, MLP], ""),
    ("dense", SMALL, [MLP] * 4, ""),
]


@pytest.mark.parametrize(
    ("name", "settings", "specs", "mixed"), KILLS, ids=[kill[0] for kill in KILLS]
)
def test_federate_resumes_to_the_same_bits(tmp_path, name, settings, specs, mixed):
    """Watched at every step: inside a client's training, between clients, inside a fusion,
    between rounds.
    """
    settings = {**settings, "mixed": mixed} if mixed else settings
    rounds, moments = Rounds(3, fraction=0.75), []
    straight = run(name, settings, rounds, specs, watch=moments.append)
    places = sorted(
        {1, 2, 3, len(moments) // 3, len(moments) // 2, 2 * len(moments) // 3, len(moments) - 1}
    )
    for after in places:
        out = tmp_path / str(after)
        with pytest.raises(Killed):
            run(name, settings, rounds, specs, out=out, watch=killer(after), checkpoint_seconds=0)
        resumed = run(name, settings, rounds, specs, out=out, resume=True)
        assert bits(resumed.result.models) == bits(straight.result.models), (
            f"after {after} of {len(moments)} moments"
        )
        assert home_bits(resumed) == home_bits(straight)
        for one, other in zip(resumed.record["rounds"], straight.record["rounds"], strict=True):
            for key in ("drawn", "bytes_up", "bytes_down"):
                assert one[key] == other[key]


def test_federate_resumes_inside_a_client(tmp_path):
    rounds, out = Rounds(2), tmp_path / "fed"
    straight = run("scaffold", {}, rounds)
    for after, resume in ((1, False), (1, True), (1, True)):
        with pytest.raises(Killed):
            run(
                "scaffold",
                {},
                rounds,
                out=out,
                watch=killer(after),
                checkpoint_seconds=0,
                resume=resume,
            )
    assert bits(run("scaffold", {}, rounds, out=out, resume=True).result.models) == bits(
        straight.result.models
    )


def test_federate_folder(tmp_path):
    done = run(
        "fedkem", KEM, Rounds(2, fraction=0.5), out=tmp_path / "fed", evaluate=evaluate_to(0.5)
    )
    assert json.loads((tmp_path / "fed" / "record.json").read_text()) == json.loads(
        json.dumps(done.record)
    )
    assert bits({"model": load_model(tmp_path / "fed").description}) == bits(done.result.models)
    assert {path.name for path in (tmp_path / "fed").iterdir()} == {
        "run.json", "record.json", "config.json", "model.safetensors", "README.md", "home"
    }  # fmt: skip
    assert (
        {path.stem for path in (tmp_path / "fed" / "home").iterdir()}
        == set(done.client_state)
        == set(done.record["home_accuracies"])
    )
    own = read_bundle(tmp_path / "fed" / "home" / f"{next(iter(done.client_state))}.attar").parts
    assert bits(own) == bits(next(iter(done.client_state.values())))
    with pytest.raises(RunError, match="finished"):
        run("fedkem", KEM, Rounds(2, fraction=0.5), out=tmp_path / "fed")


def test_federate_refuses_to_resume_another_run(tmp_path):
    with pytest.raises(Killed):
        run(rounds=Rounds(2), out=tmp_path / "fed", watch=killer(2), checkpoint_seconds=0)
    with pytest.raises(RunError, match=r"plan\.rounds: was 2, now 3"):
        run(rounds=Rounds(3), out=tmp_path / "fed", resume=True)


def test_federate_resumes_after_minutes(tmp_path, monkeypatch):
    clock = iter(range(0, 10**9, 7))
    rounds = Rounds(40)
    straight = run(rounds=rounds)
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    early = run(rounds=rounds, out=tmp_path / "fed", minutes=20)
    assert early.record["ending"] == "deadline"
    assert 1 <= len(early.record["rounds"]) < 40
    monkeypatch.undo()
    late = run(rounds=rounds, out=tmp_path / "fed", resume=True)
    assert late.record["ending"] == "finished"
    assert bits(late.result.models) == bits(straight.result.models)


# --- who takes part -------------------------------------------------------------------------------


def test_federate_samples_each_round():
    done = run(rounds=Rounds(12, fraction=0.5, drop=0.4))
    rounds = done.record["rounds"]
    assert {len(one["drawn"]) for one in rounds} == {2}
    assert len({tuple(one["drawn"]) for one in rounds}) > 2
    dropped = [name for one in rounds for name in one["dropped"]]
    assert 2 < len(dropped) < 20
    for one in rounds:
        assert set(one["dropped"]) <= set(one["drawn"])
        answered = len(one["drawn"]) - len(one["dropped"])
        assert (one["bytes_up"] == 0) == (answered == 0)
        assert one["bytes_down"] > 0
        assert answered or one["remarks"][0].startswith("Not fused: ")


def test_federate_leaves_out_failed_clients(monkeypatch):
    """Its gradients raise; the others train by themselves, as they would have without it."""
    true = stacking.cross_entropy_gradients

    def gradients(net, params, buffers, images, labels):
        if (
            labels.shape[0] > 1 or labels.shape[1] == 2
        ):  # together; or bob, whose last image comes alone and is doubled
            raise RuntimeError("no power")
        return true(net, params, buffers, images, labels)

    monkeypatch.setattr(stacking, "cross_entropy_gradients", gradients)
    done = run(rounds=Rounds(2), training=replace(TRAINING, stack="always"))
    assert [one["failed"] for one in done.record["rounds"]] == [{"bob": "no power"}] * 2
    why = (
        "Clients with mlp:hidden=6,layers=1 trained one by one, since together they failed: "
        "no power"
    )
    assert [one["remarks"] for one in done.record["rounds"]] == [[why]] * 2
    monkeypatch.undo()
    others = [one for one in CLIENTS if one.name != "bob"]
    alone = [train_classifiers([one], [MLP], TRAINING, seed=3)[0] for one in others]
    by_hand = fuse(alone, METHODS["fedavg"](), server_for(alone, seed=3))
    first = run(training=replace(TRAINING, stack="never"))
    assert bits(first.result.models) != bits(by_hand.result.models)  # with bob
    monkeypatch.setattr(stacking, "cross_entropy_gradients", gradients)
    assert bits(run(training=replace(TRAINING, stack="always")).result.models) == bits(
        by_hand.result.models
    )


def test_federate_leaves_out_nan_weights(monkeypatch):
    true = ClassifierTraining.uploads

    def uploads(self, state, **more):
        for index, one in enumerate(self._order.clients):
            if one.name == "cy":
                next(iter(state.params.values()))[index].fill_(float("nan"))
        return true(self, state, **more)

    monkeypatch.setattr(ClassifierTraining, "uploads", uploads)
    done = run(rounds=Rounds(2))
    assert [list(one["failed"]) for one in done.record["rounds"]] == [["cy"], ["cy"]]
    assert "NaN" in done.record["rounds"][0]["failed"]["cy"]


def test_federate_raises_cuda_errors(monkeypatch):
    """It is no client's fault, and nothing that is tried after it can work."""

    def gradients(*_):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(stacking, "cross_entropy_gradients", gradients)
    with pytest.raises(RuntimeError, match="illegal memory"):
        run()


def test_federate_leaves_out_infinite_client_state(monkeypatch):
    true = MutualTraining.next_client_states

    def next_client_states(self, state, uploads):
        found = true(self, state, uploads)
        next(iter(found["cy"]["deployed"].state.values())).fill_(float("inf"))
        return found

    monkeypatch.setattr(MutualTraining, "next_client_states", next_client_states)
    done = run("fedkem", KEM)
    assert list(done.record["rounds"][0]["failed"]) == ["cy"]
    assert "cy" not in done.client_state


def test_federate_without_answers():
    with pytest.raises(NeedsError, match="No client answered in round 1"):
        run(rounds=Rounds(1, fraction=0.25, drop=0.999))


UNFIT = {
    "one architecture": ({"specs": [MLP, OTHER, MLP, MLP]}, "one architecture"),
    "label counts": (
        {"name": "fedftg", "settings": SMALL, "withhold_counts": True},
        "must send label counts",
    ),
    "decoders": (
        {"name": "dense", "settings": SMALL, "specs": [MLP, MLP, MLP, ModelSpec("cvae-small")]},
        "client dee must send",
    ),
}


@pytest.mark.parametrize(("asked", "reason"), UNFIT.values(), ids=UNFIT)
def test_federate_checks_needs_before_training(asked, reason):
    moments = []
    with pytest.raises(NeedsError, match=reason):
        run(**asked, rounds=Rounds(1), watch=moments.append)
    assert not moments


# --- what travels, what stays ---------------------------------------------------------------------


def test_federate_counts_bytes_of_files():
    done = run("scaffold", {}, Rounds(2))
    one, two = done.record["rounds"]
    assert (
        one["bytes_down"] < 0.7 * two["bytes_down"]
    )  # the control variate is 0 at first and not sent
    assert one["bytes_up"] == pytest.approx(2 * one["bytes_down"], rel=0.1)
    plain = run("fedavg", {}, Rounds(2)).record
    assert plain["bytes"] == pytest.approx(
        plain["equation_6_bytes"], rel=0.01
    )  # labels and counts are a few bytes
    assert done.record["bytes_up"] == pytest.approx(2 * plain["bytes_up"], rel=0.1)


def test_federate_exchanges_knowledge_alone():
    done = run("fedkem", KEM, Rounds(2), specs=[NORMED] + [OTHER] * 3, evaluate=evaluate_to(0.25))
    small = run("fedavg", {}, Rounds(2), specs=[MLP] * 4).record
    assert done.record["bytes_up"] == pytest.approx(small["bytes_up"], rel=0.01)
    assert {name: str(home["deployed"].spec) for name, home in done.client_state.items()} == {
        "ann": "resnet20", **{name: str(OTHER) for name in ("bob", "cy", "dee")}
    }  # fmt: skip
    assert done.record["home_accuracy"] == 0.25
    assert set(done.record["home_accuracies"]) == set(SIZES)


def test_federate_makes_start_models():
    """Round 2 of feddf with two architectures: the student is distilled into both, and they go
    on from there.
    """
    done = run("feddf", {"steps": 2, "batch_size": 8}, Rounds(2), [MLP, OTHER, MLP, MLP])
    downs = [one["bytes_down"] for one in done.record["rounds"]]
    assert downs[0] == downs[1] > 0
    with pytest.raises(SpecError, match="makes no"):
        run("ensemble", {}, Rounds(2))


def test_federate_refuses_settings():
    with pytest.raises(SettingsError, match="fraction: above 0"):
        Rounds(fraction=0)
    with pytest.raises(SettingsError, match="counts steps of sgd"):
        run("scaffold", training=replace(TRAINING, optimiser="adam"))
    with pytest.raises(SettingsError, match="one model that all clients start from"):
        run("scaffold", training=replace(TRAINING, init="separate"))
    with pytest.raises(SettingsError, match="momentum = 1"):
        METHODS["fednova"](momentum=1.0)
    with pytest.raises(SettingsError, match="it is the knowledge network"):
        run("fedkem", KEM, student="lenet5")
    with pytest.raises(SettingsError, match="fedavg makes none"):
        run("fedavg", {}, student="lenet5")
    odd = [replace(CLIENTS[0], classes=("x", "b", "c")), *CLIENTS[1:]]
    with pytest.raises(SettingsError, match="only one round is possible"):
        federate(
            odd,
            [MLP] * 4,
            METHODS["feddf"](),
            Rounds(2),
            training=TRAINING,
            server=ServerOptions(public=PUBLIC),
        )


def test_federate_resends_decoders():
    specs = [MLP, MLP, ModelSpec.parse("cvae-small:hidden=8"), MLP]
    method = METHODS["fedmho"](epochs=1, samples=20, batch_size=8)
    done = federate(
        CLIENTS, specs, method, Rounds(2), training=TRAINING, weak={"epochs": 1}, seed=3
    )
    assert list(done.client_state) == ["cy"]
    one, two = done.record["rounds"]
    assert one["bytes_up"] == pytest.approx(two["bytes_up"], abs=32)
    assert set(done.client_state["cy"]) == {"decoder"}


# --- tensors that stay on the device --------------------------------------------------------------


RECORDED = [("fedavg", {}), ("fedprox", {"mu": 0.3}), ("scaffold", {})]
RECORDED += [("fedkem", {**KEM, "peer": peer}) for peer in ("updated", "attached", "accumulated")]


def traced(work, inputs):
    return make_fx(work)(*(torch.zeros_like(value) for value in inputs))


class TracingRunner(GraphRunner):
    """Records by tracing, which runs the work, where a CUDA graph is recorded without running it:
    so what the tracing changed is undone before the replay.
    """

    def __init__(self):
        super().__init__(traced)

    def __call__(self, name, work, inputs, captured):
        before, tensors = self.recordings, state_tensors(captured)
        values = [tensor.clone() for tensor in tensors]
        outputs = super().__call__(name, work, inputs, captured)
        if self.recordings == before:
            return outputs
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
        return super().__call__(name, work, inputs, captured)


def state_tensors(captured):
    (state,) = captured
    stacks = [state.params, state.buffers, *state.moments.values()]
    return [state.counts, *(tensor for stack in stacks for tensor in stack.values())]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "settings"), RECORDED, ids=str)
def test_federate_replays_recorded_steps(monkeypatch, name, settings):
    """A recording knows tensors by address: what a later round's clients read must lie where the
    first round's lay.
    """
    rounds, training = (
        Rounds(4, fraction=0.75),
        replace(TRAINING, epochs=3, batch_size=8, stack="always"),
    )
    plain = run(name, settings, rounds, training=training)
    replay = TracingRunner()
    monkeypatch.setattr("attar.training.resident.runner_for", lambda device, **_: replay)
    recorded = run(name, settings, rounds, training=training)
    made = [work for work in replay._recordings.values() if work is not None]
    assert 0 < len(made) <= 8
    for one, other in zip(
        plain.result.models.values(), recorded.result.models.values(), strict=True
    ):
        for value, again in zip(one.state.values(), other.state.values(), strict=True):
            torch.testing.assert_close(value, again, rtol=1e-4, atol=1e-5)


CONVOLVE = [
    (name, {**settings, "knowledge": str(NORMED)} if name == "fedkem" else settings)
    for name, settings in RECORDED
]


@pytest.mark.parametrize(("name", "settings"), CONVOLVE[-4:-2], ids=str)
def test_federate_in_streams_equals_stack(monkeypatch, name, settings):
    """Large nets on a GPU go side by side: a pair of nets and running statistics, too."""
    rounds, training = Rounds(2, fraction=0.5), replace(TRAINING, epochs=1, stack="always", lr=0.01)
    found = []
    for apart in (False, True):
        monkeypatch.setattr(stacking, "prefers_streams", lambda *_, apart=apart: apart)
        found.append(run(name, settings, rounds, [NORMED] * 4, training=training))
    one, other = (next(iter(done.result.models.values())).state for done in found)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("name", "settings"), CONVOLVE, ids=str)
def test_federate_recorded_equals_plain_on_cuda(monkeypatch, name, settings, apart):
    """Small steps: at a rate of 0.05 these nets carry a change of 1e-6 in the loss to 0.2 in a
    weight (measured on a CPU).
    """
    training = replace(TRAINING, epochs=3, batch_size=8, lr=1e-4)
    monkeypatch.setattr(stacking, "prefers_streams", lambda *_: apart)

    def trained(rate: float) -> dict[str, torch.Tensor]:
        rounds, own = Rounds(3, fraction=0.75), replace(training, lr=rate)
        done = run(name, settings, rounds, [NORMED] * 4, training=own, device="cuda")
        return {
            f"{key} {name}": value
            for key, model in done.result.models.items()
            for name, value in model.state.items()
        }

    recorded = trained(training.lr)
    monkeypatch.setattr("attar.training.resident.runner_for", lambda device, **_: eager)
    plain, start = trained(training.lr), trained(1e-9)
    for part in ("weight", "running"):
        assert distance(recorded, plain, part) < 0.25 * distance(plain, start, part)


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], part: str) -> float:
    return (
        sum(
            (value - other[name]).square().sum().item()
            for name, value in one.items()
            if part in name
        )
        ** 0.5
    )


def test_federate_stops_at_ctrl_c(tmp_path):
    def press(moment):
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Stopped, match="round 1"):
        run(out=tmp_path / "fed", watch=press)


def test_federate_proximal_term_with_separate_starts():
    """Without steps of the loss (a rate of nearly nothing) the proximal term alone moves nobody."""
    still = replace(TRAINING, lr=1e-9, momentum=0.0, init="separate")
    near = run("fedprox", {"mu": 1e8}, training=still)
    far = run("fedavg", {}, training=still)
    for value, other in zip(
        near.result.models["average"].state.values(),
        far.result.models["average"].state.values(),
        strict=True,
    ):
        torch.testing.assert_close(value, other, rtol=0, atol=1e-6)


def test_federate_voting_averages_start_next_round():
    done = run("fedavg", {"mixed": "vote"}, Rounds(2), [MLP, OTHER, MLP, OTHER])
    assert [str(part.spec) for part in done.result.models["vote"].members] == [str(MLP), str(OTHER)]
    first = run("fedavg", {"mixed": "vote"}, Rounds(1), [MLP, OTHER, MLP, OTHER])
    assert bits(first.result.models) != bits(done.result.models)


# --- against textbook code ------------------------------------------------------------------------


def textbook(kind: str, rounds: int, rate: float, rho: float, mu: float) -> dict[str, torch.Tensor]:
    """Everybody in every round, one client after the other: FedProx, FedNova or SCAFFOLD as
    their boxes have them.
    """
    net = MLP.build(SHAPE, 3, seeds.derive(3, "init"))
    x = {name: value.detach().clone() for name, value in net.named_parameters()}
    c = {name: torch.zeros_like(value) for name, value in x.items()}
    own = {
        one.name: {name: torch.zeros_like(value) for name, value in x.items()} for one in CLIENTS
    }
    total = sum(SIZES.values())
    for number in range(rounds):
        models, ways, changes = [], [], []
        for one in CLIENTS:
            y = {name: value.clone() for name, value in x.items()}
            velocity = {name: torch.zeros_like(value) for name, value in x.items()}
            way = speed = 0.0
            for epoch in range(2 * number, 2 * number + 2):
                order = torch.randperm(
                    len(one.labels), generator=seeds.rng(3, "shuffle", one.name, epoch)
                )
                for rows in order.split(16):
                    leaves = {name: value.clone().requires_grad_() for name, value in y.items()}
                    images = (one.pixels[rows].float() / 255 - 0.5) / 0.5
                    logits = torch.func.functional_call(net, leaves, (images,))
                    torch.nn.functional.cross_entropy(logits, one.labels[rows]).backward()
                    for name, value in leaves.items():
                        step = value.grad + (mu * (y[name] - x[name]) if kind == "fedprox" else 0)
                        step = step + (c[name] - own[one.name][name] if kind == "scaffold" else 0)
                        velocity[name] = rho * velocity[name] + step
                        y[name] = y[name] - rate * velocity[name]
                    speed = rho * speed + 1
                    way += speed
            models.append(y)
            ways.append(way)
            changes.append({name: (x[name] - y[name]) / (rate * way) - c[name] for name in x})
        share = [SIZES[one.name] / total for one in CLIENTS]
        for name, value in x.items():
            if kind == "fedprox":
                x[name] = sum(p * y[name] for p, y in zip(share, models, strict=True))
            elif kind == "fednova":
                mean = sum(
                    p * (value - y[name]) / tau
                    for p, y, tau in zip(share, models, ways, strict=True)
                )
                x[name] = value - sum(p * tau for p, tau in zip(share, ways, strict=True)) * mean
            else:
                x[name] = sum(y[name] for y in models) / len(models)
                c[name] = c[name] + sum(change[name] for change in changes) / len(models)
                for one, change in zip(CLIENTS, changes, strict=True):
                    own[one.name][name] = own[one.name][name] + change[name]
    return x


@pytest.mark.parametrize("rho", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "settings"), [("fedprox", {"mu": 2.0}), ("fednova", {}), ("scaffold", {})]
)
def test_federate_equals_textbook(name, settings, rho):
    settings = {**settings, "momentum": rho} if name == "fednova" else settings
    done = run(name, settings, Rounds(3), training=replace(TRAINING, momentum=rho))
    wanted = textbook(name, 3, TRAINING.lr, rho, 2.0)
    for key, value in done.result.models["average"].state.items():
        torch.testing.assert_close(value, wanted[key], rtol=1e-4, atol=1e-6)


def test_federate_single_client_is_one_training():
    """Without momentum, which each round forgets: two rounds of two epochs are one of four,
    shuffle by shuffle.
    """
    plain, ann = replace(TRAINING, momentum=0.0), CLIENTS[:1]
    short = federate(ann, [NORMED], METHODS["fedavg"](), Rounds(2), training=plain, seed=3)
    long = federate(
        ann, [NORMED], METHODS["fedavg"](), Rounds(1), training=replace(plain, epochs=4), seed=3
    )
    assert bits(short.result.models) == bits(long.result.models)


def test_federate_continues_client_state():
    """Two rounds of mutual learning of one client, the knowledge network coming back untouched:
    one long training of both nets.
    """
    plain, ann = replace(TRAINING, momentum=0.0), CLIENTS[:1]
    average = METHODS["fedkem"](knowledge=str(MLP), fusion="average")
    short = federate(ann, [OTHER], average, Rounds(2), training=plain, seed=3)
    long = federate(ann, [OTHER], average, Rounds(1), training=replace(plain, epochs=4), seed=3)
    assert home_bits(short) == home_bits(long)
    assert bits(short.result.models) == bits(long.result.models)


def test_federate_resumes_at_the_epoch(tmp_path):
    """Killed in its fourth epoch, it begins with the fourth, not with the first."""
    training, moments = replace(TRAINING, epochs=6), []
    with pytest.raises(Killed):
        run(training=training, out=tmp_path / "fed", watch=killer(3), checkpoint_seconds=0)
    run(training=training, out=tmp_path / "fed", resume=True, watch=moments.append)
    assert [moment.step for moment in moments][:3] == [4, 5, 6]


WHOLE_STEPS = {
    "updated": {"momentum": 0.9, "weight_decay": 0.01},
    "detached": {"clip": 0.5},
    "attached": {"optimiser": "adam", "lr": 0.001, "schedule": "cosine"},
    "accumulated": {"momentum": 0.0, "schedule": "cosine", "clip": 0.5},
}


@pytest.mark.parametrize("stack", ["always", "never"])
@pytest.mark.parametrize("peer", WHOLE_STEPS)
def test_whole_pair_steps_equal_halves(peer, stack):
    """The step as one piece of work, with the rate as a tensor and last batches gathered from the
    stack, beside the two halves; in double precision.
    """
    training = replace(TRAINING, epochs=2, batch_size=8, stack=stack, lr=0.02)
    training = replace(training, **WHOLE_STEPS[peer])
    mutual = METHODS["fedkem"](knowledge=str(NORMED), peer=peer).objective.mutual
    preprocess = Preprocess.centred(SHAPE)
    found, names = [], []

    def runner(name, work, inputs, captured):
        names.append(name)
        return work(*inputs)

    for run_steps in (eager, runner):
        trained = MutualTraining(
            CLIENTS[1::2], NORMED, preprocess, training, mutual, seed=3, run=run_steps
        )
        state = trained.start()
        for tensors in (state.params, state.buffers, *state.moments.values()):
            for name, tensor in tensors.items():
                tensors[name] = tensor.double() if tensor.is_floating_point() else tensor
        for _ in range(training.epochs):
            trained.phases()[0].step(state)
            state.step += 1
        found.append(state)
    assert any("last" in name for name in names)
    assert any("last" not in name for name in names)
    one, other = found
    assert torch.equal(one.counts, other.counts)
    for stacks in ((one.params, other.params), (one.buffers, other.buffers)):
        torch.testing.assert_close(*stacks, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("peer", ["updated", "detached", "attached", "accumulated"])
def test_mutual_training_counts_batches_once(peer):
    mutual = METHODS["fedkem"](knowledge="resnet20", peer=peer).objective.mutual
    stack = MutualTraining(
        CLIENTS[:2], NORMED, Preprocess.centred(SHAPE), replace(TRAINING, epochs=1), mutual
    )
    state = stack.start()
    stack.phases()[0].step(state)
    uploads = stack.uploads(state)
    homes = stack.next_client_states(state, uploads)
    for upload in uploads:
        for part in (upload.parts["knowledge"], homes[upload.client]["deployed"]):
            counters = {
                int(value)
                for name, value in part.state.items()
                if name.endswith("num_batches_tracked")
            }
            assert counters == {upload.local_steps}


def test_federate_continues_student():
    """A method that distils nothing hands on what it began with: in round 2 that is the model of
    round 1, in every architecture.
    """
    for name, settings in (
        ("dense", {**SMALL, "epochs": 0}),
        ("feddf", {"steps": 0, "start_from": "fresh"}),
    ):
        once, twice = (
            run(name, settings, Rounds(number), [MLP, MLP, OTHER, MLP]) for number in (1, 2)
        )
        assert bits(once.result.models) == bits(twice.result.models)
        assert bits(run(name, settings, Rounds(1), seed=4).result.models) != bits(
            once.result.models
        )


@pytest.mark.parametrize(("clip", "bounds"), [(None, [None, 10.0]), (3.0, [3.0])])
def test_federate_clips_student_in_later_rounds(monkeypatch, clip, bounds):
    """One after the other: in round 1 as the method says, in round 2 bounded."""
    found = []

    def watching(*args):
        found.append(args[6])
        return gradient_step(*args)

    monkeypatch.setattr("attar.blocks.student.distil.gradient_step", watching)
    run("dense", {**SMALL, "clip": clip}, Rounds(2))
    assert list(dict.fromkeys(found)) == bounds


def test_federate_evaluates_every_few_rounds():
    calls = []

    def evaluate(model):
        calls.append(model)
        return evaluation_of(len(calls) / 10)

    done = run("fedavg", {}, Rounds(5, evaluate_every=2), evaluate=evaluate)
    assert [entry["accuracy"] for entry in done.record["rounds"]] == [None, 0.1, None, 0.2, 0.3]
    assert done.record["accuracy"] == 0.3
    assert len(calls) == 3
    with pytest.raises(SettingsError, match="evaluate_every"):
        Rounds(2, evaluate_every=0)


def test_federate_evaluates_each_model_once():
    """Two rounds, of four deployed models each: those of the last round are not measured again."""
    seen = []

    def evaluate(model):
        seen.append(tuple(bits({"model": model.description})))
        return evaluation_of(0.5)

    done = run("fedkem", KEM, Rounds(2, home_every=1), specs=[OTHER] * 4, evaluate=evaluate)
    assert len(seen) == len(set(seen)) == 2 * (1 + 4)
    assert {name: found.accuracy for name, found in done.evaluations.items()} == (
        done.record["accuracies"]
    )
    assert len(done.record["home_accuracies"]) == 4


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("minutes", r"options=RunOptions\(minutes=...\)"),
        ("public", r"server=ServerOptions\(public=...\)"),
        ("colour", "unexpected keyword argument 'colour'"),
    ],
)
def test_federate_names_the_new_place_of_a_keyword(keyword, message):
    with pytest.raises(TypeError, match=message):
        federate(CLIENTS, [MLP] * 4, METHODS["fedavg"](), **{keyword: 1})
