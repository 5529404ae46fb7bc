"""Every method and every kind of local training in a tiny world on the CPU, pinned bit for bit.

``pins.json`` holds what this repository gave when it was recorded: loss curves, the models' answers
to a few images, and a sha256 of all weights, arrays and images. A change here changes every result:
say so in CHANGELOG, and record again with ``python tests/golden/record_pins.py``.

Floating point differs between processors and releases of torch, which choose their kernels by the
instruction set. So ``pins.json`` also holds the result of a reference calculation on the machine
that recorded it (``numerics.py``). Where this machine gives the same, everything must be equal bit
for bit. Elsewhere hashes are not compared, and curves, answers and norms must agree to a thousandth
of their value, or 1e-4. All of it runs on one thread: more threads add up in another order.
"""

import json
import math
from functools import cache
from pathlib import Path

import pytest
import torch
from numerics import numerics, one_thread, sha256

from attar import (
    METHODS,
    Classifier,
    ClientData,
    Images,
    LocalTraining,
    Mixture,
    ModelSpec,
    Part,
    Preprocess,
    Rounds,
    ServerOptions,
    federate,
    fuse,
    server_for,
    train_classifiers,
    train_cvaes,
)
from attar.settings import configure
from attar.testing import (
    CLASSES,
    COLOUR,
    GREY,
    SHAPE,
    SMALL_DECODERS,
    SMALL_NETS,
    SMALL_SUMS,
    SMALL_VITS,
    World,
    tiny_decoder,
    tiny_statistics,
    tiny_upload,
    tiny_world,
    with_needs,
)

PINS_FILE = Path(__file__).with_name("pins.json")
RELATIVE, ABSOLUTE = 1e-3, 1e-4  # tolerances on other machines
DIGITS = 9  # significant digits of a recorded number; single precision has no more


# --- fusions: a tiny world, a method, its settings ------------------------------------------------

MLP, LENET, NORMED = SMALL_NETS[0], "lenet5", "lenet5:batchnorm=true"
MIXED = (NORMED, MLP, LENET)
ANIMALS = (("cat", "dog"), ("dog", "bird"), ("bird", "cat", "dog"))

# name: nets of the clients, and what is unusual about the uploads or the server
WORLDS = {
    "alike": {"nets": (MLP,) * 3},
    "normed": {"nets": (NORMED,) * 3},
    "mixed": {"nets": MIXED},
    "two kinds": {"nets": (MLP, MLP, LENET)},
    "other classes": {"nets": MIXED, "classes": ANIMALS},
    "other looks": {"nets": (NORMED, MLP, MLP), "looks": (COLOUR, GREY, None)},
    "resnet": {"nets": ("resnet20", MLP)},
    "other student": {"nets": (MLP, MLP), "student": NORMED},
    "initial model": {"nets": MIXED, "initial": True},
    "little memory": {"nets": MIXED, "teacher_memory": 20_000},
    "transformers": {"nets": SMALL_VITS},
    "alike transformers": {"nets": SMALL_VITS[:1] * 3},
    "decoders": {"nets": SMALL_DECODERS, "student": LENET},
    "decoders of other classes": {"nets": SMALL_DECODERS, "classes": ANIMALS, "student": LENET},
    "strong and weak": {"nets": (MLP, MLP, *SMALL_DECODERS)},
    "two kinds and weak": {"nets": (LENET, MLP, *SMALL_DECODERS[:2])},
    "mixed and weak": {"nets": (NORMED, MLP, *SMALL_DECODERS[:2])},
    "weak of other classes": {"nets": (MLP, LENET, SMALL_DECODERS[0]), "classes": ANIMALS},
    "statistics": {"nets": MIXED, "statistics": (1, 2)},
    "no counts": {"nets": MIXED, "counts": False},
    "sums": {"nets": SMALL_SUMS[:1] * 3},
    "sums by class": {"nets": SMALL_SUMS[1:2] * 3},
    "two backbones and a net": {"nets": (*SMALL_SUMS, LENET)},
}

SMALL = {"epochs": 3, "generator_steps": 2, "batch_size": 8, "noise": 8, "generator_width": 4}
PRINTED = {**SMALL, "variant": "paper"}  # of Co-Boosting
REVISED = {**SMALL, "variant": "revised"}
SKETCHED = {**SMALL, "sketches": 30, "sketches_of_epoch": 16}
INVERTED = {"epochs": 3, "inversion_steps": 2, "batch_size": 8}
CVAE = {"samples": 40, "epochs": 2, "batch_size": 13}
MHO = {"epochs": 3, "samples": 41, "batch_size": 8, "lr": 1e-3}
BY_LABELS = {"allocation": "labels"}  # the default of 0.1
OLD_MHO = {**MHO, **BY_LABELS}
MITR = {
    "epochs": 2,
    "inversion_steps": 3,
    "batch_size": 8,
    "mask_ratio": 0.5,
    "stop_at": (0.5,),
    "inversion_lr": 0.05,
}
KEM = {"steps": 4, "batch_size": 8}
DF = {"steps": 4, "batch_size": 8}

# method, world, settings
FUSIONS = [
    ("fedavg", "alike", {}),
    ("fedavg", "normed", {}),
    ("fedavg", "alike", {"weights": "uniform"}),
    ("fedavg", "two kinds", {"mixed": "vote"}),
    ("fedavg", "other classes", {"mixed": "mean-logits"}),
    ("ensemble", "mixed", {}),
    ("ensemble", "mixed", {"rule": "data-weighted"}),
    ("ensemble", "mixed", {"rule": "mean-probabilities"}),
    ("ensemble", "mixed", {"rule": "max-logits"}),
    ("ensemble", "mixed", {"rule": "vote"}),
    ("ensemble", "mixed", {"rule": "class-share"}),
    ("ensemble", "mixed", {"rule": "accord"}),
    ("ensemble", "statistics", {"rule": "accord"}),
    ("ensemble", "other classes", {"rule": "mean-logits"}),
    ("ensemble", "other classes", {"rule": "class-share"}),
    ("ensemble", "other looks", {"rule": "vote"}),
    ("feddf", "two kinds", DF),
    ("feddf", "mixed", {**DF, "teacher": "max-logits", "temperature": 2.0}),
    ("feddf", "mixed", {**DF, "mixed": "vote", "teacher": "class-share"}),
    ("feddf", "mixed", {**DF, "mixed": "mean-logits", "start_from": "fresh"}),
    ("feddf", "other classes", {**DF, "teacher": "mean-probabilities"}),
    ("feddf", "initial model", DF),
    ("feddf", "other student", DF),
    ("dense", "mixed", SMALL),
    ("dense", "resnet", {**SMALL, "epochs": 2, "generator_steps": 1}),
    ("dense", "mixed", {**SMALL, "variant": "authors", "batch_size": 8}),
    ("dense", "mixed", {**SMALL, "variant": "co-boosting", "ensemble": "data"}),
    ("dense", "mixed", {**SMALL, "ensemble": "stratified", "pool_limit": 12, "pool_bytes": True}),
    ("dense", "mixed", {**SMALL, "augment": "crop-flip"}),
    ("dense", "mixed", {**SMALL, "reset_generator": True}),
    (
        "dense",
        "mixed",
        {**SMALL, "train_noise": True, "keep": "best", "schedule": "cosine", "clip": 0.5},
    ),
    (
        "dense",
        "mixed",
        {**SMALL, "stability": 0.0, "weight_decay": 0.01, "momentum": 0.0, "temperature": 3.0},
    ),
    ("dense", "other classes", {**SMALL, "ensemble": "stratified"}),
    ("dense", "other looks", SMALL),
    ("dense", "initial model", SMALL),
    ("dense", "little memory", SMALL),
    ("f-dafl", "mixed", SMALL),
    ("f-dafl", "mixed", {**SMALL, "per_feature": True, "pool_bytes": True}),
    ("f-dafl", "other classes", SMALL),
    ("f-adi", "mixed", INVERTED),
    ("f-adi", "other classes", INVERTED),
    ("fedftg", "two kinds", {**SMALL, "student_steps": 2}),
    (
        "fedftg",
        "mixed",
        {**SMALL, "student_steps": 2, "mining": "kl", "teaching": "kl", "clip": 1.0},
    ),
    (
        "fedftg",
        "mixed",
        {
            **SMALL,
            "student_steps": 2,
            "mining": "soft-labels",
            "teaching": "l1",
            "start_from": "fresh",
        },
    ),
    ("fedftg", "other classes", {**SMALL, "student_steps": 2}),
    ("co-boosting", "mixed", PRINTED),
    ("co-boosting", "mixed", {**SMALL, "variant": "code", "augment": "flip"}),
    ("co-boosting", "mixed", {**PRINTED, "weight_steps": "batch", "ensemble": "stratified"}),
    (
        "co-boosting",
        "mixed",
        {**PRINTED, "weight_steps": "old", "weight_step": 0.1, "weight_step_decay": 0.9},
    ),
    (
        "co-boosting",
        "mixed",
        {**PRINTED, "weight_steps": "never", "ensemble": "data", "direction": "sign"},
    ),
    (
        "co-boosting",
        "mixed",
        {**PRINTED, "hard_generation": False, "hard_distillation": False, "divide": True},
    ),
    (
        "co-boosting",
        "mixed",
        {**PRINTED, "perturb": "probabilities", "pool_limit": 12, "adversarial": 0.5},
    ),
    ("co-boosting", "other classes", PRINTED),
    ("co-boosting", "little memory", {**PRINTED, "augment": "crop"}),
    ("co-boosting", "mixed", REVISED),
    ("co-boosting", "other classes", {**REVISED, "augment": "crop-flip"}),
    ("co-boosting", "other classes", SMALL),
    ("fedhydra", "mixed", SMALL),
    ("fedhydra", "mixed", {**SMALL, "replay": "last", "diversity_on": "disagreements"}),
    ("fedhydra", "mixed", {**SMALL, "replay": "intermediate", "highest_of": "client"}),
    ("fedhydra", "other classes", {**SMALL, "stability": 0.0, "hard_labels": 0.0}),
    ("fedcvae", "decoders", CVAE),
    ("fedcvae", "decoders", {**CVAE, "mode": "kd", "decoder_epochs": 2, "truncation": None}),
    ("fedcvae", "decoders", {**CVAE, "allocation": "all-classes", "count_exponent": 2.0}),
    (
        "fedcvae",
        "decoders of other classes",
        {**CVAE, "mode": "kd", "decoder_epochs": 2, "allocation": "classes"},
    ),
    ("fedmho", "strong and weak", OLD_MHO),
    ("fedmho", "strong and weak", {**OLD_MHO, "remember": "nothing"}),
    ("fedmho", "strong and weak", {**OLD_MHO, "remember": "md", "start_from": "fresh"}),
    (
        "fedmho",
        "two kinds and weak",
        {**OLD_MHO, "remember": "both", "weights": "learned", "initial_epochs": 2},
    ),
    (
        "fedmho",
        "two kinds and weak",
        {
            **OLD_MHO,
            "remember": "md",
            "initial_epochs": 2,
            "kl_reduction": "mean",
            "keep": "random",
        },
    ),
    ("fedmho", "strong and weak", {**MHO, "variant": "code", "preset": "mnist"}),
    (
        "fedmho",
        "strong and weak",
        {"epochs": 3, "samples": 41, "preset": "emnist", "remember": "both", **BY_LABELS},
    ),
    ("fedmho", "weak of other classes", {**OLD_MHO, "start_from": "distil", "initial_epochs": 2}),
    ("fedmho", "strong and weak", {**MHO, "remember": "both"}),
    ("fedmho", "weak of other classes", {**MHO, "remember": "md"}),
    ("fedmitr", "transformers", MITR),
    (
        "fedmitr",
        "alike transformers",
        {**MITR, "stopped": "drifting", "attention": "server", "labels": "held"},
    ),
    (
        "fedmitr",
        "alike transformers",
        {**MITR, "stop_at": (0.5, 1.0), "mask_ratio": 0.3, "start_from": "uniform", "clip": 1.0},
    ),
    (
        "fedmitr",
        "transformers",
        {**MITR, "mask_ratio": 0.0, "pseudo_labels": 0.0, "relabel": 0.0, "start_from": "fresh"},
    ),
    (
        "fedmitr",
        "transformers",
        {**MITR, "distil": 0.0, "disagreement": 0.0, "pool_limit": 12, "pool_bytes": True},
    ),
    ("fedprox", "alike", {}),
    ("fedprox", "normed", {"weights": "uniform"}),
    ("fednova", "alike", {}),
    ("fednova", "normed", {"momentum": 0.0}),
    ("scaffold", "alike", {}),
    ("scaffold", "normed", {"global_lr": 0.5}),
    ("fedkem", "mixed", KEM),
    (
        "fedkem",
        "mixed",
        {**KEM, "ensemble": "mean-probabilities", "server_distance": "mse", "labels": 0.5},
    ),
    ("fedkem", "mixed", {**KEM, "ensemble": "vote"}),
    (
        "fedkem",
        "mixed",
        {
            **{key: SMALL[key] for key in SMALL if key != "epochs"},
            "steps": 3,
            "images": "generated",
            "generated": 21,
        },
    ),
    ("fedkem", "alike", {"fusion": "average"}),
    ("fedkem", "other classes", {**KEM, "ensemble": "mean-logits"}),
    ("accord", "mixed", SKETCHED),
    ("accord", "statistics", {**SKETCHED, "generator_steps": 0}),
    ("accord", "statistics", {**SKETCHED, "use": "models", "guess_steps": 2, "averaging": 0.0}),
    ("accord", "statistics", {**SKETCHED, "use": "counts", "generator_steps": 0, "spread": 0.0}),
    (
        "accord",
        "statistics",
        {**SKETCHED, "use": "statistics", "guess_steps": 2, "generator_steps": 0},
    ),
    (
        "accord",
        "mixed",
        {
            **SMALL,
            "sketches": 0,
            "shares": "even",
            "familiarity": 0.0,
            "hard_generation": False,
            "pool_limit": 12,
        },
    ),
    (
        "accord",
        "mixed",
        {**SKETCHED, "shares": "guessed", "guess_steps": 2, "repeats": 1, "generator_steps": 0},
    ),
    (
        "accord",
        "no counts",
        {**SKETCHED, "guess_steps": 2, "adversarial": 0.5, "start_from": "fresh"},
    ),
    (
        "accord",
        "mixed and weak",
        {**SKETCHED, "drawn": 20, "reset_generator": True, "train_noise": True, "keep": "best"},
    ),
    ("accord", "weak of other classes", {**SKETCHED, "drawn": 20, "generator_steps": 0}),
    (
        "accord",
        "other classes",
        {**SKETCHED, "schedule": "cosine", "clip": None, "temperature": 2.0},
    ),
    ("gaussian-head", "sums", {}),
    ("gaussian-head", "sums by class", {"kind": "qda"}),
    ("gaussian-head", "two backbones and a net", {}),
    ("analytic", "sums", {}),
    ("analytic", "two backbones and a net", {"shrinkage": 0.1}),
    ("fedpft", "sums by class", {"samples": 40, "epochs": 3}),
    ("fisher-mix", "sums by class", {"samples": 40, "epochs": 3}),
    ("local-heads", "sums", {}),
    ("local-heads", "sums", {"combine": "average", "head": "ridge"}),
]


@cache
def world(name):
    """Build the uploads and the server of this name; the server has a few public images."""
    settings = WORLDS[name]
    nets = settings["nets"]
    classes, looks = (
        settings.get("classes", (CLASSES,) * len(nets)),
        settings.get("looks", (None,) * len(nets)),
    )
    if nets[0] in SMALL_SUMS:  # with the backbones at the server
        return tiny_world(nets)
    uploads = []
    for number, (net, own, look) in enumerate(zip(nets, classes, looks, strict=True)):
        made = tiny_decoder if ModelSpec.parse(net).kind == "decoder" else tiny_upload
        upload = made(
            f"client{number}", net, own, counts=settings.get("counts", True), preprocess=look
        )
        uploads.append(
            tiny_statistics(upload) if number in settings.get("statistics", ()) else upload
        )
    pixels = torch.randint(
        0, 256, (24, *SHAPE), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    initial = uploads[0].parts["classifier"] if settings.get("initial") else None
    server = server_for(
        uploads,
        student=settings.get("student"),
        initial=initial,
        public=Images(pixels, None, "noise"),
        teacher_memory=settings.get("teacher_memory"),
        ties="first",  # as when the pins were recorded
    )
    return World(tuple(uploads), server)


def pin_fusion(method, place, settings):
    """Return the pin of a fusion."""
    chosen = configure(METHODS[method], settings, of=method)
    ready = with_needs(world(place), chosen)
    done = fuse(ready.uploads, chosen, ready.server)
    return {
        "settings": done.record["settings"],
        "curves": curves(done.record["history"]),
        **describe_result(done.result),
    }


# --- local training: the uploads of a few clients -------------------------------------------------

SIZES = {"ann": 40, "bob": 17, "cy": 35, "dee": 9, "eve": 1}
LETTERS = ("a", "b", "c")
NETS = {
    "mlp": "mlp:hidden=6,layers=1",
    "deeper": "mlp:hidden=5,layers=2",
    "lenet5": "lenet5",
    "normed": "lenet5:batchnorm=true",
    "resnet20": "resnet20",
    "vit": "vit:patch=8,width=12,depth=1,hidden=16",
    "vit with dropout": "vit:patch=8,width=12,depth=1,hidden=16,dropout=0.2",
    "cvae": "cvae-small:hidden=8",
    "cvae of 3": "cvae-small:form=emnist,hidden=8,latent=3",
    "large cvae": "cvae-large:hidden=8",
}
TRAINING = {"epochs": 2, "batch_size": 16, "lr": 0.05}

# nets (one for all clients or one for each), settings, other arguments of train_classifiers
CLASSIFIERS = [
    ("mlp", {}, {}),
    ("mlp", {"momentum": 0.0, "weight_decay": 0.01}, {}),
    ("mlp", {"optimiser": "adam", "lr": 0.01}, {}),
    (
        "mlp",
        {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.01, "clip": 0.5, "stack": "never"},
        {},
    ),
    ("mlp", {"schedule": "cosine", "epochs": 3, "stack": "never"}, {}),
    ("mlp", {"schedule": "step", "epochs": 4}, {}),
    ("mlp", {"sam": 0.05}, {}),
    ("mlp", {"sam": 0.05, "optimiser": "adam", "lr": 0.01, "clip": 1.0, "stack": "never"}, {}),
    ("mlp", {"clip": 0.1, "init": "separate"}, {}),
    ("mlp", {"augment": "flip", "normalise": "plain"}, {}),
    ("mlp", {"validation": 0.25}, {"withhold_counts": True}),
    ("mlp", {"epochs": 0}, {}),
    (("mlp", "deeper", "mlp", "lenet5", "deeper"), {}, {}),
    ("lenet5", {}, {}),
    ("lenet5", {"stack": "always", "augment": "crop"}, {}),
    ("lenet5", {"sam": 0.05, "augment": "crop-flip", "stack": "always"}, {}),
    ("resnet20", {"lr": 0.005}, {}),
    ("normed", {"stack": "always", "validation": 0.25}, {}),
    ("normed", {"sam": 0.05, "optimiser": "adam", "lr": 0.01}, {}),
    ("vit", {"optimiser": "adam", "lr": 0.01}, {}),
    ("vit with dropout", {}, {}),
    ("vit with dropout", {"stack": "never"}, {}),
    ("mlp", {}, {"start": ("a", "b", "c")}),
    ("mlp", {}, {"start": ("b", "x")}),
]

# nets, settings, other arguments of train_cvaes
CVAES = [
    ("cvae", {"epochs": 2}, {}),
    ("cvae", {"epochs": 2}, {"preset": "emnist"}),
    ("cvae", {"epochs": 2, "stack": "never", "init": "separate"}, {"preset": "svhn"}),
    (
        "cvae",
        {
            "epochs": 2,
            "batch_size": 16,
            "optimiser": "sgd",
            "lr": 1e-3,
            "clip": 1.0,
            "schedule": "cosine",
        },
        {},
    ),
    ("cvae of 3", {"epochs": 2, "batch_size": 16, "augment": "flip"}, {}),
    ("cvae of 3", {"epochs": 2, "batch_size": 16, "stack": "always"}, {"preset": "mnist"}),
    ("large cvae", {"epochs": 1, "batch_size": 16}, {}),
    (("cvae", "cvae of 3", "cvae", "cvae of 3", "cvae"), {"epochs": 2}, {}),
]


@cache
def clients():
    """Return five clients whose images are noise."""
    draws = torch.Generator().manual_seed(0)
    made = []
    for name, size in SIZES.items():
        pixels = torch.randint(0, 256, (size, *SHAPE), generator=draws, dtype=torch.uint8)
        made.append(
            ClientData(
                name, pixels, torch.randint(0, len(LETTERS), (size,), generator=draws), LETTERS
            )
        )
    return made


def specs_of(nets):
    """Return the architecture of each client."""
    nets = nets if isinstance(nets, tuple) else (nets,) * len(SIZES)
    return [ModelSpec.parse(NETS[net]) for net in nets]


def start_of(net, classes):
    """Return a model to start from."""
    spec = ModelSpec.parse(NETS[net])
    return Part(
        spec, spec.build(SHAPE, len(classes), 5).state_dict(), classes, Preprocess.centred(SHAPE)
    )


def pin_classifiers(nets, settings, more):
    """Return the pin of locally trained classifiers."""
    training = configure(LocalTraining, {**TRAINING, **settings}, of="local training")
    history = []
    more = dict(more)
    if (classes := more.pop("start", None)) is not None:
        more["initial"] = start_of(nets, classes)
    uploads = train_classifiers(
        clients(), specs_of(nets), training, seed=3, history=history, **more
    )
    rows = [row | {"phase": row["phase"].removeprefix("train ")} for row in history]
    return {"settings": settings, "curves": curves(rows), **describe_uploads(uploads)}


def pin_cvaes(nets, settings, more):
    """Return the pin of locally trained CVAEs. Only a federation reports their losses."""
    uploads = train_cvaes(clients(), specs_of(nets), settings, seed=3, **more)
    return {"settings": settings, **describe_uploads(uploads)}


# --- federations: rounds of local training and fusion ---------------------------------------------

TWICE = {"rounds": 2}
THRICE = {"rounds": 3, "fraction": 0.6}
HERE = {"knowledge": NETS["mlp"], "steps": 3, "batch_size": 8}
OWN = ("lenet5", "lenet5", "normed", "deeper", "deeper")
BOTH = ("mlp", "mlp", "mlp", "cvae", "cvae")
QUICK_CVAE = {"weak": {"epochs": 2, "batch_size": 16}}
LENET_LEARNS = {"student": "lenet5"}

# method, nets, its settings, rounds, settings of local training, other arguments of federate
FEDERATIONS = [
    ("fedavg", "mlp", {}, TWICE, {}, {}),
    ("fedavg", "normed", {"weights": "uniform"}, TWICE, {}, {}),
    ("fedavg", "mlp", {}, THRICE, {"init": "separate"}, {"withhold_counts": True}),
    ("fedavg", "mlp", {}, {"rounds": 3, "drop": 0.4}, {"optimiser": "adam", "lr": 0.01}, {}),
    ("fedavg", "mlp", {}, TWICE, {"sam": 0.05, "schedule": "cosine"}, {"start": LETTERS}),
    ("fedprox", "mlp", {"mu": 0.3}, TWICE, {}, {}),
    ("fedprox", "lenet5", {"mu": 0.3}, TWICE, {"optimiser": "adam", "lr": 0.01}, {}),
    ("fedprox", "mlp", {"mu": 0.3}, TWICE, {"sam": 0.05, "clip": 0.5}, {}),
    ("fednova", "mlp", {}, TWICE, {}, {}),
    ("fednova", "normed", {"momentum": 0.0}, TWICE, {"momentum": 0.0}, {}),
    ("scaffold", "mlp", {}, TWICE, {}, {}),
    ("scaffold", "mlp", {"global_lr": 0.5}, THRICE, {"momentum": 0.0}, {}),
    ("scaffold", "normed", {}, TWICE, {}, {}),
    ("fedkem", "lenet5", HERE, TWICE, {}, {}),
    ("fedkem", "deeper", {**HERE, "peer": "detached"}, TWICE, {"clip": 0.5}, {}),
    (
        "fedkem",
        "deeper",
        {**HERE, "peer": "attached", "distance": "mse"},
        TWICE,
        {"optimiser": "adam", "lr": 0.01},
        {},
    ),
    (
        "fedkem",
        OWN,
        {**HERE, "peer": "updated", "distance": "mse"},
        THRICE,
        {"init": "separate", "augment": "flip"},
        {},
    ),
    (
        "fedkem",
        "deeper",
        {**HERE, "fusion": "average", "knowledge": NETS["normed"]},
        TWICE,
        {"epochs": 1},
        {},
    ),
    ("fedkem", "lenet5", {**HERE, "labels": 0.5, "server_distance": "mse"}, TWICE, {}, {}),
    (
        "fedkem",
        "deeper",
        {"variant": "code", "drawn": 12, "labels": 0.5, **HERE},
        TWICE,
        {
            "momentum": 0.0,
            "schedule": "cosine",
            "init": "separate",
            "augment": "reflect-crop-flip",
        },
        {},
    ),
    ("ensemble", ("mlp", "deeper", "lenet5", "mlp", "deeper"), {"rule": "class-share"}, {}, {}, {}),
    ("feddf", ("mlp", "deeper", "mlp", "mlp", "deeper"), DF, TWICE, {}, {}),
    ("dense", "mlp", SMALL, TWICE, {}, {}),
    ("f-dafl", "lenet5", SMALL, TWICE, {}, {}),
    ("f-adi", "mlp", INVERTED, TWICE, {}, {}),
    ("fedftg", "mlp", {**SMALL, "student_steps": 2}, TWICE, {}, {}),
    ("co-boosting", ("mlp", "deeper", "mlp", "mlp", "deeper"), PRINTED, TWICE, {}, {}),
    ("fedhydra", "mlp", SMALL, TWICE, {}, {}),
    ("fedmitr", "vit", MITR, TWICE, {}, {}),
    ("accord", "mlp", SKETCHED, TWICE, {}, {}),
    ("fedmho", BOTH, OLD_MHO, TWICE, {}, QUICK_CVAE),
    ("fedcvae", "cvae", CVAE, {}, {}, {"weak": {"epochs": 1}, **LENET_LEARNS}),
    (
        "fedcvae",
        "cvae",
        CVAE,
        {},
        {},
        {"weak": {"epochs": 3, "batch_size": 16, "stack": "never"}, **LENET_LEARNS},
    ),
    ("fedcvae", "cvae of 3", CVAE, {}, {}, {**QUICK_CVAE, **LENET_LEARNS}),
    ("fedcvae", "large cvae", CVAE, {}, {}, {**QUICK_CVAE, **LENET_LEARNS}),
]


def pin_federation(method, nets, settings, rounds, training, more):
    """Return the pin of a federation: losses, the last model, what clients keep."""
    more = dict(more)
    classes = more.pop("start", None)
    initial = None if classes is None else start_of(nets, classes)
    student = more.pop("student", None)
    draws = torch.Generator().manual_seed(4)
    pixels = torch.randint(0, 256, (24, *SHAPE), dtype=torch.uint8, generator=draws)
    labels = (
        torch.randint(0, len(LETTERS), (24,), generator=draws) if settings.get("labels") else None
    )
    done = federate(
        clients(),
        specs_of(nets),
        configure(METHODS[method], settings, of=method),
        configure(Rounds, rounds, of="rounds"),
        training=configure(LocalTraining, {**TRAINING, **training}, of="local training"),
        server=ServerOptions(
            student=student, public=Images(pixels, labels, "noise"), initial=initial
        ),
        seed=3,
        **more,
    )
    homes = {
        f"{client}: {name}": part
        for client, parts in sorted(done.client_state.items())
        for name, part in sorted(parts.items())
    }
    pin = describe_result(done.result)
    pin["norms"] |= {name: norm(part) for name, part in homes.items()}
    pin["sha256"]["homes"] = sha256(*(part.fingerprint() for part in homes.values()))
    rounds_run = done.record["rounds"]
    clients_drawn = [[one["drawn"], one["dropped"]] for one in rounds_run]
    losses = curves([{"phase": "rounds", "loss": one["loss"]} for one in rounds_run])
    return {"settings": done.record["settings"], "clients": clients_drawn, "curves": losses, **pin}


# --- what a pin holds -----------------------------------------------------------------------------


def rounded(value):
    """Round a number to ``DIGITS`` significant digits; None if it is missing or not finite."""
    return float(f"{value:.{DIGITS - 1}e}") if value is not None and math.isfinite(value) else None


def curves(history):
    """Return every metric of every phase, step by step."""
    metrics = {}
    for row in history:
        for name in row.keys() - {"phase", "step"}:
            metrics.setdefault(f"{row['phase']}: {name}", []).append(rounded(row[name]))
    return dict(sorted(metrics.items()))


def norm(part):
    """Return the Euclidean norm of all weights of a part."""
    numbers = [value.double().square().sum().item() for _, value in sorted(part.state.items())]
    return rounded(math.sqrt(sum(numbers)))


def probabilities(model):
    """Return the class probabilities of a few random images."""
    images = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return Classifier(model)(images).softmax(-1)


def members(model):
    """Return the parts of a model."""
    return model.members if isinstance(model, Mixture) else (model,)


def describe_models(models):
    """Hash the models of a result, and average their answers."""
    hashes, answers = {}, {}
    for name, model in models.items():
        shares = probabilities(model)
        weights = model.weights if isinstance(model, Mixture) else None
        hashes[name] = sha256(*(part.fingerprint() for part in members(model)), weights, shares)
        answers[name] = [rounded(share) for share in shares.double().mean(0).tolist()]
    return hashes, answers


def describe_result(result):
    """Describe everything that a method returns."""
    hashes, answers = describe_models(result.models)
    for what in ("arrays", "images"):
        hashes.update(
            {f"{what}: {name}": sha256(value) for name, value in getattr(result, what).items()}
        )
    hashes.update(
        {f"memory: {name}": sha256(part.fingerprint()) for name, part in result.memory.items()}
    )
    return {
        "answers": answers,
        "norms": {name: norm(part) for name, part in result.memory.items()},
        "sha256": hashes,
    }


def describe_uploads(uploads):
    """Describe everything that the clients send."""
    parts = {
        f"{upload.client}: {name}": part
        for upload in uploads
        for name, part in upload.parts.items()
    }
    amounts = [(one.client, one.num_examples, one.label_counts, one.local_steps) for one in uploads]
    return {
        "uploads": amounts,
        "norms": {name: norm(part) for name, part in parts.items()},
        "sha256": {name: sha256(part.fingerprint()) for name, part in parts.items()},
    }


def named(kind, run, cases):
    """Name every case after its method or net, its world and its unusual settings."""
    pins = {}
    for case in cases:
        settings = {
            key: value for one in case if isinstance(one, dict) for key, value in one.items()
        }
        words = [f"{key}={value}" for key, value in settings.items() if (key, value) not in QUICK]
        texts = [one for one in case if not isinstance(one, dict)]
        subjects = [" + ".join(one) if isinstance(one, tuple) else one for one in texts]
        name = f"{kind}: {', '.join([*subjects, *words])}"
        assert name not in pins, f"two pins are called {name!r}"
        pins[name] = (run, case)
    return pins


QUICK = [
    pair
    for few in (SKETCHED, INVERTED, CVAE, OLD_MHO, MITR, KEM, HERE, TRAINING)
    for pair in few.items()
]
PINS = {
    **named("fuse", pin_fusion, FUSIONS),
    **named("train", pin_classifiers, CLASSIFIERS),
    **named("train", pin_cvaes, CVAES),
    **named("federate", pin_federation, FEDERATIONS),
}


def calculate(name):
    """Return the pin of this name as the code gives it now, in the form that JSON gives back."""
    run, case = PINS[name]
    with one_thread():
        pin = run(*case)
    return json.loads(json.dumps({key: value for key, value in pin.items() if value}))


# --- the tests ------------------------------------------------------------------------------------


@cache
def recorded():
    """Read ``pins.json``."""
    return json.loads(PINS_FILE.read_text(encoding="utf-8"))


@cache
def same_numerics():
    """Whether this machine calculates bit for bit like the one that recorded."""
    return numerics() == recorded()["numerics"]


def close(one, other):
    """Whether two nested records have equal numbers, up to the tolerances."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def test_every_pin_is_recorded():
    assert list(recorded()["pins"]) == list(PINS)


def test_every_method_is_pinned():
    assert {case[0] for case in FUSIONS} == set(METHODS)


@pytest.mark.parametrize("name", PINS)
def test_pin(name):
    expected = dict(recorded()["pins"][name])
    found = calculate(name)
    settings = expected.pop("settings", {})
    found_settings = found.pop("settings", {})
    # A setting may be added; none may change.
    assert {key: found_settings.get(key, "missing") for key in settings} == settings
    assert found.keys() == expected.keys()
    for key in expected:
        if key == "sha256":
            assert found[key].keys() == expected[key].keys()
        elif key in ("curves", "answers", "norms"):
            assert close(expected[key], found[key]), (
                f"{key}: {found[key]}, recorded: {expected[key]}"
            )
        else:
            assert found[key] == expected[key]
    if same_numerics():
        assert found == expected, "the numbers agree up to rounding, but not bit for bit"
