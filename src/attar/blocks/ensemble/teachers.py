"""The clients' nets as one module that gives the logits of all of them.

Clients may differ in architecture, preprocessing and class list. ``Teachers`` hides this: it gives
logits (K, B, C) over the task's classes with the mask ``known`` (K, C). Where a client does not
know a class its logit is 0, and no rule of ``rules.py`` looks at it.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from attar.blocks.ensemble.averages import stack_states, weight_bytes
from attar.blocks.ensemble.hooks import Hook, attach_hooks, batchnorms_of_maps
from attar.blocks.ensemble.swapping import SwappedGroup
from attar.blocks.execution import (
    channels_last,
    compile_blocks,
    compiled,
    contiguous,
    has_compiled_blocks,
    prefers_streams,
    run_in_streams,
)
from attar.core import Part
from attar.errors import NeedsError
from attar.nets.registry import token_net
from attar.nets.vit import ViT
from attar.nets.vit_stacked import block_stacked, look_stacked


class Teachers(nn.Module):
    """K frozen nets: canonical images (B, C, H, W) -> logits (K, B, classes), 0 where not known.

    Nets of one architecture, preprocessing and class list form a group, which runs as one stacked
    call or net by net.

    Attributes:
        known: (K, C) bool, whether client k has class c.
        known_columns: the columns of the classes that at least one client has.
        order: (K,) where the logits of client k stand in those of the groups, concatenated.
        rows: the clients of each group.
        swapped: whether the weights take more memory than allowed, so that nets are loaded a few
            at a time.
        groups: ``TeacherGroup`` or ``SwappedGroup`` for each entry of ``rows``.
    """

    known: Tensor
    known_columns: Tensor
    order: Tensor

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
        """Group the nets and copy their weights.

        Args:
            parts: the clients' nets.
            classes: of the task.
            stack: whether the nets of a group run as one stacked call; False: one by one, on CUDA
                in several streams; None: what is faster on the images' device.
            compile: whether these calls are compiled.
            memory: bytes that weights may take at once; None: no limit. Results are the same.
            partial: whether there may be classes that none of the nets has.

        Raises:
            NeedsError: if a net has a class that the task lacks, or no net has a class of the task
                although ``partial`` is False.
        """
        super().__init__()
        column_of = {name: column for column, name in enumerate(classes)}
        known = torch.zeros(len(parts), len(classes), dtype=torch.bool)
        _check_classes(parts, classes, partial=partial)
        rows_of: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for row, part in enumerate(parts):
            known[row, [column_of[name] for name in part.classes]] = True
            rows_of[(part.spec, part.preprocess, part.classes)].append(row)
        self.rows = tuple(tuple(rows) for rows in rows_of.values())
        self._places = {
            row: (group, number)
            for group, rows in enumerate(self.rows)
            for number, row in enumerate(rows)
        }
        order = torch.tensor([row for rows in self.rows for row in rows]).argsort()
        self.register_buffer("known", known, persistent=False)
        self.register_buffer("known_columns", known.any(0).nonzero().squeeze(1), persistent=False)
        self.register_buffer("order", order, persistent=False)
        for group, rows in enumerate(self.rows):
            # a buffer: a CUDA graph cannot record indices that lie in the host's memory
            self.register_buffer(f"rows{group}", torch.tensor(rows), persistent=False)

        members = [[parts[row] for row in rows] for rows in self.rows]
        needed = sum(len(group) * weight_bytes(group[0]) for group in members)
        self.swapped = memory is not None and needed > memory
        self._groups: list[TeacherGroup | SwappedGroup] = []
        for group_parts in members:
            if memory is not None and self.swapped:
                seats = max(1, memory // weight_bytes(group_parts[0]))
                first = TeacherGroup(group_parts[:seats], column_of, stack=stack, compile=False)
                self._groups.append(SwappedGroup(first, group_parts))
            else:
                self._groups.append(
                    TeacherGroup(group_parts, column_of, stack=stack, compile=compile)
                )
        self.groups = nn.ModuleList(self._groups)

    def forward(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Logits (K, B, classes).

        Args:
            images: canonical images (B, C, H, W).
            keep: (B, k) patches of each image that nets with tokens see; None: all patches.
        """
        return torch.cat([group(images, (), keep)[0] for group in self._groups])[self.order]

    def with_hooks(
        self, images: Tensor, hooks: Sequence[Hook]
    ) -> tuple[Tensor, dict[Hook, Tensor]]:
        """Logits (K, B, classes), and what each hook measures in each net, (K,), in one pass."""
        outputs = [group(images, hooks) for group in self._groups]
        logits = torch.cat([logits for logits, _ in outputs])[self.order]
        measured = {
            hook: torch.cat([measured[hook] for _, measured in outputs])[self.order]
            for hook in hooks
        }
        return logits, measured

    def measure_groups(
        self, images: Tensor, hook: Hook, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Logits, and what one hook measures in some of the groups, in one pass.

        Args:
            images: canonical images (B, C, H, W).
            hook: what is measured.
            wanted: whether it is measured, for each group of ``rows``.

        Returns:
            Logits (K, B, classes); and for each group the values of its nets (k, ...), None where
            nothing was measured.
        """
        outputs = [
            group(images, (hook,) if measures else ())
            for group, measures in zip(self._groups, wanted, strict=True)
        ]
        logits = torch.cat([logits for logits, _ in outputs])[self.order]
        return logits, [measured.get(hook) for _, measured in outputs]

    def look(self, images: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run each net with tokens on images of its own.

        Args:
            images: (K, B, C, H, W), for each net its own.
            keep: (K, B, k) patches of each image that the net sees; None: all patches.

        Returns:
            Logits (K, B, classes); and how much the class token attends to each of these patches,
            (K, B, k), without gradients.
        """
        outputs = []
        for number, group in enumerate(self._groups):
            rows = self.get_buffer(f"rows{number}")
            outputs.append(group.look(images[rows], None if keep is None else keep[rows]))
        logits, attention = (torch.cat(values)[self.order] for values in zip(*outputs, strict=True))
        return logits, attention

    def run_one(self, client: int, images: Tensor) -> Tensor:
        """Logits (B, classes) of one client alone."""
        group, number = self._places[client]
        return self._groups[group].run_one(number, images)

    def groups_with_batchnorm_maps(self) -> list[bool]:
        """Which groups of ``rows`` the hook "variance gap" can measure."""
        return [bool(batchnorms_of_maps(group.code())) for group in self._groups]

    def have_batchnorm(self) -> bool:
        """Whether the hook "batchnorm" can measure any net."""
        return any(
            isinstance(module, _BatchNorm)
            for group in self._groups
            for module in group.code().modules()
        )


def _check_classes(parts: Sequence[Part], classes: Sequence[str], *, partial: bool) -> None:
    known = {name for part in parts for name in part.classes}
    if foreign := sorted(known - set(classes)):
        raise NeedsError(
            f"Clients know classes that the task lacks: {', '.join(foreign)}.",
            fix="add them to the task",
        )
    unknown = [name for name in classes if name not in known]
    if unknown and not partial:
        raise NeedsError(
            f"No client knows the classes: {', '.join(unknown)}.",
            fix="leave them out of the task",
        )


class TeacherGroup(nn.Module):
    """Nets of one architecture, preprocessing and class list, their weights stacked.

    Attributes:
        size: how many nets there are.
        stack: as of ``Teachers``.
    """

    columns: Tensor

    def __init__(
        self,
        parts: Sequence[Part],
        column_of: dict[str, int],
        *,
        stack: bool | None,
        compile: bool,
    ) -> None:
        """Copy the weights of ``parts``; ``column_of`` gives the column of each class."""
        super().__init__()
        first = parts[0]
        self.preprocess = first.preprocess
        self.size = len(parts)
        self.stack = stack
        self._arch = first.spec.arch
        self._num_classes = len(column_of)
        columns = torch.tensor([column_of[name] for name in first.classes])
        self._all_in_place = columns.tolist() == list(range(self._num_classes))
        self.register_buffer("columns", columns, persistent=False)
        # The layers, in a list: their meta tensors are no part of this module, whose stacks have
        # the weights.
        skeleton = first.spec.skeleton(first.preprocess.input_shape, len(first.classes))
        self._code = [skeleton.eval().requires_grad_(False)]
        self._buffer_of: dict[str, str] = {}  # the stack of each weight
        for number, (name, tensor) in enumerate(stack_states(parts).items()):
            self.register_buffer(f"stack{number}", tensor, persistent=False)
            self._buffer_of[name] = f"stack{number}"
        whole = compile and not compile_blocks(self.code())
        self._run_stack = torch.compile(self._stacked, dynamic=False) if whole else self._stacked
        self._run_net = torch.compile(self._single, dynamic=False) if whole else self._single

    def code(self) -> nn.Module:
        """The layers of the nets, without weights."""
        return self._code[0]

    def load(self, parts: Sequence[Part]) -> None:
        """Copy the weights of other nets of the same kind over those of the first ones."""
        self.size = len(parts)
        with torch.no_grad():
            for name, buffer in self._buffer_of.items():
                for row, part in enumerate(parts):
                    if name in part.state:
                        self.get_buffer(buffer)[row].copy_(part.state[name])

    def forward(
        self, images: Tensor, hooks: Sequence[Hook], keep: Tensor | None = None
    ) -> tuple[Tensor, dict[Hook, Tensor]]:
        """Logits (k, B, all classes) of k nets, and what each hook measures in them, (k, ...).

        Args:
            images: canonical images (B, C, H, W).
            hooks: what is measured; with hooks the call is not compiled.
            keep: (B, p) patches of each image that nets with tokens see; None: all patches.
        """
        inputs = self.preprocess(images)
        stacks = self.size > 1 and self.stacks(images)
        if stacks:
            inputs = contiguous(inputs)
        elif prefers_streams(self.code(), self.preprocess.input_shape, images.device):
            inputs = channels_last(inputs)
        arguments = (inputs,) if keep is None else (inputs, keep)
        if stacks:
            run_stack = self._stacked if hooks else self._run_stack
            logits, measured = run_stack(arguments, hooks or ())
        else:
            run_net = self._single if hooks else self._run_net
            calls = [
                partial(run_net, self._state_of(number), arguments, hooks or ())
                for number in range(self.size)
            ]
            outputs = run_in_streams(calls, images.device)
            logits = torch.stack([logits for logits, _ in outputs])
            measured = {
                hook: torch.stack([values[hook] for _, values in outputs]) for hook in hooks
            }
        return self._place(logits.to(images.dtype)), measured

    def _stacked(
        self, inputs: tuple[Tensor, ...], hooks: Sequence[Hook]
    ) -> tuple[Tensor, dict[Hook, Tensor]]:
        """All nets in one call."""
        return vmap(lambda state: self._single(state, inputs, hooks))(self._states())

    def _single(
        self, state: dict[str, Tensor], inputs: tuple[Tensor, ...], hooks: Sequence[Hook]
    ) -> tuple[Tensor, dict[Hook, Tensor]]:
        """The net with the weights ``state``: logits (B, its classes), and measurements."""
        if not hooks:
            return functional_call(self.code(), state, inputs), {}
        with attach_hooks(self.code(), hooks) as terms:
            logits = functional_call(self.code(), state, inputs)
        zero = logits.new_zeros(())
        return logits, {hook: sum(values, zero) for hook, values in terms.items()}

    def stacks(self, images: Tensor) -> bool:
        """Whether the nets run as one stacked call on these images.

        That pays where launching kernels takes longer than their arithmetic. On a CPU stacked
        convolutions are slow (training/stacking.py).
        """
        if self.stack is not None:
            return self.stack
        if has_compiled_blocks(self.code()):
            return False
        if images.device.type == "cpu":
            return not any(stack.ndim > 3 for stack in self._states().values())
        return not prefers_streams(self.code(), self.preprocess.input_shape, images.device)

    def stacks_blocks(self, images: Tensor) -> bool:
        """Whether compiled transformers run as one, each on images of its own."""
        return images.is_cuda and self.stack is None and has_compiled_blocks(self.code())

    def run_one(self, number: int, images: Tensor) -> Tensor:
        """Logits (B, all classes) of one net alone."""
        inputs = (self.preprocess(images),)
        logits, _ = self._single(self._state_of(number), inputs, ())
        return self._place(logits.to(images.dtype))

    def look(self, images: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits and class attention of nets with tokens on images of their own.

        Args:
            images: (k, B, C, H, W), for each net its own.
            keep: (k, B, p) patches of each image that the net sees; None: all patches.
        """
        net = _TokenNet(self.code(), self._arch)
        states = {f"net.{name}": value for name, value in self._states().items()}
        if self.size > 1 and self.stacks(images):
            inputs = self.preprocess(images.flatten(0, 1)).unflatten(0, images.shape[:2])
            axes = (0, 0, None if keep is None else 0)
            logits, attention = vmap(
                lambda state, x, patches: functional_call(net, state, (x, patches)), axes
            )(states, inputs, keep)
        elif isinstance(vit := self.code(), ViT) and self.stacks_blocks(images):
            inputs = self.preprocess(images.flatten(0, 1)).unflatten(0, images.shape[:2])
            weights, block = self._states(), compiled(block_stacked)
            logits, attention = look_stacked(vit, weights, inputs, keep, block)
        else:

            def run(number: int) -> tuple[Tensor, Tensor]:
                state = {name: value[number] for name, value in states.items()}
                inputs = self.preprocess(images[number])  # in the stream that uses it
                patches = None if keep is None else keep[number]
                outputs: tuple[Tensor, Tensor] = functional_call(net, state, (inputs, patches))
                return outputs

            outputs = run_in_streams(
                [partial(run, number) for number in range(len(images))], images.device
            )
            logits, attention = (torch.stack(values) for values in zip(*outputs, strict=True))
        return self._place(logits.to(images.dtype)), attention.detach().to(images.dtype)

    def _states(self) -> dict[str, Tensor]:
        """The weights of all nets, each (k, ...)."""
        return {
            name: self.get_buffer(buffer)[: self.size] for name, buffer in self._buffer_of.items()
        }

    def _state_of(self, number: int) -> dict[str, Tensor]:
        return {name: self.get_buffer(buffer)[number] for name, buffer in self._buffer_of.items()}

    def _place(self, logits: Tensor) -> Tensor:
        """Logits over the group's classes -> over the task's, 0 where unknown."""
        if self._all_in_place:
            return logits
        placed = logits.new_zeros(*logits.shape[:-1], self._num_classes)
        return placed.index_copy(-1, self.columns, logits)


class _TokenNet(nn.Module):
    """A net with tokens, called for its logits and its class attention."""

    def __init__(self, net: nn.Module, arch: str) -> None:
        super().__init__()
        self.net = net
        self._look = token_net(arch, net).look

    def forward(self, x: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        look = self._look(x, keep)
        return look.logits, look.attention
