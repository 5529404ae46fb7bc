"""One pass of a frozen backbone over a client's images: from files to an upload with sums.

Images are read, decoded and summed batch by batch, so the memory does not depend on their number.
The partial sums are saved every so often; a pass that was killed goes on from there and ends with
the same bits, since a batch is the same images in the same order.
"""

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from attar.backbones import Backbone, fast_copy
from attar.blocks.execution import arithmetic, has_float64
from attar.core import Upload
from attar.data.dataset import Pixels
from attar.data.images import NAMED
from attar.data.streams import ImageStream
from attar.errors import DataError, DivergedError, Stopped
from attar.internal.files import write_atomic
from attar.nets import Net, project_by, to_shape
from attar.nets.statistics import shared_signs
from attar.running import ProgressReport, Watch
from attar.training.feature_mixtures import FeatureFile, make_mixtures
from attar.training.feature_sums import SUMS, SumsSettings, SumTables, check_size, make_sums
from attar.uploads import CLIENT_NAME, MIXTURES, class_name_problems, is_client_name

SAVE_SECONDS = 10.0  # at least, between two savings of partial sums
SAVE_SHARE = 0.05  # of the time, at most, is spent on saving
WATCH_SECONDS = 0.2
CHUNK = 256  # images that are added to the sums at once
# Images of 224 pixels that go through the backbone at once: more take memory and save no time.
BATCH = {"cpu": 16, "cuda": 256, "mps": 64}


@dataclass(frozen=True)
class SumsPass:
    """The sums of one client's images.

    Attributes:
        stream: The images.
        backbone: Their features.
        settings: How they are summed.
        client: Its name.
    """

    stream: ImageStream
    backbone: Backbone
    settings: SumsSettings
    client: str

    def identity(self) -> str:
        """A hash over everything that decides the sums without their noise."""
        settings = self.settings
        decides = {
            "images": self.stream.identity,
            "fingerprint": self.backbone.fingerprint(
                settings.features, settings.clip, settings.bits
            ),
            "per_class": settings.per_class,
        }
        if settings.mixture:  # a pass without mixtures keeps no features to go on from
            decides["features"] = "kept"
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()

    def metadata(self) -> dict[str, object]:
        """What is written beside the upload and never sent; see ``write_metadata``."""
        return {"sums": asdict(self.settings), "images": self.identity()}


def sum_features(
    job: SumsPass,
    *,
    device: str = "cpu",
    precision: str = "fp32",
    partial: Path | None = None,
    watch: Watch | None = None,
    draws: torch.Generator | None = None,
    save_seconds: float | None = None,
) -> Upload:
    """Sum the features of a client's images.

    Args:
        job: Whose images, and how.
        device: Where the backbone runs.
        precision: Its arithmetic.
        partial: A file for partial sums, from which a pass that was broken off goes on. They have
            no noise; the file stays with the client, and whoever writes the upload deletes it.
        watch: Told about the progress.
        draws: Where noise comes from; the system's randomness unless given.
        save_seconds: Shortest time between two savings of partial sums; None for the usual one.

    Returns:
        An upload with the part "sums", and "mixtures" if the settings ask for it. With noise, the
        numbers of images are those of the noisy counts.

    Raises:
        DataError: Images cannot be read; the error names them, after all were tried. Or an upload
            cannot be written under these names, or noise would not cover one image more.
        SettingsError: The sums do not fit into a file.
        DivergedError: A feature is NaN or infinite.
        Stopped: Ctrl-C.
    """
    check_size(job.backbone, len(job.stream.classes), job.settings)
    if job.settings.epsilon is not None and job.stream.was_cut:
        raise DataError(
            f"{job.stream.name!r} has no test part of its own: a fifth of each class is cut off, "
            "and one image more may move another one into or out of it. Noise for one image does "
            "not cover that.",
            fix="put the images into train/ and test/ (of an .npz file: x_train and x_test)",
        )
    problems = class_name_problems(job.stream.classes)
    if not is_client_name(job.client):
        problems.append(f"the client's name must be {CLIENT_NAME}")
    if not len(job.stream):
        problems.append("there are no images")
    if problems:
        raise DataError(f"The sums of {job.client!r} could not be sent:", problems=problems)
    walk = _Walk(job, device, partial, SAVE_SECONDS if save_seconds is None else save_seconds)
    try:
        with torch.inference_mode(), warnings.catch_warnings(), arithmetic(precision, device):
            # Pillow's remarks on metadata and palettes; damaged files are reported.
            warnings.simplefilter("ignore")
            walk.go(watch)
    except KeyboardInterrupt:
        raise Stopped(
            f"Stopped by Ctrl-C at image {walk.done} of {len(job.stream)}.",
            fix="the same command goes on from the sums that were saved last",
        ) from None
    part = make_sums(walk.tables, job.backbone, job.stream.classes, job.settings, draws)
    parts = {SUMS: part}
    if walk.kept is not None:
        settings = job.settings
        parts[MIXTURES] = make_mixtures(
            walk.kept,
            np.asarray(job.stream.labels),
            job.backbone,
            part,
            settings.mixture,
            settings.mixture_covariance,
            settings.seed,
        )
    counts = part.state["counts"].sum(0).clamp(min=0).tolist()
    number = sum(counts)
    if number < 1:  # only by noise
        return Upload(job.client, parts, 1)
    return Upload(job.client, parts, number, tuple(counts))


class _Walk:
    """A pass under way.

    Attributes:
        tables: The sums so far.
        done: Images that are in them.
        kept: The features of these images; None where no mixture is fitted.
    """

    def __init__(
        self, job: SumsPass, device: str, partial: Path | None, save_seconds: float
    ) -> None:
        settings = job.settings
        backbone = job.backbone
        self._job = job
        self._device = torch.device(device)
        self._partial = partial
        self._save_seconds = save_seconds
        self._labels = torch.from_numpy(np.ascontiguousarray(job.stream.labels))
        self._net = cast(Net, fast_copy(backbone.extractor, self._device))
        # Sums need double precision: on the CPU where the device has none.
        self._sums_on = self._device if has_float64(device) else torch.device("cpu")
        self._centre = None if backbone.centre is None else backbone.centre.to(self._sums_on)
        self._signs = None
        if settings.features:
            self._signs = shared_signs(backbone.features, settings.features).to(self._sums_on)
        self.tables = SumTables(
            len(job.stream.classes),
            settings.features or backbone.features,
            per_class=settings.per_class,
            device=self._sums_on,
        )
        self.done = 0
        self.kept: FeatureFile | None = None
        if settings.mixture:
            place = None if partial is None else kept_features(partial)
            self.kept = FeatureFile(place, settings.features or backbone.features)
        self._load()

    def go(self, watch: Watch | None) -> None:
        """Sum all images that are not in the tables yet."""
        stream = self._job.stream
        side = max(self._job.backbone.preprocess.input_shape[1:])
        cpus = os.cpu_count() or 1
        cuda = self._device.type == "cuda"
        workers = min(16, cpus) if cuda else min(4, max(1, cpus // 2))
        size = batch_size(self._device.type, self._job.backbone)
        begun = self.done
        start = saved = watched = time.monotonic()
        pause = self._save_seconds
        unread: list[str] = []
        if watch is not None:
            watch(self._report(begun, start))
        phi: list[Tensor] = []
        halves: list[int] = []
        batches = stream.batches(size, self._shrink, shown=side, workers=workers, first=self.done)
        for batch in batches:
            unread += [image for image, _ in batch if isinstance(image, str)]
            images = [image for image, _ in batch if not isinstance(image, str)]
            if not unread:  # otherwise only look for others that cannot be read
                phi.append(self._phi(images))
            halves += [half_of(digest) for _, digest in batch]
            last = self.done + len(halves) == len(stream)
            complete = len(halves) >= CHUNK or last
            if complete:
                if not unread:
                    labels = self._labels[self.done : self.done + len(halves)]
                    self.tables.add(torch.cat(phi), labels, torch.tensor(halves))
                    if self.kept is not None:
                        self.kept.write(self.done, torch.cat(phi))
                self.done += len(halves)
                phi, halves = [], []
            now = time.monotonic()
            if watch is not None and (now - watched > WATCH_SECONDS or last):
                watch(self._report(begun, start, len(halves)))
                watched = now
            if self._partial is not None and complete and not unread and now - saved > pause:
                self._save(self._partial)
                saved = time.monotonic()
                pause = max(self._save_seconds, (saved - now) / SAVE_SHARE)
        if unread:
            raise _unread_error(stream.name, unread)
        if not bool(self.tables.sums.isfinite().all() & self.tables.squares.isfinite().all()):
            raise DivergedError(
                f"Features of {self._job.backbone.name} are NaN or infinite.",
                fix="use --precision fp32, or another backbone",
            )

    def _report(self, begun: int, start: float, beside: int = 0) -> ProgressReport:
        """The progress; ``beside``: images that are not in the tables yet."""
        whole = len(self._job.stream)
        done = self.done + beside
        seconds = time.monotonic() - start
        speed = (done - begun) / seconds if seconds else 0.0
        return ProgressReport(
            phase="images",
            step=done,
            steps=whole,
            done=done / whole,
            seconds_left=(whole - done) / speed if speed else None,
            metrics={"images a second": speed} if speed else {},
        )

    def _shrink(self, pixels: Pixels) -> Tensor:
        """An image as bytes (C, H, W); a large one as numbers in [0, 1] of the input's size."""
        shape = self._job.backbone.preprocess.input_shape
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        if image.numel() <= 4 * math.prod(shape):  # of 1 byte; numbers have 4
            return image
        with torch.inference_mode():
            return to_shape(image[None].float() / 255, shape)[0]

    def _phi(self, images: Sequence[Tensor]) -> Tensor:
        preprocess = self._job.backbone.preprocess
        if len({(image.shape, image.dtype) for image in images}) == 1:
            # Channels last from here on, which is how decoded pixels lie in memory.
            last = torch.stack([image.permute(1, 2, 0) for image in images]).to(self._device)
            inputs = preprocess(_to_floats(last.permute(0, 3, 1, 2)))
        else:
            each = [
                to_shape(_to_floats(image.to(self._device)[None]), preprocess.input_shape)
                for image in images
            ]
            inputs = preprocess(torch.cat(each))
        features = self._net.features(inputs.contiguous(memory_format=torch.channels_last))
        clip = self._job.settings.clip
        return project_by(features.to(self._sums_on), self._centre, self._signs, clip)

    def _save(self, path: Path) -> None:
        about = {"identity": self._job.identity(), "done": str(self.done)}
        write_atomic(path, save(self.tables.state(), metadata=about))

    def _load(self) -> None:
        """Take up partial sums of the same images and settings, if there are any."""
        if self._partial is None or not self._partial.is_file():
            return
        try:
            with safe_open(self._partial, framework="pt") as file:
                about = file.metadata() or {}
                if about.get("identity") != self._job.identity():
                    return
                done = int(about["done"])
                if self.kept is not None and not self.kept.holds(done):
                    return
                self.tables.load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
                self.done = done
        except (OSError, ValueError, KeyError, SafetensorError):
            raise DataError(
                f"The partial sums in {self._partial} are damaged.", fix="delete this file"
            ) from None


def _to_floats(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def kept_features(partial: Path) -> Path:
    """Return where features lie for mixtures, beside the partial sums; never sent."""
    return partial.with_suffix(".features")


def batch_size(device: str, backbone: Backbone) -> int:
    """Return how many images go through a backbone at once on a kind of device."""
    _, height, width = backbone.preprocess.input_shape
    usual = BATCH.get(device, BATCH["cuda"])
    return max(1, min(4 * usual, usual * 224**2 // (height * width)))


def half_of(digest: bytes) -> int:
    """Return the half, 0 or 1, of an image whose bytes have this sha256."""
    return digest[0] & 1


def _unread_error(source: str, problems: list[str]) -> DataError:
    more = len(problems) - NAMED
    shown = problems[:NAMED] + ([f"and {more} more"] if more > 0 else [])
    return DataError(
        f"{source!r} holds images that cannot be read:",
        problems=shown,
        fix="replace or remove these files",
    )
