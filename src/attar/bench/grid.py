"""A recipe as work: cells, what each is known by, what is missing, which clients it needs."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from attar.bench.defaults import changed_settings, changed_training, method_settings, unusual
from attar.bench.oracles import CENTRAL, LOCAL, ORACLES
from attar.bench.provenance import Origin, origin_of_method, origin_of_net
from attar.bench.recipe import Federation, Group, Labels, Point, Published, Recipe, Row
from attar.bench.releases import AS_IN_CODE, Release
from attar.bench.taken import BENCH_ALONE, at_hand, settings_of
from attar.bench.versions import training_codes
from attar.core import AnyMethod, ModelSpec
from attar.data.fetch import data_root
from attar.data.sources import FORMS, is_available
from attar.errors import AttarError, SettingsError, SpecError
from attar.methods import find_method, load_plugins
from attar.models import PREFIX, parse_nets
from attar.nets.registry import find
from attar.settings import Scalar, configure, pairs
from attar.training import TrainingFlags

Wanted = Mapping[str, Set[str]]  # of an axis, the methods' labels or the seeds: those to run
EITHER = {"classifier", "cvae"}  # kinds of a net that is not known
OF_START = "start"  # in place of a net: that of the model that the clients start from


@dataclass(frozen=True)
class ClientSet:
    """The uploads of one group of clients: trained once, used by every method."""

    federation: Federation
    group: str
    seed: int
    precision: str
    defaults: Release = AS_IN_CODE

    @property
    def spec(self) -> Group:
        return self.federation.group(self.group)

    def described(self) -> dict[str, Any]:
        """Everything that decides how these clients come out."""
        shared = {
            key: value
            for key, value in unusual(self.federation).items()
            if key not in _NOT_TRAINING
        }
        plugins = (
            {"plugins": lent} if (lent := self.plugins) else {}
        )  # where there are none, names stay what they were
        own = {
            "group": unusual(self.spec),
            "seed": self.seed,
            "precision": self.precision,
            "code": training_codes()[0],
        }
        return {
            **shared,
            **own,
            **plugins,
            **_other_defaults(self.defaults, self.federation, [self.group]),
        }

    @property
    def plugins(self) -> dict[str, str | None]:
        """Their nets that are another package's, each with a hash of its source."""
        return {arch: origin.source for arch, origin in _origins([self.spec.net]).items()}

    @property
    def key(self) -> str:
        return digest(self.described())

    @property
    def keys(self) -> list[str]:
        """Its key, and those that the same clients had before training had a version."""
        described = self.described()
        return [digest({**described, "code": code}) for code in training_codes()]


_NOT_TRAINING = ("groups", "net", "training", "rounds", "sample", "tested_on", "public")


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table at one place of the grid with one seed."""

    recipe: str
    row: Row
    labels: Labels
    federation: Federation
    settings: Mapping[str, Scalar]  # of the method, as the recipe gives them
    student: str | None
    seed: int
    precision: str
    published: Published | None
    missing: tuple[str, ...] = ()
    compile: bool = False  # the nets, on a GPU: changes the time, and the outcome by rounding
    after: int | None = None  # the round of the run that the table asks for; not what the run is
    defaults: Release = AS_IN_CODE

    @property
    def client_sets(self) -> tuple[ClientSet, ...]:
        """Clients to train beforehand; none where several rounds train them on the way."""
        if self.federation.rounds > 1:
            return ()
        names = self.row.groups or self.federation.group_names
        return tuple(
            ClientSet(self.federation, name, self.seed, self.precision, self.defaults)
            for name in names
        )

    def described(self) -> dict[str, Any]:
        """Everything that decides the outcome, but for the code."""
        groups = self.row.groups or self.federation.group_names
        used = {name: unusual(self.federation.group(name)) for name in groups}
        shared = {
            key: value
            for key, value in unusual(self.federation).items()
            if key not in ("groups", "net", "training")
        }
        begun = {"start_of_student": self.row.start} if self.row.start else {}
        settings = {
            **changed_settings(self.defaults, self.row.method, self.settings),
            **self.settings,
        }
        return {**shared, **begun, "groups": used, "method": self.row.method, "settings": settings,
                "student": self.student, "seed": self.seed, "precision": self.precision,
                **_other_defaults(self.defaults, self.federation, groups)}  # fmt: skip

    @property
    def key(self) -> str:
        return digest(self.described())

    @property
    def name(self) -> str:
        """What its files are called: for people, and unique by the key."""
        words = f"{self.federation.data}-{self.federation.rule}-{self.row.method}-seed{self.seed}".split(
            "?"
        )
        plain = "".join(sign if sign.isalnum() or sign in "-." else "_" for sign in "-".join(words))
        return f"{plain}-{self.key[:12]}"

    @property
    def title(self) -> str:
        place = ", ".join(f"{axis} {label}" for axis, label in self.labels.items())
        return f"{self.row.label}{f', {place}' if place else ''}, seed {self.seed}"

    def method(self) -> AnyMethod:
        return configured(
            self.row.method, method_settings(self.defaults, self.row.method, self.settings)
        )

    @property
    def plugins(self) -> dict[str, Origin]:
        """Whose code it runs beside ours, of what is at hand: ``"method share-noise"``, ``"net
        twoconv"``.
        """
        nets = _origins(_net_names(self.federation, self.student, self.row.groups))
        found = {f"net {arch}": origin for arch, origin in nets.items()}
        method = None if self.row.method in BENCH_ALONE else origin_of_method(self.row.method)
        return found if method is None else {f"method {self.row.method}": method, **found}

    @property
    def sources(self) -> list[dict[str, str | None]]:
        """What tells the plug-ins' code of today from that of before, to be put into a digest;
        empty where there is none.
        """
        return (
            [{name: origin.source for name, origin in plugins.items()}]
            if (plugins := self.plugins)
            else []
        )


def cells_of(recipe: Recipe, precision: str = "fp32", wanted: Wanted | None = None) -> list[Cell]:
    """The cells of a recipe, seed by seed, so that a bench that runs out of time has whole
    tables of the first seeds.

    An axis that the recipe does not have chooses nothing in it.
    """
    load_plugins()
    found = []
    for seed in recipe.seeds:
        for row in recipe.rows:
            for point in recipe.points(row):
                facts = {**point.labels, "method": row.label, "seed": str(seed)}
                if all(
                    facts[key] in values for key, values in (wanted or {}).items() if key in facts
                ):
                    found.append(_cell(recipe, row, point, seed, precision))
    return sorted(found, key=lambda cell: cell.seed)


def _cell(recipe: Recipe, row: Row, point: Point, seed: int, precision: str) -> Cell:
    federation = (
        as_central(point.federation, recipe.defaults) if row.method == CENTRAL else point.federation
    )
    own = settings_of(row.method)
    settings = {
        **{key: value for key, value in recipe.server.items() if key in own},
        **point.settings,
    }
    published = recipe.published_for(row, point.labels, seed if recipe.per_seed else None)
    lacking = (
        *recipe.missing,
        *row.missing,
        *missing(row.method, federation, point.student, row.groups),
    )
    facts = (
        recipe.name,
        row,
        point.labels,
        federation,
        settings,
        point.student,
        seed,
        precision,
        published,
        lacking,
    )
    return Cell(*facts, after=point.after, defaults=recipe.defaults)


def as_central(federation: Federation, defaults: Release = AS_IN_CODE) -> Federation:
    """The same training with all images in one place: a federation of one client that holds
    everything.
    """
    kept = {
        key: getattr(federation, key)
        for key in ("data", "start", "net", "training", "tested_on", "leave_out")
    }
    return Federation(**{**defaults.section("federation"), **kept, "rule": "iid", "clients": 1})


def missing(
    method: str, federation: Federation, student: str | None, groups: Sequence[str] = ()
) -> list[str]:
    """What is not at hand, in words; empty where the cell can run. Methods of plug-ins count
    once they are loaded.
    """
    sources = [federation.data, *([federation.public] if federation.public else [])]
    lacking = [
        reason
        for source in sources
        for reason in _without_data(source.partition("?")[0], str(data_root()))
    ]
    if not at_hand(method):
        lacking.append(_without_method(method))
    nets = dict.fromkeys(_net_names(federation, student, groups))
    lacking += [reason for names in nets for reason in _nets(names).lacking]
    if (
        federation.start is not None
        and not federation.start.startswith("hf:")
        and not Path(federation.start).exists()
    ):
        lacking.append(f"weights {federation.start}")
    return lacking


def _without_data(source: str, root: str) -> list[str]:
    form, _, own = source.partition(":")
    if f"{form}:" in {f"{name.partition(':')[0]}:" for name in FORMS}:
        return [] if form == "hf" or Path(own).expanduser().exists() else [f"data {source}"]
    return [] if _is_here(source, root) else [f"data set {source}"]


@cache
def _is_here(source: str, root: str) -> bool:
    return is_available(source)


def _without_method(name: str) -> str:
    try:
        find_method(name)
    except SettingsError as error:
        return f"method {name}{_meant(error)}"
    return f"method {name}"


def _meant(error: AttarError) -> str:
    """What a registry says beyond that it has no such name: which one may be meant, or why that
    of a plug-in is not taken.
    """
    said, asked, name = error.what.partition(" Did you mean ")
    if asked:
        return f" (did you mean {name})"
    return "" if said.startswith("There is no ") else f" ({said.removesuffix('.')})"


def _net_names(federation: Federation, student: str | None, groups: Sequence[str]) -> list[str]:
    return [federation.group(name).net for name in groups or federation.group_names] + (
        [student] if student else []
    )


@dataclass(frozen=True)
class _Nets:
    """What a text of nets stands for, or why it stands for nothing."""

    specs: tuple[ModelSpec, ...] = ()
    lacking: tuple[str, ...] = ()  # of another package, perhaps
    wrong: tuple[str, ...] = ()  # no package would help: options that a net at hand does not have


@cache
def _nets(names: str) -> _Nets:
    if names == OF_START:
        return _Nets()
    try:
        return _Nets(tuple(parse_nets(names)))
    except AttarError as error:
        told = error
    pieces = [piece.strip() for piece in names.split(",")]
    if any(piece.startswith(PREFIX) for piece in pieces):
        return _Nets(lacking=(f"net {names}",))
    unknown = []
    for arch in [
        piece.partition(":")[0] for piece in pieces if piece and (":" in piece or "=" not in piece)
    ]:
        try:
            find(arch)
        except SpecError as error:
            unknown.append(f"net {names}{_meant(error)}")
    if unknown:
        return _Nets(lacking=tuple(unknown))
    known = f" ({told.fix})" if told.fix else ""
    return _Nets(
        wrong=tuple(f"net {names}: {problem}{known}" for problem in told.problems or (told.what,))
    )


def _origins(several: Iterable[str]) -> dict[str, Origin]:
    """The plug-ins among nets, by name."""
    archs = dict.fromkeys(spec.arch for names in several for spec in _nets(names).specs)
    return {arch: origin for arch in archs if (origin := origin_of_net(arch)) is not None}


def configured(method: str, settings: Mapping[str, Any]) -> AnyMethod:
    """A method, or one of the bench's own, with its settings."""
    return configure(ORACLES.get(method) or find_method(method), settings, of=f"method {method}")


def check_settings(cells: Iterable[Cell]) -> None:
    """Raise one SettingsError with every setting that a method, a net or the local training does
    not take, before hours are spent.
    """
    problems: list[str] = []
    for cell in cells:
        for names in _net_names(cell.federation, cell.student, cell.row.groups):
            problems += _nets(names).wrong
        try:
            for one in cell.client_sets:
                configure(
                    TrainingFlags, dict(one.spec.training), of=f"{cell.row.label}, local training"
                )
            if at_hand(cell.row.method) and cell.row.method not in (
                LOCAL,
                CENTRAL,
            ):  # whether its data are here or not
                cell.method()
        except SettingsError as error:
            problems += [
                f"{cell.row.label}: {problem}" for problem in error.problems or (error.what,)
            ]
    if problems:
        raise SettingsError(
            "Settings in the recipe that do not fit:", problems=dict.fromkeys(problems)
        )


def wanted_of(recipes: Sequence[Recipe], only: Sequence[str]) -> Wanted:
    """``["alpha=0.1", "method=DENSE", "method=FedAvg"]``: values of one key are alternatives,
    each of which some recipe has.
    """
    wanted: dict[str, set[str]] = {}
    for text in only:
        ((key, value),) = pairs([text]).items()
        wanted.setdefault(key, set()).add(value)
    known: dict[str, set[str]] = {"method": set(), "seed": set()}
    for recipe in recipes:
        known["method"] |= {row.label for row in recipe.rows}
        known["seed"] |= set(map(str, recipe.seeds))
        for axis, labels in recipe.axes.items():
            known.setdefault(axis, set()).update(labels)
    problems = [f"{key}: one of {', '.join(known)}" for key in wanted if key not in known]
    problems += [f"{key}={value}: one of {', '.join(sorted(known[key]))}"
                 for key, values in wanted.items() if key in known for value in sorted(values - known[key])]  # fmt: skip
    if problems:
        raise SettingsError(
            f"--only names nothing in {', '.join(recipe.name for recipe in recipes)}:",
            problems=problems,
        )
    return wanted


def _other_defaults(
    defaults: Release, federation: Federation, groups: Sequence[str]
) -> dict[str, Any]:
    """The defaults of local training that differ from the first release's, as a part of names."""
    kinds = {
        name: {spec.kind for spec in _nets(federation.group(name).net).specs} or EITHER
        for name in groups
    }
    changed = changed_training(defaults, federation, kinds)
    return {"defaults": changed} if changed else {}


def digest(value: Any) -> str:
    """A name for the content: equal content, equal name."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:32]


def named_by_headline(cells: Iterable[Cell]) -> dict[str, Cell]:
    """One cell for each run. Where rows share a run, that of its headline gives the name: the
    record's accuracy is the headline's.
    """
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.key not in found or cell.row.output is None:
            found[cell.key] = cell
    return found


def shared_sets(cells: Iterable[Cell]) -> dict[str, ClientSet]:
    """Every set of clients that these cells need, once."""
    return {one.key: one for cell in cells for one in cell.client_sets}
