"""Recording and playing back steps: when, what is remembered, and a gradient step through it."""

import pytest
import torch
from torch import nn

from attar.blocks.execution import at_once, gradient_step, run_on
from attar.blocks.execution.cuda_graphs import Replay


def test_work_is_done_plainly_then_recorded_then_played():
    done = []
    net = nn.Linear(2, 1)

    def record(work, inputs):
        done.append("record")
        return lambda *values: (done.append("play"), work(*values))[1]

    def work(x):
        done.append("work")
        return (net(x.float()),)

    run = Replay(record)
    for _ in range(3):
        run("step", work, [torch.ones(3, 2)], [net])
    assert done == ["work", "record", "play", "work", "play", "work"]
    done.clear()
    run("step", work, [torch.ones(4, 2)], [net])  # another shape
    run("other step", work, [torch.ones(3, 2)], [net])
    run("step", work, [torch.ones(3, 2)], [nn.Linear(2, 1)])  # other weights
    run("step", work, [torch.ones(3, 2).double()], [net])
    assert done == ["work"] * 4


@pytest.mark.parametrize(("clip", "after"), [(None, -9.0), (1.0, 2.5)])
def test_a_gradient_step_is_that_of_the_optimiser(clip, after):
    """f = (w x)^2 at w = 3, x = 2: gradient 24, clipped to 1; SGD of 0.5: w = 2.5. A weight
    without gradient stays.
    """
    weight, idle = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.tensor(7.0))
    optimiser = torch.optim.SGD([weight, idle], lr=0.5)
    loss = gradient_step(
        at_once,
        "f",
        optimiser,
        lambda x: (weight * x).square(),
        [torch.tensor(2.0)],
        [weight],
        clip,
    )
    assert loss.item() == 36
    assert weight.item() == pytest.approx(after, rel=1e-5)
    assert idle.item() == 7
    assert idle.grad is None


def test_on_a_cpu_nothing_is_recorded():
    assert run_on("cpu") is at_once


def test_kernels_are_searched_for_where_a_step_will_be_repeated():
    """Not when it is played, and not for what is done once: a search takes longer than the step."""
    seen = []

    def work(value):
        seen.append(("done", torch.backends.cudnn.benchmark))
        return (value,)

    def record(work, inputs):
        seen.append(("recorded", torch.backends.cudnn.benchmark))

        def play(value):
            seen.append(("played", torch.backends.cudnn.benchmark))
            return (value,)

        return play

    replay, value = Replay(record), torch.zeros(2)
    for _ in range(3):
        replay("step", work, (value,), ())
    at_once("rest", work, (value,), ())
    assert seen == [
        ("done", True),
        ("recorded", True),
        ("played", False),
        ("played", False),
        ("done", False),
    ]
