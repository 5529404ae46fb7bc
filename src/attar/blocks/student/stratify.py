"""Model stratification: how well each client can guide a generator towards each class (FedHydra,
section 3.2).

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

from attar.blocks.execution import searching
from attar.blocks.images import new_generator
from attar.nets.registry import Shape
from attar.seeds import generator as seeded

Highest = Literal["class", "client"]


@dataclass(frozen=True)
class Stratification:
    """How the generators of Algorithm 2 are trained."""

    steps: int = 30  # T_G
    batch_size: int = 128  # b
    lr: float = 1e-3  # eta_G
    noise: int = 256
    width: int = 64


def guidance_losses(
    teacher: Callable[[Tensor], Tensor],
    classes: Tensor,
    shape: Shape,
    how: Stratification,
    seed: int,
) -> Tensor:
    """Eq. (1) and the inner loops of Algorithm 2 for one client: losses (T_G, classes), a
    generator of its own for each class.

    On a GPU the generators train as one stack and their images go through the client as one
    batch. All start from the same weights and the same noise, for every client and class, so
    that only the guidance differs.
    """
    device = str(classes.device)
    if (
        classes.device.type == "cpu" and len(classes) > 1
    ):  # there stacked convolutions are slower than a loop
        return torch.cat(
            [guidance_losses(teacher, one, shape, how, seed) for one in classes.split(1)], 1
        )
    first = new_generator(shape, how.noise, how.width, seed, "stratify").to(device)
    plain = (
        torch.contiguous_format
    )  # channels last is a layout that vmap cannot tell cuDNN's BatchNorm about
    stack = {
        name: value.detach()
        .expand(len(classes), *value.shape)
        .clone(memory_format=plain)
        .requires_grad_()
        for name, value in first.named_parameters()
    }
    noise = torch.randn(how.batch_size, how.noise, generator=seeded(seed, "stratify noise")).to(
        device
    )
    return _stacked_losses(teacher, first, stack, noise, classes, how)


def _stacked_losses(
    teacher: Callable[[Tensor], Tensor],
    code: nn.Module,
    stack: dict[str, Tensor],
    noise: Tensor,
    classes: Tensor,
    how: Stratification,
) -> Tensor:
    optimiser = Adam(list(stack.values()), lr=how.lr)
    labels = classes.repeat_interleave(how.batch_size)

    def generate(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(code, weights, (noise,))  # type: ignore[no-any-return]

    def images() -> Tensor:
        if len(classes) == 1:
            return generate({name: value[0] for name, value in stack.items()})
        return vmap(generate)(stack).flatten(0, 1)

    losses = []
    with searching():
        for _ in range(how.steps):
            each = (
                F.cross_entropy(teacher(images()), labels, reduction="none")
                .view(len(classes), -1)
                .mean(1)
            )  # Eq. (1)
            losses.append(each.detach())
            optimiser.zero_grad(set_to_none=True)
            # the generators share no weights: the gradient of each is that of its own loss
            each.sum().backward()
            optimiser.step()
    return torch.stack(losses)


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
    """The same without a generator: Adam moves the pixels of some images for each class, which
    stay in [0, 1]; (steps, classes).

    A hundredth of the time. All classes and clients start from the same noise.
    """
    noise = torch.rand(images, *shape, generator=seeded(seed, "pixels")).to(classes.device)
    pixels = noise.repeat(len(classes), 1, 1, 1).requires_grad_()
    labels, optimiser = classes.repeat_interleave(images), Adam([pixels], lr=lr)
    losses = []
    for _ in range(steps):
        each = (
            F.cross_entropy(teacher(pixels), labels, reduction="none")
            .view(len(classes), -1)
            .mean(1)
        )  # Eq. (1)
        losses.append(each.detach())
        (pixels.grad,) = torch.autograd.grad(each.sum(), pixels)
        optimiser.step()
        with torch.no_grad():
            pixels.clamp_(0, 1)
    return torch.stack(losses)


def guidance(losses: Tensor, floor: float, highest_of: Highest = "class") -> Tensor:
    """Eq. (2): u = (max L - min L) / min L over the steps; ``floor`` bounds the divisor, which
    can reach 0.

    A class that the client sees in noise has a low loss from the beginning, and so a small u,
    however well the client knows it. ``highest_of="client"`` takes the highest loss over all of
    its classes for max L.
    """
    least = losses.amin(0)
    most = losses.amax(0) if highest_of == "class" else losses.amax()
    return (most - least) / least.clamp(min=floor)


def across_clients(table: Tensor) -> Tensor:
    """Eqs. (4), (5): U_r, each class's guidance shared out over the clients, (K, C). Where
    nobody guides, all do alike.
    """
    total = table.sum(0, keepdim=True)
    return torch.where(total > 0, table / total.clamp(min=1e-12), 1 / len(table))


def across_classes(table: Tensor) -> Tensor:
    """Eqs. (6), (7): U_c, each client's guidance shared out over the classes, (K, C)."""
    total = table.sum(1, keepdim=True)
    return torch.where(total > 0, table / total.clamp(min=1e-12), 1 / table.shape[1])


def stratified_weights(table: Tensor, labels: Tensor) -> Tensor:
    """Eqs. (8)-(11) as one set of weights (B, K, C) for a sum of logits: U_r(y_i, k) U_c(c, k)."""
    return across_clients(table)[:, labels].T[:, :, None] * across_classes(table)[None]


def label_free_weights(table: Tensor) -> Tensor:
    """Stratified weights (K, C) for images without a label: class c is judged by those who guide
    towards c.
    """
    return across_clients(table) * across_classes(table)
