"""A model folder on the Hugging Face hub.

What is sent is made for it: the weights, a config with nothing but the model, and a card that is
written anew. Everything else in the folder stays, and is named with the reason: sums with which
clients could be taken apart, checkpoints, records with paths of this machine and names of clients.
The texts that are sent are searched for paths, tokens and the user's folders once more.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from attar.core import Deployable, Part
from attar.errors import RunError, SettingsError
from attar.internal.extras import import_extra
from attar.internal.text import list_some
from attar.models import (
    HubName,
    hub_card,
    load_description,
    mixture_tensors,
    mixture_to_json,
    open_hub,
    parse_hub_name,
    telling,
)
from attar.uploads import part_to_json

TOKEN = "HF_TOKEN"
MOST_PICTURE_BYTES = 20 * 2**20
# Files of a run that are never sent, and why.
STAYS = (
    (r"sums.*\.attar", "sums of the clients' features: with them clients can be taken apart"),
    (r".*\.attar(\.sig)?", "an upload of a client"),
    (r"checkpoint.*|.*\.shard|.*\.training", "the state of an unfinished run"),
    (r"(.*\.)?command\.toml", "the command, with paths of this machine"),
    (r"run\.json|record\.json", "names of clients and paths of this machine"),
    (r"arrays\.safetensors", "synthetic images and tables of the method"),
    (r".*\.(png|svg)", "a picture; --picture NAME sends it, look at it first"),
    (r".*\.(key|pem|pub)", "a key"),
)
_PATHS = re.compile(
    r"(?<![\w:/.])(?:~|/(?:home|Users|root|mnt|media|data|tmp|var|srv|opt|scratch|private|work))"
    r"/[^\s\"'`)|]*|(?<!\w)[A-Za-z]:\\\\?[^\s\"'`)|]+"
)
_TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20}|gh[a-z]_[A-Za-z0-9]{20}|(?:sk|glpat)-[\w-]{20})|-----BEGIN [A-Z ]+"
)


@dataclass(frozen=True)
class Publication:
    """A model that is ready to be sent.

    Attributes:
        repository: ``OWNER/NAME``.
        files: what is sent, by name: contents, or the file that has them.
        made: what each of these files is, in a few words.
        stays: what is in the folder and not sent, with the reason.
        notes: what the owner should know before it is sent.
    """

    repository: str
    files: Mapping[str, bytes | Path]
    made: Mapping[str, str]
    stays: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]

    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""
        return {
            name: len(content) if isinstance(content, bytes) else content.stat().st_size
            for name, content in self.files.items()
        }


@dataclass(frozen=True)
class Published:
    """What became of a publication.

    Attributes:
        url: of the model's page.
        commit: of the files.
    """

    url: str
    commit: str


def prepare(
    folder: Path,
    repository: str,
    *,
    license: str | None = None,
    datasets: Sequence[str] = (),
    clients: bool = False,
    pictures: Sequence[str] = (),
    card: Path | None = None,
    revision: str | None = None,
) -> Publication:
    """Make what will be sent; nothing leaves this machine.

    Args:
        folder: a model folder.
        repository: ``OWNER/NAME``.
        license: an identifier that the hub knows, such as ``apache-2.0``.
        datasets: names of data sets on the hub, for the card.
        clients: name the clients and the number of their images in the card.
        pictures: names of PNG or SVG files in the folder to send along.
        card: a text of one's own in place of the card.
        revision: the branch, for the card.

    Raises:
        SettingsError: if a name is not one of the hub, or a picture is not in the folder.
        RunError: if the folder holds no finished model, or a text would tell a path or a token.
    """
    name = parse_hub_name(repository)
    if name is None or name.revision is not None:
        raise SettingsError(
            f"{repository!r} is no name on the hub.",
            fix="write OWNER/NAME; --revision names a branch",
        )
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,40}", license):
        raise SettingsError(
            f"--license {license}: this is no identifier that the hub knows.",
            fix="for example --license apache-2.0, cc-by-4.0, mit or other",
        )
    model = load_description(folder)
    record = _read_record(folder)
    title = name.repository.partition("/")[2]
    text = hub_card(
        title,
        model,
        record,
        where=f"hf:{HubName(name.repository, revision)}",
        license=license,
        datasets=datasets,
        clients=clients,
        pictures=pictures,
    )
    made = {"README.md": "the card, written anew: the folder's own names clients"}
    if card is not None:
        text = card.read_text()
        made["README.md"] = f"{card}, as it is"
    made |= {"model.safetensors": "the weights", "config.json": "the net and its classes"}
    files: dict[str, bytes | Path] = {
        "README.md": text.encode(),
        "config.json": _config(folder, model),
        "model.safetensors": _weights(folder, model),
    }
    for picture in pictures:
        files[picture] = _picture(folder, picture)
        made[picture] = "a picture"
    _check_texts(folder, files)
    return Publication(
        name.repository, files, made, _list_stays(folder, files), _notes(model, clients, card)
    )


def publish(
    publication: Publication,
    *,
    private: bool = False,
    revision: str | None = None,
    message: str = "Upload a model of attar",
) -> Published:
    """Send a model in one commit; the repository and the branch are made where they are missing.

    Args:
        publication: from ``prepare``.
        private: make the repository private; one that is there must be private already.
        revision: a branch; None for the main one.
        message: of the commit.

    Raises:
        SettingsError: if huggingface_hub or the token is missing.
        RunError: if the hub refuses it or cannot be reached.
    """
    token = os.environ.get(TOKEN)
    api = open_hub(token)
    if not token:
        raise SettingsError(
            "Publishing needs a token of the Hugging Face hub.",
            fix=f"export {TOKEN}=... with a token that may write (hub: Settings, Access Tokens)",
        )
    hub = import_extra("huggingface_hub", "hub")
    import_extra("huggingface_hub.utils", "hub").disable_progress_bars()
    name = HubName(publication.repository, revision)
    with telling(name):
        api.create_repo(publication.repository, private=private, exist_ok=True)
        there = api.model_info(publication.repository)
        if private and not there.private:
            raise RunError(
                f"{publication.repository} is there already, and public.",
                fix="make it private on its page, name another, or leave --private out",
            )
        if revision is not None:
            api.create_branch(publication.repository, branch=revision, exist_ok=True)
        operations = [
            hub.CommitOperationAdd(path_in_repo=file, path_or_fileobj=content)
            for file, content in publication.files.items()
        ]
        done = api.create_commit(
            publication.repository, operations, commit_message=message, revision=revision
        )
    return Published(f"{api.endpoint}/{publication.repository}", done.oid)


def _read_record(folder: Path) -> dict[str, Any] | None:
    """The record of the run in a folder; None where a model was saved without one.

    Raises:
        RunError: if the model has learned nothing, or the record is damaged.
    """
    path = folder / "record.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        learned = record.get("learned", True)
    except (OSError, ValueError, AttributeError) as error:
        raise RunError(f"{path} cannot be read ({error}).", fix="fuse again") from None
    if not learned:
        raise RunError(
            f"The model in {folder} has not learned anything yet.",
            fix="finish the run with --resume first",
        )
    return dict(record)


def _config(folder: Path, model: Deployable) -> bytes:
    """``config.json`` with what the model needs and nothing else."""
    given = json.loads((folder / "config.json").read_bytes())
    if isinstance(model, Part):
        described: dict[str, Any] = {"kind": "net", **part_to_json(model)}
    else:
        described = {"kind": "mixture", **mixture_to_json(model)}
    kept = {
        "format": given["format"],
        "attar": str(given.get("attar", ""))[:40],
        "model": described,
        "weights_sha256": given["weights_sha256"],
    }
    return (json.dumps(kept, indent=2) + "\n").encode()


def _weights(folder: Path, model: Deployable) -> Path:
    """The file of the weights, if it holds the model's and nothing else.

    Raises:
        RunError: if it has other tensors, or texts.
    """
    path = folder / "model.safetensors"
    expected = model.state if isinstance(model, Part) else mixture_tensors(model)
    try:
        with safe_open(path, framework="pt") as file:
            names, facts = set(file.keys()), file.metadata()
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read ({error}).") from None
    problems = [f"the tensor {name} does not belong to the model" for name in names - set(expected)]
    problems += [f"a text called {key}" for key in facts or {}]
    if problems:
        raise RunError(
            f"{path} holds more than the model's weights:",
            problems=problems[:6],
            fix="save it anew: attar.save_model(FOLDER, attar.load_model(OLD).description, "
            "card=None)",
        )
    return path.resolve()


def _picture(folder: Path, name: str) -> bytes:
    path = folder / name
    wrong = Path(name).name != name or path.suffix not in (".png", ".svg")
    if wrong or path.is_symlink() or not path.is_file():
        there = sorted(file.name for file in folder.iterdir() if file.suffix in (".png", ".svg"))
        raise SettingsError(
            f"--picture {name}: there is no such picture in {folder}.",
            fix=f"it has {list_some(there)}" if there else "it has none: leave --picture out",
        )
    if path.stat().st_size > MOST_PICTURE_BYTES:
        raise SettingsError(f"--picture {name} has more than {MOST_PICTURE_BYTES:,} bytes.")
    return path.read_bytes()


def _check_texts(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Raise a RunError where a text that would be sent tells a path of this machine, or a token."""
    places = {str(Path.home()), str(Path.cwd()), str(folder.resolve())} - {"/", "."}
    problems = []
    for name, content in files.items():
        if not isinstance(content, bytes) or name.endswith(".png"):
            continue
        text = content.decode(errors="replace")
        for place in sorted(places, key=len, reverse=True):
            if place in text:
                problems.append(f"{name} names {place}")
                break
        else:
            if found := _PATHS.search(text):
                problems.append(f"{name} names {found[0][:80]}")
        if _TOKENS.search(text):
            problems.append(f"{name} holds what looks like a token or a key")
    if problems:
        raise RunError(
            "These texts tell more than the model, so nothing is sent:",
            problems=problems,
            fix="change the text (--card FILE is sent as it is), or save the model anew",
        )


def _list_stays(folder: Path, files: Mapping[str, bytes | Path]) -> tuple[tuple[str, str], ...]:
    """What is in a folder and not sent, with the reason."""
    stays = []
    for path in sorted(folder.iterdir()):
        if path.name in files:
            continue
        if path.is_dir():
            reason = "another model or folder"
        else:
            reason = next(
                (why for pattern, why in STAYS if re.fullmatch(pattern, path.name)),
                "not part of the model",
            )
        stays.append((path.name + ("/" if path.is_dir() else ""), reason))
    return tuple(stays)


def _notes(model: Deployable, clients: bool, card: Path | None) -> tuple[str, ...]:
    """What the owner should know before the model is sent."""
    notes = []
    if not isinstance(model, Part):
        notes.append(
            f"The model is a mixture: it holds the {len(model.members)} clients' own nets as they "
            "were sent. Do they agree?"
        )
        if getattr(model.gate, "statistics", ()):
            notes.append("It also holds the statistics of the clients' features, for its gate.")
    if clients and card is None:
        notes.append("The card names the clients and how many images each has.")
    notes.append(
        "A model may reveal something about the images that it was trained on (docs/trust.md)."
    )
    return tuple(notes)
