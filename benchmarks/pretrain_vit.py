"""Pre-train a small ViT on Tiny-ImageNet-32, as the clients' start: it stands in for an ImageNet
checkpoint.

    python benchmarks/pretrain_vit.py --out results/start/vit-tiny [--seconds 300] [--device cuda]

The images lie on the device as bytes, every batch is augmented there in a few calls (random
crop, flip, brightness and contrast, then mixup or cutmix), the net runs in bfloat16 and, on
CUDA, compiled. The learning rate follows the clock, so that training ends in time on any
machine: up to its peak in the first twentieth of the seconds, then down to nothing by a cosine.
Writes a model folder in half precision (for ``attar train --start`` and ``attar fuse --start``)
and ``pretraining.json`` beside it.
"""

import argparse
import json
import math
import platform
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attar import ModelSpec, Part, Preprocess, load_data, save_model
from attar.data import Split
from attar.internal.files import write_atomic

SMALLEST_CROP = 0.35  # of the area
WARM_UP = 0.05  # of the time
CLOCK_EVERY = 10  # steps: how far a GPU may lag behind before we wait for it


def resident(part: Split, device: str) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) as bytes and labels, on the device."""
    pixels = torch.from_numpy(part.images).permute(0, 3, 1, 2).contiguous()
    return pixels.to(device), torch.from_numpy(part.labels).to(device)


def augmented(pixels: Tensor, draws: torch.Generator) -> Tensor:
    """Bytes -> images in [0, 1]: each with its own crop, stretched to the whole, perhaps
    mirrored, a bit brighter or duller.
    """
    number, device = len(pixels), pixels.device

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(number, *shape, generator=draws, device=device)

    area, ratio = uniform(SMALLEST_CROP, 1.0), uniform(math.log(3 / 4), math.log(4 / 3)).exp()
    width, height = ((area * r).sqrt().clamp(max=1.0) for r in (ratio, 1 / ratio))
    mirror = torch.where(uniform(0, 1) < 0.5, -1.0, 1.0)
    across, down = (1 - width) * uniform(-1, 1), (1 - height) * uniform(-1, 1)
    zero = torch.zeros_like(width)
    places = torch.stack(
        [torch.stack([width * mirror, zero, across], 1), torch.stack([zero, height, down], 1)], 1
    )
    grid = F.affine_grid(places, list(pixels.shape), align_corners=False)
    images = F.grid_sample(
        pixels.float() / 255, grid, padding_mode="reflection", align_corners=False
    )
    mean = images.mean((1, 2, 3), keepdim=True)
    images = (images - mean) * uniform(0.7, 1.3, 1, 1, 1) + mean * uniform(0.7, 1.3, 1, 1, 1)
    return images.clamp(0, 1)


def mixed(
    images: Tensor, targets: Tensor, draws: torch.Generator, cut: bool
) -> tuple[Tensor, Tensor]:
    """Each image and its target with those of its neighbour: blended (mixup), or a rectangle of
    it pasted in (cutmix).
    """
    device = images.device
    share = torch.rand((), generator=draws, device=device)
    if not cut:
        share = share * 0.5  # of the neighbour
        return torch.lerp(images, images.roll(1, 0), share), torch.lerp(
            targets, targets.roll(1, 0), share
        )
    height, width = images.shape[2:]
    centre = torch.rand(2, generator=draws, device=device)
    half = share.sqrt() / 2
    inside = [
        ((torch.arange(side, device=device) + 0.5) / side - place).abs() < half
        for side, place in zip((height, width), centre, strict=True)
    ]
    pasted = inside[0][:, None] & inside[1]
    return torch.where(pasted, images.roll(1, 0), images), torch.lerp(
        targets, targets.roll(1, 0), pasted.float().mean()
    )


def rate(progress: float) -> float:
    """The learning rate's share of its peak at this part of the time."""
    if progress < WARM_UP:
        return max(progress / WARM_UP, 0.01)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM_UP) / (1 - WARM_UP))))


def optimiser_of(net: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """AdamW that shrinks matrices alone."""
    matrices = [
        weight
        for name, weight in net.named_parameters()
        if weight.ndim > 1 and "positions" not in name
    ]
    others = [
        weight for weight in net.parameters() if not any(weight is matrix for matrix in matrices)
    ]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.99), fused=next(net.parameters()).is_cuda)


@torch.no_grad()
def accuracy(net: nn.Module, look: Preprocess, pixels: Tensor, labels: Tensor) -> float:
    net.eval()
    right = torch.zeros((), device=pixels.device)
    for some, truth in zip(pixels.split(1000), labels.split(1000), strict=True):
        right += (net(look(some.float() / 255)).argmax(1) == truth).sum()
    net.train()
    return float(right) / len(labels)


def train(
    net: nn.Module, look: Preprocess, data: tuple[Tensor, Tensor], how: argparse.Namespace
) -> dict[str, float]:
    """Until the time is over, or the steps are done; how far it came."""
    (pixels, labels), device = data, how.device
    cuda = device.startswith("cuda")
    draws = torch.Generator(device).manual_seed(how.seed)
    optimiser, classes = optimiser_of(net, how.lr, how.weight_decay), int(labels.max()) + 1
    fast = torch.compile(net) if how.compile and cuda else net
    begun = time.monotonic()
    clock, step, passed, loss = begun, 0, 0.0, torch.zeros(())
    while (progress := max(passed, step / how.steps)) < 1:
        places = torch.randint(len(labels), (how.batch,), generator=draws, device=device)
        images = augmented(pixels[places], draws)
        images, targets = mixed(
            images, F.one_hot(labels[places], classes).float(), draws, cut=step % 2 == 1
        )
        for group in optimiser.param_groups:
            group["lr"] = how.lr * rate(progress)
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=cuda):
            loss = F.cross_entropy(fast(look(images)).float(), targets, label_smoothing=0.1)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        step += 1
        if step == 1 or step % CLOCK_EVERY == 0:
            if cuda:
                torch.cuda.synchronize()
            clock = (
                time.monotonic() if step == 1 else clock
            )  # the first step compiles; the schedule covers what is left
            left = max(1e-6, how.seconds - (clock - begun))
            passed = (time.monotonic() - clock) / left
        if step % how.tell_every == 0:
            print(
                f"step {step}, {100 * progress:.0f} % of the time, loss {loss.item():.3f}",
                flush=True,
            )
    seconds = time.monotonic() - begun
    return {"steps": step, "seconds": round(seconds, 1), "epochs": round(step * how.batch / len(labels), 2),
            "images_per_second": round(step * how.batch / seconds), "loss": round(loss.item(), 4)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the model folder")
    parser.add_argument("--data", default="tiny-imagenet-32")
    parser.add_argument(
        "--net",
        default="vit-tiny",
        help="patch 4, width 192, 12 blocks: 5.4 million weights, 10.8 MB",
    )
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--steps", type=float, default=math.inf, help="end earlier, after so many")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell-every", type=int, default=500)
    parser.add_argument("--most-megabytes", type=float, default=12)
    parser.add_argument("--commit", default="unknown")
    how = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    dataset = load_data(how.data)
    data, kept = resident(dataset.train, how.device), resident(dataset.test, how.device)
    spec, look = ModelSpec.parse(how.net), Preprocess.centred(tuple(data[0].shape[1:]))
    net = spec.build(look.input_shape, len(dataset.classes), how.seed).to(how.device).train()
    size = 2 * sum(value.numel() for value in net.state_dict().values()) / 1e6
    if size > how.most_megabytes:
        raise SystemExit(
            f"{spec} takes {size:.1f} MB in half precision, more than {how.most_megabytes:g}: choose fewer blocks"
        )
    record = train(net, look, data, how)
    found = accuracy(net, look, *kept)
    state = {name: value.detach().cpu().bfloat16() for name, value in net.state_dict().items()}
    machine = (
        torch.cuda.get_device_name()
        if how.device.startswith("cuda")
        else platform.processor() or platform.machine()
    )
    record |= {"accuracy": round(found, 4), "net": str(spec), "data": how.data, "images": len(data[1]), "batch": how.batch,
               "lr": how.lr, "weight_decay": how.weight_decay, "seed": how.seed, "machine": machine,
               "torch": torch.__version__, "compiled": how.compile and how.device.startswith("cuda"), "commit": how.commit}  # fmt: skip
    card = (
        f"# {spec}, pre-trained on {how.data}\n\nA start for clients (`attar train --start`), made by "
        f"`benchmarks/pretrain_vit.py` in {record['seconds']} s. Accuracy on the test part of {how.data}: {100 * found:.2f} % of "
        f"{len(dataset.classes)} classes.\n"
    )
    save_model(how.out, Part(spec, state, dataset.classes, look), card=card)
    write_atomic(how.out / "pretraining.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
