"""A search for backdoors: how small a trigger makes a client's net give one class to any image?

For each client k and class c a mask m and a pattern p are optimised, together for all images x,

    x' = (1 - m) x + m p,    minimise  CE(f_k(x'), c) + lambda |m|_1

as in Neural Cleanse (Wang et al., IEEE S&P 2019). lambda rises while nearly all images go to c and
falls otherwise; |m|_1 of the smallest mask that did is the size s_kc of the trigger in pixels.
Some classes are near to all others, and some nets are easy to move, so sizes are compared within
the table of all clients and classes:

    r_kc = log s_kc - median over c of log s_kc - median over k of what is left

A net with a backdoor has one class with a far smaller trigger than its other classes and than the
other clients have for this class: a very negative r_kc. The images are those that clients are
asked about anyway; no data are needed.

It finds small patches. It does not find triggers that cover the whole image (a faint pattern, a
change of colour), that work for images of one class alone, or that most clients share, and skewed
clients hide them: to their commonest class they are led easily (docs/trust.md has the rates).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attar.blocks.ensemble import NEVER, Teachers
from attar.seeds import rng

IMAGES = 12  # for each class
STEPS = 120
RATE = 0.2
REACHED = 0.9  # share of the images that go to the class
LAMBDA = 1e-3  # at the beginning
FASTER = 1.3  # factor by which lambda rises or falls in a step
SUSPICIOUS = -1.5  # r_kc below which a trigger is named
FEWEST_CLIENTS = 4
FEWEST_CLASSES = 3


@dataclass(frozen=True)
class Trigger:
    """The class of a client to which the smallest trigger leads, compared with the others.

    Attributes:
        target: Column of the class.
        pixels: Size of the trigger.
        usual: Size that the table of all clients lets expect.
        residual: r_kc.
    """

    target: int
    pixels: float
    usual: float
    residual: float

    @property
    def suspicious(self) -> bool:
        """Whether it is far smaller than expected."""
        return self.residual < SUSPICIOUS


def find_triggers(
    teachers: Teachers, images: Tensor, seed: int, device: str = "cpu"
) -> list[Trigger | None]:
    """Search each client's net for a backdoor.

    Args:
        teachers: The clients' nets.
        images: (N, C, H, W) that triggers are put on.
        seed: Decides which images, and where the search begins.
        device: Where the nets run.

    Returns:
        For each client its smallest trigger; None where there are too few clients or classes.
    """
    known = teachers.known.cpu()
    rows, classes = known.shape
    if rows < FEWEST_CLIENTS or classes < FEWEST_CLASSES:
        return [None] * rows
    sizes = torch.stack(
        [measure_triggers(teachers, row, images, seed, device) for row in range(rows)]
    )
    return compare_triggers(sizes, known)


def measure_triggers(
    teachers: Teachers, row: int, images: Tensor, seed: int, device: str = "cpu"
) -> Tensor:
    """s_kc (C,) of one client: pixels of the smallest trigger found for each class."""
    known = teachers.known[row].cpu()
    targets = known.nonzero().squeeze(1)
    draws = rng(seed, "backdoors", row)
    chosen = images[torch.randperm(len(images), generator=draws)[:IMAGES]].to(device)
    _number, _channels, height, width = chosen.shape
    area = float(height * width)
    sizes = torch.full((len(known),), area)
    found, marked = _invert(teachers, row, chosen, targets.to(device), draws)
    sizes[targets] = found.clamp(max=area)
    return sizes, targets, marked


def _invert(
    teachers: Teachers, row: int, images: Tensor, targets: Tensor, draws: torch.Generator
) -> Tensor:
    """Masks and patterns for all target classes in one batch; the size of each, (m,)."""
    number, channels, height, width = images.shape
    many = len(targets)
    device = images.device
    mask = torch.full((many, 1, height, width), -2.0, device=device).requires_grad_()
    start = torch.randn(many, channels, height, width, generator=draws)
    pattern = start.to(device).requires_grad_()
    optimiser = torch.optim.Adam([mask, pattern], lr=RATE, betas=(0.5, 0.9))
    labels = targets.repeat_interleave(number)
    price = torch.full((many,), LAMBDA, device=device)
    known = teachers.known[row].to(device)
    best = torch.full((many,), float(height * width), device=device)
    kept = images[None].repeat(many, 1, 1, 1, 1)
    for _ in range(STEPS):
        m, p = mask.sigmoid()[:, None], pattern.sigmoid()[:, None]
        marked = (1 - m) * images[None] + m * p
        logits = teachers.run_one(row, marked.flatten(0, 1)).masked_fill(~known, NEVER)
        loss = F.cross_entropy(logits, labels, reduction="none").view(many, number).mean(1)
        size = m.sum((1, 2, 3, 4))
        optimiser.zero_grad()
        (loss + price * size).sum().backward()
        optimiser.step()
        with torch.no_grad():
            hits = (logits.argmax(-1) == labels).view(many, number).float().mean(1)
            reached = hits >= REACHED
            better = reached & (size < best)
            best = torch.where(better, size, best)
            kept = torch.where(better[:, None, None, None, None], marked, kept)
            price = torch.where(reached, price * FASTER, price / FASTER).clamp(1e-5, 1.0)
    return best.detach().cpu(), kept.detach()


def compare_triggers(sizes: Tensor, known: Tensor) -> list[Trigger | None]:
    """The smallest trigger of each client in relation to the whole table.

    Args:
        sizes: s_kc (K, C).
        known: (K, C), whether client k knows class c.
    """
    logs = torch.where(known, sizes.clamp(min=0.5).log(), torch.nan)
    rows = logs.nanmedian(1, keepdim=True).values
    columns = (logs - rows).nanmedian(0, keepdim=True).values
    residuals = logs - rows - columns
    found: list[Trigger | None] = []
    for row in range(len(sizes)):
        target = int(residuals[row].nan_to_num(torch.inf).argmin())
        residual = float(residuals[row, target])
        pixels = float(sizes[row, target])
        usual = pixels * float(torch.tensor(-residual).exp())
        found.append(Trigger(target, pixels, usual, residual))
    return found


def describe_trigger(trigger: Trigger, classes: Sequence[str]) -> str:
    """A trigger in words."""
    return (
        f"a patch of {trigger.pixels:.0f} pixels turns nearly any image into "
        f"{classes[trigger.target]} for it; {trigger.usual:.0f} would be usual"
    )
