"""Flower's ClientApp: sends the partner's upload when asked; trains first where there is none.

What is trained, and by which command, stands in the partner's own folder. The server's message
carries no other instruction than its type.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from attar.errors import AttarError, RunError
from attar.internal.files import write_atomic
from attar.network import chunks
from attar.uploads import read_bundle

app = ClientApp()


@app.train()
def send(message: Message, context: Context) -> Message:
    """Answer with the upload in pieces, or with the reason why there is none."""
    try:
        settings = _settings(context)
        data = _read_or_train(Path(settings["bundle"]), settings["train"])
    except (AttarError, OSError) as error:
        return Message(
            RecordDict({"about": ConfigRecord({"failed": str(error)})}), reply_to=message
        )
    pieces = chunks.split(data)
    arrays = {
        name: Array(dtype="uint8", shape=(len(piece),), stype=chunks.STYLE, data=piece)
        for name, piece in zip(chunks.names(len(pieces)), pieces, strict=True)
    }
    about = ConfigRecord({"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)})
    return Message(RecordDict({"about": about, "bundle": ArrayRecord(arrays)}), reply_to=message)


@app.query()
def receive_receipt(message: Message, context: Context) -> Message:
    """Write down that the server has the file, where `attar network client` looks for it."""
    receipt = message.content.config_records["receipt"]
    content = {"sha256": str(receipt["sha256"]), "bytes": int(str(receipt["bytes"]))}
    write_atomic(Path(_settings(context)["receipt"]), json.dumps(content) + "\n")
    return Message(RecordDict(), reply_to=message)


def _settings(context: Context) -> dict[str, Any]:
    """The settings in the partner's folder: bundle, train, receipt."""
    settings: dict[str, Any] = json.loads(Path(str(context.node_config["settings"])).read_text())
    return settings


def _read_or_train(path: Path, training: Sequence[str]) -> bytes:
    """The bytes of the upload; it is trained first where it is missing."""
    if not path.exists() and training:
        command = [sys.executable, "-m", "attar", "train", *training, "--out", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RunError(
                f"The training failed (status {done.returncode}): {done.stderr.strip()[-1000:]}"
            )
    read_bundle(path)
    return path.read_bytes()
