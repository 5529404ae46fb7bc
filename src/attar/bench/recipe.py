"""A recipe as values: one published table, its rows, and the places of its grid."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

from attar.bench.releases import AS_IN_CODE, Release
from attar.errors import SettingsError
from attar.settings import Scalar, coerce_settings

_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:±\s*(\d+(?:\.\d+)?))?\s*$")

ServerImages = Literal["held-out", "training"]
Labels = Mapping[str, str]  # axis -> the label of a value


@dataclass(frozen=True)
class Group:
    """Clients of a federation that train in one way.

    The same client may be in several groups: strong in one, weak in another.

    Attributes:
        clients: Their numbers, as ``attar train --client`` has them.
        net: Architectures, separated by commas, which go round the clients.
        preset: The preset of a CVAE's training.
        training: Settings of local training that are not the defaults.
    """

    clients: str = "all"
    net: str = "lenet5"
    preset: str = "auto"
    training: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Federation:
    """Who holds what and trains what.

    Attributes:
        data: The data source.
        rule: How its training images are dealt to the clients.
        clients: Number of clients.
        hold_out: Share of the training images that is held out for the server.
        public: Data whose images, without labels, the server has; None: as ``server_images`` says.
        server_images: ``held-out``: the server has the images held out; ``training``: all training
            images, the clients' own included, as the code of FedKEM's authors has it.
        min_size: The fewest images that a client may have.
        least_share: The same, as a share of an equal part of the images.
        leave_out: A domain that no client gets.
        tested_on: ``test``, the test part, or ``left-out``, the domain that no client has.
        start: A model that all clients start from.
        rounds: Number of rounds; clients of several rounds are trained within the run.
        sample: Share of the clients that take part in a round.
        evaluate_every: After every so many rounds, and the last, models are evaluated.
        net: Architectures of the clients; ``start``: the net of ``start``.
        statistics: Whether classifiers are sent with the statistics of their features.
        training: Settings of local training that are not the defaults.
        groups: Clients that train in their own way; empty: all clients are one group.
    """

    data: str = "fashion-mini"
    rule: str = "dirichlet:0.3"
    clients: int = 5
    hold_out: float = 0.0
    public: str | None = None
    server_images: ServerImages = "held-out"
    min_size: int = 0
    least_share: float = 0.0
    leave_out: str | None = None
    tested_on: str = "test"
    start: str | None = None
    rounds: int = 1
    sample: float = 1.0
    evaluate_every: int = 1
    net: str = "lenet5"
    statistics: bool = False
    training: Mapping[str, Scalar] = field(default_factory=dict)
    groups: Mapping[str, Group] = field(default_factory=dict)

    def group(self, name: str) -> Group:
        """A group by its name; where there are no groups, the one of all clients."""
        return self.groups[name] if self.groups else Group("all", self.net, "auto", self.training)

    @property
    def group_names(self) -> tuple[str, ...]:
        """The names of the groups; ``clients`` where there are none."""
        return tuple(self.groups) or ("clients",)


@dataclass(frozen=True)
class Published:
    """A number as printed, and its deviation where there is one."""

    value: float
    deviation: float | None = None

    @classmethod
    def parse(cls, text: object) -> "Published":
        """Read ``71.2`` or ``71.2±0.4``.

        Raises:
            ValueError: It is neither.
        """
        match = _NUMBER.match(str(text))
        if match is None:
            raise ValueError(f"{text!r} is neither a number nor number±deviation")
        return cls(float(match[1]), None if match[2] is None else float(match[2]))


class PublishedNumber(NamedTuple):
    """A published number and where it stands in the table.

    Attributes:
        labels: The axes that the paper names; the number holds for every value of the others.
        seed: Where the paper prints a number for each seed, else None.
        row: The label of the row.
        number: The number.
    """

    labels: Labels
    seed: int | None
    row: str
    number: Published


@dataclass(frozen=True)
class Row:
    """One method of the table with its settings.

    Attributes:
        label: What the table calls it.
        method: The method's name.
        settings: Settings of the method.
        student: The student's architecture; None: the method decides.
        output: The model of the result that the table is about; None: the headline.
        groups: Whose uploads are fused; empty: those of all groups.
        only: The labels at which the row has cells, by axis.
        federation: Entries of the federation that differ in this row.
        missing: What nobody has, in words.
        curve: Number of points of the accuracy curve.
        start: What the student starts from: ``average`` (of the clients), ``start`` (of the
            federation), or a model's path; None: the method decides.
        fid: An Inception file. With it the record has the distance of the decoders' images to
            real ones.
    """

    label: str
    method: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    student: str | None = None
    output: str | None = None
    groups: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    curve: int = 20
    start: str | None = None
    fid: str | None = None

    def applies(self, labels: Labels) -> bool:
        """Whether the row has a cell at this place of the grid."""
        return all(labels[axis] in wanted for axis, wanted in self.only.items())


@dataclass(frozen=True)
class Point:
    """One place of the grid: a label for each axis, and what a row is there.

    Attributes:
        labels: The label of each axis.
        federation: The federation there.
        settings: Settings of the row's method.
        student: The student's architecture; None: the method decides.
        after: The round whose accuracy the table wants; None: the last. Several points may
            so be about one run.
    """

    labels: Labels
    federation: Federation
    settings: Mapping[str, Scalar]
    student: str | None
    after: int | None = None

    def __post_init__(self) -> None:
        if self.after is not None and not 1 <= self.after <= self.federation.rounds != 1:
            raise SettingsError(
                f"after is {self.after}, with {self.federation.rounds} in rounds.",
                fix="name one of several rounds",
            )


@dataclass(frozen=True)
class Recipe:
    """A published table as it can be run.

    Attributes:
        name: Such as ``coboosting/table1``.
        title: What it repeats.
        source: Where that was published.
        seeds: One run of each cell for each.
        axes: axis -> label -> value; the grid is their product.
        federation: Entries of the federation, with placeholders for values of axes.
        server: Settings for every method that has them.
        rows: The methods.
        published: The numbers of the paper.
        notes: What a reader should know.
        missing: What nobody has, in words.
        defaults: What holds where the recipe says nothing.
    """

    name: str
    title: str
    source: str
    seeds: tuple[int, ...]
    axes: Mapping[str, Mapping[str, Any]]
    federation: Mapping[str, Any]
    server: Mapping[str, Scalar]
    rows: tuple[Row, ...]
    published: tuple[PublishedNumber, ...]
    notes: str = ""
    missing: tuple[str, ...] = ()
    defaults: Release = AS_IN_CODE

    @property
    def per_seed(self) -> bool:
        """Whether the paper prints a number for each seed."""
        return any(number.seed is not None for number in self.published)

    def points(self, row: Row) -> Iterator[Point]:
        """The places of the grid where a row has a cell.

        Raises:
            SettingsError: A placeholder stands for nothing, or a value has the wrong type.
        """
        for values in itertools.product(*(axis.items() for axis in self.axes.values())):
            chosen = dict(zip(self.axes, values, strict=True))
            labels = {axis: label for axis, (label, _) in chosen.items()}
            if row.applies(labels):
                yield self._point(row, labels, {axis: value for axis, (_, value) in chosen.items()})

    def published_for(self, row: Row, labels: Labels, seed: int | None) -> Published | None:
        """The number of the paper at one place; None where it prints none."""
        for published in self.published:
            if (
                published.row == row.label
                and published.seed == seed
                and all(labels[axis] == label for axis, label in published.labels.items())
            ):
                return published.number
        return None

    def _point(self, row: Row, labels: Labels, values: Mapping[str, Any]) -> Point:
        keys = {*(entry.name for entry in fields(Federation)), "after"}
        whole: dict[str, Any] = dict(self.federation)
        words: dict[str, Scalar] = dict(labels)
        for axis, value in values.items():
            if not isinstance(value, dict):
                words[axis] = value
                whole |= {axis: value} if axis in keys else {}
                continue
            inside = {key: entry for key, entry in value.items() if key in keys}
            whole = merge_tables(whole, inside)
            words |= {key: entry for key, entry in value.items() if key not in keys}
        entries = _fill(merge_tables(whole, row.federation), words)
        settings = _fill(dict(row.settings), words)
        student = _fill(row.student, words)
        self._check_placeholders(row, words, [entries, settings, student])
        of = f"recipe {self.name}"
        after = coerce_settings({"after": int | None}, {"after": entries.pop("after", None)}, of=of)
        federation = _make_federation(entries, of, self.defaults)
        return Point(labels, federation, settings, student, **after)

    def _check_placeholders(self, row: Row, words: Mapping[str, Scalar], filled: list[Any]) -> None:
        unknown = dict.fromkeys(name for value in filled for name in _find_placeholders(value))
        if not unknown:
            return
        known = f"there are {', '.join(words)}" if words else "the recipe has no axes"
        problems = [
            f"methods.{row.label}: {{{name}}} stands for nothing; {known}" for name in unknown
        ]
        raise SettingsError(f"Placeholders of recipe {self.name}:", problems=problems)


def with_seeds(recipe: Recipe, count: int | None) -> Recipe:
    """The first ``count`` seeds of a recipe; where it has fewer, numbers after its largest follow.

    Raises:
        SettingsError: The count is below 1.
    """
    if count is None:
        return recipe
    if count < 1:
        raise SettingsError(f"--seeds {count}: expected a number from 1")
    more = range(max(recipe.seeds) + 1, max(recipe.seeds) + 1 + count)
    return replace(recipe, seeds=tuple([*recipe.seeds, *more][:count]))


def merge_tables(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the entries of ``top``; tables within are merged."""
    whole = dict(base)
    for key, value in top.items():
        below = whole.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            value = merge_tables(below, value)
        whole[key] = value
    return whole


def _make_federation(entries: Mapping[str, Any], of: str, defaults: Release) -> Federation:
    types = {"data": str, "rule": str, "clients": int, "hold_out": float, "public": str | None,
             "min_size": int, "least_share": float, "leave_out": str | None, "tested_on": str,
             "start": str | None, "rounds": int, "sample": float, "net": str,
             "statistics": bool, "server_images": ServerImages,
             "evaluate_every": int}  # fmt: skip
    plain = {key: value for key, value in entries.items() if key not in ("training", "groups")}
    training = entries.get("training", {})
    values = {
        **coerce_settings(types, plain, of=of),
        "training": dict(training),
        "groups": {
            name: _make_group(name, entry, training, defaults)
            for name, entry in dict(entries.get("groups", {})).items()
        },
    }
    return Federation(**{**defaults.section("federation"), **values})


def _make_group(name: str, entry: Mapping[str, Any], training: Any, defaults: Release) -> Group:
    """Make a group; ``training`` is the federation's, for a group that says nothing of it."""
    types = {"clients": str, "net": str, "preset": str, "training": dict}
    plain = {key: value for key, value in entry.items() if key != "training"}
    values = coerce_settings(types, plain, of=f"group {name}")
    values["training"] = dict(entry.get("training", training))
    return Group(**{**defaults.section("group"), **values})


def _fill(value: Any, words: Mapping[str, Scalar]) -> Any:
    """Put the values of axes in the place of placeholders, in tables within as well.

    ``"classes:{C}"`` gets the value of axis C as text; ``"{C}"`` alone becomes that value
    itself, a number where it is one.
    """
    if isinstance(value, str):
        for name, word in words.items():
            if value == f"{{{name}}}":
                return word
            value = value.replace(f"{{{name}}}", str(word))
        return value
    if isinstance(value, dict):
        return {key: _fill(inside, words) for key, inside in value.items()}
    return value


def _find_placeholders(value: Any) -> list[str]:
    """The placeholders that are left in a text or in the texts of a table."""
    if isinstance(value, dict):
        return [name for inside in value.values() for name in _find_placeholders(inside)]
    return _PLACEHOLDER.findall(value) if isinstance(value, str) else []
