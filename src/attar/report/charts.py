"""The charts of a page: what each shows, when there is something to show, and how to get it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

OTHER_BYTES = 1.5  # times as many: runs that differ by less are not compared by their bytes

Facts = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    Attributes:
        name: Of its section, and of the function in ``charts.js`` that draws it.
        title: Of its section.
        about: How to read it.
        otherwise: Where it has nothing to show: how to get it.
        has_data: Whether the facts have something for it.
    """

    name: str
    title: str
    about: str
    otherwise: str
    has_data: Callable[[Facts], bool]


def _runs(test: Callable[[Facts], object]) -> Callable[[Facts], bool]:
    """Whether some run passes a test."""
    return lambda facts: any(test(run) for run in facts["runs"])


def _by_place(facts: Facts) -> Iterator[list[Facts]]:
    places: dict[str, list[Facts]] = {}
    for run in facts["runs"]:
        places.setdefault(run["place"], []).append(run)
    return iter(places.values())


def _send_different_bytes(facts: Facts) -> bool:
    for runs in _by_place(facts):
        sent = [run["bytes"] for run in runs if run["oracle"] is None]
        if any(run["rounds"] for run in runs) or max(sent, default=0) > OTHER_BYTES * min(
            sent, default=0
        ):
            return True
    return False


def _has_measured_axis(facts: Facts) -> bool:
    for table in facts["tables"]:
        for axis in table["axes"]:
            ran = {line["labels"][axis] for line in table["lines"] if line["mean"] is not None}
            if len(ran) > 1:
                return True
    return False


def _is_table(run: Facts, value: Sequence[Any]) -> bool:
    shape = (len(run["clients"]), len(run["classes"]))
    return bool(value) and isinstance(value[0], list) and (len(value), len(value[0])) == shape


def _has_weights(run: Facts) -> bool:
    weights = run["arrays"].get("weights", [])
    return len(weights) == len(run["clients"]) and not isinstance(weights[0], list)


CHARTS = (
    Chart(
        "clients",
        "What each client brought",
        "The net that each client sent, and the images it was trained on.",
        "no client is recorded",
        lambda facts: bool(facts["federations"]),
    ),
    Chart(
        "classes",
        "Accuracy of each class",
        "A row for each model, the most accurate first; of every 100 images of a class, so many "
        "are right. Mean over the seeds.",
        "no run was evaluated by class",
        _runs(lambda run: any(value is not None for value in run["per_class"])),
    ),
    Chart(
        "partition",
        "Who holds what",
        "The area of a circle is the number of training images of a class at a client.",
        "the clients withheld how many images of each class they have",
        lambda facts: any(one["counts"] is not None for one in facts["federations"]),
    ),
    Chart(
        "confusion",
        "Which classes are mistaken for which",
        "Rows are the true classes, columns the answers of the model, in percent of the row.",
        "it is drawn of runs of at most 30 classes",
        _runs(lambda run: run["confusion"]),
    ),
    Chart(
        "weights",
        "Weights of the clients",
        "What each client counts in the ensemble of a run, in percent; below, its accuracy alone.",
        "only methods that weight whole clients record it, such as Co-Boosting",
        _runs(_has_weights),
    ),
    Chart(
        "table",
        "Clients and classes",
        "A table that a method made on its way, with a row for each client and a column for each "
        "class.",
        "only some methods make one: FedHydra's stratification, FedMHO's images, accord's shares",
        _runs(lambda run: any(_is_table(run, value) for value in run["arrays"].values())),
    ),
    Chart(
        "curves",
        "Accuracy during training",
        "Each solid line is one run; runs of one method with different seeds have one colour. "
        "Dashed lines are runs of which the end alone was measured.",
        "give a recipe's row `curve = 5` for five points of each run",
        _runs(lambda run: len(run["curve"]) > 1),
    ),
    Chart(
        "heterogeneity",
        "Accuracy along an axis of the grid",
        "Dots are means over seeds with a bar of one standard deviation, side by side where they "
        "belong to one place; hollow diamonds are published numbers.",
        "give a recipe an axis with several values",
        _has_measured_axis,
    ),
    Chart(
        "gallery",
        "Synthetic images during training",
        "Each row is a moment of the run, from top to bottom.",
        "a recipe's row with `curve` keeps those of methods that make images",
        _runs(lambda run: run["gallery"]),
    ),
    Chart(
        "bytes",
        "Bytes against accuracy",
        "What all clients send and receive, and what comes of it; lines go from round to round, "
        "the dashed line is what all methods reach.",
        "all runs of a place send nearly the same number of bytes",
        _send_different_bytes,
    ),
    Chart(
        "time",
        "Time of the server",
        "Seconds of each phase, mean over the runs of a method.",
        "no run took any time at the server",
        _runs(lambda run: run["seconds"] > 0),
    ),
)
