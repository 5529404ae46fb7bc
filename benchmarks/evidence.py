"""First evidence beside the papers' tables: a federation is trained once and fused by every method, in parallel processes.

    python benchmarks/evidence.py run FEDERATION... --out DIR [--device cuda] [--workers 6] [--epochs 100]
    python benchmarks/evidence.py collect DIR... -o results/first-evidence.csv

Everything goes through the command line of attar; a record is what ``attar fuse --json`` prints, with the commit, the machine and the
federation added. Epochs given here replace the papers' (T = 500 or 200), and are in the record.
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from attar import METHODS

POOLED = ("f-adi", "f-dafl", "dense", "co-boosting")
COLUMNS = ("federation", "seed", "row", "accuracy", "published", "difference", "ensemble", "best_on_test", "epochs",
           "local_epochs", "seconds", "precision", "data", "rule", "clients", "nets", "settings", "device",
           "torch", "commit")  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One method with its settings, and the number that the paper prints for it."""

    name: str
    method: str
    settings: tuple[str, ...] = ()
    published: float | None = None
    student: str | None = None


@dataclass(frozen=True)
class Federation:
    """Who trains what, and the rows of the table."""

    data: str
    rule: str
    clients: int
    nets: str
    rows: tuple[Row, ...]
    local_epochs: int = 50
    hold_out: float = 0.0
    seeds: tuple[int, ...] = (0,)
    source: str = ""


def co_boosting_rows(published: dict[str, float]) -> tuple[Row, ...]:
    rows = [
        Row("FedAvg", "fedavg"),
        Row("FedENS", "ensemble"),
        Row("FedDF", "feddf", ("steps=3000",)),
        Row("F-ADI", "f-adi"),
        Row("F-DAFL", "f-dafl"),
        Row("F-DAFL, mean of features", "f-dafl", ("per_feature=true",)),
        Row("DENSE", "dense"),
        Row("DENSE (authors' code)", "dense", ("variant=authors",)),
        Row("DENSE (as in Co-Boosting's code)", "dense", ("variant=co-boosting",)),
        Row("Co-Boosting", "co-boosting"),
        Row("Co-Boosting, sign", "co-boosting", ("direction=sign",)),
        Row("Co-Boosting, cosine", "co-boosting", ("schedule=cosine",)),
        Row("Co-Boosting, sign, cosine", "co-boosting", ("direction=sign", "schedule=cosine")),
        Row("Co-Boosting, weights per batch", "co-boosting", ("weight_steps=batch",)),
        Row("Co-Boosting, sign, divided", "co-boosting", ("direction=sign", "divide=true")),
        Row("Co-Boosting (authors' code)", "co-boosting", ("variant=code",)),
    ]
    return tuple(Row(r.name, r.method, r.settings, published.get(r.name.split(" (")[0].split(",")[0])) for r in rows)


def hydra_rows(published: dict[str, float]) -> tuple[Row, ...]:
    rows = [
        Row("FedAvg", "fedavg"),
        Row("DENSE", "dense"),
        Row("FedHydra", "fedhydra"),
        Row("FedHydra, every generator step", "fedhydra", ("replay=intermediate",)),
        Row("FedHydra, floor 0.01", "fedhydra", ("guidance_floor=0.01",)),
        Row("FedHydra, generator anew", "fedhydra", ("reset_generator=true", "train_noise=true", "keep=best", "beta1=0.5")),
        Row("FedHydra, diversity on disagreements", "fedhydra", ("diversity_on=disagreements",)),
        Row("FedHydra, no diversity", "fedhydra", ("diversity=0",)),
        Row("FedHydra, no hard labels", "fedhydra", ("hard_labels=0",)),
    ]
    return tuple(Row(r.name, r.method, r.settings, published.get(r.name.split(",")[0])) for r in rows)


FEDERATIONS = {
    "coboosting-mnist": Federation(
        "mnist?size=32", "dirichlet-client:0.1", 10, "lenet5", hold_out=0.2, local_epochs=300,
        source="Co-Boosting, Tables 1 and 9",
        rows=co_boosting_rows({"FedAvg": 75.68, "FedENS": 88.16, "FedDF": 87.91, "F-ADI": 85.92, "F-DAFL": 87.44,
                               "DENSE": 87.83, "Co-Boosting": 94.44}),
    ),
    "coboosting-fashion": Federation(
        "fashion-mnist?size=32", "dirichlet-client:0.1", 10, "lenet5", hold_out=0.2, local_epochs=300,
        source="Co-Boosting, Tables 1 and 9",
        rows=co_boosting_rows({"FedAvg": 46.61, "FedENS": 71.34, "FedDF": 68.40, "F-ADI": 63.19, "F-DAFL": 67.81,
                               "DENSE": 69.43, "Co-Boosting": 74.86}),
    ),
    "fedhydra-mnist": Federation(
        "mnist?size=32", "dirichlet:0.1", 5, "lenet5", seeds=(0, 1, 2), local_epochs=200, source="FedHydra, Table 1",
        rows=hydra_rows({"FedAvg": 25.96, "DENSE": 36.73, "FedHydra": 59.97}),
    ),
    "fedhydra-mnist-2cc": Federation(
        "mnist?size=32", "disjoint:2", 5, "lenet5", seeds=(0, 1, 2), local_epochs=200, source="FedHydra, Table 2",
        rows=hydra_rows({"FedAvg": 20.50, "DENSE": 15.58, "FedHydra": 40.81}),
    ),
    "mixed-cifar10": Federation(
        "cifar10", "dirichlet:0.3", 5, "googlenet,resnet18,cnn1,cnn2,lenet5", local_epochs=20, source="FedHydra, Table 3",
        rows=(
            Row("DENSE", "dense", (), 44.54, "resnet18"),
            Row("Co-Boosting", "co-boosting", (), None, "resnet18"),
            Row("FedHydra", "fedhydra", (), 48.80, "resnet18"),
        ),
    ),
}  # fmt: skip


def attar(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "attar", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"attar {' '.join(map(str, words))}\n{done.stderr[-3000:]}")
    return done.stdout


def train(name: str, seed: int, how: argparse.Namespace) -> Path:
    """The uploads of one federation, trained unless they are there."""
    spec = FEDERATIONS[name]
    epochs = how.local_epochs or spec.local_epochs
    home = how.work / f"{name}-{seed}-{epochs}"
    home.mkdir(parents=True, exist_ok=True)
    parts = home / "parts.json"
    words = ["--rule", spec.rule, "--clients", spec.clients, "--seed", seed, "--hold-out", spec.hold_out, "--min-size"]
    smallest = 10 if spec.rule.startswith("dirichlet") else 0
    attar("partition", spec.data, *words, smallest, "--out", parts, "--json")
    begun = time.time()
    told = attar("train", "--partition", parts, "--net", spec.nets, "--epochs", epochs, "--seed", seed, "--device",
                 how.device, "--precision", how.precision, "--out", home / "uploads", "--json")  # fmt: skip
    print(f"{name} seed {seed}: trained in {time.time() - begun:.0f} s", flush=True)
    (home / "clients.json").write_text(told)
    return home


def fuse(name: str, seed: int, row: Row, home: Path, records: Path, how: argparse.Namespace) -> None:
    spec, epochs, device, commit = FEDERATIONS[name], how.epochs, how.device, how.commit
    sets = list(row.settings)
    local = how.local_epochs or spec.local_epochs
    if epochs is not None and row.method in (*POOLED, "fedhydra"):
        sets.append(f"epochs={epochs}")
    label = (
        f"{name}-{seed}-{row.name}-{local}-{epochs}-{how.precision}".replace(" ", "_")
        .replace(",", "")
        .replace("(", "")
        .replace(")", "")
        .replace("'", "")
    )
    words: list[object] = [*sorted((home / "uploads").glob("*.attar")), "--method", row.method, "--data", spec.data]
    words += [word for setting in sets for word in ("--set", setting)]
    words += ["--student", row.student] if row.student else []
    words += ["--public", home / "parts.json"] if row.method == "feddf" else []
    words += ["--evaluate-every", max(1, (epochs or 200) // 10)] if row.method in (*POOLED, "fedhydra") else []
    words += ["--minutes", how.minutes] if how.minutes else []
    words += ["--precision", how.precision, *(["--compile"] if how.compile else [])]
    words += ["--resume"] if (home / "runs" / label / "checkpoint.safetensors").exists() else []
    if (records / f"{label}.json").exists():
        return
    try:
        told = attar("fuse", *words, "--seed", seed, "--device", device, "--out", home / "runs" / label, "--json")
        record = json.loads(told)
    except (RuntimeError, ValueError) as error:
        print(f"{label} FAILED: {error}", flush=True)
        return
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else platform.processor()
    record |= {"federation": name, "row": asdict(row), "commit": commit, "machine": machine, "torch": torch.__version__,
               "local_epochs": local, "rule": spec.rule, "data": spec.data, "nets": spec.nets,
               "source": spec.source}  # fmt: skip
    (records / f"{label}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{label}: {100 * record['accuracy']:.2f} in {record['seconds']:.0f} s", flush=True)


def run(arguments: argparse.Namespace) -> None:
    records = arguments.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for name in arguments.federations for seed in arguments.seeds or FEDERATIONS[name].seeds]
    with ThreadPoolExecutor(arguments.workers) as pool:
        homes = list(pool.map(lambda job: train(*job, arguments), jobs))
        for (name, seed), home in zip(jobs, homes, strict=True):
            for row in FEDERATIONS[name].rows:
                if not arguments.rows or row.name in arguments.rows:
                    pool.submit(fuse, name, seed, row, home, records, arguments)


def epochs_done(record: dict) -> str:
    """Epochs (or steps) that were run: the last phase's, as "60 of 60"; empty for methods without phases."""
    return list(record["steps"].values())[-1] if record["steps"] else ""


def unusual(record: dict) -> str:
    """The settings that differ from today's defaults."""
    usual = asdict(METHODS[record["method"]]())
    if record["method"] != "fedhydra" and record["settings"].get("ensemble") != "stratified":
        usual.pop("guidance_floor", None)  # it has no effect
    return " ".join(
        f"{key}={value}" for key, value in record["settings"].items() if key != "epochs" and usual.get(key) != value
    )


def collect(arguments: argparse.Namespace) -> None:
    """One line for each record."""
    lines = []
    for path in sorted(path for folder in arguments.folders for path in folder.rglob("*.json")):
        r = json.loads(path.read_text())
        accuracy, published = round(100 * r["accuracy"], 2), r["row"]["published"]
        best = max([100 * point["accuracy"] for point in r["history"] if point.get("accuracy") is not None] + [accuracy])
        ensemble = r["accuracies"].get("ensemble")
        lines.append({
            "federation": r["federation"], "seed": r["seed"], "row": r["row"]["name"], "accuracy": accuracy,
            "published": published, "difference": None if published is None else round(accuracy - published, 2),
            "ensemble": None if ensemble is None else round(100 * ensemble, 2), "best_on_test": round(best, 2),
            "epochs": epochs_done(r), "local_epochs": r["local_epochs"],
            "seconds": r["seconds"], "precision": r.get("precision", "fp32"),
            "data": r["data"], "rule": r["rule"], "clients": len(r["clients"]), "nets": r["nets"],
            "settings": unusual(r), "device": r["machine"], "torch": r["torch"], "commit": r["commit"],
        })  # fmt: skip
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(lines, key=lambda line: (line["federation"], line["seed"], line["row"])))
    print(f"{len(lines)} lines in {arguments.output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("federations", nargs="+", choices=FEDERATIONS)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--work", type=Path, default=Path("evidence-work"))
    runner.add_argument("--device", default="cuda")
    runner.add_argument("--workers", type=int, default=6)
    runner.add_argument("--epochs", type=int)
    runner.add_argument("--local-epochs", type=int)
    runner.add_argument("--precision", default="tf32")
    runner.add_argument("--compile", action="store_true")
    runner.add_argument("--minutes", type=float, help="end every fusion in time, with the model of the moment")
    runner.add_argument("--seeds", type=int, nargs="*")
    runner.add_argument("--rows", nargs="*")
    runner.add_argument("--commit", default="unknown")
    runner.set_defaults(run=run)
    collector = verbs.add_parser("collect")
    collector.add_argument("folders", type=Path, nargs="+")
    collector.add_argument("-o", "--output", type=Path, required=True)
    collector.set_defaults(run=collect)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
