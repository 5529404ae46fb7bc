"""``attar fuse``: fuse upload files into one model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from attar.blocks.execution import Precision
from attar.cli.arguments import (
    Device,
    Json,
    RequireSignatures,
    Seed,
    Trusted,
    load_public_images,
    load_source,
    parse_classes,
    parse_device,
)
from attar.cli.output import console, listing, tables
from attar.core import AnyMethod, Server, Upload
from attar.data.dataset import Dataset
from attar.errors import RunError, SettingsError
from attar.fusion import fuse as run_fusion
from attar.fusion import server_for
from attar.methods import find_method
from attar.models import (
    Classifier,
    Evaluation,
    check_overlap,
    describe_data,
    evaluate_on,
    resolve_start,
)
from attar.running import Evaluate, RunOptions
from attar.settings import configure, pairs
from attar.uploads import Admission, admit, parse_class_map, read_trusted, receive


@dataclass(frozen=True, kw_only=True)
class FuseOptions:
    """The flags of ``attar fuse``."""

    files: Positional[tuple[Path, ...]]
    method: Annotated[str | None, arg(help="See `attar ls methods`; ensemble unless given.")] = None
    student: Annotated[
        str | None,
        arg(help="Architecture of the fused model; the commonest of the clients unless given."),
    ] = None
    out: Annotated[Path | None, arg(help="The run and model folder.")] = None
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", help="A hyper-parameter, key=value.")
    ] = ()
    public: Annotated[
        str | None,
        arg(
            help="The server's images: a data source, images:DIR, a partition file's held-out "
            "ones, or sketches."
        ),
    ] = None
    public_labels: Annotated[bool, arg(help="The server knows their labels, too.")] = False
    start: Annotated[
        Path | None,
        arg(
            help="A model folder, upload or hf:FOLDER whose weights the student starts from; for "
            "other classes, all but its head."
        ),
    ] = None
    resume: Annotated[bool, arg(help="Go on with the run in --out.")] = False
    minutes: Annotated[float | None, arg(help="End in time with the model of the moment.")] = None
    classes: Annotated[
        str | None,
        arg(
            help="The task's classes in this order, a,b,c or a .txt file; the union of the "
            "clients' unless given."
        ),
    ] = None
    class_map: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(help="Synonyms: kitty=cat (a client's name = the task's), or a .toml or .json file."),
    ] = ()
    exclude: Annotated[UseAppendAction[tuple[str, ...]], arg(help="A client to leave out.")] = ()
    trusted: Trusted = None
    require_signatures: RequireSignatures = False
    no_robustness: Annotated[bool, arg(help="Do not look for clients that do not fit in.")] = False
    data: Annotated[
        str | None, arg(help="A data source whose test part the fused model is evaluated on.")
    ] = None
    evaluate_every: Annotated[int | None, arg(help="Evaluate every so many steps, too.")] = None
    dry_run: Annotated[
        bool,
        arg(
            help="Only say which methods fit these files and what each would cost; or --method "
            "alone."
        ),
    ] = False
    seed: Seed = 0
    device: Device = "auto"
    precision: Precision = "fp32"
    compile: Annotated[
        bool, arg(help="On CUDA: compile the nets, up to a minute for faster steps.")
    ] = False
    teacher_memory: Annotated[
        float | None,
        arg(
            help="GiB of clients' weights in memory at once; more are read from their files in "
            "turns."
        ),
    ] = None
    checkpoint_seconds: Annotated[float, arg(help="How often the run is saved.")] = 30.0
    json: Json = False

    @property
    def method_name(self) -> str:
        """The method; ensemble unless given."""
        return self.method or "ensemble"


def fuse(options: FuseOptions) -> None:
    """Fuse upload files into one model, without any client's data."""
    method = _configure_method(options)
    uploads, admission = _read_uploads(options)
    server = _make_server(options, uploads)
    if options.dry_run:
        _run_dry(options, method, uploads, server)
        return
    out = options.out
    if out is None:
        raise RunError("Missing output folder.", fix="--out DIR")
    if options.student is not None and not method.needs.student:
        raise SettingsError(
            f"Method {options.method_name} makes no student: the clients' architectures decide.",
            fix="leave --student out",
        )
    dataset = None
    evaluated_on = None
    if options.data is not None:
        dataset = load_source(options.data, quiet=options.json)
        evaluated_on = describe_data(len(dataset.test), f"the test part of {options.data}")
        check_overlap(server.task.classes, dataset.classes)  # before hours of fusion
    with console.progress(f"fuse by {options.method_name}", quiet=options.json) as watch:
        fused = run_fusion(
            uploads,
            method,
            server,
            admission=admission,
            robustness=not options.no_robustness,
            options=RunOptions(
                out=out,
                resume=options.resume,
                minutes=options.minutes,
                watch=watch,
                checkpoint_seconds=options.checkpoint_seconds,
                evaluate=None if dataset is None else _make_evaluate(dataset, server.device),
                evaluated_on=evaluated_on,
                evaluate_every=options.evaluate_every,
            ),
        )
    console.emit(
        {"out": str(out), **fused.record},
        lambda: tables.show_fused(fused, out, evaluated_on),
        json=options.json,
    )


def _configure_method(options: FuseOptions) -> AnyMethod:
    name = options.method_name
    kind = find_method(name)
    settings = pairs(options.settings)
    try:
        return configure(kind, settings, of=f"method {name}")
    except SettingsError as error:
        if options.method is not None:
            raise
        raise SettingsError(
            f"No --method was given, so these would be settings of {name}:",
            problems=error.problems,
            fix="name the method whose settings these are with --method (see `attar ls methods`)",
        ) from None


def _read_uploads(options: FuseOptions) -> tuple[list[Upload], Admission]:
    trusted = None if options.trusted is None else read_trusted(options.trusted)
    return admit(
        receive(options.files, resident=options.teacher_memory is None),
        exclude=options.exclude,
        class_map=parse_class_map(options.class_map),
        trusted=trusted,
        require_signatures=options.require_signatures,
    )


def _make_server(options: FuseOptions, uploads: Sequence[Upload]) -> Server:
    classes = None if options.classes is None else parse_classes(options.classes)
    initial = resolve_start(options.start, options.student)
    public = None
    if options.public is not None:
        public = load_public_images(
            options.public, quiet=options.json, labelled=options.public_labels
        )
    memory = None if options.teacher_memory is None else int(options.teacher_memory * 2**30)
    return server_for(
        uploads,
        student=options.student,
        classes=classes,
        initial=initial,
        public=public,
        seed=options.seed,
        device=parse_device(options.device),
        precision=options.precision,
        compile=options.compile,
        teacher_memory=memory,
    )


def _run_dry(
    options: FuseOptions, method: AnyMethod, uploads: Sequence[Upload], server: Server
) -> None:
    """Show which methods fit, or whether the chosen one does, and the cost of each."""
    chosen = {options.method_name: method} if options.method or options.settings else None
    with console.progress("dry run", quiet=options.json) as watch:
        rows = listing.estimate_methods(uploads, server, chosen, watch)
    settings = "these" if options.settings else "default"
    console.emit(rows, lambda: tables.show_plan(rows, settings), json=options.json)
    if not options.method:
        for reason in listing.refused_plugins("methods"):
            console.note(f"warning: {reason}")


def _make_evaluate(dataset: Dataset, device: str) -> Evaluate:
    """A function that measures a model on the test part."""

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, dataset.test, dataset.classes, device=device)

    return evaluate
