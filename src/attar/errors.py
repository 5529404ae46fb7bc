"""What can go wrong, from the user's side of the screen.

    AttarError                 any mistake a user can repair: what, where and how to fix it
    ├── BundleError            an upload file that cannot be read or must not be trusted
    ├── PackError              a net of the client's own that cannot be sent as a graph
    ├── DataError              a data source, an image folder or a partition
    ├── SpecError              an unknown architecture, or an option it does not have
    ├── SettingsError          a hyper-parameter that does not exist or does not parse
    ├── NeedsError             uploads that a method cannot work with
    ├── TrustError             a key, a signature, a sender who is not on the list
    ├── DivergedError          training whose loss or weights are no numbers any more
    ├── RunError               a run folder, a checkpoint or a model folder
    └── Stopped                Ctrl-C: nothing is lost, the message says how to go on
        └── OutOfTime          the time that was given is over: nothing is lost either

One error carries *all* problems found, so that nobody repairs them one run at a time.
"""

from collections.abc import Iterable


class AttarError(Exception):
    """A mistake that the user can repair."""

    exit_status = 2

    def __init__(self, what: str, *, problems: Iterable[str] = (), fix: str | None = None) -> None:
        self.what = what
        self.problems = tuple(problems)
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.what, *(f"  - {problem}" for problem in self.problems)]
        if self.fix:
            lines.append(f"To fix it: {self.fix}")
        return "\n".join(lines)


class BundleError(AttarError):
    """An upload file that cannot be read or must not be trusted."""


class PackError(AttarError):
    """A net of the client's own that cannot be sent as a graph."""


class DataError(AttarError):
    """A data source, an image folder or a partition."""


class SpecError(AttarError):
    """An unknown architecture, or an option it does not have."""


class SettingsError(AttarError):
    """A hyper-parameter that does not exist or does not parse."""


class NeedsError(AttarError):
    """Uploads that a method cannot work with."""


class TrustError(AttarError):
    """A key, a signature, or a sender who is not on the list."""


class DivergedError(AttarError):
    """Training whose loss or weights are no numbers any more."""


class RunError(AttarError):
    """A run folder, a checkpoint or a model folder."""


class Stopped(AttarError):
    """Ctrl-C: nothing is lost, the message says how to go on."""

    exit_status = 130


class OutOfTime(Stopped):
    """The time that was given is over: nothing is lost, the same command goes on."""
