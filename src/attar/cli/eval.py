"""``attar eval``: measure a model on labelled images."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from attar.cli.arguments import Device, Json, load_source, parse_device
from attar.cli.output import console, tables
from attar.models import Classifier, describe_data, evaluate_on, load_deployable

Split = Literal["test", "train", "all"]


def evaluate(
    model: Positional[Path],
    /,
    *,
    data: Annotated[str, arg(help="A labelled data source.")],
    split: Annotated[Split, arg(help="Which of its images.")] = "test",
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure a model folder or an upload: accuracy, balanced accuracy, accuracy per class and
    calibration error.
    """
    device = parse_device(device)
    classifier = Classifier(load_deployable(model)).to(device)
    dataset = load_source(data, quiet=json)
    images = {
        "test": dataset.test,
        "train": dataset.train,
        "all": dataset.train.join(dataset.test),
    }[split]
    evaluation = evaluate_on(classifier, images, dataset.classes, device=device)
    record = {
        **asdict(evaluation),
        "confusion": evaluation.confusion.tolist(),
        "model": str(model),
        "data": data,
        "split": split,
    }

    def show() -> None:
        part = {"test": "the test part of", "train": "the training part of", "all": "all of"}[split]
        evaluated_on = describe_data(evaluation.num_images, f"{part} {data}")
        tables.show_evaluation(str(model), evaluation, dataset.classes, evaluated_on)
        if split == "test" and dataset.was_cut:
            number = len(dataset.train) + len(dataset.test)
            console.say(
                f"{data} has no test part of its own, so a fifth of it was measured: "
                f"--split all takes all {number:,} images."
            )

    console.emit(record, show, json=json)
