"""Model stratification: how well clients guide a generator towards each class (FedHydra 3.2).

U is kept as (K, C), one row for each client; the paper writes its transpose.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.optim import Adam

from attar.blocks.execution import autotune_cudnn
from attar.blocks.images import (
    Augment,
    PlainGeneratorTraining,
    apply_augmentation,
    draw_augmentation,
    new_generator,
)
from attar.nets.registry import Shape
from attar.seeds import rng
from attar.settings import NonNegative, flat

Highest = Literal["class", "client"]
"""Which losses the maximum of Eq. (2) runs over: those of the class, or all of the client's."""


@dataclass(frozen=True)
class Stratification:
    """How the generators of Algorithm 2 begin and see the client, beside their size and steps.

    Attributes:
        augment: crop and flip their images anew in every step, before the client sees them.
        beta1: of their Adam.
        start: whether all begin with the same weights and noise, or each with its own.
    """

    augment: Augment = flat("stratify_augment", "none")  # of the images inside Eq. (1)
    beta1: NonNegative = flat("stratify_beta1", 0.9)  # of Adam in Algorithm 2
    start: Literal["same", "own"] = flat("stratify_start", "same")  # weights, noise and crops


def guidance_losses(
    teacher: Callable[[Tensor], Tensor],
    classes: Tensor,
    shape: Shape,
    generator: PlainGeneratorTraining,
    batch_size: int,
    seed: int,
    stratification: Stratification = Stratification(),
    client: int = 0,
) -> Tensor:
    """Eq. (1) and the inner loops of Algorithm 2 for one client: one generator for each class.

    On a GPU the generators train as one stack and their images go through the client as one
    batch. All start from the same weights and the same noise, for every client and class, so
    that only the guidance differs, unless ``stratification`` says otherwise.

    Args:
        teacher: the client's net, from images to logits over the task's classes.
        classes: the columns of the classes that it knows.
        shape: of an image.
        generator: size and training of each generator.
        batch_size: images b of each generator.
        seed: of the weights and the noise.
        stratification: how the generators begin, and whether their images are augmented.
        client: its number, which tells apart the beginnings of clients.

    Returns:
        The loss of every step for every class, (T_G, classes).
    """
    # On a CPU stacked convolutions are slower than a loop over the classes.
    stacks = classes.split(1 if classes.device.type == "cpu" else len(classes))
    columns = [
        stacked_guidance_losses(
            teacher, stack, shape, generator, batch_size, seed, stratification, client
        )
        for stack in stacks
    ]
    return torch.cat(columns, 1)


def stacked_guidance_losses(
    teacher: Callable[[Tensor], Tensor],
    classes: Tensor,
    shape: Shape,
    generator: PlainGeneratorTraining,
    batch_size: int,
    seed: int,
    stratification: Stratification,
    client: int,
) -> Tensor:
    """``guidance_losses`` with the generators of all classes in one stack."""
    begin = _Beginnings(classes, seed, client if stratification.start == "own" else None)
    net, stack = begin.generators(shape, generator)
    noise = begin.noise(batch_size, generator.noise)
    crops = begin.crops(stratification.augment, generator.steps, batch_size)
    labels = classes.repeat_interleave(batch_size)
    betas = (stratification.beta1, 0.999)
    optimiser = Adam(list(stack.values()), lr=generator.lr, betas=betas)
    losses = []
    with autotune_cudnn():
        for step in range(generator.steps):  # T_G times
            images = _generate_stacked(net, stack, noise)
            if crops is not None:
                images = apply_augmentation(images, crops[step])
            loss = _loss_of_each_class(teacher(images), labels, len(classes))  # Eq. (1)
            losses.append(loss.detach())
            optimiser.zero_grad(set_to_none=True)
            # The generators share no weights: the gradient of each is that of its own loss.
            loss.sum().backward()
            optimiser.step()
    return torch.stack(losses)


@dataclass(frozen=True)
class _Beginnings:
    """Weights, noise and crops of the generators of some classes; one draw where all share it.

    Attributes:
        classes: one generator for each.
        seed: of all draws.
        client: whose generators have their own draws; None: those of all are the same.
    """

    classes: Tensor
    seed: int
    client: int | None

    def _purposes(self) -> list[tuple[int, ...]]:
        if self.client is None:
            return [()]
        return [(self.client, column) for column in self.classes.tolist()]

    def _stack(self, draws: list[Tensor]) -> Tensor:
        """One for each class, on the device of the classes."""
        stacked = torch.stack(draws).to(self.classes.device)
        return stacked.expand(len(self.classes), *stacked.shape[1:])

    def generators(
        self, shape: Shape, training: PlainGeneratorTraining
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        """A generator, and the weights of all, (classes, ...), to be trained under vmap.

        Not channels-last: under vmap cuDNN's BatchNorm does not support that layout.
        """
        nets = [
            new_generator(shape, training.noise, training.width, self.seed, "stratify", *purpose)
            for purpose in self._purposes()
        ]
        weights = [dict(net.named_parameters()) for net in nets]
        stack = {
            name: self._stack([each[name].detach() for each in weights])
            .clone(memory_format=torch.contiguous_format)
            .requires_grad_()
            for name in weights[0]
        }
        return nets[0].to(self.classes.device), stack

    def noise(self, batch_size: int, dimensions: int) -> Tensor:
        """z, (classes, B, dimensions)."""
        return self._stack(
            [
                torch.randn(
                    batch_size, dimensions, generator=rng(self.seed, "stratify noise", *purpose)
                )
                for purpose in self._purposes()
            ]
        )

    def crops(self, augment: Augment, steps: int, batch_size: int) -> Tensor | None:
        """How every image is cropped and flipped in every step, (steps, classes * B, 3)."""
        if augment == "none":
            return None
        draws = [
            draw_augmentation(
                augment, steps * batch_size, rng(self.seed, "stratify crops", *purpose)
            ).view(steps, batch_size, 3)
            for purpose in self._purposes()
        ]
        return self._stack(draws).transpose(0, 1).flatten(1, 2)


def _generate_stacked(net: nn.Module, stack: dict[str, Tensor], noise: Tensor) -> Tensor:
    """The images of every generator of the stack, one generator after the other."""

    def generate(weights: dict[str, Tensor], noise: Tensor) -> Tensor:
        return functional_call(net, weights, (noise,))  # type: ignore[no-any-return]

    if len(noise) == 1:
        return generate({name: weight[0] for name, weight in stack.items()}, noise[0])
    return vmap(generate)(stack, noise).flatten(0, 1)


def _loss_of_each_class(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The mean cross entropy of the images of each class, (classes,)."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    return losses.view(classes, -1).mean(1)


def pixel_losses(
    teacher: Callable[[Tensor], Tensor],
    classes: Tensor,
    shape: Shape,
    seed: int,
    *,
    steps: int,
    lr: float,
    images: int,
) -> Tensor:
    """The same losses without a generator, in a hundredth of the time.

    Adam moves the pixels of a few images for each class, which stay in [0, 1]. All classes and
    clients start from the same noise.

    Args:
        teacher: the client's net, from images to logits over the task's classes.
        classes: the columns of the classes that it knows.
        shape: of an image.
        seed: of the noise.
        steps: of Adam.
        lr: its step size.
        images: for each class.

    Returns:
        The loss of every step for every class, (steps, classes).
    """
    noise = torch.rand(images, *shape, generator=rng(seed, "pixels")).to(classes.device)
    pixels = noise.repeat(len(classes), 1, 1, 1).requires_grad_()
    labels = classes.repeat_interleave(images)
    optimiser = Adam([pixels], lr=lr)
    losses = []
    for _ in range(steps):
        loss = _loss_of_each_class(teacher(pixels), labels, len(classes))  # Eq. (1)
        losses.append(loss.detach())
        (pixels.grad,) = torch.autograd.grad(loss.sum(), pixels)
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
    return torch.stack(losses)


def guidance(losses: Tensor, floor: float) -> Tensor:
    """Eq. (2): u = (max L - min L) / min L over the steps, for each class.

    A class that the client sees in noise has a low loss from the beginning, and so a small u,
    however well the client knows it; see ``client_guidance``.

    Args:
        losses: of every step for every class, (T_G, classes).
        floor: of the divisor, which can reach 0.

    Returns:
        u, (classes,).
    """
    return _relative_fall(losses.amax(0), losses.amin(0), floor)


def client_guidance(losses: Tensor, floor: float) -> Tensor:
    """Eq. (2) with the client's highest loss of any class for max L; arguments as ``guidance``."""
    return _relative_fall(losses.amax(), losses.amin(0), floor)


def _relative_fall(highest: Tensor, lowest: Tensor, floor: float) -> Tensor:
    return (highest - lowest) / lowest.clamp(min=floor)


GUIDANCE: dict[Highest, Callable[[Tensor, float], Tensor]] = {
    "class": guidance,
    "client": client_guidance,
}
"""Eq. (2), by the losses that max L runs over."""


def across_clients(table: Tensor) -> Tensor:
    """Eqs. (4), (5): U_r, each class's guidance normalised over the clients, (K, C).

    A class that no client guides gets 1/K for every client.
    """
    total = table.sum(0, keepdim=True)
    return torch.where(total > 0, table / total.clamp(min=1e-12), 1 / len(table))


def across_classes(table: Tensor) -> Tensor:
    """Eqs. (6), (7): U_c, each client's guidance normalised over the classes, (K, C)."""
    total = table.sum(1, keepdim=True)
    return torch.where(total > 0, table / total.clamp(min=1e-12), 1 / table.shape[1])


def stratified_weights(table: Tensor, labels: Tensor) -> Tensor:
    """Eqs. (8)-(11) as one set of weights (B, K, C) for a sum of logits: U_r(y_i, k) U_c(c, k)."""
    return across_clients(table)[:, labels].T[:, :, None] * across_classes(table)[None]


def label_free_weights(table: Tensor) -> Tensor:
    """Stratified weights (K, C) for images without a label: U_r(c, k) U_c(c, k).

    Each class is weighted as for an image of that class.
    """
    return across_clients(table) * across_classes(table)
