"""The cells of a grid: what decides each run's outcome, and which trained clients it needs."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attar.bench.defaults import changed_settings, changed_training, method_settings, non_default
from attar.bench.methods import BENCH_ALONE, configure_method
from attar.bench.nets import net_names, plugin_nets, resolve_nets
from attar.bench.provenance import Origin, origin_of_method
from attar.bench.recipe import Federation, Group, Labels, Published, Row
from attar.bench.releases import AS_IN_CODE, Release
from attar.bench.versions import training_codes
from attar.core import AnyMethod
from attar.settings import Scalar

BOTH_KINDS = {"classifier", "cvae"}  # kinds of a net that is not known
# Fields of a federation that do not change its trained clients, or that are named with the group.
NOT_TRAINING = ("groups", "net", "training", "rounds", "sample", "tested_on", "public",
                "server_images", "evaluate_every")  # fmt: skip


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
        """How these clients train."""
        return self.federation.group(self.group)

    def describe(self) -> dict[str, Any]:
        """Everything that decides how these clients come out."""
        federation = non_default(self.federation)
        shared = {key: value for key, value in federation.items() if key not in NOT_TRAINING}
        plugins = self.plugins
        return {
            **shared,
            "group": non_default(self.spec),
            "seed": self.seed,
            "precision": self.precision,
            "code": training_codes()[0],
            # Without plug-ins there is no such entry: keys stay what they were before it existed.
            **({"plugins": plugins} if plugins else {}),
            **_changed_defaults(self.defaults, self.federation, [self.group]),
        }

    @property
    def plugins(self) -> dict[str, str | None]:
        """The nets of other packages, each with a hash of its source."""
        return {arch: origin.source for arch, origin in plugin_nets([self.spec.net]).items()}

    @property
    def key(self) -> str:
        """The name of these clients, which follows from what decides how they come out."""
        return digest(self.describe())

    @property
    def keys(self) -> list[str]:
        """The key, and those that the same clients had before training had a version."""
        description = self.describe()
        return [digest({**description, "code": code}) for code in training_codes()]


@dataclass(frozen=True)
class Cell:
    """One run: a row of the table at one place of the grid with one seed.

    Attributes:
        recipe: The name of the recipe.
        row: The row of its table.
        labels: The place of the grid: the label of each axis.
        federation: Who holds what and trains what.
        settings: Settings of the method, as the recipe gives them.
        student: The student's architecture; None: the method decides.
        seed: The seed of the run.
        precision: The precision of training and fusion.
        published: The number of the paper, where it prints one.
        missing: What the run needs and is not available, in words.
        compile: Whether nets are compiled on a GPU. It changes the time of a run, and its
            outcome by rounding alone, so it is no part of the key.
        after: The round that the table asks for. It does not change the run.
        defaults: What holds where the recipe says nothing.
    """

    recipe: str
    row: Row
    labels: Labels
    federation: Federation
    settings: Mapping[str, Scalar]
    student: str | None
    seed: int
    precision: str
    published: Published | None
    missing: tuple[str, ...] = ()
    compile: bool = False
    after: int | None = None
    defaults: Release = AS_IN_CODE

    @property
    def group_names(self) -> tuple[str, ...]:
        """The groups whose uploads are fused."""
        return self.row.groups or self.federation.group_names

    @property
    def client_sets(self) -> tuple[ClientSet, ...]:
        """Clients to train before the run; none where its rounds train them."""
        if self.federation.rounds > 1:
            return ()
        return tuple(
            ClientSet(self.federation, name, self.seed, self.precision, self.defaults)
            for name in self.group_names
        )

    def describe(self) -> dict[str, Any]:
        """Everything that decides the outcome, but for the code."""
        federation = non_default(self.federation)
        not_shared = ("groups", "net", "training")
        shared = {key: value for key, value in federation.items() if key not in not_shared}
        groups = {name: non_default(self.federation.group(name)) for name in self.group_names}
        changed = changed_settings(self.defaults, self.row.method, self.settings)
        return {
            **shared,
            **({"start_of_student": self.row.start} if self.row.start else {}),
            "groups": groups,
            "method": self.row.method,
            "settings": {**changed, **self.settings},
            "student": self.student,
            "seed": self.seed,
            "precision": self.precision,
            **_changed_defaults(self.defaults, self.federation, self.group_names),
        }

    @property
    def key(self) -> str:
        """The name of the run, which follows from what decides its outcome."""
        return digest(self.describe())

    @property
    def name(self) -> str:
        """The name of its files: readable, and unique by the key."""
        federation = self.federation
        text = f"{federation.data}-{federation.rule}-{self.row.method}-seed{self.seed}"
        text = text.replace("?", "-")
        plain = "".join(sign if sign.isalnum() or sign in "-." else "_" for sign in text)
        return f"{plain}-{self.key[:12]}"

    @property
    def title(self) -> str:
        """The cell in words."""
        place = ", ".join(f"{axis} {label}" for axis, label in self.labels.items())
        return f"{self.row.label}{f', {place}' if place else ''}, seed {self.seed}"

    def method(self) -> AnyMethod:
        """The method with its settings.

        Raises:
            SettingsError: The method does not take a setting, or has lost one of the release.
        """
        values = method_settings(self.defaults, self.row.method, self.settings)
        return configure_method(self.row.method, values)

    @property
    def plugins(self) -> dict[str, Origin]:
        """The code of other packages that the run uses, by ``"method NAME"`` or ``"net NAME"``.

        What is not available is left out.
        """
        nets = plugin_nets(net_names(self.federation, self.student, self.row.groups))
        origins = {f"net {arch}": origin for arch, origin in nets.items()}
        method = None if self.row.method in BENCH_ALONE else origin_of_method(self.row.method)
        return origins if method is None else {f"method {self.row.method}": method, **origins}

    @property
    def plugin_sources(self) -> list[dict[str, str | None]]:
        """The hashes of the plug-ins' sources as a part of a digest; empty without plug-ins."""
        sources = {name: origin.source for name, origin in self.plugins.items()}
        return [sources] if sources else []


def _changed_defaults(
    defaults: Release, federation: Federation, groups: Sequence[str]
) -> dict[str, Any]:
    """The defaults of local training that differ from the first release's, as a part of keys."""
    kinds = {
        name: {spec.kind for spec in resolve_nets(federation.group(name).net).specs} or BOTH_KINDS
        for name in groups
    }
    changed = changed_training(defaults, federation, kinds)
    return {"defaults": changed} if changed else {}


def digest(value: Any) -> str:
    """A name that follows from the content: equal content, equal name."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def unique_runs(cells: Iterable[Cell]) -> dict[str, Cell]:
    """One cell for each run, by its key.

    Where several rows share a run, the one about the headline stands for it, because the
    record's accuracy is the headline's.
    """
    runs: dict[str, Cell] = {}
    for cell in cells:
        if cell.key not in runs or cell.row.output is None:
            runs[cell.key] = cell
    return runs


def unique_client_sets(cells: Iterable[Cell]) -> dict[str, ClientSet]:
    """Every set of clients that these cells need, by its key."""
    return {clients.key: clients for cell in cells for clients in cell.client_sets}
