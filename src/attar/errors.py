"""What can go wrong, seen from the user.

    AttarError                 a mistake that a user can repair: what, where and how to fix it
    ├── BundleError            an upload file that cannot be read or must not be trusted
    ├── PackError              a net of the client's own that cannot be sent as a graph
    ├── DataError              a data source, an image folder or a partition
    ├── SpecError              an unknown architecture, or an option it does not have
    ├── SettingsError          a hyper-parameter that does not exist or does not parse
    ├── NeedsError             uploads that a method cannot work with
    ├── TrustError             a key, a signature, or a sender who is not on the list
    ├── DivergedError          training whose loss or weights became NaN or infinite
    ├── RunError               a run folder, a checkpoint or a model folder
    └── Stopped                Ctrl-C: nothing is lost, the message says how to resume
        └── OutOfTime          the time limit is reached: nothing is lost either

One error carries *all* problems, so that nobody repairs them one run at a time.
"""

from collections.abc import Iterable


class AttarError(Exception):
    """A mistake that the user can repair; the command line prints it without a traceback.

    Args:
        what: one sentence with what is wrong and where. It ends in a colon before problems.
        problems: everything that is wrong, each in a few words; empty if ``what`` says it.
        fix: what to do, beginning with a verb; None if that is obvious.

    Attributes:
        exit_status: of the command line.
        title: of the box that shows the error.
    """

    exit_status = 2
    title = "error"

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
    """Training whose loss or weights became NaN or infinite."""


class RunError(AttarError):
    """A run folder, a checkpoint or a model folder."""


class NothingLearned(AttarError):
    """A run that was out of time before its model learned anything."""

    title = "not fused"


class Stopped(AttarError):
    """Ctrl-C: nothing is lost, the message says how to resume."""

    exit_status = 130
    title = "stopped"


class OutOfTime(Stopped):
    """The time limit is reached: nothing is lost, the same command resumes."""
