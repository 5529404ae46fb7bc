"""From round to round: sample, train, fuse, evaluate, record."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attar.core import Broadcast, Result
from attar.errors import NeedsError, RunError
from attar.federation.communication import (
    communication_cost,
    cumulative_bytes,
    rounds_to_accuracy,
)
from attar.federation.fusion import fuse_round
from attar.federation.round import DeadlineReachedError, FederationRun
from attar.models import Evaluation
from attar.settings import filled_by_variant
from attar.training import DEPLOYED
from attar.uploads import encode_broadcast


@dataclass
class Walk:
    """What the rounds have delivered so far.

    Attributes:
        run: The federation.
        result: Of the last round that was fused; None before the first.
        evaluations: Of its models, where this process evaluated them after that round.
        client_accuracies: Of the deployed models that were evaluated after the last round.
        ending: "finished" after the last round, "deadline" where the minutes were over.
    """

    run: FederationRun
    result: Result | None = None
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    client_accuracies: dict[str, float] = field(default_factory=dict)
    ending: str = "finished"

    def run_rounds(self) -> Result:
        """Run all rounds that are left, or as many as the minutes allow.

        Returns:
            The last result.

        Raises:
            RunError: The minutes were over before there was any model.
            NeedsError: The uploads of the first round could not be fused.
        """
        run = self.run
        state = run.state
        if state.model is not None:
            self.result = Result({state.records[-1]["model"]: state.model})
        longest = 0.0
        try:
            while state.round <= run.rounds.rounds:
                begun = time.monotonic()
                if begun + longest > run.deadline:
                    raise DeadlineReachedError
                self._run_round(begun)
                longest = max(longest, time.monotonic() - begun)
                state.begin_next_round()
                if state.round <= run.rounds.rounds:  # the last result goes to the run folder
                    run.save_if_due()
        except DeadlineReachedError:
            if self.result is None:
                raise RunError(
                    f"Out of minutes in round {state.round}: there is no model yet.",
                    fix="go on by --resume, or give more minutes",
                ) from None
            self.ending = "deadline"
        assert self.result is not None, "at least one round was run"
        return self.result

    def _run_round(self, begun: float) -> None:
        """Run one round and record it."""
        run = self.run
        state = run.state
        chosen, dropped = run.sample_clients()
        sizes = [run.broadcast_size(group) for group in run.groups]
        run.train(chosen, dropped)
        trained = time.monotonic()
        remarks = self._fuse()
        fused = time.monotonic()
        run.wait_for_sizes()
        bytes_down = sum(
            size.result() * sum(client.name in chosen for client in group.clients)
            for group, size in zip(run.groups, sizes, strict=True)
        )
        assert self.result is not None, "the round was fused, or an earlier one"
        last = state.round == run.rounds.rounds
        self.evaluations = {}
        if last or state.round % run.rounds.evaluate_every == 0:
            self.evaluations = run.options.evaluate_models(self.result.models, run.device)
        accuracies = {name: evaluation.accuracy for name, evaluation in self.evaluations.items()}
        every = run.rounds.home_every
        due = bool(every) and state.round % every == 0
        self.client_accuracies = {}  # those of an earlier round
        if due:
            self.client_accuracies = self.evaluate_clients(chosen)
        losses = [loss for loss in state.losses.values() if loss is not None]
        state.records.append(
            {
                "round": state.round,
                "drawn": chosen,
                "dropped": dropped,
                "failed": dict(state.failed),
                "bytes_down": bytes_down,
                "bytes_up": sum(state.bytes_up.values()),
                "model": next(iter(self.result.models)),
                "accuracy": next(iter(accuracies.values()), None),
                "accuracies": accuracies,
                "home_accuracy": _mean(list(self.client_accuracies.values())),
                "loss": _mean(losses),
                "train_seconds": round(trained - begun, 3),
                "fuse_seconds": round(fused - trained, 3),
                "seconds": round(time.monotonic() - begun, 3),
                "remarks": [*run.remarks(), *remarks],
            }
        )
        if run.options.on_point is not None:
            told = {key: state.records[-1][key] for key in ("accuracy", "home_accuracy", "loss")}
            run.options.on_point({"phase": "rounds", "step": state.round, **told})

    def _fuse(self) -> tuple[str, ...]:
        """Fuse the round and return the remarks. After the first round a fusion that cannot work
        leaves the model as it is.
        """
        try:
            self.result = fuse_round(self.run)
        except NeedsError as error:
            if self.result is None:
                raise
            why = "; ".join(error.problems) or error.what
            return (f"Not fused: {why} The model stays as it was.",)
        return self.result.remarks

    def evaluate_clients(self, names: Sequence[str]) -> dict[str, float]:
        """Accuracies of the deployed models of these clients, where they have one; those that
        were evaluated after the last round are not evaluated again.
        """
        options = self.run.options
        if options.evaluate is None:
            return {}
        accuracies = {}
        for name in names:
            state = self.run.state.client_state.get(name, {})
            if DEPLOYED not in state:
                continue
            if name in self.client_accuracies:
                accuracies[name] = self.client_accuracies[name]
            else:
                evaluation = options.evaluate_model(state[DEPLOYED], self.run.device)
                accuracies[name] = evaluation.accuracy
        return accuracies

    def describe(self, description: Mapping[str, Any], result: Result) -> dict[str, Any]:
        """The record of the federation."""
        run = self.run
        rounds = run.state.records
        home_accuracies = self.evaluate_clients(run.clients)
        equation_6 = None
        if run.state.start_models:
            exchanged = Broadcast({run.objective.exchanged_part: run.state.start_models[0]})
            size = len(encode_broadcast(exchanged))
            equation_6 = communication_cost(
                len(run.clients), run.rounds.fraction, len(rounds), size
            )
        target = run.rounds.target
        return {
            **description,
            "task": {"classes": list(next(iter(result.models.values())).classes)},
            "device": run.device,
            "ending": self.ending,
            "seconds": round(time.monotonic() - run.begun, 3),
            "rounds": rounds,
            "bytes_up": sum(record["bytes_up"] for record in rounds),
            "bytes_down": sum(record["bytes_down"] for record in rounds),
            "bytes": cumulative_bytes(rounds)[-1] if rounds else 0,
            "equation_6_bytes": equation_6,
            "to_target": None if target is None else rounds_to_accuracy(rounds, target),
            "accuracy": rounds[-1]["accuracy"],
            "accuracies": rounds[-1]["accuracies"],
            "home_accuracies": home_accuracies,
            "home_accuracy": _mean(list(home_accuracies.values())),
            "evaluated_on": run.options.evaluated_on,
            "filled_by_variant": filled_by_variant(run.method),
            "remarks": rounds[-1]["remarks"],
        }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
