"""Model stratification: how well clients guide a generator towards each class (FedHydra 3.2).

U is kept as (K, C), one row for each client; the paper writes its transpose.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.optim import Adam

from attar.blocks.execution import autotune_cudnn
from attar.blocks.images import PlainGeneratorTraining, new_generator
from attar.nets.registry import Shape
from attar.seeds import rng

Highest = Literal["class", "client"]
"""Which losses the maximum of Eq. (2) runs over: those of the class, or all of the client's."""


def guidance_losses(
    teacher: Callable[[Tensor], Tensor],
    classes: Tensor,
    shape: Shape,
    generator: PlainGeneratorTraining,
    batch_size: int,
    seed: int,
) -> Tensor:
    """Eq. (1) and the inner loops of Algorithm 2 for one client: one generator for each class.

    On a GPU the generators train as one stack and their images go through the client as one
    batch. All start from the same weights and the same noise, for every client and class, so
    that only the guidance differs.

    Args:
        teacher: the client's net, from images to logits over the task's classes.
        classes: the columns of the classes that it knows.
        shape: of an image.
        generator: size and training of each generator.
        batch_size: images b of each generator.
        seed: of the weights and the noise.

    Returns:
        The loss of every step for every class, (T_G, classes).
    """
    # On a CPU stacked convolutions are slower than a loop over the classes.
    if classes.device.type == "cpu" and len(classes) > 1:
        columns = [
            guidance_losses(teacher, column, shape, generator, batch_size, seed)
            for column in classes.split(1)
        ]
        return torch.cat(columns, 1)
    device = classes.device
    net = new_generator(shape, generator.noise, generator.width, seed, "stratify").to(device)
    stack = _repeat_weights(net, len(classes))
    noise = torch.randn(batch_size, generator.noise, generator=rng(seed, "stratify noise"))
    noise = noise.to(device)
    labels = classes.repeat_interleave(batch_size)
    optimiser = Adam(list(stack.values()), lr=generator.lr)
    losses = []
    with autotune_cudnn():
        for _ in range(generator.steps):  # T_G times
            images = _generate_stacked(net, stack, noise)
            loss = _loss_of_each_class(teacher(images), labels, len(classes))  # Eq. (1)
            losses.append(loss.detach())
            optimiser.zero_grad(set_to_none=True)
            # The generators share no weights: the gradient of each is that of its own loss.
            loss.sum().backward()
            optimiser.step()
    return torch.stack(losses)


def _repeat_weights(net: nn.Module, number: int) -> dict[str, Tensor]:
    """The net's weights so many times, to be trained under vmap.

    Not channels-last: under vmap cuDNN's BatchNorm does not support that layout.
    """
    return {
        name: weight.detach()
        .expand(number, *weight.shape)
        .clone(memory_format=torch.contiguous_format)
        .requires_grad_()
        for name, weight in net.named_parameters()
    }


def _generate_stacked(net: nn.Module, stack: dict[str, Tensor], noise: Tensor) -> Tensor:
    """The images of every generator of the stack, one generator after the other."""

    def generate(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(net, weights, (noise,))  # type: ignore[no-any-return]

    if len(next(iter(stack.values()))) == 1:
        return generate({name: weight[0] for name, weight in stack.items()})
    return vmap(generate)(stack).flatten(0, 1)


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
