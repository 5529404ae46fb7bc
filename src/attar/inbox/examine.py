"""The check of finished files: ``python -m attar.inbox.examine``, a process beside the server.

It reads a line of JSON for each file, ``{"path": …, "partner": …}``, and answers with a line,
``{"sha256": …, "problems": […]}``. It ends when its input does. What a file makes it do costs
this process alone: its memory is limited, and the server ends it when its time is over.
"""

import json
import sys
from pathlib import Path
from typing import Any

from attar.errors import AttarError
from attar.inbox.folder import check_sender, hash_file
from attar.inbox.memory import limit_memory
from attar.uploads import check_file

SPARE = 2**30  # bytes that a check may use beside the file itself


def main() -> None:
    """Answer until the input ends."""
    _answer({"ready": True})
    for line in sys.stdin:
        question = json.loads(line)
        _answer(_examine(Path(question["path"]), question["partner"]))


def _examine(path: Path, partner: str) -> dict[str, Any]:
    """The hash of a file, and what is wrong with it as an upload of this partner."""
    limit_memory(path.stat().st_size + SPARE)
    try:
        digest = hash_file(path)
        check_sender(check_file(path, f"What {partner} sent"), partner)
    except AttarError as error:
        return {"sha256": digest, "problems": list(error.problems) or [error.what]}
    except MemoryError:
        return {"sha256": digest, "problems": ["its check would need too much memory"]}
    return {"sha256": digest, "problems": []}


def _answer(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
