"""The few types that everything else is made of.

Task        what is to be recognised: image shape and class names
ModelSpec   an architecture by name, with its options
Preprocess  canonical image ([0, 1], C x H x W) -> input of one net
Part        a trained net: spec, weights, its own classes, its own preprocessing
Mixture     several parts and the rule that combines them: a model without a student
Gate        how a mixture weights its members for each image
Upload      what one client sends, once, or once a round
Broadcast   what the server sends to a client at the beginning of a round
Images      pictures at the server, labelled or not
Server      what the server knows and owns
Needs       what a method asks of the uploads
Method      a paper: prepare, start, phases, result
State       everything that changes while a method runs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor, nn

from attar.errors import SpecError
from attar.internal.tensors import hash_tensors
from attar.nets import ModelSpec, Preprocess, Shape
from attar.privacy_claim import PrivacyClaim

__all__ = [
    "AnyMethod",
    "Broadcast",
    "Deployable",
    "Images",
    "KeptSums",
    "Method",
    "Metrics",
    "Mixture",
    "ModelSpec",
    "Needs",
    "Part",
    "Phase",
    "Preprocess",
    "Result",
    "Server",
    "State",
    "Task",
    "Upload",
]


@dataclass(frozen=True)
class Task:
    """What is to be recognised.

    Attributes:
        input_shape: of canonical images, which are floats in [0, 1]: C x H x W.
        classes: the names, in the order of the model's outputs.
    """

    input_shape: Shape
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A trained net, complete in itself.

    Attributes:
        spec: its architecture.
        state: its weights by name, as ``state_dict`` gives them.
        classes: names in the order of its outputs.
        preprocess: canonical image -> its input.
    """

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
        """A net to start training from for these classes.

        Returns:
            The net itself, its outputs reordered, if it has these classes; otherwise its body
            with a new head.

        Raises:
            SpecError: if the net has no separate head.
        """
        if (reordered := self.in_order(classes)) is not None:
            return reordered
        fresh = self.spec.build(self.preprocess.input_shape, len(classes), seed).state_dict()
        body = [name for name in fresh if not name.startswith("head.")]
        reshaped = any(fresh[name].shape != self.state[name].shape for name in body)
        if len(body) == len(fresh) or reshaped:
            raise SpecError(
                f"{self.spec} has no head that can be replaced for other classes.",
                fix="start from another net",
            )
        dtype = next(value.dtype for value in self.state.values() if value.is_floating_point())
        state = {
            name: self.state[name] if name in body else value.to(dtype)
            for name, value in fresh.items()
        }
        return Part(self.spec, state, classes, self.preprocess)

    def in_order(self, classes: tuple[str, ...]) -> Part | None:
        """The same net with its classes in this order.

        Returns:
            None if these are other classes, or the net has no separate head.
        """
        if classes == self.classes:
            return self
        head = [name for name in self.state if name.startswith("head.")]
        if sorted(classes) != sorted(self.classes) or not head or not self.spec.fresh:
            return None
        rows = torch.tensor([self.classes.index(name) for name in classes])
        state = {**self.state, **{name: self.state[name][rows] for name in head}}
        return Part(self.spec, state, classes, self.preprocess)

    def fingerprint(self) -> str:
        """The sha256 of its weights, which does not depend on their order."""
        return hash_tensors(self.state[name] for name in sorted(self.state))

    def parameter_names(self) -> frozenset[str]:
        """The entries of ``state`` that are trained; the others are statistics and counters."""
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
    """What one client sends, once, or once a round.

    Attributes:
        client: its name, unique in a federation.
        parts: nets by role: "classifier", "decoder", "statistics", "knowledge" ...
        num_examples: the client's training images.
        label_counts: of each of the parts' classes; None if withheld.
        round: from 1.
        local_steps: optimiser steps of this round.
        privacy: what the client says of the noise in its training; None if it says nothing.
    """

    client: str
    parts: Mapping[str, Part]
    num_examples: int
    label_counts: tuple[int, ...] | None = None
    round: int = 1
    local_steps: int = 0
    privacy: PrivacyClaim | None = None


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to a client at the beginning of a round; counted like an upload.

    Attributes:
        parts: the model to start from, by its role, and what the method adds.
        round: from 1.
    """

    parts: Mapping[str, Part]
    round: int = 1


@dataclass(frozen=True)
class Images:
    """Pictures that the server owns: public or held out, never a test set.

    Attributes:
        pixels: uint8, (N, C, H, W).
        labels: int64, (N,); None if unlabelled.
        source: where they come from, for records.
    """

    pixels: Tensor
    labels: Tensor | None
    source: str

    def on(self, device: str, *, labelled: bool) -> Images:
        """A copy on a device, without labels if ``labelled`` is false."""
        labels = self.labels.to(device) if labelled and self.labels is not None else None
        return Images(self.pixels.to(device), labels, self.source)


@dataclass(frozen=True)
class Server:
    """What the server knows and owns.

    Attributes:
        task: what the fused model is to recognise.
        student: architecture of the fused model.
        student_preprocess: of the fused model.
        initial: weights to start from; None starts from new ones.
        seed: of the run.
        device: where it computes, "cpu" or "cuda".
        precision: "fp32", or one of ``blocks.execution``.
        public: images that the server may use.
        compile: use torch.compile on CUDA: a slower start, faster steps.
        teacher_memory: bytes of clients' weights to hold at once; None holds all of them.
        memory: what it kept from the round before: the model, a control variate.
        population: clients in the federation, if only some take part in a round.
        backbones: for the sums of clients: a net, or None for what attar loads by this name.
    """

    task: Task
    student: ModelSpec
    student_preprocess: Preprocess
    initial: Part | None = None
    seed: int = 0
    device: str = "cpu"
    precision: str = "fp32"
    public: Images | None = None
    compile: bool = False
    teacher_memory: int | None = None
    memory: Mapping[str, Part] = field(default_factory=dict)
    population: int | None = None
    backbones: Mapping[str, Part | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Needs:
    """What a method asks of the uploads and of the server."""

    parts: tuple[str, ...] = ("classifier",)  # each client sends at least one of these
    at_least: tuple[tuple[str, int], ...] = ()  # (part, how many in the whole federation)
    same_architecture: bool = False
    capabilities: tuple[str, ...] = ()  # "batchnorm", "tokens": some classifier must have it
    each: tuple[str, ...] = ()  # "features": every classifier must have it
    same_patches: bool = False  # classifiers and student have tokens over one grid of patches
    label_counts: bool = False
    label_counts_with: tuple[str, ...] = ()  # who sends one of these must send label counts
    squares_by_class: bool = False  # who sends sums of features sends a matrix for each class
    public_data: bool = False
    public_labels: bool = False
    initial: bool = False  # the model that the clients started from
    different_classes: bool = True  # works when clients name different classes
    student: bool = True  # trains the server's choice; False: the clients' nets decide


@dataclass
class State:
    """Everything that changes while a method runs; each method extends it by typed fields.

    Fields may be modules, optimisers, schedulers, tensors, ``torch.Generator`` objects, numbers,
    texts, None, and dicts or lists of these. Checkpoints save and restore all of them bit for bit.

    Attributes:
        phase: number of the current phase.
        step: steps done in it.
    """

    phase: int = field(default=0, kw_only=True)
    step: int = field(default=0, kw_only=True)


Context_ = TypeVar("Context_")
State_ = TypeVar("State_", bound=State)
Metrics = Mapping[str, float | Tensor]


@dataclass(frozen=True)
class Phase:
    """A named stretch of equal steps.

    Attributes:
        name: for progress and records.
        steps: how many.
        step: changes the state it is given, and returns metrics.
        work: relative cost of step i, in one unit for all settings of a method, from which the
            remaining time is estimated.
        learns: whether the delivered model changes, so that measuring its accuracy makes sense.
    """

    name: str
    steps: int
    step: Callable[[Any], Metrics]
    work: Callable[[int], float] = lambda _: 1.0
    learns: bool = True


@dataclass(frozen=True)
class KeptSums:
    """Sums of the features of ``clients`` as one ``sums`` part, and their number of images."""

    part: Part
    clients: tuple[str, ...]
    num_examples: int


@dataclass(frozen=True)
class Result:
    """What a method delivers.

    Attributes:
        models: by name; the first is the headline.
        arrays: tables for the record, saved beside the model.
        images: synthetic images, (N, C, H, W) in [0, 1].
        remarks: what a reader of the record should know, one sentence each.
        memory: for the next round: the server keeps it and sends it to the clients.
        sums: of the clients' features, kept beside the model so that clients can join and leave.
        details: more for the record, as JSON: how settings were chosen, what is known of the model.
    """

    models: Mapping[str, Deployable]
    arrays: Mapping[str, Tensor] = field(default_factory=dict)
    images: Mapping[str, Tensor] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    memory: Mapping[str, Part] = field(default_factory=dict)
    sums: tuple[KeptSums, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


class Method(Protocol[Context_, State_]):
    """A paper: a frozen dataclass whose fields *are* the hyper-parameters, flags and record.

    Attributes:
        paper: authors and year, for lists.
        cost: what it spends, in words.
    """

    paper: ClassVar[str]
    cost: ClassVar[str]

    @property
    def needs(self) -> Needs:
        """What it asks of uploads and server; may depend on the fields."""
        ...

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Context_:
        """Teachers and the like: cheap, deterministic, repeated on resume, never saved."""
        ...

    def start(self, context: Context_) -> State_:
        """Everything that changes, at its beginning."""
        ...

    def phases(self, context: Context_) -> Sequence[Phase]:
        """The algorithm, as steps that change the state."""
        ...

    def result(self, context: Context_, state: State_) -> Result:
        """What it delivers, at the end or at any step before."""
        ...


AnyMethod = Method[Any, Any]
