"""How a run is driven and what it writes: the options that ``fuse`` and ``federate`` share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from attar.core import Deployable, Result
from attar.errors import SettingsError
from attar.models import Classifier, Evaluation
from attar.running.budget import Budget
from attar.running.driver import CHECKPOINT_SECONDS, WATCH_SECONDS, OnPoint, Watch

Evaluate = Callable[[Classifier], Evaluation]
OnEvaluation = Callable[[str, int, Result], None]


@dataclass(frozen=True)
class RunOptions:
    """How a run is driven. Apart from ``minutes``, nothing here changes the model.

    Attributes:
        out: Folder for the run: description, checkpoint, models, record. None: nothing is written.
        resume: Continue the run in ``out``; start one where there is none.
        minutes: Time limit. A run that reaches it delivers the model it has by then.
        watch: Called with the progress, at most every ``watch_seconds`` and at the end of a phase.
        watch_seconds: Shortest time between two calls of ``watch`` within a phase.
        checkpoint_seconds: Shortest time between two checkpoints; 0 saves after every step.
        evaluate: Measures a model. The method never sees the result.
        evaluate_every: Steps between two evaluations while a phase changes the model; None: only
            at the end.
        evaluated_on: What ``evaluate`` measures on, in words, for the record.
        on_evaluation: Called after each evaluation on the way with the phase's name, the step and
            the result that the run would deliver if it ended there.
        foresee: On a CPU, time a few steps of each phase before the run, so that the time left is
            known from the start.
        for_people: Write model cards and pictures beside the models.
        on_point: Called with each point of the history as it is recorded: phase, step, metrics; of
            a federation with one for each round.
        budget: Refuse clients with whom the run would take more memory or time; None: take all.
    """

    out: str | Path | None = None
    resume: bool = False
    minutes: float | None = None
    watch: Watch | None = None
    watch_seconds: float = WATCH_SECONDS
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    evaluate: Evaluate | None = None
    evaluate_every: int | None = None
    evaluated_on: str | None = None
    on_evaluation: OnEvaluation | None = None
    foresee: bool = False
    for_people: bool = True
    on_point: OnPoint | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.evaluate_every is not None and self.evaluate_every < 1:
            raise SettingsError(
                f"evaluate_every = {self.evaluate_every}: expected a whole number of steps from 1"
            )

    def evaluate_model(self, model: Deployable, device: str) -> Evaluation:
        """Measure a model with ``evaluate``, which must be set.

        Raises:
            SettingsError: ``evaluate`` returned something else than an Evaluation.
        """
        assert self.evaluate is not None, "nothing to evaluate with"
        evaluation: object = self.evaluate(Classifier(model).to(device))
        if not isinstance(evaluation, Evaluation):
            raise SettingsError(
                f"evaluate returned a {type(evaluation).__name__}: expected an Evaluation",
                fix="return what attar.evaluate_on returns, not its accuracy alone",
            )
        return evaluation

    def evaluate_models(
        self, models: Mapping[str, Deployable], device: str
    ) -> dict[str, Evaluation]:
        """Measure each model once; an empty dict where there is no ``evaluate``."""
        if self.evaluate is None:
            return {}
        return {name: self.evaluate_model(model, device) for name, model in models.items()}


def merge_options(options: RunOptions | None, **keywords: Any) -> RunOptions:
    """Put keywords that were given directly over the options.

    Args:
        options: None stands for the defaults.
        keywords: Fields of RunOptions; one that has its default value counts as not given.

    Raises:
        SettingsError: A field was given in both places with different values.
    """
    default = RunOptions()
    options = options or default
    changes = {name: value for name, value in keywords.items() if value != getattr(default, name)}
    twice = [
        name
        for name, value in changes.items()
        if getattr(options, name) not in (getattr(default, name), value)
    ]
    if twice:
        raise SettingsError(
            "Given directly and in options=RunOptions(...), with different values: "
            f"{', '.join(twice)}.",
            fix="give it in one place",
        )
    return replace(options, **changes)


def refuse_keywords(function: str, keywords: Mapping[str, object], **groups: type) -> None:
    """Refuse keywords that a function does not have; those that moved name their new place.

    Args:
        function: Name of the function, for the message.
        keywords: What it was given beyond its parameters.
        groups: Parameters of the function that hold a dataclass, each with that class.

    Raises:
        TypeError: There is any such keyword.
    """
    for name in keywords:
        for parameter, group in groups.items():
            if name in {field.name for field in fields(group)}:
                raise TypeError(
                    f"{function}() takes {name} in its options: "
                    f"{parameter}={group.__name__}({name}=...)"
                )
        raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
