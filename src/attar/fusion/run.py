"""Uploads and a method in, one model out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import torch

from attar.blocks.execution import synchronise
from attar.core import AnyMethod, Deployable, Phase, Result, Server, Upload
from attar.errors import DivergedError, Stopped
from attar.fusion.broken_answers import check_answers, explain_divergence
from attar.fusion.describe import describe_run, describe_sums
from attar.fusion.estimate import estimate
from attar.fusion.execute import MethodRun, check_finite, start_method
from attar.fusion.price import check_price
from attar.fusion.safeguards import NONE, Safeguards
from attar.fusion.server import server_for
from attar.methods import find_method
from attar.models import Classifier, Evaluation
from attar.running import (
    Driver,
    Ending,
    Evaluate,
    RunFolder,
    RunOptions,
    Watch,
    merge_options,
    refuse_keywords,
)
from attar.settings import filled_by_variant
from attar.uploads import Admission


@dataclass(frozen=True)
class Fused:
    """What a fusion delivers.

    Attributes:
        result: The method's result.
        record: The run as it went, as JSON.
        evaluations: Of each model of the result; empty where nothing was evaluated.
    """

    result: Result
    record: Mapping[str, Any]
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)

    @property
    def model(self) -> Classifier:
        """The headline model, the first of the result, ready to classify."""
        return Classifier(_first_model(self.result))

    @property
    def finished(self) -> bool:
        """Whether the method took all its steps; if not, it ran out of minutes."""
        return bool(self.record["ending"] == "finished")

    @property
    def learned(self) -> bool:
        """Whether the model learned anything; if not, it ran out of minutes before."""
        return bool(self.record["learned"])


def fuse(
    uploads: Sequence[Upload],
    method: AnyMethod | str,
    server: Server | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    minutes: float | None = None,
    watch: Watch | None = None,
    evaluate: Evaluate | None = None,
    evaluated_on: str | None = None,
    admission: Admission | None = None,
    robustness: bool | Safeguards = False,
    options: RunOptions | None = None,
    **unknown: Never,
) -> Fused:
    """Fuse uploads into one model.

    Args:
        uploads: One of each client.
        method: A method with its settings, or the name of one that is to have its defaults.
        server: The task, the student and what the server has; None: ``server_for(uploads)``.
        out: Folder for the model, the record, and the checkpoint while the run lasts. None:
            nothing is written.
        resume: Continue the run in ``out``; start one where there is none.
        minutes: Time limit; a run that reaches it delivers the model it has by then.
        watch: Called with the progress.
        evaluate: Measures a model, such as ``lambda model: attar.evaluate_on(model, split,
            classes)``. The method never sees the result.
        evaluated_on: What ``evaluate`` measures on, in words, for the record.
        admission: How the uploads came in, for the record.
        robustness: Bound what clients say of themselves, and look for clients that do not fit in
            when the model is there; ``Safeguards`` says which of it. False: neither.
        options: Everything else that says how the run is driven.

    Raises:
        NeedsError: The method cannot work with these uploads, all reasons are listed; or nets of
            some clients answer NaN, infinity or numbers that overflow; or the run does not fit
            into ``options.budget``.
        RunError: ``out`` holds another run.
        Stopped: Ctrl-C; what was done is saved in ``out``.
        DivergedError: Weights of the result are NaN or infinite.
    """
    refuse_keywords("fuse", unknown, options=RunOptions)
    options = merge_options(
        options,
        out=out,
        resume=resume,
        minutes=minutes,
        watch=watch,
        evaluate=evaluate,
        evaluated_on=evaluated_on,
    )
    if isinstance(method, str):
        method = find_method(method)()
    server = server or server_for(uploads)
    admission = admission or Admission()
    safeguards = robustness if isinstance(robustness, Safeguards) else _SAFEGUARDS[robustness]
    guarded = safeguards.guard(uploads)
    budget = options.budget
    if budget is not None:
        check_price(uploads, server, method, budget)
    check_answers(uploads, server.device)
    run = start_method(method, guarded.uploads, server)
    if budget is not None and options.minutes is None:
        check_price(uploads, server, method, budget, sum(phase.steps for phase in run.phases))
    description = {**describe_run(uploads, method, server, admission), **guarded.describe()}

    def examine(result: Result) -> Mapping[str, Any]:
        outliers = safeguards.examine(uploads, guarded.claims, server, result)
        return {
            "signatures": admission.describe_signers(),
            "robustness": None if outliers is None else outliers.as_json(),
        }

    return carry_out(run, server, options, description, examine, guarded.uploads)


_SAFEGUARDS = {True: Safeguards(), False: NONE}


def carry_out(
    run: MethodRun,
    server: Server,
    options: RunOptions,
    description: Mapping[str, Any],
    examine: Callable[[Result], Mapping[str, Any]],
    uploads: Sequence[Upload] = (),
) -> Fused:
    """Take a method's steps, evaluate what it delivers, and write its folder.

    Args:
        run: A method that has been started.
        server: On which it runs.
        options: How it is driven.
        description: What decides its outcome, as JSON.
        examine: More for the record, found out when the result is there.
        uploads: With which a trial tells how long the run takes; none: no trial.
    """
    fusion = _Fusion(run, server, options, description)
    ending = fusion.drive(fusion.foresee(uploads) if options.foresee and uploads else None)
    result = run.result()
    try:
        check_finite(run.method, result)
    except DivergedError as error:
        raise explain_divergence(error, uploads, server.device, result.images) from None
    evaluations = fusion.evaluate(result)
    record = {
        **description,
        **fusion.describe(ending, result, evaluations),
        **examine(result),
        "history": fusion.history,
    }
    if result.details:
        record["details"] = dict(result.details)
    if result.sums:
        record["sums"] = describe_sums(result.sums, record["clients"])
    if fusion.folder is not None:
        fusion.folder.finish(result, record, for_people=options.for_people)
    return Fused(result=result, record=record, evaluations=evaluations)


class _Fusion:
    """A fusion under way: its folder, its times and what was measured."""

    def __init__(
        self,
        run: MethodRun,
        server: Server,
        options: RunOptions,
        description: Mapping[str, Any],
    ) -> None:
        """Begin the run in its folder, or continue the one that is there."""
        self.run = run
        self.server = server
        self.options = options
        self.folder = None if options.out is None else RunFolder(Path(options.out))
        notes: dict[str, Any] = {}
        if self.folder is not None:
            notes = self.folder.begin(
                description, run.state, resume=options.resume, device=server.device
            )
        self.history: list[dict[str, Any]] = notes.get("history", [])
        self.bytes_received = sum(client["bytes"] for client in description["clients"])
        self._stopwatch = _Stopwatch(notes)
        self._last_evaluation: Evaluation | None = None  # of the headline model after this step

    def drive(self, expected: Sequence[float] | None) -> Ending:
        """Take the method's steps; raise Stopped at Ctrl-C.

        Args:
            expected: Seconds for a unit of each phase's work; None: measured on the way.
        """
        options = self.options
        driver = Driver(
            seed=self.server.seed,
            device=self.server.device,
            precision=self.server.precision,
            watch=options.watch,
            minutes=options.minutes,
            checkpoint_seconds=options.checkpoint_seconds,
            watch_seconds=options.watch_seconds,
            expected=expected,
            on_point=options.on_point,
        )
        ending = self.run.drive(
            driver,
            history=self.history,
            save=None if self.folder is None else self._save,
            after_step=self._after_step,
        )
        if ending == "stopped":
            raise self._stopped()
        return ending

    def foresee(self, uploads: Sequence[Upload]) -> tuple[float, ...] | None:
        """Seconds for a unit of each phase's work, from a trial; None where none is worth it.

        Raises:
            Stopped: Ctrl-C during the trial.
        """
        steps = sum(phase.steps for phase in self.run.phases)
        if not steps or torch.device(self.server.device).type == "cuda":
            return None
        try:
            return estimate(self.run.method, uploads, self.server).rates
        except KeyboardInterrupt:
            raise self._stopped() from None
        except Exception:  # a plug-in's trial: the run itself may do without
            return None

    def _stopped(self) -> Stopped:
        return Stopped(
            "Stopped by Ctrl-C.",
            fix=f"run the same command with --resume: it goes on from what {self.options.out} holds"
            if self.folder is not None
            else "start it again",
        )

    def _save(self) -> None:
        assert self.folder is not None, "a run without a folder is not saved"
        notes = {"history": self.history, **self._stopwatch.as_notes()}
        self.folder.save(self.run.state, notes)

    def _after_step(self, phase: Phase) -> dict[str, float]:
        """Charge the step's time to its phase, and evaluate where that is due."""
        self._last_evaluation = None
        options = self.options
        state = self.run.state
        if (
            options.evaluate is None
            or options.evaluate_every is None
            or not phase.learns
            or state.step % options.evaluate_every
        ):
            self._stopwatch.charge(phase.name)
            return {}
        # What a GPU has yet to do belongs to the phase, not to the evaluation.
        synchronise(self.server.device)
        self._stopwatch.charge(phase.name)
        result = self.run.result()
        self._last_evaluation = options.evaluate_model(_first_model(result), self.server.device)
        if options.on_evaluation is not None:
            options.on_evaluation(phase.name, state.step, result)
        self._stopwatch.charge("evaluation")
        return {"accuracy": self._last_evaluation.accuracy}

    def evaluate(self, result: Result) -> dict[str, Evaluation]:
        """Evaluate each model of the final result; not again the headline model, where that was
        evaluated after the last step.
        """
        models = dict(result.models)
        done = {}
        if self._last_evaluation is not None:
            headline = next(iter(models))
            done[headline] = self._last_evaluation
            del models[headline]
        return done | self.options.evaluate_models(models, self.server.device)

    def describe(
        self, ending: Ending, result: Result, evaluations: Mapping[str, Evaluation]
    ) -> dict[str, Any]:
        """How the run went, for the record."""
        accuracies = {name: evaluation.accuracy for name, evaluation in evaluations.items()}
        return {
            "device": self.server.device,
            "compiled": self.server.compile,
            "ending": ending,
            "learned": ending == "finished" or self.run.learned,
            "steps": self.run.steps_done(),
            "seconds": round(self._stopwatch.seconds, 3),
            "seconds_by_phase": {
                name: round(seconds, 3)
                for name, seconds in self._stopwatch.seconds_by_phase.items()
            },
            "bytes_received": self.bytes_received,
            "accuracy": next(iter(accuracies.values()), None),
            "accuracies": accuracies,
            "filled_by_variant": filled_by_variant(self.run.method),
            "remarks": list(result.remarks),
            "evaluated_on": self.options.evaluated_on,
        }


class _Stopwatch:
    """Seconds of a run, in all and by phase, with those from before it was resumed."""

    def __init__(self, notes: Mapping[str, Any]) -> None:
        self._last = time.monotonic()
        self._begun: float = self._last - notes.get("seconds", 0.0)
        self.seconds_by_phase: dict[str, float] = notes.get("seconds_by_phase", {})

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def charge(self, phase: str) -> None:
        """Add the time since the last call to a phase."""
        now = time.monotonic()
        self.seconds_by_phase[phase] = self.seconds_by_phase.get(phase, 0.0) + now - self._last
        self._last = now

    def as_notes(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"seconds": self.seconds, "seconds_by_phase": self.seconds_by_phase}


def _first_model(result: Result) -> Deployable:
    return next(iter(result.models.values()))
