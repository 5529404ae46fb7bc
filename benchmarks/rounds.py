"""Rounds beside the papers: FedKEM and its baselines (Figs. 4 to 7), one-shot methods over T = 1..5 (FedHydra, Table 5).

    python benchmarks/rounds.py run FEDERATION... --out DIR [--device cuda] [--workers 5] [--seconds 540] [--rounds 200]
    python benchmarks/rounds.py collect DIR... -o results/rounds.csv --curves results/rounds-curves.csv

Everything goes through ``attar federate``; a record is what it prints with ``--json``, with the commit, the machine and the federation
added. ``--seconds`` ends every run with its last whole round; the same command again goes on where the work folder still is.
To try one on a small machine: ``--data fashion-mini --local-epochs 1 --rounds 2 --nets lenet5 --settings knowledge=lenet5 steps=20
epochs=1 --device cpu --precision fp32``.
"""

import argparse
import json
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from evidence import LEAST_SECONDS, as_label, attar, records_to_table, what_to_run, write_table

from attar import METHODS
from attar.traffic import highest_common, running_bytes, to_target

SUMMARY = ("federation", "seed", "row", "rounds", "accuracy", "best_on_test", "at_home", "megabytes", "by_equation_6",
           "common_accuracy", "rounds_to_common", "megabytes_to_common", "published", "seconds", "local_epochs", "clients", "fraction",
           "nets", "data", "rule", "server_images", "settings", "precision", "device", "torch", "commit")  # fmt: skip
CURVES = ("federation", "seed", "row", "round", "accuracy", "published", "at_home", "megabytes_down", "megabytes_up", "megabytes",
          "seconds")  # fmt: skip
NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """One method with its settings, and what its paper prints for it."""

    name: str
    method: str
    settings: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    published: str = ""
    published_rounds: tuple[float, ...] = ()  # accuracy after each round, in per cent
    asked_for: bool = False  # only run when named


@dataclass(frozen=True)
class Federation:
    """Who trains what for how many rounds, and the rows of the table."""

    data: str
    rule: str
    clients: int
    fraction: float
    rounds: int
    nets: str
    rows: tuple[Row, ...]
    flags: tuple[str, ...]
    local_epochs: int
    hold_out: float
    source: str
    seeds: tuple[int, ...] = (0,)
    listed: bool = True  # as "not run" where there is no record at all


FEDKEM_TRAINING = ("--batch-size", "64", "--lr", "0.01", "--momentum", "0.9")  # 4.1; step size and momentum are not given there
KEM_ROWS = (
    Row("FedKEM", "fedkem", published="60 % after 49 rounds, 70 % after 110"),
    Row("FedAvg", "fedavg", published="70 % not reached in 200 rounds"),
    Row("FedProx", "fedprox", published="70 % not reached in 200 rounds"),
    Row("FedNova", "fednova", published="60 % after 123 rounds, 70 % not reached in 200"),
    Row("SCAFFOLD", "scaffold"),
    Row("FedKEM, detached", "fedkem", ("peer=detached",), asked_for=True),
    Row("FedKEM, mean of logits", "fedkem", ("ensemble=mean-logits",), asked_for=True),
    Row("FedKEM, vote", "fedkem", ("ensemble=vote",), asked_for=True),
    Row("FedKEM, average", "fedkem", ("fusion=average",), asked_for=True),
    Row("FedKEM, generated images", "fedkem", ("images=generated",), asked_for=True),
    Row("FedKEM (authors' code)", "fedkem", ("labels=0.5", "peer=attached", "distance=mse", "ensemble=mean-logits"),
        ("--public-labels",), asked_for=True),
)  # fmt: skip
TABLE_1 = ",".join(["resnet20"] * 6 + ["resnet32"] * 5 + ["resnet44"] * 10 + ["vgg11"] * 9)
HYDRA_ROUNDS = {  # Tables 5, 8, 9, 10, 11: SVHN by FedAvg, FedDF, DENSE, FedHydra, then CIFAR-10; after T = 1 ... 5
    "dirichlet:0.1": ("Table 5", """28.31 48.13 48.22 53.27 22.72 21.33 29.60 37.95   34.55 56.62 54.67 59.98 37.32 28.63 32.39 46.52
        44.60 65.61 68.44 70.30 35.95 30.36 36.42 48.75   57.05 63.62 66.83 68.58 43.86 30.71 38.85 50.17
        61.59 66.66 64.57 70.39 41.99 28.82 37.27 49.34"""),
    "dirichlet:0.5": ("Table 8", """58.88 80.55 79.50 84.97 38.26 48.14 50.23 53.48   71.36 84.22 82.88 85.37 41.71 49.26 52.58 57.09
        85.73 85.76 84.21 86.41 45.42 48.71 55.39 62.75   84.12 85.04 83.53 86.46 49.81 48.86 53.81 61.83
        83.84 85.20 84.60 86.81 51.75 49.70 53.49 64.71"""),
    "dirichlet:0.3": ("Table 9", """61.17 77.99 76.76 79.14 33.72 37.56 41.54 50.01   73.50 84.21 82.68 84.83 37.56 38.94 46.44 57.00
        84.29 84.49 84.81 85.56 36.04 40.73 47.10 58.18   84.13 85.04 83.82 86.02 41.73 41.10 46.20 58.43
        84.96 85.89 84.62 86.72 44.26 41.03 48.55 55.97"""),
    "dirichlet:0.01": ("Table 10", """19.60 7.59 7.59 29.58 10.00 14.39 23.84 30.13   20.10 7.59 7.59 27.75 17.77 14.89 24.84 37.67
        19.58 7.59 19.77 31.73 26.02 16.42 27.24 39.76   28.58 7.59 9.86 30.98 25.57 16.79 29.16 38.17
        21.73 7.59 8.04 39.58 27.68 17.59 26.04 38.30"""),
    "disjoint:2": ("Table 11", """26.40 24.51 35.57 49.30 12.23 17.84 23.57 28.34   36.37 36.00 29.54 57.35 15.62 18.61 22.05 25.54
        30.00 54.43 43.53 62.45 16.10 16.76 25.97 32.25   39.56 58.41 38.65 59.58 20.44 15.81 20.06 35.69
        34.53 57.12 34.52 65.76 18.24 17.28 24.24 38.76"""),
}  # fmt: skip


def hydra_federation(data: str, rule: str) -> Federation:
    """Five clients of 50 local epochs; the nets of homogeneous clients are not given in the paper."""
    table, text = HYDRA_ROUNDS[rule]
    numbers, first = [float(word) for word in text.split()], 0 if data == "svhn" else 4
    columns = [tuple(numbers[first + place :: 8]) for place in range(4)]
    named = (
        ("FedAvg", "fedavg", ()),
        ("FedDF", "feddf", ("steps=3000",)),
        ("DENSE", "dense", ()),
        ("FedHydra", "fedhydra", ()),
    )
    rows = tuple(Row(*one, published_rounds=column) for one, column in zip(named, columns, strict=True))
    flags, main = ("--batch-size", "128", "--lr", "0.01"), (data, rule) == ("cifar10", "dirichlet:0.1")
    return Federation(data, rule, 5, 1.0, 5, "cnn5", rows, flags, 50, 0.1, f"FedHydra, {table}", listed=main)


FEDERATIONS = {
    "fedkem-vgg11": Federation("cifar10", "dirichlet:0.1", 30, 0.4, 200, "vgg11", KEM_ROWS, FEDKEM_TRAINING, 10, 0.1,
                               "FedKEM, Figs. 4 to 6, N = 30, f = 0.4"),
    "fedkem-mixture": Federation("cifar10", "dirichlet:0.1", 30, 0.4, 200, TABLE_1,
                                 (Row("FedKEM", "fedkem", published="over 70 % after 200 rounds"),), FEDKEM_TRAINING, 10, 0.1,
                                 "FedKEM, Fig. 7 and Table 1"),
    "coboosting-rounds": Federation("cifar10", "dirichlet-client:0.1", 10, 1.0, 200, "cnn5",
                                    (Row("FedAvg", "fedavg"), Row("SCAFFOLD", "scaffold")), ("--batch-size", "128", "--lr", "0.01"),
                                    10, 0.0, "Co-Boosting, B.8: a figure without numbers", listed=False),
    "fedhydra-rounds": hydra_federation("cifar10", "dirichlet:0.1"),
} | {
    f"fedhydra-rounds-{data}-{rule.replace(':', '-')}": hydra_federation(data, rule)
    for data in ("cifar10", "svhn") for rule in HYDRA_ROUNDS if (data, rule) != ("cifar10", "dirichlet:0.1")
}  # fmt: skip


def chosen_rows(name: str, named: list[str] | None) -> list[Row]:
    return [row for row in FEDERATIONS[name].rows if (row.name in named if named else not row.asked_for)]


def partition(name: str, seed: int, how: argparse.Namespace) -> Path:
    spec = FEDERATIONS[name]
    smallest = 10 if spec.rule.startswith("dirichlet") else 0
    parts = how.work / f"{name}-{seed}.json"
    if not parts.exists():
        attar("partition", how.data or spec.data, "--rule", spec.rule, "--clients", spec.clients, "--seed", seed, "--hold-out",
              spec.hold_out, "--min-size", smallest, "--out", parts, "--json")  # fmt: skip
    return parts


def federate(name: str, seed: int, row: Row, parts: Path, records: Path, how: argparse.Namespace) -> None:
    spec, epochs = FEDERATIONS[name], how.local_epochs or FEDERATIONS[name].local_epochs
    label = as_label(f"{name}-{seed}-{row.name}-{epochs}")
    out, own = how.work / label, {field.name for field in fields(METHODS[row.method])}
    left = how.deadline - time.monotonic()
    if left < LEAST_SECONDS:
        print(f"{label}: not begun, out of time", flush=True)
        return
    if (out / "record.json").exists() and not (out / "checkpoint.safetensors").exists():
        return  # finished
    sets = [*row.settings, *(setting for setting in how.settings or () if setting.split("=")[0] in own)]
    sets = list({setting.split("=")[0]: setting for setting in sets}.values())  # the last word counts
    words: list[object] = [parts, "--method", row.method, "--net", how.nets or spec.nets, "--rounds", how.rounds or spec.rounds]
    words += ["--fraction", spec.fraction, "--epochs", epochs, *spec.flags, *row.flags]
    words += [word for setting in sets for word in ("--set", setting)]
    words += ["--stack", how.stack] if how.stack else []
    words += ["--minutes", left / 60] if left < float("inf") else []
    words += ["--resume"] if (out / "run.json").exists() else []
    words += ["--precision", how.precision, "--device", how.device, "--seed", seed, "--checkpoint-seconds", 120]
    try:
        record = json.loads(attar("federate", *words, "--out", out, "--json"))
    except (RuntimeError, ValueError) as error:
        print(f"{label} FAILED: {error}", flush=True)
        return
    record.pop("out")  # where it ran is nobody's business
    machine = torch.cuda.get_device_name() if how.device.startswith("cuda") else platform.processor()
    record |= {"federation": name, "row": asdict(row), "commit": how.commit, "machine": machine, "torch": torch.__version__,
               "rule": spec.rule, "data": how.data or spec.data, "nets": how.nets or spec.nets, "source": spec.source,
               "local_epochs": epochs}  # fmt: skip
    (records / f"{label}.json").write_text(json.dumps(record, indent=1) + "\n")
    last = record["rounds"][-1]
    print(f"{label}: {100 * last['accuracy']:.2f} after {last['round']} rounds, {record['bytes'] / 1e6:.0f} MB", flush=True)


def run(how: argparse.Namespace) -> None:
    records = how.out / "records"
    records.mkdir(parents=True, exist_ok=True)
    how.work.mkdir(parents=True, exist_ok=True)
    how.deadline = time.monotonic() + how.seconds
    with ThreadPoolExecutor(how.workers) as workers:
        for name in how.federations:
            for seed in how.seeds or FEDERATIONS[name].seeds:
                parts = partition(name, seed, how)
                for row in chosen_rows(name, how.rows):
                    workers.submit(federate, name, seed, row, parts, records, how)


def unusual(record: dict) -> str:
    """The settings that differ from today's defaults."""
    usual = asdict(METHODS[record["method"]]())
    return " ".join(f"{key}={value}" for key, value in record["settings"].items() if usual.get(key) != value)


def percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 2)


def summary_line(record: dict, common: float | None) -> dict:
    rounds, public = record["rounds"], record["public"]
    reached = None if common is None else to_target(rounds, common)
    best = [one["accuracy"] for one in rounds if one["accuracy"] is not None]
    images = (
        "" if public is None else f"{public['images']} {'labelled' if public['labelled'] else 'unlabelled'}, {public['source']}"
    )
    return {
        "federation": record["federation"], "seed": record["seed"], "row": record["row"]["name"], "rounds": len(rounds),
        "accuracy": percent(record["accuracy"]), "best_on_test": percent(max(best, default=None)),
        "at_home": percent(record["home_accuracy"]), "megabytes": round(record["bytes"] / 1e6, 1),
        "by_equation_6": round(record["equation_6_bytes"] / 1e6, 1), "common_accuracy": percent(common),
        "rounds_to_common": None if reached is None else reached["rounds"],
        "megabytes_to_common": None if reached is None else round(reached["bytes"] / 1e6, 1),
        "published": record["row"]["published"], "seconds": record["seconds"], "local_epochs": record["local_epochs"],
        "clients": len(record["clients"]), "fraction": record["plan"]["fraction"], "nets": record["nets"], "data": record["data"],
        "rule": record["rule"], "server_images": images if record["method"] in ("fedkem", "feddf") else "",
        "settings": unusual(record), "precision": record["precision"], "device": record["machine"], "torch": record["torch"],
        "commit": record["commit"],
    }  # fmt: skip


def curve_lines(record: dict) -> list[dict]:
    published = record["row"]["published_rounds"]
    lines = []
    for place, (one, spent) in enumerate(zip(record["rounds"], running_bytes(record["rounds"]), strict=True)):
        lines.append({
            "federation": record["federation"], "seed": record["seed"], "row": record["row"]["name"], "round": one["round"],
            "accuracy": percent(one["accuracy"]), "published": published[place] if place < len(published) else None,
            "at_home": percent(one["home_accuracy"]), "megabytes_down": round(one["bytes_down"] / 1e6, 3),
            "megabytes_up": round(one["bytes_up"] / 1e6, 3), "megabytes": round(spent / 1e6, 3), "seconds": one["seconds"],
        })  # fmt: skip
    return lines + not_run(record["federation"], Row(**record["row"]), CURVES, len(lines))


def not_run(name: str, row: Row, columns: tuple[str, ...], done: int = 0) -> list[dict]:
    """What a table lacks says so, with the published values beside it; of curves, the rounds behind those that are done."""
    if columns is CURVES:
        return [{"federation": name, "row": row.name, "round": place, "accuracy": NOT_RUN, "published": value}
                for place, value in enumerate(row.published_rounds, start=1) if place > done]  # fmt: skip
    return [{"federation": name, "row": row.name, "accuracy": NOT_RUN, "published": row.published}]


def collect(arguments: argparse.Namespace) -> None:
    """One line for each run, with the bytes to the highest accuracy that all of its federation reach; one for each round."""
    records = [json.loads(path.read_text()) for folder in arguments.folders for path in sorted(folder.rglob("*.json"))]
    summary, curves = [], []
    for name in FEDERATIONS:
        mine = [record for record in records if record["federation"] == name]
        for seed in sorted({record["seed"] for record in mine}):
            some = [record for record in mine if record["seed"] == seed]
            common = highest_common([record["rounds"] for record in some]) if len(some) > 1 else None
            summary += [summary_line(record, common) for record in some]
            curves += [line for record in some for line in curve_lines(record)]
        done = {record["row"]["name"] for record in mine}
        for row in FEDERATIONS[name].rows:
            if row.name not in done and not row.asked_for and (mine or FEDERATIONS[name].listed):
                summary += not_run(name, row, SUMMARY)
                curves += not_run(name, row, CURVES)
    write_table(arguments.output, SUMMARY, summary)
    if arguments.curves is not None:
        write_table(arguments.curves, CURVES, curves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    runner = verbs.add_parser("run")
    runner.add_argument("federations", nargs="+", choices=FEDERATIONS)
    runner.add_argument("--out", type=Path, required=True, help="where records go")
    runner.add_argument("--work", type=Path, default=Path("rounds-work"), help="partitions and run folders")
    runner.add_argument("--device", default="cuda")
    runner.add_argument("--workers", type=int, default=5, help="federations at once")
    runner.add_argument("--seconds", type=float, default=float("inf"), help="end every run in time, with its last whole round")
    runner.add_argument("--rounds", type=int)
    runner.add_argument("--local-epochs", type=int)
    runner.add_argument("--stack", choices=("auto", "always", "never"))
    runner.add_argument("--nets", help="in place of the federation's nets, to try it")
    what_to_run(runner)
    runner.set_defaults(run=run)
    collector = verbs.add_parser("collect")
    records_to_table(collector, collect)
    collector.add_argument("--curves", type=Path)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
