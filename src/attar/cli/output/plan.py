"""What ``attar fuse --dry-run`` prints: methods in order, where to start, what is in the way."""

from collections.abc import Mapping, Sequence
from typing import Any

from attar.cli.output.console import human_seconds, say, show_table
from attar.core import AnyMethod, Server, Upload
from attar.fusion import Obstacle, Price, find_obstacles, recommend
from attar.internal.text import human_bytes, list_some
from attar.methods import METHODS

MOST_PRICES = 20  # clients in a table

Row = Mapping[str, Any]


def rank_rows(
    rows: Sequence[Row], uploads: Sequence[Upload], server: Server, minutes: float | None
) -> tuple[list[dict[str, Any]], list[Obstacle]]:
    """Put the rows of ``listing.estimate_methods`` in the order of recommendation.

    Args:
        rows: One of each method.
        uploads: To be fused.
        server: Made for them.
        minutes: The time limit of the run, if there is one.

    Returns:
        The rows, each with its place, reason and settings, those that do not fit last; and the
        uploads without which more methods fit.
    """
    costs = {row["method"]: (row["seconds"], row["memory_bytes"]) for row in rows if row["fits"]}
    ranked = recommend(costs, uploads, server.device, minutes=minutes)
    candidates: dict[str, AnyMethod] = {
        row["method"]: METHODS[row["method"]]() for row in rows if row["method"] in METHODS
    }
    obstacles = find_obstacles(candidates, uploads, server)
    done = []
    for row in rows:
        found = ranked.get(row["method"])
        without = [
            list(obstacle.clients) for obstacle in obstacles if row["method"] in obstacle.methods
        ]
        done.append(
            {
                **row,
                "place": None if found is None else found.place,
                "reason": None if found is None else found.reason,
                "set": [] if found is None else list(found.settings),
                "fits_without": without[0] if without else [],
            }
        )
    return sorted(done, key=lambda row: (row["place"] is None, row["place"] or 0)), obstacles


def show_plan(rows: Sequence[Row], settings: str, obstacles: Sequence[Obstacle] = ()) -> None:
    """Print which methods fit, what each would cost, and where to start.

    Args:
        rows: Of ``rank_rows``, or of ``listing.estimate_methods`` for one method.
        settings: "default" or "these".
        obstacles: Uploads without which more methods fit.
    """
    cells = [
        (
            str(row.get("place") or "") if row["fits"] else "no",
            row["method"],
            (row.get("reason") or "it fits") if row["fits"] else "; ".join(row["why_not"]),
            human_seconds(row["seconds"]) if row["fits"] else "",
            human_bytes(row["memory_bytes"]) if row["fits"] else "",
        )
        for row in rows
    ]
    title = f"With {settings} settings, on this machine; what fits in the order to try it"
    show_table(title, ("", "method", "why", "time", "memory"), cells, right=("time", "memory"))
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        say("No method can fuse these files as they are.")
    elif fitting[0].get("place"):
        first, *others = fitting
        say(f"Start here: {_flags(first)}, about {human_seconds(first['seconds'])}.")
        if free := next((row for row in others if row["method"] == "ensemble"), None):
            say(f"Without training: {_flags(free)}.")
    for obstacle in obstacles:
        number = len(obstacle.methods)
        say(
            f"Without {list_some(obstacle.clients)} ({' and '.join(obstacle.sent)} sent) {number} "
            f"more method{'s fit' if number > 1 else ' fits'} ({list_some(obstacle.methods, 4)}): "
            + " ".join(f"--exclude {name}" for name in obstacle.clients)
        )


def show_price(price: Price) -> None:
    """Print what each client costs, the dearest first, and what the checks of a run take."""
    dear = sorted(price.clients, key=lambda one: -one.cost.products)
    rows = [
        (
            one.client,
            "x".join(map(str, one.shape)),
            f"{one.cost.products:,}",
            human_bytes(one.cost.kept),
            human_bytes(one.cost.weights),
        )
        for one in dear[:MOST_PRICES]
    ]
    more = f", the {MOST_PRICES} dearest of {len(dear)}" if len(dear) > MOST_PRICES else ""
    columns = ("client", "image", "multiplications", "memory", "weights")
    show_table(f"One image in each client's nets{more}", columns, rows, right=columns[2:])
    say(
        f"Without the method's steps, a run asks each client about {price.images:,} images: "
        f"{human_bytes(price.memory)} at once, about {human_seconds(3600 * price.hours)} here."
    )


def _flags(row: Row) -> str:
    return " ".join([f"--method {row['method']}", *(f"--set {one}" for one in row["set"])])
