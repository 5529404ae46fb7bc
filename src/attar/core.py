"""The few types that everything else is made of.

Task        what is to be recognised: image shape and class names
ModelSpec   an architecture by name, with its options
Preprocess  canonical image ([0, 1], C x H x W) -> input of one net
Part        a trained net: spec, weights, its own classes, its own preprocessing
Mixture     several parts and the rule that combines them: a model without a student
Gate        how a mixture weights its members for each image
Upload      what one client sends, once, or once a round
Broadcast   what the server sends to a client at the beginning of a round
Images      pictures at the server, said whether labelled
Server      what the server knows and owns
Needs       what a method asks of the uploads
Method      a paper: prepare, start, phases, result
State       everything that changes while a method runs
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from attar.errors import SpecError
from attar.nets.registry import NETS, Kind, Shape, build, checked_options, find, token_net
from attar.settings import Scalar, pairs


@dataclass(frozen=True)
class Task:
    """What is to be recognised. Canonical images are floats in [0, 1], C x H x W."""

    input_shape: Shape
    classes: tuple[str, ...]


@dataclass(frozen=True)
class ModelSpec:
    """An architecture by name, with its options: hashable, comparable, JSON-able."""

    arch: str
    options: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ModelSpec:
        """``"cnn5"`` or ``"vit-tiny:patch=4,depth=6"``; unknown names and options raise an AttarError."""
        arch, _, rest = text.partition(":")
        return cls.of(arch, pairs([item for item in rest.split(",") if item]))

    @classmethod
    def of(cls, arch: str, options: Mapping[str, Scalar]) -> ModelSpec:
        """Checked, and in one form: options in order, defaults left out, so that equal nets have
        equal specs.
        """
        checked = checked_options(arch, options)
        defaults = find(arch).options
        return cls(
            arch,
            tuple(
                sorted(
                    (key, value) for key, value in checked.items() if value != defaults[key].default
                )
            ),
        )

    def __str__(self) -> str:
        entry = NETS.get(self.arch)
        if entry is not None and entry.title is not None:
            return entry.title(dict(self.options))
        return self.arch + (
            ":" + ",".join(f"{key}={value}" for key, value in self.options) if self.options else ""
        )

    @property
    def fresh(self) -> bool:
        """Whether it can be trained from nothing; a packed net is only what its weights make of it."""
        return not find(self.arch).required

    @property
    def kind(self) -> Kind:
        """Whether it classifies, or is an autoencoder, or the decoder of one."""
        return find(self.arch).kind

    def patches(self, input_shape: Shape) -> tuple[int, int] | None:
        """Rows and columns of the patches that it cuts an image into; None of a net that has no tokens."""
        return (
            token_net(self.arch, self.skeleton(input_shape, 1)).grid
            if find(self.arch).tokens
            else None
        )

    def build(self, input_shape: Shape, num_classes: int, seed: int) -> nn.Module:
        """A fresh net on the CPU: the same seed gives the same bits, whatever was drawn before."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(
                seed
            )  # torch.manual_seed would reseed the user's CUDA generators too
            return build(self.arch, dict(self.options), input_shape, num_classes)

    def blank(self, input_shape: Shape, num_classes: int) -> nn.Module:
        """A net on the CPU whose weights will be loaded: they are 0, since drawing those of a
        large net takes longer than loading.
        """
        with torch.random.fork_rng(devices=[]), _NoDraws():
            return build(self.arch, dict(self.options), input_shape, num_classes)

    def skeleton(self, input_shape: Shape, num_classes: int) -> nn.Module:
        """The net's shapes without its memory (on the ``meta`` device), to check weights against
        before building it.
        """
        with torch.device("meta"), _NoDraws():
            return build(self.arch, dict(self.options), input_shape, num_classes)


_DRAWS = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
)


class _NoDraws(TorchFunctionMode):
    """Weights that nobody will read are not drawn. On ``meta`` drawing them would even import
    torch's compiler, two seconds.

    Anything else is drawn: ``trunc_normal_`` draws again, beside the weights, until every number
    lies in its range.
    """

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _DRAWS and isinstance(
            drawn := args[0] if args else (kwargs or {})["tensor"], nn.Parameter
        ):
            drawn.detach().zero_()
            return drawn
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Preprocess:
    """Canonical image -> input of one net: grey or colour, resized, normalised. Differentiable.

    Of a decoder: its output -> canonical image.
    """

    input_shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        channels = self.input_shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise SpecError(
                f"Preprocessing needs {channels} means and stds, got {self.mean} and {self.std}."
            )
        if any(not 0 < std < float("inf") for std in self.std):
            raise SpecError(f"Preprocessing needs positive standard deviations, got {self.std}.")

    @classmethod
    def centred(cls, input_shape: Shape) -> Preprocess:
        """[0, 1] -> [-1, 1], as most of the papers' code does."""
        half = (0.5,) * input_shape[0]
        return cls(input_shape, half, half)

    @classmethod
    def plain(cls, input_shape: Shape) -> Preprocess:
        """[0, 1] as it is: what a CVAE takes in and its decoder gives out."""
        return cls(input_shape, (0.0,) * input_shape[0], (1.0,) * input_shape[0])

    def __call__(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in [0, 1] -> (B, *input_shape)."""
        images = to_shape(images, self.input_shape)
        if len(set(self.mean)) == len(set(self.std)) == 1:  # no need to take the channels apart
            return (images - self.mean[0]) / self.std[0]
        each = zip(images.split(1, dim=1), self.mean, self.std, strict=True)
        return torch.cat([(channel - mean) / std for channel, mean, std in each], 1)


def to_shape(images: Tensor, shape: Shape) -> Tensor:
    """Canonical images in another channel count and size: grey is repeated or averaged, sizes
    change bilinearly.
    """
    channels, height, width = shape
    if images.shape[1] != channels:
        images = images.mean(1, keepdim=True).expand(-1, channels, -1, -1)
    if images.shape[2:] != (height, width):
        shrinks = images.shape[2] > height or images.shape[3] > width
        images = F.interpolate(
            images, (height, width), mode="bilinear", align_corners=False, antialias=shrinks
        )
    return images


def fingerprint(tensors: Iterable[Tensor]) -> str:
    """The sha256 of what lies in these tensors."""
    hasher = hashlib.sha256()
    for tensor in tensors:
        hasher.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return hasher.hexdigest()


@dataclass(frozen=True)
class Part:
    """A trained net, complete in itself."""

    spec: ModelSpec
    state: Mapping[str, Tensor]
    classes: tuple[str, ...]
    preprocess: Preprocess

    def build(self) -> nn.Module:
        """The net with its weights, on the CPU, in eval mode and frozen."""
        net = self.spec.blank(self.preprocess.input_shape, len(self.classes))
        net.load_state_dict(dict(self.state))
        return net.eval().requires_grad_(False)

    def for_classes(self, classes: tuple[str, ...], seed: int) -> Part:
        """A start for other classes: the same body with a fresh head; where the classes are its
        own, itself in their order.
        """
        if (moved := self.in_order(classes)) is not None:
            return moved
        fresh = self.spec.build(self.preprocess.input_shape, len(classes), seed).state_dict()
        kept = [name for name in fresh if not name.startswith("head.")]
        if len(kept) == len(fresh) or any(
            fresh[name].shape != self.state[name].shape for name in kept
        ):
            raise SpecError(
                f"{self.spec} has no head that could be made anew for other classes.",
                fix="start from another net",
            )
        kind = next(value.dtype for value in self.state.values() if value.is_floating_point())
        state = {
            name: self.state[name] if name in kept else value.to(kind)
            for name, value in fresh.items()
        }
        return Part(self.spec, state, classes, self.preprocess)

    def in_order(self, classes: tuple[str, ...]) -> Part | None:
        """The same net with its own classes in this order; None where they are others, or its
        head cannot be told.
        """
        if classes == self.classes:
            return self
        head = [name for name in self.state if name.startswith("head.")]
        if sorted(classes) != sorted(self.classes) or not head or not self.spec.fresh:
            return None
        rows = torch.tensor([self.classes.index(name) for name in classes])
        return Part(
            self.spec,
            {**self.state, **{name: self.state[name][rows] for name in head}},
            classes,
            self.preprocess,
        )

    def fingerprint(self) -> str:
        """The sha256 of its weights, whatever order they were read in."""
        return fingerprint(self.state[name] for name in sorted(self.state))

    def learned(self) -> frozenset[str]:
        """The entries of ``state`` that are learned; the others are statistics and counters."""
        skeleton = self.spec.skeleton(self.preprocess.input_shape, len(self.classes))
        return frozenset(name for name, _ in skeleton.named_parameters(remove_duplicate=False))


@dataclass(frozen=True)
class Gate:
    """How a mixture weights its members for each image: by how familiar the image looks to each.

    gate_k(x) = softmax over k of -sharpness * score_k(x), where the score is high for images unlike
    those that member k was trained on. docs/methods/accord.md defines the scores.

    Attributes:
        statistics: feature statistics of each member, None for a member without any; empty: nobody
            sent statistics, and the scores come from the running variances of BatchNorm.
        sharpness: b; 0 gives all members the same weight.
        temperature: t, by which the members' logits are divided before the softmax.
    """

    statistics: tuple[Part | None, ...] = ()
    sharpness: float = 0.0
    temperature: float = 1.0


@dataclass(frozen=True)
class Mixture:
    """Several parts and the rule that combines them: a deployable model without a student.

    Attributes:
        members: the nets.
        rule: one of ``blocks.ensemble.RULES``.
        weights: (K,) or (K, C) for K members and C classes; None where the rule has none.
        classes: of the mixture; each is a class of some member.
        gate: weights for each image, of the rule "accord"; None for other rules.
    """

    members: tuple[Part, ...]
    rule: str
    weights: Tensor | None
    classes: tuple[str, ...]
    gate: Gate | None = None


Deployable = Part | Mixture


@dataclass(frozen=True)
class Upload:
    """What one client sends, once."""

    client: str
    parts: Mapping[str, Part]  # "classifier" | "decoder" | "knowledge" | …
    num_examples: int
    label_counts: tuple[int, ...] | None = None  # over the parts' own classes; None when withheld
    round: int = 1
    local_steps: int = 0


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to a client at the beginning of a round; counted like an upload."""

    parts: Mapping[
        str, Part
    ]  # the model to start from under the name that it travels by, and what the method adds
    round: int = 1


@dataclass(frozen=True)
class Images:
    """Pictures that the server owns: public or held out, never a test set."""

    pixels: Tensor  # uint8, (N, C, H, W)
    labels: Tensor | None  # int64 (N,) or None: unlabelled
    source: str

    def on(self, device: str, *, labelled: bool) -> Images:
        """The same on a device; their labels stay behind where nobody asks for them."""
        labels = self.labels.to(device) if labelled and self.labels is not None else None
        return Images(self.pixels.to(device), labels, self.source)


@dataclass(frozen=True)
class Server:
    """What the server knows and owns."""

    task: Task
    student: ModelSpec
    student_preprocess: Preprocess
    initial: Part | None = None  # weights to start from
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    public: Images | None = None
    compile: bool = False  # by torch.compile, on CUDA: a slower start and faster steps
    teacher_memory: int | None = (
        None  # bytes of clients' weights in memory at once; None: all of them
    )
    memory: Mapping[str, Part] = field(
        default_factory=dict
    )  # what it kept from the round before: the model, a control variate
    population: int | None = (
        None  # clients in the whole federation, where only some take part in a round
    )


@dataclass(frozen=True)
class Needs:
    """What a method asks of the uploads and of the server."""

    parts: tuple[str, ...] = ("classifier",)  # each client sends at least one of these
    at_least: tuple[tuple[str, int], ...] = ()  # (part, how many in the whole federation)
    same_architecture: bool = False
    capabilities: tuple[str, ...] = ()  # "batchnorm", "tokens": some classifier must have it
    each: tuple[str, ...] = ()  # "features": every classifier must have it
    same_patches: bool = (
        False  # every classifier and the student have "tokens", over one grid of patches
    )
    label_counts: bool = False
    label_counts_with: tuple[
        str, ...
    ] = ()  # whoever sends one of these parts must send label counts, too
    public_data: bool = False
    public_labels: bool = False
    initial: bool = False  # the model that the clients started from
    different_classes: bool = True  # works when clients name different classes
    student: bool = (
        True  # makes a student of the server's choice; False: the clients' architectures decide
    )


@dataclass
class State:
    """Everything that changes while a method runs; each method extends it by typed fields.

    Fields may be modules, optimisers, schedulers, tensors, ``torch.Generator``s, numbers, texts,
    None, and dicts or lists of these. ``checkpoint.py`` saves and restores all of them bit for
    bit.
    """

    phase: int = field(default=0, kw_only=True)
    step: int = field(default=0, kw_only=True)


Context_ = TypeVar("Context_")
State_ = TypeVar("State_", bound=State)
Metrics = Mapping[str, float | Tensor]


@dataclass(frozen=True)
class Phase:
    """A named stretch of equal steps. ``work(i)`` is the relative cost of step i, for an honest
    time left.

    Its unit is the same for all settings of a method, so that a short trial tells what a long
    run will take.
    """

    name: str
    steps: int
    step: Callable[[Any], Metrics]
    work: Callable[[int], float] = lambda _: 1.0
    learns: bool = (
        True  # whether the delivered model changes: only there its accuracy is worth measuring
    )


@dataclass(frozen=True)
class Result:
    """What a method delivers; the first model is the headline."""

    models: Mapping[str, Deployable]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    images: Mapping[str, Tensor] = field(default_factory=dict)
    remarks: tuple[
        str, ...
    ] = ()  # what the reader of the record should know: a term that found nothing to work on
    memory: Mapping[str, Part] = field(
        default_factory=dict
    )  # for the next round: the server keeps it and sends it to the clients


class Method(Protocol[Context_, State_]):
    """A paper. A frozen dataclass whose fields *are* the hyper-parameters, the flags and the record.

    ``needs`` may depend on the fields (``fedavg`` with ``mixed="vote"`` takes several
    architectures).
    """

    paper: ClassVar[str]  # authors and year, for lists
    cost: ClassVar[str]  # what it spends, in words

    @property
    def needs(self) -> Needs: ...

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context_:
        """Teachers and the like: cheap, deterministic, repeated on resume, never saved."""
        ...

    def start(self, context: Context_) -> State_:
        """Everything that changes, at its beginning."""
        ...

    def phases(self, context: Context_) -> Sequence[Phase]: ...

    def result(self, context: Context_, state: State_) -> Result: ...


AnyMethod = Method[Any, Any]
