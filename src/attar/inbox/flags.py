"""The flags of `attar inbox invite`, `serve` and `send`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg


@dataclass(frozen=True)
class Invite:
    """Write an invitation for one partner: a file with the server's address and certificate, and a
    token with which this partner can send one upload.
    """

    name: Positional[str]
    """The partner's name, as in `attar train --client`."""
    folder: Annotated[Path, arg(help="The inbox.")] = Path("inbox")
    address: Annotated[
        str | None,
        arg(
            help="The server as the partners reach it, such as fl.example.org:9080; needed for "
            "the first invitation."
        ),
    ] = None
    days: Annotated[float, arg(help="How long the invitation is valid.")] = 14.0
    out: Annotated[Path | None, arg(help="The file; NAME.invitation unless given.")] = None
    json: Annotated[bool, arg(name="json", help="Print one JSON document for machines.")] = False


@dataclass(frozen=True)
class Serve:
    """Receive the uploads of all who are invited; end when all are here, enough are, or the time is
    over.
    """

    folder: Positional[Path]
    """The inbox, which the first invitation made."""
    wait_for: Annotated[
        int | None, arg(help="So many uploads suffice; those of all who are invited unless given.")
    ] = None
    minutes: Annotated[
        float | None, arg(help="End after so long; when all are here unless given.")
    ] = None
    listen: Annotated[str, arg(help="The address of this machine to listen on.")] = "0.0.0.0"
    port: Annotated[
        int | None, arg(help="The port to listen on; that of the invitations unless given.")
    ] = None
    most: Annotated[float, arg(help="The largest upload, in MB.")] = 4294.0
    fuse: Annotated[str | None, arg(help="Fuse what arrived by this method at the end.")] = None
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
class Send:
    """Send an upload to the server that an invitation names; end when it is accepted there.

    What was sent before a break is not sent again. Nothing that the server sends is run.
    """

    file: Positional[Path]
    """The upload file."""
    invitation: Positional[Path]
    """The invitation file from the server's operator."""
    minutes: Annotated[float, arg(help="Keep trying for so long.")] = 60.0
    json: Annotated[
        bool, arg(name="json", help="Print one JSON document for machines, at the end.")
    ] = False
