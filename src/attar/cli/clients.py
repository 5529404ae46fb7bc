"""The client's verbs: deal out data, train, pack, look at what would be sent, sign it."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from attar.blocks.execution import Precision
from attar.cli.app import Device, Json, Seed, app
from attar.cli.arguments import (
    load_clients,
    load_source,
    parse_device,
    parse_image_shape,
    parse_means,
    parse_per_channel,
    parse_whole_numbers,
)
from attar.cli.output import console, tables
from attar.core import ModelSpec, Part, Upload
from attar.data.partition import label_counts
from attar.data.partition import partition as deal
from attar.data.partition_file import write_partition
from attar.data.picture import draw_partition
from attar.errors import DataError, RunError, SettingsError
from attar.internal.files import write_atomic
from attar.internal.text import list_some
from attar.models import parse_trainable_nets, resolve_start
from attar.packing import load_net
from attar.packing import pack as run_pack
from attar.privacy import describe_upload
from attar.training import (
    STATISTICS,
    ClientData,
    LocalStack,
    Preset,
    StatisticsFlags,
    TrainingFlags,
    add_statistics,
    check_reuse,
    client_names,
    local_accuracy,
    make_client,
    make_stacks,
    train_stack,
    training_metadata,
    write_metadata,
)
from attar.uploads import load_private, read_bundle, receive, write_bundle
from attar.uploads import sign as write_signature

DEFAULT_TRAINING, NO_STATISTICS = TrainingFlags(), StatisticsFlags()


@app.command
def partition(
    data: Positional[str],
    /,
    *,
    rule: str = "dirichlet:0.3",
    clients: int = 5,
    out: Path = Path("partition.json"),
    seed: Seed = 0,
    hold_out: float = 0.0,
    min_size: int = 0,
    leave_out: str | None = None,
    picture: Path | None = None,
    json: Json = False,
) -> None:
    """Decide who holds which training image of a data source, and write that as a file.

    Args:
        data: A data source such as fashion-mini, folder:DIR or npz:FILE (see `attar ls data`).
        rule: iid, dirichlet:A, dirichlet-equal:A, dirichlet-client:A, classes:C, disjoint:C or domain; each with +lognormal:S
            for uneven sizes.
        clients: How many clients.
        out: The partition file.
        hold_out: A fraction of the images set aside, without labels, for the server (FedDF).
        min_size: The fewest images a client may have.
        leave_out: The name of a domain that no client gets.
        picture: Where the SVG of the partition goes; beside --out unless given.
    """
    drawn = picture or out.with_suffix(".svg")
    if drawn == out:
        raise SettingsError(
            f"{out} would be both the partition and its picture.",
            fix="name another --out, such as parts.json",
        )
    dataset = load_source(data, quiet=json)
    left = None
    if leave_out is not None:
        if leave_out not in dataset.domains:
            known = ", ".join(dataset.domains) or "none"
            raise DataError(f"{data} has no domain {leave_out!r}.", fix=f"its domains: {known}")
        left = dataset.domains.index(leave_out)
    labels = dataset.train.labels
    dealt = deal(
        labels,
        rule,
        clients,
        seed,
        hold_out=hold_out,
        min_size=min_size,
        domains=dataset.train.domains,
        leave_out=left,
    )
    write_partition(out, dealt, data, labels)
    counts = label_counts(labels, dealt.clients, len(dataset.classes))
    names = client_names(clients)
    write_atomic(
        drawn, draw_partition(counts, dataset.classes, names, f"{data}, {rule}, seed {seed}")
    )
    if json:
        console.show_json(
            {
                "data": data,
                "rule": rule,
                "seed": seed,
                "file": str(out),
                "picture": str(drawn),
                "held_out": len(dealt.held_out),
                "left_out": len(dealt.left_out),
                "classes": list(dataset.classes),
                "clients": [
                    {"client": name, "label_counts": row.tolist()}
                    for name, row in zip(names, counts, strict=True)
                ],
            }
        )
        return
    tables.show_partition(f"{data}, {rule}, seed {seed}", names, counts, dataset.classes)
    if len(dealt.held_out):
        console.say(f"{len(dealt.held_out):,} images are held out for the server, without labels.")
    console.say(f"Partition: {out}   picture: {drawn}")


@app.command
def train(
    data: Annotated[
        str | None,
        arg(
            help="A data source; all its training images belong to this client (of a folder without train/ and test/ "
            "four fifths of each class)."
        ),
    ] = None,
    *,
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None,
    client: Annotated[
        str,
        arg(
            help="Numbers in the partition, such as 3 or 0-2,4, or all; with --data, the client's name."
        ),
    ] = "all",
    kind: Annotated[
        Literal["classifier", "cvae"] | None,
        arg(
            help="A classifier, or an autoencoder of which the decoder is sent; what --net says unless given."
        ),
    ] = None,
    net: Annotated[
        str | None,
        arg(
            help="Architecture; several, separated by commas, go round the clients. That of --start, or lenet5 or cvae-small, "
            "unless given. hf:FOLDER is a Hugging Face ViT or DeiT, with its weights."
        ),
    ] = None,
    preset: Annotated[
        Preset,
        arg(help="Of a CVAE: the column of FedMHO's Table 3; by the net's form unless given."),
    ] = "auto",
    knowledge: Annotated[
        str | None,
        arg(
            help="FedKEM: a small net trained beside each classifier and sent in its place; what --start begins."
        ),
    ] = None,
    deploy: Annotated[
        Path, arg(help="Where the classifiers stay that a knowledge network is sent for.")
    ] = Path("deployed"),
    out: Annotated[
        Path, arg(help="The upload: a .attar file, or a folder for one file per client.")
    ] = Path("uploads"),
    start: Annotated[
        Path | None,
        arg(
            help="A model folder, upload or hf:FOLDER whose weights training starts from; for other classes, all but its head."
        ),
    ] = None,
    withhold_counts: Annotated[
        bool, arg(help="Do not tell the server how many examples of each class there are.")
    ] = False,
    sign: Annotated[
        Path | None, arg(help="A private key (`attar keygen`) that signs what is written.")
    ] = None,
    training: OmitArgPrefixes[TrainingFlags] = DEFAULT_TRAINING,
    statistics: OmitArgPrefixes[StatisticsFlags] = NO_STATISTICS,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "fp32",
    json: Json = False,
) -> None:
    """Train one client's net, or those of all clients of a partition, and write one upload file
    each.

    A training that was interrupted goes on when the same command is given again; uploads that
    are there already are kept, and refused where they are those of another training.
    """
    measured = statistics.settings()
    if sign is not None:
        load_private(sign)  # a key that cannot sign is said before hours of training
    clients = load_clients(data, partition, client, quiet=json)
    single = out.suffix == ".attar"
    if out.suffix in (".pt", ".pth", ".safetensors", ".onnx", ".zip"):
        raise SettingsError(
            f"--out {out}: an upload ends in .attar.",
            fix=f"--out {out.with_suffix('.attar')}, or a folder",
        )
    if single and len(clients) > 1:
        raise DataError(
            f"{out} is one file, but {len(clients)} clients train.",
            fix="name a folder with --out, or one --client",
        )
    initial = resolve_start(start, net)
    specs = (
        [initial.spec] if initial is not None and net is None else parse_trainable_nets(net, kind)
    )
    chosen = {one.name: specs[place % len(specs)] for place, one in clients}
    paths = {one.name: out if single else out / f"{one.name}.attar" for _, one in clients}
    missing = [one for _, one in clients if not paths[one.name].exists()]
    validation: dict[str, float] = {}

    def stacks_of(some: list[ClientData]) -> list[LocalStack]:
        return make_stacks(
            some,
            [chosen[one.name] for one in some],
            training,
            preset=preset,
            seed=seed,
            device=parse_device(device),
            initial=initial,
            knowledge=None if knowledge is None else ModelSpec.parse(knowledge),
        )

    stacks = stacks_of(missing)
    there = stacks_of([one for _, one in clients if paths[one.name].exists()])
    unknown = check_reuse(
        there, paths, precision, withhold_counts=withhold_counts, statistics=measured
    )
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)

    def stay(homes: dict[str, dict[str, Part]]) -> None:
        for name, parts in homes.items():
            write_bundle(deploy / f"{name}.attar", Upload(name, parts, 1))

    for stack in stacks:
        first = paths[stack.clients[0].name]
        title = f"{stack.spec}, {len(stack.clients)} client{'s' if len(stack.clients) > 1 else ''}"
        with console.progress(title, quiet=json) as watch:
            uploads, accuracies = train_stack(
                stack,
                checkpoint=first.with_name(f".{first.stem}.training"),
                watch=watch,
                precision=precision,
                withhold_counts=withhold_counts,
                statistics=measured,
                save_client_state=stay if knowledge is not None else None,
            )
        for owner, upload in zip(stack.clients, uploads, strict=True):
            write_bundle(paths[upload.client], upload)
            write_metadata(
                paths[upload.client], training_metadata(stack, owner, precision, measured)
            )
        validation |= accuracies
    trained = {one.name for one in missing}
    received = receive(paths.values())
    if sign is not None:
        for one in received:
            write_signature(one, sign)
    written = {one.path: one.upload for one in received}
    owners = {owner.name: owner for _, owner in clients}
    home = {
        one.upload.client: local_accuracy(
            one.upload.parts["classifier"], owners[one.upload.client], device=parse_device(device)
        )
        for one in received
        if "classifier" in one.upload.parts
    }
    if json:
        console.show_json(
            [
                {
                    **describe_upload(upload, path.stat().st_size),
                    "file": str(path),
                    "trained": upload.client in trained,
                    "own_images": home.get(upload.client),
                    "validation": validation.get(upload.client),
                }
                for path, upload in written.items()
            ]
        )
        return
    tables.show_trained(written, validation, home)
    if measured is not None:
        _tell_who_is_too_small(list(written.values()))
    if kept := [one.upload.client for one in received if one.upload.client not in trained]:
        console.say(
            f"Uploads that were there are kept ({list_some(kept)}); delete them to train them anew."
        )
    if unknown:
        names = list_some([str(path) for path in unknown])
        console.say(
            f"How these were trained is not on record here, so that they may be of other settings: {names}"
        )
    if trained:
        console.say(f"Written to {next(iter(written)) if len(written) == 1 else out}")
    if "client" in trained:
        console.say(
            "It bears the name 'client'. At the server no two may be alike: give it one of its own with --client."
        )
    if any(stack.spec.kind == "cvae" for stack in stacks):
        console.say(
            "Before you send a decoder, look at what it draws: attar privacy FILE with the same data."
        )
    if knowledge is not None:
        console.say(f"The classifiers stay in {deploy}")


@app.command
def pack(
    *,
    module: Annotated[str, arg(help="package.module:factory, your own code that makes the net.")],
    weights: Annotated[Path, arg(help="Its weights: safetensors, or a state dict of torch.save.")],
    out: Annotated[Path, arg(aliases=["-o"], help="The upload, a .attar file.")],
    sample_shape: Annotated[
        str | None, arg(help="Channels, height and width of its images, such as 3,224,224.")
    ] = None,
    size: Annotated[
        int | None,
        arg(help="Instead: the side of square images, with as many channels as --mean, or 3."),
    ] = None,
    classes: Annotated[
        str | None,
        arg(help="Names in the order of the logits, separated by commas; numbers unless given."),
    ] = None,
    mean: Annotated[
        str | None, arg(help="Per channel, of images in [0, 1]; 0 unless given.")
    ] = None,
    std: Annotated[str | None, arg(help="Per channel; 1 unless given.")] = None,
    client: Annotated[
        str | None, arg(help="The client's name; that of --out unless given.")
    ] = None,
    examples: Annotated[
        int | None, arg(help="How many it was trained on; the sum of --label-counts, or 1.")
    ] = None,
    label_counts: Annotated[
        str | None, arg(help="How many of each class, separated by commas; withheld unless given.")
    ] = None,
    data: Annotated[
        str | None, arg(help="Your own labelled images, for --statistics; they stay here.")
    ] = None,
    statistics: OmitArgPrefixes[StatisticsFlags] = NO_STATISTICS,
    json: Json = False,
) -> None:
    """Pack your own PyTorch classifier into an upload, as data: the server rebuilds it without
    running your code.
    """
    shape, measured, name = (
        parse_image_shape(sample_shape, size, mean),
        statistics.settings(),
        client or out.stem,
    )
    if out.suffix != ".attar":
        raise SettingsError(
            f"{out} is no name of an upload.",
            fix=f"end it in .attar: -o {out.with_suffix('.attar')}",
        )
    if out.exists() and (owner := read_bundle(out).client) != name:
        raise RunError(
            f"{out} is an upload of {owner}.",
            fix=f"name another file, or delete it; or is this --client {owner}?",
        )
    if (measured is None) != (data is None):
        raise SettingsError(
            "Statistics are measured on images of your own.",
            fix="give both --statistics and --data, or neither",
        )
    sys.path.insert(0, str(Path.cwd()))  # where people keep their own modules
    counts = None if label_counts is None else parse_whole_numbers(label_counts, "--label-counts")
    if examples is not None and examples < 1:
        raise SettingsError(
            f"--examples {examples}: nothing was learned from no image.",
            fix="give how many there were",
        )
    upload = run_pack(
        load_net(module, weights),
        input_shape=shape,
        classes=None if classes is None else [name.strip() for name in classes.split(",")],
        mean=None if mean is None else parse_means(mean, shape[0]),
        std=None if std is None else parse_per_channel(std, "--std", shape[0]),
        client=name,
        num_examples=examples or (1 if counts is None else sum(counts)),
        label_counts=counts,
    )
    if measured is not None and data is not None:
        source = load_source(data, quiet=json)
        upload = add_statistics(
            upload, make_client(upload.client, source.train, source.classes), measured
        )
    written = write_bundle(out, upload)
    read_bundle(out)
    if json:
        console.show_json({**describe_upload(upload, written), "file": str(out)})
        return
    tables.show_packed(upload, written, out)
    if measured is not None:
        _tell_who_is_too_small([upload])


def _tell_who_is_too_small(uploads: list[Upload]) -> None:
    """Statistics that were asked for and are not there."""
    without = [
        upload.client
        for upload in uploads
        if "classifier" in upload.parts and STATISTICS not in upload.parts
    ]
    if without:
        console.say(
            f"Too few images to send statistics without giving single ones away: {', '.join(without)}"
        )
