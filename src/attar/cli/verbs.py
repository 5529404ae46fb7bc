"""A verb of the command line: where its function is, and a line about it for ``attar --help``."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from attar.internal.interrupts import interrupts_end_the_process


@dataclass(frozen=True)
class Verb:
    """A verb, whose module is imported only when it is called.

    Attributes:
        home: ``module:function`` in this package.
        summary: The first sentence of the function's docstring.
        group: The heading under which ``attar --help`` lists it.
    """

    home: str
    summary: str
    group: str

    def load(self) -> Callable[..., None]:
        """The function: of its flags, or of one dataclass whose fields are the flags."""
        name, _, function = self.home.partition(":")
        with interrupts_end_the_process():
            module = import_module(f"attar.cli.{name}")
        loaded: Callable[..., None] = getattr(module, function)
        return loaded
