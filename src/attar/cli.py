"""The verbs of the command line: parse, call, print. ``attar VERB --help`` explains each."""

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from json import dumps as to_json
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import (
    FlagCreatePairsOff,
    OmitArgPrefixes,
    OmitSubcommandPrefixes,
    Positional,
    UseAppendAction,
    arg,
    subcommand,
)
from tyro.extras import SubcommandApp

from attar import console, listing, tables
from attar import speed as timing
from attar.admission import admit, class_map_called
from attar.blocks.precision import Precision
from attar.bundle import read_bundle, receive, write_bundle
from attar.data.partition import label_counts
from attar.data.partition import partition as deal
from attar.data.partition_file import write_partition
from attar.data.picture import bubbles
from attar.demo import run_demo
from attar.driver import Moment
from attar.errors import AttarError, DataError, RunError, SettingsError
from attar.evaluation import evaluate_on
from attar.files import write_atomic
from attar.flower import flags as network_flags
from attar.flower import verbs as network_verbs
from attar.fusion import fuse as run_fusion
from attar.fusion import server_for
from attar.inputs import (
    TrainingFlags,
    canonical_images,
    classes_called,
    clients_called,
    device_called,
    image_shape,
    load_source,
    model_at,
    numbers_called,
    per_channel,
    public_images,
    specs_called,
    stacks_called,
    starting_part,
)
from attar.inspection import describe_check, describe_upload
from attar.likeness import check_decoder
from attar.local.clients import ClientData
from attar.local.cvae import Preset
from attar.local.session import train_stack
from attar.local.sharing import client_names
from attar.methods import find_method
from attar.models import Classifier
from attar.packing import own_net
from attar.packing import pack as run_pack
from attar.report.gallery import gallery
from attar.settings import configure, pairs
from attar.signing import generate_key, load_private, read_trusted, refuse, signers_of
from attar.signing import sign as write_signature

app = SubcommandApp()

DEFAULT_TRAINING = TrainingFlags()
ABOUT = "One-shot federated learning: many uploads, one model, no data."

Json = Annotated[bool, arg(name="json", help="Print one JSON document for machines.")]
Device = Annotated[str, arg(help="cpu, cuda, cuda:1 … or auto.")]
Trusted = Annotated[Path | None, arg(help="The public keys that may sign: a TOML file of lines from .pub files.")]
RequireSignatures = Annotated[bool, arg(help="Refuse uploads that no listed key has signed.")]
Seed = Annotated[int, arg(help="Everything random in the run follows from it.")]


@app.command
def demo(out: Path = Path("demo"), *, seed: Seed = 0, json: Json = False) -> None:
    """Five clients with different nets on a skewed split, one too weak for a classifier: trained, fused, compared. A minute."""
    run_demo(out, seed=seed, json=json)


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
        rule: iid, dirichlet:A, dirichlet-client:A, classes:C, disjoint:C or domain; each with +lognormal:S for uneven sizes.
        clients: How many clients.
        out: The partition file.
        hold_out: A fraction of the images set aside, without labels, for the server (FedDF).
        min_size: The fewest images a client may have.
        leave_out: The name of a domain that no client gets.
        picture: Where the SVG of the partition goes; beside --out unless given.
    """
    dataset = load_source(data, quiet=json)
    left = None
    if leave_out is not None:
        if leave_out not in dataset.domains:
            known = ", ".join(dataset.domains) or "none"
            raise DataError(f"{data} has no domain {leave_out!r}.", fix=f"its domains: {known}")
        left = dataset.domains.index(leave_out)
    labels = dataset.train.labels
    dealt = deal(
        labels, rule, clients, seed, hold_out=hold_out, min_size=min_size, domains=dataset.train.domains, leave_out=left
    )
    write_partition(out, dealt, data, labels)
    counts = label_counts(labels, dealt.clients, len(dataset.classes))
    names = client_names(clients)
    drawn = picture or out.with_suffix(".svg")
    write_atomic(drawn, bubbles(counts, dataset.classes, names, f"{data}, {rule}, seed {seed}"))
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
                "clients": [{"client": name, "label_counts": row.tolist()} for name, row in zip(names, counts, strict=True)],
            }
        )
        return
    tables.show_partition(f"{data}, {rule}, seed {seed}", names, counts, dataset.classes)
    if len(dealt.held_out):
        console.say(f"{len(dealt.held_out):,} images are held out for the server, without labels.")
    console.say(f"Partition: {out}   picture: {drawn}")


@app.command
def train(
    data: Annotated[str | None, arg(help="A data source; all its training images belong to this client.")] = None,
    *,
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None,
    client: Annotated[
        str, arg(help="Numbers in the partition, such as 3 or 0-2,4, or all; with --data, the client's name.")
    ] = "all",
    kind: Annotated[
        Literal["classifier", "cvae"] | None,
        arg(help="A classifier, or an autoencoder of which the decoder is sent; what --net says unless given."),
    ] = None,
    net: Annotated[
        str | None,
        arg(help="Architecture; several, separated by commas, go round the clients. lenet5, or cvae-small, unless given."),
    ] = None,
    preset: Annotated[Preset, arg(help="Of a CVAE: the column of FedMHO's Table 3; by the net's form unless given.")] = "auto",
    out: Annotated[Path, arg(help="The upload: a .attar file, or a folder for one file per client.")] = Path("uploads"),
    start: Annotated[Path | None, arg(help="A model folder or upload whose weights training starts from.")] = None,
    withhold_counts: Annotated[bool, arg(help="Do not tell the server how many examples of each class there are.")] = False,
    sign: Annotated[Path | None, arg(help="A private key (`attar keygen`) that signs what is written.")] = None,
    training: OmitArgPrefixes[TrainingFlags] = DEFAULT_TRAINING,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "fp32",
    json: Json = False,
) -> None:
    """Train one client's net, or those of all clients of a partition, and write one upload file each.

    A training that was interrupted goes on when the same command is given again; uploads that are there already are kept.
    """
    if sign is not None:
        load_private(sign)  # a key that cannot sign is said before hours of training
    clients = clients_called(data, partition, client, quiet=json)
    single = out.suffix == ".attar"
    if single and len(clients) > 1:
        raise DataError(
            f"{out} is one file, but {len(clients)} clients train.", fix="name a folder with --out, or one --client"
        )
    specs = specs_called(net, kind)
    chosen = {one.name: specs[place % len(specs)] for place, one in clients}
    paths = {one.name: out if single else out / f"{one.name}.attar" for _, one in clients}
    missing = [one for _, one in clients if not paths[one.name].exists()]
    initial = None if start is None else starting_part(start)
    validation: dict[str, float] = {}
    stacks = stacks_called(
        missing,
        [chosen[one.name] for one in missing],
        training,
        preset=preset,
        seed=seed,
        device=device_called(device),
        initial=initial,
    )
    for stack in stacks:
        first = paths[stack.clients[0].name]
        title = f"{stack.spec}, {len(stack.clients)} client{'s' if len(stack.clients) > 1 else ''}"
        with console.progress(title, quiet=json) as watch:
            uploads, measured = train_stack(
                stack,
                checkpoint=first.with_name(f".{first.stem}.training"),
                watch=watch,
                precision=precision,
                withhold_counts=withhold_counts,
            )
        for upload in uploads:
            write_bundle(paths[upload.client], upload)
        validation |= measured
    trained = {one.name for one in missing}
    received = receive(paths.values())
    if sign is not None:
        for one in received:
            write_signature(one, sign)
    written = {one.path: one.upload for one in received}
    if json:
        console.show_json(
            [
                {
                    **describe_upload(upload, path.stat().st_size),
                    "file": str(path),
                    "trained": upload.client in trained,
                    "validation": validation.get(upload.client),
                }
                for path, upload in written.items()
            ]
        )
        return
    tables.show_trained(written, trained, validation)
    console.say(f"Written to {out}")


@app.command
def pack(
    *,
    module: Annotated[str, arg(help="package.module:factory, your own code that makes the net.")],
    weights: Annotated[Path, arg(help="Its weights: safetensors, or a state dict of torch.save.")],
    out: Annotated[Path, arg(aliases=["-o"], help="The upload, a .attar file.")],
    sample_shape: Annotated[str | None, arg(help="Channels, height and width of its images, such as 3,224,224.")] = None,
    size: Annotated[int | None, arg(help="Instead: the side of square images, with as many channels as --mean, or 3.")] = None,
    classes: Annotated[
        str | None, arg(help="Names in the order of the logits, separated by commas; numbers unless given.")
    ] = None,
    mean: Annotated[str | None, arg(help="Per channel, of images in [0, 1]; 0 unless given.")] = None,
    std: Annotated[str | None, arg(help="Per channel; 1 unless given.")] = None,
    client: Annotated[str | None, arg(help="The client's name; that of --out unless given.")] = None,
    examples: Annotated[int | None, arg(help="How many it was trained on; the sum of --label-counts, or 1.")] = None,
    label_counts: Annotated[str | None, arg(help="How many of each class, separated by commas; withheld unless given.")] = None,
    json: Json = False,
) -> None:
    """Pack your own PyTorch classifier into an upload, as data: the server rebuilds it without running your code."""
    shape = image_shape(sample_shape, size, mean)
    sys.path.insert(0, str(Path.cwd()))  # where people keep their own modules
    counts = None if label_counts is None else [int(count) for count in numbers_called(label_counts, "--label-counts")]
    upload = run_pack(
        own_net(module, weights),
        input_shape=shape,
        classes=None if classes is None else [name.strip() for name in classes.split(",")],
        mean=None if mean is None else per_channel(mean, "--mean", shape[0]),
        std=None if std is None else per_channel(std, "--std", shape[0]),
        client=client or out.stem,
        num_examples=examples or (1 if counts is None else sum(counts)),
        label_counts=counts,
    )
    written = write_bundle(out, upload)
    read_bundle(out)
    if json:
        console.show_json({**describe_upload(upload, written), "file": str(out)})
        return
    tables.show_packed(upload, written, out)


@app.command
def inspect(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    trusted: Trusted = None,
    require_signatures: RequireSignatures = False,
    json: Json = False,
) -> None:
    """Check upload files and their signatures, and show what they reveal."""
    keys = None if trusted is None else read_trusted(trusted)
    received = receive(files)
    signers = signers_of(received, keys, require=require_signatures)
    if json:
        console.show_json(
            [
                {
                    **describe_upload(one.upload, one.bytes),
                    "sha256": one.sha256,
                    "signature": signers[one.upload.client].as_json(),
                }
                for one in received
            ]
        )
    else:
        uploads = [one.upload for one in received]
        signed = keys is not None or any(signer.standing != "unsigned" for signer in signers.values())
        tables.show_uploads(uploads, [one.bytes for one in received], signers if signed else None)
        tables.show_revelations(uploads)
    refuse(signers, keys, require=require_signatures)


@app.command
def keygen(
    key: Positional[Path],
    /,
    *,
    client: Annotated[str | None, arg(help="Whose key it is; the file's name without its ending unless given.")] = None,
    json: Json = False,
) -> None:
    """Make a private key that signs uploads, and the line for the server's list of trusted keys."""
    name = key.stem if client is None else client
    public = generate_key(key, name)
    if json:
        console.show_json({"client": name, "private": str(key), "public": str(key.with_suffix(".pub")), "key": public})
        return
    console.say(f"{key} is the private key of {name}: it stays here.")
    console.say(f"{key.with_suffix('.pub')} is for the server's list (--trusted), by a way that nobody else can write on.")


@app.command
def sign(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    key: Annotated[Path, arg(help="The private key (`attar keygen`).")],
    json: Json = False,
) -> None:
    """Sign upload files: a .sig beside each, which travels with it."""
    written = [(one, write_signature(one, key)) for one in receive(files)]
    if json:
        console.show_json([{"client": one.upload.client, "sha256": one.sha256, "file": str(place)} for one, place in written])
        return
    for one, place in written:
        console.say(f"{one.upload.client}: {place}")


@app.command
def privacy(
    file: Positional[Path],
    /,
    *,
    data: Annotated[str | None, arg(help="The data source that the decoder was trained on.")] = None,
    partition: Annotated[Path | None, arg(help="A partition file instead of --data.")] = None,
    client: Annotated[str | None, arg(help="Its number in the partition; the upload's own name unless given.")] = None,
    samples: Annotated[int, arg(help="How many synthetic images to look at.")] = 1000,
    pairs: Annotated[int, arg(help="How many pairs to show.")] = 8,
    inception: Annotated[
        Path | None, arg(help="A TorchScript Inception for FID; a small classifier is trained on the spot unless given.")
    ] = None,
    out: Annotated[Path, arg(help="Where the pictures and the record go.")] = Path("privacy"),
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Before a decoder is sent: its synthetic images beside the nearest images that it was trained on."""
    if samples < 2 or pairs < 1:
        raise SettingsError("There is nothing to look at.", fix="--samples from 2, --pairs from 1")
    upload = read_bundle(file)
    owner = _one_client(clients_called(data, partition, client or upload.client, quiet=json))
    found = check_decoder(
        upload, owner, samples=samples, pairs=pairs, inception=inception, seed=seed, device=device_called(device)
    )
    for name, some in (("closest", found.closest), ("singled-out", found.singled_out)):
        write_atomic(out / f"{name}.png", gallery(torch.stack([pair.pictures for pair in some])))
    record = {"file": str(file), "client": upload.client, "seed": seed, **describe_check(found)}
    write_atomic(out / "privacy.json", to_json(record, indent=2) + "\n")
    if json:
        console.show_json({**record, "out": str(out)})
        return
    tables.show_privacy(found, out)


def _one_client(clients: Sequence[tuple[int, ClientData]]) -> ClientData:
    if len(clients) != 1:
        raise DataError(f"{len(clients)} clients are named.", fix="name one --client: whose images was the decoder trained on?")
    return clients[0][1]


@app.command
def fuse(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    method: Annotated[str, arg(help="See `attar ls methods`.")] = "ensemble",
    student: Annotated[
        str | None, arg(help="Architecture of the fused model; the commonest of the clients unless given.")
    ] = None,
    out: Annotated[Path | None, arg(help="The run and model folder.")] = None,
    settings: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")] = (),
    public: Annotated[str | None, arg(help="Images of the server: a data source, or a partition file's held-out ones.")] = None,
    start: Annotated[Path | None, arg(help="A model folder or upload whose weights the student starts from.")] = None,
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False,
    minutes: Annotated[float | None, arg(help="End in time with the model of the moment.")] = None,
    classes: Annotated[
        str | None, arg(help="The task's classes in this order, a,b,c or a .txt file; the union of the clients' unless given.")
    ] = None,
    class_map: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="Synonyms: kitty=cat (a client's name = the task's), or a .toml or .json file."),
    ] = (),
    exclude: Annotated[UseAppendAction[tuple[str, ...]], arg(help="A client to leave out.")] = (),
    trusted: Trusted = None,
    require_signatures: RequireSignatures = False,
    no_robustness: Annotated[bool, arg(help="Do not look for clients that do not fit in.")] = False,
    data: Annotated[str | None, arg(help="A data source whose test part the fused model is evaluated on.")] = None,
    evaluate_every: Annotated[int | None, arg(help="Evaluate every so many steps, too.")] = None,
    dry_run: Annotated[bool, arg(help="Only say which methods fit these files, and what each would cost.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[bool, arg(help="On CUDA: compile the clients' nets, half a minute for faster steps.")] = False,
    teacher_memory: Annotated[
        float | None, arg(help="GiB of clients' weights in memory at once; more are read from their files in turns.")
    ] = None,
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0,
    json: Json = False,
) -> None:
    """Fuse upload files into one model, without any client's data."""
    keys = None if trusted is None else read_trusted(trusted)
    uploads, admission = admit(
        receive(files, resident=teacher_memory is None),
        exclude=exclude,
        class_map=class_map_called(class_map),
        trusted=keys,
        require_signatures=require_signatures,
    )
    server = server_for(
        uploads,
        student=student,
        classes=None if classes is None else classes_called(classes),
        initial=None if start is None else starting_part(start),
        public=None if public is None else public_images(public, quiet=json),
        seed=seed,
        device=device_called(device),
        precision=precision,
        compile=compile,
        teacher_memory=None if teacher_memory is None else int(teacher_memory * 2**30),
    )
    if dry_run:
        with console.progress("dry run", quiet=json) as watch:
            rows = listing.plan(uploads, server, watch)
        console.show_json(rows) if json else tables.show_plan(rows)
        return
    if out is None:
        raise RunError("Where shall the model go?", fix="name a folder with --out")
    configured = configure(find_method(method), pairs(settings), of=f"method {method}")
    if student is not None and not configured.needs.student:
        raise SettingsError(f"Method {method} makes no student: the clients' architectures decide.", fix="leave --student out")
    dataset = None if data is None else load_source(data, quiet=json)
    measured_on = None if data is None else f"the test part of {data}"

    def accuracy(model: Classifier) -> float:
        assert dataset is not None
        return evaluate_on(model, dataset.test, dataset.classes, device=server.device).accuracy

    with console.progress(f"fuse by {method}", quiet=json) as watch:
        fused = run_fusion(
            uploads,
            configured,
            server,
            out=out,
            resume=resume,
            minutes=minutes,
            watch=watch,
            checkpoint_seconds=checkpoint_seconds,
            evaluate=None if dataset is None else accuracy,
            evaluated_on=measured_on,
            evaluate_every=evaluate_every,
            admission=admission,
            robustness=not no_robustness,
        )
    if json:
        console.show_json({"out": str(out), **fused.record})
        return
    tables.show_fused(fused, out, measured_on)


@app.command(name="eval")
def eval_(
    model: Positional[Path],
    /,
    *,
    data: Annotated[str, arg(help="A labelled data source.")],
    split: Annotated[Literal["test", "train", "all"], arg(help="Which of its images.")] = "test",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Accuracy of a model folder or an upload: overall, balanced, per class, and how well it knows what it knows."""
    place = device_called(device)
    classifier = Classifier(model_at(model)).to(place)
    dataset = load_source(data, quiet=json)
    chosen = {"test": dataset.test, "train": dataset.train, "all": dataset.train.joined(dataset.test)}[split]
    found = evaluate_on(classifier, chosen, dataset.classes, device=place)
    if json:
        console.show_json(
            {**asdict(found), "confusion": found.confusion.tolist(), "model": str(model), "data": data, "split": split}
        )
        return
    tables.show_evaluation(f"{model} on {data} ({split})", found, dataset.classes)


@app.command
def predict(
    model: Positional[Path],
    images: Positional[tuple[Path, ...]],
    /,
    *,
    out: Annotated[Path | None, arg(aliases=["-o"], help="A CSV file; standard output unless given.")] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Classify image files with a model folder or an upload."""
    place = device_called(device)
    classifier = Classifier(model_at(model)).to(place)
    files, pixels = canonical_images(images, classifier.input_shape())
    with torch.inference_mode():
        chunks = torch.split(pixels, 256)
        probabilities = torch.cat([classifier(chunk.to(place)).softmax(-1).cpu() for chunk in chunks])
    confidence, choice = probabilities.max(-1)
    rows = [
        {"image": str(file), "class": classifier.classes[index], "probability": round(sure, 6)}
        for file, index, sure in zip(files, choice.tolist(), confidence.tolist(), strict=True)
    ]
    if json:
        console.show_json(rows)
        return
    table = io.StringIO()
    writer = csv.DictWriter(table, fieldnames=["image", "class", "probability"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        sys.stdout.write(table.getvalue())
    else:
        write_atomic(out, table.getvalue())
        console.say(f"{len(rows)} predictions written to {out}")


@app.command
def speed(
    *,
    method: Annotated[str, arg(help="A method with a generator and a pool.")] = "co-boosting",
    net: Annotated[str, arg(help="Architecture of the clients and of the student.")] = "cnn5",
    clients: int = 10,
    batch: int = 128,
    pool: Annotated[int | None, arg(help="Batches in the pool; 100 on CUDA, 4 on a CPU unless given.")] = None,
    steps: Annotated[int | None, arg(help="Generator steps; 30 on CUDA, 3 on a CPU unless given.")] = None,
    repeats: Annotated[int, arg(help="The median of so many is shown.")] = 5,
    size: Annotated[int | None, arg(help="Side of the images, unless it is the net's usual one.")] = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[bool, arg(help="On CUDA: compile the clients' nets.")] = False,
    json: Json = False,
) -> None:
    """Time the real code paths on this machine: generator step, pool batch, stratification, local training."""
    setting = timing.Setting(method, net, clients, batch, pool, steps, repeats, size, device_called(device), precision, compile)
    found = []
    with console.progress(f"{method}, {clients} {net}", quiet=json) as watch:
        for number, one in enumerate(timing.measure(setting), 1):
            found.append(one)
            watch(Moment(one.what.strip(), number, timing.NUMBER, number / timing.NUMBER, None, {}))
        peak = timing.matrix_peak(setting)
    record = timing.as_record(setting, found, peak)
    console.show_json(record) if json else tables.show_speed(record)


NetworkVerb = (
    Annotated[network_flags.Init, subcommand("init")]
    | Annotated[network_flags.Server, subcommand("server")]
    | Annotated[network_flags.Client, subcommand("client")]
)


@app.command
def network(verb: OmitSubcommandPrefixes[OmitArgPrefixes[NetworkVerb]]) -> None:
    """Collect uploads over a real network (Flower, TLS, a key for each partner): init, server, client."""
    say = (lambda text: None) if verb.json else console.say
    if isinstance(verb, network_flags.Init):
        made = network_verbs.init(verb)
        console.show_json(made) if verb.json else tables.show_network(made)
        return
    if isinstance(verb, network_flags.Client):
        sent = network_verbs.client(verb, say)
        if verb.json:
            console.show_json(sent)
        return
    with console.progress("round", quiet=verb.json) as watch:
        outcome = network_verbs.server(verb, say, watch)
    console.show_json(outcome) if verb.json else tables.show_round(outcome)
    if outcome["fuse_status"]:
        raise RunError("The fusion failed.", fix=f"the uploads are in {outcome['inbox']}; try again: {outcome['fuse']}")
    if not outcome["arrived"]:
        raise RunError("Nobody's upload arrived in time.", fix="start the same command again: it asks those who are missing")


@app.command
def ls(what: Positional[Literal["nets", "methods", "data"]], /, *, json: Json = False) -> None:
    """What there is: nets, methods, or data sources."""
    rows = {"nets": listing.list_nets, "methods": listing.list_methods, "data": listing.list_data}[what]()
    console.show_json(rows) if json else tables.show_list(what, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point: user errors end in one block and status 2, Ctrl-C in 130."""
    try:
        app.cli(prog="attar", description=ABOUT, args=arguments, config=(FlagCreatePairsOff,))
    except AttarError as error:
        console.show_error(error)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except OSError as error:  # no permission, disk full, a folder where a file should be
        console.show_error(AttarError(f"{error.filename or 'A file'}: {error.strerror or error}"))
        return 2
    except KeyboardInterrupt:
        console.show_error(AttarError("Stopped."))
        return 130
    return 0
