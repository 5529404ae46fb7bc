"""Clients whose nets answer NaN, infinity or numbers that overflow in a fusion.

Every weight of an accepted file is finite, but what a net computes from them need not be: weights
of 1e30, the root of a negative number, statistics with a mean of 1e38. So each client is asked
about a few images before a fusion, and asked more closely after one that diverged. No client's
data are needed for either.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor, nn

from attar.blocks.images import procedural_images
from attar.core import Part, Upload
from attar.errors import AttarError, DivergedError, NeedsError
from attar.internal.text import list_some
from attar.nets import Decoder, FeatureStatistics, to_shape
from attar.seeds import rng

PROCEDURAL = 4  # of the images that a client is asked about, beside noise and the extremes
NOISE = 4
DRAWN = 8  # images from a decoder
ASKED = 2 + NOISE + PROCEDURAL
# The largest honest z-score is a distance over a spread of at least 1e-6. Beyond this the square
# of an answer is near the largest number of single precision.
LARGEST = 1e12
FAR = 1000.0  # times the median of the others, from which on a client may be why a run diverged


@dataclass(frozen=True)
class BrokenAnswers:
    """A client with which a fusion cannot compute.

    Attributes:
        client: Its name.
        part: Which of its nets.
        answers: What that net does, in words.
    """

    client: str
    part: str
    answers: str

    def __str__(self) -> str:
        return f"client {self.client}: its {self.part} {self.answers}"


def find_broken_answers(
    uploads: Sequence[Upload], device: str = "cpu", images: Tensor | None = None
) -> list[BrokenAnswers]:
    """Return the nets whose answers to a few images are NaN, infinite or above ``LARGEST``.

    Args:
        uploads: Of clients.
        device: Where the nets run.
        images: More canonical images to ask about, (N, C, H, W).
    """
    found = []
    for upload in uploads:
        for name, part in upload.parts.items():
            if (size := _largest_answer(upload, name, part, device, images)) is None:
                continue
            if size > LARGEST:
                found.append(BrokenAnswers(upload.client, name, _in_words(size)))
    return found


def check_answers(uploads: Sequence[Upload], device: str = "cpu") -> None:
    """Refuse uploads of clients whose answers no fusion can compute with.

    Raises:
        NeedsError: With every such client.
    """
    if found := find_broken_answers(uploads, device):
        clients = list(dict.fromkeys(one.client for one in found))
        raise NeedsError(
            f"The answers of {list_some(clients)} cannot be used:",
            problems=map(str, found),
            fix=_leave_out(clients, uploads, "ask for a new upload"),
        )


def explain_divergence(
    error: DivergedError,
    uploads: Sequence[Upload],
    device: str,
    images: Mapping[str, Tensor],
) -> DivergedError:
    """Name the clients that may be why a run diverged; the error itself where none stands out.

    Args:
        error: What the run ended with.
        uploads: What was fused.
        device: Where the nets run.
        images: That the method made.
    """
    made = [batch.flatten(0, -4) for batch in images.values() if batch.dim() >= 4 and len(batch)]
    shown: list[Tensor | None] = [
        batch[:64].detach().float().cpu().nan_to_num(0.5).clamp(0, 1) for batch in made
    ]
    sizes: dict[tuple[str, str], float] = {}
    for upload in uploads:
        for name, part in upload.parts.items():
            answers = [
                _largest_answer(upload, name, part, device, batch, gradients=True)
                for batch in (shown or [None])
            ]
            if known := [size for size in answers if size is not None]:
                sizes[upload.client, name] = max(known)
    suspects = {}
    for (client, name), size in sizes.items():
        others = [value for key, value in sizes.items() if key[1] == name and key[0] != client]
        if size > LARGEST:
            suspects[client] = f"client {client}: its {name} gives NaN or infinity, or leads to it"
        elif others and size > FAR * (usual := median(others)) > 0:
            suspects[client] = (
                f"client {client}: its {name} answers with {size / usual:.3g} times the numbers "
                "of the others"
            )
    if not suspects:
        return error
    return DivergedError(
        f"{error.what} The likely cause:",
        problems=suspects.values(),
        fix=_leave_out(list(suspects), uploads, "take another --out for the new run"),
    )


def _leave_out(clients: Sequence[str], uploads: Sequence[Upload], otherwise: str) -> str:
    if len(clients) == len(uploads):
        return "ask the senders for new uploads: every client is concerned"
    flags = " ".join(f"--exclude {_quote(client)}" for client in clients)
    return f"leave {'it' if len(clients) == 1 else 'them'} out with {flags}, and {otherwise}"


def _quote(client: str) -> str:
    return f"'{client}'" if " " in client else client


def _in_words(size: float) -> str:
    if math.isfinite(size):
        return f"answers with numbers up to {size:.1g}, which overflow in a fusion"
    return "answers NaN or infinity to a few images (noise, drawings, black and white)"


def _largest_answer(
    upload: Upload,
    name: str,
    part: Part,
    device: str,
    images: Tensor | None,
    *,
    gradients: bool = False,
) -> float | None:
    """Largest magnitude of a net's answers, infinity for NaN; None: it is not asked."""
    try:
        if name == "decoder":
            return _ask_decoder(part, device)
        if name == "statistics":
            return _ask_statistics(upload.parts["classifier"], part, device, images)
        if name in ("classifier", "knowledge"):
            return _ask_classifier(part, device, images, gradients=gradients)
    except AttarError:  # such as a backbone that is not on this machine: fusing it says so
        pass
    return None


def _ask_classifier(part: Part, device: str, images: Tensor | None, *, gradients: bool) -> float:
    net = part.build().to(device)
    asked = _questions(part, images).to(device).requires_grad_(gradients)
    with torch.set_grad_enabled(gradients):
        logits: Tensor = net(part.preprocess(asked)).float()
        size = _magnitude(logits)
        if not gradients or size > LARGEST:
            return size
        (slope,) = torch.autograd.grad(logits.logsumexp(-1).sum(), asked, allow_unused=True)
    slope_size = 0.0 if slope is None else _magnitude(slope)
    return size if slope_size <= LARGEST else math.inf


def _ask_decoder(part: Part, device: str) -> float:
    net = part.build().to(device)
    assert isinstance(net, Decoder), "role_problems refuses others"
    draws = rng(0, "broken answers")
    codes = torch.randn(DRAWN, net.latent, generator=draws)
    labels = nn.functional.one_hot(torch.arange(DRAWN) % net.num_classes, net.num_classes)
    with torch.no_grad():
        # Not the images, which the sigmoid bounds: a NaN shows in both, an overflow here alone.
        return _magnitude(net.logits(codes.to(device), labels.float().to(device)))


def _ask_statistics(
    classifier: Part, part: Part, device: str, images: Tensor | None
) -> float | None:
    net = classifier.build().to(device)
    statistics = part.build().to(device)
    assert isinstance(statistics, FeatureStatistics), "role_problems refuses others"
    with torch.no_grad():
        inputs = classifier.preprocess(_questions(classifier, images).to(device))
        features: Tensor = net.features(inputs)  # type: ignore[operator]
        if not bool(features.isfinite().all()):
            return None  # the classifier's own fault, which is told of it
        distances, scores = statistics(features)
    return max(_magnitude(distances), _magnitude(scores))


def _questions(part: Part, images: Tensor | None) -> Tensor:
    """Black, white, noise and drawings of the net's own size, and the images that were given."""
    shape = part.preprocess.input_shape
    draws = rng(0, "broken answers")
    own = [
        torch.zeros(1, *shape),
        torch.ones(1, *shape),
        torch.rand(NOISE, *shape, generator=draws),
        procedural_images(PROCEDURAL, shape, draws),
    ]
    if images is not None:
        own.append(to_shape(images, shape))
    return torch.cat(own)


def _magnitude(values: Tensor) -> float:
    """Largest absolute value; infinity where one is NaN."""
    return float(values.detach().float().abs().nan_to_num(math.inf, math.inf).amax())
