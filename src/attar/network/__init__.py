"""One round of uploads, carried by Flower: partners run the app that the server sends.

For those who have Flower running; `attar inbox` needs no such trust, and no framework.

    plan.py      who takes part, until when, how many suffice: a JSON file of the server
    chunks.py    a file as arrays of bytes and back
    collect.py   the round itself: ask, poll, store; knows an interface of messages, not Flower
    server.py    Flower's ServerApp          client.py    Flower's ClientApp
    link.py      Flower's SuperLink behind a gate        node.py    Flower's SuperNode
    kit.py       certificates, keys, the app: what `attar network init` writes
    hosting.py   what `attar network server` and `attar network client` start, watch and stop

Everything but server.py, client.py, link.py and node.py works without Flower installed.
"""

from importlib.util import find_spec

from attar.errors import RunError

EXTRA = "pip install 'attar[flower]', or '.[flower]' in a clone"


def require_flower() -> None:
    """Raise a RunError that says what to install where Flower is missing."""
    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise RunError(
            f"The network needs {' and '.join(missing)}, which are not installed here.", fix=EXTRA
        )
