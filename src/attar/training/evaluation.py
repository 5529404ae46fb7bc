"""The classifier of an upload, on the images that it was trained on."""

import torch

from attar.core import Part
from attar.models import Classifier, evaluate
from attar.training.clients import ClientData


def accuracy_at_home(
    part: Part, client: ClientData, *, most: int = 200, device: str = "cpu"
) -> float:
    """Accuracy of a client's own net on (at most so many of) the images that it was trained on:
    whether it learned at all.
    """
    some = torch.linspace(0, len(client.labels) - 1, min(most, len(client.labels))).round().long()
    pixels, labels = client.pixels[some], client.labels[some]
    model = Classifier(part).to(device)
    return evaluate(
        model, pixels, labels, client.classes, model_classes=part.classes, device=device
    ).accuracy
