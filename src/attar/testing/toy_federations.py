"""Federations small enough for a test: uploads of untrained nets, and a server."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attar.core import AnyMethod, Images, ModelSpec, Part, Preprocess, Server, Upload
from attar.fusion import server_for
from attar.seeds import derive, rng
from attar.training import ClientData, add_statistics

CLASSES = ("ring", "cross", "bar")
SHAPE = (1, 16, 16)
SMALL_NETS = ("mlp:hidden=8,layers=1", "lenet5", "resnet20")
SMALL_VITS = (
    "vit:patch=8,width=12,depth=1,hidden=16",
    "vit:patch=8,width=12,depth=1,hidden=16,distillation=head",
    "vit:patch=8,width=24,depth=2,hidden=16",
)
GREY = Preprocess((1, 14, 14), (0.3,), (0.4,))
COLOUR = Preprocess((3, 16, 16), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SMALL_DECODERS = (
    "cvae-small-decoder:hidden=8",
    "cvae-small-decoder:form=emnist,hidden=8,latent=3",
    "cvae-small-decoder:hidden=8",
)


@dataclass(frozen=True)
class World:
    """A federation small enough for a test.

    Attributes:
        uploads: Of untrained nets.
        server: With a few images.
    """

    uploads: tuple[Upload, ...]
    server: Server


def tiny_upload(
    client: str,
    arch: str = SMALL_NETS[0],
    classes: Sequence[str] = CLASSES,
    *,
    counts: bool = True,
    preprocess: Preprocess | None = None,
) -> Upload:
    """Make an upload of an untrained classifier.

    Args:
        client: Its name; each name gives other weights.
        arch: Its net.
        classes: Of the net.
        counts: Whether it sends label counts.
        preprocess: None: for images of ``SHAPE``.
    """
    preprocess = preprocess or Preprocess.centred(SHAPE)
    return _upload(client, "classifier", arch, classes, preprocess, counts)


def tiny_decoder(
    client: str,
    arch: str = SMALL_DECODERS[0],
    classes: Sequence[str] = CLASSES,
    *,
    counts: bool = True,
    preprocess: Preprocess | None = None,
) -> Upload:
    """Make an upload of an untrained decoder; see ``tiny_upload``."""
    return _upload(client, "decoder", arch, classes, preprocess or Preprocess.plain(SHAPE), counts)


def tiny_statistics(upload: Upload) -> Upload:
    """Add statistics of the classifier's features on a few random images to an upload."""
    part = upload.parts["classifier"]
    draws = rng(0, "statistics", upload.client)
    pixels = torch.randint(
        0, 256, (40, *part.preprocess.input_shape), dtype=torch.uint8, generator=draws
    )
    labels = torch.arange(len(pixels)) % len(part.classes)
    return add_statistics(upload, ClientData(upload.client, pixels, labels, part.classes))


def _upload(
    client: str, role: str, arch: str, classes: Sequence[str], preprocess: Preprocess, counts: bool
) -> Upload:
    spec = ModelSpec.parse(arch)
    net = spec.build(preprocess.input_shape, len(classes), derive(0, "tiny", client))
    draws = rng(0, "tiny", client)
    label_counts = tuple(int(n) for n in torch.randint(1, 9, (len(classes),), generator=draws))
    part = Part(spec, net.state_dict(), tuple(classes), preprocess)
    return Upload(
        client, {role: part}, sum(label_counts), label_counts if counts else None, local_steps=3
    )


def tiny_world(
    nets: Sequence[str] = SMALL_NETS[:1] * 3,
    *,
    classes: Sequence[Sequence[str]] | None = None,
    preprocess: Sequence[Preprocess | None] | None = None,
    seed: int = 0,
) -> World:
    """Make a federation of one client for each net.

    Args:
        nets: Classifiers and decoders.
        classes: Of each client; None: ``CLASSES`` for all.
        preprocess: Of each client; None: for images of ``SHAPE``.
        seed: Of the server and its images.
    """
    uploads = []
    for place, net in enumerate(nets):
        make = tiny_decoder if ModelSpec.parse(net).kind == "decoder" else tiny_upload
        upload = make(
            f"client{place}",
            net,
            CLASSES if classes is None else classes[place],
            preprocess=None if preprocess is None else preprocess[place],
        )
        uploads.append(upload)
    pixels = torch.randint(0, 256, (24, *SHAPE), dtype=torch.uint8, generator=rng(seed, "public"))
    server = server_for(uploads, public=Images(pixels, None, "noise"), seed=seed)
    return World(tuple(uploads), server)


def with_needs(world: World, method: AnyMethod) -> World:
    """Give the server what the method needs beside uploads: the model that clients started from,
    labels of its images.
    """
    server = world.server
    if method.needs.initial:
        part = next(iter(world.uploads[0].parts.values()))
        fresh = part.spec.build(
            part.preprocess.input_shape, len(part.classes), derive(0, "start")
        ).state_dict()
        server = replace(server, initial=replace(part, state=fresh))
    if method.needs.public_labels and server.public is not None:
        labels = torch.arange(len(server.public.pixels)) % len(server.task.classes)
        server = replace(server, public=replace(server.public, labels=labels))
    return replace(world, server=server)


def without_extras(world: World, method: AnyMethod) -> tuple[World, list[str]]:
    """Take away what the method does not ask for.

    Returns:
        The federation, and what was taken away, in words.
    """
    needs = method.needs
    removed = []
    uploads = []
    for upload in world.uploads:
        asked = needs.label_counts or set(needs.label_counts_with) & set(upload.parts)
        uploads.append(upload if asked else replace(upload, label_counts=None))
    if any(
        poorer.label_counts != upload.label_counts
        for poorer, upload in zip(uploads, world.uploads, strict=True)
    ):
        removed.append("label counts")
    server = world.server
    if server.public is not None and not (needs.public_data or needs.public_labels):
        server = replace(server, public=None)
        removed.append("images at the server")
    return World(tuple(uploads), server), removed
