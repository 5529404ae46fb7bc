"""One paper per file, and the dict that names them. Other packages add theirs through the entry points ``attar.methods``."""

from difflib import get_close_matches
from importlib.metadata import entry_points

from attar.core import AnyMethod
from attar.errors import SettingsError
from attar.methods.accord import Accord
from attar.methods.co_boosting import CoBoosting
from attar.methods.dense import Dense
from attar.methods.ensemble import FedEns
from attar.methods.f_adi import FAdi
from attar.methods.f_dafl import FDafl
from attar.methods.fedavg import FedAvg
from attar.methods.fedcvae import FedCvae
from attar.methods.feddf import FedDF
from attar.methods.fedftg import FedFtg
from attar.methods.fedhydra import FedHydra
from attar.methods.fedkem import FedKem
from attar.methods.fedmho import FedMho
from attar.methods.fedmitr import FedMitr
from attar.methods.fednova import FedNova
from attar.methods.fedprox import FedProx
from attar.methods.scaffold import Scaffold

__all__ = [
    "METHODS",
    "Accord",
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
    "FedProx",
    "Scaffold",
    "find_method",
    "load_plugins",
    "method_name",
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
}


def find_method(name: str) -> type[AnyMethod]:
    """The method called ``name``, looking at installed plug-ins when it is not ours."""
    if name not in METHODS:
        load_plugins()
    if name not in METHODS:
        close = get_close_matches(name.lower(), METHODS, 1)
        meant = f" Did you mean {close[0]!r}?" if close else ""
        raise SettingsError(f"There is no method called {name!r}.{meant}", fix=f"choose one of: {', '.join(METHODS)}")
    return METHODS[name]


def load_plugins() -> None:
    """Add the methods of packages that declare ``attar.methods`` entry points; a name can be taken once."""
    for point in entry_points(group="attar.methods"):
        method = point.load()
        if METHODS.setdefault(point.name, method) is not method:
            raise SettingsError(f"Two packages offer a method called {point.name!r}.", fix="uninstall one of them")


def method_name(method: AnyMethod) -> str:
    """The name a method is registered under; the name of its class while it is not."""
    return next((name for name, kind in METHODS.items() if kind is type(method)), type(method).__name__)
