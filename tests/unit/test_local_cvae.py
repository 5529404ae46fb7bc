"""Local training of autoencoders against its textbook twin, what leaves the client, and how it
goes on after a break.
"""

from dataclasses import fields, replace

import pytest
import torch
from torch.nn import functional as F

from attar import seeds
from attar.core import ModelSpec, Part, Preprocess
from attar.errors import DataError, RunError, SettingsError, SpecError
from attar.running import ProgressReport
from attar.training import (
    ClassifierTraining,
    CvaeTraining,
    LocalTraining,
    TrainingFlags,
    make_stacks,
    paper_training,
    parse_clients,
    stack_classifiers,
    stack_cvaes,
    train_cvaes,
    train_stack,
)
from attar.uploads import decode, encode
from tiny_clients import count_recordings, random_client, record_operations

SHAPE, CLASSES = (1, 8, 8), ("a", "b", "c")
SIZES = {"ann": 40, "bob": 17, "cy": 33, "dee": 1}
MLP, CONV = (
    ModelSpec.parse("cvae-small:hidden=8"),
    ModelSpec.parse("cvae-small:form=emnist,hidden=8,latent=3"),
)
QUICK = LocalTraining(epochs=2, batch_size=16, optimiser="adam", lr=1e-2)


CLIENTS = [random_client(name, size, SHAPE, CLASSES) for name, size in SIZES.items()]


def train(stack):
    state = stack.start()
    (phase,) = stack.phases()
    losses = []
    for _ in range(phase.steps):
        losses.append(float(phase.step(state)["loss"]))
        state.step += 1
    return stack.uploads(state), losses


def twin(data, spec, training, seed):
    """The obvious code: one client, ``torch.optim``, the loss written out."""
    net = spec.build(SHAPE, len(CLASSES), seeds.derive(seed, "init"))
    kind = torch.optim.Adam if training.optimiser == "adam" else torch.optim.SGD
    optimiser = kind(net.parameters(), training.lr)
    for epoch in range(training.epochs):
        order = torch.randperm(
            len(data.labels), generator=seeds.rng(seed, "shuffle", data.name, epoch)
        )
        noise = torch.randn(
            len(order), net.latent, generator=seeds.rng(seed, "noise", data.name, epoch)
        )
        for start in range(0, len(order), training.batch_size):
            rows = order[start : start + training.batch_size]
            images, labels = (
                data.pixels[rows].float() / 255,
                F.one_hot(data.labels[rows], len(CLASSES)).float(),
            )
            mean, log_variance = net.encoder(images, labels)
            code = mean + (log_variance / 2).exp() * noise[start : start + len(rows)]
            made = net.decoder(code, labels)
            recon = -(images * made.log() + (1 - images) * (1 - made).log()).sum()
            kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum()
            optimiser.zero_grad()
            ((recon + kl) / len(rows)).backward()
            optimiser.step()
    return net.decoder.state_dict()


@pytest.mark.parametrize("spec", [MLP, CONV], ids=["mlp", "conv"])
@pytest.mark.parametrize("stack", ["always", "never"])
@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_cvae_training_equals_torch_optim(spec, stack, optimiser):
    lr = 1e-3 if optimiser == "adam" else 1e-4
    training = replace(QUICK, stack=stack, optimiser=optimiser, momentum=0.0, lr=lr)
    uploads, _ = train(CvaeTraining(CLIENTS, spec, training, seed=3))
    for data, upload in zip(CLIENTS, uploads, strict=True):
        expected = twin(data, spec, training, 3)
        for name, value in upload.parts["decoder"].state.items():
            assert torch.allclose(value, expected[name], atol=2e-5), (data.name, name)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("spec", "stack"), [(MLP, "always"), (CONV, "never")], ids=["mlp", "conv"])
def test_recorded_steps_equal_plain_steps(spec, stack):
    """Written down as operations and repeated, as a CUDA graph would be."""
    training = replace(QUICK, epochs=3, stack=stack, clip=5.0)
    plain, _ = train(CvaeTraining(CLIENTS, spec, training))
    replay = record_operations()
    recorded, _ = train(CvaeTraining(CLIENTS, spec, training, run=replay))
    assert count_recordings(replay) > 0
    for one, other in zip(plain, recorded, strict=True):
        for name, value in one.parts["decoder"].state.items():
            torch.testing.assert_close(
                value, other.parts["decoder"].state[name], rtol=1e-4, atol=1e-6
            )


def test_cvae_training_ignores_company():
    everybody, _ = train(CvaeTraining(CLIENTS, MLP, QUICK))
    alone, _ = train(CvaeTraining(CLIENTS[1:2], MLP, QUICK))
    for name, value in alone[0].parts["decoder"].state.items():
        assert torch.allclose(value, everybody[1].parts["decoder"].state[name], atol=1e-5)


def test_cvae_training_lowers_the_loss():
    _, losses = train(CvaeTraining(CLIENTS, MLP, replace(QUICK, epochs=20)))
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("init", ["shared", "separate"])
def test_start_shared_and_separate(init):
    state = CvaeTraining(CLIENTS, MLP, replace(QUICK, init=init)).start()
    first, second = state.params["decoder.hidden.weight"][:2]
    assert torch.equal(first, second) is (init == "shared")


def test_uploads_hold_the_decoder_alone():
    stack = CvaeTraining(CLIENTS, MLP, QUICK)
    state = stack.start()
    upload = stack.uploads(state)[0]
    assert set(upload.parts) == {"decoder"}
    assert str(upload.parts["decoder"].spec) == "cvae-small-decoder:hidden=8"
    assert upload.label_counts == tuple(CLIENTS[0].labels.bincount(minlength=3).tolist())
    assert upload.num_examples == 40
    file = encode(upload)
    assert b"encoder" not in file.replace(b"decoder", b"")
    encoder = {name: value for name, value in state.params.items() if name.startswith("encoder.")}
    assert encoder
    for value in encoder.values():
        assert value[0].contiguous().numpy().tobytes() not in file
    back = decode(file).parts["decoder"]
    noise, label = torch.zeros(1, 2), torch.eye(3)[:1]
    net = MLP.build(SHAPE, 3, seeds.derive(0, "init"))
    assert torch.equal(back.build()(noise, label), net.decoder(noise, label))


def test_uploads_withhold_counts():
    stack = CvaeTraining(CLIENTS, MLP, QUICK)
    assert stack.uploads(stack.start(), withhold_counts=True)[0].label_counts is None


class Killed(Exception):
    pass


def test_train_stack_resumes_to_the_same_bytes(tmp_path):
    stack = CvaeTraining(CLIENTS, MLP, replace(QUICK, epochs=4))
    straight, _ = train_stack(stack)
    seen: list[ProgressReport] = []

    def kill(moment):
        seen.append(moment)
        if len(seen) == 3:
            raise Killed

    where = tmp_path / ".training"
    with pytest.raises(Killed):
        train_stack(stack, checkpoint=where, checkpoint_seconds=0, watch=kill, watch_seconds=0)
    assert where.exists()
    with pytest.raises(RunError, match="other settings"):
        train_stack(replace(stack, training=replace(QUICK, lr=0.5)), checkpoint=where)
    resumed, measured = train_stack(stack, checkpoint=where)
    assert [encode(one) for one in resumed] == [encode(one) for one in straight]
    assert measured == {}
    assert not where.exists()


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "preset", "expected"),
    [
        ("cvae-small", (1, 28, 28), 10, "mnist", (30, 5e-2)),
        ("cvae-small", (1, 28, 28), 10, "fashion", (40, 5e-2)),
        ("cvae-small", (3, 32, 32), 10, "svhn", (40, 1e-3)),
        ("cvae-small", (1, 28, 28), 47, "emnist", (50, 3e-3)),
        ("cvae-small", (1, 28, 28), 10, "auto", (40, 5e-2)),
        ("cvae-small", (1, 28, 28), 47, "auto", (50, 3e-3)),
        ("cvae-small", (3, 64, 64), 2, "auto", (40, 1e-3)),
        ("cvae-small", (1, 64, 64), 2, "auto", (40, 1e-3)),
        ("cvae-small:form=emnist", (1, 28, 28), 3, "auto", (50, 3e-3)),
        ("cvae-large", (1, 28, 28), 10, "mnist", (30, 1e-3)),
    ],
)
def test_paper_training_is_table_3(spec, shape, classes, preset, expected):
    training = paper_training(ModelSpec.parse(spec), shape, classes, preset)
    assert (training.epochs, training.lr) == expected
    assert (training.batch_size, training.optimiser) == (64, "adam")


def test_stack_cvaes_replaces_table_3():
    (stack,) = stack_cvaes(CLIENTS, [MLP] * 4, {"epochs": 30, "batch_size": 128}, preset="emnist")
    assert (stack.training.epochs, stack.training.batch_size, stack.training.lr) == (30, 128, 3e-3)


def test_train_cvaes_keeps_the_order_of_clients():
    uploads = train_cvaes(CLIENTS, [MLP, CONV, MLP, CONV], {"epochs": 1})
    assert [upload.client for upload in uploads] == list(SIZES)
    assert [upload.parts["decoder"].spec.options[0][0] for upload in uploads] == [
        "hidden",
        "form",
        "hidden",
        "form",
    ]


def test_training_flags_are_empty_unless_given():
    assert [field.name for field in fields(TrainingFlags)] == [
        field.name for field in fields(LocalTraining)
    ]
    assert TrainingFlags().settings() == {}
    assert TrainingFlags(epochs=30).settings() == {"epochs": 30}


def test_make_stacks_by_kind_of_net():
    specs = [ModelSpec("mlp"), MLP, ModelSpec("mlp"), CONV]
    flags = TrainingFlags(epochs=3, lr=0.5)
    stacks = make_stacks(CLIENTS, specs, flags, preset="emnist", seed=7, device="cpu", initial=None)
    assert [type(stack) for stack in stacks] == [ClassifierTraining, CvaeTraining, CvaeTraining]
    assert [[client.name for client in stack.clients] for stack in stacks] == [
        ["ann", "cy"],
        ["bob"],
        ["dee"],
    ]
    assert [
        (stack.training.epochs, stack.training.lr, stack.training.batch_size) for stack in stacks
    ] == [
        (3, 0.5, 128),
        (3, 0.5, 64),
        (3, 0.5, 64),
    ]
    assert {stack.seed for stack in stacks} == {7}
    given = Part(ModelSpec("mlp"), {}, CLASSES, Preprocess.plain(SHAPE))
    with pytest.raises(SettingsError, match="only decoders are exchanged"):
        make_stacks(CLIENTS, specs, flags, preset="auto", seed=0, device="cpu", initial=given)


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ("all", [0, 1, 2, 3]),
        ("2", [2]),
        ("client-1", [1]),
        ("0-2", [0, 1, 2]),
        ("3,0-1", [0, 1, 3]),
        ("1,1-1", [1]),
    ],
)
def test_parse_clients_by_number_name_and_range(words, places):
    assert parse_clients(words, [f"client-{n}" for n in range(4)], "x") == places


@pytest.mark.parametrize("words", ["4", "2-1", "0-4", "client-9", "", "-1", "1-", "a-b"])
def test_parse_clients_refuses_unknown_ones(words):
    with pytest.raises(DataError, match="has no client"):
        parse_clients(words, [f"client-{n}" for n in range(4)], "parts.json")


def test_cvae_training_refuses_what_does_not_fit():
    with pytest.raises(SpecError, match="is a classifier, not a CVAE"):
        CvaeTraining(CLIENTS, ModelSpec("mlp"), QUICK)
    with pytest.raises(SpecError, match="is a cvae, not a classifier"):
        stack_classifiers(CLIENTS, [MLP] * 4, QUICK)
    with pytest.raises(SettingsError, match=r"(?s)sam.*validation"):
        CvaeTraining(CLIENTS, MLP, replace(QUICK, sam=0.1, validation=0.1))
    with pytest.raises(DataError, match="no client"):
        CvaeTraining([], MLP, QUICK)
    other = replace(CLIENTS[0], name="x", classes=("a", "b", "d"))
    with pytest.raises(DataError, match="one stack"):
        CvaeTraining([CLIENTS[0], other], MLP, QUICK)
