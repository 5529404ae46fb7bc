"""Rooms import only from rooms below them, through their public lists, and the tower is low.

A room is a package or module directly under ``attar``. Imports under TYPE_CHECKING do not count,
those inside of functions do.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import attar

SOURCE = Path(attar.__file__).parent

# Low to high: a room imports from those before it.
ROOMS = [
    "version", "errors", "internal", "seeds", "settings", "nets", "privacy_claim", "core", "data",
    "uploads", "blocks", "packing", "models", "deploy", "backbones", "running", "tracking", "training", "methods",
    "fusion", "federation", "privacy", "testing", "inbox", "network", "bench", "report", "cli", "__main__",
]  # fmt: skip
# The same within attar.blocks.
BLOCKS = ["execution", "ensemble", "heads", "images", "student"]

# Rooms whose modules are imported directly: they have no public list, or one for users alone.
WITHOUT_LIST = {"internal", "nets", "data", "packing", "inbox", "network", "cli"}
# Modules that are imported past the public list of their room.
PAST_LIST = {
    "attar.blocks.images.augment",
    "attar.blocks.images.decoders",
    "attar.blocks.images.inversion",
    "attar.blocks.student.synthetic_set",
}

DEEPEST = 14


class Import(NamedTuple):
    """``from module import name`` in ``importer``; ``import module`` has no name."""

    importer: str
    module: str
    name: str | None
    at_top: bool


@cache
def modules() -> dict[str, Path]:
    """Path of every module of the package by its full name."""
    return {
        ".".join(("attar", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): path
        for path in sorted(SOURCE.rglob("*.py"))
    }


def is_package(module: str) -> bool:
    return modules()[module].name == "__init__.py"


@cache
def imports() -> list[Import]:
    """All imports of modules of the package."""
    return [
        found
        for importer, path in modules().items()
        for statement, at_top in statements(ast.parse(path.read_text(encoding="utf-8")))
        for found in targets(importer, statement, at_top)
    ]


def statements(node: ast.AST, at_top: bool = True) -> Iterator[tuple[ast.AST, bool]]:
    """Import statements below a node, and whether they run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_top
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from statements(child, at_top and not inside)


def targets(importer: str, statement: ast.AST, at_top: bool) -> Iterator[Import]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            if alias.name in modules():
                yield Import(importer, alias.name, None, at_top)
        return
    assert isinstance(statement, ast.ImportFrom)
    assert not statement.level, f"{importer}: relative imports are not followed here"
    if statement.module in modules():
        for alias in statement.names:
            yield Import(importer, statement.module, alias.name, at_top)


def imported_module(found: Import) -> str:
    """The module that is imported, also by ``from package import module``."""
    inner = f"{found.module}.{found.name}"
    return inner if inner in modules() else found.module


def room_of(module: str) -> str:
    """The room of a module; attar's own list of public names belongs to none."""
    return module.split(".")[1] if "." in module else ""


def block_of(module: str) -> str:
    return module.split(".")[2] if module.startswith("attar.blocks.") else ""


@cache
def public_names(package: str) -> frozenset[str]:
    """``__all__`` of a package."""
    for node in ast.parse(modules()[package].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return frozenset(ast.literal_eval(node.value))
    return frozenset()


def test_rooms_are_in_the_order_list():
    rooms = {room_of(module) for module in modules()} - {""}
    assert rooms == set(ROOMS)


def test_imports_go_down():
    upward = [
        found
        for found in imports()
        if (low := room_of(found.importer)) != (high := room_of(imported_module(found)))
        and low
        and high
        and ROOMS.index(high) > ROOMS.index(low)
    ]
    assert upward == []


def test_imports_go_down_in_blocks():
    upward = [
        found
        for found in imports()
        if (low := block_of(found.importer))
        and (high := block_of(imported_module(found)))
        and BLOCKS.index(high) > BLOCKS.index(low)
    ]
    assert upward == []


def test_no_room_imports_the_list_of_all_public_names():
    through = [
        found
        for found in imports()
        if found.module == "attar"
        and imported_module(found) == "attar"
        and found.importer != "attar"
    ]
    assert through == []


def test_rooms_are_imported_through_their_lists():
    past = [
        found
        for found in imports()
        if room_of(found.importer) != (room := room_of(imported_module(found)))
        and room not in WITHOUT_LIST
        and not goes_through_list(found)
    ]
    assert past == []


def goes_through_list(found: Import) -> bool:
    """Whether an import names what is public, or a room that is one module."""
    if found.module == "attar":  # a whole room: its names are public, or it is one module
        return True
    if is_package(found.module):
        return found.name in public_names(found.module)
    return found.module.count(".") == 1


def test_no_import_is_circular():
    circles = []
    path: list[str] = []
    done: set[str] = set()

    def visit(module: str) -> None:
        if module in path:
            circles.append([*path[path.index(module) :], module])
        elif module not in done:
            path.append(module)
            for other in sorted(all_imports_of(module)):
                visit(other)
            path.pop()
            done.add(module)

    for module in modules():
        visit(module)
    assert circles == []


def all_imports_of(module: str) -> set[str]:
    """Modules that are imported when ``module`` is, those of packages included; a package's own
    parents are not, for they are imported before.
    """
    return {imported_module(found) for found in imports_by()[module] if found.at_top} - {
        module,
        "attar",
    }


@cache
def imports_by() -> dict[str, list[Import]]:
    by: dict[str, list[Import]] = {module: [] for module in modules()}
    for found in imports():
        by[found.importer].append(found)
    return by


@cache
def depth(module: str) -> int:
    """Length of the longest chain of imports between modules; lists of packages do not count."""
    below = {other for other in all_imports_of(module) if not is_package(other)}
    return 1 + max((depth(other) for other in below), default=0)


def test_import_depth():
    deepest = max(modules(), key=depth)
    assert depth(deepest) <= DEEPEST, f"{deepest}: {depth(deepest)}"


def test_a_partner_sends_to_an_inbox_without_posix():
    """The command that sends imports no module that other systems do not have."""
    needed, rest = set(), {"attar.cli.inbox"}
    while rest:
        module = rest.pop()
        needed.add(module)
        rest |= all_imports_of(module) - needed
    assert "attar.inbox.sending" in needed
    posix = {"resource", "fcntl", "termios", "pwd"}
    for module in needed:
        tree = ast.parse(modules()[module].read_text(encoding="utf-8"))
        found = {
            alias.name
            for statement, at_top in statements(tree)
            if at_top and isinstance(statement, ast.Import)
            for alias in statement.names
        }
        assert not found & posix, module
