"""The driver: phases in order, metrics, time left, the deadline, Ctrl-C, and random numbers that
never leak.
"""

import os
import signal
import threading
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from attar.core import Phase, State
from attar.errors import AttarError, SettingsError
from attar.running import Driver, restore_state, save_state
from attar.running.driver import HISTORY_POINTS


@dataclass
class Walk(State):
    trail: list = field(default_factory=list)


def phase(name, steps, step=None, work=lambda _: 1.0):
    def walk(state):
        if step is not None:
            step(state)
        state.trail.append((name, state.phase, state.step))
        return {"at": float(state.step)}

    return Phase(name, steps, walk, work)


def run(phases, state=None, **settings):
    """(ending, state, history) of a drive."""
    state, history = state or Walk(), []
    inner = {name: settings.pop(name) for name in ("save", "after_step") if name in settings}
    return Driver(**settings).run(phases, state, history=history, **inner), state, history


@pytest.fixture
def clock(monkeypatch):
    """A clock that only moves when a step moves it."""

    class Clock:
        now = 100.0

        def pass_(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr("time.monotonic", lambda: clock.now)
    return clock


def press(state):
    os.kill(os.getpid(), signal.SIGINT)


# --- order and metrics ----------------------------------------------------------------------------


def test_run_takes_phases_in_order():
    ending, state, history = run([phase("a", 2), phase("b", 0), phase("c", 3)])
    assert ending == "finished"
    assert state.trail == [("a", 0, 0), ("a", 0, 1), ("c", 2, 0), ("c", 2, 1), ("c", 2, 2)]
    assert [(row["phase"], row["step"], row["at"]) for row in history] == [
        ("a", 1, 0.0), ("a", 2, 1.0), ("c", 1, 0.0), ("c", 2, 1.0), ("c", 3, 2.0)
    ]  # fmt: skip


@pytest.mark.parametrize("phases", [[], [phase("a", 0)], [phase("a", 0), phase("b", 0)]], ids=len)
def test_run_without_steps(phases):
    saves = []
    ending, state, history = run(phases, save=lambda: saves.append(1), minutes=0)
    assert (ending, state.trail, history, saves) == ("finished", [], [], [])


def test_run_of_finished_state():
    phases = [phase("a", 2)]
    _, state, _ = run(phases)
    ending, again, history = run(phases, state)
    assert ending == "finished"
    assert len(again.trail) == 2
    assert history == []


@pytest.mark.parametrize("steps", [1, 19, 20, 39, 40, 311])
def test_run_thins_history(steps):
    _, _, history = run([phase("a", steps)], history_points=20)
    kept = [row["step"] for row in history]
    assert kept[0] == 1
    assert kept[-1] == steps
    assert min(steps, 20) <= len(kept) <= 40
    gaps = {after - before for before, after in pairwise(kept)}
    assert max(gaps, default=1) <= max(1, steps // 20)
    assert len(gaps) <= 2  # even, but for the last


def test_run_records_tensors():
    _, _, history = run(
        [Phase("a", 1, lambda state: {"loss": torch.tensor(0.5)}), Phase("b", 2, lambda state: {})]
    )
    assert history == [{"phase": "a", "step": 1, "loss": 0.5}]


def test_run_records_metric_with_gradient():
    loss = torch.ones(1, requires_grad=True).sum()
    _, _, history = run([Phase("a", 1, lambda _: {"loss": loss})])
    assert history == [{"phase": "a", "step": 1, "loss": 1.0}]


@pytest.mark.parametrize("told", [None, 0.5, [("loss", 1.0)]], ids=repr)
def test_run_refuses_step_without_metrics(told):
    with pytest.raises(
        AttarError, match=r"A step of phase 'distil' returned .* in place of its metrics"
    ) as caught:
        run([Phase("distil", 2, lambda _: told)])
    assert "{}" in str(caught.value.fix)


def test_as_numbers_refuses_all_at_once():
    told = {
        "loss": torch.zeros(8, 3),
        "fine": 1,
        "word": "low",
        "nothing": None,
        "empty": torch.zeros(0),
    }
    with pytest.raises(
        AttarError, match="Metrics of phase 'distil' that are no single number"
    ) as caught:
        run([Phase("distil", 2, lambda _: told)])
    assert caught.value.problems == (
        "loss is a tensor of shape (8, 3)",
        "word is a str",
        "nothing is None",
        "empty is a tensor of shape (0,)",
    )


@pytest.mark.parametrize("steps", [-3, 7.5, 3.0, "3", None, True], ids=repr)
def test_check_steps_refuses_before_running(steps):
    state = Walk()
    with pytest.raises(SettingsError, match="a whole number of steps, 0 or more") as caught:
        run([phase("a", 2), phase("distil", steps)], state)
    assert caught.value.problems == (f"distil: {steps!r} steps",)
    assert state.trail == []


def test_run_records_every_after_step():
    measured = {7: {"accuracy": 0.25}}
    state = Walk()
    history = []
    Driver().run(
        [phase("a", 2 * HISTORY_POINTS)],
        state,
        history=history,
        after_step=lambda _: measured.get(state.step, {}),
    )
    (row,) = [row for row in history if "accuracy" in row]
    assert row == {"phase": "a", "step": 7, "at": 6.0, "accuracy": 0.25}
    (row,) = run([Phase("b", 1, lambda state: {})], after_step=lambda _: {"accuracy": 1.0})[2]
    assert row == {"phase": "b", "step": 1, "accuracy": 1.0}


# --- progress -------------------------------------------------------------------------------------


def test_seconds_left_follow_the_pace(clock):
    told = []
    run([phase("a", 4, lambda _: clock.pass_(10))], watch=told.append)
    assert [moment.step for moment in told] == [1, 2, 3, 4]
    assert [moment.done for moment in told] == [0.25, 0.5, 0.75, 1.0]
    assert [moment.seconds_left for moment in told] == pytest.approx([30, 20, 10, 0])
    assert told[-1].metrics == {"at": 3.0}
    assert told[-1].phase == "a"
    assert told[-1].steps == 4


def test_seconds_left_follow_the_work(clock):
    """One heavy step of work 6 and four light ones of 1: after the heavy one (60 s), 40 s are
    left, not 240.
    """
    told = []
    heavy = phase("heavy", 1, lambda _: clock.pass_(60), lambda _: 6.0)
    run([heavy, phase("light", 4, lambda _: clock.pass_(10))], watch=told.append)
    assert told[0].seconds_left == pytest.approx(40)
    assert told[0].done == pytest.approx(0.6)
    assert [moment.seconds_left for moment in told[1:]] == pytest.approx([30, 20, 10, 0])


def test_seconds_left_of_resumed_run(clock):
    told = []
    run([phase("a", 10, lambda _: clock.pass_(10))], Walk(step=8), watch=told.append)
    assert [moment.done for moment in told] == [0.9, 1.0]
    assert [moment.seconds_left for moment in told] == pytest.approx([10, 0])


def test_seconds_left_is_none_at_first(clock):
    told = []
    run(
        [
            phase("free", 1, lambda _: clock.pass_(1), lambda _: 0.0),
            phase("a", 1, lambda _: clock.pass_(1)),
        ],
        watch=told.append,
    )
    assert told[0].seconds_left is None
    assert told[0].done == 0
    assert told[1].seconds_left == 0
    assert told[1].done == 1


def test_watch_is_called_rarely_but_at_ends(clock):
    told = []
    run([phase("a", 100, lambda _: clock.pass_(0.05)), phase("b", 1)], watch=told.append)
    assert 20 <= len(told) <= 34  # 5 s, a word every 0.2 s
    assert (told[-2].phase, told[-2].step) == ("a", 100)
    assert told[-1].phase == "b"


# --- checkpoints and the deadline -----------------------------------------------------------------


def test_save_is_called_by_the_clock(clock):
    saved = []
    state = Walk()
    Driver(checkpoint_seconds=30).run(
        [phase("a", 10, lambda _: clock.pass_(10))],
        state,
        history=[],
        save=lambda: saved.append(state.step),
    )
    assert saved == [3, 6, 9]


def test_minutes_leave_no_time_for_a_step(clock):
    """60 s, steps of 25 s: after two steps 50 s are gone and a third would end at 75 s."""
    saved = []
    phases = [phase("a", 5, lambda _: clock.pass_(25))]
    ending, state, _ = run(phases, minutes=1, save=lambda: saved.append(1))
    assert ending == "deadline"
    assert state.step == 2
    assert saved == [1]
    ending, state, _ = run(phases, state)
    assert ending == "finished"
    assert [step for _, _, step in state.trail] == [0, 1, 2, 3, 4]


def test_minutes_over_at_the_last_step(clock):
    ending, state, _ = run([phase("a", 2, lambda _: clock.pass_(30))], minutes=1)
    assert (ending, state.step) == ("finished", 0)
    assert run([phase("a", 1, lambda _: clock.pass_(1000))], minutes=1)[0] == "finished"


def test_minutes_0_take_one_step(clock):
    ending, state, _ = run([phase("a", 3, lambda _: clock.pass_(1))], minutes=0)
    assert (ending, len(state.trail)) == ("deadline", 1)


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_stops():
    before = signal.getsignal(signal.SIGINT)
    saved = []

    def step(state):
        if state.step == 2:
            press(state)

    ending, state, _ = run([phase("a", 9, step)], save=lambda: saved.append(1))
    assert ending == "stopped"
    assert state.trail[-1] == ("a", 0, 2)
    assert state.step == 3
    assert saved == [1]
    assert signal.getsignal(signal.SIGINT) is before
    assert run([phase("a", 9)], state)[0] == "finished"


def test_ctrl_c_in_the_last_step():
    assert run([phase("a", 1, press)])[0] == "finished"


@pytest.mark.parametrize("where", ["in the step", "after it", "while it is told"])
def test_ctrl_c_twice_breaks_off_the_step(where):
    before = signal.getsignal(signal.SIGINT)
    reached, saved = [], []

    def hang(*_):
        press(None)
        press(None)
        reached.append("what comes after")
        return {}

    hangs = {"in the step": "step", "after it": "after_step", "while it is told": "watch"}
    ending, state, _ = run(
        [phase("a", 1, hang if where == "in the step" else None)],
        save=lambda: saved.append(1),
        **({hangs[where]: hang} if where != "in the step" else {}),
    )
    assert ending == "stopped"
    assert reached == []
    assert saved == []  # half a step is no place to go on from
    assert state.step == (0 if where == "in the step" else 1)
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_three_times():
    def step(state):
        try:
            press(state)
            press(state)
        finally:
            press(state)

    before = signal.getsignal(signal.SIGINT)
    assert run([phase("a", 3, step)])[0] == "stopped"
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_breaks_no_save():
    saved = []

    def save():
        press(None)
        press(None)
        saved.append("whole")

    ending, state, _ = run([phase("a", 3, press)], save=save)
    assert (ending, state.step, saved) == ("stopped", 1, ["whole"])


def test_run_raises_foreign_interrupt():
    def step(state):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run([phase("a", 3, step)])


def test_run_restores_the_handler_after_errors():
    before = signal.getsignal(signal.SIGINT)

    def step(state):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([phase("a", 3, step)])
    assert signal.getsignal(signal.SIGINT) is before


def test_run_in_a_thread():
    endings = []
    thread = threading.Thread(target=lambda: endings.append(run([phase("a", 2)])[0]))
    thread.start()
    thread.join()
    assert endings == ["finished"]


# --- random numbers -------------------------------------------------------------------------------


@dataclass
class Dropped(State):
    total: torch.Tensor = field(default_factory=lambda: torch.zeros(50))


def drop(state):
    state.total = state.total + F.dropout(torch.ones(50), 0.5)
    return {}


PHASES = [Phase("a", 3, drop), Phase("b", 3, drop)]


def dropped(state=None, seed=0, **settings):
    state = state or Dropped()
    ending = Driver(seed=seed).run(PHASES, state, history=[], **settings)
    return ending, state.total


def test_run_seeds_dropout():
    torch.manual_seed(1)
    torch.rand(5)
    before = torch.get_rng_state()
    first = dropped()[1]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(dropped()[1], first)
    assert not torch.equal(dropped(seed=1)[1], first)


def test_run_seeds_each_step():
    masks = []
    Driver().run(
        [Phase(n, 3, lambda _: masks.append(F.dropout(torch.ones(50), 0.5)) or {}) for n in "ab"],
        State(),
        history=[],
    )
    assert len({tuple(mask.tolist()) for mask in masks}) == 6


def test_run_resumes_to_the_same_bits(tmp_path):
    straight = dropped()[1]
    for after in range(1, 6):
        state, path = Dropped(), tmp_path / f"{after}"
        taken = []

        def stop(_, taken=taken, after=after):
            taken.append(1)
            if len(taken) == after:
                press(None)
            return {}

        ending, _ = dropped(
            state, save=lambda state=state, path=path: save_state(path, state, {}), after_step=stop
        )
        assert ending == "stopped"
        fresh = Dropped()
        restore_state(path, fresh)
        ending, total = dropped(fresh)
        assert ending == "finished"
        assert torch.equal(total, straight)


def test_run_restores_precision():
    seen = []
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def look(state):
        seen.append(
            (
                torch.is_autocast_enabled("cpu"),
                torch.backends.cuda.matmul.allow_tf32,
                torch.backends.cudnn.allow_tf32,
            )
        )
        return {}

    for precision in ("fp32", "tf32", "bf16"):
        run([Phase("a", 1, look)], precision=precision)
    assert seen == [(False, False, False), (False, True, True), (True, True, True)]
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    assert not torch.is_autocast_enabled("cpu")


# --- the time left, on the recorded shapes of runs ------------------------------------------------


def shape_of_run(name):
    """Phases as a method announces them, each with the seconds that its steps took on a CPU.

    fedmho: three lenet5-like clients, resnet20 as the student, decoders that cost next to nothing;
    dense: an epoch is 30 generator steps and a pool that grows, whose batches cost three times what
    is announced; accord: guesses that cost a tenth of what is announced, then sketches.
    """
    match name:
        case "fedmho":
            return [
                ("generate", 1, lambda _: 2000.0, lambda _: 3.0),
                ("ask clients", 10, lambda _: 600.0, lambda _: 1.0),
                ("initialise", 20, lambda _: 6000.0, lambda _: 60.0),
                ("ask initial model", 10, lambda _: 200.0, lambda _: 0.7),
                ("train", 20, lambda _: 6000.0, lambda _: 61.0),
            ]
        case "dense":
            return [
                ("distil", 200, lambda i: 60 + 0.3 * (i + 1), lambda i: 12 + 3 * 0.06 * (i + 1)),
            ]
        case _:
            return [
                ("guess", 10, lambda _: 80.0, lambda _: 2.0),
                ("sketch", 24, lambda _: 4.0, lambda _: 1.0),
                ("distil", 50, lambda _: 6.0, lambda _: 1.5),
            ]


def drive_shape(clock, name, expected=None):
    """(seconds since the start, report) of each step, and the whole run's seconds."""
    told = []
    begun = clock.now
    noise = torch.rand(1000, generator=torch.Generator().manual_seed(0)).mul(0.2).add(0.9).tolist()

    def take(seconds_of):
        return lambda state: clock.pass_(seconds_of(state.step) * noise.pop())

    phases = [phase(title, steps, take(seconds), work)
              for title, steps, work, seconds in shape_of_run(name)]  # fmt: skip
    run(
        phases,
        watch=lambda report: told.append((clock.now - begun, report)),
        watch_seconds=0.0,
        expected=expected,
    )
    return told, clock.now - begun


def measured_rates(name, wrong=1.0):
    """Seconds for a unit of work in the first steps of each phase: what a trial measures."""
    return [
        wrong * sum(map(seconds, range(3))) / sum(map(work, range(3)))
        for _, _, work, seconds in shape_of_run(name)
    ]


@pytest.mark.parametrize("wrong", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("name", ["fedmho", "dense", "accord"])
def test_seconds_left_at_a_tenth_of_the_run(clock, name, wrong):
    told, whole = drive_shape(clock, name, measured_rates(name, wrong))
    assert told[0][1].step == 0  # before the first step
    for seconds, report in told:
        if 0.1 * whole <= seconds <= 0.9 * whole:
            assert 1 / 1.5 < report.seconds_left / (whole - seconds) < 1.5


@pytest.mark.parametrize("name", ["fedmho", "dense"])
def test_seconds_left_without_a_trial(clock, name):
    """Small phases say nothing about large ones: FedMHO's generation of images once promised 7 of
    42 minutes.
    """
    told, whole = drive_shape(clock, name)
    for seconds, report in told:
        if report.seconds_left is None:
            assert report.phase in ("generate", "ask clients")
        elif seconds > 0.1 * whole:
            assert 1 / 1.5 < report.seconds_left / max(whole - seconds, 1e-9) < 1.5 or (
                seconds > 0.9 * whole
            )
