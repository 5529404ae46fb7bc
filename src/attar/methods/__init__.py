"""The methods, one paper each, by name.

A method is a file, or a folder where it needs a second one. Other packages add methods through the
entry points ``attar.methods``.
"""

from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from typing import Any, cast, get_type_hints

from attar.core import AnyMethod, Needs
from attar.errors import SettingsError
from attar.internal.plugins import explain_refusal, in_a_line, load_points
from attar.methods.accord.method import Accord
from attar.methods.analytic import Analytic
from attar.methods.co_boosting.method import CoBoosting
from attar.methods.dense import Dense
from attar.methods.ensemble import FedEns
from attar.methods.f_adi import FAdi
from attar.methods.f_dafl import FDafl
from attar.methods.fedavg import FedAvg
from attar.methods.fedcvae import FedCvae
from attar.methods.feddf import FedDF
from attar.methods.fedftg import FedFtg
from attar.methods.fedhydra import FedHydra
from attar.methods.fedkem.method import FedKem
from attar.methods.fedmho.method import FedMho
from attar.methods.fedmitr.method import FedMitr
from attar.methods.fednova import FedNova
from attar.methods.fedpft import FedPft
from attar.methods.fedprox import FedProx
from attar.methods.fisher_mix import FisherMix
from attar.methods.gaussian_head import GaussianHead
from attar.methods.local_heads import LocalHeads
from attar.methods.needs import name_parts, unknown_capabilities, unmet_needs
from attar.methods.scaffold import Scaffold

__all__ = [
    "BUILT_IN",
    "METHODS",
    "Accord",
    "Analytic",
    "CoBoosting",
    "Dense",
    "FAdi",
    "FDafl",
    "FedAvg",
    "FedCvae",
    "FedDF",
    "FedEns",
    "FedFtg",
    "FedHydra",
    "FedKem",
    "FedMho",
    "FedMitr",
    "FedNova",
    "FedPft",
    "FedProx",
    "FisherMix",
    "GaussianHead",
    "LocalHeads",
    "Scaffold",
    "class_problems",
    "find_method",
    "load_plugins",
    "method_name",
    "name_parts",
    "unmet_needs",
]

METHODS: dict[str, type[AnyMethod]] = {
    "fedavg": FedAvg,
    "ensemble": FedEns,
    "feddf": FedDF,
    "dense": Dense,
    "f-dafl": FDafl,
    "f-adi": FAdi,
    "fedftg": FedFtg,
    "co-boosting": CoBoosting,
    "fedhydra": FedHydra,
    "fedcvae": FedCvae,
    "fedmho": FedMho,
    "fedmitr": FedMitr,
    "fedprox": FedProx,
    "fednova": FedNova,
    "scaffold": Scaffold,
    "fedkem": FedKem,
    "accord": Accord,
    "gaussian-head": GaussianHead,
    "analytic": Analytic,
    "fedpft": FedPft,
    "fisher-mix": FisherMix,
    "local-heads": LocalHeads,
}
BUILT_IN = frozenset(METHODS)  # names that no plug-in can take
TEXTS = ("paper", "cost")  # class variables that describe a method
STEPS = ("prepare", "start", "phases", "result")  # its methods, in the order of a run


def find_method(name: str) -> type[AnyMethod]:
    """The class of the method called ``name``, a built-in one or one of an installed plug-in.

    Raises:
        SettingsError: if there is none; it names a similar one, or why a plug-in was refused.
    """
    if name in METHODS:
        return METHODS[name]
    if reason := explain_refusal(load_plugins(), name):
        raise SettingsError(
            reason,
            fix="repair or uninstall that package, or choose another method (`attar ls methods`)",
        )
    if name not in METHODS:
        close = get_close_matches(name.lower(), METHODS, 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingsError(
            f"There is no method called {name!r}.{meant}",
            fix=f"choose one of: {', '.join(METHODS)}",
        )
    return METHODS[name]


def load_plugins() -> dict[str, str]:
    """Add the methods of packages that declare ``attar.methods`` entry points.

    Returns:
        By name, the methods that were refused and why.
    """
    return load_points("attar.methods", "method", BUILT_IN.__contains__, _add)


def _add(name: str, kind: object) -> str | None:
    """Register a class under a name; the reason where that is refused."""
    if METHODS.get(name, kind) is not kind:
        return f"the name is taken by {METHODS[name].__module__}.{METHODS[name].__qualname__}"
    if problems := class_problems(kind):
        return "; ".join(problems)
    METHODS[name] = cast(type[AnyMethod], kind)
    return None


def class_problems(kind: object) -> list[str]:
    """What a class lacks to be listed and run as a method.

    It may come from another package, and no type checker may have seen it. What its methods do is
    checked by ``testing.check_method``.

    Returns:
        A sentence for each problem; empty where there is none.
    """
    if not isinstance(kind, type):
        return [f"it is {kind!r}, not a class"]
    problems = [
        f"its class variable `{name}` is missing: a line of text"
        for name in TEXTS
        if not _is_text(getattr(kind, name, None))
    ]
    problems += [
        f"it has no method `{name}`" for name in STEPS if not callable(getattr(kind, name, None))
    ]
    generated = f"{kind.__name__}("  # how the docstring begins that a dataclass writes by itself
    if not _is_text(kind.__doc__) or str(kind.__doc__).startswith(generated):
        problems.append("it has no docstring, whose first line says what it does")
    if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return [*problems, "it is no frozen dataclass: a method's fields are the record of the run"]
    required = [
        field.name
        for field in fields(kind)
        if field.init and field.default is MISSING and field.default_factory is MISSING
    ]
    if required:
        names = ", ".join(required)
        return [*problems, f"fields without a default (the paper's value): {names}"]
    return problems + _needs_problems(kind)


def _needs_problems(kind: type[Any]) -> list[str]:
    try:
        get_type_hints(kind)
        needs = kind().needs
    except Exception as error:  # foreign code may raise anything
        return [f"with its defaults it cannot be made and asked what it needs: {in_a_line(error)}"]
    if not isinstance(needs, Needs):
        return [f"its `needs` is {needs!r}, not Needs(...)"]
    return unknown_capabilities(needs)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def method_name(method: AnyMethod) -> str:
    """The name under which a method is registered, or the name of its class if it is not."""
    return next(
        (name for name, kind in METHODS.items() if kind is type(method)), type(method).__name__
    )
