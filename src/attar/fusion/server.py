"""The server of a fusion: its task, its student and what it has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from attar.core import Images, ModelSpec, Part, Preprocess, Server, Task, Upload
from attar.errors import NeedsError, SpecError
from attar.models import largest_shape, parse_net
from attar.nets.cost import multiply_accumulates
from attar.nets.registry import MAX_CLASSES, find
from attar.uploads import class_name_problems

STUDENT = ModelSpec("resnet20")  # small, and takes images from 3 x 3 pixels on
Ties = Literal["cheapest", "first"]


@dataclass(frozen=True)
class ServerOptions:
    """What the server of a federation has and how it computes.

    Attributes:
        student: Architecture of the fused model; None: the clients' commonest net, or the
            knowledge network of a method that has one.
        public: The server's images.
        initial: The model that it sends in the first round.
        precision: Arithmetic: fp32, tf32 or bf16; also of the clients, who train here.
        compile: On CUDA, compile the clients' nets in fusions that ask them often.
    """

    student: str | ModelSpec | None = None
    public: Images | None = None
    initial: Part | None = None
    precision: str = "fp32"
    compile: bool = False


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
    ties: Ties = "cheapest",
) -> Server:
    """Make a server for these uploads.

    Args:
        uploads: Their classes and images make the task; their nets, the student.
        student: Architecture of the fused model, as text or spec. None: the packed net of
            ``initial``, else the clients' commonest one that can be trained anew (a packed net
            cannot), the cheapest of several; else ``STUDENT``.
        task: None: all classes of the uploads, on images large enough for every client.
        classes: Of the task, in this order. None: in the order of the uploads.
        initial: Weights that the student starts from.
        public: The server's images.
        seed: Of everything that the method draws.
        device: Where the method runs.
        precision: Arithmetic: fp32, tf32 or bf16.
        compile: On CUDA, compile the clients' nets.
        teacher_memory: Bytes of clients' weights on the device at once; None: all of them.
        ties: Of nets that equally many clients have, the student is the ``cheapest``, or the
            ``first`` as up to version 0.1.

    Raises:
        NeedsError: There is no upload, or the classes cannot be told apart.
        SpecError: The student is no classifier, has no weights to start from, or cannot see the
            images of the task.
    """
    parts = [part for upload in uploads for part in upload.parts.values()]
    if not parts:
        raise NeedsError("There is no upload.", fix="give the task and the student explicitly")
    if task is None:
        union = tuple(dict.fromkeys(name for part in parts for name in part.classes))
        _check_number_of_classes(uploads, len(union if classes is None else classes))
        task = Task(largest_shape(tuple(parts)), union if classes is None else tuple(classes))
    if classes is not None and (problems := class_name_problems(task.classes)):
        raise NeedsError("The task cannot have these classes:", problems=problems)
    classifiers = _classifiers(uploads)
    spec = _student_spec(student, classifiers, initial, ties)
    alike = (
        [part.preprocess for part in classifiers if part.spec == spec]
        if initial is None
        else [initial.preprocess]
    )
    preprocess = max(alike, key=alike.count) if alike else Preprocess.centred(task.input_shape)
    spec.skeleton(preprocess.input_shape, len(task.classes))  # raises where it cannot see them
    return Server(
        task=task,
        student=spec,
        student_preprocess=preprocess,
        initial=initial,
        seed=seed,
        device=device,
        precision=precision,
        public=public,
        compile=compile,
        teacher_memory=teacher_memory,
    )


def _check_number_of_classes(uploads: Sequence[Upload], number: int) -> None:
    """Raise a NeedsError that names the client with the most classes where there are too many."""
    if number <= MAX_CLASSES:
        return
    sizes = {
        upload.client: max(len(part.classes) for part in upload.parts.values())
        for upload in uploads
    }
    client, most = max(sizes.items(), key=lambda item: item[1])
    raise NeedsError(
        f"The clients list {number:,} different classes, more than the {MAX_CLASSES:,} that a net "
        f"can have; client {client} alone lists {most:,}.",
        fix=f"leave it out (--exclude {client}), or name the task's classes with --classes",
    )


def explain_student(
    uploads: Sequence[Upload], server: Server, student: str | ModelSpec | None = None
) -> str:
    """Why the student has its architecture, to be printed after its name.

    Args:
        uploads: What is fused.
        server: Made for them by ``server_for``.
        student: What ``server_for`` was given.
    """
    if student is not None:
        return "as chosen"
    specs = [part.spec for part in _classifiers(uploads) if part.spec.fresh]
    chosen = server.student
    if server.initial is not None and not server.initial.spec.fresh:
        return "the net of the start"
    if chosen not in specs:
        return "no client sent a net that can be trained anew; choose with --student"
    most = specs.count(chosen)
    equals = sum(specs.count(spec) == most for spec in dict.fromkeys(specs))
    senders = f"{most} client{'s' if most > 1 else ''}"
    if len(set(specs)) == 1:
        return f"the net of {senders}; choose with --student"
    if equals == 1:
        return f"the commonest net, of {most} of {len(specs)} clients; choose with --student"
    return f"the cheapest of {equals} nets that {senders} each sent; choose with --student"


def _classifiers(uploads: Sequence[Upload]) -> list[Part]:
    return [
        part
        for upload in uploads
        for name, part in upload.parts.items()
        if name in ("classifier", "knowledge")
    ]


def _commonest(parts: Sequence[Part], ties: Ties) -> ModelSpec:
    """The net that most clients have, of those that can be trained anew."""
    specs = [part.spec for part in parts if part.spec.fresh]
    if not specs:
        return STUDENT
    most = max(specs.count(spec) for spec in specs)
    equals = [part for part in parts if part.spec.fresh and specs.count(part.spec) == most]
    if ties == "first" or len({part.spec for part in equals}) == 1:
        return equals[0].spec
    return min(equals, key=_cost).spec


def _cost(part: Part) -> int:
    """Time and size of a net: the products of one image, times the number of weights.

    By products alone an ``mlp`` would be cheaper than the smallest convolutional net.
    """
    shape = part.preprocess.input_shape
    net = part.spec.skeleton(shape, len(part.classes))
    return multiply_accumulates(net, shape) * sum(weight.numel() for weight in net.parameters())


def _student_spec(
    student: str | ModelSpec | None,
    classifiers: Sequence[Part],
    initial: Part | None,
    ties: Ties,
) -> ModelSpec:
    """The student's architecture, checked against the weights that it starts from."""
    if student is None and initial is not None and not initial.spec.fresh:
        spec = initial.spec
    elif student is None:
        spec = _commonest(classifiers, ties)
    elif isinstance(student, str):
        if ":" not in student:
            find(student, kinds=("classifier",))  # an error names nets that can be students
        spec = parse_net(student)
    else:
        spec = student
    if spec.kind != "classifier":
        raise SpecError(
            f"The student cannot be {spec}: it is a {spec.kind}.", fix="name a net that classifies"
        )
    if not spec.fresh and initial is None:
        raise SpecError(
            f"The student cannot be {spec}: a packed net has no initial weights.",
            fix="name a net, or weights to start from",
        )
    if initial is not None and initial.spec != spec:
        raise SpecError(
            f"The student {spec} cannot start from a {initial.spec}.",
            fix="name the start's net as the student, or leave it out",
        )
    return spec
