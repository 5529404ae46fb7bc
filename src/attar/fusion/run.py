"""Uploads and a method in, one model out: checks, the drive through the method's phases, the
record.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from attar.core import (
    AnyMethod,
    Deployable,
    Images,
    ModelSpec,
    Part,
    Phase,
    Preprocess,
    Result,
    Server,
    State,
    Task,
    Upload,
)
from attar.errors import DivergedError, NeedsError, SettingsError, SpecError, Stopped
from attar.fusion.outliers import examine
from attar.internal.tensors import hash_tensors
from attar.methods import find_method, method_name
from attar.methods.needs import unmet
from attar.models import Classifier, largest_shape, parse_net
from attar.running import Driver, RunFolder, Watch, check_steps
from attar.settings import flatten
from attar.uploads import Admission, class_name_problems, encode, read_digest, value_problems
from attar.version import __version__

Evaluate = Callable[[Classifier], float]
Look = Callable[
    [str, int, Result], None
]  # phase, step, what the run would deliver if it ended there
STUDENT = ModelSpec("resnet20")  # small, and takes images from 3 x 3 pixels on


@dataclass(frozen=True)
class Fused:
    """What a fusion delivers."""

    result: Result
    record: Mapping[str, Any]

    @property
    def model(self) -> Classifier:
        """The headline model, the first of the result, ready to classify."""
        return Classifier(_headline(self.result))

    @property
    def finished(self) -> bool:
        return bool(self.record["ending"] == "finished")


def server_for(
    uploads: Sequence[Upload],
    *,
    student: str | ModelSpec | None = None,
    task: Task | None = None,
    classes: Sequence[str] | None = None,
    initial: Part | None = None,
    public: Images | None = None,
    seed: int = 0,
    device: str = "cpu",
    precision: str = "fp32",
    compile: bool = False,
    teacher_memory: int | None = None,
) -> Server:
    """A server for these uploads: the union of their classes, images large enough for all, the
    commonest net as student.

    Where nobody sends a classifier that could be trained anew (a packed net is only what its
    weights make of it) the student is ``STUDENT``, unless told otherwise. ``classes``: the
    task's, in this order, instead of the union in the order of the uploads.
    """
    parts = [part for upload in uploads for part in upload.parts.values()]
    if not parts:
        raise NeedsError("There is no upload.", fix="give the task and the student explicitly")
    if task is None:
        union = tuple(dict.fromkeys(name for part in parts for name in part.classes))
        task = Task(largest_shape(tuple(parts)), union if classes is None else tuple(classes))
    if classes is not None and (problems := class_name_problems(task.classes)):
        raise NeedsError("The task cannot have these classes:", problems=problems)
    classifiers = [
        part
        for upload in uploads
        for name, part in upload.parts.items()
        if name in ("classifier", "knowledge")
    ]
    specs = [part.spec for part in classifiers if part.spec.fresh]
    if student is None and initial is not None and not initial.spec.fresh:
        spec = initial.spec
    elif student is None:
        spec = max(specs, key=specs.count) if specs else STUDENT
    else:
        spec = parse_net(student) if isinstance(student, str) else student
    if spec.kind != "classifier":
        raise SpecError(
            f"The student cannot be {spec}: it is a {spec.kind}.", fix="name a net that classifies"
        )
    if not spec.fresh and initial is None:
        raise SpecError(
            f"The student cannot be {spec}: a packed net has no beginning.",
            fix="name a net, or weights to start from",
        )
    if initial is not None and initial.spec != spec:
        raise SpecError(
            f"The student {spec} cannot start from a {initial.spec}.",
            fix="name the start's net as the student, or leave it out",
        )
    alike = (
        [part.preprocess for part in classifiers if part.spec == spec]
        if initial is None
        else [initial.preprocess]
    )
    preprocess = max(alike, key=alike.count) if alike else Preprocess.centred(task.input_shape)
    spec.skeleton(
        preprocess.input_shape, len(task.classes)
    )  # a student that cannot see these images is refused here
    return Server(
        task, spec, preprocess, initial, seed, device, precision, public, compile, teacher_memory
    )


def fuse(
    uploads: Sequence[Upload],
    method: AnyMethod | str,
    server: Server | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    minutes: float | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 30.0,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    evaluated_on: str | None = None,
    look: Look | None = None,
    admission: Admission | None = None,
    robustness: bool = False,
) -> Fused:
    """Fuse uploads into one model. With ``out``, write a model folder, and keep a checkpoint
    there while it runs.

    ``minutes`` ends the run in time with the model of the moment. ``evaluate`` measures that
    model every ``evaluate_every`` steps of a phase that changes it, and at the end; the method
    never sees it. ``look`` is shown the result of the moment as often. ``admission`` says how
    the uploads came in, for the record; with ``robustness`` every client is looked at when the
    model is there (robustness.py). ``method`` may be a name: that one with its own settings.
    """
    if isinstance(method, str):
        method = find_method(method)()
    if evaluate_every is not None and evaluate_every < 1:
        raise SettingsError(
            f"evaluate_every = {evaluate_every}: expected a whole number of steps from 1"
        )
    server = server or server_for(uploads)
    check_needs(method, uploads, server)
    admission = admission or Admission()
    wanted = describe_run(uploads, method, server, admission)
    context = method.prepare(uploads, server)
    state = method.start(context)
    phases = method.phases(context)
    check_steps(
        phases
    )  # before there is a run folder, which would be in the way of the corrected command
    folder = None if out is None else RunFolder(Path(out))
    notes = folder.begin(wanted, state, resume=resume, device=server.device) if folder else {}
    history: list[dict[str, Any]] = notes.get("history", [])
    begun = time.monotonic() - notes.get("seconds", 0.0)
    spent: dict[str, float] = notes.get("seconds_by_phase", {})
    last = time.monotonic()

    def ready(model: Deployable) -> Classifier:
        return Classifier(model).to(server.device)

    def clock(what: str) -> None:
        nonlocal last
        spent[what] = spent.get(what, 0.0) + time.monotonic() - last
        last = time.monotonic()

    def measure(phase: Phase) -> dict[str, float]:
        if (
            evaluate is None
            or evaluate_every is None
            or not phase.learns
            or state.step % evaluate_every
        ):
            clock(phase.name)
            return {}
        if torch.device(server.device).type == "cuda":
            torch.cuda.synchronize(
                server.device
            )  # what the GPU has yet to do belongs to the phase, not to the evaluation
        clock(phase.name)
        found = method.result(context, state)
        accuracy = evaluate(ready(_headline(found)))
        if look is not None:
            look(phase.name, state.step, found)
        clock("evaluation")
        return {"accuracy": accuracy}

    def save() -> None:
        if folder:
            notes = {
                "history": history,
                "seconds": time.monotonic() - begun,
                "seconds_by_phase": spent,
            }
            folder.save(state, notes)

    driver = Driver(
        server.seed, server.device, server.precision, watch, minutes, checkpoint_seconds
    )
    ending = driver.run(
        phases, state, history=history, save=save if folder else None, after_step=measure
    )
    if ending == "stopped":
        kept = (
            f"run the same command with --resume: it goes on from what {out} holds"
            if out
            else "start it again"
        )
        raise Stopped("Stopped by Ctrl-C.", fix=kept)
    result = method.result(context, state)
    _check_finite(method, result)
    accuracies = (
        {}
        if evaluate is None
        else {name: evaluate(ready(model)) for name, model in result.models.items()}
    )
    found = examine(uploads, server, result) if robustness else None
    record = {
        **wanted,
        "device": server.device,
        "compiled": server.compile,
        "ending": ending,
        "steps": {
            phase.name: _steps_done(state, place, phase) for place, phase in enumerate(phases)
        },
        "seconds": round(time.monotonic() - begun, 3),
        "seconds_by_phase": {name: round(seconds, 3) for name, seconds in spent.items()},
        "bytes_received": sum(client["bytes"] for client in wanted["clients"]),
        "accuracy": next(iter(accuracies.values()), None),
        "accuracies": accuracies,
        "remarks": list(result.remarks),
        "evaluated_on": evaluated_on,
        "signatures": admission.describe_signers(),
        "robustness": None if found is None else found.as_json(),
        "history": history,
    }
    if folder:
        folder.finish(result, record)
    return Fused(result, record)


def check_needs(method: AnyMethod, uploads: Sequence[Upload], server: Server) -> None:
    """Raise a NeedsError with every reason why the method cannot work with these uploads."""
    if reasons := unmet(method.needs, uploads, server):
        raise NeedsError(
            f"Method {method_name(method)} cannot fuse {'this upload' if len(uploads) == 1 else f'these {len(uploads)} uploads'}:",
            problems=reasons,
            fix="`attar fuse --dry-run` shows the methods that can",
        )


def _check_finite(method: AnyMethod, result: Result) -> None:
    """Raise where the method's own nets are no numbers any more; the members of an ensemble were
    checked when they arrived.
    """
    parts = {name: model for name, model in result.models.items() if isinstance(model, Part)}
    if lost := [name for name, part in parts.items() if value_problems(part.state)]:
        raise DivergedError(
            f"Method {method_name(method)} diverged: weights of its {', '.join(lost)} are no numbers any more.",
            fix="use a smaller learning rate (student_lr, lr …) or bound the steps (clip=1) with --set, and another --out",
        )


def describe_run(
    uploads: Sequence[Upload], method: AnyMethod, server: Server, admission: Admission | None = None
) -> dict[str, Any]:
    """Everything that decides the outcome, as JSON: two runs with equal descriptions give equal
    bits.
    """
    admission = admission or Admission()
    clients = []
    for upload in uploads:
        size, sha256 = admission.files.get(upload.client) or _as_file(upload)
        clients.append(
            {
                "client": upload.client,
                "parts": {name: str(part.spec) for name, part in upload.parts.items()},
                "num_examples": upload.num_examples,
                "label_counts": None if upload.label_counts is None else list(upload.label_counts),
                "bytes": size,
                "sha256": sha256,
            }
        )
    return {
        "method": method_name(method),
        "settings": flatten(method),
        "student": str(server.student),
        "student_preprocess": asdict(server.student_preprocess),
        "task": asdict(server.task),
        "seed": server.seed,
        "precision": server.precision,
        "initial": None if server.initial is None else server.initial.fingerprint(),
        "public": describe_images(server.public),
        "clients": clients,
        "class_map": dict(admission.class_map),
        "excluded": list(admission.excluded),
        "attar": __version__,
    }


def _as_file(upload: Upload) -> tuple[int, str]:
    """Bytes and sha256 of the file that an upload would be."""
    file = encode(upload)
    return len(file), read_digest(file)


def describe_images(images: Images | None) -> dict[str, Any] | None:
    """Where the server's images come from, whether they are labelled, and which they are."""
    if images is None:
        return None
    tensors = [images.pixels] if images.labels is None else [images.pixels, images.labels]
    return {
        "source": images.source,
        "images": len(images.pixels),
        "labelled": images.labels is not None,
        "sha256": hash_tensors(tensors),
    }


def _headline(result: Result) -> Deployable:
    return next(iter(result.models.values()))


def _steps_done(state: State, place: int, phase: Phase) -> str:
    done = phase.steps if place < state.phase else state.step if place == state.phase else 0
    return f"{done} of {phase.steps}"
