"""How far the images of all decoders together are from those that their clients trained on."""

from collections.abc import Sequence
from pathlib import Path

import torch

from attar.bench.federation_data import FederationData
from attar.privacy import allot_images, draw_images, fid, load_inception
from attar.seeds import rng
from attar.training import make_client
from attar.uploads import Received

FID_IMAGES = 1000  # of each decoder


def decoders_fid(
    received: Sequence[Received], data: FederationData, inception: str, device: str
) -> float | None:
    """Fréchet distance between what all decoders generate and as many images of their clients.

    Args:
        received: The uploads; those without a decoder do not count.
        data: What the clients hold.
        inception: A TorchScript file, for FID as published.
        device: Where features are computed.

    Returns:
        The distance; None where no upload has a decoder.
    """
    features = load_inception(Path(inception), device)
    generated = []
    real = []
    for file in received:
        upload = file.upload
        if "decoder" not in upload.parts:
            continue
        images = data.partition.clients[data.names.index(upload.client)]
        train = data.dataset.train.take(images)
        client = make_client(upload.client, train, data.dataset.classes)
        number = min(FID_IMAGES, len(client.labels))
        numbers = allot_images(upload.parts["decoder"], client, number)
        generated.append(draw_images(upload, numbers, seed=0, device=device)[0].cpu())
        draws = rng(0, "fid", client.name)
        chosen = torch.randperm(len(client.labels), generator=draws)[:number]
        real.append(client.pixels[chosen].float() / 255)
    return fid(torch.cat(real), torch.cat(generated), features) if generated else None
