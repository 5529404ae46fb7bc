"""Rules of combining on two clients and three classes by hand; the stacked teachers against the
obvious loop; FedDF's shortcut.

Client 0 knows a, b, c with logits (0, ln 2, ln 5): probabilities (1/8, 2/8, 5/8). Client 1 knows
a, b only, with logits (ln 3, 0): probabilities (3/4, 1/4). Where it knows nothing stands a 9, to
be ignored.
"""

from dataclasses import replace
from functools import partial
from itertools import chain
from math import log

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.optim import Adam
from torch.optim.lr_scheduler import CosineAnnealingLR

from attar.blocks.ensemble import RULES, Ensemble, Teachers, average, combine, data_shares
from attar.blocks.ensemble.averages import weight_bytes
from attar.blocks.ensemble.swapping import SwappedGroup
from attar.blocks.ensemble.teachers import TeacherGroup
from attar.blocks.student import answer_phase, next_batch, server_plan
from attar.core import Mixture, ModelSpec, Part, Preprocess, Task
from attar.errors import NeedsError
from attar.fusion import fuse
from attar.methods.ensemble import FedEns
from attar.methods.feddf import FedDF
from attar.running import Driver
from attar.seeds import rng
from attar.testing import CLASSES, SHAPE, tiny_upload, tiny_world

LOGITS = torch.tensor([[[0.0, log(2), log(5)]], [[log(3), 0.0, 9.0]]])  # (K, B, C) = (2, 1, 3)
KNOWN = torch.tensor([[True, True, True], [True, True, False]])
ONE_TO_THREE = torch.tensor([1.0, 3.0])


def combined(rule, weights=None):
    return combine(rule, LOGITS, KNOWN, weights)[0]


def is_log_of(found, numerators):
    expected = torch.tensor(numerators) / sum(numerators)
    torch.testing.assert_close(found.exp(), expected, rtol=1e-5, atol=1e-6)


# --- the rules by hand ----------------------------------------------------------------------------


def test_combine_mean_of_logits():
    """a: (0 + ln 3) / 2, b: (ln 2 + 0) / 2, c: ln 5 of client 0 alone."""
    torch.testing.assert_close(combined("logits"), torch.tensor([log(3) / 2, log(2) / 2, log(5)]))


def five(*probabilities):
    """Logits (5, 1, 2) of five clients that give class a these probabilities."""
    p = torch.tensor(probabilities)
    return torch.stack([p, 1 - p], -1).log()[:, None]


def test_combine_trimmed_mean_of_probabilities():
    """Five clients of weight 1/5, 0.3 cut off at either end: half of the second and of the fourth
    stay beside the third. a: (0.2/2 + 0.3 + 0.4/2) / 2 = 0.3; b: (0.6/2 + 0.7 + 0.8/2) / 2 = 0.7.
    """
    logits = five(0.99, 0.4, 0.3, 0.2, 0.01)
    is_log_of(combine("trimmed", logits, torch.ones(5, 2, dtype=torch.bool))[0], [0.3, 0.7])


def test_combine_trimmed_by_weights():
    """The first has 4 of 8 parts of the weight: of its 0.5, 0.5 - 0.3 = 0.2 stay, and 0.2 of the
    next two (0.125 and 0.075): a: (0.2 * 0.9 + 0.125 * 0.4 + 0.075 * 0.3) / 0.4 = 0.63125.
    """
    logits = five(0.9, 0.4, 0.3, 0.2, 0.1)
    weights = torch.tensor([4.0, 1.0, 1.0, 1.0, 1.0])
    found = combine("trimmed", logits, torch.ones(5, 2, dtype=torch.bool), weights)[0]
    is_log_of(found, [0.63125, 1 - 0.63125])


def test_combine_trimmed_ignores_one_liar():
    """Whatever one of five says stays within what the other four say."""
    known = torch.ones(5, 2, dtype=torch.bool)
    for lie in (1e-6, 1 - 1e-6):
        found = combine("trimmed", five(lie, 0.6, 0.6, 0.7, 0.7), known)[0].exp()
        assert 0.6 <= float(found[0]) <= 0.7


def test_combine_weighted_mean_of_logits():
    """Weights 1 and 3. a: (0 + 3 ln 3) / 4, b: (ln 2 + 0) / 4, c: 1 ln 5 / 1."""
    torch.testing.assert_close(
        combined("logits", ONE_TO_THREE), torch.tensor([3 * log(3) / 4, log(2) / 4, log(5)])
    )


def test_combine_mean_of_probabilities():
    """a: (1/8 + 6/8) / 2 = 7/16, b: (2/8 + 2/8) / 2 = 4/16, c: 5/8 = 10/16; in proportion 7 : 4
    : 10.
    """
    is_log_of(combined("probabilities"), [7.0, 4.0, 10.0])


def test_combine_weighted_mean_of_probabilities():
    """Weights 1 and 3. a: (1/8 + 18/8) / 4 = 19/32, b: (2/8 + 6/8) / 4 = 8/32, c: 5/8 = 20/32."""
    is_log_of(combined("probabilities", ONE_TO_THREE), [19.0, 8.0, 20.0])


def test_combine_max_of_logits():
    """a: ln 3, b: ln 2, c: ln 5 and not 9; weights change nothing."""
    torch.testing.assert_close(combined("max"), torch.tensor([log(3), log(2), log(5)]))
    assert torch.equal(combined("max", ONE_TO_THREE), combined("max"))


def test_combine_vote():
    """Client 0 puts c first, client 1 puts a first. Of those who know a one in two, of those who
    know c one in one: 1/2 : 0 : 1, and 1/10,000 of the mean probabilities (7/16, 4/16, 10/16)
    beside it.
    """
    is_log_of(combined("vote"), [0.5 + 7e-4 / 16, 4e-4 / 16, 1 + 10e-4 / 16])


def test_combine_weighted_vote():
    """Weights 1 and 3: a has 3 of 4, c has 1 of 1."""
    tie = 1e-4
    is_log_of(
        combined("vote", ONE_TO_THREE), [0.75 + tie * 19 / 32, tie * 8 / 32, 1 + tie * 20 / 32]
    )


def test_combine_class_shares():
    """Counts of a, b, c: client 0 (4, 1, 2), client 1 (1, 3).

    Shares of a: 4/5, 1/5; of b: 1/4, 3/4; of c: 1.
    a: 4/5 * 1/8 + 1/5 * 3/4 = 1/4, b: 1/4 * 1/4 + 3/4 * 1/4 = 1/4, c: 5/8; that is 2 : 2 : 5.
    """
    shares = torch.tensor([[0.8, 0.25, 1.0], [0.2, 0.75, 0.0]])
    is_log_of(combined("probabilities", shares), [2.0, 2.0, 5.0])


def test_fedens_takes_class_shares_from_label_counts():
    uploads = [
        replace(
            tiny_upload("one", classes=("a", "b", "c")), label_counts=(4, 1, 2), num_examples=7
        ),
        # in another order
        replace(tiny_upload("two", classes=("b", "a")), label_counts=(3, 1), num_examples=4),
    ]
    mixture = fuse(uploads, FedEns("class-share")).result.models["class-share"]
    assert mixture.rule == "probabilities"
    torch.testing.assert_close(mixture.weights, torch.tensor([[0.8, 0.25, 1.0], [0.2, 0.75, 0.0]]))


def test_combine_never_chooses_a_class_without_share():
    """Shares (1, 0): the second class has weight 0 and probability 1e-12 / (1 + 1e-12)."""
    logits, known = torch.tensor([[[0.0, 5.0]]]), torch.ones(1, 2, dtype=torch.bool)
    found = combine("probabilities", logits, known, torch.tensor([[1.0, 0.0]]))[0]
    assert torch.isfinite(found).all()
    assert found.argmax() == 0


def test_combine_vote_breaks_ties_by_mean_probability():
    """One vote each: (0.6, 0.4) and (0.1, 0.9). The means are 0.35 and 0.65, so the second class
    wins.
    """
    logits = torch.tensor([[[0.6, 0.4]], [[0.1, 0.9]]]).log()
    assert combine("vote", logits, torch.ones(2, 2, dtype=torch.bool))[0].argmax() == 1
    assert combine("vote", logits.flip(-1), torch.ones(2, 2, dtype=torch.bool))[0].argmax() == 0


def test_combine_vote_counts_unsure_votes():
    """(0.51, 0.49) twice against (0.01, 0.99): two votes to one, though the mean probability
    says otherwise.
    """
    logits = torch.tensor([[[0.51, 0.49]], [[0.51, 0.49]], [[0.01, 0.99]]]).log()
    known = torch.ones(3, 2, dtype=torch.bool)
    assert combine("vote", logits, known)[0].argmax() == 0
    assert combine("probabilities", logits, known)[0].argmax() == 1


@pytest.mark.parametrize("rule", RULES)
def test_combine_ignores_unknown_classes(rule):
    for junk in (-50.0, 0.0, 50.0):
        logits = LOGITS.clone()
        logits[1, :, 2] = junk
        assert torch.equal(combine(rule, logits, KNOWN), combine(rule, LOGITS, KNOWN))


@pytest.mark.parametrize("rule", RULES)
def test_combine_takes_weights_of_every_shape(rule):
    logits = torch.randn(3, 5, 4, generator=rng(0))
    known = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1], [1, 1, 1, 1]]).bool()
    per_client = torch.tensor([1.0, 2.0, 0.5])
    expected = combine(rule, logits, known, per_client)
    torch.testing.assert_close(
        combine(rule, logits, known, per_client[:, None].expand(3, 4)), expected
    )
    torch.testing.assert_close(
        combine(rule, logits, known, per_client[None, :, None].expand(5, 3, 4)), expected
    )
    scale = 7 if rule == "sum" else 1  # every other rule divides by the weights
    torch.testing.assert_close(combine(rule, logits, known, 7 * per_client), scale * expected)
    assert torch.equal(combine(rule, logits, known), combine(rule, logits, known, torch.ones(3)))


def test_combine_weights_each_image():
    """Image 0 listens to client 0 only, image 1 to client 1 only. As many images as clients: no
    axis may be mistaken.
    """
    logits = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])  # (K, B, C)
    weights = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]])  # (B, K, C)
    found = combine("logits", logits, torch.ones(2, 2, dtype=torch.bool), weights)
    assert found.tolist() == [[1.0, 2.0], [7.0, 8.0]]


@pytest.mark.parametrize("rule", RULES)
def test_combine_of_one_client(rule):
    logits = torch.randn(1, 6, 3, generator=rng(1))
    assert torch.equal(
        combine(rule, logits, torch.ones(1, 3, dtype=torch.bool)).argmax(-1), logits[0].argmax(-1)
    )


@st.composite
def federations(draw):
    clients, images, classes = (
        draw(st.integers(1, 5)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
    )
    draws = rng(draw(st.integers(0, 10**6)))
    known = torch.rand(clients, classes, generator=draws) < 0.6
    known[draw(st.integers(0, clients - 1))] = True  # somebody knows each class …
    known[:, draw(st.integers(0, classes - 1))] = True  # … and everybody knows one
    logits = 4 * torch.randn(clients, images, classes, generator=draws)
    shape = draw(
        st.sampled_from([None, (clients,), (clients, classes), (images, clients, classes)])
    )
    weights = None if shape is None else torch.rand(shape, generator=draws) + 0.01
    return logits, known, weights, draw(st.permutations(range(clients)))


@given(federations(), st.sampled_from(sorted(RULES)))
@settings(max_examples=120)
def test_combine_does_not_depend_on_the_order_of_clients(federation, rule):
    logits, known, weights, order = federation
    order = list(order)
    moved = (
        weights if weights is None else weights[:, order] if weights.dim() == 3 else weights[order]
    )
    expected = combine(rule, logits, known, weights)
    torch.testing.assert_close(
        combine(rule, logits[order], known[order], moved), expected, rtol=1e-4, atol=1e-5
    )
    assert torch.isfinite(expected).all()


@given(federations(), st.sampled_from(["probabilities", "vote"]))
@settings(max_examples=60)
def test_combine_gives_probabilities(federation, rule):
    logits, known, weights, _ = federation
    sums = combine(rule, logits, known, weights).exp().sum(-1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


# --- teachers -------------------------------------------------------------------------------------

GREY, COLOUR = (
    Preprocess((1, 16, 16), (0.3,), (0.6,)),
    Preprocess((3, 20, 20), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)),
)
TASK = ("a", "b", "c", "d")


def teacher(seed, arch="mlp:hidden=8,layers=1", preprocess=GREY, classes=TASK):
    spec = ModelSpec.parse(arch)
    net = spec.build(preprocess.input_shape, len(classes), seed)
    draws = rng(seed, "statistics")
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    for name, tensor in state.items():  # BatchNorm statistics as after a training, not 0 and 1
        if name.endswith("running_mean"):
            tensor += 0.1 * torch.randn(tensor.shape, generator=draws)
        if name.endswith("running_var"):
            tensor *= 0.2 + torch.rand(tensor.shape, generator=draws)
    return Part(spec, state, classes, preprocess)


FEDERATIONS = {
    "alike": [teacher(1), teacher(2), teacher(3)],
    "batchnorm": [teacher(1, "resnet20"), teacher(2, "resnet20")],
    "convolutions": [teacher(1, "lenet5"), teacher(2, "lenet5"), teacher(3, "lenet5")],
    "one": [teacher(1, classes=("d", "b", "a", "c"))],
    "everything at once": [
        teacher(1),
        teacher(2, "resnet20", COLOUR, ("d", "c", "b", "a")),
        teacher(3, classes=("c", "a")),
        teacher(4, "lenet5", COLOUR),
        teacher(5),
        teacher(6, "resnet20", COLOUR, ("d", "c", "b", "a")),
        teacher(7, preprocess=Preprocess.centred((1, 16, 16))),
        teacher(8, classes=("c", "a")),
        teacher(9, "lenet5", COLOUR, ("b",)),
    ],
}


def one_by_one(parts, images):
    """The obvious twin: each net alone, each logit put under its class's name."""
    rows = []
    for part in parts:
        logits = part.build()(part.preprocess(images))
        columns = [
            logits[:, part.classes.index(name)] if name in part.classes else logits[:, 0] * 0
            for name in TASK
        ]
        rows.append(torch.stack(columns, dim=-1))
    return torch.stack(rows)


@pytest.mark.parametrize("name", FEDERATIONS)
def test_teachers_equal_the_loop_over_nets(name):
    parts = FEDERATIONS[name]
    images = torch.rand(4, 3, 18, 22, generator=rng(0, "images"))
    mixing = torch.randn(len(parts), 4, len(TASK), generator=rng(0, "mixing"))
    found = []
    in_turns = Teachers(parts, TASK, memory=1)
    assert in_turns.swapped
    ways = (
        Teachers(parts, TASK),
        Teachers(parts, TASK, stack=True),
        Teachers(parts, TASK, stack=False),
        in_turns,
    )
    for ask in (lambda x: one_by_one(parts, x), *ways):
        inputs = images.clone().requires_grad_()
        logits = ask(inputs)
        (logits * mixing).sum().backward()
        found.append((logits.detach(), inputs.grad))
    for logits, gradient in found[1:]:
        torch.testing.assert_close(logits, found[0][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-3, atol=1e-5)
    assert found[0][1].abs().max() > 1e-4


@pytest.mark.parametrize(("nets_at_once", "stack"), [(1, True), (2, True), (2, None), (5, True)])
def test_teachers_with_little_memory_give_the_same(nets_at_once, stack):
    parts = [teacher(seed, "resnet20") for seed in range(5)]
    images = torch.rand(4, 1, 16, 16, generator=rng(0, "images"))
    found = []
    memory = nets_at_once * weight_bytes(parts[0])
    for teachers in (Teachers(parts, TASK), Teachers(parts, TASK, stack=stack, memory=memory)):
        inputs = images.clone().requires_grad_()
        logits, measured = teachers.with_hooks(inputs, ["batchnorm", "activation"])
        alone = [teachers.run_one(row, inputs) for row in range(5)]
        sum(value.sum() for value in (logits, *measured.values(), *alone)).backward()
        found.append([logits, *measured.values(), *alone, inputs.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert teachers.swapped == (nets_at_once < 5)
    if teachers.swapped:
        assert teachers.groups[0].seats == nets_at_once


class Counting(TeacherGroup):
    """A group that writes down how many nets were loaded at a time."""

    def load(self, parts):
        self.loaded = [*getattr(self, "loaded", []), len(parts)]
        super().load(parts)


@pytest.mark.parametrize(
    ("seats", "stack", "turns"), [(1, True, [1] * 5), (2, True, [2, 2, 1]), (2, None, [1] * 5)]
)
def test_swapped_group_loads_nets_in_turns(seats, stack, turns):
    """Forwards and backwards; where nets are not stacked (None: on a CPU) one by one."""
    parts = [teacher(seed, "resnet20") for seed in range(5)]
    columns = {name: column for column, name in enumerate(TASK)}
    counting = Counting(parts[:seats], columns, stack=stack, compile=False)
    group = SwappedGroup(counting, parts)
    inputs = torch.rand(4, 1, 16, 16, generator=rng(0, "images")).requires_grad_()
    logits, measured = group(inputs, ["batchnorm", "activation"])
    alone = [group.run_one(row, inputs) for row in range(5)]
    sum(value.sum() for value in (logits, *measured.values(), *alone)).backward()
    assert counting.loaded == turns + [1] * 5 + [1] * 5 + turns[::-1]


def test_teachers_known_is_the_mask_of_classes():
    teachers = Teachers(
        [teacher(1, classes=("c", "a")), teacher(2), teacher(3, classes=("b",))], TASK
    )
    assert teachers.known.tolist() == [
        [True, False, True, False],
        [True] * 4,
        [False, True, False, False],
    ]
    logits = teachers(torch.rand(2, 1, 16, 16))
    assert (logits[~teachers.known[:, None, :].expand(logits.shape)] == 0).all()


def test_teachers_are_frozen_and_leave_their_parts_alone():
    parts = FEDERATIONS["batchnorm"]
    before = [{name: tensor.clone() for name, tensor in part.state.items()} for part in parts]
    for stack in (True, False):
        teachers = Teachers(parts, TASK, stack=stack)
        first = teachers(torch.full((2, 1, 16, 16), 0.5))
        assert not first.requires_grad
        assert torch.equal(teachers(torch.full((2, 1, 16, 16), 0.5)), first), (
            "asking changed the teachers"
        )
    for part, state in zip(parts, before, strict=True):
        assert all(torch.equal(part.state[name], tensor) for name, tensor in state.items())


def test_teachers_refuse_a_class_that_nobody_knows():
    with pytest.raises(NeedsError, match="No client knows the classes: e, f"):
        Teachers([teacher(1), teacher(2, classes=("a",))], (*TASK, "e", "f"))
    world = tiny_world()
    with pytest.raises(NeedsError, match="star"):
        fuse(world.uploads, FedEns(), replace(world.server, task=Task(SHAPE, (*CLASSES, "star"))))


def test_teachers_refuse_a_class_that_the_task_lacks():
    with pytest.raises(NeedsError, match="the task lacks: d"):
        Teachers([teacher(1)], TASK[:3])


@pytest.mark.parametrize("rule", RULES)
def test_ensemble_is_its_rule_over_its_teachers(rule):
    parts = FEDERATIONS["everything at once"]
    weights = torch.rand(len(parts), generator=rng(0, "weights"))
    images = torch.rand(3, 3, 20, 20, generator=rng(1, "images"))
    found = Ensemble(Mixture(tuple(parts), rule, weights, TASK))(images)
    known = torch.tensor([[name in part.classes for name in TASK] for part in parts])
    torch.testing.assert_close(
        found, combine(rule, one_by_one(parts, images), known, weights), rtol=1e-4, atol=1e-5
    )


# --- FedDF ----------------------------------------------------------------------------------------


def literal_feddf(world, steps, batch_size, lr, temperature):
    """Algorithm 1 word for word: in every step each teacher is asked anew, KL is written out."""
    uploads, server = world.uploads, world.server
    plan = server_plan(server)
    parts = [upload.parts["classifier"] for upload in uploads]
    alike = [upload for upload in uploads if upload.parts["classifier"].spec == server.student]
    student = plan.fresh(server.seed)
    student.load_state_dict(
        average([upload.parts["classifier"].state for upload in alike], data_shares(alike))
    )
    student.train()
    optimiser = Adam(student.parameters(), lr=lr)
    schedule = CosineAnnealingLR(optimiser, steps)
    draws = rng(server.seed, "feddf")
    images = server.public.pixels.float() / 255
    batches = []
    for _ in range(steps):
        batches = batches or list(torch.randperm(len(images), generator=draws).split(batch_size))
        batch = batches.pop(0)
        with torch.no_grad():
            teachers = torch.stack(
                [part.build()(part.preprocess(images[batch])) for part in parts]
            ).mean(0)
        p = (teachers / temperature).softmax(-1)
        log_q = F.log_softmax(student(plan.preprocess(images[batch])) / temperature, -1)
        loss = temperature**2 * (p * (p.log() - log_q)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return student.state_dict()


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize(
    "nets",
    [("mlp:hidden=8,layers=1",) * 3, ("resnet20", "resnet20", "lenet5")],
    ids=["mlp", "mixed"],
)
def test_feddf_equals_asking_in_every_step(nets, temperature):
    world = tiny_world(nets, seed=3)
    method = FedDF(steps=7, batch_size=8, lr=1e-3, temperature=temperature)
    context = method.prepare(world.uploads, world.server)
    state = method.start(context)
    _, distil = method.phases(context)
    # the 24 images in four steps, the last one short
    ask = answer_phase("ask", len(context.pixels), partial(method.ask, context), 1.0, batch_size=7)
    Driver(world.server.seed).run([ask, distil], state, history=[])
    student = method.result(context, state).models["student"].state
    slow = literal_feddf(world, 7, 8, 1e-3, temperature)
    start = (
        fuse(world.uploads, replace(method, steps=0), world.server).result.models["student"].state
    )
    for name, tensor in student.items():
        torch.testing.assert_close(tensor, slow[name], rtol=1e-3, atol=3e-4)
    assert (
        max(
            (student[name] - start[name]).abs().max().item() for name in student if "weight" in name
        )
        > 3e-3
    )


def test_feddf_starts_from_the_average_of_its_kind():
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5", "mlp:hidden=8,layers=1"))
    student = fuse(world.uploads, FedDF(steps=0), world.server).result.models["student"]
    alike = [world.uploads[0], world.uploads[2]]
    expected = average([upload.parts["classifier"].state for upload in alike], data_shares(alike))
    assert student.spec == world.server.student
    assert all(torch.equal(student.state[name], tensor) for name, tensor in expected.items())


def test_feddf_starts_fresh_in_a_new_architecture_or_on_request():
    world = tiny_world()
    fresh = server_plan(world.server).fresh(world.server.seed).state_dict()
    student = (
        fuse(world.uploads, FedDF(steps=0, start_from="fresh"), world.server)
        .result.models["student"]
        .state
    )
    assert all(torch.equal(student[name], tensor) for name, tensor in fresh.items())
    server = replace(world.server, student=ModelSpec("lenet5"))
    fresh = server_plan(server).fresh(server.seed).state_dict()
    student = fuse(world.uploads, FedDF(steps=0), server).result.models["student"].state
    assert all(torch.equal(student[name], tensor) for name, tensor in fresh.items())


def test_feddf_averages_classes_in_another_order():
    """The rows of their last layer go where the student has those classes: row by row would mix
    them up.
    """
    world = tiny_world(classes=[CLASSES, CLASSES[::-1], CLASSES])
    student = fuse(world.uploads, FedDF(steps=0), world.server).result.models["student"]
    states = [dict(upload.parts["classifier"].state) for upload in world.uploads]
    states[1] = {
        name: value.flip(0) if name.startswith("head.") else value
        for name, value in states[1].items()
    }
    expected = average(states, data_shares(world.uploads))
    assert all(torch.equal(student.state[name], tensor) for name, tensor in expected.items())


def test_feddf_does_not_average_other_classes():
    world = tiny_world(classes=[CLASSES, CLASSES[:2], CLASSES])
    student = fuse(world.uploads, FedDF(steps=0), world.server).result.models["student"]
    alike = [world.uploads[0], world.uploads[2]]
    expected = average([upload.parts["classifier"].state for upload in alike], data_shares(alike))
    assert all(torch.equal(student.state[name], tensor) for name, tensor in expected.items())


def test_next_batch_gives_every_image_once_in_a_pass():
    method = FedDF(steps=6, batch_size=8)
    world = tiny_world()
    state = method.start(method.prepare(world.uploads, world.server))
    seen = []
    for state.step in range(6):
        seen.append(next_batch(state, 8).tolist())
    for one_pass in (seen[:3], seen[3:]):
        assert sorted(chain.from_iterable(one_pass)) == list(range(24))
    assert seen[:3] != seen[3:]
    assert len(next_batch(state, 8)) == 8


@pytest.mark.parametrize(("mixed", "rule"), [("vote", "vote"), ("mean-logits", "logits")])
def test_feddf_combines_one_student_per_architecture(mixed, rule):
    world = tiny_world(("mlp:hidden=8,layers=1", "lenet5", "lenet5"))
    model = fuse(
        world.uploads, FedDF(steps=2, batch_size=8, mixed=mixed), world.server
    ).result.models[mixed]
    assert model.rule == rule
    assert [part.spec.arch for part in model.members] == ["mlp", "lenet5"]
    alone = fuse(world.uploads, FedDF(steps=2, batch_size=8), world.server).result.models["student"]
    twin = next(part for part in model.members if part.spec == alone.spec)
    assert all(torch.equal(twin.state[name], tensor) for name, tensor in alone.state.items())


def test_combine_mean_of_logits_without_weight():
    """Weights (K, C) with a zero column: the mean of logits has nothing to say about class 0,
    however low the others are.
    """
    logits = torch.tensor([[[5.0, -3.0, -4.0]]])
    weights = torch.tensor([[0.0, 1.0, 1.0]])
    out = combine("logits", logits, torch.ones(1, 3, dtype=torch.bool), weights)
    assert out.argmax().item() == 1
    assert torch.isfinite(out).all()
