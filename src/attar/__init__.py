"""attar: one-shot federated learning between parties whose data, models and means all differ.

The names below are the public interface, together with ``attar.settings``, ``attar.seeds``,
``attar.testing`` and the public lists of ``attar.blocks.ensemble``, ``.heads``, ``.images``,
``.student`` and ``.execution``, which are for authors of methods. Everything else may move.

A name is imported when it is first used, so that the command line starts, and can be stopped,
before torch is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attar.version import __version__

if TYPE_CHECKING:
    from attar.core import (
        Gate,
        Images,
        Method,
        Mixture,
        ModelSpec,
        Needs,
        Part,
        Phase,
        Preprocess,
        Result,
        Server,
        State,
        Task,
        Upload,
    )
    from attar.data import Dataset, Partition, Split, load_data, partition
    from attar.errors import AttarError
    from attar.federation import Federated, Rounds, federate, federate_data
    from attar.fusion import Fused, ServerOptions, fuse, server_for
    from attar.methods import METHODS, find_method
    from attar.models import Classifier, Evaluation, evaluate_on, load_model, save_model
    from attar.nets.registry import NETS
    from attar.packing.onnx import PackedOnnx, pack_onnx
    from attar.packing.pack import pack
    from attar.privacy import check_decoder
    from attar.running import RunOptions
    from attar.training import (
        ClientData,
        LocalTraining,
        Verdict,
        judge,
        server_images,
        share_out,
        suggest_training,
        train_classifiers,
        train_cvaes,
    )
    from attar.uploads import read_bundle, read_bundles, write_bundle

__all__ = [
    "METHODS",
    "NETS",
    "AttarError",
    "Classifier",
    "ClientData",
    "Dataset",
    "Evaluation",
    "Federated",
    "Fused",
    "Gate",
    "Images",
    "LocalTraining",
    "Method",
    "Mixture",
    "ModelSpec",
    "Needs",
    "PackedOnnx",
    "Part",
    "Partition",
    "Phase",
    "Preprocess",
    "Result",
    "Rounds",
    "RunOptions",
    "Server",
    "ServerOptions",
    "Split",
    "State",
    "Task",
    "Upload",
    "Verdict",
    "__version__",
    "check_decoder",
    "evaluate_on",
    "federate",
    "federate_data",
    "find_method",
    "fuse",
    "judge",
    "load_data",
    "load_model",
    "pack",
    "pack_onnx",
    "partition",
    "read_bundle",
    "read_bundles",
    "save_model",
    "server_for",
    "server_images",
    "share_out",
    "suggest_training",
    "train_classifiers",
    "train_cvaes",
    "write_bundle",
]

_HOMES = {
    "core": (
        "Gate Images Method Mixture ModelSpec Needs Part Phase Preprocess Result Server State "
        "Task Upload"
    ),
    "data": "Dataset Partition Split load_data partition",
    "errors": "AttarError",
    "federation": "Federated Rounds federate federate_data",
    "fusion": "Fused ServerOptions fuse server_for",
    "methods": "METHODS find_method",
    "models": "Classifier Evaluation evaluate_on load_model save_model",
    "nets.registry": "NETS",
    "packing.onnx": "PackedOnnx pack_onnx",
    "packing.pack": "pack",
    "privacy": "check_decoder",
    "running": "RunOptions",
    "training": (
        "ClientData LocalTraining Verdict judge server_images share_out suggest_training "
        "train_classifiers train_cvaes"
    ),
    "uploads": "read_bundle read_bundles write_bundle",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """A public name, from the module that it lives in; it is found at once from then on."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'attar' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"attar.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
