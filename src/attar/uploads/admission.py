"""Who takes part in a fusion, under which class names: exclusions, signatures and synonyms,
decided before a method sees anything.

Files are never touched: an upload whose classes are renamed is a new ``Upload`` over the same
weights, and the record of the run names the file as it was received, the names that were changed
and everybody who was left out.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attar.core import Part, Upload
from attar.errors import NeedsError, SettingsError
from attar.internal.strict_json import strict_json
from attar.uploads.bundle import Received
from attar.uploads.manifest import class_name_problems, look
from attar.uploads.signing import Signer, TrustedKeys, refuse, signers_of

MAX_MAP = 2**20  # bytes of a file of synonyms


@dataclass(frozen=True)
class Admission:
    """How the uploads of a fusion came in; part of its record."""

    class_map: Mapping[str, str] = field(
        default_factory=dict
    )  # what a client calls it -> what the task calls it
    excluded: tuple[str, ...] = ()
    signers: Mapping[str, Signer] = field(default_factory=dict)
    files: Mapping[str, tuple[int, str]] = field(
        default_factory=dict
    )  # client -> bytes and sha256 of the file it sent

    def describe_signers(self) -> dict[str, Any]:
        return {client: signer.as_json() for client, signer in self.signers.items()}


def admit(
    received: Sequence[Received],
    *,
    exclude: Sequence[str] = (),
    class_map: Mapping[str, str] | None = None,
    trusted: TrustedKeys | None = None,
    require_signatures: bool = False,
) -> tuple[list[Upload], Admission]:
    """The uploads that take part, and how that was decided. Who is excluded need not have signed."""
    if not received:
        raise NeedsError(
            "No uploads were given.", fix="name the files, for example uploads/*.attar"
        )
    there = [one.upload.client for one in received]
    if strangers := [name for name in exclude if name not in there]:
        raise NeedsError(
            f"There is no upload of {', '.join(strangers)} to exclude.",
            fix=f"these sent one: {', '.join(there)}",
        )
    chosen = [one for one in received if one.upload.client not in exclude]
    if not chosen:
        raise NeedsError("Everybody is excluded: there is nothing left to fuse.")
    signers = signers_of(chosen, trusted, require=require_signatures)
    refuse(signers, trusted, require=require_signatures)
    names = dict(class_map or {})
    uploads = rename_classes([one.upload for one in chosen], names)
    files = {one.upload.client: (one.bytes, one.sha256) for one in chosen}
    return uploads, Admission(names, tuple(dict.fromkeys(exclude)), signers, files)


def rename_classes(uploads: Sequence[Upload], names: Mapping[str, str]) -> list[Upload]:
    """The uploads with other class names; every name changes at most once, so two names may
    change places.
    """
    known = {name for upload in uploads for part in upload.parts.values() for name in part.classes}
    unknown = [f"no client has a class {name!r}" for name in names if name not in known]
    problems = unknown + [
        f"{old!r} = {new!r}: {reason}"
        for old, new in names.items()
        for reason in class_name_problems([new])
    ]
    for upload in uploads:
        for role, part in upload.parts.items():
            sources: dict[str, list[str]] = {}
            for name in part.classes:
                sources.setdefault(look(names.get(name, name)), []).append(name)
            problems += [
                f"{upload.client}: its {role} tells {' and '.join(old)} apart, which would both be {new!r}"
                for new, old in sources.items()
                if len(old) > 1
            ]
    if problems:
        hint = (
            f"; their classes are {', '.join(sorted(known)[:20])}{' …' if len(known) > 20 else ''}"
            if unknown
            else ""
        )
        raise SettingsError(
            "The class map cannot be applied:",
            problems=problems,
            fix=f"map each client's name to the task's{hint}",
        )
    return [
        replace(upload, parts={role: _renamed(part, names) for role, part in upload.parts.items()})
        for upload in uploads
    ]


def _renamed(part: Part, names: Mapping[str, str]) -> Part:
    return replace(part, classes=tuple(names.get(name, name) for name in part.classes))


def class_map_called(words: Iterable[str]) -> dict[str, str]:
    """``kitty=cat`` pairs, or files: TOML lines ``kitty = "cat"`` or a JSON object; all problems
    at once.
    """
    found: dict[str, str] = {}
    problems = []
    for word in words:
        if word.endswith((".toml", ".json")):
            given, wrong = _file_pairs(Path(word))
            problems += wrong
        else:
            old, equals, new = word.partition("=")
            given = {old.strip(): new.strip()} if equals and old.strip() and new.strip() else {}
            problems += [] if given else [f"{word!r} is neither old=new nor a .toml or .json file"]
        problems += [
            f"{old!r} is mapped twice, to {found[old]!r} and {new!r}"
            for old, new in given.items()
            if found.get(old, new) != new
        ]
        found |= given
    if problems:
        raise SettingsError(
            "The class map cannot be read:",
            problems=problems,
            fix='for example kitty=cat, or a line kitty = "cat"',
        )
    return found


def _file_pairs(path: Path) -> tuple[dict[str, str], list[str]]:
    try:
        if path.stat().st_size > MAX_MAP:
            return {}, [f"{path} is too large for a class map"]
        text = path.read_text()
        given = tomllib.loads(text) if path.suffix == ".toml" else strict_json(text)
    except OSError as error:
        return {}, [f"{path}: {error.strerror}"]
    except (ValueError, RecursionError) as error:
        return {}, [f"{path}: {str(error)[:120]}"]
    if not isinstance(given, dict) or not all(isinstance(new, str) for new in given.values()):
        return {}, [f"{path}: every entry must map one name to one name"]
    return given, []
