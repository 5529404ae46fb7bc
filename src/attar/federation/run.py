"""Rounds of local training and fusion; one-shot is one round.

Clients of one architecture train as one stack, whose tensors stay on the device from round to
round. What a client keeps between rounds (a deployed model, a control variate) is its client
state; what is exchanged is counted as the file that it would be. With ``out`` everything is saved
now and then, also inside a training and inside a fusion: killed anywhere and resumed, the
federation ends in the same bits.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Never

import torch

from attar.core import (
    AnyMethod,
    ModelSpec,
    Part,
    Result,
    Server,
    Upload,
)
from attar.data.dataset import Dataset
from attar.data.partition import Partition
from attar.data.tensors import to_pixels
from attar.errors import SettingsError
from attar.federation.communication import sampled_clients
from attar.federation.options import Rounds
from attar.federation.round import FederationRun, one_group_per_architecture
from attar.federation.state import FederationFolder, FederationState
from attar.federation.walk import Walk
from attar.fusion import ServerOptions, describe_images, server_for
from attar.internal.tensors import hash_tensors
from attar.methods import method_name
from attar.models import Classifier, Evaluation, federation_card
from attar.models import evaluate as evaluate_images
from attar.running import RunOptions, merge_options, refuse_keywords
from attar.settings import flatten
from attar.training import (
    ClientData,
    ClientGroup,
    LocalTraining,
    client_names,
    get_objective,
    group_clients,
    server_images,
    share_out,
)
from attar.version import __version__


@dataclass(frozen=True)
class Federated:
    """What a federation delivers.

    Attributes:
        result: The method's result of the last round.
        client_state: What each client keeps: a deployed model, a control variate, a decoder.
        record: The run as it went, as JSON.
        evaluations: Of each model of the result; empty where nothing was evaluated.
    """

    result: Result
    client_state: Mapping[str, Mapping[str, Part]]
    record: Mapping[str, Any]
    evaluations: Mapping[str, Evaluation] = field(default_factory=dict)

    @property
    def model(self) -> Classifier:
        """The headline model, the first of the result, ready to classify."""
        return Classifier(next(iter(self.result.models.values())))


def federate(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    method: AnyMethod,
    rounds: Rounds | None = None,
    *,
    training: LocalTraining | None = None,
    weak: Mapping[str, Any] | None = None,
    withhold_counts: bool = False,
    server: ServerOptions | None = None,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    options: RunOptions | None = None,
    **unknown: Never,
) -> Federated:
    """Run a federation: clients train, upload and are fused, round after round.

    Args:
        clients: Their images.
        specs: The net of each client.
        method: A method with its settings.
        rounds: How many rounds, and who takes part; None: one round of all clients.
        training: How classifiers train in each round.
        weak: What differs from the paper's settings in the training of CVAEs.
        withhold_counts: Clients do not send their label counts.
        server: What the server has.
        seed: Of everything that is drawn.
        device: Where clients train and uploads are fused.
        out: Folder for the model, the record, and the checkpoint while the run lasts.
        options: Everything else that says how the run is driven. ``minutes`` ends it in time with
            the model of the last whole round; ``evaluate`` measures that of every round, and the
            models that the clients keep.

    Raises:
        SettingsError: These clients, method and options do not go together.
        NeedsError: The method cannot work with the uploads of the first round.
        RunError: ``out`` holds another run, or there is no model when the minutes are over.
        Stopped: Ctrl-C; what was done is saved in ``out``.
    """
    refuse_keywords("federate", unknown, options=RunOptions, server=ServerOptions)
    options = merge_options(options, out=out)
    rounds = rounds or Rounds()
    training = training or LocalTraining()
    server = server or ServerOptions()
    groups = group_clients(
        clients,
        specs,
        training,
        get_objective(method),
        capacity=sampled_clients(len(clients), rounds.fraction),
        seed=seed,
        device=device,
        cvae_settings=weak,
        initial=server.initial,
    )
    _check(groups, method, rounds, training, server)
    server = replace(server, student=_student(specs, method, server))
    description = {
        "method": method_name(method),
        "settings": flatten(method),
        "plan": asdict(rounds),
        "training": asdict(training),
        "weak": dict(weak or {}),
        **_describe_server(server),
        "withhold_counts": withhold_counts,
        "seed": seed,
        "precision": server.precision,
        "clients": [_describe_client(one, spec) for one, spec in zip(clients, specs, strict=True)],
        "attar": __version__,
    }
    begun = time.monotonic()
    folder = None if options.out is None else FederationFolder(Path(options.out))
    state = FederationState()
    if folder is not None:
        state = folder.begin(description, resume=options.resume)
    run = FederationRun(
        clients=[client.name for client in clients],
        groups=groups,
        method=method,
        rounds=rounds,
        server=_server_maker(server, seed, device),
        seed=seed,
        device=device,
        precision=server.precision,
        state=state,
        folder=folder,
        options=options,
        deadline=float("inf") if options.minutes is None else begun + 60 * options.minutes,
        begun=begun - state.elapsed,
        withhold_counts=withhold_counts,
    )
    _set_start_models(run, training, server.initial)
    walk = Walk(run)
    result = walk.run_rounds()
    record = walk.describe(description, result)
    _finish(walk, result, record)
    return Federated(
        result=result,
        client_state=state.client_state,
        record=record,
        evaluations=walk.evaluations,
    )


def _finish(walk: Walk, result: Result, record: Mapping[str, Any]) -> None:
    """Write the models and the record; of an unfinished federation also a checkpoint."""
    run = walk.run
    if run.folder is None:
        return
    if walk.ending == "finished":
        run.folder.finish(run.state)
    else:
        run.save()
    run.folder.run_folder.finish(result, record, federation_card, for_people=run.options.for_people)


def federate_data(
    dataset: Dataset,
    partition: Partition,
    specs: Sequence[ModelSpec],
    method: AnyMethod,
    rounds: Rounds | None = None,
    *,
    server: ServerOptions | None = None,
    device: str = "cpu",
    options: RunOptions | None = None,
    **keywords: Any,
) -> Federated:
    """Run a federation of the clients of a partition, evaluated on the test part of the data.

    Args:
        dataset: The images.
        partition: Which client holds which of them.
        specs: Nets; they go round the clients.
        method: A method with its settings.
        rounds: How many rounds, and who takes part.
        server: Its images are those that the partition held out, without labels, unless others
            are given.
        device: Where clients train, uploads are fused and models are evaluated.
        options: How the run is driven; ``evaluate`` is set unless given.
        keywords: Further parameters of ``federate``.
    """
    server = server or ServerOptions()
    options = options or RunOptions()
    names = client_names(len(partition.clients))
    nets = {name: specs[place % len(specs)] for place, name in enumerate(names)}
    clients = share_out(dataset, partition, names)
    if server.public is None and len(partition.held_out):
        held_out = dataset.train.take(partition.held_out)
        server = replace(server, public=server_images(held_out, "held out before the split"))
    pixels = to_pixels(dataset.test).to(device)
    labels = torch.from_numpy(dataset.test.labels)

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_images(
            model, pixels, labels, dataset.classes, model_classes=model.classes, device=device
        )

    options = replace(
        options,
        evaluate=options.evaluate or evaluate,
        evaluated_on=options.evaluated_on or "the test part of the data",
    )
    return federate(
        clients,
        [nets[client.name] for client in clients],
        method,
        rounds,
        server=server,
        device=device,
        options=options,
        **keywords,
    )


def _server_maker(
    options: ServerOptions, seed: int, device: str
) -> Callable[[Sequence[Upload]], Server]:
    """Return a function that makes the server for a round's uploads."""

    def make_server(uploads: Sequence[Upload]) -> Server:
        return server_for(
            uploads,
            student=options.student,
            public=options.public,
            seed=seed,
            device=device,
            precision=options.precision,
            compile=options.compile,
        )

    return make_server


def _student(
    specs: Sequence[ModelSpec], method: AnyMethod, server: ServerOptions
) -> str | ModelSpec | None:
    """The student: the method's knowledge network, else the one given, else the commonest net."""
    objective = get_objective(method)
    if objective.mutual is not None:
        return objective.mutual.knowledge
    classifiers = [spec for spec in specs if spec.kind == "classifier"]
    if server.student is None and classifiers:
        return max(classifiers, key=classifiers.count)
    return server.student


def _set_start_models(run: FederationRun, training: LocalTraining, initial: Part | None) -> None:
    """Set what clients start from in the first round, where they start from one model."""
    state = run.state
    if state.round > 1:
        return
    shared = training.init == "shared" or run.objective.mutual is not None
    if shared and not state.start_models:
        state.start_models = [
            group.initial_model() for group in one_group_per_architecture(run.groups)
        ]
    if initial is not None:
        state.start_models = [initial]


def _check(
    groups: Sequence[ClientGroup],
    method: AnyMethod,
    rounds: Rounds,
    training: LocalTraining,
    server: ServerOptions,
) -> None:
    """Refuse what would only fail after the first training."""
    objective = get_objective(method)
    problems = objective.problems(training)
    if server.student is not None and objective.mutual is not None:
        problems.append(
            f"student: it is the knowledge network, {objective.mutual.knowledge} "
            "(the method's setting knowledge)"
        )
    elif server.student is not None and not method.needs.student:
        problems.append(
            f"student: {method_name(method)} makes none, the clients' architectures decide"
        )
    if (
        rounds.rounds > 1
        and len({client.classes for group in groups for client in group.clients}) > 1
    ):
        problems.append(
            "rounds: clients with different class lists cannot start from one model; only one "
            "round is possible"
        )
    initial = server.initial
    exchanged = one_group_per_architecture(groups)
    if initial is not None and any(group.exchanged_spec != initial.spec for group in exchanged):
        problems.append(f"start: the model is {initial.spec}, which not all clients can start from")
    if problems:
        raise SettingsError("This federation cannot work:", problems=problems)


def _describe_server(server: ServerOptions) -> dict[str, Any]:
    return {
        "student": None if server.student is None else str(server.student),
        "public": describe_images(server.public),
        "initial": None if server.initial is None else server.initial.fingerprint(),
    }


def _describe_client(client: ClientData, spec: ModelSpec) -> dict[str, Any]:
    return {
        "client": client.name,
        "net": str(spec),
        "images": len(client.labels),
        "sha256": hash_tensors([client.pixels, client.labels]),
    }
