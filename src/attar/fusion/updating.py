"""Clients that join or leave a model that was made from sums of features.

A model folder keeps the sum of its clients' sums, as integers. A client that joins is added, one
that leaves is taken off, and the head is solved for again: the model has the bits of a fusion of
the clients that are in it now, over the same classes, and the new folder holds the sums of these
alone. To take a client off its own file is needed, since the folder holds nothing but the sum; the
file is checked by its hash against those that were added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attar.blocks.heads import add_clients
from attar.core import AnyMethod, Part, Result, Server, Task, Upload
from attar.errors import RunError
from attar.fusion.describe import describe_run
from attar.fusion.execute import start_method
from attar.fusion.run import Fused, carry_out
from attar.fusion.server import server_for
from attar.internal.strict_json import strict_json
from attar.methods import find_method
from attar.models import largest_shape
from attar.running import RunOptions
from attar.settings import configure
from attar.uploads import Admission, Received, receive, rename_classes

SUMS = "sums"


@dataclass(frozen=True)
class KeptGroup:
    """Sums in a model folder.

    Attributes:
        part: of all clients together.
        clients: whose sums are in it, as the record has them.
    """

    part: Part
    clients: tuple[Mapping[str, Any], ...]

    @property
    def fingerprint(self) -> str:
        """Of the backbone."""
        return str(dict(self.part.spec.options)["fingerprint"])


@dataclass(frozen=True)
class FusedFolder:
    """A model folder that was made from sums.

    Attributes:
        path: of the folder.
        record: of its run.
        groups: its sums, one of each backbone.
    """

    path: Path
    record: Mapping[str, Any]
    groups: tuple[KeptGroup, ...]

    @property
    def clients(self) -> list[Mapping[str, Any]]:
        """All clients whose sums are in it."""
        return [client for group in self.groups for client in group.clients]


def read_folder(folder: str | Path) -> FusedFolder:
    """Read what a model folder keeps of its clients.

    Raises:
        RunError: if it keeps no sums, or they are not those that it was written with.
    """
    path = Path(folder)
    try:
        config = strict_json((path / "config.json").read_bytes())
        record = strict_json((path / "record.json").read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} is not the folder of a finished fusion ({error}).",
            fix="name the --out folder of `attar fuse`",
        ) from None
    listed = config.get("sums") if isinstance(config, dict) else None
    if not listed:
        raise RunError(
            f"{path} keeps no sums of features: no client can join or leave.",
            fix="only gaussian-head and analytic keep them; fuse all files again",
        )
    assert isinstance(record, dict), "written together with config.json"
    return FusedFolder(path, record, tuple(_read_group(path, entry) for entry in listed))


def _read_group(path: Path, entry: Mapping[str, Any]) -> KeptGroup:
    (received,) = receive([path / entry["file"]])
    if received.sha256 != entry["sha256"]:
        raise RunError(
            f"{received.path} is not the file that {path} was written with.",
            fix="restore it, or fuse all files again",
        )
    return KeptGroup(received.upload.parts[SUMS], tuple(entry["clients"]))


def find_files(folder: FusedFolder, words: Sequence[str], among: Sequence[Path]) -> list[Received]:
    """The files of clients that are to leave.

    Args:
        folder: which they are to leave.
        words: each a file, the name of a client, or the beginning of a file's hash.
        among: files to look through for names and hashes.

    Raises:
        RunError: with every word for which there is no file, and why one is needed.
    """
    paths = [Path(word) for word in words if Path(word).is_file()]
    others = [word for word in words if not Path(word).is_file()]
    problems = []
    known = receive(among) if others else []
    for word in others:
        named = [one for one in folder.clients if _is_meant(one, word)]
        if len(named) != 1:
            how = "no client" if not named else f"{len(named)} clients"
            problems.append(f"{word}: there is no such file, and {how} in {folder.path} fits")
            continue
        (client,) = named
        files = [one.path for one in known if one.sha256 == client["sha256"]]
        if not files:
            problems.append(
                f"{word}: {folder.path} holds the sum of all clients, not that of "
                f"{client['client']} alone, so its file {client['sha256'][:12]}… is needed"
            )
        paths += files[:1]
    if problems:
        raise RunError(
            "These clients cannot be removed:",
            problems=problems,
            fix="name the file, or where files are kept with --files",
        )
    return receive(paths) if paths else []


def _is_meant(client: Mapping[str, Any], word: str) -> bool:
    is_hash = len(word) >= 8 and str(client["sha256"]).startswith(word.lower())
    return client["client"] == word or is_hash


def update(
    folder: str | Path,
    *,
    add: Sequence[Upload] = (),
    remove: Sequence[Received] = (),
    admission: Admission | None = None,
    backbones: Mapping[str, Part | None] | None = None,
    device: str = "cpu",
    options: RunOptions | None = None,
) -> Fused:
    """Make the model of a folder again, with some clients more and some fewer.

    Args:
        folder: of a finished fusion, which stays as it is.
        add: sums of clients that join.
        remove: files of clients that leave.
        admission: how the uploads of those who join came in.
        backbones: of the server, as in ``Server``.
        device: where the method computes.
        options: how the run is driven, and the new folder.

    Raises:
        RunError: if somebody joins twice, or leaves who is not there, with every reason.
    """
    old = read_folder(folder)
    admission = admission or Admission()
    _check(old, add, remove)
    method = _method_of(old)
    names = old.record["class_map"]
    add = [_rename(upload, names) for upload in add]
    remove = [replace(one, upload=_rename(one.upload, names)) for one in remove]
    uploads = [*_shrink(old, remove), *add]
    if not uploads:
        raise RunError(f"No client is left in {old.path}.", fix="delete the folder")
    server = _server_of(old, uploads, backbones or {}, device)
    gone = {one.upload.client for one in remove}
    stay = [client for client in old.record["clients"] if client["client"] not in gone]
    description = describe_run(add, method, server, admission)
    joined = description["clients"]
    description |= {
        "clients": [*stay, *joined],
        "class_map": names,
        "excluded": old.record["excluded"],
    }
    step = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "added": [_name_and_hash(client) for client in joined],
        "removed": [{"client": one.upload.client, "sha256": one.sha256} for one in remove],
    }
    updates = [*old.record.get("updates", ()), step]
    kept = {name: one for name, one in old.record["signatures"].items() if name not in gone}

    def examine(result: Result) -> Mapping[str, Any]:
        return {
            "signatures": {**kept, **admission.describe_signers()},
            "robustness": None,
            "updates": updates,
        }

    run = start_method(method, uploads, server)
    return carry_out(run, server, options or RunOptions(), description, examine)


def _check(old: FusedFolder, add: Sequence[Upload], remove: Sequence[Received]) -> None:
    inside = {client["client"]: client for client in old.clients}
    hashes = {client["sha256"]: name for name, client in inside.items()}
    problems = []
    for client in old.record["clients"]:
        if SUMS not in client["parts"]:
            problems.append(f"{client['client']} sent a classifier, whose file is not kept here")
    for one in remove:
        if one.sha256 not in hashes:
            other = " (another file of it is)" if one.upload.client in inside else ""
            problems.append(
                f"{one.path}: {one.upload.client} with hash {one.sha256[:12]}… is not in it{other}"
            )
    leaving = {one.upload.client for one in remove}
    for upload in add:
        if SUMS not in upload.parts:
            problems.append(f"{upload.client} sent no sums")
        elif upload.client in inside and upload.client not in leaving:
            problems.append(f"{upload.client} is in it already: remove its old file, too")
    if problems:
        names = ", ".join(sorted(inside)[:20])
        raise RunError(
            f"{old.path} cannot be updated:",
            problems=problems,
            fix=f"its clients are {names}; a fusion of all files is always possible",
        )


def _rename(upload: Upload, names: Mapping[str, str]) -> Upload:
    """The upload with the class names that the fusion gave its clients."""
    known = {name for part in upload.parts.values() for name in part.classes}
    (renamed,) = rename_classes([upload], {old: new for old, new in names.items() if old in known})
    return renamed


def _shrink(old: FusedFolder, remove: Sequence[Received]) -> list[Upload]:
    """What the folder keeps, without those who leave, as an upload of each backbone."""
    uploads = []
    for number, group in enumerate(old.groups):
        leaving = {
            one.sha256: one
            for one in remove
            if one.sha256 in {client["sha256"] for client in group.clients}
        }
        stay = [client for client in group.clients if client["sha256"] not in leaving]
        if not stay:
            continue
        totals = add_clients({"sum": group.part}, group.part.classes)
        for one in leaving.values():
            totals.remove(one.upload.parts[SUMS], one.upload.client)
        totals.epsilon = max(float(client["epsilon"]) for client in stay)
        totals.delta = max(float(client["delta"]) for client in stay)
        part = totals.as_part(group.part.spec, group.part.preprocess)
        examples = sum(int(client["num_examples"]) for client in stay)
        uploads.append(Upload(f"the sum of {old.path.name} ({number + 1})", {SUMS: part}, examples))
    return uploads


def _method_of(old: FusedFolder) -> AnyMethod:
    name = old.record["method"]
    return configure(find_method(name), old.record["settings"], of=f"method {name}")


def _server_of(
    old: FusedFolder, uploads: Sequence[Upload], backbones: Mapping[str, Part | None], device: str
) -> Server:
    """The server of the old run; classes that only newcomers know come last."""
    parts = tuple(upload.parts[SUMS] for upload in uploads)
    known = tuple(old.record["task"]["classes"])
    names = dict.fromkeys((*known, *(name for part in parts for name in part.classes)))
    task = Task(largest_shape(parts), tuple(names))
    server = server_for(uploads, task=task, seed=old.record["seed"], device=device)
    return replace(server, backbones=backbones)


def _name_and_hash(client: Mapping[str, Any]) -> dict[str, Any]:
    return {"client": client["client"], "sha256": client["sha256"]}
