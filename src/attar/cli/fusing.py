"""The server's verbs: inspect what came, fuse it, evaluate and use the model."""

import csv
import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional, UseAppendAction, arg

from attar.blocks.execution import Precision
from attar.cli.app import Device, Json, RequireSignatures, Seed, Trusted, app
from attar.cli.arguments import (
    load_public_images,
    load_source,
    parse_classes,
    parse_device,
    read_canonical_images,
)
from attar.cli.output import console, listing, tables
from attar.errors import RunError, SettingsError
from attar.fusion import fuse as run_fusion
from attar.fusion import server_for
from attar.internal.files import write_atomic
from attar.methods import find_method
from attar.models import (
    Classifier,
    Evaluation,
    check_overlap,
    describe_data,
    evaluate_on,
    load_deployable,
    resolve_start,
)
from attar.privacy import describe_upload
from attar.running import RunOptions
from attar.settings import configure, pairs
from attar.uploads import admit, check_signers, find_signers, parse_class_map, read_trusted, receive


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
    signers = find_signers(received, keys, require=require_signatures)
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
        signed = keys is not None or any(signer.status != "unsigned" for signer in signers.values())
        tables.show_uploads(uploads, [one.bytes for one in received], signers if signed else None)
        tables.show_revelations(uploads)
    check_signers(signers, keys, require=require_signatures)


@app.command
def fuse(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    method: Annotated[
        str | None, arg(help="See `attar ls methods`; ensemble unless given.")
    ] = None,
    student: Annotated[
        str | None,
        arg(help="Architecture of the fused model; the commonest of the clients unless given."),
    ] = None,
    out: Annotated[Path | None, arg(help="The run and model folder.")] = None,
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")
    ] = (),
    public: Annotated[
        str | None,
        arg(
            help="The server's images: a data source, images:DIR, a partition file's held-out ones, or sketches."
        ),
    ] = None,
    public_labels: Annotated[bool, arg(help="The server knows their labels, too.")] = False,
    start: Annotated[
        Path | None,
        arg(
            help="A model folder, upload or hf:FOLDER whose weights the student starts from; for other classes, all but its head."
        ),
    ] = None,
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False,
    minutes: Annotated[float | None, arg(help="End in time with the model of the moment.")] = None,
    classes: Annotated[
        str | None,
        arg(
            help="The task's classes in this order, a,b,c or a .txt file; the union of the clients' unless given."
        ),
    ] = None,
    class_map: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="Synonyms: kitty=cat (a client's name = the task's), or a .toml or .json file."),
    ] = (),
    exclude: Annotated[UseAppendAction[tuple[str, ...]], arg(help="A client to leave out.")] = (),
    trusted: Trusted = None,
    require_signatures: RequireSignatures = False,
    no_robustness: Annotated[bool, arg(help="Do not look for clients that do not fit in.")] = False,
    data: Annotated[
        str | None, arg(help="A data source whose test part the fused model is evaluated on.")
    ] = None,
    evaluate_every: Annotated[int | None, arg(help="Evaluate every so many steps, too.")] = None,
    dry_run: Annotated[
        bool,
        arg(
            help="Only say which methods fit these files and what each would cost; or --method alone."
        ),
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "fp32",
    compile: Annotated[
        bool, arg(help="On CUDA: compile the nets, up to a minute for faster steps.")
    ] = False,
    teacher_memory: Annotated[
        float | None,
        arg(
            help="GiB of clients' weights in memory at once; more are read from their files in turns."
        ),
    ] = None,
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0,
    json: Json = False,
) -> None:
    """Fuse upload files into one model, without any client's data."""
    name = method or "ensemble"
    kind, given = find_method(name), pairs(settings)
    try:
        configured = configure(kind, given, of=f"method {name}")
    except SettingsError as error:
        if method is not None:
            raise
        raise SettingsError(
            f"No --method was given, and what is fused without one is {name}:",
            problems=error.problems,
            fix="name the method whose settings these are with --method (see `attar ls methods`)",
        ) from None
    keys = None if trusted is None else read_trusted(trusted)
    uploads, admission = admit(
        receive(files, resident=teacher_memory is None),
        exclude=exclude,
        class_map=parse_class_map(class_map),
        trusted=keys,
        require_signatures=require_signatures,
    )
    server = server_for(
        uploads,
        student=student,
        classes=None if classes is None else parse_classes(classes),
        initial=resolve_start(start, student),
        public=None
        if public is None
        else load_public_images(public, quiet=json, labelled=public_labels),
        seed=seed,
        device=parse_device(device),
        precision=precision,
        compile=compile,
        teacher_memory=None if teacher_memory is None else int(teacher_memory * 2**30),
    )
    if dry_run:
        with console.progress("dry run", quiet=json) as watch:
            rows = listing.plan(
                uploads, server, {name: configured} if method or settings else None, watch
            )
        console.show_json(rows) if json else tables.show_plan(
            rows, "these" if settings else "default"
        )
        for reason in [] if method else listing.refused_plugins("methods"):
            console.note(f"warning: {reason}")
        return
    if out is None:
        raise RunError("Where shall the model go?", fix="name a folder with --out")
    if student is not None and not configured.needs.student:
        raise SettingsError(
            f"Method {name} makes no student: the clients' architectures decide.",
            fix="leave --student out",
        )
    dataset = None if data is None else load_source(data, quiet=json)
    where = (
        None if dataset is None else describe_data(len(dataset.test), f"the test part of {data}")
    )
    if dataset is not None:
        check_overlap(server.task.classes, dataset.classes)  # before hours of fusion

    def evaluate(model: Classifier) -> Evaluation:
        assert dataset is not None
        return evaluate_on(model, dataset.test, dataset.classes, device=server.device)

    with console.progress(f"fuse by {name}", quiet=json) as watch:
        fused = run_fusion(
            uploads,
            configured,
            server,
            admission=admission,
            robustness=not no_robustness,
            options=RunOptions(
                out=out,
                resume=resume,
                minutes=minutes,
                watch=watch,
                checkpoint_seconds=checkpoint_seconds,
                evaluate=None if dataset is None else evaluate,
                evaluated_on=where,
                evaluate_every=evaluate_every,
            ),
        )
    if json:
        console.show_json({"out": str(out), **fused.record})
        return
    tables.show_fused(fused, out, where)


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
    """Accuracy of a model folder or an upload: overall, balanced, per class, and how well it
    knows what it knows.
    """
    place = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(place)
    dataset = load_source(data, quiet=json)
    chosen = {
        "test": dataset.test,
        "train": dataset.train,
        "all": dataset.train.join(dataset.test),
    }[split]
    found = evaluate_on(classifier, chosen, dataset.classes, device=place)
    if json:
        console.show_json(
            {
                **asdict(found),
                "confusion": found.confusion.tolist(),
                "model": str(model),
                "data": data,
                "split": split,
            }
        )
        return
    part = {
        "test": f"the test part of {data}",
        "train": f"the training part of {data}",
        "all": f"all of {data}",
    }[split]
    tables.show_evaluation(
        str(model), found, dataset.classes, describe_data(found.num_images, part)
    )
    if split == "test" and dataset.was_cut:
        whole = len(dataset.train) + len(dataset.test)
        console.say(
            f"{data} has no test part of its own, so a fifth of it was measured: --split all takes all {whole:,} images."
        )


@app.command
def predict(
    model: Positional[Path],
    images: Positional[tuple[Path, ...]],
    /,
    *,
    out: Annotated[
        Path | None, arg(aliases=["-o"], help="A CSV file; standard output unless given.")
    ] = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Classify image files with a model folder or an upload."""
    place = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(place)
    files, pixels = read_canonical_images(images, classifier.input_shape())
    with torch.inference_mode():
        chunks = torch.split(pixels, 256)
        probabilities = torch.cat(
            [classifier(chunk.to(place)).softmax(-1).cpu() for chunk in chunks]
        )
    confidence, choice = probabilities.max(-1)
    rows = [
        {"image": str(file), "class": classifier.classes[index], "probability": round(sure, 6)}
        for file, index, sure in zip(files, choice.tolist(), confidence.tolist(), strict=True)
    ]
    if json:
        console.show_json(rows)
        return
    table = io.StringIO()
    writer = csv.DictWriter(
        table, fieldnames=["image", "class", "probability"], lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        sys.stdout.write(table.getvalue())
    else:
        write_atomic(out, table.getvalue())
        console.say(f"{len(rows)} predictions written to {out}")
