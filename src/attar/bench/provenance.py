"""Which code of other packages a run uses: their nets and methods, each with a hash of its source.

attar's own code is identified by its version and commit. The author of a plug-in changes it
between two runs without either, so a record has the package's name and version, and a hash of the
module in which the net or method is written. What that module imports is not looked at.
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
OWN_PACKAGE = "attar"


@dataclass(frozen=True)
class Origin:
    """Where the code of a plug-in comes from.

    Attributes:
        module: The module in which it is written.
        distribution: The installed package; None: there is none, as with a script.
        version: The version of the package.
        source: A short hash of the module's syntax; None: its text cannot be read.
    """

    module: str
    distribution: str | None = None
    version: str | None = None
    source: str | None = None

    @property
    def name(self) -> str:
        """The package, or the module where there is none."""
        return self.distribution or self.module


def origin_of_net(arch: str) -> Origin | None:
    """The origin of a plug-in's net; None for a net of attar's, and for one that is not available.

    Nets of plug-ins count once they are loaded.
    """
    return _find_origin("attar.nets", arch, NETS[arch].build) if arch in NETS else None


def origin_of_method(name: str) -> Origin | None:
    """The origin of a plug-in's method; None for one of attar's, and for one not available."""
    if name not in METHODS:
        load_plugins()
    return _find_origin("attar.methods", name, METHODS[name]) if name in METHODS else None


def _find_origin(group: Group, name: str, made: Callable[..., Any]) -> Origin | None:
    points = [point for point in _entry_points(group) if _top(point.module) != OWN_PACKAGE]
    named = [point for point in points if point.name == name]
    module = _module_of(made)
    if _top(module) == OWN_PACKAGE:  # attar's, or something of attar's around the plug-in's
        if not named:
            return None
        module = named[0].module
    # one entry point may register several
    near = named or [point for point in points if _top(point.module) == _top(module)]
    package = near[0].dist if near else None
    if package is None:
        return Origin(module, source=hash_source(module))
    return Origin(module, package.name, package.version, hash_source(module))


@cache
def _entry_points(group: Group) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))


def _top(module: str) -> str:
    return module.partition(".")[0]


def _module_of(made: Callable[..., Any]) -> str:
    """The module of what is inside of partials and wrappers."""
    while isinstance(made, partial):
        made = made.func
    module: str = inspect.unwrap(made).__module__
    return module


@cache
def hash_source(module: str) -> str | None:
    """A short hash of a loaded module's syntax; None where its text cannot be read."""
    try:
        text = inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):  # typed into a console, or compiled
        return None
    return hashlib.sha256(strip_words(text).encode()).hexdigest()[:16]


def strip_words(source: str) -> str:
    """Source code without comments and docstrings, so that these may change."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
