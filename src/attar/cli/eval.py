"""``attar eval``: measure a model on labelled images."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from attar.cli.arguments import Device, Json, load_source, parse_device
from attar.cli.output import console, tables
from attar.data import PARTS, PartName
from attar.models import Classifier, describe_data, evaluate_on, load_deployable


def evaluate(
    model: Positional[Path],
    /,
    *,
    data: Annotated[str, arg(help="A labelled data source.")],
    split: Annotated[PartName, arg(help="Which of its images.")] = "test",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure a model folder or an upload: accuracy, balanced accuracy, accuracy per class and
    calibration error.
    """
    device = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(device)
    dataset = load_source(data, quiet=json)
    evaluation = evaluate_on(classifier, dataset, part=split, device=device)
    evaluated_on = describe_data(evaluation.num_images, f"{PARTS[split]} {data}")
    record = {
        **asdict(evaluation),
        "confusion": evaluation.confusion.tolist(),
        "model": str(model),
        "data": data,
        "split": split,
        "evaluated_on": evaluated_on,
    }

    def show() -> None:
        tables.show_evaluation(str(model), evaluation, dataset.classes, evaluated_on)
        if split == "test":
            tables.show_cut(data, dataset)

    console.emit(record, show, json=json)
