"""Pre-train a small ViT on Tiny-ImageNet-32, as the clients' start: it stands in for an ImageNet
checkpoint.

    python benchmarks/pretrain_vit.py --out results/start/vit-tiny [--seconds 300] [--device cuda]
    python benchmarks/pretrain_vit.py --out START --passes 300 --seconds 540 --resume

The images lie on the device as bytes, every batch is augmented there in a few calls (random
crop, flip, brightness and contrast, then mixup or cutmix), the net runs in bfloat16 and, on
CUDA, compiled. The learning rate rises to its peak in the first twentieth of the training, then
falls to nothing by a cosine. Writes a model folder in half precision (for ``attar train --start``
and ``attar fuse --start``) and ``pretraining.json`` beside it.

Without ``--passes`` the schedule follows the clock, so that training ends in time on any machine.
With ``--passes`` it is fixed, and training may be done in pieces: after ``--seconds`` the state is
written to ``--state`` (in files of at most 15 MB), and the same command with ``--resume`` goes on
from there. Pieces end with a pass over the images. On a CPU two pieces give the same bits as one
run. For this the state is complete: everything random derives from the seed and the number of the
pass, and the moments of AdamW are rounded to bfloat16 after every pass, as they are stored.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F

from attar import ModelSpec, Part, Preprocess, load_data, save_model
from attar.data import Split
from attar.internal.files import write_atomic
from attar.seeds import derive

SMALLEST_CROP = 0.35  # of the area
WARM_UP = 0.05  # of the time
CLOCK_EVERY = 10  # steps: how far a GPU may lag behind before we wait for it
SAVE_EVERY = 120  # seconds: what a piece that is killed may lose
MOST_BYTES = 15_000_000  # of a file of the state
STATE_FILES = "pass*-*.safetensors"
NUMBERS = 7  # random numbers that the view of an image takes
SAME = ("passes", "batch", "lr", "weight_decay", "seed", "net", "data")  # in all pieces


@dataclass
class Progress:
    """How far the training came, in all its pieces."""

    passes: int = 0
    steps: int = 0
    seconds: float = 0.0
    loss: float = 0.0


def resident(part: Split, device: str) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) as bytes and labels, on the device."""
    pixels = torch.from_numpy(part.images).permute(0, 3, 1, 2).contiguous()
    return pixels.to(device), torch.from_numpy(part.labels).to(device)


def augmented(pixels: Tensor, draws: torch.Generator) -> Tensor:
    """Bytes -> images in [0, 1]: each with its own crop, stretched to the whole, perhaps
    mirrored, a bit brighter or duller.
    """
    return view(pixels, torch.rand(NUMBERS, len(pixels), generator=draws, device=pixels.device))


def view(pixels: Tensor, numbers: Tensor) -> Tensor:
    """``augmented`` by random numbers from 0 to 1, (NUMBERS, N)."""
    given = iter(numbers.unbind(0))

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * next(given)

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
    contrast, brightness = (uniform(0.7, 1.3)[:, None, None, None] for _ in range(2))
    return ((images - mean) * contrast + mean * brightness).clamp(0, 1)


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


def clock_of(how: argparse.Namespace, begun: float) -> Callable[[int], float]:
    """From the step to the part of the training that is done: of the passes, or of the time."""
    if how.passes:
        return lambda step: step / how.total_steps
    started, passed = begun, 0.0

    def progress(step: int) -> float:
        nonlocal started, passed
        if step == 1 or step % CLOCK_EVERY == 0:
            wait_for(how.device)
            # the first step compiles; the schedule covers what is left
            started = time.monotonic() if step == 1 else started
            left = max(1e-6, how.seconds - (started - begun))
            passed = (time.monotonic() - started) / left if step else 0.0
        return max(passed, step / how.steps)

    return progress


def wait_for(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Trainer:
    """The net, its optimiser, and passes over images that lie on the device."""

    def __init__(
        self,
        net: nn.Module,
        look: Preprocess,
        data: tuple[Tensor, Tensor],
        how: argparse.Namespace,
    ) -> None:
        self.net = net
        self.optimiser = optimiser_of(net, how.lr, how.weight_decay)
        self.done = Progress()
        self._look = look
        self._pixels, self._labels = data
        self._classes = int(self._labels.max()) + 1
        self._how = how
        self._draws = torch.Generator(how.device).manual_seed(how.seed)
        compiled = how.compile and how.device.startswith("cuda")
        self._fast = torch.compile(net, mode=how.compile_mode) if compiled else net
        self._view = torch.compile(view) if compiled else view

    @property
    def steps_per_pass(self) -> int:
        """Whole batches in a pass; the images of a smaller last one are left out."""
        return max(1, len(self._labels) // self._how.batch)

    def run_pass(self, progress_at: Callable[[int], float]) -> None:
        """One pass over the images in random order, or less if the time is over.

        Where the schedule follows the clock, as many images are drawn with replacement.
        """
        how, draws, loss = self._how, self._draws, torch.zeros(())
        if how.passes:
            draws.manual_seed(derive(how.seed, "pass", self.done.passes))
            order = torch.randperm(len(self._labels), generator=draws, device=draws.device)
            batches = iter(order.split(how.batch))
        for _ in range(self.steps_per_pass):
            if (progress := progress_at(self.done.steps)) >= 1:
                break
            for group in self.optimiser.param_groups:
                group["lr"] = how.lr * rate(progress)
            places = next(batches) if how.passes else self._draw_batch()
            loss = self._step(places)
            self.done.steps += 1
            if self.done.steps % how.tell_every == 0:
                done = f"step {self.done.steps}, {100 * progress:.0f} %"
                print(f"{done}, loss {loss.item():.3f}", flush=True)
        self.done.loss = loss.item()
        self.done.passes += 1
        if how.passes:
            self._round_moments()

    def _draw_batch(self) -> Tensor:
        size, draws = (self._how.batch,), self._draws
        return torch.randint(len(self._labels), size, generator=draws, device=draws.device)

    def _step(self, places: Tensor) -> Tensor:
        draws = self._draws
        numbers = torch.rand(NUMBERS, len(places), generator=draws, device=places.device)
        images = self._view(self._pixels[places], numbers)
        targets = F.one_hot(self._labels[places], self._classes).float()
        images, targets = mixed(images, targets, draws, cut=self.done.steps % 2 == 1)
        kind = places.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            logits = self._fast(self._look(images))
            loss = F.cross_entropy(logits.float(), targets, label_smoothing=0.1)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimiser.step()
        return loss.detach()

    def _round_moments(self) -> None:
        for moments in self.optimiser.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                moments[name].copy_(moments[name].bfloat16())

    # --- the state between two pieces ---

    def save(self, folder: Path) -> None:
        """Write weights, moments and progress; a piece that is killed here leaves the old state."""
        tensors = dict(self.net.state_dict())
        for name, weight in self.net.named_parameters():
            moments = self.optimiser.state[weight]
            for moment in ("exp_avg", "exp_avg_sq"):
                tensors[f"{moment}.{name}"] = moments[moment].bfloat16()
        folder.mkdir(parents=True, exist_ok=True)
        old = set(folder.glob(STATE_FILES))
        files: list[dict[str, Tensor]] = []
        room = 0
        for name, value in tensors.items():
            if value.nbytes > room:
                files.append({})
                room = MOST_BYTES
            files[-1][name] = value.detach().cpu().contiguous()
            room -= value.nbytes
        names = [f"pass{self.done.passes}-{number}.safetensors" for number in range(len(files))]
        for name, values in zip(names, files, strict=True):
            write_atomic(folder / name, save(values))
        said = {name: getattr(self._how, name) for name in SAME}
        state = {"progress": asdict(self.done), "files": names, "settings": said}
        write_atomic(folder / "state.json", json.dumps(state, indent=1) + "\n")
        for path in old - {folder / name for name in names}:
            path.unlink()

    def load(self, folder: Path) -> None:
        """Go on from what ``save`` wrote."""
        state = json.loads((folder / "state.json").read_text())
        for name in SAME:
            was, now = state["settings"][name], getattr(self._how, name)
            if was != now:
                raise SystemExit(
                    f"{folder}: the training was begun with {name} = {was}, not {now}. Use the "
                    "same settings in all pieces, or delete the folder to begin anew."
                )
        tensors: dict[str, Tensor] = {}
        for name in state["files"]:
            tensors |= load((folder / name).read_bytes())
        self.net.load_state_dict({name: tensors[name] for name in self.net.state_dict()})
        self.done = Progress(**state["progress"])
        for name, weight in self.net.named_parameters():
            self.optimiser.state[weight] = {
                "step": torch.tensor(float(self.done.steps)).to(
                    weight.device if self.optimiser.param_groups[0]["fused"] else "cpu"
                ),
                **{
                    moment: tensors[f"{moment}.{name}"].to(weight)
                    for moment in ("exp_avg", "exp_avg_sq")
                },
            }


def train(trainer: Trainer, how: argparse.Namespace, begun: float) -> bool:
    """Train until all is done, or until the piece that began then is over; whether all is done."""
    begun = begun if how.passes else time.monotonic()
    how.total_steps = (how.passes or 0) * trainer.steps_per_pass
    progress_at, before = clock_of(how, begun), trainer.done.seconds
    saved, first = begun, trainer.done.passes
    while progress_at(trainer.done.steps) < 1:
        pass_begun, step = time.monotonic(), trainer.done.steps
        trainer.run_pass(progress_at)
        wait_for(how.device)
        now = time.monotonic()
        trainer.done.seconds = before + now - begun
        if not how.passes:
            continue
        speed = (trainer.done.steps - step) * how.batch / (now - pass_begun)
        done = f"pass {trainer.done.passes} of {how.passes}, loss {trainer.done.loss:.3f}"
        print(f"{done}, {speed:.0f} images a second", flush=True)
        if trainer.done.passes == how.passes:
            break
        over = now - begun + 1.1 * (now - pass_begun) > how.seconds
        over |= how.piece is not None and trainer.done.passes - first >= how.piece
        if over or now - saved > SAVE_EVERY:
            trainer.save(how.state)
            saved = time.monotonic()
        if over:
            return False
    return True


def arguments() -> argparse.Namespace:
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
    parser.add_argument("--passes", type=int, help="over the images, in all pieces together")
    parser.add_argument(
        "--seconds", type=float, help="of the training (300), or with --passes of this piece"
    )
    parser.add_argument("--piece", type=int, help="end this piece after so many passes")
    parser.add_argument("--resume", action="store_true", help="go on from the state, if any")
    parser.add_argument("--state", type=Path, help="between two pieces; OUT-state unless given")
    parser.add_argument("--steps", type=float, default=math.inf, help="end earlier, after so many")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--compile-mode", default="default", help="such as reduce-overhead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tell-every", type=int, default=500)
    parser.add_argument("--most-megabytes", type=float, default=12)
    parser.add_argument("--commit", default="unknown")
    how = parser.parse_args()
    if how.passes is None and (how.resume or how.piece):
        parser.error("--resume and --piece need --passes: a schedule by the clock has no pieces")
    if how.seconds is None:
        how.seconds = math.inf if how.passes else 300.0
    how.state = how.state or how.out.with_name(how.out.name + "-state")
    return how


def main() -> None:
    how, begun = arguments(), time.monotonic()
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
    trainer = Trainer(net, look, data, how)
    begun_before = how.passes and (how.state / "state.json").exists()
    if begun_before and not how.resume:
        raise SystemExit(f"{how.state} holds a training: --resume goes on with it, or delete it")
    if begun_before:
        trainer.load(how.state)
    if not train(trainer, how, begun):
        print(json.dumps(asdict(trainer.done)), flush=True)
        return
    done = trainer.done
    images = done.steps * how.batch
    record = {"steps": done.steps, "seconds": round(done.seconds, 1), "epochs": round(images / len(data[1]), 2),
              "images_per_second": round(images / done.seconds), "loss": round(done.loss, 4)}  # fmt: skip
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
    for path in (*how.state.glob(STATE_FILES), *how.state.glob("state.json")):
        path.unlink()


if __name__ == "__main__":
    main()
