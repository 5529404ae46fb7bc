"""FedHydra's stratification: Eqs. (1) to (11) by hand and with the paper's matrices; the stack
against a loop over classes.

By hand, u of two clients over three classes:  client 0 (1, 2, 5), client 1 (3, 0, 5).
Over the clients (4): a 1/4 : 3/4, b 1 : 0, c 1/2 : 1/2.
Over the classes (6): client 0 1/8, 2/8, 5/8; client 1 3/8, 0, 5/8.
"""

import pytest
import torch
from by_hand import crop_and_flip, draw_crops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import Adam

from attar.blocks.ensemble import combine
from attar.blocks.images import PlainGeneratorTraining, new_generator
from attar.blocks.student import (
    Stratification,
    across_classes,
    across_clients,
    client_guidance,
    guidance,
)
from attar.blocks.student.stratify import (
    guidance_losses,
    label_free_weights,
    stacked_guidance_losses,
    stratified_weights,
)
from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.fusion import fuse, server_for
from attar.methods.fedhydra import FedHydra
from attar.seeds import rng
from attar.testing import CLASSES, SHAPE, tiny_world

SAME, CODE = Stratification(), Stratification(augment="crop-flip", beta1=0.5, start="own")
TABLE = torch.tensor([[1.0, 2.0, 5.0], [3.0, 0.0, 5.0]])
QUICK = {"epochs": 1, "generator_steps": 3, "batch_size": 4, "noise": 5, "generator_width": 3}


# --- (2) to (7) -----------------------------------------------------------------------------------


def test_guidance_by_hand():
    """Losses 4, 2, 1, 1.6 over the steps: (4 - 1) / 1 = 3. Losses that rise count as well: 2, 3:
    (3 - 2) / 2 = 1/2.
    """
    assert guidance(torch.tensor([[4.0], [2.0], [1.0], [1.6]]), 0.01).tolist() == [3.0]
    assert guidance(torch.tensor([[2.0, 4.0], [3.0, 1.0]]), 0.01).tolist() == [0.5, 3.0]


def test_guidance_survives_a_loss_of_zero():
    """The divisor is at least the floor: (1 - 0) / 0.01 = 100, (0 - 0) / 0.01 = 0; above the
    floor it has no say.
    """
    losses = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.25]])
    assert guidance(losses, 0.01).tolist() == pytest.approx([100.0, 0.0, 1.0])


def test_client_guidance_of_a_class_that_is_seen_in_noise():
    """Losses 4, 0.5 and 0.1, 0.1: by (2) 7 and 0; from the client's highest loss, (4 - 0.5) /
    0.5 = 7 and (4 - 0.1) / 0.1 = 39.
    """
    losses = torch.tensor([[4.0, 0.1], [0.5, 0.1]])
    assert guidance(losses, 0.01).tolist() == [7.0, 0.0]
    assert client_guidance(losses, 0.01).tolist() == pytest.approx([7.0, 39.0])
    world = tiny_world()
    methods = (FedHydra(**QUICK, highest_of=whose) for whose in ("class", "client"))
    results = [fuse(world.uploads, method, world.server).result for method in methods]
    rows = [result.arrays["guidance"] for result in results]
    assert (rows[1] >= rows[0]).all()
    assert (rows[1] > rows[0]).any()


def test_across_clients_and_across_classes_by_hand():
    torch.testing.assert_close(
        across_clients(TABLE), torch.tensor([[0.25, 1.0, 0.5], [0.75, 0.0, 0.5]])
    )
    torch.testing.assert_close(
        across_classes(TABLE), torch.tensor([[0.125, 0.25, 0.625], [0.375, 0.0, 0.625]])
    )


def test_across_clients_is_uniform_where_nobody_guides():
    table = torch.tensor([[1.0, 0.0], [0.0, 0.0], [3.0, 0.0]])
    torch.testing.assert_close(across_clients(table)[:, 1], torch.full((3,), 1 / 3))
    assert across_classes(table)[1].tolist() == [0.5, 0.5]
    assert torch.isfinite(across_clients(table * 0)).all()


tables = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(
            st.floats(0, 1e4).map(lambda u: u if u > 1e-3 else 0.0), min_size=width, max_size=width
        ),
        min_size=1,
        max_size=5,
    )
)


@given(tables)
@settings(max_examples=60)
def test_across_clients_and_across_classes_sum_to_one(rows):
    """In the paper's transposed writing; here clients are rows: over the clients, and over the
    classes.
    """
    table = torch.tensor(rows, dtype=torch.float64)
    clients, classes = table.shape
    torch.testing.assert_close(
        across_clients(table).sum(0), torch.ones(classes, dtype=torch.float64)
    )
    torch.testing.assert_close(
        across_classes(table).sum(1), torch.ones(clients, dtype=torch.float64)
    )


# --- (8) to (11) ----------------------------------------------------------------------------------


def paper_aggregation(table, logits, labels):
    """Algorithm 3 with the paper's matrices: U is c x m, P_k is b x c, every product written as
    it is printed.
    """
    u = table.T  # (3), c x m
    classes, clients = u.shape
    batch = len(labels)
    u_r, u_c = torch.empty_like(u), torch.empty_like(u)
    for j in range(classes):
        for k in range(clients):
            u_r[j, k] = u[j, k] / sum(u[j, i] for i in range(clients))  # (4), (5)
            u_c[j, k] = u[j, k] / sum(u[i, k] for i in range(classes))  # (6), (7)
    ones = torch.ones(batch, 1, dtype=table.dtype)
    weighted = [logits[k] * (ones @ u_c[:, k : k + 1].T) for k in range(clients)]  # (8)
    per_image = [
        torch.stack([weighted[k][i] for k in range(clients)]) for i in range(batch)
    ]  # (9), m x c each
    v = torch.stack([u_r[labels[i]] for i in range(batch)])  # (10), b x m
    return torch.stack([v[i] @ per_image[i] for i in range(batch)])  # (11), b x c


def test_stratified_weights_by_hand():
    """One image of class a (0), logits (8, 4, 0) and (8, 1, 16).

    a: 1/4 * 1/8 * 8 + 3/4 * 3/8 * 8 = 2.5, b: 1/4 * 1/4 * 4 + 0 = 0.25, c: 0 + 3/4 * 5/8 * 16 = 7.5
    """
    logits = torch.tensor([[[8.0, 4.0, 0.0]], [[8.0, 1.0, 16.0]]])
    weights = stratified_weights(TABLE, torch.tensor([0]))
    assert weights.shape == (1, 2, 3)
    found = combine("sum", logits, torch.ones(2, 3, dtype=torch.bool), weights)
    assert found[0].tolist() == pytest.approx([2.5, 0.25, 7.5])
    assert paper_aggregation(TABLE, logits, [0])[0].tolist() == pytest.approx([2.5, 0.25, 7.5])


@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 4), st.integers(0, 10**6))
@settings(max_examples=40)
def test_stratified_weights_equal_the_papers_matrices(clients, batch, classes, seed):
    """As many images as clients or as classes happen to come up: no axis may be mistaken."""
    draws = rng(seed)
    table = torch.rand(clients, classes, generator=draws, dtype=torch.float64) + 0.01
    logits = torch.randn(clients, batch, classes, generator=draws, dtype=torch.float64)
    labels = torch.randint(0, classes, (batch,), generator=draws)
    known = torch.ones(clients, classes, dtype=torch.bool)
    found = combine("sum", logits, known, stratified_weights(table, labels))
    torch.testing.assert_close(found, paper_aggregation(table, logits, labels))


def test_label_free_weights_are_those_of_an_image_of_each_class():
    """U_r(c, k) U_c(c, k): (1/4 * 1/8, 1 * 2/8, 1/2 * 5/8) and (3/4 * 3/8, 0, 1/2 * 5/8)."""
    expected = torch.tensor([[1 / 32, 1 / 4, 5 / 16], [9 / 32, 0.0, 5 / 16]])
    torch.testing.assert_close(label_free_weights(TABLE), expected)
    for label in range(3):  # it is what an image of class c has for class c
        torch.testing.assert_close(
            stratified_weights(TABLE, torch.tensor([label]))[0, :, label],
            label_free_weights(TABLE)[:, label],
        )


# --- (1), Algorithm 2 -----------------------------------------------------------------------------


def one_by_one(teacher, classes, shape, training, batch_size, seed, how=SAME, client=0):
    """The sequential twin: for each class a generator and an optimiser of its own."""
    columns = []
    for label in classes.tolist():
        own = (client, label) if how.start == "own" else ()
        generator = new_generator(shape, training.noise, training.width, seed, "stratify", *own)
        draws = rng(seed, "stratify noise", *own)
        noise = torch.randn(batch_size, training.noise, generator=draws)
        crops = draw_crops(training.steps * batch_size, rng(seed, "stratify crops", *own))
        adam = Adam(generator.parameters(), lr=training.lr, betas=(how.beta1, 0.999))
        losses = []
        for step in range(training.steps):
            images = generator(noise)
            if how.augment == "crop-flip":
                images = crop_and_flip(images, crops[step * batch_size :][:batch_size])
            loss = -teacher(images).log_softmax(-1)[:, label].mean()  # (1)
            losses.append(loss.item())
            adam.zero_grad()
            loss.backward()
            adam.step()
        columns.append(losses)
    return torch.tensor(columns).T


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("how", [SAME, CODE], ids=["paper", "code"])
@pytest.mark.parametrize("arch", ["mlp:hidden=8,layers=1", "lenet5", "resnet20"])
def test_guidance_losses_of_a_stack_equal_one_after_the_other(arch, how):
    net = tiny_world((arch,)).uploads[0].parts["classifier"].build()
    training = PlainGeneratorTraining(steps=4, lr=3e-3, noise=6, width=3)
    classes = torch.tensor([2, 0])
    losses = guidance_losses(net, classes, SHAPE, training, 5, 9, how, client=3)
    assert losses.shape == (4, 2)
    expected = one_by_one(net, classes, SHAPE, training, 5, 9, how, client=3)
    torch.testing.assert_close(losses, expected, rtol=1e-7, atol=1e-9)
    if how == SAME:
        assert (losses[0] - losses[-1]).min() > 1e-4  # the generators have learned something
    assert not losses.requires_grad


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("how", [SAME, CODE], ids=["paper", "code"])
def test_generators_of_several_classes_train_as_one_stack(how):
    """What a GPU does, here on the CPU: weights, noise and crops of all classes at once."""
    net = tiny_world(("lenet5",)).uploads[0].parts["classifier"].build()
    training = PlainGeneratorTraining(steps=4, lr=3e-3, noise=6, width=3)
    classes = torch.tensor([2, 0])
    stacked = stacked_guidance_losses(net, classes, SHAPE, training, 5, 9, how, 3)
    expected = one_by_one(net, classes, SHAPE, training, 5, 9, how, client=3)
    torch.testing.assert_close(stacked, expected, rtol=1e-7, atol=1e-9)


def test_start_of_the_generators_is_the_same_or_their_own():
    """Classes whose columns of the head are equal have equal losses only if all begin alike; so
    do two clients with the same net.
    """
    world = tiny_world(("mlp:hidden=8,layers=1",))
    net = world.uploads[0].parts["classifier"].build()
    with torch.no_grad():
        for value in (net.head.weight, net.head.bias):
            value[1] = value[0]
    training, both = PlainGeneratorTraining(2, 1e-3, 5, 3), torch.tensor([0, 1])

    def losses(start, client):
        how = Stratification(augment="crop-flip", start=start)
        return guidance_losses(net, both, SHAPE, training, 4, 9, how, client)

    same, own = losses("same", 0), losses("own", 0)
    assert torch.equal(same[:, 0], same[:, 1])
    assert torch.equal(same, losses("same", 1))
    assert (own[:, 0] - own[:, 1]).abs().min() > 1e-6
    assert (own - losses("own", 1)).abs().min() > 1e-6


def test_stratify_phase_fills_a_row_a_client_and_leaves_unknown_classes_at_0():
    """Client 1 lists two of three classes; its guidance of the third is 0, as is its answer."""
    world = tiny_world(("lenet5", "mlp:hidden=8,layers=1"), classes=[CLASSES, ("bar", "ring")])
    method = FedHydra(**QUICK)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    phase = method.phases(context)[0]
    assert (phase.name, phase.steps) == ("stratify", 2)
    assert state.guidance.abs().sum() == 0
    phase.step(state)
    assert (state.guidance[0] > 0).all()
    assert state.guidance[1].abs().sum() == 0
    state.step = 1
    phase.step(state)
    assert (state.guidance[1] > 0).tolist() == [True, False, True]  # ring, cross, bar
    part = world.uploads[1].parts["classifier"]
    net, training = part.build(), PlainGeneratorTraining(3, 1e-3, 5, 3)

    def placed(x):
        bar, ring = net(part.preprocess(x)).T
        # 0 for the class that it does not know
        return torch.stack([ring, torch.zeros_like(ring), bar], 1)

    alone = one_by_one(placed, torch.tensor([0, 2]), SHAPE, training, 4, world.server.seed)
    torch.testing.assert_close(
        state.guidance[1, [0, 2]], guidance(alone, method.guidance_floor), rtol=1e-3, atol=1e-6
    )
    assert across_clients(state.guidance)[0, 1] == 1


PICTURE = (1, 8, 8)


def expert(place):
    """A client that knows one class by its pattern: its logit is ReLU(60 (bright half - dark
    half) + 1/2), the other's is 0.
    """
    pattern = torch.full((8, 8), -1.0)
    if place == 0:
        pattern[:, :4] = 1
    else:
        pattern[:4] = 1
    state = {
        "trunk.1.weight": 60 * pattern.view(1, 64) / 64,
        "trunk.1.bias": torch.tensor([0.5]),
        "head.weight": torch.eye(2)[:, place : place + 1].clone(),
        "head.bias": torch.zeros(2),
    }
    part = Part(
        ModelSpec.parse("mlp:hidden=1,layers=1"),
        state,
        ("a", "b"),
        Preprocess(PICTURE, (0.0,), (1.0,)),
    )
    return Upload(f"expert{place}", {"classifier": part}, 10)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_across_clients_gives_each_class_to_its_expert(order):
    """T_G = 30 and eta_G = 0.001 as in the paper: at least 0.9 of each class's weight lies with
    the client that knows it.
    """
    uploads = [expert(place) for place in order]
    method = FedHydra(epochs=0, batch_size=16, noise=16, generator_width=16)
    fused = fuse(uploads, method, server_for(uploads))
    shares = fused.result.arrays["across clients"]
    for row, place in enumerate(order):
        assert shares[row, place] >= 0.9
    context = method.prepare(uploads, server_for(uploads))
    state = method.start(context)
    state.guidance = fused.result.arrays["guidance"]
    left = torch.zeros(1, *PICTURE)
    left[..., :4] = 1  # class a, and expert 1 sees nothing in it
    answer = context.ensemble(state, left, torch.tensor([0]))
    assert answer[0].argmax() == 0
