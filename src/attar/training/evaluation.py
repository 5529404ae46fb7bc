"""The accuracy of an upload's classifier on the images that it was trained on."""

import torch

from attar.core import Part
from attar.models import Classifier, evaluate
from attar.training.clients import ClientData


def local_accuracy(
    part: Part, client: ClientData, *, most: int = 200, device: str = "cpu"
) -> float:
    """Return the accuracy of a client's net on its own images: whether it learned at all.

    Args:
        part: The client's net.
        client: The images that it was trained on.
        most: How many of them to use at most, evenly spread.
        device: Where the net runs.
    """
    number = len(client.labels)
    chosen = torch.linspace(0, number - 1, min(most, number)).round().long()
    evaluation = evaluate(
        Classifier(part).to(device),
        client.pixels[chosen],
        client.labels[chosen],
        client.classes,
        model_classes=part.classes,
        device=device,
    )
    return evaluation.accuracy
