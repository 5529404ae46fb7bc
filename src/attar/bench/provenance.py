"""Whose code a run is made of, where it is not attar's own: nets and methods of other packages,
told apart by their source.

attar's own code is told by its version and commit. A plug-in has neither, and its author changes
it between two runs: what is kept of it is the package's name and version, and a hash of the
module that the net or method is written in. What that module imports from elsewhere is not
looked at.
"""

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from attar.methods import METHODS, load_plugins
from attar.nets.registry import NETS

Group = Literal["attar.methods", "attar.nets"]
OURS = "attar"


@dataclass(frozen=True)
class Origin:
    """Where the code of a plug-in comes from."""

    module: str
    distribution: str | None = None  # None: no installed package, such as a script
    version: str | None = None
    source: str | None = None  # None: the module has no text that could be read

    @property
    def name(self) -> str:
        return self.distribution or self.module


def origin_of_net(arch: str) -> Origin | None:
    """None for a net of ours, and for one that is not at hand. Nets of plug-ins count once they
    are loaded.
    """
    return _origin("attar.nets", arch, NETS[arch].build) if arch in NETS else None


def origin_of_method(name: str) -> Origin | None:
    """None for a method of ours, and for one that is not at hand."""
    if name not in METHODS:
        load_plugins()
    return _origin("attar.methods", name, METHODS[name]) if name in METHODS else None


def _origin(group: Group, name: str, made: Callable[..., Any]) -> Origin | None:
    points = [point for point in _points(group) if _top(point.module) != OURS]
    named = [point for point in points if point.name == name]
    module = _written_in(made)
    if _top(module) == OURS:  # ours, or something of ours around the plug-in's
        if not named:
            return None
        module = named[0].module
    near = named or [
        point for point in points if _top(point.module) == _top(module)
    ]  # one entry point may register several
    package = near[0].dist if near else None
    if package is None:
        return Origin(module, source=source_of(module))
    return Origin(module, package.name, package.version, source_of(module))


@cache
def _points(group: Group) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _written_in(made: Callable[..., Any]) -> str:
    """The module of what lies beneath wrappers."""
    while isinstance(made, partial):
        made = made.func
    module: str = inspect.unwrap(made).__module__
    return module


@cache
def source_of(module: str) -> str | None:
    """A short hash of a loaded module's syntax."""
    try:
        text = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # typed into a console, or compiled
        return None
    return hashlib.sha256(syntax(text).encode()).hexdigest()[:16]


def syntax(source: str) -> str:
    """Code without comments and docstrings, so that words may change."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
