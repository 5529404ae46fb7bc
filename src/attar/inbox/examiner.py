"""The process that checks finished files, as the server sees it."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attar.errors import RunError

START_SECONDS = 120.0  # to import what a check needs, on a busy machine
LEAST_SECONDS = 60.0  # for the check of a small file
SLOWEST = 10_000_000  # bytes a second of a large one


@dataclass(frozen=True)
class Finding:
    """What the check of a file found.

    Attributes:
        sha256: of its bytes; None where the check did not end by itself.
        problems: why the file is refused; none where it is accepted.
    """

    sha256: str | None
    problems: tuple[str, ...]


class Examiner:
    """Checks one file at a time; the others wait. A check that dies or hangs refuses its file."""

    def __init__(self, *, least_seconds: float = LEAST_SECONDS) -> None:
        self._process: Process | None = None
        self._one_at_a_time = asyncio.Lock()
        self._least_seconds = least_seconds

    @property
    def pid(self) -> int | None:
        """The process; None before it was started."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            RunError: It does not start.
        """
        # One thread: it is not to compete with the clients of this machine. A session of its own:
        # Ctrl-C ends the server, which ends this process when its check is over.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "attar.inbox.examine",
            stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"}, limit=2**20,
        )  # fmt: skip
        if await self._read_line(START_SECONDS) is None:
            await self.stop()
            raise RunError(
                "The process that checks uploads did not start.",
                fix="try: python -m attar.inbox.examine",
            )

    async def examine(self, path: Path, partner: str) -> Finding:
        """Check a finished file."""
        async with self._one_at_a_time:
            if self._process is None or self._process.returncode is not None:
                await self.start()
            assert self._process is not None
            assert self._process.stdin is not None
            question = json.dumps({"path": str(path), "partner": partner})
            with suppress(ConnectionError):
                self._process.stdin.write(question.encode() + b"\n")
                await self._process.stdin.drain()
            seconds = self._least_seconds + path.stat().st_size / SLOWEST
            answer = await self._read_line(seconds)
            if answer is None:
                await self.stop()
                return Finding(
                    None, ("its check did not end as it should: too slow, or too large",)
                )
            return Finding(answer["sha256"], tuple(map(str, answer["problems"])))

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def _read_line(self, seconds: float) -> dict[str, Any] | None:
        """The next answer; None where the process ended, or did not answer in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
            answer: dict[str, Any] = json.loads(line)
        except (TimeoutError, ValueError):
            return None
        return answer
