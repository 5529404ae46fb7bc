"""The grid of a recipe: which cells it has, which of them are to run, whether they can."""

from collections.abc import Iterable, Mapping, Sequence, Set

from attar.bench.availability import find_missing
from attar.bench.cells import Cell
from attar.bench.methods import WITHOUT_FUSION, is_available, setting_names
from attar.bench.nets import net_names, resolve_nets
from attar.bench.oracles import CENTRAL
from attar.bench.recipe import Federation, Point, Recipe, Row
from attar.bench.releases import Release
from attar.errors import SettingsError
from attar.methods import load_plugins
from attar.settings import configure, pairs
from attar.training import TrainingFlags

Filters = Mapping[str, Set[str]]  # of an axis, the methods' labels or the seeds: those to run


def cells_of(recipe: Recipe, precision: str = "fp32", filters: Filters | None = None) -> list[Cell]:
    """The cells of a recipe.

    Args:
        recipe: The recipe.
        precision: The precision of training and fusion.
        filters: Which to return, see ``parse_filters``. An axis that the recipe does not have
            selects nothing in it.

    Returns:
        The cells seed by seed, so that a bench that runs out of time has whole tables of the
        first seeds.
    """
    load_plugins()
    cells = []
    for seed in recipe.seeds:
        for row in recipe.rows:
            for point in recipe.points(row):
                facts = {**point.labels, "method": row.label, "seed": str(seed)}
                if _passes(facts, filters or {}):
                    cells.append(_make_cell(recipe, row, point, seed, precision))
    return sorted(cells, key=lambda cell: cell.seed)


def _passes(facts: Mapping[str, str], filters: Filters) -> bool:
    return all(facts[key] in values for key, values in filters.items() if key in facts)


def _make_cell(recipe: Recipe, row: Row, point: Point, seed: int, precision: str) -> Cell:
    federation = point.federation
    if row.method == CENTRAL:
        federation = _centralise(federation, recipe.defaults)
    names = setting_names(row.method)
    server = {key: value for key, value in recipe.server.items() if key in names}
    missing = find_missing(row.method, federation, point.student, row.groups)
    return Cell(
        recipe=recipe.name,
        row=row,
        labels=point.labels,
        federation=federation,
        settings={**server, **point.settings},
        student=point.student,
        seed=seed,
        precision=precision,
        published=recipe.published_for(row, point.labels, seed if recipe.per_seed else None),
        missing=(*recipe.missing, *row.missing, *missing),
        after=point.after,
        defaults=recipe.defaults,
    )


def _centralise(federation: Federation, defaults: Release) -> Federation:
    """The same training with all images in one place: one client that holds everything."""
    unchanged = {
        key: getattr(federation, key)
        for key in ("data", "start", "net", "training", "tested_on", "leave_out")
    }
    section = defaults.section("federation")
    return Federation(**{**section, **unchanged, "rule": "iid", "clients": 1})


def check_settings(cells: Iterable[Cell]) -> None:
    """Check the settings of methods, nets and local training before hours are spent.

    Raises:
        SettingsError: Lists every setting that is not taken.
    """
    problems: list[str] = []
    for cell in cells:
        for names in net_names(cell.federation, cell.student, cell.row.groups):
            problems += resolve_nets(names).problems
        try:
            of = f"{cell.row.label}, local training"
            for clients in cell.client_sets:
                configure(TrainingFlags, dict(clients.spec.training), of=of)
            if is_available(cell.row.method) and cell.row.method not in WITHOUT_FUSION:
                cell.method()
        except SettingsError as error:
            details = error.problems or (error.what,)
            problems += [f"{cell.row.label}: {problem}" for problem in details]
    if problems:
        raise SettingsError(
            "Settings in the recipe that do not fit:", problems=dict.fromkeys(problems)
        )


def parse_filters(recipes: Sequence[Recipe], only: Sequence[str]) -> Filters:
    """Read which cells are to run.

    Args:
        recipes: The recipes, at least one of which must have each value.
        only: Such as ``["alpha=0.1", "method=DENSE", "method=FedAvg"]``. Values of one key are
            alternatives.

    Raises:
        SettingsError: No recipe has one of the keys or values.
    """
    filters: dict[str, set[str]] = {}
    for text in only:
        ((key, value),) = pairs([text]).items()
        filters.setdefault(key, set()).add(value)
    known: dict[str, set[str]] = {"method": set(), "seed": set()}
    for recipe in recipes:
        known["method"] |= {row.label for row in recipe.rows}
        known["seed"] |= set(map(str, recipe.seeds))
        for axis, labels in recipe.axes.items():
            known.setdefault(axis, set()).update(labels)
    problems = [f"{key}: one of {', '.join(known)}" for key in filters if key not in known]
    problems += [
        f"{key}={value}: one of {', '.join(sorted(known[key]))}"
        for key, values in filters.items()
        if key in known
        for value in sorted(values - known[key])
    ]
    if problems:
        names = ", ".join(recipe.name for recipe in recipes)
        raise SettingsError(f"--only names nothing in {names}:", problems=problems)
    return filters
