"""Who takes part in a fusion, and under which class names.

Exclusions, signatures and class maps are settled before a method sees the uploads. Files are
never changed: an upload whose classes are renamed is a new ``Upload`` over the same weights, and
the record of the run names each file as it was received, the names that were changed, and who
was left out.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attar.core import Part, Upload
from attar.errors import NeedsError, SettingsError, TrustError
from attar.internal.lookalikes import find_lookalikes
from attar.internal.strict_json import strict_json
from attar.uploads.bundle import Received
from attar.uploads.keys import TrustedKeys
from attar.uploads.manifest import class_name_problems
from attar.uploads.signing import Signer, check_signers, find_signers

MAX_MAP = 2**20  # bytes of a class map file
MAX_INSPECTED = 2**28  # bytes of what `attar inspect --json` printed


@dataclass(frozen=True)
class Admission:
    """How the uploads of a fusion were admitted; part of its record.

    Attributes:
        class_map: a client's class name -> the task's.
        excluded: clients whose uploads were left out by request.
        signers: what is known about the sender of each upload.
        files: client -> size in bytes and sha256 of the file as it was received.
    """

    class_map: Mapping[str, str] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    signers: Mapping[str, Signer] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def describe_signers(self) -> dict[str, Any]:
        """The signers as JSON, by client."""
        return {client: signer.as_json() for client, signer in self.signers.items()}


def admit(
    received: Sequence[Received],
    *,
    exclude: Sequence[str] = (),
    class_map: Mapping[str, str] | None = None,
    trusted: TrustedKeys | None = None,
    require_signatures: bool = False,
) -> tuple[list[Upload], Admission]:
    """Choose the uploads that take part, check their signatures and rename their classes.

    Args:
        received: uploads of different clients.
        exclude: clients to leave out; their signatures are not checked.
        class_map: a client's class name -> the task's; None changes no name.
        trusted: public keys of the clients; None checks signatures without a list of keys.
        require_signatures: refuse unsigned uploads. Needs ``trusted``.

    Returns:
        The uploads that take part, and the admission for the record.

    Raises:
        NeedsError: if there is no upload, none remains, or an excluded client sent none.
        TrustError: with every upload whose signature is bad or missing.
        SettingsError: if the class map cannot be applied.
    """
    if not received:
        raise NeedsError("No uploads given.", fix="name the files, for example uploads/*.attar")
    clients = [one.upload.client for one in received]
    if unknown := [name for name in exclude if name not in clients]:
        raise NeedsError(
            f"There is no upload of {', '.join(unknown)} to exclude.",
            fix=f"these sent one: {', '.join(clients)}",
        )
    chosen = [one for one in received if one.upload.client not in exclude]
    if not chosen:
        raise NeedsError("--exclude removes all clients.", fix="leave at least one of them")
    signers = find_signers(chosen, trusted, require=require_signatures)
    check_signers(signers, trusted, require=require_signatures)
    names = dict(class_map or {})
    admission = Admission(
        class_map=names,
        excluded=tuple(dict.fromkeys(exclude)),
        signers=signers,
        files={one.upload.client: (one.bytes, one.sha256) for one in chosen},
    )
    return rename_classes([one.upload for one in chosen], names), admission


def check_inspected(received: Sequence[Received], path: Path) -> None:
    """Refuse uploads that are not those that ``attar inspect --json`` has shown.

    Args:
        received: the uploads.
        path: what the command printed.

    Raises:
        TrustError: with every file that has changed, and every one that was not shown.
        SettingsError: if ``path`` cannot be read.
    """
    fix = "write it with: attar inspect FILES --json > seen.json"
    try:
        rows = strict_json(path.read_bytes()[:MAX_INSPECTED])
        seen = {row["client"]: row["sha256"] for row in rows}
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", fix=fix) from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise SettingsError(f"{path} is not what `attar inspect --json` prints.", fix=fix) from None
    problems = []
    for one in received:
        client = one.upload.client
        if client not in seen:
            problems.append(f"{one.path}: {path} does not list client {client}")
        elif seen[client] != one.sha256:
            problems.append(f"{one.path}: not the file of {client} that was inspected")
    if problems:
        raise TrustError(
            "These files are not those that were inspected:",
            problems=problems,
            fix="inspect them again, and ask their senders why they changed",
        )


def rename_classes(uploads: Sequence[Upload], names: Mapping[str, str]) -> list[Upload]:
    """Give the classes of uploads other names; the weights stay the same tensors.

    Args:
        uploads: what the clients sent.
        names: old name -> new name. Each name changes at most once, so two may be exchanged.

    Returns:
        New uploads in the same order.

    Raises:
        SettingsError: if no client has one of the old names, a new one is no class name, or two
            classes of a part would have one name.
    """
    known = {name for upload in uploads for part in upload.parts.values() for name in part.classes}
    unknown = [f"no client has a class {name!r}" for name in names if name not in known]
    problems = list(unknown)
    for old, new in names.items():
        problems += [f"{old!r} = {new!r}: {reason}" for reason in class_name_problems([new])]
    for upload in uploads:
        for role, part in upload.parts.items():
            problems += _collisions(f"{upload.client}: the {role}", part, names)
    if problems:
        fix = "map each client's name to the task's"
        if unknown:
            more = " …" if len(known) > 20 else ""
            fix = f"{fix}; their classes are {', '.join(sorted(known)[:20])}{more}"
        raise SettingsError("The class map cannot be applied:", problems=problems, fix=fix)
    renamed = []
    for upload in uploads:
        parts = {role: _rename_part(part, names) for role, part in upload.parts.items()}
        renamed.append(replace(upload, parts=parts))
    return renamed


def _collisions(where: str, part: Part, names: Mapping[str, str]) -> list[str]:
    """Classes of a part that would look the same under their new names."""
    old_of: dict[str, list[str]] = {}
    for name in part.classes:
        old_of.setdefault(names.get(name, name), []).append(name)
    for name, other in find_lookalikes(list(old_of)):
        old_of[name] += old_of.pop(other)
    return [
        f"{where} distinguishes {' and '.join(old)}, which would both be {new!r}"
        for new, old in old_of.items()
        if len(old) > 1
    ]


def _rename_part(part: Part, names: Mapping[str, str]) -> Part:
    return replace(part, classes=tuple(names.get(name, name) for name in part.classes))


def parse_class_map(words: Iterable[str]) -> dict[str, str]:
    """Read a class map from the command line.

    Args:
        words: ``kitty=cat`` pairs, or files: ``.toml`` with lines ``kitty = "cat"``, or ``.json``
            with one object.

    Returns:
        Old name -> new name.

    Raises:
        SettingsError: with every word that cannot be read and every name that is mapped twice.
    """
    class_map: dict[str, str] = {}
    problems = []
    for word in words:
        if word.endswith((".toml", ".json")):
            pairs, reasons = _read_pairs(Path(word))
            problems += reasons
        else:
            old, _, new = (side.strip() for side in word.partition("="))
            pairs = {old: new} if old and new else {}
            if not pairs:
                problems.append(f"{word!r} is neither old=new nor a .toml or .json file")
        for old, new in pairs.items():
            if class_map.get(old, new) != new:
                problems.append(f"{old!r} is mapped twice, to {class_map[old]!r} and {new!r}")
        class_map |= pairs
    if problems:
        raise SettingsError(
            "The class map cannot be read:",
            problems=problems,
            fix='for example kitty=cat, or a line kitty = "cat"',
        )
    return class_map


def _read_pairs(path: Path) -> tuple[dict[str, str], list[str]]:
    """The pairs in a file, and why it cannot be read: one of them is empty."""
    try:
        if path.stat().st_size > MAX_MAP:
            return {}, [f"{path} is too large for a class map"]
        text = path.read_text()
        pairs = tomllib.loads(text) if path.suffix == ".toml" else strict_json(text)
    except OSError as error:
        return {}, [f"{path}: {error.strerror}"]
    except (ValueError, RecursionError) as error:
        return {}, [f"{path}: {str(error)[:120]}"]
    if not isinstance(pairs, dict) or not all(isinstance(new, str) for new in pairs.values()):
        return {}, [f"{path}: every entry must map one name to one name"]
    return pairs, []
