"""Any mixture of teachers as one tensor of logits.

Where clients differ (architecture, preprocessing, class list) ends here: ``Teachers`` gives
logits (K, B, C) over the task's classes with the mask ``known`` (K, C). A teacher neither votes
for nor against a class it never saw.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from attar.blocks.ensemble.hooks import Answer, Probe, over_maps, watched
from attar.blocks.execution import (
    compile_blocks,
    has_compiled_blocks,
    heavy_on,
    laid_out,
    plainly,
    side_by_side,
)
from attar.core import Part
from attar.errors import NeedsError
from attar.nets.registry import token_net


class Teachers(nn.Module):
    """K frozen nets: canonical images (B, C, H, W) -> logits (K, B, classes); 0 where ``known``
    is False.

    Nets of one spec, preprocessing and class list run as one stacked call (``stack=True``) or
    each by itself, on CUDA side by side; None: what is faster on the images' device.
    ``compile``: either call is compiled. ``memory``: when the weights need more bytes than this,
    they are taken in turns, a few nets at a time, in every pass forth and back; the answers are
    the same. A class that none of them knows is an error, unless they are ``partial``: others
    may know it.
    """

    known: Tensor  # (K, C) bool
    somewhere: Tensor  # columns of the classes that anybody knows
    order: Tensor  # (K,) where each client's logits stand behind each other's groups

    def __init__(
        self,
        parts: Sequence[Part],
        classes: Sequence[str],
        *,
        stack: bool | None = None,
        compile: bool = False,
        memory: int | None = None,
        partial: bool = False,
    ) -> None:
        super().__init__()
        place = {name: column for column, name in enumerate(classes)}
        if foreign := sorted(
            {name for part in parts for name in part.classes if name not in place}
        ):
            raise NeedsError(
                f"Clients know classes that the task lacks: {', '.join(foreign)}.",
                fix="add them to the task",
            )
        known = torch.zeros(len(parts), len(classes), dtype=torch.bool)
        groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for row, part in enumerate(parts):
            known[row, [place[name] for name in part.classes]] = True
            groups[(part.spec, part.preprocess, part.classes)].append(row)
        unknown = [name for name, column in place.items() if not known[:, column].any()]
        if unknown and not partial:
            raise NeedsError(
                f"No client knows the classes: {', '.join(unknown)}.",
                fix="leave them out of the task",
            )
        self.register_buffer("known", known, persistent=False)
        self.register_buffer("somewhere", known.any(0).nonzero().squeeze(1), persistent=False)
        order = torch.tensor([row for rows in groups.values() for row in rows])
        self.register_buffer("order", order.argsort(), persistent=False)
        for number, rows in enumerate(
            groups.values()
        ):  # a buffer: numbers that lie on the host cannot be recorded
            self.register_buffer(f"rows{number}", torch.tensor(rows), persistent=False)
        self.rows = tuple(tuple(rows) for rows in groups.values())  # the clients of each group
        self._places = {
            row: (g, n) for g, rows in enumerate(groups.values()) for n, row in enumerate(rows)
        }
        members = [[parts[row] for row in rows] for rows in groups.values()]
        self.in_turns = (
            memory is not None
            and sum(len(some) * weight_bytes(some[0]) for some in members) > memory
        )
        if self.in_turns:
            assert memory is not None
            self.groups = nn.ModuleList(_InTurns(some, place, stack, memory) for some in members)
        else:
            self.groups = nn.ModuleList(_Group(some, place, stack, compile) for some in members)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """``keep`` (B, k), of nets with tokens: the patches that they are shown of each image."""
        return torch.cat([group(images, (), keep)[0] for group in self.groups])[self.order]

    def own(self, images: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Each net with tokens on images of its own (K, B, C, H, W), of which it sees the
        patches ``keep`` (K, B, k).

        Its logits (K, B, classes), and how much its class token attends to each of them, (K, B,
        k).
        """
        each = []
        for number, group in enumerate(self.groups):
            rows = self.get_buffer(f"rows{number}")
            each.append(group.own(images[rows], None if keep is None else keep[rows]))  # type: ignore[operator]
        logits, attention = (torch.cat(values)[self.order] for values in zip(*each, strict=True))
        return logits, attention

    def heard_of(self, logits: Tensor) -> Tensor:
        """The columns (B, known classes) of classes that some teacher knows."""
        return logits if len(self.somewhere) == logits.shape[1] else logits[:, self.somewhere]

    def one(self, row: int, images: Tensor) -> Tensor:
        """Logits (B, classes) of one client alone."""
        place, number = self._places[row]
        group = self.groups[place]
        assert isinstance(group, _Group | _InTurns)
        return group.one(number, images)

    def probed(self, images: Tensor, probes: Sequence[Probe]) -> tuple[Tensor, dict[Probe, Tensor]]:
        """Logits, and what each probe measures inside each teacher, (K,), in the same forward pass."""
        outputs = [group(images, probes) for group in self.groups]
        logits = torch.cat([logits for logits, _ in outputs])[self.order]
        return logits, {
            probe: torch.cat([found[probe] for _, found in outputs])[self.order] for probe in probes
        }

    def probed_where(
        self, wanted: Sequence[bool], images: Tensor, probe: Probe
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Logits, and what one probe finds in each group of ``rows`` where that is wanted, (k,
        ...), in the same pass.
        """
        outputs = [
            group(images, (probe,) if asked else ())
            for group, asked in zip(self.groups, wanted, strict=True)
        ]
        logits = torch.cat([logits for logits, _ in outputs])[self.order]
        return logits, [found.get(probe) for _, found in outputs]

    def spread_known(self) -> list[bool]:
        """Which groups of ``rows`` have BatchNorm layers over feature maps, for the probe ``spread``."""
        return [bool(over_maps(group.code())) for group in self.groups]  # type: ignore[operator]

    def have_batchnorm(self) -> bool:
        """Whether any teacher has a BatchNorm layer for the probe ``batchnorm`` to look at."""
        return any(
            isinstance(module, _BatchNorm)
            for group in self.groups
            for module in group.code().modules()  # type: ignore[operator]
        )


class _Group(nn.Module):
    """Teachers of one spec, one preprocessing and one class list: images -> (k, B, all classes)."""

    columns: Tensor

    def __init__(
        self, parts: Sequence[Part], place: dict[str, int], stack: bool | None, compile: bool
    ) -> None:
        super().__init__()
        first = parts[0]
        self.preprocess, self.arch = first.preprocess, first.spec.arch
        self.num_classes = len(place)
        columns = torch.tensor([place[name] for name in first.classes])
        self.in_place = columns.tolist() == list(range(self.num_classes))
        self.register_buffer("columns", columns, persistent=False)
        self.size, self.stack = len(parts), stack
        # In a list: its meta tensors are no part of this module. It is the code, the stack has the
        # weights.
        self._shape = [
            first.spec.skeleton(first.preprocess.input_shape, len(first.classes))
            .eval()
            .requires_grad_(False)
        ]
        self._names: list[tuple[str, str]] = []
        for number, (name, tensor) in enumerate(_stacked_states(parts).items()):
            self.register_buffer(f"stack{number}", tensor, persistent=False)
            self._names.append((name, f"stack{number}"))
        whole = compile and not compile_blocks(self.code())
        self._together = torch.compile(self._stacked, dynamic=False) if whole else self._stacked
        self._alone = torch.compile(self._one, dynamic=False) if whole else self._one

    def code(self) -> nn.Module:
        """The layers of this group's nets, without weights."""
        return self._shape[0]

    def seat(self, parts: Sequence[Part]) -> None:
        """Put the weights of other nets of the same kind into the places of the first ones."""
        self.size = len(parts)
        with torch.no_grad():
            for name, place in self._names:
                for row, part in enumerate(parts):
                    if name in part.state:
                        self.get_buffer(place)[row].copy_(part.state[name])

    def _weights(self, place: str) -> Tensor:
        return self.get_buffer(place)[: self.size]

    def forward(
        self, images: Tensor, probes: Sequence[Probe], keep: Tensor | None = None
    ) -> Answer:
        seen, stacks = self.preprocess(images), self.size > 1 and self.stacks(images)
        if stacks:
            seen = plainly(seen)
        elif heavy_on(self.code(), self.preprocess.input_shape, images.device):
            seen = laid_out(seen)
        inputs = (seen,) if keep is None else (seen, keep)
        if stacks:
            logits, found = self._stacked(inputs, probes) if probes else self._together(inputs, ())
        else:
            each = side_by_side(
                [self._call_of(number, inputs, probes) for number in range(self.size)],
                images.device,
            )
            logits = torch.stack([logits for logits, _ in each])
            found = {probe: torch.stack([values[probe] for _, values in each]) for probe in probes}
        return self._placed(logits.to(images.dtype)), found

    def stacks(self, images: Tensor) -> bool:
        """One call for all pays where launches cost more than arithmetic; on a CPU stacked
        convolutions are slow (stacking.py).
        """
        if self.stack is not None:
            return self.stack
        if has_compiled_blocks(self.code()):
            return False
        if images.device.type == "cpu":
            return not any(self.get_buffer(place).ndim > 3 for _, place in self._names)
        return not heavy_on(self.code(), self.preprocess.input_shape, images.device)

    def one(self, number: int, images: Tensor) -> Tensor:
        return self._placed(
            self._one(self._state_of(number), (self.preprocess(images),), ())[0].to(images.dtype)
        )

    def own(self, images: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Nets with tokens on their own images (k, B, C, H, W), and on the patches ``keep`` (k,
        B, p) alone.
        """
        net = _Looking(self.code(), self.arch)
        states = {f"net.{name}": self._weights(place) for name, place in self._names}
        if self.size > 1 and self.stacks(images):
            inputs = self.preprocess(images.flatten(0, 1)).unflatten(0, images.shape[:2])
            axes = (0, 0, None if keep is None else 0)
            logits, attention = vmap(
                lambda state, x, some: functional_call(net, state, (x, some)), axes
            )(states, inputs, keep)
        else:

            def one(number: int) -> tuple[Tensor, Tensor]:
                mine = {name: value[number] for name, value in states.items()}
                seen = self.preprocess(images[number])  # made where it is used, see lanes.py
                answer: tuple[Tensor, Tensor] = functional_call(
                    net, mine, (seen, None if keep is None else keep[number])
                )
                return answer

            each = side_by_side(
                [partial(one, number) for number in range(len(images))], images.device
            )
            logits, attention = (torch.stack(values) for values in zip(*each, strict=True))
        return self._placed(logits.to(images.dtype)), attention.detach().to(images.dtype)

    def _state_of(self, number: int) -> dict[str, Tensor]:
        return {name: self.get_buffer(place)[number] for name, place in self._names}

    def _call_of(
        self, number: int, inputs: tuple[Tensor, ...], probes: Sequence[Probe]
    ) -> Callable[[], Answer]:
        return partial(self._one if probes else self._alone, self._state_of(number), inputs, probes)

    def _one(
        self, state: dict[str, Tensor], inputs: tuple[Tensor, ...], probes: Sequence[Probe]
    ) -> Answer:
        return watched(self.code(), partial(functional_call, self.code(), state, inputs), probes)

    def _placed(self, logits: Tensor) -> Tensor:
        """Logits over the group's classes -> over the task's, 0 where unknown."""
        if self.in_place:
            return logits
        placed = logits.new_zeros(*logits.shape[:-1], self.num_classes)
        return placed.index_copy(-1, self.columns, logits)

    def _stacked(self, inputs: tuple[Tensor, ...], probes: Sequence[Probe]) -> Answer:
        states = {name: self._weights(place) for name, place in self._names}
        return vmap(lambda state: self._one(state, inputs, probes))(states)


class _Looking(nn.Module):
    """A net with tokens, called for its logits and its class attention."""

    def __init__(self, net: nn.Module, arch: str) -> None:
        super().__init__()
        self.net = net
        self._look = token_net(arch, net).look

    def forward(self, x: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        look = self._look(x, keep)
        return look.logits, look.attention


class _InTurns(nn.Module):
    """A group whose nets do not fit into memory together: each call seats a few of them, asks
    them and seats the next.

    Nothing of a net is kept for the way back; there it is seated once more.
    """

    def __init__(
        self, parts: Sequence[Part], place: dict[str, int], stack: bool | None, memory: int
    ) -> None:
        super().__init__()
        self._parts = parts
        self._seats = max(1, memory // weight_bytes(parts[0]))
        self.group = _Group(parts[: self._seats], place, stack, compile=False)

    def code(self) -> nn.Module:
        return self.group.code()

    def forward(
        self, images: Tensor, probes: Sequence[Probe], keep: Tensor | None = None
    ) -> Answer:
        def ask(some: Sequence[Part], images: Tensor) -> tuple[Tensor, ...]:
            self.group.seat(some)
            logits, found = self.group(images, probes, keep)
            return logits, *(found[probe] for probe in probes)

        # One after the other, a single net and what it remembers for the way back is all that has
        # to be there.
        seats = self._seats if self.group.stacks(images) else 1
        turns = [self._parts[first : first + seats] for first in range(0, len(self._parts), seats)]
        each = [_AskedTwice.apply(partial(ask, some), images) for some in turns]  # type: ignore[no-untyped-call]
        logits, *found = (torch.cat(values) for values in zip(*each, strict=True))
        return logits, dict(zip(probes, found, strict=True))

    def own(self, images: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        def ask(part: Part, some: Tensor | None, images: Tensor) -> tuple[Tensor, ...]:
            self.group.seat([part])
            return self.group.own(images, some)

        each = []
        for number, part in enumerate(self._parts):
            some = None if keep is None else keep[number : number + 1]
            each.append(_AskedTwice.apply(partial(ask, part, some), images[number : number + 1]))  # type: ignore[no-untyped-call]
        logits, attention = (torch.cat(values) for values in zip(*each, strict=True))
        return logits, attention.detach()

    def one(self, number: int, images: Tensor) -> Tensor:
        def ask(images: Tensor) -> tuple[Tensor, ...]:
            self.group.seat([self._parts[number]])
            return (self.group.one(0, images),)

        (logits,) = _AskedTwice.apply(ask, images)  # type: ignore[no-untyped-call]
        return logits  # type: ignore[no-any-return]


class _AskedTwice(torch.autograd.Function):
    """``ask(images)`` that keeps nothing: for the gradient it asks once more."""

    @staticmethod
    def forward(
        ctx: Any, ask: Callable[[Tensor], tuple[Tensor, ...]], images: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.ask, kind = ask, images.device.type
        ctx.arithmetic = torch.autocast(
            kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), False
        )
        ctx.save_for_backward(images)
        return ask(images)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[None, Tensor]:
        (images,) = ctx.saved_tensors
        inputs = images.detach().requires_grad_()
        with torch.enable_grad(), ctx.arithmetic:
            answers = ctx.ask(inputs)
        moved = [
            (answer, slope)
            for answer, slope in zip(answers, slopes, strict=True)
            if answer.requires_grad
        ]
        (gradient,) = torch.autograd.grad(
            [answer for answer, _ in moved], inputs, [slope for _, slope in moved]
        )
        return None, gradient


def weight_bytes(part: Part) -> int:
    """What the net's weights and buffers take in memory."""
    shape = part.spec.skeleton(part.preprocess.input_shape, len(part.classes))
    return sum(value.numel() * value.element_size() for value in shape.state_dict().values())


def _stacked_states(parts: Sequence[Part]) -> dict[str, Tensor]:
    """Weights and buffers of nets of one spec, each (K, ...), in the types that the net computes in."""
    net = parts[0].spec.blank(parts[0].preprocess.input_shape, len(parts[0].classes))
    found = {}
    for name, own in [*net.named_parameters(), *net.named_buffers()]:
        # What a file does not carry (a passing buffer) follows from the architecture.
        each = [part.state.get(name, own) for part in parts]
        found[name] = torch.stack([value.detach().to("cpu", own.dtype) for value in each])
    return found
