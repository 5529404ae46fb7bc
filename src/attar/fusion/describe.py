"""What decides the outcome of a run, as JSON: for ``run.json`` and for the record."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attar.core import AnyMethod, Images, KeptSums, Server, Upload
from attar.internal.tensors import hash_tensors
from attar.methods import method_name
from attar.settings import flatten
from attar.uploads import Admission, encode, read_digest
from attar.version import __version__

# What the record of kept sums says of a client.
KEPT_OF_CLIENT = ("client", "sha256", "num_examples", "per_class", "epsilon", "delta")


def describe_run(
    uploads: Sequence[Upload], method: AnyMethod, server: Server, admission: Admission | None = None
) -> dict[str, Any]:
    """Describe everything that decides the outcome: equal descriptions give equal bits.

    Args:
        uploads: What is fused.
        method: With its settings.
        server: Its device is left out: a run may be resumed on another one.
        admission: How the uploads came in. None: they did not come as files.
    """
    admission = admission or Admission()
    return {
        "method": method_name(method),
        "settings": flatten(method),
        "student": str(server.student),
        "student_preprocess": asdict(server.student_preprocess),
        "task": asdict(server.task),
        "seed": server.seed,
        "precision": server.precision,
        "initial": None if server.initial is None else server.initial.fingerprint(),
        "public": describe_images(server.public),
        "clients": [_describe_client(upload, admission) for upload in uploads],
        "class_map": dict(admission.class_map),
        "excluded": list(admission.excluded),
        "attar": __version__,
    }


def describe_sums(
    kept: Sequence[KeptSums], clients: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The sums that stay beside the model: their file, and whose they are.

    Args:
        kept: One of each backbone.
        clients: Of the run, as the record has them.
    """
    described = []
    for number, sums in enumerate(kept):
        options = dict(sums.part.spec.options)
        fingerprint = options["fingerprint"]
        members = [client for client in clients if client.get("fingerprint") == fingerprint]
        described.append(
            {
                "file": "sums.attar" if number == 0 else f"sums-{number + 1}.attar",
                "backbone": options["backbone"],
                "fingerprint": fingerprint,
                "clients": [
                    {key: client[key] for key in KEPT_OF_CLIENT if key in client}
                    for client in members
                ],
            }
        )
    return described


def _describe_client(upload: Upload, admission: Admission) -> dict[str, Any]:
    """What a client sent. An upload that came as no file is described as the file it would be,
    so that a run is never resumed with other weights.
    """
    size, sha256 = admission.files.get(upload.client) or _describe_file(upload)
    return {
        "client": upload.client,
        "parts": {name: str(part.spec) for name, part in upload.parts.items()},
        "num_examples": upload.num_examples,
        "label_counts": None if upload.label_counts is None else list(upload.label_counts),
        "bytes": size,
        "sha256": sha256,
        **_describe_sums_of(upload),
    }


def _describe_sums_of(upload: Upload) -> dict[str, Any]:
    """What is kept of a client that sent sums, so that it can leave again; empty of others."""
    if "sums" not in upload.parts:
        return {}
    options: dict[str, Any] = dict(upload.parts["sums"].spec.options)
    return {
        "fingerprint": options["fingerprint"],
        "per_class": options.get("per_class", False),
        "epsilon": options.get("epsilon", 0.0),
        "delta": options.get("delta", 0.0),
    }


def _describe_file(upload: Upload) -> tuple[int, str]:
    """Bytes and sha256 of the file that an upload would be."""
    file = encode(upload)
    return len(file), read_digest(file)


def describe_images(images: Images | None) -> dict[str, Any] | None:
    """Where the server's images come from, whether they are labelled, and which they are."""
    if images is None:
        return None
    tensors = [images.pixels] if images.labels is None else [images.pixels, images.labels]
    return {
        "source": images.source,
        "images": len(images.pixels),
        "labelled": images.labels is not None,
        "sha256": hash_tensors(tensors),
    }
