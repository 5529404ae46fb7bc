"""The outcome of each verb as a table for people."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attar.cli.output.console import human_seconds, say, show_command, show_pairs, show_table
from attar.core import Upload
from attar.federation import cumulative_bytes
from attar.fusion import Fused
from attar.internal.text import human_bytes, list_some
from attar.models import Evaluation, list_pictures
from attar.privacy import (
    MAX_SHOWN,
    PrivacyCheck,
    describe_graphs,
    list_revelations,
    summarise_upload,
)
from attar.uploads import Signer

UPLOAD_COLUMNS = ("client", "sends", "examples", "per class", "image", "bytes")


def show_partition(
    title: str, names: Sequence[str], counts: NDArray[np.int64], classes: Sequence[str]
) -> None:
    rows = [(name, f"{row.sum():,}", *row) for name, row in zip(names, counts, strict=True)]
    columns = ("client", "images", *(name[:8] for name in classes))
    show_table(title, columns, rows, right=columns[1:])


def show_uploads(
    uploads: Sequence[Upload], sizes: Sequence[int], signers: Mapping[str, Signer] | None = None
) -> None:
    rows = [summarise_upload(upload, size) for upload, size in zip(uploads, sizes, strict=True)]
    columns: tuple[str, ...] = UPLOAD_COLUMNS
    if signers is not None:
        columns = (*columns, "signature")
        rows = [
            (*row, signers[upload.client].summary)
            for row, upload in zip(rows, uploads, strict=True)
        ]
    title = f"{len(uploads)} upload{'s' if len(uploads) > 1 else ''}, {human_bytes(sum(sizes))}"
    show_table(title, columns, rows, right=("examples", "bytes"))


def show_revelations(uploads: Sequence[Upload]) -> None:
    for upload in uploads:
        if lines := describe_graphs(upload):
            say(f"\n{upload.client} sends")
            for line in lines:
                say(f"  - {line}")
        say(f"\n{upload.client} reveals")
        for sentence in list_revelations(upload):
            say(f"  - {sentence}")


def show_privacy(found: PrivacyCheck, out: Path) -> None:
    titles = {
        "Closest pairs": found.closest,
        "Training images that stand out, and come back": found.singled_out,
    }
    for title, pairs in titles.items():
        cells = [(p.label, p.real_label, f"{p.distance:.4f}", f"{p.relative:.2f}") for p in pairs]
        columns = (
            "synthetic as",
            "nearest training image is",
            "distance",
            "against its next neighbour",
        )
        show_table(title, columns, cells, right=columns[2:])
    rows = [
        ("compared", f"{found.samples:,} synthetic with {found.images:,} training images"),
        ("of a class", f"{min(found.drawn.values()):,} synthetic at least, whatever its share"),
        (
            "median distance",
            f"{found.median_distance:.4f}; between training images {found.median_real_distance:.4f}",
        ),
        (
            "FID",
            f"{found.fid:.2f}; of noise {found.fid_noise:.2f}, between halves of the training images {found.fid_real:.2f}",
        ),
        ("features", found.features),
        ("verdict", found.verdict),
        *([("quality", found.quality)] if found.quality else []),
        (
            "pictures",
            f"{out / 'closest.png'}, {out / 'singled-out.png'} (synthetic left, training image right)",
        ),
    ]
    show_pairs("Privacy", rows)


def show_trained(
    uploads: Mapping[Path, Upload], validation: Mapping[str, float], at_home: Mapping[str, float]
) -> None:
    rows = []
    measured = {"own images": at_home, "validation": validation}
    shown = {
        title: found for title, found in measured.items() if found
    }  # a decoder has no accuracy
    for path, upload in uploads.items():
        accuracies = (
            f"{100 * found[upload.client]:.1f} %" if upload.client in found else ""
            for found in shown.values()
        )
        rows.append((*summarise_upload(upload, path.stat().st_size), *accuracies))
    show_table("Uploads", (*UPLOAD_COLUMNS, *shown), rows, right=("examples", "bytes", *shown))


def show_packed(upload: Upload, size: int, out: Path) -> None:
    show_uploads([upload], [size])
    show_revelations([upload])
    say(f"\nRead back and compared with the net itself. Written to {out}")


def show_fused(fused: Fused, out: Path, measured_on: str | None) -> None:
    record = fused.record
    name = next(iter(fused.result.models))
    found, classes = record["accuracy"], record["task"]["classes"]
    rows = [
        ("model", f"{name}, {record['student']}" if name == "student" else name),
        ("method", record["method"]),
        (
            "settings",
            ", ".join(f"{key}={value}" for key, value in record["settings"].items()) or "none",
        ),
        ("clients", f"{len(record['clients'])}, {human_bytes(record['bytes_received'])} received"),
        ("classes", f"{len(classes)}: {list_some(classes, MAX_SHOWN)}"),
        ("time", human_seconds(record["seconds"])),
        (
            "accuracy",
            "not measured (--data SOURCE)"
            if found is None
            else f"{100 * found:.2f} % of {measured_on}",
        ),
        ("folder", str(out)),
    ]
    if pictures := [picture.file for picture in list_pictures(fused.result, record)]:
        first, *more = pictures
        rows.append(
            ("pictures", ", ".join([f"{first} (look at it first)" if more else first, *more]))
        )
    rows += [
        (f"accuracy of {other}", f"{100 * value:.2f} %")
        for other, value in list(record["accuracies"].items())[1:]
    ]
    rows += [("remark", remark) for remark in record["remarks"]]
    if not fused.finished:
        steps = ", ".join(f"{phase} {done}" for phase, done in record["steps"].items())
        rows.append(("ended early", f"out of minutes after {steps}; --resume goes on"))
    rows += [("left out", name) for name in record["excluded"]]
    show_pairs("Fused", rows)
    if record["robustness"] is not None:
        show_robustness(record["robustness"])


def show_robustness(found: Mapping[str, Any]) -> None:
    """Every client's agreement with the rest and what is odd about it; a line where nobody is
    judged and nothing is odd.
    """
    if found["unjudged"] is not None and not found["suspects"]:
        say(f"Robustness: not judged; {found['unjudged']}.")
        return

    def number(value: float | None, form: str = ".2f") -> str:
        return "" if value is None else format(value, form)

    rows = [
        (
            one["client"],
            number(one["agreement"]),
            number(one["weight"], ".3f"),
            number(one["weight_norm"], ".3g"),
            number(one["logit_scale"], ".3g"),
            number(one["entropy"]),
            "; ".join(one["flags"])
            or (f"not judged: {one['unjudged']}" if one["unjudged"] else "nothing suspicious"),
        )
        for one in found["clients"]
    ]
    columns = ("client", "agreement", "weight", "weight norm", "logit scale", "entropy", "")
    told = [
        place for place in range(len(columns)) if any(row[place] for row in rows)
    ]  # the words want the room
    show_table(
        f"Robustness, on {found['images']} images: {found['source']}",
        [columns[place] for place in told],
        [[row[place] for place in told] for row in rows],
        right=columns[1:6],
    )
    suspects = found["suspects"]
    if suspects and len(suspects) == len(found["clients"]):  # without them nobody would be left
        say(f"Look at {', '.join(suspects)}: every client is suspicious.")
    elif suspects:
        words = " ".join(f"--exclude {name}" for name in suspects)
        say(
            f"Look at {', '.join(suspects)}; the same command with another --out and {words} fuses without."
        )


def show_federated(record: Mapping[str, Any], out: Path | None) -> None:
    """Accuracy and megabytes, round by round, and what it took to reach the target."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.2f} %"

    rows = []
    for one, total in zip(record["rounds"], cumulative_bytes(record["rounds"]), strict=True):
        away = [*one["dropped"], *one["failed"]]
        moved = [f"{count / 1e6:,.2f}" for count in (one["bytes_down"], one["bytes_up"], total)]
        cells = (
            f"{len(one['drawn'])}",
            ", ".join(away),
            *moved,
            percent(one["accuracy"]),
            percent(one["home_accuracy"]),
        )
        rows.append((str(one["round"]), *cells, human_seconds(one["seconds"])))
    columns = (
        "round",
        "clients",
        "without",
        "MB down",
        "MB up",
        "MB in all",
        "accuracy",
        "at home",
        "time",
    )
    right = ("round", "clients", *columns[3:])
    show_table(f"{record['method']}, {len(record['clients'])} clients", columns, rows, right=right)
    pairs = [
        (
            "accuracy",
            f"{percent(record['accuracy'])} on {record['evaluated_on']}"
            if record["accuracy"] is not None
            else "not measured",
        ),
        (
            "bytes",
            f"{human_bytes(record['bytes_down'])} down, {human_bytes(record['bytes_up'])} up",
        ),
    ]
    if record["equation_6_bytes"] is not None:
        pairs.append(
            (
                "by Eq. (6)",
                f"{human_bytes(record['equation_6_bytes'])}: 2 x model x clients x rounds",
            )
        )
    if record["home_accuracy"] is not None:
        pairs.append(
            (
                "at home",
                f"{percent(record['home_accuracy'])}, mean of {len(record['home_accuracies'])} deployed models",
            )
        )
    if (target := record["plan"]["target"]) is not None:
        reached = record["to_target"]
        took = (
            f"{reached['rounds']} rounds, {human_bytes(reached['bytes'])}"
            if reached
            else "not reached"
        )
        pairs.append((f"to {percent(target)}", took))
    pairs += [("remark", remark) for remark in record["remarks"]]
    for one in record["rounds"]:
        pairs += [
            (f"round {one['round']}", f"{name} failed: {why}")
            for name, why in one["failed"].items()
        ]
    pairs.append(("time", human_seconds(record["seconds"])))
    if record["ending"] != "finished":
        pairs.append(
            (
                "ended early",
                f"after {len(record['rounds'])} of {record['plan']['rounds']} rounds; --resume goes on",
            )
        )
    if out is not None:
        pairs.append(("folder", str(out)))
    show_pairs("Federation", pairs)


def show_allocation(rows: Sequence[Mapping[str, Any]]) -> None:
    """Who gets what net, and what it costs there."""
    cells = [
        (
            row["device"],
            row["net"],
            f"{row['parameters']:,}",
            f"{row['macs'] / 1e6:,.1f} M",
            f"of {row['mac_budget'] / 1e6:,.1f} M",
            human_bytes(row["memory_bytes"]),
            f"of {human_bytes(row['memory_budget'])}",
            human_bytes(row["upload_bytes"]),
        )
        for row in rows
    ]
    columns = ("device", "net", "parameters", "MACs", "budget", "memory", "budget ", "upload")
    show_table("Who gets what", columns, cells, right=columns[2:])


def show_evaluation(
    title: str, found: Evaluation, classes: Sequence[str], measured_on: str
) -> None:
    rows = [
        (
            name,
            f"{int(found.confusion[row].sum()):,}",
            "" if value is None else f"{100 * value:.2f} %",
        )
        for row, (name, value) in enumerate(zip(classes, found.per_class, strict=True))
    ]
    show_table(title, ("class", "images", "accuracy"), rows, right=("images", "accuracy"))
    say(f"accuracy {100 * found.accuracy:.2f} % of {measured_on}")
    say(
        f"balanced {100 * found.balanced_accuracy:.2f} %   calibration error {100 * found.calibration_error:.2f} %"
    )
    if found.unknown:
        count = sum(int(found.confusion[classes.index(name)].sum()) for name in found.unknown)
        whose = "its" if len(found.unknown) == 1 else "their"
        wrong = "1 image counts" if count == 1 else f"{count:,} images count"
        say(
            f"The model does not know {list_some(found.unknown, MAX_SHOWN)}: {whose} {wrong} as wrong."
        )


def show_plan(rows: Sequence[Mapping[str, Any]], settings: str) -> None:
    cells = [
        (
            row["method"],
            "yes" if row["fits"] else "no",
            "; ".join(row["why_not"]),
            human_seconds(row["seconds"]) if row["fits"] else "",
            human_bytes(row["memory_bytes"]) if row["fits"] else "",
        )
        for row in rows
    ]
    title = f"With {settings} settings, on this machine"
    show_table(
        title, ("method", "fits", "why not", "time", "memory"), cells, right=("time", "memory")
    )


def show_list(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = [name for name in rows[0] if title != "methods" or name != "settings"]
    show_table(
        title,
        columns,
        [[_cell(row[name]) for name in columns] for row in rows],
        right=("parameters", "operations", "classes"),
    )
    if title == "methods":  # too many for a column
        say("Settings (--set key=value):")
        for row in rows:
            say(f"  {row['name']}: {_cell(row['settings'])}")


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case list() if all(isinstance(item, int) for item in value):
            return "x".join(map(str, value))
        case list():
            return ", ".join(value)
        case dict():
            return "  ".join(f"{key}={item}" for key, item in value.items())
    return str(value)


def show_speed(record: Mapping[str, Any]) -> None:
    setting = record["setting"]
    title = (
        f"{setting['method']}, {setting['clients']} clients with {setting['net']}, batches of {setting['batch']}, "
        f"a pool of {setting['pool']} batches, {setting['precision']}{', compiled' if setting['compile'] else ''}"
    )
    rows = []
    for timing in record["timings"]:
        flops, share = timing["gigaflops"], timing["share_of_peak"]
        counted = ("", "") if flops is None else (f"{flops:,.1f}", f"{100 * share:.1f} %")
        rows.append(
            (
                timing["what"],
                f"{timing['milliseconds']:,.2f}",
                f"{timing['images_per_second']:,}",
                *counted,
            )
        )
    columns = ("", "ms", "images/s", "GFLOP", "of the matrix peak")
    show_table(title, columns, rows, right=columns[1:])
    memory = f", {human_bytes(record['gpu_memory'])} of its memory" if record["gpu_memory"] else ""
    say(
        f"{record['machine']}{memory}, torch {record['torch']}; matrix products reach {record['matrix_peak_tflops']:g} TFLOP/s"
    )


def show_network(made: dict[str, Any]) -> None:
    """What `attar network init` wrote, and who does what with it."""
    server = made["server"]
    say(
        f"Server: keep {server['folder']} and run, in the folder that holds it:\n\n    {server['command']}\n"
    )
    for name, one in made["partners"].items():
        say(
            f"{name}: give them {one['folder']} ({one['key']}) by a channel you trust. They run, beside that folder:\n"
        )
        say(f"    {one['command']}\n")
    say(
        "Each side needs attar[flower]. A private key (node.key, server.key, ca.key) belongs to whoever holds its folder alone."
    )


def show_round(outcome: dict[str, Any]) -> None:
    """Who has arrived, who is missing, and what to do next."""
    rows = [(name, "in time", human_bytes(size)) for name, size in outcome["arrived"].items()]
    rows += [(name, "late", human_bytes(size)) for name, size in outcome["late"].items()]
    rows += [(name, "missing", why) for name, why in outcome["missing"].items()]
    show_table("The round", ("partner", "upload", ""), rows)
    say(f"Inbox: {outcome['inbox']} (journal.jsonl tells what happened)")
    if outcome["missing"]:
        say("The same command again asks those who are missing.")
    if outcome["fuse"] and outcome["fuse_status"] is None:
        say("To fuse what arrived:")
        show_command(outcome["fuse"])
