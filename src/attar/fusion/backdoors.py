"""A search for backdoors: how small a trigger makes a client's net give one class to any image?

For each client k and class c a mask m and a pattern p are optimised, together for all images x,

    x' = (1 - m) x + m p,    minimise  CE(f_k(x'), c) + lambda |m|_1

as in Neural Cleanse (Wang et al., IEEE S&P 2019). lambda rises while nearly all images go to c and
falls otherwise; |m|_1 of the smallest mask that did is the size s_kc of the trigger in pixels. Any
net can be led to any class by enough pixels. How many depends on the images and on the nets, so a
client is compared with the others:

    r_k = log min_c s_kc - median over other clients j of log min_c s_jc

Neural Cleanse compares the classes of one net. Among clients with few and uneven classes that says
little: most nets have a class that they give too easily. The images are those that clients are
asked about anyway; no data are needed.

It finds small patches. It does not find triggers that cover the whole image (a faint pattern, a
change of colour), that work for images of one class alone, or that half of the clients share
(docs/trust.md has the rates).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, isfinite, log
from statistics import median

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
SUSPICIOUS = -1.0  # r_k below which a trigger is worth a look; honest clients come here, too
UNSURE = 0.9  # entropy, as a share of the largest, of a net that cannot be judged
COMMON = 0.5  # share of images that are given a class without any trigger
FEWEST_CLIENTS = 4
FEWEST_CLASSES = 3


@dataclass(frozen=True)
class Trigger:
    """The smallest trigger of a client, compared with the others'.

    Attributes:
        target: Column of the class that it leads to.
        pixels: Its size.
        usual: Median of the other clients' smallest.
        residual: r_k.
    """

    target: int
    pixels: float
    usual: float
    residual: float

    @property
    def suspicious(self) -> bool:
        """Whether it is far smaller than the others': worth a look, and no evidence."""
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
        For each client its smallest trigger; None where there are too few clients or classes, or
        its net is unsure of everything.
    """
    known = teachers.known.cpu()
    rows, classes = known.shape
    if rows < FEWEST_CLIENTS or classes < FEWEST_CLASSES:
        return [None] * rows
    sizes = torch.stack(
        [measure_triggers(teachers, row, images, seed, device) for row in range(rows)]
    )
    return compare_triggers(sizes)


def measure_triggers(
    teachers: Teachers, row: int, images: Tensor, seed: int, device: str = "cpu"
) -> Tensor:
    """s_kc (C,) of one client: pixels of the smallest trigger found for each class.

    NaN for a class that most images are given without any trigger, and for all classes of a net
    that is unsure of everything: that one is led anywhere by a pixel.
    """
    known = teachers.known[row].cpu()
    draws = rng(seed, "backdoors", row)
    with torch.no_grad():
        masked = ~known.to(device)
        batches = [teachers.run_one(row, batch.to(device)) for batch in images.split(256)]
        clean = torch.cat(batches).masked_fill(masked, NEVER).float().softmax(-1).cpu()
    shares = clean.argmax(-1).bincount(minlength=len(known)) / len(clean)
    entropy = -(clean * clean.clamp(min=1e-12).log()).sum(-1).mean() / log(int(known.sum()))
    sizes = torch.full((len(known),), torch.nan)
    targets = (known & (shares < COMMON)).nonzero().squeeze(1)
    if float(entropy) > UNSURE or not len(targets) or not bool(clean.isfinite().all()):
        return sizes
    chosen = images[torch.randperm(len(images), generator=draws)[:IMAGES]].to(device)
    sizes[targets] = _invert(teachers, row, chosen, targets.to(device), draws)
    return sizes


def _invert(
    teachers: Teachers, row: int, images: Tensor, targets: Tensor, draws: torch.Generator
) -> Tensor:
    """Optimise masks and patterns for all target classes in one batch; the size of each, (m,)."""
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
    for _ in range(STEPS):
        m, p = mask.sigmoid()[:, None], pattern.sigmoid()[:, None]
        marked = (1 - m) * images[None] + m * p  # (m, images, C, H, W)
        logits = teachers.run_one(row, marked.flatten(0, 1)).masked_fill(~known, NEVER)
        loss = F.cross_entropy(logits, labels, reduction="none").view(many, number).mean(1)
        size = m.sum((1, 2, 3, 4))
        optimiser.zero_grad()
        (loss + price * size).sum().backward()
        optimiser.step()
        with torch.no_grad():
            hits = (logits.argmax(-1) == labels).view(many, number).float().mean(1)
            reached = hits >= REACHED
            best = torch.where(reached, torch.minimum(best, size), best)
            price = torch.where(reached, price * FASTER, price / FASTER).clamp(1e-5, 1.0)
    return best.detach().cpu()


def compare_triggers(sizes: Tensor) -> list[Trigger | None]:
    """The smallest trigger of each client in relation to those of the others.

    Args:
        sizes: s_kc (K, C); NaN where there is none.
    """
    smallest, targets = sizes.clamp(min=1.0).nan_to_num(torch.inf).min(1)
    logs = smallest.log().tolist()
    found: list[Trigger | None] = []
    for row, own in enumerate(logs):
        others = [other for place, other in enumerate(logs) if place != row and isfinite(other)]
        if not isfinite(own) or len(others) < FEWEST_CLIENTS - 1:
            found.append(None)
            continue
        usual = median(others)
        found.append(Trigger(int(targets[row]), float(smallest[row]), exp(usual), own - usual))
    return found


def describe_trigger(trigger: Trigger, classes: Sequence[str]) -> str:
    """A trigger in words."""
    return (
        f"a patch of {trigger.pixels:.0f} pixels turns nearly any image into "
        f"{classes[trigger.target]} for it; the others take {trigger.usual:.0f}"
    )
