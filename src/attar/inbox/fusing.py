"""The fusion of what arrived, as a process of its own."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from attar.methods import find_method
from attar.settings import configure, pairs


class Fusing(Protocol):
    """The flags of a server about the fusion."""

    @property
    def fuse(self) -> str | None:
        """The method; None fuses nothing."""

    @property
    def out(self) -> Path:
        """The run and model folder."""

    @property
    def student(self) -> str | None:
        """The architecture of the fused model."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Hyper-parameters, key=value."""


def check_fusing(flags: Fusing) -> None:
    """Raise a SettingsError where the method or one of its settings does not exist."""
    if flags.fuse is not None:
        configure(find_method(flags.fuse), pairs(flags.settings), of=f"method {flags.fuse}")


def make_fuse_command(flags: Fusing, arrived: Mapping[str, Path]) -> list[str]:
    """The ``attar fuse`` command for the uploads.

    It names each file: later uploads must not change a fusion that is resumed.
    """
    files = [str(path) for path in arrived.values()]
    command = ["fuse", *files, "--method", flags.fuse or "ensemble", "--out", str(flags.out)]
    command += ["--student", flags.student] if flags.student else []
    return command + [word for setting in flags.settings for word in ("--set", setting)]


def start_fusion(
    command: list[str], out: Path, say: Callable[[str], None], *, quiet: bool = False
) -> subprocess.Popen[bytes] | None:
    """Fuse, or resume a fusion, in a process of its own; None where the fusion is finished."""
    if (out / "record.json").exists():
        say(f"{out} holds a finished fusion: nothing is fused again.")
        return None
    words = [sys.executable, "-m", "attar", *command, "--resume"]
    return subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL if quiet else None
    )
