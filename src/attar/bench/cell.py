"""Runs one cell of the grid to its record: its uploads are fused, evaluated and described.

A run that is killed is resumed from its run folder.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attar.bench.cells import Cell, digest
from attar.bench.clients import read_uploads
from attar.bench.decoder_fid import decoders_fid
from attar.bench.epoch_images import draw_epoch_images, save_epoch_images
from attar.bench.federation_data import FederationData, load_federation
from attar.bench.metadata import run_metadata
from attar.bench.methods import WITHOUT_FUSION
from attar.bench.oracles import CENTRAL, ORACLES, SEES
from attar.bench.outcome import arrays_json, clients_json, outcome_json
from attar.bench.records import FINISHED, Record, record_file, remove_finished_run, write_record
from attar.bench.rounds import run_rounds
from attar.blocks.ensemble import build_mixture
from attar.blocks.student import average_classifiers
from attar.core import AnyMethod, Deployable, Part, Server, Upload
from attar.errors import NeedsError, OutOfTime, SettingsError
from attar.fusion import fuse, server_for
from attar.internal.files import write_atomic
from attar.models import Classifier, Evaluation, evaluate_on, load_start
from attar.running import OnPoint, RunOptions, Watch
from attar.settings import flatten
from attar.uploads import Admission, Received
from attar.version import __version__

MARGIN = 5.0  # seconds before a deadline that are left for writing

Evaluations = dict[str, Evaluation]  # client -> how good its own net is


@dataclass(frozen=True)
class CellRun:
    """A cell under way: its data, and where and how it runs."""

    cell: Cell
    data: FederationData
    out: Path
    device: str
    deadline: float | None
    watch: Watch | None
    keep_runs: bool
    on_point: OnPoint | None

    def evaluate(self, model: Classifier) -> Evaluation:
        """Evaluate a model on the test images."""
        data = self.data
        return evaluate_on(model, data.test, data.dataset.classes, device=self.device)

    def evaluate_net(self, net: Deployable) -> Evaluation:
        """Evaluate a net or a mixture of nets on the test images."""
        return self.evaluate(Classifier(net).to(self.device))

    @property
    def tested_on(self) -> str:
        """The test images in words."""
        federation = self.cell.federation
        return f"{federation.tested_on} part of {federation.data}"

    def folder(self, *content: object) -> Path:
        """The run's folder, named by the content that decides what is computed in it.

        So a run is resumed only where nothing has changed.
        """
        number = digest([*content, __version__, *self.cell.plugin_sources])[:8]
        return self.out / "runs" / f"{self.cell.name}-{number}"

    def options(self) -> RunOptions:
        """The time that is left now, and the progress."""
        minutes = None
        if self.deadline is not None:
            minutes = max(0.0, self.deadline - MARGIN - time.time()) / 60
        # A folder that is deleted afterwards needs no model cards and pictures.
        return RunOptions(
            watch=self.watch,
            minutes=minutes,
            for_people=self.keep_runs,
            on_point=self.on_point,
        )


def run_cell(
    cell: Cell,
    out: Path,
    device: str,
    *,
    engine: str = "inline",
    deadline: float | None = None,
    watch: Watch | None = None,
    keep_runs: bool = False,
    on_point: OnPoint | None = None,
) -> Record:
    """Run a cell whose clients are trained, or resume it.

    Args:
        cell: The cell.
        out: The bench's folder.
        device: Where it runs.
        engine: The engine's name, for the record.
        deadline: By ``time.time()``; None: no limit.
        watch: Is called with the progress.
        keep_runs: Whether the run's folder with its models stays; a mixture of large nets is as
            large as all of them.
        on_point: Is called with each point of the run's history.

    Returns:
        The record, which is also the last file that is written.

    Raises:
        OutOfTime: The deadline came; what was done is saved.
    """
    data = load_federation(cell.federation, cell.seed)
    run = CellRun(cell, data, out, device, deadline, watch, keep_runs, on_point)
    record = run_metadata(cell, device)
    record |= {"engine": engine, "ending": FINISHED, "oracle": SEES.get(cell.row.method)}
    if cell.federation.rounds > 1:
        folder = run.folder(flatten(cell.method()))
        record |= run_rounds(cell, data, folder, device, run.options())
    else:
        record |= _run_one_shot(run)
    write_record(out, record)
    if not keep_runs:
        for folder in (out / "runs").glob(f"{cell.name}-*"):
            shutil.rmtree(folder)
    return record


def _run_one_shot(run: CellRun) -> Record:
    """What the record of a single fusion says of the outcome."""
    cell = run.cell
    received = read_uploads(cell.client_sets, run.out)
    record, evaluations = _measure_uploads(run, received)
    if cell.row.method in WITHOUT_FUSION:
        record |= _evaluate_client(run, received, evaluations)
    else:
        record |= _fuse_uploads(run, received)
    inception = cell.row.fid
    distance = decoders_fid(received, run.data, inception, run.device) if inception else None
    sent = sum(upload.bytes for upload in received)
    return {**record, "bytes_up": sent, "bytes_down": 0, "fid": distance}


def _measure_uploads(run: CellRun, received: Sequence[Received]) -> tuple[Record, Evaluations]:
    """How good the clients and their plain ensemble are, whatever is fused of them.

    This is measured once for each set of uploads, and kept in the bench's folder.

    Returns:
        What the record says of it, and the evaluations of the clients that were made for it.
    """
    federation = run.cell.federation
    # The same weights are another model in other code.
    plugins = [clients.plugins for clients in run.cell.client_sets if clients.plugins]
    hashes = [file.sha256 for file in received]
    test = [federation.data, federation.tested_on, federation.leave_out]
    cache = run.out / "measured" / f"{digest([hashes, *test, *plugins])}.json"
    if cache.exists():
        return json.loads(cache.read_text()), {}
    uploads = [file.upload for file in received]
    voters = [upload for upload in uploads if "classifier" in upload.parts]
    classes = run.data.dataset.classes
    evaluations = {upload.client: run.evaluate_net(upload.parts["classifier"]) for upload in voters}
    ensemble = None
    if _know_all_classes(voters, classes):
        ensemble = run.evaluate_net(build_mixture("mean-logits", voters, classes)).accuracy
    record = {
        "clients": clients_json(
            uploads,
            {file.upload.client: (file.bytes, file.sha256) for file in received},
            {client: evaluation.accuracy for client, evaluation in evaluations.items()},
        ),
        "ensemble_accuracy": ensemble,
        "classes": list(classes),
        "tested_on": f"{run.tested_on}, {len(run.data.test)} images",
    }
    write_atomic(cache, json.dumps(record))
    return record, evaluations


def _know_all_classes(uploads: Sequence[Upload], classes: Sequence[str]) -> bool:
    known = {name for upload in uploads for name in upload.parts["classifier"].classes}
    return set(classes) <= known


def _evaluate_client(
    run: CellRun, received: Sequence[Received], evaluations: Mapping[str, Evaluation]
) -> Record:
    """A client's net as it is: a row of a table that has no fusion."""
    cell = run.cell
    place = int(cell.settings.get("client", 0))
    if not 0 <= place < len(received):
        raise NeedsError(f"There is no client {place}: {len(received)} have sent something.")
    start = time.monotonic()
    upload = received[place].upload
    evaluation = evaluations.get(upload.client)
    if evaluation is None:  # the clients were measured with another cell
        evaluation = run.evaluate_net(upload.parts["classifier"])
    return {
        **outcome_json({"student": evaluation}, []),
        "settings": dict(cell.settings),
        "steps": {},
        "arrays": {},
        "remarks": [f"oracle: sees {SEES[CENTRAL]}"] if cell.row.method == CENTRAL else [],
        "gallery": None,
        "seconds": round(time.monotonic() - start, 3),
        "seconds_by_phase": {},
    }


def _fuse_uploads(run: CellRun, received: Sequence[Received]) -> Record:
    """Fuse the uploads of a cell, or resume its fusion."""
    cell = run.cell
    method = cell.method()
    settings = flatten(method)
    uploads = [file.upload for file in received]
    folder = run.folder([file.sha256 for file in received], settings)
    remove_finished_run(folder)
    fused = fuse(
        uploads,
        method,
        _make_server(run, method, uploads),
        admission=Admission(
            files={file.upload.client: (file.bytes, file.sha256) for file in received}
        ),
        options=replace(
            run.options(),
            out=folder,
            resume=(folder / "run.json").exists(),
            evaluate=run.evaluate,
            evaluate_every=_steps_between_points(settings, cell.row.curve),
            evaluated_on=f"the {run.tested_on}",
            on_evaluation=save_epoch_images(folder),
        ),
    )
    if not fused.finished:
        raise OutOfTime("Out of time.", fix="run the same command again: it goes on from here")
    record = fused.record
    picture = record_file(run.out, cell.name).with_suffix(".png")
    return {
        **outcome_json(fused.evaluations, record["history"]),
        "settings": json.loads(json.dumps(settings)),
        "steps": record["steps"],
        "arrays": arrays_json(fused.result),
        "remarks": record["remarks"],
        "gallery": draw_epoch_images(folder, picture),
        "seconds": record["seconds"],
        "seconds_by_phase": record["seconds_by_phase"],
    }


def _make_server(run: CellRun, method: AnyMethod, uploads: Sequence[Upload]) -> Server:
    cell = run.cell
    public = None
    if method.needs.public_data:
        labelled = cell.row.method in ORACLES or method.needs.public_labels
        public = run.data.public(cell.federation, labelled=labelled)
    return server_for(
        uploads,
        student=cell.student if method.needs.student else None,
        classes=run.data.dataset.classes,
        initial=_student_start(cell, uploads),
        public=public,
        seed=cell.seed,
        device=run.device,
        precision=cell.precision,
        compile=cell.compile,
        ties="first",  # what the records have
    )


def _student_start(cell: Cell, uploads: Sequence[Upload]) -> Part | None:
    """The weights that the student starts from; None: the method decides."""
    start = cell.row.start
    if start is None:
        return None
    if start == "average":
        return average_classifiers(uploads)
    path = cell.federation.start if start == "start" else start
    if path is None:
        raise SettingsError(
            f"{cell.title}: the federation has no start.",
            fix="give it one, or the row a model's path",
        )
    return load_start(Path(path))


def _steps_between_points(settings: Mapping[str, Any], points: int) -> int | None:
    """Steps between two points of the accuracy curve, by the method's longest count of steps."""
    lengths = [settings[name] for name in ("epochs", "steps") if name in settings]
    return max(1, max(lengths) // points) if lengths and points else None
