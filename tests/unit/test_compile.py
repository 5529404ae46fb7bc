"""``--compile``: the same numbers, and a number of compiled graphs that does not grow with the pool.

torch's own compiler needs a GPU to be worth anything; here the graphs that it would compile are run as they are (``aot_eager``).
"""

from dataclasses import replace

import pytest
import torch

from attar.blocks import teachers
from attar.methods import METHODS
from attar.testing import tiny_world

pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute"
)  # torch's compiler asks for it and hides the warning itself

SMALL = {"generator_steps": 2, "batch_size": 4, "noise": 6, "generator_width": 4}


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that were handed to the compiler."""
    seen, compile = [], torch.compile

    def counted(work, **flags):
        def backend(graph, inputs):
            seen.append(graph)
            return torch._dynamo.backends.registry.lookup_backend("aot_eager")(graph, inputs)

        return compile(work, backend=backend, **flags)

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", counted)
    monkeypatch.setattr(teachers._Group, "stacks", lambda self, images: True)  # as on a GPU
    return seen


def epochs(method, world, compile, number):
    """The state after each epoch."""
    room = method.prepare(world.uploads, replace(world.server, compile=compile))
    room = replace(room, together=3)  # as on a GPU, where it is 4
    state, phase = method.start(room), method.phases(room)[-1]
    for _ in range(number):
        torch.manual_seed(0)
        phase.step(state)
        yield state


@pytest.mark.parametrize("name", ["dense", "co-boosting"])
def test_compiled_nets_give_the_same_student(graphs, name):
    world, method = tiny_world(), METHODS[name](epochs=4, **SMALL)
    *_, plain = epochs(method, world, False, 4)
    assert not graphs
    *_, compiled = epochs(method, world, True, 4)
    assert graphs
    for one, other in zip(plain.student.state_dict().items(), compiled.student.state_dict().items(), strict=True):
        assert one[0] == other[0]
        torch.testing.assert_close(one[1], other[1], rtol=1e-4, atol=1e-5)


def test_a_growing_pool_compiles_nothing_new(graphs):
    method = METHODS["co-boosting"](epochs=9, **SMALL)
    counts = [len(graphs) for _ in epochs(method, tiny_world(), True, 9)]
    assert counts == [counts[0]] * 2 + [counts[2]] * 7, "only the first full round of three batches has a size of its own"
