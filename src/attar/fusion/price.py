"""What a run will ask of this machine, counted from the files before anything is computed.

A file of a kilobyte may declare images of a megapixel, a layer that widens one image to a
gigabyte, or billions of multiplications. A limit for each image is no limit for a run, which asks
about thousands. So the images that a run asks each client about are counted, and their costs are
compared with the memory that is free and with the work that such a run usually takes. Where that
is too much, the clients without whom it would fit are named.

The counts are rough, within a factor of two or three of what is measured. They are meant to
find a client that costs a hundred times what the others do.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch

from attar.core import AnyMethod, Part, Server, Upload
from attar.errors import AttarError, NeedsError
from attar.fusion.broken_answers import ASKED as CHECKED
from attar.fusion.one_answer import ASKED, INVERTED
from attar.fusion.one_answer import STEPS as ONE_ANSWER_STEPS
from attar.fusion.probe_images import IMAGES
from attar.fusion.probe_images import STEPS as REPORT_STEPS
from attar.internal.memory import free_memory
from attar.internal.text import human_bytes, list_some
from attar.nets.cost import ImageCost, image_cost
from attar.running import Budget
from attar.settings import flatten

FORTH_AND_BACK = 3  # a gradient takes twice what the forward pass takes
COPIES = 8  # of an image that is changed by gradients: itself, gradient, moments, views
WEIGHTS = 3  # of a client's weights: as they came, in its teacher, and while they are copied
# Multiply-accumulates a second, of one thread and of a GPU: what nets of usual layers reach.
SPEED = {"cpu": 1e10, "cuda": 5e12}
HOUR = 3600.0
MOST_NAMED = 10  # clients without whom a run would fit
LEAST_HOURS = 1.0  # that a run may take, however cheap the usual client is
ALONE_HOURS = 24.0  # that it may take where there are too few clients to say what is usual
TIMES_USUAL = 20.0  # what it would take if all clients were as the usual one
# What a step of a method repeats inside, and what says that its images get gradients.
INSIDE = ("generator_steps", "inversion_steps", "guess_steps")
MAKES_IMAGES = ("generator_steps", "inversion_steps")


@dataclass(frozen=True)
class ClientPrice:
    """What one client costs.

    Attributes:
        client: Its name.
        shape: Of its images, as declared.
        cost: Of one image in all its nets.
    """

    client: str
    shape: tuple[int, int, int]
    cost: ImageCost


@dataclass(frozen=True)
class Price:
    """What a run asks of the machine.

    Attributes:
        clients: What each of them costs.
        memory: Bytes at once.
        hours: Of this machine, at ``SPEED``.
        images: About which each client is asked, those with gradients three times.
        hours_of: The part of each client.
    """

    clients: tuple[ClientPrice, ...]
    memory: int
    hours: float
    images: int
    hours_of: dict[str, float] = field(default_factory=dict)


def price_run(
    uploads: Sequence[Upload],
    server: Server,
    method: AnyMethod,
    budget: Budget,
    steps: int = 0,
) -> Price:
    """Count what a run will ask of the machine.

    Args:
        uploads: What will be fused.
        server: Made for them.
        method: With its settings.
        budget: Says what is done beside the method.
        steps: Of the method's phases, if they are known yet.
    """
    clients = tuple(_price_client(upload, server) for upload in uploads)
    return _price(clients, server, method, budget, steps)


def check_price(
    uploads: Sequence[Upload],
    server: Server,
    method: AnyMethod,
    budget: Budget,
    steps: int = 0,
) -> Price:
    """Refuse clients with whom the run does not fit into its budget; takes what ``price_run`` does.

    Returns:
        The price, which fits.

    Raises:
        NeedsError: With the clients without whom it fits, and what they cost.
    """
    price = price_run(uploads, server, method, budget, steps)
    memory = free_memory(server.device) if budget.memory is None else budget.memory

    def again(clients: Sequence[ClientPrice]) -> Price:
        return _price(clients, server, method, budget, steps)

    if memory is not None and price.memory > memory:
        heavy = _heaviest(price.clients, lambda some: again(some).memory, memory)
        raise _refusal(
            f"This run would take {human_bytes(price.memory)} of memory, it may take "
            f"{human_bytes(memory)}:",
            heavy,
            price,
            f"--max-memory {math.ceil(price.memory / 2**30)} (GiB)",
        )
    hours = _usual_hours(price) if budget.work is None else budget.work
    if price.hours > hours:
        heavy = _heaviest(price.clients, lambda some: again(some).hours, hours)
        raise _refusal(
            f"This run would take about {_hours(price.hours)} on this machine, more than "
            f"{_hours(hours)}:",
            heavy,
            price,
            f"--max-work {math.ceil(price.hours)} (hours)",
        )
    return price


def _price(
    clients: Sequence[ClientPrice],
    server: Server,
    method: AnyMethod,
    budget: Budget,
    steps: int,
) -> Price:
    settings = flatten(method)
    number = settings.get("batch_size", 0)
    batch = number if isinstance(number, int) else 0
    inside = max([1, *(settings[name] for name in INSIDE if isinstance(settings.get(name), int))])
    makes_images = any(name in settings for name in MAKES_IMAGES)
    canonical = 4 * math.prod(_largest(clients))
    kept = sum(one.cost.kept for one in clients)
    forward = max((one.cost.forward for one in clients), default=0)
    largest = max((one.cost.kept for one in clients), default=0)
    at_once = [CHECKED * largest]
    if makes_images:
        at_once.append(batch * (COPIES * canonical + kept))
    else:
        at_once.append(batch * canonical + forward)
    images = CHECKED + FORTH_AND_BACK * steps * batch * inside + budget.evaluated
    if budget.robustness:
        own = max(1, IMAGES // max(1, len(clients)))
        at_once.append(max(own, INVERTED) * (COPIES * canonical + largest) + IMAGES * canonical)
        images += ASKED + FORTH_AND_BACK * INVERTED * ONE_ANSWER_STEPS
        images += FORTH_AND_BACK * own * REPORT_STEPS + IMAGES
    weights = WEIGHTS * sum(one.cost.weights for one in clients)
    if server.teacher_memory is not None:
        weights = min(weights, server.teacher_memory)
    speed = _speed(server.device) * HOUR
    hours_of = {one.client: images * one.cost.products / speed for one in clients}
    return Price(
        clients=tuple(clients),
        memory=weights + max(at_once),
        hours=sum(hours_of.values()),
        images=images,
        hours_of=hours_of,
    )


def _price_client(upload: Upload, server: Server) -> ClientPrice:
    costs = [_cost(part) for part in upload.parts.values()]
    shapes = [part.preprocess.input_shape for part in upload.parts.values()]
    return ClientPrice(
        client=upload.client,
        shape=_join(shapes),
        cost=ImageCost(
            sum(cost.products for cost in costs),
            sum(cost.forward for cost in costs),
            sum(cost.kept for cost in costs),
            sum(cost.weights for cost in costs),
        ),
    )


def _cost(part: Part) -> ImageCost:
    if part.spec.kind not in ("classifier", "decoder"):
        return ImageCost(0, 0, 0)
    try:
        return image_cost(part.spec, part.preprocess.input_shape, len(part.classes))
    except AttarError:  # such as a backbone that is not on this machine: fusing it says so
        return ImageCost(0, 0, 0)


def _largest(clients: Sequence[ClientPrice]) -> tuple[int, int, int]:
    return _join([one.shape for one in clients])


def _join(shapes: Sequence[tuple[int, int, int]]) -> tuple[int, int, int]:
    """The image that holds all of these."""
    channels, heights, widths = zip(*shapes, strict=True)
    return max(channels), max(heights), max(widths)


def _heaviest(
    clients: Sequence[ClientPrice], measure: Callable[[Sequence[ClientPrice]], float], most: float
) -> list[ClientPrice]:
    """The fewest clients without whom the rest fits, found one by one; empty: no few of them."""
    left = list(clients)
    heavy: list[ClientPrice] = []
    while len(left) > 1 and measure(left) > most:
        if len(heavy) == MOST_NAMED:  # nobody stands out: there are too many of them
            return []
        best = min(range(len(left)), key=lambda row: measure([*left[:row], *left[row + 1 :]]))
        heavy.append(left.pop(best))
    return heavy if measure(left) <= most else []


def _usual_hours(price: Price) -> float:
    """The hours that a run may take, by what the usual client costs."""
    each = list(price.hours_of.values())
    if len(each) < 3:
        return ALONE_HOURS
    return max(LEAST_HOURS, TIMES_USUAL * median(each) * len(each))


def _refusal(what: str, heavy: Sequence[ClientPrice], price: Price, accept: str) -> NeedsError:
    named = heavy or sorted(price.clients, key=lambda one: -one.cost.products)[:MOST_NAMED]
    problems = [f"{_describe(one)}, {_hours(price.hours_of[one.client])}" for one in named]
    fix = f"accept it with {accept}, or take a cheaper method (`attar fuse --dry-run`)"
    if heavy:
        flags = " ".join(f"--exclude {_quote(one.client)}" for one in heavy)
        clients = list_some([one.client for one in heavy])
        fix = f"leave {clients} out with {flags}, and the rest fits; or {fix}"
    return NeedsError(what, problems=problems, fix=fix)


def _describe(one: ClientPrice) -> str:
    shape = "x".join(map(str, one.shape))
    return (
        f"client {one.client}: images of {shape}; one image takes {one.cost.products:,} "
        f"multiplications and {human_bytes(one.cost.kept)}"
    )


def _hours(hours: float) -> str:
    if hours < 1 / 60:
        return "a minute"
    return f"{60 * hours:.0f} minutes" if hours < 2 else f"{hours:,.0f} hours"


def _quote(name: str) -> str:
    return f"'{name}'" if " " in name else name


def _speed(device: str) -> float:
    kind = torch.device(device).type
    return SPEED["cpu"] * torch.get_num_threads() if kind == "cpu" else SPEED["cuda"]
