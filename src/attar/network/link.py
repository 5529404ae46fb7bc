"""Flower's SuperLink behind a gate: ``python -m attar.network.link`` takes the arguments of
``flower-superlink``.

SuperLink serves three interfaces on one port. Control (register a key, start a program on the
server) and Runtime ask for no key at all, so here they answer this machine alone. Partners need
Fleet, where each call is signed with a registered key; SuperLink looks at the signature when it
has read the whole body, so here it is looked at before a long body is read. Connections that
prove nothing have to go in time, as at the inbox. The process ends when the one that started it
is gone, so that a killed `attar network server` leaves no port taken.
"""

import base64
import datetime
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from attar.inbox.listener import MOST_CONNECTIONS, LimitedListener, raise_descriptor_limit

PUBLIC = "/v1/fleet/"
LOOPBACK = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
KEYS = "ATTAR_NETWORK_KEYS"  # environment: the folder of the partners' public keys
MOST_BODY = 16 * 2**20  # bytes of one call; Flower splits what is larger than 5 MiB
STRANGERS_BODY = 16 * 2**10  # without a registered key: enough for SuperLink to say what is wrong
MOST_AGE = 305.0  # seconds of a signature, as in Flower

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """An ASGI app that lets calls of partners through, and those of this machine.

    Args:
        app: SuperLink.
        keys: the partners' public keys, as ``read_keys`` reads them; None looks at no signature.
        listener: the socket, which is told who proved to be a partner; None where there is none.
    """

    def __init__(
        self,
        app: Application,
        keys: frozenset[bytes] | None = None,
        listener: LimitedListener | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or refuse it by its headers."""
        status = None if scope["type"] == "lifespan" else self._refuse(scope)
        if status is None:
            if self._listener is not None and scope.get("client") and self._is_known(scope):
                self._listener.authenticate((scope["client"][0], scope["client"][1]))
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-length", b"0"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refuse(self, scope: Scope) -> int | None:
        """The status with which a call is refused; None where it is let through."""
        if not is_allowed(scope):
            return 403
        if self._keys is None or not str(scope.get("path", "")).startswith(PUBLIC):
            return None
        length = dict(scope["headers"]).get(b"content-length", b"")
        if not length.isdigit():
            return 411
        size = int(length[:20])
        if size > MOST_BODY:
            return 413
        return None if size <= STRANGERS_BODY or self._is_known(scope) else 401

    def _is_known(self, scope: Scope) -> bool:
        """Whether the caller is a partner, or on this machine where all is open to it."""
        if not str(scope.get("path", "")).startswith(PUBLIC):
            return True
        return self._keys is not None and is_signed(dict(scope["headers"]), self._keys)


def is_allowed(scope: Scope) -> bool:
    """Whether this caller may use that path."""
    client = scope.get("client")
    return str(scope.get("path", "")).startswith(PUBLIC) or (
        client is not None and client[0] in LOOPBACK
    )


def is_signed(headers: MutableMapping[bytes, bytes], keys: frozenset[bytes]) -> bool:
    """Whether the headers of a call hold a fresh time, signed with one of the keys.

    Args:
        headers: by their names in small letters, as ASGI has them.
        keys: public keys, PEM.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = base64.b64decode(headers[b"flwr-public-key"], validate=True)
        signature = base64.b64decode(headers[b"flwr-signature"], validate=True)
        signed = headers[b"flwr-timestamp"]
        age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(signed.decode())
        if key not in keys or abs(age.total_seconds()) > MOST_AGE:
            return False
        public = serialization.load_pem_public_key(key)
        assert isinstance(public, ec.EllipticCurvePublicKey), "read_keys read it"
        public.verify(signature, signed, ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, InvalidSignature):
        return False
    return True


def read_keys(folder: Path) -> frozenset[bytes]:
    """The public keys in a folder of OpenSSH files, PEM as in the headers of Flower's calls."""
    from cryptography.hazmat.primitives import serialization as form

    keys = (form.load_ssh_public_key(path.read_bytes()) for path in folder.glob("*.pub"))
    layout = form.PublicFormat.SubjectPublicKeyInfo
    return frozenset(key.public_bytes(form.Encoding.PEM, layout) for key in keys)


def end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Run Flower's SuperLink with the gate in front."""
    import uvicorn
    from flwr.superlink.cli import flower_superlink

    end_with_parent()
    raise_descriptor_limit()
    keys = read_keys(Path(os.environ[KEYS]))

    def run_behind_gate(app: Application, host: str, port: int, **options: Any) -> None:
        most = MOST_CONNECTIONS + 4 * len(keys)
        with LimitedListener(host, port, most=most) as listener:
            gate = Gate(app, keys, listener)
            # Another loop than asyncio's would not ask the listener.
            config = uvicorn.Config(gate, host=host, port=port, loop="asyncio", **options)
            server = uvicorn.Server(config)
            threading.Thread(target=_close_expired, args=(listener,), daemon=True).start()
            gc.freeze()  # what is imported stays, so that collecting garbage takes less time
            server.run(sockets=[listener])

    uvicorn.run = run_behind_gate  # type: ignore[assignment]
    flower_superlink()


def _close_expired(listener: LimitedListener) -> None:
    """Send away, every second, who has had their time."""
    while listener.fileno() >= 0:
        listener.close_expired()
        time.sleep(1.0)


if __name__ == "__main__":
    main()
