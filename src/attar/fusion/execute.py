"""How a method is run, written once: check its needs, prepare, start, take its steps, result.

It stands here and not beside the driver, since a check of needs belongs to the methods, which
are above it. ``fuse``, the rounds of a federation, the estimate, ``attar speed`` and the contract
all run a method through these functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attar.core import AnyMethod, Part, Phase, Result, Server, State, Upload
from attar.errors import DivergedError, NeedsError
from attar.fusion.recommend import find_obstacles
from attar.methods import BUILT_IN, METHODS, method_name, unmet_needs
from attar.running import Driver, Ending, check_steps
from attar.uploads import value_problems


@dataclass(frozen=True)
class MethodRun:
    """A method that has been prepared and started.

    Attributes:
        method: The method.
        context: What ``prepare`` returned; it does not change.
        state: Everything that changes.
        phases: Their steps change ``state``.
    """

    method: AnyMethod
    context: Any
    state: State
    phases: Sequence[Phase]

    def drive(
        self,
        driver: Driver,
        *,
        history: list[dict[str, Any]],
        save: Callable[[], None] | None = None,
        after_step: Callable[[Phase], Mapping[str, float]] | None = None,
    ) -> Ending:
        """Take all steps that are left; see ``Driver.run``."""
        return driver.run(
            self.phases, self.state, history=history, save=save, after_step=after_step
        )

    def result(self) -> Result:
        """What the method delivers as its state is now."""
        return self.method.result(self.context, self.state)

    @property
    def learned(self) -> bool:
        """Whether the model has begun its last phase of learning, or ended an earlier one."""
        learning = [place for place, phase in enumerate(self.phases) if phase.learns]
        if not learning:
            return True
        *earlier, last = learning
        phase, step = self.state.phase, self.state.step
        if phase > last or (phase == last and step > 0):
            return True
        return any(
            self.phases[place].steps > 0 and (phase, step) >= (place, self.phases[place].steps)
            for place in earlier
        )

    def steps_done(self) -> dict[str, str]:
        """How many steps of each phase are done, in words: ``3 of 200``."""
        done = {}
        for place, phase in enumerate(self.phases):
            if place < self.state.phase:
                steps = phase.steps
            else:
                steps = self.state.step if place == self.state.phase else 0
            done[phase.name] = f"{steps} of {phase.steps}"
        return done


def start_method(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> MethodRun:
    """Check what a method needs, prepare it and start it.

    Raises:
        NeedsError: The method cannot work with these uploads or this server.
        SettingsError: A phase has no whole number of steps.
    """
    check_needs(method, uploads, server)
    return start_prepared(method, method.prepare(uploads, server))


def start_prepared(method: AnyMethod, context: Any) -> MethodRun:
    """Start a method whose uploads have been checked and prepared.

    Raises:
        SettingsError: A phase has no whole number of steps.
    """
    state = method.start(context)
    phases = method.phases(context)
    check_steps(phases)
    return MethodRun(method=method, context=context, state=state, phases=phases)


def check_needs(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> None:
    """Raise a NeedsError with every reason why the method cannot work with these uploads."""
    if reasons := unmet_needs(method.needs, uploads, server):
        which = "this upload" if len(uploads) == 1 else f"these {len(uploads)} uploads"
        name = method_name(method)
        fix = _other_way(uploads, server)
        if obstacles := find_obstacles({name: method}, uploads, server):
            flags = " ".join(f"--exclude {client}" for client in obstacles[0].clients)
            fix = f"it can without {' and '.join(obstacles[0].clients)}: {flags}; {fix}"
        raise NeedsError(f"Method {name} cannot fuse {which}:", problems=reasons, fix=fix)


def _other_way(uploads: Sequence[Upload], server: Server) -> str:
    """What to do where a method cannot fuse some uploads."""
    able = [
        name for name in sorted(BUILT_IN) if not unmet_needs(METHODS[name]().needs, uploads, server)
    ]
    if able:
        return f"{', '.join(able)} can (`attar fuse --dry-run` says what each costs)"
    return (
        "no method can as it stands: change what is named above, by --classes, --class-map or "
        "--exclude CLIENT"
    )


def check_finite(method: AnyMethod, result: Result) -> None:
    """Raise a DivergedError where weights of a result's nets are NaN or infinite.

    The members of an ensemble are left out: they were checked when they arrived.
    """
    parts = {name: model for name, model in result.models.items() if isinstance(model, Part)}
    if diverged := [name for name, part in parts.items() if value_problems(part.state)]:
        raise DivergedError(
            f"Method {method_name(method)} diverged: weights of {', '.join(diverged)} are NaN or "
            "infinite.",
            fix="use a smaller learning rate (student_lr, lr …) or bound the steps (clip=1) with "
            "--set, and another --out",
        )
