"""The inbox: partners send their upload files over plain HTTPS, and run nothing of the server's.

    names.py        names of partners and addresses of servers
    folder.py       the folder of uploads, which decides what has arrived, and the journal beside it
    invitation.py   what a partner gets: address, token and the server's certificate, in one file
    register.py     what the server keeps: its certificate, and the hash of each token
    certificate.py  the server's own certificate
    partial.py      an upload that is on its way
    examine.py      the check of a finished file, in a process of its own
    memory.py       its limit of memory
    examiner.py     that process as the server sees it
    listener.py     the listening socket: how many connections are open, and for how long
    service.py      the server as an ASGI application
    headers.py      what the headers of a request say
    receive.py      the body of one upload: rate, silence, disk
    serving.py      runs it until all have arrived or the time is over
    sending.py      the partner's side: the standard library alone
    fusing.py       the fusion of what arrived
    verbs.py        what `attar inbox invite`, `serve` and `send` do

Only the server needs more than attar itself: hypercorn and cryptography.
"""

from importlib.util import find_spec

from attar.errors import RunError

EXTRA = "pip install 'attar[inbox]', or '.[inbox]' in a clone"


def require_inbox() -> None:
    """Raise a RunError that says what to install where the server's packages are missing."""
    missing = [name for name in ("hypercorn", "cryptography") if find_spec(name) is None]
    if missing:
        raise RunError(
            f"The inbox needs {' and '.join(missing)}, which are not installed here.", fix=EXTRA
        )
