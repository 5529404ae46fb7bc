"""First evidence beside the papers' tables: a federation is trained once and fused by every method, in parallel processes.

    python benchmarks/evidence.py run FEDERATION... --out DIR [--device cuda] [--workers 6] [--epochs 100] [--seconds 500]
    python benchmarks/evidence.py collect DIR... -o results/first-evidence.csv

Everything goes through the command line of attar; a record is what ``attar fuse --json`` prints, with the commit, the machine and the
federation added. Epochs given here replace the papers' (T = 500 or 200), and are in the record.

A federation may have groups of clients that train differently (FedMHO's strong and weak ones); a row names the groups whose uploads it
fuses. To try one on a small machine:
``--data fashion-mini --local-epochs 1 --cvae-epochs 1 --settings samples=200 epochs=1 steps=20 --device cpu --precision fp32``.
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from pathlib import Path

import torch
from federation import Federation, Group, Row
from fedmitr_tables import FEDMITR

from attar import METHODS, load_data

LEAST_SECONDS = 20  # a fusion that has less is not begun
POOLED = ("f-adi", "f-dafl", "dense", "co-boosting", "fedhydra", "fedmitr")
COLUMNS = ("federation", "seed", "row", "accuracy", "published", "difference", "ensemble", "best_on_test", "epochs",
           "local_epochs", "seconds", "precision", "data", "rule", "clients", "nets", "settings", "device",
           "torch", "commit")  # fmt: skip


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


MHO_PUBLISHED = {  # Table 4
    "mnist": {"0.5": (85.91, 88.73, 90.51, 91.42, 92.61, 93.45, 95.71, 95.67),
              "0.3": (74.57, 78.46, 86.12, 89.27, 91.37, 92.43, 93.98, 94.25),
              "0.1": (49.12, 62.58, 73.76, 81.30, 89.73, 88.48, 91.22, 91.55)},
    "fashion": {"0.5": (60.24, 65.66, 72.29, 72.98, 69.11, 75.30, 77.27, 77.73),
                "0.3": (47.36, 59.21, 68.14, 69.50, 68.39, 72.36, 75.69, 76.45),
                "0.1": (30.37, 42.21, 56.12, 61.73, 64.01, 62.14, 71.04, 69.65)},
}  # fmt: skip
CLASSIFIER = ("--epochs", "200", "--batch-size", "64", "--lr", "0.005", "--momentum", "0.9")  # Table 3
MHO_NAMES = {"FedMHO": "nothing", "FedMHO-MD": "md", "FedMHO-SD": "sd"}


def mho_rows(preset: str, alpha: str) -> tuple[Row, ...]:
    """Table 4, FedMHO also with the choices of its authors' code; DENSE and Co-Boosting at 0.3 alone."""
    published = MHO_PUBLISHED[preset][alpha]
    plain, mixed, weak = ("vgg9", "cnn"), ("vgg9", "cvae-small"), ("cvae-large", "cvae-small")
    rows = [
        Row("FedAvg", "fedavg", ("mixed=vote",), published[0], None, plain),
        Row("FedDF", "feddf", ("mixed=vote", "steps=3000"), published[1], None, plain),
        Row("FEDCVAE", "fedcvae", (), published[4], "vgg9", weak),
        Row("FEDCVAE, lr 1e-4", "fedcvae", ("lr=0.0001",), published[4], "vgg9", weak),
        Row("FEDCVAE-KD", "fedcvae", ("mode=kd",), None, "vgg9", weak),
    ]
    if alpha == "0.3":
        rows += [
            Row("DENSE", "dense", (), published[2], "vgg9", plain),
            Row("Co-Boosting", "co-boosting", (), published[3], "vgg9", plain),
        ]
    for place, (name, remember) in enumerate(MHO_NAMES.items(), start=5):
        chosen = (f"preset={preset}", f"remember={remember}")
        rows.append(Row(name, "fedmho", chosen, published[place], "vgg9", mixed))
        rows.append(Row(f"{name} (authors' code)", "fedmho", (*chosen, "variant=code"), published[place], "vgg9", mixed))
        choices = (*chosen, "kl_reduction=mean") if remember != "nothing" else (*chosen, "allocation=classes")
        rows.append(Row(f"{name}, {choices[-1]}", "fedmho", choices, published[place], "vgg9", mixed))
    return tuple(rows)


def mho_tables(preset: str) -> tuple[Row, ...]:
    """The settings of Tables 5 (weights of the terms), 6 (no filter) and 8 (R_th) and of 5.3.1 (both terms)."""
    mixed, rows = ("vgg9", "cvae-small"), []
    table_6 = {"FedMHO-MD": 74.56, "FedMHO-SD": 75.11}
    for name in ("FedMHO-MD", "FedMHO-SD"):
        chosen = (f"preset={preset}", f"remember={MHO_NAMES[name]}")
        for betas, share in (("1, 2", 2 / 3), ("2, 1", 1 / 3)):
            rows.append(Row(f"{name}, Table 5: {betas}", "fedmho", (*chosen, f"trade_off={share:.4f}"), None, "vgg9", mixed))
        rows.append(Row(f"{name}, Table 5: learned", "fedmho", (*chosen, "weights=learned"), None, "vgg9", mixed))
        rows.append(Row(f"{name}, Table 6: no filter", "fedmho", (*chosen, "keep=random"), table_6[name], "vgg9", mixed))
        for ratio in (0.4, 0.6, 0.9):
            rows.append(Row(f"{name}, Table 8: {ratio}", "fedmho", (*chosen, f"keep_ratio={ratio}"), None, "vgg9", mixed))
    both = (f"preset={preset}", "remember=both")
    rows.append(Row("FedMHO, both terms", "fedmho", both, None, "vgg9", mixed))
    rows.append(Row("FedMHO, both terms, learned", "fedmho", (*both, "weights=learned"), None, "vgg9", mixed))
    return tuple(rows)


def mho_federation(data: str, preset: str, alpha: str) -> Federation:
    """5 strong and 5 weak clients. FedDF's images are as many as the synthetic ones, a tenth of the training images."""
    groups = {
        "vgg9": Group("0-4", "vgg9", CLASSIFIER),
        "cnn": Group("5-9", "cnn-mho:form=mnist", CLASSIFIER),
        "cvae-small": Group("5-9", "cvae-small", ("--preset", preset)),
        "cvae-large": Group("0-4", "cvae-large", ("--preset", preset)),
    }
    rows = mho_rows(preset, alpha) + (mho_tables(preset) if (preset, alpha) == ("fashion", "0.5") else ())
    source = "FedMHO, Table 4" + (" (5, 6 and 8 where said)" if alpha == "0.5" else "")
    return Federation(data, f"dirichlet:{alpha}", 10, "5 vgg9 and 5 cvae-small, or as the row says", rows, local_epochs=200,
                      hold_out=0.1, source=source, groups=groups, least_share=0.5)  # fmt: skip


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
} | {
    f"mho-{preset}-{alpha}": mho_federation(data, preset, alpha)
    for data, preset in (("mnist", "mnist"), ("fashion-mnist", "fashion"))
    for alpha in ("0.5", "0.3", "0.1")
} | FEDMITR  # fmt: skip


def attar(*words: object) -> str:
    done = subprocess.run([sys.executable, "-m", "attar", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"attar {' '.join(map(str, words))}\n{done.stderr[-3000:]}")
    return done.stdout


def as_label(text: str) -> str:
    """A name for files: spaces as underscores, no signs that a shell would mind."""
    return "".join("_" if sign == " " else sign for sign in text if sign not in ",:()'")


def train(name: str, seed: int, how: argparse.Namespace) -> Path:
    """The uploads of one federation, trained unless they are there."""
    spec = FEDERATIONS[name]
    epochs = how.local_epochs or spec.local_epochs
    home = how.work / f"{name}-{seed}-{epochs}"
    data = how.data or spec.data
    home.mkdir(parents=True, exist_ok=True)
    parts = home / "parts.json"
    words = ["--rule", spec.rule, "--clients", spec.clients, "--seed", seed, "--hold-out", spec.hold_out, "--min-size"]
    smallest = 10 if spec.rule.startswith("dirichlet") else 0
    if spec.least_share:
        images = (1 - spec.hold_out) * len(load_data(data).train)
        smallest = int(spec.least_share * images / spec.clients)
    attar("partition", data, *words, smallest, "--out", parts, "--json")
    start = ("--start", str(how.start or spec.start)) if spec.start else ()
    groups = spec.groups or {"uploads": Group("all", spec.nets, ("--epochs", str(epochs), *spec.flags, *start))}
    used = {group for row in spec.rows if not how.rows or row.name in how.rows for group in row.groups} or set(groups)
    for label, group in groups.items():
        if label not in used:
            continue
        given = how.cvae_epochs if group.net.startswith("cvae") else how.local_epochs
        flags = [*group.flags, *(("--epochs", given) if given else ())]
        begun = time.time()
        net = () if spec.start else ("--net", group.net)  # the start's own
        told = attar("train", "--partition", parts, "--client", group.clients, *net, *flags, "--seed", seed, "--device",
                      how.device, "--precision", how.precision, "--out", home / label, "--json")  # fmt: skip
        print(f"{name} seed {seed}: {label} trained in {time.time() - begun:.0f} s", flush=True)
        (home / f"clients-{label}.json").write_text(told)
    if any(row.start == "average" for row in spec.rows) and not (home / "average" / "config.json").exists():
        files = sorted((home / "uploads").glob("*.attar"))
        attar("fuse", *files, "--method", "fedavg", "--no-robustness", "--out", home / "average", "--json")
    return home


def fuse(name: str, seed: int, row: Row, home: Path, records: Path, how: argparse.Namespace) -> None:
    spec, epochs, device, commit = FEDERATIONS[name], how.epochs, how.device, how.commit
    data, own = how.data or spec.data, {field.name for field in fields(METHODS[row.method])}
    sets = [*row.settings, *(setting for setting in how.settings or () if setting.split("=")[0] in own)]
    if epochs is not None and row.method in POOLED:
        sets.append(f"epochs={epochs}")
    sets = list({setting.split("=")[0]: setting for setting in sets}.values())  # the last word counts
    local = how.local_epochs or spec.local_epochs
    label = as_label(f"{name}-{seed}-{row.name}-{local}-{epochs}-{how.precision}")
    files = [file for group in row.groups or ("uploads",) for file in sorted((home / group).glob("*.attar"))]
    words: list[object] = [*files, "--method", row.method, "--data", data]
    words += [word for setting in sets for word in ("--set", setting)]
    words += ["--student", row.student] if row.student else []
    words += ["--start", home / "average" if row.start == "average" else how.start or spec.start] if row.start else []
    words += ["--public", home / "parts.json"] if row.method == "feddf" else []
    words += (
        ["--evaluate-every", max(1, (epochs or min(200, METHODS[row.method]().epochs)) // 10)] if row.method in POOLED else []
    )
    words += ["--evaluate-every", 1] if row.method in ("fedmho", "fedcvae") else []
    left = how.deadline - time.monotonic()
    if left < LEAST_SECONDS:
        print(f"{label}: not begun, out of time", flush=True)
        return
    words += ["--minutes", left / 60] if left < float("inf") else []
    words += ["--precision", how.precision, "--no-robustness", *(["--compile"] if how.compile else [])]
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
               "local_epochs": local, "rule": spec.rule, "data": data, "nets": spec.nets, "start": spec.start,
               "groups": {group: asdict(spec.groups[group]) for group in row.groups}, "source": spec.source}  # fmt: skip
    (records / f"{label}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{label}: {100 * record['accuracy']:.2f} in {record['seconds']:.0f} s", flush=True)


def run(arguments: argparse.Namespace) -> None:
    records = arguments.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    jobs = [(name, seed) for name in arguments.federations for seed in arguments.seeds or FEDERATIONS[name].seeds]
    arguments.deadline = time.monotonic() + arguments.seconds
    with ThreadPoolExecutor(arguments.train_workers) as trainers, ThreadPoolExecutor(arguments.workers) as fusers:
        homes = {job: trainers.submit(train, *job, arguments) for job in jobs}
        for (name, seed), home in homes.items():
            for row in FEDERATIONS[name].rows:
                if not arguments.rows or row.name in arguments.rows:
                    fusers.submit(fuse, name, seed, row, home.result(), records, arguments)


def epochs_done(record: dict) -> str:
    """Epochs (or steps) that were run: the last phase's, as "60 of 60"; empty for methods without phases."""
    return list(record["steps"].values())[-1] if record["steps"] else ""


def unusual(record: dict) -> str:
    """The settings that differ from today's defaults."""
    usual = json.loads(json.dumps(asdict(METHODS[record["method"]]())))  # as a record has it
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
    write_table(arguments.output, COLUMNS, sorted(lines, key=lambda line: (line["federation"], line["seed"], line["row"])))


def write_table(path: Path, columns: Sequence[str], lines: Sequence[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(f"{len(lines)} lines in {path}")


def what_to_run(runner: argparse.ArgumentParser) -> None:
    """The flags that every such program has."""
    runner.add_argument("--precision", default="tf32")
    runner.add_argument("--data", help="in place of the federation's data, to try it")
    runner.add_argument("--settings", nargs="*", help="key=value for every row whose method has that setting")
    runner.add_argument("--seeds", type=int, nargs="*")
    runner.add_argument("--rows", nargs="*")
    runner.add_argument("--commit", default="unknown")


def records_to_table(collector: argparse.ArgumentParser, collect: Callable[[argparse.Namespace], None]) -> None:
    collector.add_argument("folders", type=Path, nargs="+")
    collector.add_argument("-o", "--output", type=Path, required=True)
    collector.set_defaults(run=collect)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("federations", nargs="+", choices=FEDERATIONS)
    runner.add_argument("--out", type=Path, required=True)
    runner.add_argument("--work", type=Path, default=Path("evidence-work"))
    runner.add_argument("--device", default="cuda")
    runner.add_argument("--workers", type=int, default=6, help="fusions at once")
    runner.add_argument("--train-workers", type=int, default=2, help="federations that train at once: a GPU is soon full")
    runner.add_argument("--epochs", type=int)
    runner.add_argument("--compile", action="store_true")
    runner.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="end everything in time: fusions with the model of the moment, what has not begun not at all",
    )
    runner.add_argument("--local-epochs", type=int, help="of the clients' classifiers, in place of the federation's")
    runner.add_argument("--cvae-epochs", type=int, help="of the clients' CVAEs, in place of Table 3's")
    runner.add_argument("--start", type=Path, help="in place of the model folder that the federation's clients start from")
    what_to_run(runner)
    runner.set_defaults(run=run)
    records_to_table(verbs.add_parser("collect"), collect)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
