"""Planted clients are found, honest ones are left alone: on small but really trained
federations.
"""

import json
import math
from dataclasses import replace

import pytest
import torch

import attar
from attar.blocks.ensemble import Teachers
from attar.core import Images, Result
from attar.fusion import bound_claims, find_outliers, fuse, server_for
from attar.fusion.agreement import (
    FEWEST_IMAGES,
    LEAST_AGREEMENT,
    ClientAnswers,
    best_names,
    explain_no_agreement,
    find_labels,
    measure_agreements,
)
from attar.fusion.backdoors import compare_triggers, find_triggers
from attar.fusion.impossible import impossible_statistics
from attar.fusion.probe_images import IMAGES, STEPS
from attar.methods import METHODS
from attar.testing import tiny_upload, tiny_world
from attar.training import add_statistics
from attar.uploads import admit, receive, write_bundle

NETS = ("lenet5", "mlp", "cnn-mho")
TRAINING = attar.LocalTraining(epochs=6, batch_size=64, optimiser="adam", lr=2e-3)


def flipped(client):
    """The same images under other labels, as of a client with a mistake or with bad intentions."""
    return replace(client, labels=(client.labels + 3) % 10)


def noise(upload):
    part = upload.parts["classifier"]
    net = part.spec.build(part.preprocess.input_shape, len(part.classes), seed=99)
    return replace(upload, parts={"classifier": replace(part, state=net.state_dict())})


def scaled(upload, factor):
    part = upload.parts["classifier"]
    head = {
        name: tensor * (factor if name.startswith("head") else 1)
        for name, tensor in part.state.items()
    }
    return replace(upload, parts={"classifier": replace(part, state=head)})


def federation(rule, seed):
    data = attar.load_data("fashion-mini")
    clients = attar.share_out(data, attar.partition(data.train.labels, rule, clients=6, seed=seed))
    specs = [attar.ModelSpec.parse(NETS[place % 3]) for place in range(6)]
    honest = attar.train_classifiers(clients, specs, TRAINING, seed=seed)
    (liar,) = attar.train_classifiers([flipped(clients[1])], [specs[1]], TRAINING, seed=seed)
    return honest, liar


@pytest.fixture(scope="module", params=["iid", "dirichlet:0.3"])
def clients(request):
    """Six honest clients with three architectures, and what the second would send if its labels
    were changed.
    """
    return federation(request.param, seed=5)


def held_of(uploads):
    """The classes that each client has images of."""
    return [[count for count in upload.label_counts if count > 20] for upload in uploads]


# A third of the inversion: enough for planted clients; honest ones and a liar are judged at full
# length as well.
SHORT = 20


def examine(uploads, steps=STEPS):
    return find_outliers(uploads, server_for(uploads), Result({}), inversion_steps=steps)


def test_find_outliers_none_among_honest(clients):
    honest, _ = clients
    found = examine(honest)
    assert found.suspects == ()
    agreements = [one.agreement for one in found.clients if one.agreement is not None]
    assert len(agreements) >= 4, "most of them could be judged at all"
    assert min(agreements) > LEAST_AGREEMENT
    assert found.images <= IMAGES


def test_find_outliers_changed_labels(clients):
    honest, liar = clients
    found = examine([honest[0], liar, *honest[2:]])
    assert found.suspects == ("client-1",)
    assert "names classes otherwise than all others" in found.clients[1].flags[0]
    assert found.clients[1].agreement < LEAST_AGREEMENT
    assert found.clients[1].effect < 0, "with it the ensemble is less sure of the others' classes"


def test_find_outliers_noise(clients):
    honest, _ = clients
    found = examine([*honest[:3], noise(honest[3]), *honest[4:]], SHORT)
    report = found.clients[3]
    assert "hardly trained" in " ".join(report.remarks) or "tells nothing apart" in report.flags[0]
    assert set(found.suspects) <= {"client-3"}
    if min(len(held) for held in held_of(honest)) == 10:
        assert found.suspects == ("client-3",), "ten classes each: enough to compare"


def test_find_outliers_two(clients):
    honest, liar = clients
    found = examine([honest[0], liar, honest[2], noise(honest[3]), *honest[4:]], SHORT)
    assert set(found.suspects) <= {"client-1", "client-3"}
    assert "client-1" in found.suspects


def test_find_outliers_large_logits(clients):
    honest, _ = clients
    found = examine([scaled(honest[0], 10_000.0), *honest[1:]], SHORT)
    assert found.suspects == ("client-0",)
    assert any("logits are" in flag and "as large" in flag for flag in found.clients[0].flags)


def test_find_outliers_without_counts(clients):
    honest, liar = clients
    quiet = [replace(upload, label_counts=None) for upload in honest]
    assert examine(quiet, SHORT).suspects == ()
    assert (
        "client-1"
        in examine([quiet[0], replace(liar, label_counts=None), *quiet[2:]], SHORT).suspects
    )


def test_find_outliers_uses_public_images(clients):
    honest, liar = clients
    data = attar.load_data("fashion-mini")
    public = attar.server_images(data.test, "held out")
    uploads = [honest[0], liar, *honest[2:]]
    found = find_outliers(uploads, server_for(uploads, public=public), Result({}))
    assert found.source == "public images of the server: held out"
    assert found.suspects == ("client-1",)


def test_find_outliers_uses_images_of_the_method(clients):
    honest, liar = clients
    uploads = [honest[0], liar, *honest[2:]]
    quick = METHODS["co-boosting"](
        epochs=2, generator_steps=3, batch_size=16, noise=8, generator_width=4
    )
    fused = fuse(uploads, quick, server_for(uploads, student="lenet5"), robustness=True)
    report = fused.record["robustness"]
    assert "images of the method" in report["source"]
    assert report["suspects"] == ["client-1"]
    weights = [one["weight"] for one in report["clients"]]
    assert sum(weights) == pytest.approx(1)


def test_fuse_excluding_the_suspect(clients, tmp_path):
    honest, liar = clients
    uploads = [honest[0], liar, *honest[2:]]
    for upload in uploads:
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
    received = receive(sorted(tmp_path.glob("*.attar")))
    data = attar.load_data("fashion-mini")
    accuracies = {}
    suspects: list[str] = []
    for out, exclude in (("all", []), ("without", suspects)):
        admitted, admission = admit(received, exclude=exclude)
        fuse(
            admitted,
            METHODS["ensemble"](),
            server_for(admitted),
            out=tmp_path / out,
            admission=admission,
            robustness=True,
        )
        record = json.loads((tmp_path / out / "record.json").read_text())
        suspects += record["robustness"]["suspects"]
        accuracies[out] = attar.evaluate_on(
            attar.load_model(tmp_path / out), data.test, data.classes
        ).accuracy
    assert suspects == ["client-1"], "flagged the first time, nobody the second"
    assert record["excluded"] == ["client-1"]
    assert "client-1" not in [one["client"] for one in record["clients"]]
    assert accuracies["without"] > accuracies["all"]
    assert "**client-1** looks suspicious" in (tmp_path / "all" / "README.md").read_text()
    assert "No client looks suspicious" in (tmp_path / "without" / "README.md").read_text()


# --- the rules, on small numbers ------------------------------------------------------------------


def jury(answers, held=None, classes=4, target=None):
    """Clients that each give every image one class, surely."""
    answers = torch.tensor(answers)
    logits = torch.nn.functional.one_hot(answers, classes).float() * 10
    known = torch.ones(len(answers), classes, dtype=torch.bool)
    uploads = [
        tiny_upload(f"client{row}", classes=tuple("abcd"[:classes])) for row in range(len(answers))
    ]
    nobody = torch.full((answers.shape[1],), -1)
    return ClientAnswers(
        uploads,
        logits,
        known,
        known if held is None else torch.tensor(held),
        nobody if target is None else torch.zeros(answers.shape[1], dtype=torch.int64),
        nobody if target is None else torch.tensor(target),
    )


TRUE = [0, 1, 2, 3] * 6
SHIFTED = [(label + 1) % 4 for label in TRUE]


def test_measure_agreements_equals_and_chance():
    verdicts = measure_agreements(jury([TRUE, TRUE, TRUE, [0, 0, 1, 1, 2, 2, 3, 3] * 3]))
    assert [verdict.agreement for verdict in verdicts[:3]] == [1, 1, 1]
    # Of four images of a class one is right: (1/4 - 1/4) / (1 - 1/4).
    assert verdicts[3].agreement == pytest.approx(0)
    assert verdicts[3].is_chance
    assert not verdicts[3].contradicts, "no other names would fit"


def test_measure_agreements_exchanged_classes():
    verdict = measure_agreements(jury([TRUE, TRUE, TRUE, SHIFTED]))[3]
    assert verdict.agreement == pytest.approx((0 - 1 / 4) / (1 - 1 / 4))
    assert verdict.exchanged == pytest.approx(4 / 3), "from -1/3 to 1"
    assert verdict.renamed == ((0, 1), (1, 2), (2, 3), (3, 0))
    assert verdict.contradicts
    # The ensemble of three gives the class 1, with the fourth 3/4.
    assert verdict.effect == pytest.approx(-1 / 4, abs=1e-3)


def test_measure_agreements_swapped_pair():
    """Of four classes two are exchanged: half of the answers are right, and it is evidence."""
    swapped = [(0, 1, 3, 2)[label] for label in TRUE]
    verdict = measure_agreements(jury([TRUE, TRUE, TRUE, swapped]))[3]
    assert verdict.agreement == pytest.approx(1 / 3)
    assert verdict.renamed == ((2, 3), (3, 2))
    assert verdict.contradicts
    # Class 2 is always called 3, class 3 half of the time 2: that is no exchange.
    answers = [3 if label == 2 else label for label in TRUE]
    answers[3::8] = [2] * 3
    assert not measure_agreements(jury([TRUE, TRUE, TRUE, answers]))[3].contradicts


def test_measure_agreements_two_liars_of_five():
    verdicts = measure_agreements(jury([TRUE, TRUE, TRUE, SHIFTED, SHIFTED]))
    assert [verdict.contradicts for verdict in verdicts] == [False] * 3 + [True] * 2


def test_measure_agreements_asks_held_classes():
    """The fourth never saw class d and calls it a: that is no disagreement."""
    skewed = [label if label < 3 else 0 for label in TRUE]
    held = [[True] * 4] * 3 + [[True, True, True, False]]
    assert measure_agreements(jury([TRUE * 2, TRUE * 2, TRUE * 2, skewed * 2], held))[
        3
    ].agreement == pytest.approx(1)


def test_find_labels_takes_target_and_witness():
    """Images from client 0 count where it was inverted towards what others answer."""
    targets = [label if place % 2 else 3 - label for place, label in enumerate(TRUE)]
    answers = jury([TRUE, TRUE, TRUE], target=targets)
    labels = find_labels(answers, 1)
    assert labels.tolist() == [label if place % 2 else -1 for place, label in enumerate(TRUE)]
    assert (find_labels(answers, 0) == -1).all(), "nobody is judged on its own images"


def test_best_names_takes_each_name_once():
    """A client that gives everything one class gains nothing by other names."""
    table = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    renamed, fitting = best_names(table, torch.tensor([0, 1, 2]))
    assert renamed == ()
    assert fitting == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (
            [[True] * 4, [True, True, False, False], [True, True, False, False]],
            "shares 0 classes with 3 or more others, 2 such classes are needed",
        ),
        ([[True] * 4, [True] * 4], "shares 0 classes"),
    ],
)
def test_measure_agreements_needs_witnesses(held, told):
    verdict = measure_agreements(jury([TRUE] * len(held), held))[0]
    assert verdict.agreement is None
    assert "cannot tell" in verdict.unjudged
    assert told in verdict.unjudged


def test_measure_agreements_needs_images():
    verdict = measure_agreements(jury([TRUE[:12]] * 4))[0]
    assert verdict.agreement is None
    assert FEWEST_IMAGES > 12
    assert "12 images of 4 classes" in verdict.unjudged


def reason(held, answers=TRUE):
    return explain_no_agreement(measure_agreements(jury([answers] * len(held), held)), 240)


def test_explain_no_agreement():
    few, all_four = [True, True, False, False], [True] * 4
    classes = "it takes 3 classifiers that share 3 classes, or 4 that share 2"
    assert reason([all_four] * 2) == classes
    assert reason([few] * 3) == classes
    assert reason([all_four] * 3, TRUE[:12]) == (
        "the classifiers are sure of too few of the 240 images"
    )
    assert reason([all_four] * 3) is None
    assert reason([few] * 5, TRUE * 2) is None, "two classes, and four others"
    assert reason([all_four] * 3 + [few]) is None, "one of four is not judged"


def test_find_outliers_gives_the_reason():
    silent = examine(tiny_world(("cvae-small-decoder:hidden=8",) * 2).uploads, SHORT).as_json()
    assert silent["unjudged"] == silent["source"] == "nobody sent a classifier"
    assert [one["weight_norm"] > 0 for one in silent["clients"]] == [True, True]
    two = examine(tiny_world(("lenet5",) * 2).uploads, SHORT).as_json()
    assert two["unjudged"] == "it takes 3 classifiers that share 3 classes, or 4 that share 2"
    assert [one["unjudged"] for one in two["clients"]] == [
        "cannot tell: it shares 0 classes with 3 or more others, 2 such classes are needed"
    ] * 2


def test_find_outliers_without_reason(clients):
    assert examine(clients[0], SHORT).as_json()["unjudged"] is None


def brightest_stripe(upload, backdoor=None):
    """A net that gives the class whose stripe of the image is bright; with a backdoor, one white
    pixel in the corner means that class.
    """
    part = upload.parts["classifier"]
    state = {name: torch.zeros_like(tensor) for name, tensor in part.state.items()}
    first = next(name for name in state if state[name].dim() == 2)
    classes, pixels = len(part.classes), state[first].shape[1]
    stripes = torch.arange(pixels) * classes // pixels
    for label in range(classes):
        state[first][label] = 0.1 * (stripes == label)
        state["head.weight"][label, label] = 1.0
    if backdoor is not None:
        state[first][classes, 0] = 10.0
        state[first.replace("weight", "bias")][classes] = 9.9  # a black pixel is -1
        state["head.weight"][backdoor, classes] = 50.0
    return replace(upload, parts={"classifier": replace(part, state=state)})


def striped_world():
    """Four clients with such nets, and images of every class with a dark corner."""
    world = tiny_world(("mlp:hidden=16,layers=1",) * 4)
    uploads = [brightest_stripe(upload) for upload in world.uploads]
    shape = world.server.task.input_shape
    classes, pixels = len(world.server.task.classes), math.prod(shape)
    labels = torch.arange(60) % classes
    stripes = torch.arange(pixels) * classes // pixels
    images = (stripes[None] == labels[:, None]).float() * 0.8 + 0.1
    images[:, 0] = 0.0
    return replace(world, uploads=uploads), images.view(60, *shape)


def test_find_triggers_planted():
    world, images = striped_world()
    uploads = [brightest_stripe(world.uploads[0], backdoor=2), *world.uploads[1:]]
    parts = [upload.parts["classifier"] for upload in uploads]
    teachers = Teachers(parts, world.server.task.classes)
    first, *others = find_triggers(teachers, images, seed=0)
    assert first.suspicious
    assert first.target == 2
    assert first.pixels < 4
    assert not any(other.suspicious for other in others)
    assert find_triggers(teachers, images, seed=0)[0] == first


def test_find_triggers_not_of_unsure_nets():
    world = tiny_world(("mlp:hidden=16,layers=1",) * 4)
    parts = [upload.parts["classifier"] for upload in world.uploads]
    images = torch.rand(20, *world.server.task.input_shape)
    teachers = Teachers(parts, world.server.task.classes)
    assert find_triggers(teachers, images, seed=0) == [None] * 4


def test_compare_triggers():
    sizes = torch.tensor(
        [[5.0, 60.0, 60.0], [40.0, 50.0, 90.0], [50.0, 45.0, 90.0], [80.0, 70.0, 60.0]]
    )
    first, second, *_ = compare_triggers(sizes)
    assert (first.target, first.pixels) == (0, 5.0)
    assert first.usual == pytest.approx(45.0)
    assert first.residual == pytest.approx(math.log(5 / 45))
    assert first.suspicious
    assert second.usual == pytest.approx(45.0), "the median of 5, 45 and 60"
    assert not second.suspicious
    sizes[1] = torch.nan
    assert compare_triggers(sizes) == [None] * 4, "three are too few"


def test_find_outliers_names_backdoors():
    world, _ = striped_world()
    report = find_outliers(
        world.uploads, world.server, Result({}), inversion_steps=5, backdoors=True
    )
    assert report.backdoors
    assert report.as_json()["backdoors"] is True
    assert not find_outliers(world.uploads, world.server, Result({}), inversion_steps=5).backdoors


def test_find_outliers_names_claims(clients):
    honest, _ = clients
    counts = (10**9,) * 10
    liar = replace(honest[0], num_examples=sum(counts), label_counts=counts)
    larger = replace(honest[0], num_examples=11 * honest[1].num_examples, label_counts=None)
    found = examine([liar, *honest[1:]], SHORT)
    assert any("counted as" in flag for flag in found.clients[0].flags) or any(
        "times the median" in remark for remark in found.clients[0].remarks
    )
    assert "client-0" in {claim.client for claim in bound_claims([larger, *honest[1:]])[1]}


# --- statistics -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured():
    """An honest client with the statistics of its features."""
    data = attar.load_data("fashion-mini")
    part = attar.partition(data.train.labels, "iid", clients=6, seed=5)
    holder = attar.share_out(data, part)[0]
    upload = attar.train_classifiers([holder], ["lenet5"], TRAINING, seed=5)[0]
    return add_statistics(upload, holder)


def test_impossible_statistics_honest(measured):
    assert impossible_statistics(measured) == []
    assert impossible_statistics(replace(measured, parts={})) == []


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("own_mean", lambda value: value * 0 + 1e38, "distances of 1e+38"),
        ("own_mean", lambda value: -value, "distances of -"),
        ("own_spread", lambda value: value * 0, "a spread of 0"),
        ("own_spread", lambda value: value * 100, "distances of"),
        ("whitening", lambda value: value * 0, "no positive diagonal"),
        ("whitening", lambda value: value * 0 + 1e30, "numbers above 1e+18"),
        ("whitening", lambda value: value * 1e-3, "random noise is more familiar"),
        ("held", lambda value: value & False, "no class is held"),
    ],
)
def test_impossible_statistics_lies(measured, name, change, told):
    part = measured.parts["statistics"]
    state = {**part.state, name: change(part.state[name])}
    parts = {**measured.parts, "statistics": replace(part, state=state)}
    assert told in " ".join(impossible_statistics(replace(measured, parts=parts)))


def test_impossible_statistics_of_classes_without_images(measured):
    counts = (0, *measured.label_counts[1:])
    (told,) = impossible_statistics(replace(measured, label_counts=counts))
    assert "they describe T-shirt/top, of which it has no images" in told


def test_find_outliers_overflowing_weights():
    world = tiny_world(("mlp:hidden=8,layers=1",) * 4)
    part = world.uploads[0].parts["classifier"]
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in part.state.items()}
    uploads = [
        replace(world.uploads[0], parts={"classifier": replace(part, state=huge)}),
        *world.uploads[1:],
    ]
    found = examine(uploads)
    assert "client0" in found.suspects
    assert any("NaN or infinite logits" in flag for flag in found.clients[0].flags)
    assert any("weights are" in flag for flag in found.clients[0].flags)
    json.dumps(found.as_json(), allow_nan=False)


def test_find_outliers_without_classifier():
    world = tiny_world(("cvae-small-decoder:hidden=8",) * 2)
    found = examine(world.uploads)
    assert [one.unjudged for one in found.clients] == ["sent no classifier but: decoder"] * 2
    mixed = tiny_world(("lenet5", "cvae-small-decoder:hidden=8"))
    assert examine(mixed.uploads).clients[1].agreement is None


def test_find_outliers_different_class_lists():
    world = tiny_world(
        ("lenet5", "mlp:hidden=8,layers=1", "lenet5"), classes=[("a", "b"), ("b", "c"), ("c",)]
    )
    assert len(examine(world.uploads).clients) == 3


def test_find_outliers_repeats():
    world = tiny_world(("lenet5", "mlp:hidden=8,layers=1", "lenet5"))
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = find_outliers(world.uploads, world.server, Result({}))
    assert torch.equal(torch.get_rng_state(), before)
    assert find_outliers(world.uploads, world.server, Result({})) == first


def test_find_outliers_converts_images():
    world = tiny_world(("lenet5",) * 3)
    images = {"sheet": torch.rand(5, 3, 20, 20)}
    found = find_outliers(
        world.uploads,
        replace(world.server, public=Images(torch.zeros(2, 1, 16, 16), None, "few")),
        Result({}, {}, images),
    )
    assert found.source.startswith("5 images of the method")
