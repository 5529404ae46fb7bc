"""The flags of `attar network init`, `server` and `client`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg


@dataclass(frozen=True)
class Init:
    """Write a folder for the server and one for each partner: app, certificates, keys; and show
    each one's command.
    """

    partners: Annotated[
        Positional[tuple[str, ...]],
        arg(
            help="Their names, as in `attar train --client`; NAME=FILE.pub for a partner that "
            "made its own key."
        ),
    ]
    address: Annotated[
        str, arg(help="The server as the partners reach it, such as fl.example.org:9080.")
    ]
    out: Annotated[Path, arg(help="An empty or new folder.")] = Path("network")
    json: Annotated[bool, arg(name="json", help="Print one JSON document for machines.")] = False


@dataclass(frozen=True)
class Server:
    """Hold the round: ask every partner, keep each upload the moment it arrives, close at the
    quorum or the deadline.
    """

    folder: Positional[Path]
    """The folder `server` that init wrote."""
    minutes: Annotated[float, arg(help="The deadline, from now.")] = 60.0
    quorum: Annotated[int | None, arg(help="So many uploads suffice; all unless given.")] = None
    late: Annotated[
        float,
        arg(help="Minutes for which late uploads are still taken, to inbox/late, after closing."),
    ] = 2.0
    inbox: Annotated[Path | None, arg(help="Where uploads go; FOLDER/inbox unless given.")] = None
    fuse: Annotated[str | None, arg(help="Fuse by this method as soon as the round closes.")] = None
    out: Annotated[Path, arg(help="With --fuse: the run and model folder.")] = Path("fused")
    student: Annotated[str | None, arg(help="With --fuse: architecture of the fused model.")] = None
    settings: Annotated[
        UseAppendAction[tuple[str, ...]],
        arg(name="set", help="With --fuse: a hyper-parameter, key=value."),
    ] = ()
    json: Annotated[
        bool, arg(name="json", help="Print one JSON document for machines, at the end.")
    ] = False


@dataclass(frozen=True)
class Client:
    """Run Flower's app, which the server sends, to send the bundle when asked; end when the server
    has it on its disk. An app that is not attar's own, by its hash, is not run.
    """

    folder: Positional[Path]
    """This partner's folder that init wrote."""
    bundle: Annotated[Path, arg(help="The upload file.")]
    train: Annotated[
        str,
        arg(
            help="'attar train --data … --net …': where there is no bundle yet, it is trained "
            "when the server asks."
        ),
    ] = ""
    minutes: Annotated[float | None, arg(help="Give up after so long; never unless given.")] = None
    json: Annotated[
        bool, arg(name="json", help="Print one JSON document for machines, at the end.")
    ] = False
