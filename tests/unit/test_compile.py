"""``--compile``: the same numbers, and a number of compiled graphs that does not grow with the
pool.

torch's own compiler needs a GPU to be worth anything; here the graphs that it would compile are
run as they are (``aot_eager``).
"""

from dataclasses import replace

import pytest
import torch

from attar.blocks.execution import has_compiled_blocks
from attar.blocks.execution.compile import repeated_blocks
from attar.core import ModelSpec
from attar.methods import METHODS
from attar.nets import vit
from attar.testing import tiny_world
from attar.training import ClientData, LocalTraining, train_classifiers

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch's compiler asks for it and hides the warning itself

SMALL = {"generator_steps": 2, "batch_size": 4, "noise": 6, "generator_width": 4}


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were handed to the compiler."""
    seen = []
    compile = torch.compile

    def backend(graph, inputs):  # one for all: what another backend compiled is not used again
        seen.append(graph)
        return torch._dynamo.backends.registry.lookup_backend("aot_eager")(graph, inputs)

    def counted(work, **flags):
        return compile(work, backend=backend, **flags)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", counted)
    return seen


def epochs(method, world, compile, number):
    """The state after each epoch."""
    context = method.prepare(world.uploads, replace(world.server, compile=compile))
    context = replace(context, batches_together=3)  # as on a GPU, where it is 4
    for group in context.teachers.groups:  # as on a GPU
        group.stack = not has_compiled_blocks(group.code())
    state, phase = method.start(context), method.phases(context)[-1]
    for _ in range(number):
        torch.manual_seed(0)
        phase.step(state)
        yield state


@pytest.mark.parametrize("name", ["dense", "co-boosting"])
def test_epochs_of_compiled_nets_give_the_same_student(graphs, name):
    world, method = tiny_world(), METHODS[name](epochs=4, **SMALL)
    *_, plain = epochs(method, world, False, 4)
    assert not graphs
    *_, compiled = epochs(method, world, True, 4)
    assert graphs
    for one, other in zip(
        plain.student.state_dict().items(), compiled.student.state_dict().items(), strict=True
    ):
        assert one[0] == other[0]
        torch.testing.assert_close(one[1], other[1], rtol=1e-4, atol=1e-5)


def test_epochs_of_a_growing_pool_compile_nothing_new(graphs):
    method = METHODS["co-boosting"](epochs=9, **SMALL)
    counts = [len(graphs) for _ in epochs(method, tiny_world(), True, 9)]
    assert counts == [counts[0]] * 2 + [counts[2]] * 7, (
        "only the first full round of three batches has a size of its own"
    )


VIT = "vit:patch=4,width=12,depth=4,hidden=16"


def test_repeated_blocks_are_what_a_net_repeats():
    net = ModelSpec.parse(VIT).build((1, 8, 8), 3, 0)
    assert repeated_blocks(net) == list(net.blocks)
    two_heads = ModelSpec.parse("deit-tiny:depth=2,distilled=true").build((3, 8, 8), 3, 0)
    assert repeated_blocks(two_heads) == list(two_heads.blocks), (
        "a list of heads, single layers, is no list of blocks"
    )
    assert repeated_blocks(ModelSpec("resnet20").build((3, 32, 32), 3, 0)) == []


def test_compile_blocks_of_a_transformer(graphs):
    """Four blocks of three clients and the student, five numbers of patches, with and without
    gradients: a handful of graphs.
    """
    method = METHODS["fedmitr"](epochs=3, inversion_steps=10, batch_size=4)
    world = tiny_world([VIT] * 3)
    *_, plain = epochs(method, world, False, 3)
    made = [(len(graphs), state) for state in epochs(method, world, True, 3)]
    assert 0 < made[0][0] == made[-1][0] <= 6
    for one, other in zip(
        plain.student.parameters(), made[-1][1].student.parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_train_classifiers_with_compiled_blocks(graphs):
    pixels = torch.randint(
        256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    clients = [
        ClientData(name, pixels[rows], torch.arange(30)[rows] % 3, tuple("abc"))
        for name, rows in zip(
            "pqr", pixels.new_tensor(range(30)).long().split((16, 8, 6)), strict=True
        )
    ]
    spec, how = ModelSpec.parse(VIT), LocalTraining(epochs=2, batch_size=8)
    plain = train_classifiers(clients, [spec] * len(clients), how)
    assert not graphs
    compiled = train_classifiers(
        clients, [spec] * len(clients), replace(how, compile_blocks=True, stack="always")
    )
    assert 0 < len(graphs) <= 2
    for one, other in zip(plain, compiled, strict=True):
        for name, weight in one.parts["classifier"].state.items():
            torch.testing.assert_close(
                weight, other.parts["classifier"].state[name], rtol=1e-4, atol=1e-6
            )


def test_attention_fused_equals_written_out(monkeypatch):
    """On a GPU torch's fused kernel replaces it wherever attention weights are not wanted; here it
    is made to.
    """
    net = ModelSpec.parse(VIT).build((1, 8, 8), 3, 0).double()
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    keep = torch.tensor([[0, 1, 3]] * 5)
    asked = []

    def answers():
        outputs = [net(x), net(x, keep), net.look(x).logits, net.look(x).attention]
        return [
            *outputs,
            *torch.autograd.grad(
                sum(value.square().sum() for value in outputs), list(net.parameters())
            ),
        ]

    written_out = answers()
    monkeypatch.setattr(vit, "can_fuse", lambda tokens: not asked.append(tokens))
    for one, other in zip(written_out, answers(), strict=True):
        torch.testing.assert_close(one, other)
    assert len(asked) == 4
