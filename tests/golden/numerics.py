"""How this machine calculates, to decide whether pins must be equal bit for bit."""

import hashlib
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

HASH_LENGTH = 16  # recorded hexadecimal digits of a sha256


@contextmanager
def one_thread():
    """Calculate on one thread, as the recording did."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sha256(*values):
    """Hash tensors (with type and shape), texts and numbers."""
    hasher = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu().contiguous()
            hasher.update(f"{value.dtype} {tuple(value.shape)}".encode())
            hasher.update(value.view(-1).view(torch.uint8).numpy().tobytes())
        else:
            hasher.update(f"{value!r};".encode())
    return hasher.hexdigest()[:HASH_LENGTH]


def reference_nets():
    """Return nets with the layers that the pins use, each with the shape of one input."""
    wide = nn.Sequential(
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.ConvTranspose2d(128, 64, 3, padding=1)
    )
    generator = nn.Sequential(
        nn.Linear(8, 128),
        nn.Unflatten(1, (8, 4, 4)),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.Upsample(scale_factor=2),
        nn.Conv2d(8, 4, 3, padding=1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4, 1, 3, padding=1),
        nn.Sigmoid(),
    )
    return [
        (
            nn.Sequential(
                nn.Conv2d(1, 6, 5, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
            ),
            (1, 16, 16),
        ),
        (
            nn.Sequential(
                nn.Conv2d(6, 16, 5), nn.ReLU(), nn.Flatten(), nn.Linear(256, 120), nn.Tanh()
            ),
            (6, 8, 8),
        ),
        (
            nn.Sequential(
                nn.Conv2d(3, 16, 3, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(1),
            ),
            (3, 16, 16),
        ),
        (
            nn.Sequential(
                nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.Conv2d(32, 32, 1), nn.AvgPool2d(2)
            ),
            (16, 8, 8),
        ),
        (
            nn.Sequential(
                nn.Conv2d(12, 18, 3, groups=3), nn.Upsample(scale_factor=1.5, mode="bilinear")
            ),
            (12, 8, 8),
        ),
        (nn.Sequential(nn.Linear(17, 5), nn.ReLU(), nn.Linear(5, 3), nn.Softmax(-1)), (17,)),
        (
            nn.Sequential(
                nn.Linear(8, 64),
                nn.Unflatten(1, (4, 4, 4)),
                nn.ConvTranspose2d(4, 2, 4, 2, 1),
                nn.Sigmoid(),
            ),
            (8,),
        ),
        (nn.TransformerEncoderLayer(12, 3, 16, 0.2, "gelu", batch_first=True), (5, 12)),
        (generator.to(memory_format=torch.channels_last), (8,)),
        (wide, (64, 8, 8)),
    ]


@one_thread()
def numerics():
    """Describe how this machine calculates: torch, instruction set, a reference calculation."""
    results = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for net, shape in reference_nets():
            descents = (
                torch.optim.Adam(net.parameters()),
                torch.optim.SGD(net.parameters(), 0.01, 0.9),
            )
            for batch, descent in zip((2, 8, 16, 40), descents * 2, strict=True):
                given = torch.randn(batch, *shape, requires_grad=True)
                made = net(given)
                loss = (
                    F.cross_entropy(made.flatten(1), torch.arange(batch) % 2)
                    + made.exp().mean()
                    + made.norm()
                )
                descent.zero_grad()
                loss.backward()
                descent.step()
                results += [
                    made,
                    loss,
                    given.grad,
                    *(weights.grad.clone() for weights in net.parameters()),
                ]
            results += list(net.parameters())
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "sha256": sha256(*results),
    }
