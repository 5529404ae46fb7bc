"""Federations small enough for a test: uploads of untrained nets, and a server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attar.backbones import backbone_of
from attar.core import AnyMethod, Images, ModelSpec, Part, Preprocess, Server, Upload
from attar.fusion import server_for
from attar.nets import project_features
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
SUM_BITS = 24
SMALL_SUMS = ("sums", "sums:per_class", "sums:other")  # of one backbone, and of another


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


def tiny_backbone(name: str, preprocess: Preprocess | None = None) -> Part:
    """Make an untrained net that serves as a backbone; each name gives other weights."""
    preprocess = preprocess or Preprocess.centred(SHAPE)
    spec = ModelSpec.parse(SMALL_NETS[0])
    net = spec.build(preprocess.input_shape, 2, derive(0, "tiny backbone", name))
    return Part(spec, net.state_dict(), ("0", "1"), preprocess)


def tiny_sums(
    client: str,
    kind: str = SMALL_SUMS[0],
    classes: Sequence[str] = CLASSES,
    *,
    counts: bool = True,
    preprocess: Preprocess | None = None,
) -> Upload:
    """Make an upload of the sums of features of a few random images.

    Args:
        client: Its name; each name gives other images.
        kind: One of ``SMALL_SUMS``.
        classes: Of the images.
        counts: Whether it sends label counts.
        preprocess: Of the backbone; None: for images of ``SHAPE``.
    """
    name = "other" if kind == SMALL_SUMS[2] else "toy"
    backbone = backbone_of(name, tiny_backbone(name, preprocess))
    draws = rng(0, "tiny sums", client)
    number = 8 * len(classes)
    images = torch.rand(number, *backbone.preprocess.input_shape, generator=draws)
    with torch.no_grad():
        raw = backbone.net.features(backbone.preprocess(images))  # type: ignore[operator]
    phi = project_features(raw, centre=None, dimensions=0, clip=0.0)
    labels = torch.arange(number) % len(classes)
    per_class = kind == SMALL_SUMS[1]
    state = _plain_sums(phi, labels, len(classes), per_class=per_class)
    options: dict[str, bool | int | str] = {
        "backbone": name,
        "fingerprint": backbone.fingerprint(0, 0.0, SUM_BITS),
        "features": backbone.features,
        "bits": SUM_BITS,
        "per_class": per_class,
    }
    spec = ModelSpec.of("feature-sums", options)
    part = Part(spec, state, tuple(classes), backbone.preprocess)
    label_counts = tuple(labels.bincount().tolist()) if counts else None
    return Upload(client, {"sums": part}, number, label_counts)


def _plain_sums(phi: Tensor, labels: Tensor, classes: int, *, per_class: bool) -> dict[str, Tensor]:
    """Counts, sums and squares on the grid; the first and the second half of the images."""
    rows, columns = torch.tril_indices(phi.shape[1], phi.shape[1])
    one_hot = torch.nn.functional.one_hot(labels, classes).double()
    halves = list(zip(phi.chunk(2), one_hot.chunk(2), strict=True))
    matrices = [torch.einsum("nc,ni,nj->cij", hot, x, x) for x, hot in halves]
    squares = torch.stack(matrices)[..., rows, columns]
    if not per_class:
        squares = squares.sum(1, keepdim=True)
    return {
        "counts": torch.stack([hot.sum(0) for _, hot in halves]).long(),
        "sums": _on_grid(torch.stack([hot.T @ x for x, hot in halves])),
        "squares": _on_grid(squares),
    }


def _on_grid(values: Tensor) -> Tensor:
    rounded: Tensor = (values * 2**SUM_BITS).round().long()
    return rounded


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
        nets: Classifiers, decoders and sums.
        classes: Of each client; None: ``CLASSES`` for all.
        preprocess: Of each client; None: for images of ``SHAPE``.
        seed: Of the server and its images.
    """
    uploads = []
    for place, net in enumerate(nets):
        make = _maker_of(net)
        upload = make(
            f"client{place}",
            net,
            CLASSES if classes is None else classes[place],
            preprocess=None if preprocess is None else preprocess[place],
        )
        uploads.append(upload)
    pixels = torch.randint(0, 256, (24, *SHAPE), dtype=torch.uint8, generator=rng(seed, "public"))
    public = Images(pixels, None, "noise")
    server = server_for(uploads, public=public, seed=seed, ties="first")
    looks = dict.fromkeys(
        upload.parts["sums"].preprocess for upload in uploads if "sums" in upload.parts
    )
    backbones = {
        f"{name} {number}": tiny_backbone(name, look)
        for number, look in enumerate(looks)
        for name in ("toy", "other")
    }
    return World(tuple(uploads), replace(server, backbones=backbones))


def _maker_of(net: str) -> Callable[..., Upload]:
    if net in SMALL_SUMS:
        return tiny_sums
    return tiny_decoder if ModelSpec.parse(net).kind == "decoder" else tiny_upload


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
