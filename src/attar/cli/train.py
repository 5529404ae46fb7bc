"""``attar train``: train clients' nets and write one upload file for each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attar.cli.arguments import (
    load_clients,
    parse_device,
    upload_paths,
)
from attar.cli.output import console, tables
from attar.cli.sums import sum_clients
from attar.cli.train_options import TrainOptions
from attar.core import ModelSpec, Part, Upload
from attar.errors import SettingsError
from attar.internal.text import list_some
from attar.models import parse_trainable_nets, resolve_start
from attar.privacy import describe_upload
from attar.tracking import Tracking, check_trackers, track
from attar.training import (
    ClientData,
    LocalStack,
    Verdict,
    check_reuse,
    explain_floor,
    judge,
    local_accuracy,
    make_private_stacks,
    make_stacks,
    train_stack,
    training_metadata,
    write_metadata,
)
from attar.uploads import Received, load_private, read_bundle, receive, write_bundle
from attar.uploads import sign as write_signature


def train(options: TrainOptions) -> None:
    """Train one client's net, or those of all clients of a partition, and write one upload file
    each.

    The same command continues an interrupted training. Existing uploads are kept, and refused if
    they were trained with other settings or images. With --backbone no net is trained: sums of the
    backbone's features are sent.
    """
    check_trackers(options.track)
    sums = options.sums.settings(options.training.clip, options.seed)
    if options.sums.backbone is not None and sums is not None:
        _refuse_training(options)
        sum_clients(
            options.sums.backbone,
            sums,
            data=options.data,
            partition=options.partition,
            client=options.client,
            out=options.out,
            device=parse_device(options.device),
            precision=options.precision,
            key=options.sign,
            json=options.json,
        )
        return
    statistics = options.statistics.settings()
    if options.sign is not None:
        load_private(options.sign)  # a key that cannot sign is an error before hours of training
    clients = load_clients(options.data, options.partition, options.client, quiet=options.json)
    owners = {owner.name: owner for _, owner in clients}
    paths = upload_paths(options.out, list(owners))
    make = _stack_maker(options, clients)
    stacks = make([owner for name, owner in owners.items() if not paths[name].exists()])
    reused = make([owner for name, owner in owners.items() if paths[name].exists()])
    unchecked = check_reuse(
        reused,
        paths,
        options.precision,
        withhold_counts=options.withhold_counts,
        statistics=statistics,
    )
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    validation: dict[str, float] = {}
    verdicts: dict[str, Verdict] = {}
    for number, stack in enumerate(stacks, 1):
        ending = f"-{number}-{stack.spec.arch}" if len(stacks) > 1 else ""
        name = f"{options.out.resolve().stem}{ending}"
        with track(
            options.track, name, "train", _settings(options, stack), console.note
        ) as tracking:
            accuracies, judged = _train(options, stack, paths, tracking)
        validation |= accuracies
        verdicts |= judged
    for stack in reused:
        uploads = [read_bundle(paths[owner.name]) for owner in stack.clients]
        verdicts |= _judge(stack, uploads, parse_device(options.device))
    received = receive(paths.values())
    if options.sign is not None:
        for upload_file in received:
            write_signature(upload_file, options.sign)
    trained = _Trained(
        uploads={file.path: file.upload for file in received},
        new=frozenset(owner.name for stack in stacks for owner in stack.clients),
        unchecked=unchecked,
        validation=validation,
        verdicts=verdicts,
        own_images=_accuracies_on_own_images(received, owners, parse_device(options.device)),
        has_decoders=any(stack.spec.kind == "cvae" for stack in stacks),
    )
    console.emit(trained.as_record(), lambda: _show(trained, options), json=options.json)


def _refuse_training(options: TrainOptions) -> None:
    """Refuse flags of training beside --backbone, which trains nothing."""
    given = options.training.settings()
    flags = [name for name in given if name != "clip"]
    plain = TrainOptions()
    if options.privacy != plain.privacy:
        flags.append("dp_epsilon")
    for name in (
        "net",
        "kind",
        "preset",
        "knowledge",
        "start",
        "withhold_counts",
        "statistics",
        "track",
    ):
        if getattr(options, name) != getattr(plain, name):
            flags.append(name)
    if flags:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in flags)
        raise SettingsError(
            f"{names}: has no meaning beside --backbone, which trains nothing and sends counts.",
            fix="leave this out, or leave --backbone out",
        )


def _refuse_uncovered(options: TrainOptions) -> None:
    """Refuse what would be sent past the noise of --dp-epsilon."""
    given = {"statistics": options.statistics.statistics, "knowledge": options.knowledge}
    if names := ", ".join(f"--{name}" for name, value in given.items() if value):
        raise SettingsError(
            f"{names}: looks at images past the noise of --dp-epsilon.", fix="leave it out"
        )


def _stack_maker(
    options: TrainOptions, clients: Sequence[tuple[int, ClientData]]
) -> Callable[[list[ClientData]], list[LocalStack]]:
    """A function that groups some of the clients for training.

    A client's place in the federation decides its net, whoever else trains.
    """
    initial = resolve_start(options.start, options.net)
    if initial is not None and options.net is None:
        specs = [initial.spec]
    else:
        specs = parse_trainable_nets(options.net, options.kind)
    if initial is None and options.training.epochs == 0:
        raise SettingsError(
            "--epochs 0: an untrained net would be sent, which knows nothing.",
            fix="give --epochs 1 or more, or --start MODEL to send a trained model as it is",
        )
    spec_of = {owner.name: specs[place % len(specs)] for place, owner in clients}
    privacy = options.privacy.settings()
    if privacy is not None:
        _refuse_uncovered(options)
    common: dict[str, Any] = {
        "seed": options.seed,
        "device": parse_device(options.device),
        "initial": initial,
    }

    def make(owners: list[ClientData]) -> list[LocalStack]:
        nets = [spec_of[owner.name] for owner in owners]
        if privacy is not None:
            return [*make_private_stacks(owners, nets, options.training, privacy, **common)]
        return make_stacks(
            owners,
            nets,
            options.training,
            **common,
            preset=options.preset,
            knowledge=None if options.knowledge is None else ModelSpec.parse(options.knowledge),
            suited=options.defaults == "suited",
        )

    return make


def _train(
    options: TrainOptions, stack: LocalStack, paths: Mapping[str, Path], tracking: Tracking
) -> tuple[dict[str, float], dict[str, Verdict]]:
    """Train one stack and write its uploads; validation accuracies and verdicts by client."""

    def save_deployed(states: dict[str, dict[str, Part]]) -> None:
        for name, parts in states.items():
            write_bundle(options.deploy / f"{name}.attar", Upload(name, parts, 1))

    statistics = options.statistics.settings()
    first = paths[stack.clients[0].name]
    title = f"{stack.spec}, {len(stack.clients)} client{'s' if len(stack.clients) > 1 else ''}"
    if not options.json and (words := explain_floor(stack, options.training, options.preset)):
        console.say(words)
    with console.progress(title, quiet=options.json) as watch:
        uploads, validation = train_stack(
            stack,
            checkpoint=first.with_name(f".{first.stem}.training"),
            watch=watch,
            precision=options.precision,
            withhold_counts=options.withhold_counts,
            statistics=statistics,
            save_client_state=None if options.knowledge is None else save_deployed,
            on_point=tracking.log_point,
        )
    verdicts = _judge(stack, uploads, parse_device(options.device))
    result = {f"validation of {name}": value for name, value in validation.items()}
    tracking.describe_end({**result, "clients": len(uploads)})
    for owner, upload in zip(stack.clients, uploads, strict=True):
        path = paths[upload.client]
        write_bundle(path, upload)
        metadata = training_metadata(stack, owner, options.precision, statistics)
        write_metadata(path, metadata, verdicts.get(owner.name))
    return validation, verdicts


def _settings(options: TrainOptions, stack: LocalStack) -> dict[str, Any]:
    """What a stack is trained with, for trackers."""
    return {
        "net": stack.spec.arch,
        "clients": len(stack.clients),
        "images": sum(len(client.labels) for client in stack.clients),
        **asdict(stack.training),
        "seed": options.seed,
        "precision": options.precision,
        "device": stack.device,
    }


def _judge(stack: LocalStack, uploads: Sequence[Upload], device: str) -> dict[str, Verdict]:
    """The verdicts on clients that send a net that classifies, by name."""
    return {
        owner.name: judge(net, owner, stack.training, seed=stack.seed, device=device)
        for owner, upload in zip(stack.clients, uploads, strict=True)
        if (net := upload.parts.get("classifier") or upload.parts.get("knowledge")) is not None
    }


def _accuracies_on_own_images(
    received: Sequence[Received], owners: Mapping[str, ClientData], device: str
) -> dict[str, float]:
    """Of each client that sends a classifier, its accuracy on the client's own images."""
    return {
        file.upload.client: local_accuracy(
            file.upload.parts["classifier"], owners[file.upload.client], device=device
        )
        for file in received
        if "classifier" in file.upload.parts
    }


@dataclass(frozen=True)
class _Trained:
    """What ``attar train`` prints.

    Attributes:
        uploads: All uploads by file, those of earlier runs included.
        new: The clients that were trained now.
        unchecked: Uploads of earlier runs whose settings are unknown.
        validation: Accuracy on held-out images by client, where some were held out.
        verdicts: What each classifier has learned, by client.
        own_images: Accuracy on the client's own images, of classifiers.
        has_decoders: Whether a decoder was trained now.
    """

    uploads: dict[Path, Upload]
    new: frozenset[str]
    unchecked: list[Path]
    validation: dict[str, float]
    verdicts: dict[str, Verdict]
    own_images: dict[str, float]
    has_decoders: bool

    def as_record(self) -> list[dict[str, Any]]:
        """An entry for each upload."""
        return [
            {
                **describe_upload(upload, path.stat().st_size),
                "file": str(path),
                "trained": upload.client in self.new,
                "own_images": self.own_images.get(upload.client),
                "validation": self.validation.get(upload.client),
                "verdict": verdict.as_json()
                if (verdict := self.verdicts.get(upload.client))
                else None,
            }
            for path, upload in self.uploads.items()
        ]


def _show(trained: _Trained, options: TrainOptions) -> None:
    uploads = trained.uploads
    tables.show_trained(uploads, trained.validation, trained.own_images, trained.verdicts)
    if options.statistics.settings() is not None:
        tables.show_missing_statistics(list(uploads.values()))
    names = [upload.client for upload in uploads.values()]
    if reused := [name for name in names if name not in trained.new]:
        console.say(
            f"Existing uploads are kept ({list_some(reused)}); delete them to train them anew."
        )
    if trained.unchecked:
        files = list_some([str(path) for path in trained.unchecked])
        console.say(
            f"No training metadata beside these uploads, so their settings are unknown: {files}"
        )
    tables.show_verdicts(list(trained.verdicts.values()))
    if trained.new:
        console.say(f"Written to {next(iter(uploads)) if len(uploads) == 1 else options.out}")
    if "client" in trained.new:
        console.say(
            "Upload is named 'client' (default); names must be unique at the server. "
            "Use --client NAME."
        )
    if trained.has_decoders:
        console.say(
            "Before you send a decoder, check what it reveals: "
            "attar privacy FILE with the same data."
        )
    if options.privacy.dp_epsilon is not None:
        console.say("The noise covers what is written, not the accuracies shown here: keep them.")
    if options.knowledge is not None:
        console.say(f"The classifiers stay in {options.deploy}")
