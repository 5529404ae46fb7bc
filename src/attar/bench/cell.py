"""One cell of the grid, run to its record: uploads are fused, evaluated and described. Killed,
it goes on from its run folder.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from attar.bench.clients import Dealt, deal, uploads_of
from attar.bench.grid import Cell, digest
from attar.bench.oracles import CENTRAL, LOCAL, ORACLES, SEES
from attar.bench.records import (
    FINISHED,
    Record,
    arrays_json,
    clients_json,
    forget_if_finished,
    of_run,
    outcome_json,
    write_record,
)
from attar.bench.rounds import run_rounds
from attar.blocks.ensemble import build_mixture
from attar.blocks.student import average_classifiers
from attar.core import AnyMethod, Deployable, Part, Result, Upload
from attar.errors import NeedsError, OutOfTime, SettingsError
from attar.fusion import fuse, server_for
from attar.internal.files import write_atomic
from attar.models import Classifier, Evaluation, draw_sheet, evaluate_on, load_start
from attar.privacy import (
    allot_images,
    draw_images,
    fid,
    load_inception,
)
from attar.running import RunOptions, Watch
from attar.seeds import generator
from attar.settings import flatten
from attar.training import make_client
from attar.uploads import Admission, Received
from attar.version import __version__

SHOWN = 10  # images of an epoch in the gallery
ROWS = 8  # epochs in the gallery
FID_IMAGES = 1000  # of each decoder
MARGIN = 5.0  # seconds before a deadline that are left for writing


def run_cell(
    cell: Cell,
    out: Path,
    device: str,
    *,
    engine: str = "inline",
    deadline: float | None = None,
    watch: Watch | None = None,
    keep_runs: bool = False,
) -> Record:
    """Run, or go on with, a cell whose clients are trained; its record, which is written last.

    Its model stays in ``runs/`` where ``keep_runs`` says so; a mixture of large nets is as large
    as all of them.
    """
    data = deal(cell.federation, cell.seed)
    # A folder that is deleted afterwards needs no model cards and pictures.
    options = RunOptions(watch=watch, for_people=keep_runs)
    record = of_run(cell, device) | {
        "engine": engine,
        "ending": FINISHED,
        "oracle": SEES.get(cell.row.method),
    }
    if cell.federation.rounds > 1:
        number = digest([flatten(cell.method()), __version__, *cell.sources])[:8]
        folder = out / "runs" / f"{cell.name}-{number}"
        record |= run_rounds(
            cell, data, folder, device, replace(options, minutes=_minutes(deadline))
        )
    else:
        received = uploads_of(cell.client_sets, out)
        evaluations: dict[str, Evaluation] = {}
        record |= measured(cell, data, received, out, device, evaluations)
        if cell.row.method in (LOCAL, CENTRAL):
            record |= _own_model(cell, data, received, device, evaluations)
        else:
            record |= _fused(
                cell, data, received, out, device, replace(options, minutes=_minutes(deadline))
            )
        record |= {"bytes_up": sum(one.bytes for one in received), "bytes_down": 0}
        record |= {
            "fid": decoders_fid(received, data, cell.row.fid, device) if cell.row.fid else None
        }
    write_record(out, record)
    if not keep_runs:
        _forget_runs(out, cell)
    return record


def measured(
    cell: Cell,
    data: Dealt,
    received: Sequence[Received],
    out: Path,
    device: str,
    evaluations: dict[str, Evaluation],
) -> Record:
    """The clients and their plain ensemble, alone: measured once for each set of uploads,
    whatever is fused of them. What is evaluated here of each client goes into ``evaluations``.
    """
    files = [one.sha256 for one in received]
    lent = [
        one.plugins for one in cell.client_sets if one.plugins
    ]  # the same weights are another model in other code
    whole = [
        files,
        cell.federation.data,
        cell.federation.tested_on,
        cell.federation.leave_out,
        *lent,
    ]
    cache = out / "measured" / f"{digest(whole)}.json"
    if cache.exists():
        found: Record = json.loads(cache.read_text())
        return found

    uploads = [one.upload for one in received]

    evaluations |= {
        upload.client: _evaluated(part, data, device)
        for upload in uploads
        if (part := upload.parts.get("classifier")) is not None
    }
    own = {client: found.accuracy for client, found in evaluations.items()}
    voters = [upload for upload in uploads if "classifier" in upload.parts]
    together = (
        _evaluated(
            build_mixture("mean-logits", voters, data.dataset.classes), data, device
        ).accuracy
        if _all_known(voters, data)
        else None
    )
    found = {
        "clients": clients_json(
            uploads, {one.upload.client: (one.bytes, one.sha256) for one in received}, own
        ),
        "ensemble_accuracy": together,
        "classes": list(data.dataset.classes),
        "tested_on": f"{cell.federation.tested_on} part of {cell.federation.data}, {len(data.test)} images",
    }
    write_atomic(cache, json.dumps(found))
    return found


def _all_known(uploads: Sequence[Upload], data: Dealt) -> bool:
    known = {name for upload in uploads for name in upload.parts["classifier"].classes}
    return set(data.dataset.classes) <= known


def _own_model(
    cell: Cell,
    data: Dealt,
    received: Sequence[Received],
    device: str,
    evaluations: Mapping[str, Evaluation],
) -> Record:
    """A client's net as it is: the row of a table that has no fusion."""
    place = int(cell.settings.get("client", 0))
    if not 0 <= place < len(received):
        raise NeedsError(f"There is no client {place}: {len(received)} have sent something.")
    begun = time.monotonic()
    upload = received[place].upload
    found = evaluations.get(upload.client)
    if found is None:  # measured with another cell
        found = _evaluated(upload.parts["classifier"], data, device)
    return {
        **outcome_json({"student": found}, []),
        "settings": dict(cell.settings),
        "steps": {},
        "arrays": {},
        "remarks": [f"oracle: sees {SEES[CENTRAL]}"] if cell.row.method == CENTRAL else [],
        "gallery": None,
        "seconds": round(time.monotonic() - begun, 3),
        "seconds_by_phase": {},
    }


def _fused(
    cell: Cell,
    data: Dealt,
    received: Sequence[Received],
    out: Path,
    device: str,
    options: RunOptions,
) -> Record:
    """Fuse the uploads of a cell, or resume its fusion, and return what its record says of the
    outcome.
    """
    method = cell.method()
    uploads = [one.upload for one in received]
    admission = Admission(files={one.upload.client: (one.bytes, one.sha256) for one in received})
    public = (
        data.public(cell.federation, labelled=cell.row.method in ORACLES)
        if method.needs.public_data
        else None
    )
    server = server_for(
        uploads,
        student=cell.student if method.needs.student else None,
        classes=data.dataset.classes,
        initial=_beginning(cell, uploads),
        public=public,
        seed=cell.seed,
        device=device,
        precision=cell.precision,
        compile=cell.compile,
    )
    whole = [[one.sha256 for one in received], flatten(method), __version__, *cell.sources]
    folder = (
        out / "runs" / f"{cell.name}-{digest(whole)[:8]}"
    )  # a run is gone on with only where nothing has changed

    def evaluate(model: Classifier) -> Evaluation:
        return evaluate_on(model, data.test, data.dataset.classes, device=device)

    forget_if_finished(folder)
    fused = fuse(
        uploads,
        method,
        server,
        admission=admission,
        options=replace(
            options,
            out=folder,
            resume=(folder / "run.json").exists(),
            evaluate=evaluate,
            evaluate_every=_every(method, cell.row.curve),
            evaluated_on=f"the {cell.federation.tested_on} part of {cell.federation.data}",
            on_evaluation=_looker(folder),
        ),
    )
    if not fused.finished:
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    told = fused.record
    return {
        **outcome_json(fused.evaluations, told["history"]),
        "settings": json.loads(json.dumps(flatten(method))),
        "steps": told["steps"],
        "arrays": arrays_json(fused.result),
        "remarks": told["remarks"],
        "gallery": _sheet(cell, folder, out),
        "seconds": told["seconds"],
        "seconds_by_phase": told["seconds_by_phase"],
    }


def _beginning(cell: Cell, uploads: Sequence[Upload]) -> Part | None:
    """The weights that the student starts from, where the row says so; otherwise the method decides."""
    if cell.row.start is None:
        return None
    if cell.row.start == "average":
        return average_classifiers(uploads)
    path = cell.federation.start if cell.row.start == "start" else cell.row.start
    if path is None:
        raise SettingsError(
            f"{cell.title}: the federation has no start.",
            fix="give it one, or the row a model's path",
        )
    return load_start(Path(path))


def _minutes(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - MARGIN - time.time()) / 60


def _every(method: AnyMethod, points: int) -> int | None:
    """Steps between two points of the accuracy curve, by the length of the method's longest
    count of steps.
    """
    values = flatten(method)
    lengths = [values[name] for name in ("epochs", "steps") if name in values]
    return max(1, max(lengths) // points) if lengths and points else None


def _looker(folder: Path) -> Callable[[str, int, Result], None]:
    """Keeps a row of synthetic images at every point of the curve."""

    def look(phase: str, step: int, result: Result) -> None:
        if not result.images:
            return
        images = next(iter(result.images.values()))
        flat = images.flatten(0, 1) if images.ndim == 5 else images
        some = torch.linspace(
            0, len(flat) - 1, min(SHOWN, len(flat))
        ).long()  # from beginning to end: classes lie in a row
        row = (
            (flat[some.to(flat.device)].detach().cpu().float().clamp(0, 1) * 255)
            .round()
            .to(torch.uint8)
            .numpy()
        )
        (folder / "looks").mkdir(parents=True, exist_ok=True)
        np.save(folder / "looks" / f"{step:07d}.npy", row)

    return look


def _sheet(cell: Cell, folder: Path, out: Path) -> Record | None:
    """The rows that were kept, as one picture beside the record: an epoch in each row; images
    that do not change, once.
    """
    looks = [(int(file.stem), np.load(file)) for file in sorted((folder / "looks").glob("*.npy"))]
    changed = [
        look
        for before, look in pairwise([(0, None), *looks])
        if not np.array_equal(before[1], look[1])
    ]
    if not changed:
        return None
    chosen = [
        changed[place]
        for place in sorted({round(i * (len(changed) - 1) / max(1, ROWS - 1)) for i in range(ROWS)})
    ]
    rows = [torch.from_numpy(row) for _, row in chosen]
    width = min(len(row) for row in rows)
    name = f"{cell.name}.png"
    write_atomic(
        out / "records" / name, draw_sheet(torch.stack([row[:width] for row in rows]).float() / 255)
    )
    return {"file": name, "steps": [step for step, _ in chosen]}


def decoders_fid(
    received: Sequence[Received], data: Dealt, inception: str, device: str
) -> float | None:
    """Fréchet distance between what all decoders draw and the images that their clients trained
    on, as many of these as of those.

    ``inception`` is a TorchScript file (see privacy.fid), for FID as published.
    """
    features = load_inception(Path(inception), device)
    drawn, real = [], []
    for one in received:
        if "decoder" not in one.upload.parts:
            continue
        place = data.names.index(one.upload.client)
        client = make_client(
            one.upload.client,
            data.dataset.train.take(data.partition.clients[place]),
            data.dataset.classes,
        )
        number = min(FID_IMAGES, len(client.labels))
        numbers = allot_images(one.upload.parts["decoder"], client, number)
        drawn.append(draw_images(one.upload, numbers, seed=0, device=device)[0].cpu())
        some = torch.randperm(len(client.labels), generator=generator(0, "fid", client.name))[
            :number
        ]
        real.append(client.pixels[some].float() / 255)
    return fid(torch.cat(real), torch.cat(drawn), features) if drawn else None


def _evaluated(model: Deployable, data: Dealt, device: str) -> Evaluation:
    return evaluate_on(Classifier(model).to(device), data.test, data.dataset.classes, device=device)


def _forget_runs(out: Path, cell: Cell) -> None:
    for folder in (out / "runs").glob(f"{cell.name}-*"):
        shutil.rmtree(folder)
