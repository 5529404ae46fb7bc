"""``attar plan``: choose a net for each device."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from attar.cli.arguments import Json
from attar.cli.output import console
from attar.federation import allocate, read_devices
from attar.internal.text import human_bytes


def plan(
    devices: Annotated[Positional[Path], arg(help="A TOML file: examples/devices.toml.")],
    /,
    *,
    json: Json = False,
) -> None:
    """Choose a net for each device: the largest that fits its memory and its limit of
    multiply-accumulates.
    """
    rows = allocate(read_devices(devices))
    console.emit(rows, lambda: _show(rows), json=json)


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The net of each device, and what training it costs there."""
    cells = [
        (
            row["device"],
            row["net"],
            f"{row['parameters']:,}",
            f"{row['macs'] / 1e6:,.1f} M",
            f"of {row['mac_budget'] / 1e6:,.1f} M",
            human_bytes(row["memory_bytes"]),
            f"of {human_bytes(row['memory_budget'])}",
            human_bytes(row["upload_bytes"]),
        )
        for row in rows
    ]
    columns = ("device", "net", "parameters", "MACs", "budget", "memory", "budget ", "upload")
    console.show_table("Who gets what", columns, cells, right=columns[2:])
