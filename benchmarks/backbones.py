"""Accuracy of heads on a frozen backbone: splits, baselines, noise, membership.

    python benchmarks/backbones.py features efficientnet-lite0 cifar10 -o build/cifar10-lite0
    python benchmarks/backbones.py tables build/cifar10-lite0 -o results/backbones.json
    python benchmarks/backbones.py tables build/cifar10-lite0-mirror-stages3 \
        --variant 'mirror=true&root=true' -o results/backbones.json

``features`` passes a data set through the backbone once and keeps the features. From them
``tables`` makes the sums of every client of every split, as ``attar train --backbone`` does from
images, and fuses them with attar's own methods. Shrinkage is chosen by the methods, from the sums.
Fused heads alone see the test images, each once. ``--variant`` takes another variant of the backbone
from the features of a folder, where they hold it: fewer stages, or roots.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attar import METHODS, fuse
from attar.backbones import Backbone, Variant, fast_copy, load_backbone, read_variant
from attar.core import Mixture, Part, Upload
from attar.data import Split, load_data, partition
from attar.nets import project_features
from attar.nets.feature_views import view_features
from attar.training.feature_sums import SumsSettings, SumTables, make_sums

BATCH = {"cpu": 16, "cuda": 256}
CLIENTS = 10
SPLITS = ("dirichlet:0.05", "dirichlet:0.1", "dirichlet:0.5", "classes:2")
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "gaussian-head (LDA)": ("gaussian-head", {}),
    "gaussian-head (nearest mean)": ("gaussian-head", {"kind": "nearest-mean"}),
    "gaussian-head (naive Bayes)": ("gaussian-head", {"kind": "naive-bayes"}),
    "analytic (ridge)": ("analytic", {}),
    "average of local heads": ("local-heads", {"combine": "average"}),
    "ensemble of local heads": ("local-heads", {"combine": "ensemble"}),
}
NOISE_SPLIT = "dirichlet:0.1"
EPSILONS = (0.5, 1.0, 4.0, 8.0, None)


@dataclass(frozen=True, eq=False)
class Features:
    """Features of one part of a data set.

    Attributes:
        values: (N, F).
        labels: (N,).
        halves: (N,), in which half of the sums an image is.
        domains: (N,), or None.
    """

    values: Tensor
    labels: Tensor
    halves: Tensor
    domains: Tensor | None

    def take(self, indices: Tensor) -> "Features":
        domains = None if self.domains is None else self.domains[indices]
        return Features(self.values[indices], self.labels[indices], self.halves[indices], domains)


@dataclass(frozen=True, eq=False)
class Setup:
    """What the tables of one data set and backbone are made of."""

    backbone: Backbone
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    train: Features
    test: Features


def compute_features(args: argparse.Namespace) -> None:
    """Write the features of a data set to a folder."""
    backbone = load_backbone(args.backbone)
    data = load_data(args.data)
    args.out.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    for name, part in (("train", data.train), ("test", data.test)):
        values = features_of(backbone, part, args.device, args.precision)
        domains = np.empty(0, np.int64) if part.domains is None else part.domains
        halves = [hashlib.sha256(image.tobytes()).digest()[0] & 1 for image in part.images]
        np.savez(
            args.out / f"{name}.npz",
            features=values.numpy(),
            labels=part.labels,
            halves=np.array(halves),
            domains=domains,
        )
    about = {
        "backbone": args.backbone,
        "data": args.data,
        "classes": data.classes,
        "domains": data.domains,
        "device": args.device,
        "precision": args.precision,
        "images": len(data.train) + len(data.test),
        "seconds": round(time.perf_counter() - begun, 1),
    }
    (args.out / "about.json").write_text(json.dumps(about) + "\n")


@torch.inference_mode()
def features_of(backbone: Backbone, part: Split, device: str, precision: str) -> Tensor:
    """(N, F), on the CPU."""
    net = fast_copy(backbone.extractor, device)
    size = BATCH[device]
    done = []
    for start in range(0, len(part), size):
        pixels = torch.from_numpy(part.images[start : start + size]).to(device)
        images = pixels.permute(0, 3, 1, 2).float() / 255
        inputs = backbone.preprocess(images).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
            done.append(net.features(inputs).float().cpu())  # type: ignore[operator]
    return torch.cat(done)


def read_setup(folder: Path, variant: str | None = None) -> tuple[Setup, dict[str, Any]]:
    """The features of a folder, and how they were made."""
    about = json.loads((folder / "about.json").read_text())
    plain, made = read_variant(about["backbone"])
    if variant is not None:
        about["backbone"] = f"{plain}?{variant}"
    backbone = load_backbone(about["backbone"])
    parts = {}
    for name in ("train", "test"):
        with np.load(folder / f"{name}.npz") as file:
            domains = torch.from_numpy(file["domains"]) if len(file["domains"]) else None
            parts[name] = Features(
                of_variant(torch.from_numpy(file["features"]), made, backbone),
                torch.from_numpy(file["labels"]),
                torch.from_numpy(file["halves"]),
                domains,
            )
    classes = tuple(about["classes"])
    setup = Setup(backbone, classes, tuple(about["domains"]), **parts)
    return setup, about


def of_variant(values: Tensor, made: Variant, backbone: Backbone) -> Tensor:
    """The features of a backbone among those of another variant: fewer stages stand first."""
    if made.mirror != backbone.mirror or made.root > backbone.root:
        raise SystemExit(f"The features of {backbone.name} are not in those of {made}.")
    root = backbone.root and not made.root
    few = values[:, : backbone.features]
    return view_features(lambda chosen: chosen, few, mirror=False, root=root)


def make_uploads(
    setup: Setup, clients: Mapping[str, Features], settings: SumsSettings, seed: int = 0
) -> list[Upload]:
    """The uploads of clients; noise is drawn from ``seed``, so that a table can be repeated."""
    draws = torch.Generator().manual_seed(seed)
    uploads = []
    for name, own in clients.items():
        width = settings.features or setup.backbone.features
        tables = SumTables(len(setup.classes), width, per_class=settings.per_class)
        for start in range(0, len(own.labels), 2048):
            piece = own.take(torch.arange(start, min(start + 2048, len(own.labels))))
            tables.add(project(setup, piece.values, settings), piece.labels, piece.halves)
        part = make_sums(tables, setup.backbone, setup.classes, settings, draws)
        counts = part.state["counts"].sum(0).clamp(min=0)
        label_counts = tuple(int(count) for count in counts)
        uploads.append(Upload(name, {"sums": part}, max(1, sum(label_counts)), label_counts))
    return uploads


def project(setup: Setup, values: Tensor, settings: SumsSettings) -> Tensor:
    """phi of backbone features."""
    return project_features(
        values, centre=setup.backbone.centre, dimensions=settings.features, clip=settings.clip
    )


def measure(
    setup: Setup,
    uploads: Sequence[Upload],
    test: Features,
    settings: SumsSettings,
    rows: Sequence[str] = tuple(HEADS),
) -> dict[str, Any]:
    """Accuracy and seconds of each head."""
    phi = project(setup, test.values, settings)
    measured = {}
    for row in rows:
        method, given = HEADS[row]
        begun = time.perf_counter()
        result = fuse(uploads, METHODS[method](**given)).result
        seconds = time.perf_counter() - begun
        logits = answer(next(iter(result.models.values())), phi, setup.classes)
        right = (logits.argmax(1) == test.labels).double().mean()
        measured[row] = {"accuracy": round(100 * float(right), 2), "seconds": round(seconds, 2)}
    return measured


def answer(model: Part | Mixture, phi: Tensor, classes: tuple[str, ...]) -> Tensor:
    """Scores (N, C) of a head, or of an ensemble of heads: the mean of their probabilities over
    the members that know a class."""
    if isinstance(model, Part):
        weight = model.state["head.weight"].double()
        return phi @ weight.T + model.state["head.bias"].double()
    total = torch.zeros(len(phi), len(classes), dtype=torch.float64)
    number = torch.zeros(len(classes), dtype=torch.float64)
    for member in model.members:
        columns = torch.tensor([classes.index(name) for name in member.classes])
        total[:, columns] += answer(member, phi, member.classes).softmax(1)
        number[columns] += 1
    return total / number.clamp(min=1)


def split_clients(train: Features, rule: str, clients: int, seed: int) -> dict[str, Features]:
    """The images of each client of a split."""
    domains = None if train.domains is None else train.domains.numpy()
    parts = partition(train.labels.numpy(), rule, clients, seed, domains=domains)
    return {
        f"client-{number}": train.take(torch.from_numpy(indices))
        for number, indices in enumerate(parts.clients)
    }


def tables_of_splits(setup: Setup, settings: SumsSettings, seed: int) -> dict[str, Any]:
    """All heads on all splits. Central training is the same sum, made by one client."""
    done: dict[str, Any] = {}
    for rule in SPLITS:
        uploads = make_uploads(setup, split_clients(setup.train, rule, CLIENTS, seed), settings)
        done[rule] = measure(setup, uploads, setup.test, settings)
    central = make_uploads(setup, {"all": setup.train}, settings)
    rows = [row for row in HEADS if "local" not in row]
    done["central"] = measure(setup, central, setup.test, settings, rows)
    return done


def tables_of_domains(setup: Setup, settings: SumsSettings) -> dict[str, Any]:
    """One domain a client, and each domain left out of training and tested on."""
    clients = len(setup.domains)
    named = split_clients(setup.train, "domain", clients, seed=0)
    done = {"domain": measure(setup, make_uploads(setup, named, settings), setup.test, settings)}
    assert setup.train.domains is not None
    assert setup.test.domains is not None
    for number, domain in enumerate(setup.domains):
        rest = setup.train.take((setup.train.domains != number).nonzero().flatten())
        owners = {
            setup.domains[other]: rest.take((rest.domains == other).nonzero().flatten())
            for other in range(clients)
            if other != number
        }
        unseen = [
            part.take((part.domains == number).nonzero().flatten())
            for part in (setup.train, setup.test)
        ]
        test = Features(
            torch.cat([part.values for part in unseen]),
            torch.cat([part.labels for part in unseen]),
            torch.cat([part.halves for part in unseen]),
            None,
        )
        uploads = make_uploads(setup, owners, settings)
        done[f"without {domain}"] = measure(setup, uploads, test, settings)
    return done


def tables_of_noise(
    setup: Setup, settings: SumsSettings, rows: Sequence[str], repeats: int
) -> dict[str, Any]:
    """Accuracy against epsilon on the split ``NOISE_SPLIT``; one number for each draw of noise."""
    clients = split_clients(setup.train, NOISE_SPLIT, CLIENTS, seed=0)
    done: dict[str, Any] = {}
    for epsilon in EPSILONS:
        noisy = replace(settings, epsilon=epsilon)
        runs = [
            measure(setup, make_uploads(setup, clients, noisy, seed), setup.test, noisy, rows)
            for seed in range(repeats if epsilon else 1)
        ]
        done["none" if epsilon is None else f"{epsilon:g}"] = {
            row: [run[row]["accuracy"] for run in runs] for row in rows
        }
    return done


def membership(setup: Setup, settings: SumsSettings, images: int, repeats: int) -> dict[str, Any]:
    """Whether the fused head tells its training images from others, by their loss.

    Args:
        setup: the features.
        settings: of the sums.
        images: of the whole federation; the fewer, the more a head says about each.
        repeats: draws of these images, and of the noise.

    Returns:
        For each epsilon the share of training images found at 0.1 % and 1 % false alarms.
    """
    done: dict[str, Any] = {}
    for epsilon in EPSILONS:
        noisy = replace(settings, epsilon=epsilon)
        found = []
        for seed in range(repeats):
            draws = torch.Generator().manual_seed(seed)
            chosen = torch.randperm(len(setup.train.labels), generator=draws)[:images]
            members = setup.train.take(chosen)
            clients = split_clients(members, "iid", CLIENTS, seed)
            result = fuse(make_uploads(setup, clients, noisy, seed), "gaussian-head").result
            head = next(iter(result.models.values()))
            losses = [
                torch.nn.functional.cross_entropy(
                    answer(head, project(setup, part.values, noisy), setup.classes),
                    part.labels,
                    reduction="none",
                )
                for part in (members, setup.test)
            ]
            found.append([share_found(*losses, rate) for rate in (0.001, 0.01)])
        shares = np.array(found).mean(0)
        done["none" if epsilon is None else f"{epsilon:g}"] = {
            "at 0.1 %": round(100 * float(shares[0]), 2),
            "at 1 %": round(100 * float(shares[1]), 2),
        }
    return done


def share_found(members: Tensor, others: Tensor, false_alarms: float) -> float:
    """The share of members whose loss is below all but ``false_alarms`` of the others'."""
    threshold = others.double().quantile(false_alarms)
    return float((members.double() < threshold).double().mean())


def write_tables(args: argparse.Namespace) -> None:
    """Measure everything on the features of some folders, and add it to a JSON file."""
    tables = json.loads(args.out.read_text()) if args.out.is_file() else {}
    for folder in args.folders:
        setup, about = read_setup(folder, args.variant)
        name = folder.name + ("" if args.variant is None else f"?{args.variant}")
        plain = SumsSettings()
        entry: dict[str, Any] = {"features": about, "clients": CLIENTS, "seed": 0}
        if setup.domains:
            entry["heads"] = tables_of_domains(setup, plain)
        else:
            entry["heads"] = tables_of_splits(setup, plain, seed=0)
            _save(tables, name, entry, args.out)
        if args.noise:
            rows = ("gaussian-head (LDA)", "gaussian-head (nearest mean)", "analytic (ridge)")
            few = SumsSettings(features=256, clip=1.0)
            entry["noise, 256 features"] = tables_of_noise(setup, few, rows, args.repeats)
            _save(tables, name, entry, args.out)
            entry["membership, 256 features"] = membership(setup, few, 1000, args.repeats)
            _save(tables, name, entry, args.out)
            entry["noise, all features"] = tables_of_noise(setup, replace(few, features=0), rows, 1)
        _save(tables, name, entry, args.out)


def _save(tables: dict[str, Any], name: str, entry: dict[str, Any], out: Path) -> None:
    """Write what has been measured so far."""
    tables[name] = entry
    out.write_text(json.dumps(tables, indent=1) + "\n")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    verbs = parser.add_subparsers(required=True)
    features = verbs.add_parser("features")
    features.add_argument("backbone")
    features.add_argument("data")
    features.add_argument("-o", "--out", type=Path, required=True)
    features.add_argument("--device", default="cpu")
    features.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    features.set_defaults(run=compute_features)
    tables = verbs.add_parser("tables")
    tables.add_argument("folders", nargs="+", type=Path)
    tables.add_argument("-o", "--out", type=Path, required=True)
    tables.add_argument("--variant", help="of the backbone, such as 'root=true'")
    tables.add_argument("--noise", action="store_true", help="accuracy and membership by epsilon")
    tables.add_argument("--repeats", type=int, default=3, help="draws of the noise")
    tables.set_defaults(run=write_tables)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
