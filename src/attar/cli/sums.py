"""``attar train --backbone``: write the sums of a frozen backbone's features."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attar.backbones import load_backbone
from attar.cli.arguments import load_streams, upload_paths
from attar.cli.output import console, tables
from attar.core import ModelSpec, Upload
from attar.errors import RunError
from attar.internal.text import list_some
from attar.privacy import describe_upload, list_few_per_gaussian, list_small_classes
from attar.training import (
    SUMS,
    SumsPass,
    SumsSettings,
    kept_features,
    mixtures_spec,
    read_metadata,
    sum_features,
    sums_spec,
    write_metadata,
)
from attar.uploads import MIXTURES, load_private, read_bundle, receive, write_bundle
from attar.uploads import sign as write_signature


def sum_clients(
    name: str,
    settings: SumsSettings,
    *,
    data: str | None,
    partition: Path | None,
    client: str,
    out: Path,
    device: str,
    precision: str,
    key: Path | None,
    json: bool,
) -> None:
    """Write one upload with sums for each client that has none yet, and print what was written.

    Args:
        name: Of the backbone.
        settings: How its features are summed.
        data: A source whose images belong to one client.
        partition: A partition file, in place of ``data``.
        client: Numbers in the partition or "all"; with ``data`` the client's name.
        out: An upload file, or a folder.
        device: Where the backbone runs.
        precision: Its arithmetic.
        key: A private key that signs what is written.
        json: Whether to print for machines, and no progress.
    """
    if key is not None:
        load_private(key)  # a key that cannot sign is an error before anything is computed
    backbone = load_backbone(name)
    streams = load_streams(data, partition, client, quiet=json)
    paths = upload_paths(out, list(streams))
    jobs = {owner: SumsPass(stream, backbone, settings, owner) for owner, stream in streams.items()}
    _check_existing({paths[owner]: job for owner, job in jobs.items() if paths[owner].exists()})
    new = [owner for owner in jobs if not paths[owner].exists()]
    for owner in new:
        path = paths[owner]
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.stem}.sums")
        with console.progress(f"{backbone.name}, {owner}", quiet=json) as watch:
            upload = sum_features(
                jobs[owner], device=device, precision=precision, partial=partial, watch=watch
            )
        write_bundle(path, upload)
        write_metadata(path, jobs[owner].metadata())
        partial.unlink(missing_ok=True)
        kept_features(partial).unlink(missing_ok=True)
    received = receive(paths.values())
    if key is not None:
        for file in received:
            write_signature(file, key)
    uploads = {file.path: file.upload for file in received}
    record = [
        {
            **describe_upload(upload, path.stat().st_size),
            "file": str(path),
            "summed": upload.client in new,
        }
        for path, upload in uploads.items()
    ]
    console.emit(record, lambda: _show(uploads, new, out), json=json)


def _check_existing(jobs: Mapping[Path, SumsPass]) -> None:
    """Refuse uploads that exist and are of other settings or images.

    Raises:
        RunError: Some are; the error says in what each differs.
    """
    problems = []
    for path, job in jobs.items():
        upload = read_bundle(path)
        part = upload.parts.get(SUMS)
        metadata = read_metadata(path)
        if part is None:
            problems.append(f"{path}: holds no sums")
        elif part.spec != sums_spec(job.backbone, job.settings):
            problems.append(f"{path}: of another backbone or other settings")
        elif _other_mixtures(upload, part.spec, job.settings, metadata):
            problems.append(f"{path}: with other mixtures, or another seed of theirs")
        elif metadata is not None and metadata.get("images") != job.metadata()["images"]:
            problems.append(f"{path}: of other images")
    if problems:
        raise RunError(
            "Existing uploads are not those that this command would make:",
            problems=problems,
            fix="delete them, or name another --out",
        )


def _other_mixtures(
    upload: Upload, sums: ModelSpec, settings: SumsSettings, metadata: Mapping[str, Any] | None
) -> bool:
    found = upload.parts.get(MIXTURES)
    if found is None or not settings.mixture:
        return (found is not None) != bool(settings.mixture)
    if found.spec != mixtures_spec(sums, settings.mixture, settings.mixture_covariance):
        return True
    return metadata is not None and metadata.get("sums", {}).get("seed", 0) != settings.seed


def _show(uploads: Mapping[Path, Upload], new: list[str], out: Path) -> None:
    tables.show_trained(uploads, {}, {})
    for upload in uploads.values():
        if few := list_few_per_gaussian(upload):
            console.say(
                f"{upload.client}: Gaussians of {list_some(few)} stand for so few images that "
                "their means nearly show single ones; a smaller --mixture helps"
            )
        if few := list_small_classes(upload.parts[SUMS]):
            console.say(
                f"{upload.client}: so few images of {list_some(few)} that their sums nearly show "
                "single ones (`attar inspect` says what that means; --epsilon adds noise)"
            )
    names = [upload.client for upload in uploads.values()]
    if kept := [name for name in names if name not in new]:
        console.say(f"Existing uploads are kept ({list_some(kept)}); delete them to sum anew.")
    if new:
        console.say(f"Written to {next(iter(uploads)) if len(uploads) == 1 else out}")
    if "client" in new:
        console.say(
            "Upload is named 'client' (default); names must be unique at the server. "
            "Use --client NAME."
        )
