"""From clients and their nets to trained uploads: clients are grouped and trained in stacks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attar.core import ModelSpec, Part, Upload
from attar.errors import SettingsError
from attar.running import Watch
from attar.training.classifier import ClassifierTraining, fresh_preprocess
from attar.training.clients import (
    ClientData,
    check_clients,
    check_initial,
    count_training_images,
    group_by_stack,
)
from attar.training.cvae import (
    DEFAULTS,
    CvaeTraining,
    Preset,
    TrainingDefaults,
    paper_training,
)
from attar.training.flags import TrainingFlags
from attar.training.groups import group_clients
from attar.training.loop import History, LocalStack, train_stacks
from attar.training.objectives import Mutual, Objective
from attar.training.options import LocalTraining
from attar.training.pairs import KNOWLEDGE
from attar.training.resident import RoundInput
from attar.training.suggest import suggest_training

# --- training -------------------------------------------------------------------------------------


def train_classifiers(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec | str],
    training: LocalTraining | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    initial: Part | None = None,
    withhold_counts: bool = False,
    checkpoint: Path | None = None,
    minutes: float | None = None,
    watch: Watch | None = None,
    history: History | None = None,
) -> list[Upload]:
    """Train every client's classifier to the end.

    Clients with the same architecture, image shape, classes and settings train together as one
    stack.

    Args:
        clients: Their data; no two have the same name.
        specs: The net of each client, such as "lenet5" or "mlp:hidden=32".
        training: The hyper-parameters; what ``suggest_training`` says of each client unless given.
        seed: Decides everything that is random.
        device: Such as "cpu" or "cuda".
        precision: "fp32", "tf32" or "bf16".
        initial: A model to start from; None for fresh nets.
        withhold_counts: Whether to leave the number of images of each class out of the uploads.
        checkpoint: A folder for unfinished training: the same call continues from it. It is empty
            again at the end. None: nothing is saved.
        minutes: After so many, what is done is saved and training ends. None: no limit.
        watch: Called with a ``ProgressReport`` (phase, step, share done, metrics) a few times a
            second.
        history: A list that the metrics of each epoch are appended to.

    Returns:
        One upload for each client, in the clients' order.

    Raises:
        DataError: A client has no images, or labels that are no indices of its classes.
        SpecError: A net is no classifier or does not fit the images, or ``initial`` does not fit.
        DivergedError: A loss is NaN or infinite.
        OutOfTime: The minutes are over.
        Stopped: By Ctrl-C.
    """
    nets = [ModelSpec.parse(spec) if isinstance(spec, str) else spec for spec in specs]
    uploads = train_stacks(
        stack_classifiers(clients, nets, training, seed=seed, device=device, initial=initial),
        checkpoint=checkpoint,
        watch=watch,
        precision=precision,
        minutes=minutes,
        withhold_counts=withhold_counts,
        history=history,
    )
    return [uploads[client.name] for client in clients]


def train_cvaes(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec | str],
    settings: Mapping[str, Any] | None = None,
    *,
    preset: Preset = "auto",
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    withhold_counts: bool = False,
    checkpoint: Path | None = None,
    minutes: float | None = None,
    watch: Watch | None = None,
    history: History | None = None,
) -> list[Upload]:
    """Train every client's conditional VAE to the end, of which it sends the decoder.

    Args:
        clients: Their data; no two have the same name.
        specs: The net of each client, such as "cvae-small".
        settings: Values of ``LocalTraining`` in place of those of FedMHO's Table 3.
        preset: A column of that table; "auto" chooses it by the net.
        seed: Decides everything that is random.
        device: Such as "cpu" or "cuda".
        precision: "fp32", "tf32" or "bf16".
        withhold_counts: Whether to leave the number of images of each class out of the uploads.
        checkpoint: As for ``train_classifiers``.
        minutes: As for ``train_classifiers``.
        watch: As for ``train_classifiers``.
        history: As for ``train_classifiers``.

    Returns:
        One upload for each client, in the clients' order.

    Raises:
        DataError: A client has no images, or labels that are no indices of its classes.
        SpecError: A net is no CVAE or does not fit the images.
        DivergedError, OutOfTime, Stopped: As for ``train_classifiers``.
    """
    nets = [ModelSpec.parse(spec) if isinstance(spec, str) else spec for spec in specs]
    uploads = train_stacks(
        stack_cvaes(clients, nets, settings, preset=preset, seed=seed, device=device),
        checkpoint=checkpoint,
        watch=watch,
        precision=precision,
        minutes=minutes,
        withhold_counts=withhold_counts,
        history=history,
    )
    return [uploads[client.name] for client in clients]


# --- stacks ---------------------------------------------------------------------------------------


def stack_classifiers(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining | Sequence[LocalTraining] | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    initial: Part | None = None,
) -> list[ClassifierTraining]:
    """Return the trainings of classifiers: of each architecture, image shape, class list and
    settings, with as many epochs as their ``min_steps`` asks for.

    Args:
        clients: Their data.
        specs: The architecture of each client.
        training: The hyper-parameters, of all clients or of each; None: as they suit each.
        seed: Decides everything that is random.
        device: Where they train.
        initial: A model to start from; None for fresh nets.
    """
    groups = group_by_stack(clients, specs)
    if initial is not None:
        starters = [
            (client.name, spec) for (spec, _, _), members in groups.items() for client in members
        ]
        check_initial(initial, starters)
    if training is None:
        trainings = [
            suggest_training(spec, len(client.labels), from_start=initial is not None)
            for client, spec in zip(clients, specs, strict=True)
        ]
    elif isinstance(training, LocalTraining):
        trainings = [training] * len(clients)
    else:
        trainings = list(training)
    own = _fit_epochs(clients, trainings)
    stacks = []
    for (spec, shape, _), everybody in groups.items():
        for settings, members in _by_training(everybody, own).items():
            if initial is None:
                preprocess = fresh_preprocess(spec, shape, settings)
            else:
                preprocess = initial.preprocess
            stack = ClassifierTraining(
                clients=members,
                spec=spec,
                preprocess=preprocess,
                training=settings,
                seed=seed,
                device=device,
                initial=initial,
            )
            stacks.append(stack)
    return stacks


def _fit_epochs(
    clients: Sequence[ClientData], trainings: Sequence[LocalTraining]
) -> dict[str, LocalTraining]:
    """Return each client's training with its number of epochs, by name."""
    return {
        client.name: training.fit_epochs(count_training_images(client, training.validation))
        for client, training in zip(clients, trainings, strict=True)
    }


def _by_training(
    clients: Sequence[ClientData], own: Mapping[str, LocalTraining]
) -> dict[LocalTraining, list[ClientData]]:
    """Group clients whose settings are the same."""
    groups: dict[LocalTraining, list[ClientData]] = {}
    for client in clients:
        groups.setdefault(own[client.name], []).append(client)
    return groups


def stack_cvaes(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    settings: Mapping[str, Any] | None = None,
    *,
    preset: Preset = "auto",
    seed: int = 0,
    device: str = "cpu",
    defaults: TrainingDefaults = DEFAULTS,
) -> list[CvaeTraining]:
    """Return the trainings of CVAEs, one for each architecture, image shape and class list.

    Args:
        clients: Their data.
        specs: The architecture of each client.
        settings: Values of ``LocalTraining`` in place of those of ``paper_training``.
        preset: A column of FedMHO's Table 3.
        seed: Decides everything that is random.
        device: Where they train.
        defaults: What ``paper_training`` chooses from; a recipe may name those of a release.
    """
    stacks = []
    for (spec, shape, classes), members in group_by_stack(clients, specs).items():
        paper = paper_training(spec, shape, len(classes), preset, defaults)
        training = replace(paper, **(settings or {}))
        own = _fit_epochs(members, [training] * len(members))
        stacks += [
            CvaeTraining(clients=group, spec=spec, training=fitted, seed=seed, device=device)
            for fitted, group in _by_training(members, own).items()
        ]
    return stacks


def make_stacks(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    flags: TrainingFlags,
    *,
    preset: Preset,
    seed: int,
    device: str,
    initial: Part | None,
    knowledge: ModelSpec | None = None,
    defaults: TrainingDefaults = DEFAULTS,
    suited: bool = False,
) -> list[LocalStack]:
    """Return the trainings of clients whose nets say by their kind how they are trained.

    Args:
        clients: Their data.
        specs: The architecture of each client, a classifier or a CVAE.
        flags: The hyper-parameters; each kind of net has defaults of its own.
        preset: Of CVAEs, a column of FedMHO's Table 3.
        seed: Decides everything that is random.
        device: Where they train.
        initial: A model to start from; None for fresh nets.
        knowledge: A net that is trained beside each classifier and sent in its place; ``initial``
            is then its start. None: classifiers are sent.
        defaults: Hyper-parameters that ``flags`` leave open.
        suited: Whether those of classifiers are chosen for each client by ``suggest_training``.

    Raises:
        SettingsError: There are CVAEs together with ``initial`` or ``knowledge``.
    """
    pairs = list(zip(clients, specs, strict=True))
    cvaes = [(client, spec) for client, spec in pairs if spec.kind == "cvae"]
    classifiers = [(client, spec) for client, spec in pairs if spec.kind != "cvae"]
    if cvaes and knowledge is not None:
        raise SettingsError(
            "A CVAE cannot be trained beside a knowledge network.",
            fix="leave --knowledge out, or train classifiers",
        )
    if cvaes and initial is not None:
        raise SettingsError(
            "A CVAE cannot start from a given model, since only decoders are exchanged.",
            fix="leave --start out",
        )
    stacks: list[LocalStack] = []
    if classifiers:
        members = [client for client, _ in classifiers]
        nets = [spec for _, spec in classifiers]
        if suited:
            trainings = [
                suggest_training(
                    spec,
                    len(client.labels),
                    flags.settings(),
                    from_start=initial is not None,
                    early_stopping=knowledge is None,
                )
                for client, spec in classifiers
            ]
        else:
            trainings = [replace(defaults.classifier, **flags.settings())] * len(members)
        if knowledge is None:
            stacks += stack_classifiers(
                members, nets, trainings, seed=seed, device=device, initial=initial
            )
        else:
            stacks += _stack_mutual(
                members, nets, trainings, knowledge, seed=seed, device=device, initial=initial
            )
    if cvaes:
        members = [client for client, _ in cvaes]
        nets = [spec for _, spec in cvaes]
        stacks += stack_cvaes(
            members,
            nets,
            flags.settings(),
            preset=preset,
            seed=seed,
            device=device,
            defaults=defaults,
        )
    return stacks


def _stack_mutual(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    trainings: Sequence[LocalTraining],
    knowledge: ModelSpec,
    *,
    seed: int,
    device: str,
    initial: Part | None,
) -> list[LocalStack]:
    """Return the trainings of classifiers with a knowledge network beside them."""
    check_clients(clients)
    own = _fit_epochs(clients, trainings)
    spec_of = {client.name: spec for client, spec in zip(clients, specs, strict=True)}
    round_input = RoundInput(broadcast={} if initial is None else {KNOWLEDGE: initial})
    stacks = []
    for training, members in _by_training(clients, own).items():
        groups = group_clients(
            members,
            [spec_of[client.name] for client in members],
            replace(training, min_steps=0),  # its epochs are enough
            Objective(mutual=Mutual(knowledge)),
            capacity=len(members),
            seed=seed,
            device=device,
            initial=initial,
        )
        stacks += [
            group.make_stack([client.name for client in group.clients], round_input)
            for group in groups
        ]
    return stacks
