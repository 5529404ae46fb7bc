"""What a dishonest client does to the fused model, and what the safeguards leave of it.

    python benchmarks/attacks.py --seeds 0,1,2 --out build/attacks.json

Ten clients of fashion-mini (6,000 images of Fashion-MNIST), Dirichlet 0.5, lenet5, 12 epochs;
client-0 attacks. Each method runs on the uploads as they are and with the bounds of ``Safeguards``;
the rule ``trimmed`` runs besides. The robustness report says whom it flags, with a search for
backdoors where there is one. Measured on the 1,000 test images.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from robustness_bank import add_trigger, flipped, poisoned
from torch import Tensor

import attar
from attar.blocks.images import procedural_images
from attar.core import Images, Server, Upload
from attar.fusion import Safeguards, server_for
from attar.settings import configure
from attar.training import ClientData, add_statistics

NET = "lenet5"
TRAINING = attar.LocalTraining(epochs=12, batch_size=64, optimiser="sgd", lr=0.05)
LONGER = replace(TRAINING, epochs=8)  # of the backdoor, after these
TARGET = 8  # Bag
CORNER = 3
BILLION = 10**9
SKETCHES = 2000  # of feddf
DISTIL = {"steps": 200, "batch_size": 64}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "class-share": ("ensemble", {"rule": "class-share"}),
    "mean-probabilities": ("ensemble", {"rule": "mean-probabilities"}),
    "accord's teacher": ("ensemble", {"rule": "accord"}),
    "fedavg": ("fedavg", {}),
    "feddf": ("feddf", {**DISTIL, "teacher": "mean-probabilities"}),
}
TRIMMED = ("ensemble", {"rule": "trimmed"})


def honest_clients(seed: int) -> tuple[list[ClientData], list[Upload]]:
    """Ten clients and what they send, with feature statistics."""
    data = attar.load_data("fashion-mini")
    split = attar.partition(data.train.labels, "dirichlet:0.5", clients=10, seed=seed)
    clients = attar.share_out(data, split)
    uploads = attar.train_classifiers(clients, [NET] * 10, TRAINING, seed=seed)
    return clients, [
        add_statistics(upload, client) for upload, client in zip(uploads, clients, strict=True)
    ]


def attacks_of(client: ClientData, honest: Upload, seed: int) -> dict[str, Upload]:
    """What the client may send instead."""
    part = honest.parts["classifier"]
    (labels,) = attar.train_classifiers([flipped(client)], [NET], TRAINING, seed=seed)
    labels = add_statistics(replace(labels, label_counts=honest.label_counts), flipped(client))
    (marked,) = attar.train_classifiers(
        [poisoned(client, TARGET, CORNER)], [NET], LONGER, seed=seed, initial=part
    )
    backdoor = add_statistics(
        replace(marked, num_examples=honest.num_examples, label_counts=honest.label_counts),
        client,
    )
    noise = part.spec.build(part.preprocess.input_shape, 10, seed=99).state_dict()
    return {
        "labels +3": labels,
        "noise": with_state(honest, noise),
        "backdoor": backdoor,
        "weights x100": with_state(
            honest, {k: v * 100 if v.is_floating_point() else v for k, v in part.state.items()}
        ),
        "honest weights, counts 10^9": with_counts(honest),
        "labels +3, counts 10^9": with_counts(labels),
        "backdoor, counts 10^9, always familiar": with_counts(always_familiar(backdoor)),
        "labels +3, always familiar": always_familiar(labels),
    }


def with_state(upload: Upload, state: dict[str, Tensor]) -> Upload:
    """The upload with other weights."""
    part = replace(upload.parts["classifier"], state=state)
    return replace(upload, parts={**upload.parts, "classifier": part})


def with_counts(upload: Upload) -> Upload:
    """The upload with a billion images of each class."""
    return replace(upload, num_examples=10 * BILLION, label_counts=(BILLION,) * 10)


def always_familiar(upload: Upload) -> Upload:
    """The upload with statistics to which every image is familiar: nothing is far from anything."""
    part = upload.parts["statistics"]
    state = {**part.state, "whitening": part.state["whitening"] * 1e-3}
    return replace(upload, parts={**upload.parts, "statistics": replace(part, state=state)})


def measure(
    uploads: Sequence[Upload], server: Server, method: tuple[str, dict[str, Any]], *, bound: bool
) -> dict[str, float]:
    """Accuracy of the fused model, and the share of marked images that it gives to the target."""
    name, settings = method
    fused = attar.fuse(
        uploads,
        configure(
            attar.METHODS[name], {key: str(value) for key, value in settings.items()}, of=name
        ),
        server,
        robustness=Safeguards(bound=bound, report=False),
    )
    data = attar.load_data("fashion-mini")
    test = torch.from_numpy(data.test.images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(data.test.labels)
    others = test[labels != TARGET]
    answers = classify(fused.model, test)
    marked = classify(fused.model, add_trigger(others, CORNER))
    return {
        "accuracy": round(float((answers == labels).double().mean()), 4),
        "trigger": round(float((marked == TARGET).double().mean()), 4),
    }


def classify(model: attar.Classifier, pixels: Tensor) -> Tensor:
    """The classes of images."""
    with torch.no_grad():
        return torch.cat([model(batch.float() / 255).argmax(1) for batch in pixels.split(500)])


def run(seed: int, methods: Sequence[str], attacks: Sequence[str]) -> list[dict[str, Any]]:
    """Attacks on one federation; all of them where none is named."""
    clients, honest = honest_clients(seed)
    sketches = procedural_images(SKETCHES, (1, 28, 28), torch.Generator().manual_seed(seed))
    public = Images((255 * sketches).byte(), None, "sketches")
    rows = []
    plans = {"none": honest[0], **attacks_of(clients[0], honest[0], seed)}
    for attack, sent in plans.items():
        if attacks and attack not in attacks:
            continue
        uploads = [sent, *honest[1:]]
        server = server_for(uploads, student=NET, public=public, seed=seed)
        plain = server_for(uploads, student=NET, seed=seed)
        row: dict[str, Any] = {"seed": seed, "attack": attack, "methods": {}}
        bites = bool(Safeguards().guard(uploads).describe())
        for name in methods:
            on = server if name == "feddf" else plain
            plainly = measure(uploads, on, METHODS[name], bound=False)
            bounded = measure(uploads, on, METHODS[name], bound=True) if bites else plainly
            row["methods"][name] = {"unbounded": plainly, "bounded": bounded}
        row["methods"]["trimmed"] = {"bounded": measure(uploads, plain, TRIMMED, bound=True)}
        guards = Safeguards(backdoors=attack == "none" or "backdoor" in attack)
        report = attar.fuse(uploads, "ensemble", plain, robustness=guards).record["robustness"]
        row["flagged"] = report["suspects"]
        row["words"] = {one["client"]: one["flags"] for one in report["clients"] if one["flags"]}
        row["triggers"] = [one["trigger"] for one in report["clients"]]
        rows.append(row)
        print(seed, attack, json.dumps(row["methods"]), row["words"], flush=True)
    return rows


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--seeds", default="0,1,2")
    words.add_argument("--methods", default=",".join(METHODS))
    words.add_argument("--attacks", default="", help="Divided by semicolons; all unless given.")
    words.add_argument("--out", type=Path, required=True)
    asked = words.parse_args()
    rows: list[dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else []
    for seed in map(int, asked.seeds.split(",")):
        if all(row["seed"] != seed for row in rows):
            rows += run(
                seed, asked.methods.split(","), [one for one in asked.attacks.split(";") if one]
            )
            asked.out.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
