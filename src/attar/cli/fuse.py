"""``attar fuse``: fuse upload files into one model."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from attar.cli.arguments import (
    load_public_images,
    load_source,
    parse_classes,
    parse_device,
)
from attar.cli.fuse_options import FuseOptions
from attar.cli.output import console, listing, plan, tables
from attar.core import AnyMethod, Server, Upload
from attar.data import PARTS, Dataset, PartName
from attar.errors import NothingLearned, RunError, SettingsError
from attar.fusion import (
    Fused,
    Safeguards,
    check_answers,
    check_price,
    explain_student,
    find_one_answers,
    price_run,
    question_classes,
    server_for,
)
from attar.fusion import fuse as run_fusion
from attar.methods import find_method
from attar.models import (
    Classifier,
    Evaluation,
    check_overlap,
    describe_data,
    evaluate_on,
    resolve_start,
)
from attar.running import Budget, Evaluate, RunOptions
from attar.settings import configure, flatten, pairs
from attar.tracking import check_trackers, track
from attar.uploads import (
    Admission,
    admit,
    check_inspected,
    parse_class_map,
    read_trusted,
    receive,
)


def fuse(options: FuseOptions) -> None:
    """Fuse upload files into one model, without any client's data."""
    check_trackers(options.track)
    early = None if options.method is None else _configure_method(options, options.method)
    uploads, admission = _read_uploads(options)
    name = options.method or _usual_method(uploads)
    method = early or _configure_method(options, name)
    _ask_about_classes(options, uploads)
    server = _make_server(options, uploads)
    if options.dry_run:
        _run_dry(options, name, method, uploads, server)
        return
    out = options.out
    if out is None:
        raise RunError("Missing output folder.", fix="--out DIR")
    if options.student is not None and not method.needs.student:
        raise SettingsError(
            f"Method {name} makes no student: the clients' architectures decide.",
            fix="leave --student out",
        )
    dataset = None
    evaluated_on = None
    if options.data is not None:
        dataset = load_source(options.data, quiet=options.json)
        number = len(dataset.part(options.split))
        evaluated_on = describe_data(number, f"{PARTS[options.split]} {options.data}")
        check_overlap(server.task.classes, dataset.classes)  # before hours of fusion
    budget = _make_budget(options, 0 if dataset is None else len(dataset.part(options.split)))
    check_price(uploads, server, method, budget)
    check_answers(uploads, server.device)
    one_answers = [] if options.no_robustness else find_one_answers(uploads, server.device)
    for found in one_answers:
        console.note(f"warning: {found}")
    student = explain_student(uploads, server, options.student) if method.needs.student else ""
    if student and not options.json:
        console.note(f"student: {server.student}, {student}")
    what = f"fuse {len(uploads)} uploads by {name}"
    settings = {"method": name, **flatten(method), **_describe_start(options, uploads, server)}
    with (
        track(options.track, out.resolve().name, "fuse", settings, console.note) as tracking,
        console.progress(what, quiet=options.json) as watch,
    ):
        fused = run_fusion(
            uploads,
            method,
            server,
            admission=admission,
            robustness=_safeguards(options),
            options=RunOptions(
                out=out,
                resume=options.resume,
                minutes=options.minutes,
                watch=watch,
                foresee=console.shows_progress(quiet=options.json),
                checkpoint_seconds=options.checkpoint_seconds,
                evaluate=None
                if dataset is None
                else _make_evaluate(dataset, options.split, server.device),
                evaluated_on=evaluated_on,
                evaluate_every=options.evaluate_every,
                on_point=tracking.log_point,
                budget=budget,
            ),
        )
        tracking.describe_end(_numbers(fused), fused.record["ending"])
    _check_learned(fused, out)

    def show() -> None:
        tables.show_fused(fused, out, evaluated_on, student)
        page = f"attar report {out} --data {options.data or 'SOURCE'} --uploads FILES"
        console.say(f"A page that compares it with each client, class by class: {page}")
        if dataset is not None and options.split == "test":
            tables.show_cut(str(options.data), dataset)

    record = {"out": str(out), **fused.record, "one_answer": [asdict(one) for one in one_answers]}
    console.emit(record, show, json=options.json)


def _describe_start(
    options: FuseOptions, uploads: Sequence[Upload], server: Server
) -> dict[str, Any]:
    """What a run begins with beside its method, for trackers."""
    return {
        "student": server.student.arch,
        "uploads": len(uploads),
        **{key: getattr(options, key) for key in ("seed", "precision", "minutes")},
        "device": server.device,
    }


def _safeguards(options: FuseOptions) -> Safeguards:
    return Safeguards(
        bound=not options.trust_counts,
        report=not options.no_robustness,
        backdoors=options.backdoors,
    )


def _numbers(fused: Fused) -> dict[str, Any]:
    """The numbers of a run, for trackers."""
    record = fused.record
    named = {f"accuracy of {name}": value for name, value in record["accuracies"].items()}
    return {**named, **{key: record[key] for key in ("accuracy", "seconds", "bytes_received")}}


def _ask_about_classes(options: FuseOptions, uploads: Sequence[Upload]) -> None:
    """Refuse to merge class lists that may mean the same by other names; a dry run warns."""
    if options.merge_classes or options.classes is not None:
        return
    if question := question_classes(uploads):
        if not options.dry_run:
            raise question.error
        console.note(f"warning: {question.error}\n")


def _check_learned(fused: Fused, out: Path) -> None:
    """Raise where the run was out of minutes before the model learned anything."""
    if not fused.learned:
        steps = ", ".join(f"{phase} {done}" for phase, done in fused.record["steps"].items())
        raise NothingLearned(
            f"{fused.record['method']} was out of minutes before its model learned anything: "
            f"{steps}. The model in {out} is untrained: do not use it.",
            fix="the same command with --resume and more --minutes, or a cheaper method or "
            "--student with another --out (`attar fuse --dry-run` says what each takes)",
        )


def _usual_method(uploads: Sequence[Upload]) -> str:
    """The method where none was named: of sums, a head in closed form."""
    return "gaussian-head" if any("sums" in one.parts for one in uploads) else "ensemble"


def _configure_method(options: FuseOptions, name: str) -> AnyMethod:
    kind = find_method(name)
    settings = pairs(options.settings)
    if (
        options.method is None and name == "ensemble"
    ):  # better on record than the papers' mean of logits
        settings = {"rule": "mean-probabilities", **settings}
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
    received = receive(options.files, resident=options.teacher_memory is None)
    if options.inspected is not None:
        check_inspected(received, options.inspected)
    return admit(
        received,
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
    server = server_for(
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
    return replace(server, backbones=dict.fromkeys(options.backbone))


def _make_budget(options: FuseOptions, evaluated: int) -> Budget:
    """What the run may ask of the machine, with so many images to evaluate on."""
    limits = {"--max-memory": options.max_memory, "--max-work": options.max_work}
    if wrong := [f"{flag} {value}" for flag, value in limits.items() if value and value < 0]:
        raise SettingsError(f"A limit cannot be negative: {', '.join(wrong)}.")
    return Budget(
        memory=None if options.max_memory is None else int(options.max_memory * 2**30),
        work=options.max_work,
        evaluated=evaluated,
        robustness=not options.no_robustness,
    )


def _run_dry(
    options: FuseOptions,
    name: str,
    method: AnyMethod,
    uploads: Sequence[Upload],
    server: Server,
) -> None:
    """Show which methods fit, or whether the chosen one does, and the cost of each."""
    budget = _make_budget(options, 0)
    if not options.json:
        plan.show_price(price_run(uploads, server, method, budget))
    check_price(uploads, server, method, budget)
    check_answers(uploads, server.device)
    chosen = {name: method} if options.method or options.settings else None
    with console.progress("dry run", quiet=options.json) as watch:
        rows = listing.estimate_methods(uploads, server, chosen, watch)
    settings = "these" if options.settings else "default"
    if chosen is None:
        rows, obstacles = plan.rank_rows(rows, uploads, server, options.minutes)
        console.emit(rows, lambda: plan.show_plan(rows, settings, obstacles), json=options.json)
    else:
        console.emit(rows, lambda: plan.show_plan(rows, settings), json=options.json)
    if not options.method:
        for reason in listing.refused_plugins("methods"):
            console.note(f"warning: {reason}")


def _make_evaluate(dataset: Dataset, part: PartName, device: str) -> Evaluate:
    """A function that measures a model on a part of the data."""
    images = dataset.part(part)

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, images, dataset.classes, device=device)

    return evaluate
