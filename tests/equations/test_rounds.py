"""FedKEM's equations (1) to (6), FedProx's term, FedNova's normalisation and SCAFFOLD's control
variates on numbers worked by hand.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attar.blocks.ensemble import effective_steps
from attar.blocks.images import apply_augmentation, draw_augmentation
from attar.blocks.student import probability_gap
from attar.core import Images, ModelSpec, Part, Preprocess, Server, Task, Upload
from attar.errors import SettingsError
from attar.federation import highest_common_accuracy, rounds_to_accuracy
from attar.federation.communication import communication_cost, sampled_clients
from attar.methods import METHODS
from attar.nets import registry
from attar.seeds import rng
from attar.training import (
    CONTROL,
    ClassifierTraining,
    ClientData,
    LocalTraining,
    Mutual,
    MutualTraining,
    Objective,
    RoundInput,
)
from attar.training.objectives import control_change
from attar.training.pairs import logit_distance, mutual_loss

SHAPE = (1, 1, 1)
CLASSES = ("a", "b")
LINE = ModelSpec("test-line")
PREPROCESS = Preprocess.plain(SHAPE)


class Line(nn.Module):
    """Logits (w x, 0): one weight, so that everything can be worked out by hand; and a statistic
    beside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("statistic", torch.zeros(1))

    def forward(self, x):
        first = x.flatten(1) * self.weight
        return torch.cat([first, torch.zeros_like(first)], 1)


@pytest.fixture(autouse=True)
def _nets(monkeypatch):
    monkeypatch.setitem(
        registry.NETS,
        LINE.arch,
        registry.NetEntry(LINE.arch, lambda input_shape, num_classes: Line(), "for tests"),
    )


def part(weight: float, statistic: float = 0.0, dtype=torch.float64) -> Part:
    state = {
        "weight": torch.tensor([weight], dtype=dtype),
        "statistic": torch.tensor([statistic], dtype=dtype),
    }
    return Part(LINE, state, CLASSES, PREPROCESS)


def upload(name: str, model: Part, examples: int, steps: int, **parts: Part) -> Upload:
    return Upload(name, {"classifier": model, **parts}, examples, local_steps=steps)


def server(initial: Part | None, **more) -> Server:
    return replace(Server(Task(SHAPE, CLASSES), LINE, PREPROCESS), initial=initial, **more)


def fused(name: str, uploads, server: Server, **settings):
    method = METHODS[name](**settings)
    context = method.prepare(uploads, server)
    return method.result(context, method.start(context))


def weight_of(model: Part) -> float:
    return float(model.state["weight"])


# --- FedNova --------------------------------------------------------------------------------------


def test_fednova_by_hand():
    """w_t = 1. Client a: 30 of 40 examples, 2 steps, w = 0.6: d = 0.2. Client b: 10 of 40, 6
    steps, w = -0.8: d = 0.3.

    tau_eff = 0.75 * 2 + 0.25 * 6 = 3;  sum p d = 0.75 * 0.2 + 0.25 * 0.3 = 0.225;
    w = 1 - 3 * 0.225 = 0.325. FedAvg would be 0.75 * 0.6 - 0.25 * 0.8 = 0.25.
    The statistic is averaged: 0.75 * 4 + 0.25 * 8 = 5.
    """
    uploads = [upload("a", part(0.6, 4.0), 30, 2), upload("b", part(-0.8, 8.0), 10, 6)]
    found = fused("fednova", uploads, server(part(1.0)), momentum=0.0).models["average"]
    assert weight_of(found) == pytest.approx(0.325, abs=1e-12)
    assert float(found.state["statistic"]) == pytest.approx(5.0)


def test_fednova_with_momentum_by_hand():
    """rho = 0.5: two steps count 1.5 + 1 = 2.5; one counts 1. p = 1/2 each, w_t = 0, w_a = -5 (d
    = 2), w_b = -3 (d = 3).

    tau_eff = 1.75, sum p d = 2.5, w = -4.375.
    """
    uploads = [upload("a", part(-5.0), 10, 2), upload("b", part(-3.0), 10, 1)]
    assert weight_of(
        fused("fednova", uploads, server(part(0.0)), momentum=0.5).models["average"]
    ) == pytest.approx(-4.375)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_effective_steps_as_velocities_do(rho, steps):
    velocity = way = 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1
        way += velocity
    assert effective_steps(steps, rho) == pytest.approx(way)


def test_fednova_of_equal_steps_is_fedavg():
    uploads = [
        upload("a", part(0.6, dtype=torch.float32), 30, 4),
        upload("b", part(-0.8, dtype=torch.float32), 10, 4),
    ]
    nova = fused("fednova", uploads, server(part(9.0, dtype=torch.float32))).models["average"]
    average = fused("fedavg", uploads, server(None)).models["average"]
    assert weight_of(nova) == pytest.approx(weight_of(average), abs=1e-6)


# --- SCAFFOLD -------------------------------------------------------------------------------------


def test_scaffold_two_rounds_of_two_clients_by_hand():
    """eta = 0.1, two clients of N = 4, one of which has taken part before.

    Round: x = 1, c = 0.5.
    Client a (c_a = 0): 2 steps to y = 0.4: c_a+ - c_a = -0.5 + 0.6 / 0.2 = 2.5.
    Client b (c_b = 1): 4 steps to y = 1.2: c_b+ - c_b = -0.5 - 0.2 / 0.4 = -1, c_b+ = 0.
    Server, eta_g = 0.5: x = 1 + 0.5 * mean(-0.6, 0.2) = 0.9;
    c = 0.5 + 2/4 * mean(2.5, -1) = 0.875.
    """
    objective, training = Objective(control=True), LocalTraining(epochs=1, lr=0.1, momentum=0.0)
    broadcast = {"classifier": part(1.0), CONTROL: part(0.5)}
    sent_a = objective.extra_parts(broadcast, part(0.4), 2, training)
    sent_b = objective.extra_parts(broadcast, part(1.2), 4, training)
    assert weight_of(sent_a[CONTROL]) == pytest.approx(2.5)
    assert weight_of(sent_b[CONTROL]) == pytest.approx(-1.0)
    a, b = upload("a", part(0.4), 30, 2, **sent_a), upload("b", part(1.2), 10, 4, **sent_b)
    assert weight_of(objective.next_client_state({}, a)[CONTROL]) == pytest.approx(2.5)
    assert weight_of(
        objective.next_client_state({CONTROL: part(1.0)}, b)[CONTROL]
    ) == pytest.approx(0.0)
    result = fused(
        "scaffold",
        [a, b],
        server(part(1.0), memory={CONTROL: part(0.5)}, population=4),
        global_lr=0.5,
    )
    assert weight_of(result.models["average"]) == pytest.approx(0.9)
    assert weight_of(result.memory[CONTROL]) == pytest.approx(0.875)


def test_control_change_of_buffers_is_zero():
    change = control_change(part(1.0, 3.0), None, part(0.5, 7.0), step_length=0.5)
    assert weight_of(change) == pytest.approx(1.0)
    assert float(change.state["statistic"]) == 0


def test_extra_parts_divide_by_steps_with_momentum():
    """2 steps with rho = 0.5 add up to 2.5: (1 - 0.5) / (0.1 * 2.5) = 2."""
    training = LocalTraining(epochs=1, lr=0.1, momentum=0.5)
    sent = Objective(control=True).extra_parts({"classifier": part(1.0)}, part(0.5), 2, training)
    assert weight_of(sent[CONTROL]) == pytest.approx(2.0)


def one_image(name="ann", label=0) -> ClientData:
    """x = 1 of one class, so that the gradient of the cross entropy is known: w x = w."""
    return ClientData(
        name, torch.full((1, *SHAPE), 255, dtype=torch.uint8), torch.tensor([label]), CLASSES
    )


def trained(
    objective: Objective, round_input: RoundInput, start: float, training: LocalTraining
) -> tuple[float, ClassifierTraining]:
    run = ClassifierTraining(
        [one_image()],
        LINE,
        PREPROCESS,
        training,
        initial=part(start),
        objective=objective,
        round_input=round_input,
    )
    state = run.start()
    for _ in range(training.epochs):
        run.phases()[0].step(state)
        state.step += 1
    return float(state.params["weight"][0]), run


def slope(weight: float) -> float:
    """d/dw of -log softmax((w, 0))_0 = sigmoid(w) - 1."""
    return 1 / (1 + math.exp(-weight)) - 1


def test_modify_gradients_of_scaffold():
    """y <- y - eta (g - c_k + c) with c_k = 0.3, c = -0.2, from 0.5, twice."""
    round_input = RoundInput(
        2, {"classifier": part(0.5), CONTROL: part(-0.2)}, {"ann": {CONTROL: part(0.3)}}
    )
    found, _ = trained(
        Objective(control=True), round_input, 0.5, LocalTraining(epochs=2, lr=0.1, momentum=0.0)
    )
    wanted = 0.5
    for _ in range(2):
        wanted -= 0.1 * (slope(wanted) - 0.3 - 0.2)
    assert found == pytest.approx(wanted, abs=1e-12)


# --- FedProx --------------------------------------------------------------------------------------


def test_modify_gradients_of_fedprox():
    """w <- w - eta (g + mu (w - w_t)): the first step is plain, the second is pulled back."""
    found, _ = trained(
        Objective(proximal=4.0), RoundInput(), 0.5, LocalTraining(epochs=2, lr=0.1, momentum=0.0)
    )
    first = 0.5 - 0.1 * slope(0.5)
    assert found == pytest.approx(first - 0.1 * (slope(first) + 4.0 * (first - 0.5)), abs=1e-12)


def test_objective_problems():
    with pytest.raises(SettingsError, match="counts steps of sgd"):
        trained(Objective(control=True), RoundInput(), 0.0, LocalTraining(optimiser="adam"))
    with pytest.raises(SettingsError, match=r"assumes 0\.5"):
        trained(Objective(momentum=0.5), RoundInput(), 0.0, LocalTraining(momentum=0.9))


# --- FedKEM ---------------------------------------------------------------------------------------


def test_mutual_loss_equations_1_to_3_by_hand():
    """theta(x) = (0, ln 3), so p = (1/4, 3/4); theta_g(x) = (ln 2, ln 2), so q = (1/2, 1/2); y = 0.

    (1) CE = ln 4.  (2) KL(q || p) = 1/2 ln 2 + 1/2 ln(2/3) = 1/2 ln(4/3).  (3) is their sum.
    The other direction: CE(q) = ln 2, KL(p || q) = 1/4 ln(1/2) + 3/4 ln(3/2).
    """
    theta, theta_g = (
        torch.tensor([[[0.0, math.log(3)]]]),
        torch.tensor([[[math.log(2), math.log(2)]]]),
    )
    labels = torch.tensor([[0]])
    assert float(logit_distance("kl", theta, theta_g)) == pytest.approx(0.5 * math.log(4 / 3))
    assert float(mutual_loss("kl", theta, theta_g, labels)) == pytest.approx(
        math.log(4) + 0.5 * math.log(4 / 3)
    )
    other = math.log(2) + 0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2)
    assert float(mutual_loss("kl", theta_g, theta, labels)) == pytest.approx(other)
    assert float(logit_distance("mse", theta, theta_g)) == pytest.approx(
        (math.log(2) ** 2 + math.log(1.5) ** 2) / 2
    )
    assert float(logit_distance("kl", theta, theta)) == pytest.approx(0)


def test_probability_gap_by_hand():
    """Teacher (ln 3, 0): p = (3/4, 1/4). Student (20 ln 4, 0), softened by T = 20: (4/5, 1/5).
    400 * mean of (1/20)^2 = 1.
    """
    student, teacher = torch.tensor([[20 * math.log(4), 0.0]]), torch.tensor([[math.log(3), 0.0]])
    assert float(probability_gap(student, teacher)) == pytest.approx(1)
    assert float(probability_gap(student / 20, teacher, temperature=1)) == pytest.approx(1 / 400)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def kl(of: float, to: float) -> float:
    p, q = sigmoid(of), sigmoid(to)
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def derivative(function, at: float) -> float:
    return (function(at + 1e-6) - function(at - 1e-6)) / 2e-6


def whole(own: float, peer: float) -> float:
    """(3) of a net with weight ``own`` beside one with weight ``peer``."""
    return -math.log(sigmoid(own)) + kl(peer, own)


@pytest.mark.parametrize("peer", ["updated", "detached", "attached"])
def test_mutual_training_steps_both_nets(peer):
    """Two steps of each net, eta = 0.3, against finite differences of (3)."""
    training = LocalTraining(epochs=2, lr=0.3, momentum=0.0)
    round_input = RoundInput(1, {"knowledge": part(-1.0)}, {"ann": {"deployed": part(2.0)}})
    run = MutualTraining(
        [one_image()], LINE, PREPROCESS, training, Mutual(LINE, peer), round_input=round_input
    )
    state = run.start()
    theta, theta_g = 2.0, -1.0
    for _ in range(2):
        run.phases()[0].step(state)
        state.step += 1
        if peer == "attached":
            step = derivative(lambda a, b=theta_g: whole(a, b) + whole(b, a), theta)
            step_g = derivative(lambda b, a=theta: whole(a, b) + whole(b, a), theta_g)
            theta, theta_g = theta - 0.3 * step, theta_g - 0.3 * step_g
        else:
            stepped = theta - 0.3 * derivative(lambda a, b=theta_g: whole(a, b), theta)
            seen = stepped if peer == "updated" else theta
            theta_g -= 0.3 * derivative(lambda b, a=seen: whole(b, a), theta_g)
            theta = stepped
    (sent,) = run.uploads(state)
    assert set(sent.parts) == {"knowledge"}
    assert sent.local_steps == 2
    assert weight_of(sent.parts["knowledge"]) == pytest.approx(theta_g, abs=1e-8)
    assert weight_of(run.next_client_states(state, [sent])["ann"]["deployed"]) == pytest.approx(
        theta, abs=1e-8
    )


def two_net_loop(nets, images, labels, rates):
    """The authors' step as its code is described: gradients are deleted once a batch; net 1 steps
    on CE + MSE, then net 2 on CE + MSE, whose gradient is added to what the first loss left there.
    """
    optimisers = [torch.optim.SGD(net.parameters(), lr=1.0) for net in nets]
    for rate in rates:
        for optimiser in optimisers:
            optimiser.param_groups[0]["lr"] = rate
            optimiser.zero_grad()
        for own, other, optimiser in ((0, 1, optimisers[0]), (1, 0, optimisers[1])):
            answer, peer = nets[own](images), nets[other](images)
            loss = F.mse_loss(answer, peer) + F.cross_entropy(answer, labels)
            loss.backward()
            optimiser.step()


@pytest.mark.parametrize("whole", [False, True])
def test_mutual_training_accumulated_equals_two_net_loop(whole):
    """Three epochs of one batch, the rate falling by a cosine, in both forms of the step."""
    spec, other = ModelSpec.parse("mlp:hidden=6,layers=1"), ModelSpec.parse("lenet5")
    shape = (1, 16, 16)
    preprocess = Preprocess.plain(shape)
    draws = torch.Generator().manual_seed(5)
    pixels = torch.randint(0, 256, (7, *shape), generator=draws, dtype=torch.uint8)
    labels = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    training = LocalTraining(epochs=3, lr=0.2, momentum=0.0, schedule="cosine", batch_size=7)
    mutual = Mutual(other, "accumulated", "mse")
    nets = [spec.build(shape, 2, 1).double(), other.build(shape, 2, 2).double()]
    parts = [
        Part(
            one,
            {name: value.clone() for name, value in net.state_dict().items()},
            CLASSES,
            preprocess,
        )
        for one, net in zip((spec, other), nets, strict=True)
    ]
    client = ClientData("ann", pixels, labels, CLASSES)
    round_input = RoundInput(1, {"knowledge": parts[1]}, {"ann": {"deployed": parts[0]}})
    # recorded steps take another path; here they only pass through
    runner = (lambda name, work, inputs, captured: work(*inputs)) if whole else None
    run = MutualTraining(
        [client], spec, preprocess, training, mutual, round_input=round_input, run=runner
    )
    state = run.start()
    for _ in range(3):
        run.phases()[0].step(state)
        state.step += 1
    rates = [0.2 * (1 + math.cos(math.pi * epoch / 3)) / 2 for epoch in range(3)]
    two_net_loop(nets, pixels.double() / 255, labels, rates)
    (sent,) = run.uploads(state)
    home = run.next_client_states(state, [sent])["ann"]["deployed"]
    for part, net in ((home, nets[0]), (sent.parts["knowledge"], nets[1])):
        for name, value in net.state_dict().items():
            torch.testing.assert_close(part.state[name], value, rtol=1e-9, atol=1e-10)


def test_fedkem_equations_4_and_5_by_hand():
    """Knowledge networks (2 x, 0) and (-1 x, 0): the largest of each place is (2 x, 0) at x = 1
    and (0, 0) at x = 0.

    theta_g starts at 0 and takes one step of SGD on KL(Theta || theta_g) at x = 1: p =
    sigmoid(2), q = 1/2, slope q - p.
    """
    public = torch.full((1, *SHAPE), 255, dtype=torch.uint8)
    method = METHODS["fedkem"](steps=1, batch_size=1, lr=0.1, momentum=0.0)
    place = server(part(0.0, dtype=torch.float32), public=Images(public, None, "one"))
    uploads = [
        Upload(name, {"knowledge": part(weight, dtype=torch.float32)}, 1)
        for name, weight in (("a", 2.0), ("b", -1.0))
    ]
    context = method.prepare(uploads, place)
    state = method.start(context)
    ask, distil = method.phases(context)
    ask.step(state)
    assert state.answers.tolist() == [[2.0, 0.0]]  # Eq. (5)
    distil.step(state)
    result = method.result(context, state)
    assert weight_of(result.models["knowledge"]) == pytest.approx(
        -0.1 * (0.5 - sigmoid(2.0)), abs=1e-6
    )
    assert result.remarks == ("Server images: 1 unlabelled from one.",)


def test_fedkem_loss_by_hand():
    """Student (0, 0), ensemble (ln 3, 0), label 1: KL = 3/4 ln(3/2) + 1/4 ln(1/2), CE = ln 2. With
    ``labels`` 1/4 it is 3/4 KL + 1/4 CE. MSE at T = 20: 400 * (1/4)^2 = 25.
    """
    student, ensemble = torch.zeros(1, 2), torch.tensor([[math.log(3), 0.0]])
    labels = torch.tensor([1])
    method = METHODS["fedkem"](labels=0.25)
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(method.loss(student, ensemble)) == pytest.approx(divergence, rel=1e-5)
    mixed = 0.75 * divergence + 0.25 * math.log(2)
    assert float(method.loss(student, ensemble, labels)) == pytest.approx(mixed, rel=1e-5)
    authors = METHODS["fedkem"](server_distance="mse")
    assert float(authors.loss(student, ensemble)) == pytest.approx(25, rel=1e-5)


CODE = {"variant": "code", "knowledge": "lenet5", "batch_size": 4, "steps": 5, "drawn": 8}


def code_server(seed=3, labelled=True):
    """Three knowledge networks, the model they started from, 20 public images with labels."""
    shape, spec = (1, 16, 16), ModelSpec.parse("lenet5:batchnorm=true")
    preprocess = Preprocess.centred(shape)
    parts = [
        Part(spec, spec.build(shape, 2, number).state_dict(), CLASSES, preprocess)
        for number in range(4)
    ]
    draws = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (20, *shape), generator=draws, dtype=torch.uint8)
    labels = torch.randint(0, 2, (20,), generator=draws) if labelled else None
    images = Images(pixels, labels, "all")
    place = Server(Task(shape, CLASSES), spec, preprocess, parts[3], seed, public=images)
    uploads = [Upload(name, {"knowledge": one}, 1) for name, one in zip("abc", parts, strict=False)]
    return uploads, place


def knowledge_after(method, uploads, place):
    context = method.prepare(uploads, place)
    state = method.start(context)
    for phase in method.phases(context):
        state.step = 0
        for _ in range(phase.steps):
            phase.step(state)
            state.step += 1
    return method.result(context, state), context


def by_hand(uploads, place, weight_of_labels):
    """The authors' server, written as one loop over batches."""
    draws = rng(place.seed, "fedkem")
    rows = torch.randint(0, 20, (8,), generator=rng(place.seed, "fedkem", "images"))
    pixels, labels = place.public.pixels[rows].float() / 255, place.public.labels[rows]
    see = place.student_preprocess
    teachers = [one.parts["knowledge"].build().eval() for one in uploads]
    student = place.initial.spec.build((1, 16, 16), 2, 0)
    student.load_state_dict(place.initial.state)
    optimiser = torch.optim.SGD(student.parameters(), lr=0.01)
    for step in range(5):
        if step % 2 == 0:  # a pass is two batches
            choice = draw_augmentation("reflect-crop-flip", 8, draws)
            crops = apply_augmentation(pixels, choice)
            with torch.no_grad():
                taught = torch.stack([net(see(crops)).softmax(-1) for net in teachers]).mean(0)
            order = torch.randperm(8, generator=draws)
        batch = order[4 * (step % 2) : 4 * (step % 2) + 4]
        answer = student(see(crops[batch]))
        gap = 400 * F.mse_loss(taught[batch], (answer / 20).softmax(-1))
        loss = weight_of_labels * F.cross_entropy(answer, labels[batch])
        loss = loss + (1 - weight_of_labels) * gap
        optimiser.param_groups[0]["lr"] = 0.01 * (1 + math.cos(math.pi * step / 5)) / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return student.state_dict()


@pytest.mark.parametrize("labels", [0.5, 0.0, 1.0])
def test_fedkem_code_equals_loop_of_authors(labels):
    uploads, place = code_server()
    method = METHODS["fedkem"](**CODE, labels=labels)
    result, _ = knowledge_after(method, uploads, place)
    for name, value in by_hand(uploads, place, labels).items():
        found = result.models["knowledge"].state[name]
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
    kind = "labelled" if labels else "unlabelled"
    remark = f"Server images: 8 {kind} drawn for this round from all."
    assert result.remarks == (remark,)


def test_fedkem_code_fills_settings():
    method = METHODS["fedkem"](variant="code")
    assert (method.peer, method.distance) == ("accumulated", "mse")
    assert (method.ensemble, method.server_distance, method.labels) == (
        "mean-probabilities", "mse", 0.5
    )  # fmt: skip
    assert (method.drawn, method.steps, method.momentum) == (5000, 790, 0.0)
    assert (method.schedule, method.augment) == ("cosine", "reflect-crop-flip")
    assert METHODS["fedkem"](variant="code", labels=1.0).labels == 1.0
    assert method.needs.public_labels
    assert not METHODS["fedkem"]().needs.public_labels


def test_fedkem_draws_images_anew_in_each_round():
    method = METHODS["fedkem"](**CODE)
    drawn = [method.prepare(*code_server(seed)).public.pixels for seed in (3, 3, 4)]
    assert all(len(pixels) == 8 for pixels in drawn)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    everything = METHODS["fedkem"](**{**CODE, "drawn": 0}).prepare(*code_server())
    assert len(everything.public.pixels) == 20


def test_fedkem_with_labels_alone_asks_nobody(monkeypatch):
    """What the clients sent then changes nothing: only where the student starts does."""
    found = []
    for order in (slice(None), slice(None, None, -1)):
        uploads, place = code_server()
        result, _ = knowledge_after(
            METHODS["fedkem"](**CODE, labels=1.0), uploads[order][:2], place
        )
        found.append(result.models["knowledge"].state)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
    monkeypatch.setattr(
        "attar.methods.fedkem.method.FedKem.ask", lambda *_: pytest.fail("asked the teacher")
    )
    for settings in (CODE, {**CODE, "variant": "paper"}):
        method = METHODS["fedkem"](**{**settings, "labels": 1.0})
        knowledge_after(method, *code_server())


def test_communication_cost_equation_6_by_hand():
    """FedKEM 4.3: N = 30, f = 0.4 is 12 clients a round; 49 rounds of 1.05 MB down and up are
    1.2348 GB.
    """
    assert communication_cost(30, 0.4, 49, 1_050_000) == 12 * 49 * 2 * 1_050_000 == 1_234_800_000


def test_sampled_clients_by_hand():
    assert [
        sampled_clients(30, 0.4),
        sampled_clients(50, 0.7),
        sampled_clients(100, 0.4),
        sampled_clients(100, 0.29),
        sampled_clients(3, 0.1),
    ] == [
        12,
        35,
        40,
        29,
        1,
    ]


def test_rounds_to_accuracy_and_highest_common_accuracy():
    rounds = [{"accuracy": a, "bytes_up": 10, "bytes_down": 5} for a in (0.2, None, 0.5, 0.4)]
    assert rounds_to_accuracy(rounds, 0.5) == {"rounds": 3, "bytes": 45}
    assert rounds_to_accuracy(rounds, 0.51) is None
    assert (
        highest_common_accuracy([rounds, [{"accuracy": 0.3, "bytes_up": 1, "bytes_down": 1}]])
        == 0.3
    )
    assert (
        highest_common_accuracy([rounds, [{"accuracy": None, "bytes_up": 1, "bytes_down": 1}]])
        is None
    )
