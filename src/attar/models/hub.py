"""Models by name from the Hugging Face hub: ``hf:OWNER/NAME``, or ``hf:OWNER/NAME@REVISION``.

Of a repository only the files in ``FILES`` are fetched, all from one commit, and none that is
larger than it may be. They stay in the hub's own cache, from which a model that was fetched before
is read where there is no network.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attar.errors import AttarError, RunError
from attar.internal.extras import import_extra
from attar.internal.text import human_bytes
from attar.version import __version__

PREFIX = "hf:"
EXTRA = "hub"
# File -> the most bytes that it may have. Nothing else is fetched.
FILES = {
    "config.json": 64 * 2**20,
    "model.safetensors": 16 * 2**30,
    "preprocessor_config.json": 2**20,
}
NEEDED = ("config.json", "model.safetensors")
_NAME = re.compile(r"([\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})(?:@([\w][\w./-]{0,199}))?", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """A repository of the hub.

    Attributes:
        repository: ``OWNER/NAME``.
        revision: a branch, a tag or a commit; None for the main branch.
    """

    repository: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.repository + ("" if self.revision is None else f"@{self.revision}")


def parse_hub_name(text: str) -> HubName | None:
    """Read ``OWNER/NAME`` or ``OWNER/NAME@REVISION``; None where it is something else."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found[1] or text.endswith("/"):
        return None
    return HubName(found[1], found[2])


def find_folder(text: str) -> Path:
    """The folder of a model that is named ``hf:…``.

    Args:
        text: ``hf:FOLDER``, ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION``.

    Returns:
        The folder on this machine, or where the files were fetched to.

    Raises:
        RunError: if there is no such folder and no such repository, it is private, it lacks a
            file or one is too large, or the hub cannot be reached.
        SettingsError: if the package huggingface_hub is missing.
    """
    rest = text.removeprefix(PREFIX)
    if Path(rest).expanduser().is_dir():
        return Path(rest).expanduser()
    name = parse_hub_name(rest)
    if name is None:
        raise RunError(
            f"There is no folder {rest!r}, and it is no name on the Hugging Face hub.",
            fix="name a folder, or hf:OWNER/NAME, or hf:OWNER/NAME@REVISION",
        )
    return _fetch(name)


def open_hub(token: str | None = None) -> Any:
    """The hub's interface, at ``HF_ENDPOINT`` where that is set.

    Args:
        token: None: that of ``HF_TOKEN`` or of ``hf auth login``, if there is one.

    Raises:
        SettingsError: if the package huggingface_hub is missing.
    """
    hub = import_extra("huggingface_hub", EXTRA)
    return hub.HfApi(
        endpoint=os.environ.get("HF_ENDPOINT") or None,
        token=token,
        library_name="attar",
        library_version=__version__,
    )


@contextmanager
def telling(name: HubName) -> Iterator[None]:
    """Turn the hub's errors into ours.

    Raises:
        RunError: saying what is wrong with the repository, the token or the network.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise RunError(
            f"{name.repository} asks its readers to accept conditions first.",
            fix=f"accept them at {_address(name)}, and set HF_TOKEN to a token of that account",
        ) from None
    except errors.RevisionNotFoundError:
        raise RunError(
            f"{name.repository} has no revision {name.revision!r}.",
            fix=f"see its branches and tags at {_address(name)}",
        ) from None
    except errors.RepositoryNotFoundError:
        raise RunError(
            f"There is no model {name.repository} on the hub, or it is private.",
            fix="check the name; for a private one set HF_TOKEN to a token that may read it",
        ) from None
    except errors.HfHubHTTPError as error:
        raise _refusal(name, error) from None
    except AttarError:
        raise
    except Exception as error:  # the HTTP package of the hub's package has its own
        if is_unreachable(error):
            raise RunError(
                f"The Hugging Face hub cannot be reached for {name}: {_first_line(error)}",
                fix="check the network, HF_ENDPOINT and HF_HUB_OFFLINE; a model that was fetched "
                "before is read from the cache",
            ) from None
        if not isinstance(error, OSError | ValueError | RuntimeError):
            raise
        cause = error if error.__cause__ is None else error.__cause__
        raise RunError(
            f"The hub did not take or give {name}:", problems=[_first_line(cause)]
        ) from None


def _fetch(name: HubName) -> Path:
    """Fetch the files of one commit; what is in the cache is not fetched again."""
    api = open_hub()
    with telling(name):
        try:
            found = api.model_info(name.repository, revision=name.revision, files_metadata=True)
        except Exception as error:
            if not is_unreachable(error) or (cached := _find_cached(api, name)) is None:
                raise
            return cached
        sizes = {file.rfilename: file.size or 0 for file in found.siblings or ()}
        _check_files(name, sizes)
        paths = {
            file: Path(api.hf_hub_download(name.repository, file, revision=name.revision))
            for file in FILES
            if file in sizes
        }
    _check_files(name, {file: path.stat().st_size for file, path in paths.items()})
    folders = {path.parent for path in paths.values()}
    if len(folders) > 1:  # a folder of the cache is one commit
        raise RunError(f"{name} was changed while it was fetched.", fix="repeat the command")
    return folders.pop()


def _check_files(name: HubName, sizes: dict[str, int]) -> None:
    """Refuse a repository without a model, and files that are too large."""
    if missing := [file for file in NEEDED if file not in sizes]:
        pickled = [file for file in sizes if file.endswith((".bin", ".pt", ".pth", ".pkl"))]
        also = f" It has {', '.join(sorted(pickled)[:3])}, but attar reads no pickled weights."
        raise RunError(
            f"{name} has no {' and no '.join(missing)}.{also if pickled else ''}",
            fix="name a model that `attar publish` wrote, or a ViT or DeiT with safetensors",
        )
    problems = [
        f"{file} has {human_bytes(size)}, at most {human_bytes(FILES[file])} are fetched"
        for file, size in sizes.items()
        if file in FILES and size > FILES[file]
    ]
    if problems:
        raise RunError(f"Files of {name} are too large:", problems=problems)


def _find_cached(api: Any, name: HubName) -> Path | None:
    """The folder of a model that was fetched before; None where it was not."""
    from huggingface_hub import errors

    try:
        paths = [
            Path(
                api.hf_hub_download(
                    name.repository, file, revision=name.revision, local_files_only=True
                )
            )
            for file in NEEDED
        ]
    except (errors.LocalEntryNotFoundError, OSError, ValueError):
        return None
    return paths[0].parent


def is_unreachable(error: BaseException) -> bool:
    """Whether an error of the hub's package is about the network and not about the repository."""
    from huggingface_hub import errors

    if isinstance(error, errors.HfHubHTTPError):
        return error.response is None or error.response.status_code >= 500
    if isinstance(error, RuntimeError) and error.__cause__ is not None:  # of an upload
        return is_unreachable(error.__cause__)
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _NETWORK) or isinstance(error, ConnectionError | TimeoutError)


# Of httpx and of requests, one of which the hub's package uses.
_NETWORK = {"OfflineModeIsEnabled", "TransportError", "RequestError", "RequestException"}


def _refusal(name: HubName, error: Any) -> RunError:
    """The error for an answer of the hub that is not about a missing repository."""
    status = None if error.response is None else error.response.status_code
    if status == 401:
        return RunError(
            f"The hub does not accept the token for {name.repository}.",
            fix="set HF_TOKEN to a valid one (hub: Settings, Access Tokens)",
        )
    if status == 403:
        return RunError(
            f"The token may not do this with {name.repository}: {_first_line(error)}",
            fix="use a token with the right to write there, or your own name as OWNER",
        )
    return RunError(
        f"The hub answered {status or 'nothing'} about {name}: {_first_line(error)}",
        fix="try again later",
    )


def _address(name: HubName) -> str:
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return f"{endpoint.rstrip('/')}/{name.repository}"


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
