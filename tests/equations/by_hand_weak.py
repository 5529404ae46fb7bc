"""What several equation tests of methods share."""

from dataclasses import replace

from attar.running import Driver
from attar.testing import CLASSES, tiny_decoder, tiny_upload


def run_until(method, uploads, server, phase=None):
    """Context and state of a method before ``phase``, or after all phases."""
    context = method.prepare(uploads, server)
    state = method.start(context)
    phases = list(method.phases(context))
    names = [each.name for each in phases]
    Driver(server.seed).run(phases[: names.index(phase)] if phase else phases, state, history=[])
    return context, state


def upload_with_counts(client, counts, classes=CLASSES, net=None):
    """A classifier and so many images of each class."""
    upload = (
        tiny_upload(client, classes=classes) if net is None else tiny_upload(client, net, classes)
    )
    return replace(upload, label_counts=counts, num_examples=sum(counts))


def decoder_with_counts(client, counts, classes=CLASSES):
    """A decoder and so many images of each class."""
    upload = tiny_decoder(client, classes=classes)
    return replace(upload, label_counts=counts, num_examples=sum(counts))
