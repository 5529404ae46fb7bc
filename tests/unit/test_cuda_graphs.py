"""Recording and replaying steps, and a gradient step through a runner."""

import pytest
import torch
from torch import nn

from attar.blocks.execution import GraphRunner, eager, gradient_step, runner_for


def test_graph_runner_runs_then_records_then_replays():
    done = []
    net = nn.Linear(2, 1)

    def record(work, inputs):
        done.append("record")
        return lambda *values: (done.append("play"), work(*values))[1]

    def work(x):
        done.append("work")
        return (net(x.float()),)

    run = GraphRunner(record)
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
def test_gradient_step_is_that_of_the_optimiser(clip, after):
    """f = (w x)^2 at w = 3, x = 2: gradient 24, clipped to 1; SGD of 0.5: w = 2.5. A weight
    without gradient stays.
    """
    weight, idle = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.tensor(7.0))
    optimiser = torch.optim.SGD([weight, idle], lr=0.5)
    loss = gradient_step(
        eager,
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


def test_runner_for_a_cpu_records_nothing():
    assert runner_for("cpu") is eager


def test_graph_runner_searches_kernels_where_a_step_will_repeat():
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

    replay, value = GraphRunner(record), torch.zeros(2)
    for _ in range(3):
        replay("step", work, (value,), ())
    eager("rest", work, (value,), ())
    assert seen == [
        ("done", True),
        ("recorded", True),
        ("played", False),
        ("played", False),
        ("done", False),
    ]
