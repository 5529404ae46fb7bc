"""Rounds of local training and fusion: draw clients, send, train, upload, fuse, evaluate.
One-shot is one round.

Clients of one architecture train as one stack, in their workplace, which stays on the device
from round to round. What stays at a client's home (a deployed model, a control variate) is kept
for it; what travels is counted as the file that it would be. With ``out`` everything is saved
now and then, also inside a stack's training and inside a fusion: killed anywhere and resumed,
the federation ends in the same bits.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attar.core import AnyMethod, Broadcast, Images, ModelSpec, Part, Result, Server, Upload
from attar.data.dataset import Dataset
from attar.data.partition import Partition
from attar.data.tensors import to_pixels
from attar.errors import NeedsError, RunError, SettingsError
from attar.federation.communication import communication_cost, drawn, running_bytes, to_target
from attar.federation.round import FederationRun, Rounds, TimeIsUp, architectures
from attar.federation.state import Ledger, Standing
from attar.fusion import Evaluate, describe_images, server_for
from attar.internal.tensors import hash_tensors
from attar.methods import method_name
from attar.models import Classifier, federation_card
from attar.models import evaluate as measure
from attar.running import Watch
from attar.settings import flatten
from attar.training import (
    DEPLOYED,
    ClientData,
    Crew,
    LocalTraining,
    client_names,
    muster,
    objective_of,
    server_images,
    share_out,
)
from attar.uploads import encode_broadcast
from attar.version import __version__

__all__ = ["Federated", "Rounds", "federate", "federate_data"]


@dataclass(frozen=True)
class Federated:
    """What a federation delivers: the last fused model with its method's result, what stayed at
    home, the record.
    """

    result: Result
    homes: Mapping[str, Mapping[str, Part]]
    record: Mapping[str, Any]

    @property
    def model(self) -> Classifier:
        return Classifier(next(iter(self.result.models.values())))


def federate(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    method: AnyMethod,
    rounds: Rounds | None = None,
    *,
    training: LocalTraining | None = None,
    weak: Mapping[str, Any] | None = None,
    student: str | ModelSpec | None = None,
    public: Images | None = None,
    initial: Part | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    compile: bool = False,
    withhold_counts: bool = False,
    out: str | Path | None = None,
    resume: bool = False,
    minutes: float | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 30.0,
    evaluate: Evaluate | None = None,
    evaluated_on: str | None = None,
) -> Federated:
    """Clients (each with its net in ``specs``) and a method in; the model after the last round
    and the record out.

    ``training`` is how classifiers train at home in each round, ``weak`` what differs from the
    paper's settings for CVAEs. The student is the clients' commonest net unless given, or the
    knowledge network of a method that has one. ``initial``: the model that the server sends in
    the first round. ``minutes`` ends it in time with the model of the last whole round;
    ``evaluate`` measures that of every round, and the models that stay at home.
    """
    rounds, training, objective = (
        rounds or Rounds(),
        training or LocalTraining(),
        objective_of(method),
    )
    seats = drawn(len(clients), rounds.fraction)
    crews = muster(
        clients,
        specs,
        training,
        objective,
        seats=seats,
        seed=seed,
        device=device,
        weak=weak,
        initial=initial,
    )
    _check(crews, method, rounds, training, initial, student)
    strong = [spec for spec in specs if spec.kind == "classifier"]
    if objective.mutual is not None:
        student = objective.mutual.knowledge
    elif student is None and strong:
        student = max(strong, key=strong.count)

    def server(uploads: Sequence[Upload]) -> Server:
        return server_for(
            uploads,
            student=student,
            public=public,
            seed=seed,
            device=device,
            precision=precision,
            compile=compile,
        )

    wanted = {
        "method": method_name(method),
        "settings": flatten(method),
        "plan": asdict(rounds),
        "training": asdict(training),
        "weak": dict(weak or {}),
        "student": None if student is None else str(student),
        "public": describe_images(public),
        "initial": None if initial is None else initial.fingerprint(),
        "withhold_counts": withhold_counts,
        "seed": seed,
        "precision": precision,
        "clients": [_described(client, spec) for client, spec in zip(clients, specs, strict=True)],
        "attar": __version__,
    }
    begun = time.monotonic()
    ledger = None if out is None else Ledger(Path(out))
    standing = Standing() if ledger is None else ledger.begin(wanted, resume=resume)
    deadline = float("inf") if minutes is None else begun + 60 * minutes
    run = FederationRun(
        clients=[client.name for client in clients],
        crews=crews,
        method=method,
        rounds=rounds,
        server=server,
        seed=seed,
        device=device,
        precision=precision,
        standing=standing,
        ledger=ledger,
        deadline=deadline,
        checkpoint_seconds=checkpoint_seconds,
        watch=watch,
        withhold_counts=withhold_counts,
        begun=begun - standing.elapsed,
    )
    if (
        standing.round == 1
        and not standing.offers
        and (training.init == "shared" or objective.mutual is not None)
    ):
        standing.offers = [crew.first() for crew in architectures(crews)]
    if standing.round == 1 and initial is not None:
        standing.offers = [initial]
    result, ending = _walk(run, evaluate)
    record = _record(run, wanted, result, ending, evaluate, evaluated_on)
    if ledger is not None:
        if ending == "finished":
            ledger.finish(standing)
        else:
            run.save()
        ledger.folder.finish(result, record, federation_card)
    return Federated(result, standing.homes, record)


def federate_data(
    dataset: Dataset,
    partition: Partition,
    specs: Sequence[ModelSpec],
    method: AnyMethod,
    rounds: Rounds | None = None,
    *,
    public: Images | None = None,
    device: str = "cpu",
    **how: Any,
) -> Federated:
    """``federate`` the clients of a partition, measured on the test part of the data. ``specs``
    go round the clients.

    The server's images are those that the partition held out, without labels, unless others are
    given.
    """
    names = client_names(len(partition.clients))
    nets = {name: specs[place % len(specs)] for place, name in enumerate(names)}
    clients = share_out(dataset, partition, names)
    if public is None and len(partition.held_out):
        public = server_images(dataset.train.take(partition.held_out), "held out before the split")
    pixels, labels = to_pixels(dataset.test).to(device), torch.from_numpy(dataset.test.labels)

    def accuracy(model: Classifier) -> float:
        found = measure(
            model, pixels, labels, dataset.classes, model_classes=model.classes, device=device
        )
        return found.accuracy

    how = {"evaluate": accuracy, "evaluated_on": "the test part of the data", **how}
    return federate(
        clients,
        [nets[client.name] for client in clients],
        method,
        rounds,
        public=public,
        device=device,
        **how,
    )


def _walk(run: FederationRun, evaluate: Evaluate | None) -> tuple[Result, str]:
    """Round after round; the last result, and whether it was the last round's."""
    standing, result, longest = run.standing, None, 0.0
    if standing.model is not None:
        result = Result({standing.records[-1]["model"]: standing.model})
    try:
        while standing.round <= run.rounds.rounds:
            entered = time.monotonic()
            if entered + longest > run.deadline:
                raise TimeIsUp
            chosen, dropped = run.draw()
            sizes = [
                run.size_of(run.broadcast(crew)) for crew in run.crews
            ]  # found out while clients train
            run.train(chosen, dropped)
            trained = time.monotonic()
            remarks: tuple[str, ...] = ()
            try:
                result = run.fuse()
                remarks = result.remarks
            except NeedsError as error:
                if result is None:
                    raise
                remarks = (
                    f"Not fused: {'; '.join(error.problems) or error.what} The model stays as it was.",
                )
            fused = time.monotonic()
            run.count()
            down = sum(
                size.result() * sum(client.name in chosen for client in crew.clients)
                for crew, size in zip(run.crews, sizes, strict=True)
            )
            accuracies = _accuracies(run, result, evaluate)
            losses = [loss for loss in standing.losses.values() if loss is not None]
            standing.records.append(
                {
                    "round": standing.round,
                    "drawn": chosen,
                    "dropped": dropped,
                    "failed": dict(standing.failed),
                    "bytes_down": down,
                    "bytes_up": sum(standing.bytes_up.values()),
                    "model": next(iter(result.models)),
                    "accuracy": next(iter(accuracies.values()), None),
                    "accuracies": accuracies,
                    "home_accuracy": _home_accuracy(run, evaluate, chosen),
                    "loss": sum(losses) / len(losses) if losses else None,
                    "train_seconds": round(trained - entered, 3),
                    "fuse_seconds": round(fused - trained, 3),
                    "seconds": round(time.monotonic() - entered, 3),
                    "remarks": [*run.remarks(), *remarks],
                }
            )
            longest = max(longest, time.monotonic() - entered)
            standing.next_round()
            if (
                standing.round <= run.rounds.rounds
            ):  # the last result goes straight to the run folder
                run.between()
    except TimeIsUp:
        if result is None:
            raise RunError(
                f"Out of minutes in round {standing.round}: there is no model yet.",
                fix="go on by --resume, or give more minutes",
            ) from None
        return result, "deadline"
    assert result is not None, "at least one round was walked"
    return result, "finished"


def _accuracies(run: FederationRun, result: Result, evaluate: Evaluate | None) -> dict[str, float]:
    if evaluate is None:
        return {}
    return {
        name: evaluate(Classifier(model).to(run.device)) for name, model in result.models.items()
    }


def _home_accuracy(
    run: FederationRun, evaluate: Evaluate | None, names: Sequence[str]
) -> float | None:
    """Mean over this round's clients of the models that stay at home, in the rounds in which
    they are measured.
    """
    every = run.rounds.home_every
    if evaluate is None or not every or run.standing.round % every:
        return None
    found = list(_at_home(run, evaluate, names).values())
    return sum(found) / len(found) if found else None


def _at_home(run: FederationRun, evaluate: Evaluate, names: Sequence[str]) -> dict[str, float]:
    homes = {
        name: run.standing.homes[name]
        for name in names
        if DEPLOYED in run.standing.homes.get(name, {})
    }
    return {
        name: evaluate(Classifier(home[DEPLOYED]).to(run.device)) for name, home in homes.items()
    }


def _record(
    run: FederationRun,
    wanted: Mapping[str, Any],
    result: Result,
    ending: str,
    evaluate: Evaluate | None,
    evaluated_on: str | None,
) -> dict[str, Any]:
    rounds, plan = run.standing.records, run.rounds
    at_home = {} if evaluate is None else _at_home(run, evaluate, run.clients)
    exchanged = run.standing.offers[:1]
    size = (
        len(encode_broadcast(Broadcast({run.objective.travels: exchanged[0]})))
        if exchanged
        else None
    )
    return {
        **wanted,
        "task": {"classes": list(next(iter(result.models.values())).classes)},
        "device": run.device,
        "ending": ending,
        "seconds": round(time.monotonic() - run.begun, 3),
        "rounds": rounds,
        "bytes_up": sum(one["bytes_up"] for one in rounds),
        "bytes_down": sum(one["bytes_down"] for one in rounds),
        "bytes": running_bytes(rounds)[-1] if rounds else 0,
        "equation_6_bytes": None
        if size is None
        else communication_cost(len(run.clients), plan.fraction, len(rounds), size),
        "to_target": None if plan.target is None else to_target(rounds, plan.target),
        "accuracy": rounds[-1]["accuracy"],
        "accuracies": rounds[-1]["accuracies"],
        "home_accuracies": at_home,
        "home_accuracy": sum(at_home.values()) / len(at_home) if at_home else None,
        "evaluated_on": evaluated_on,
        "remarks": rounds[-1]["remarks"],
    }


def _check(
    crews: Sequence[Crew],
    method: AnyMethod,
    rounds: Rounds,
    training: LocalTraining,
    initial: Part | None,
    student: str | ModelSpec | None,
) -> None:
    """What would only fail after the first training."""
    objective = objective_of(method)
    problems = objective.problems(training)
    if student is not None and objective.mutual is not None:
        problems.append(
            f"student: it is the knowledge network, {objective.mutual.knowledge} (the method's setting knowledge)"
        )
    elif student is not None and not method.needs.student:
        problems.append(
            f"student: {method_name(method)} makes none, the clients' architectures decide"
        )
    if rounds.rounds > 1 and len({client.classes for crew in crews for client in crew.clients}) > 1:
        problems.append(
            "rounds: clients with different class lists cannot start from one model; only one round is possible"
        )
    if initial is not None and any(crew.travels != initial.spec for crew in architectures(crews)):
        problems.append(f"start: the model is {initial.spec}, which not all clients can start from")
    if problems:
        raise SettingsError("This federation cannot work:", problems=problems)


def _described(client: ClientData, spec: ModelSpec) -> dict[str, Any]:
    held = {"client": client.name, "net": str(spec), "images": len(client.labels)}
    return {**held, "sha256": hash_tensors([client.pixels, client.labels])}
