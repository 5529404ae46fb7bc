"""Model folders: what was saved classifies bit for bit the same; a damaged folder is refused and
never half loaded.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attar.blocks.ensemble import RULES
from attar.core import Gate, Mixture, ModelSpec, Part, Preprocess
from attar.errors import RunError
from attar.models import Classifier, load_description, load_model, save_model
from attar.seeds import rng
from attar.testing import tiny_upload

ODD_CLASSES = ('a "quoted" one', "back\\slash", "шапка 帽子 🎩")
IMAGES = torch.rand(4, 3, 20, 18, generator=rng(0, "images"))


def part_of(client, arch="mlp:hidden=8,layers=1", classes=ODD_CLASSES):
    return tiny_upload(client, arch, classes).parts["classifier"]


def mixture(rule="logits", weights=None):
    colour = ModelSpec.parse("lenet5")
    net = colour.build((3, 20, 20), 2, 5)
    other = Part(
        colour,
        net.state_dict(),
        ODD_CLASSES[2:] + ODD_CLASSES[:1],
        Preprocess((3, 20, 20), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)),
    )
    return Mixture(
        (part_of("a"), other, part_of("b"), part_of("c", "resnet20")), rule, weights, ODD_CLASSES
    )


WEIGHTS = {
    "none": None,
    "per client": torch.tensor([0.1, 0.2, 1 / 3, 0.7]),
    "per client and class": torch.rand(4, 3, generator=rng(0, "weights")),
}


def same_logits(folder, model):
    save_model(folder, model, card="# Karte für 帽子\n")
    loaded = load_model(folder)
    assert loaded.classes == model.classes
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    with torch.no_grad():
        return torch.equal(loaded(IMAGES), Classifier(model)(IMAGES))


@pytest.mark.parametrize("arch", ["mlp:hidden=8,layers=1", "lenet5", "resnet20"])
def test_load_model_returns_the_same_net(tmp_path, arch):
    part = part_of("a", arch)
    assert same_logits(tmp_path / "m", part)
    back = load_description(tmp_path / "m")
    assert replace(back, state={}) == replace(part, state={})
    assert all(torch.equal(back.state[name], tensor) for name, tensor in part.state.items())
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    assert (tmp_path / "m" / "README.md").read_text(encoding="utf-8") == "# Karte für 帽子\n"


def test_load_model_reads_half_precision_as_single(tmp_path):
    part = tiny_upload("ann", "vit:patch=8,width=12,depth=1,hidden=64").parts["classifier"]
    for folder, kind in (("whole", torch.float32), ("half", torch.bfloat16)):
        save_model(
            tmp_path / folder,
            replace(part, state={k: v.to(kind) for k, v in part.state.items()}),
            card="",
        )
    sizes = [
        (tmp_path / folder / "model.safetensors").stat().st_size for folder in ("whole", "half")
    ]
    assert sizes[1] < 0.7 * sizes[0]
    again = load_description(tmp_path / "half")
    for name, value in part.state.items():
        assert again.state[name].dtype == torch.float32
        assert torch.equal(again.state[name], value.bfloat16().float())


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("rule", RULES)
def test_load_model_returns_the_same_mixture(tmp_path, rule, weights):
    model = mixture(rule, WEIGHTS[weights])
    assert same_logits(tmp_path, model)
    back = load_description(tmp_path)
    assert isinstance(back, Mixture)
    assert back.rule == rule
    assert (
        back.weights is None
        if WEIGHTS[weights] is None
        else torch.equal(back.weights, WEIGHTS[weights])
    )


def test_rules_and_weights_give_different_models():
    outputs = {
        tuple(Classifier(mixture(rule, w))(IMAGES).view(-1).tolist())
        for rule in RULES
        for w in WEIGHTS.values()
    }
    assert len(outputs) == 3 * len(RULES) - 2  # the maximum has no weights


def test_load_model_of_more_than_ten_members(tmp_path):
    model = Mixture(tuple(part_of(f"c{number}") for number in range(12)), "max", None, ODD_CLASSES)
    assert same_logits(tmp_path, model)


def test_save_model_of_members_that_share_weights(tmp_path):
    assert same_logits(tmp_path, Mixture((part_of("a"),) * 2, "logits", None, ODD_CLASSES))


def test_classifier_takes_images_of_any_size():
    model = Classifier(mixture())
    assert model.input_shape() == (3, 20, 20)
    assert model(torch.rand(2, 1, 9, 31)).shape == (2, 3)
    assert Classifier(part_of("a")).input_shape() == (1, 16, 16)
    assert torch.equal(
        Classifier(part_of("a"))(IMAGES), part_of("a").build()(part_of("a").preprocess(IMAGES))
    )


SAVED_BY_0_1 = Path(__file__).parent / "models_of_0_1" / "accord"


def test_load_model_of_0_1():
    """Two of three members have statistics; the answers are those of the release that saved it."""
    model = load_description(SAVED_BY_0_1)
    assert (model.rule, model.gate.sharpness, model.gate.temperature) == ("accord", 0.25, 1.5)
    assert [part is None for part in model.gate.statistics] == [False, True, False]
    images = torch.linspace(0, 1, 48).reshape(3, 1, 4, 4)
    expected = torch.tensor(
        [
            [-1.106359601020813, -1.2283552885055542, -0.9769291877746582],
            [-1.1429656744003296, -1.161799430847168, -0.9991143941879272],
            [-1.041501522064209, -1.1354635953903198, -1.1214637756347656],
        ]
    )
    torch.testing.assert_close(load_model(SAVED_BY_0_1)(images), expected, rtol=1e-6, atol=1e-6)


def test_save_model_keeps_the_format_of_0_1(tmp_path):
    """The same keys in the same order, the same tensors, byte for byte."""
    save_model(tmp_path, load_description(SAVED_BY_0_1), card="")
    weights = (tmp_path / "model.safetensors").read_bytes()
    assert weights == (SAVED_BY_0_1 / "model.safetensors").read_bytes()
    new, old = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path, SAVED_BY_0_1)
    )
    assert {**new, "attar": old["attar"]} == old
    assert list(new["model"]) == list(old["model"])


@pytest.mark.parametrize("statistics", [(), (None, None, None)], ids=["empty", "none sent"])
def test_save_model_keeps_the_gate(tmp_path, statistics):
    gate = Gate(statistics, sharpness=2.0, temperature=3.0)
    members = tuple(part_of(client, "resnet20") for client in "abc")
    model = Mixture(members, "accord", None, ODD_CLASSES, gate)
    assert same_logits(tmp_path, model)
    assert load_description(tmp_path).gate == gate


GATES = {
    "no temperature": (lambda m: m.pop("temperature"), "temperature"),
    "temperature 0": (lambda m: m.update(temperature=0), "temperature must be above 0"),
    "sharpness below 0": (lambda m: m.update(familiarity=-1.0), "familiarity must be a number"),
    "sharpness a truth": (lambda m: m.update(familiarity=True), "familiarity must be a number"),
    "statistics too few": (lambda m: m["statistics"].pop(), "statistics of 2 clients"),
    "no statistics": (lambda m: m.pop("statistics"), "statistics"),
    "statistics a classifier": (
        lambda m: m["statistics"].__setitem__(1, m["members"][1]),
        "is a classifier, not a statistics",
    ),
}


@pytest.mark.parametrize("name", GATES)
def test_load_model_refuses_a_damaged_gate(tmp_path, name):
    change, reason = GATES[name]
    model = load_description(SAVED_BY_0_1)
    assert reason in broken(tmp_path, model, lambda config: change(config["model"]))


def test_save_model_replaces_an_older_model(tmp_path):
    assert same_logits(tmp_path, mixture())
    assert same_logits(tmp_path, part_of("z"))


# --- damaged folders ------------------------------------------------------------------------------


def broken(folder, model, change):
    save_model(folder, model, card="")
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


NETS = {
    "other format": (lambda c: c.update(format="attar-model/2"), "not of format attar-model/1"),
    "other hash": (
        lambda c: c.update(weights_sha256="0" * 64),
        "not the file that config.json was written with",
    ),
    "no hash": (lambda c: c.pop("weights_sha256"), "not the file"),
    "no model": (lambda c: c.pop("model"), "model"),
    "model a list": (lambda c: c.update(model=[]), "damaged"),
    "model a text": (lambda c: c.update(model="x"), "damaged"),
    "no kind": (lambda c: c["model"].pop("kind"), "kind"),
    "unknown net": (lambda c: c["model"].update(arch="alexnet"), "no net called 'alexnet'"),
    "option too large": (lambda c: c["model"]["options"].update(layers=10**9), "out of bounds"),
    "class too many": (lambda c: c["model"]["classes"].append("more"), "has shape"),
    "no std": (lambda c: c["model"]["preprocess"].pop("std"), "preprocess must have exactly"),
    "std zero": (lambda c: c["model"]["preprocess"].update(std=[0]), "preprocess.std"),
}


@pytest.mark.parametrize("name", NETS)
def test_load_model_refuses_a_damaged_net(tmp_path, name):
    change, reason = NETS[name]
    assert reason in broken(tmp_path, part_of("a"), change)


MIXTURES = {
    "unknown rule": (lambda m: m.update(rule="median"), "unknown rule median"),
    "rule a list": (lambda m: m.update(rule=[]), "damaged"),
    "weights ragged": (lambda m: m.update(weights=[[1.0], [1.0, 2.0]]), "damaged"),
    "weights too few": (
        lambda m: m.update(weights=[1.0, 2.0]),
        "weights of shape [2] for 4 members",
    ),
    "weights a text": (lambda m: m.update(weights="x"), "damaged"),
    "weights of words": (lambda m: m.update(weights=["x"] * 4), "damaged"),
    "members a number": (lambda m: m.update(members=3), "damaged"),
    "member a text": (lambda m: m.update(members=["x"]), "a part must have exactly"),
    "no members": (lambda m: m.update(members=[]), "classes"),
    "member too few": (lambda m: m["members"].pop(0), "damaged"),
    "member too many": (lambda m: m["members"].append(m["members"][0]), "missing tensor"),
    "classes a text": (lambda m: m.update(classes="abc"), "classes must be a list"),
    "class renamed": (
        lambda m: m["classes"].__setitem__(0, "new"),
        "classes are not those of the mixture",
    ),
    "class nobody knows": (
        lambda m: m["classes"].append("new"),
        "classes are not those of the mixture",
    ),
    "class twice": (lambda m: m["classes"].append(m["classes"][0]), "same name"),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_load_model_refuses_a_damaged_mixture(tmp_path, name):
    change, reason = MIXTURES[name]
    assert reason in broken(
        tmp_path, mixture("logits", WEIGHTS["per client"]), lambda config: change(config["model"])
    )


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "7", '{"format": "attar-model/1", "format": "x"}', "[" * 100_000, "\ud800"],
)
def test_load_model_refuses_what_is_no_config(tmp_path, content):
    save_model(tmp_path, part_of("a"), card="")
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(RunError, match="damaged"):
        load_model(tmp_path)


def test_load_model_refuses_changed_weights(tmp_path):
    save_model(tmp_path, part_of("a"), card="")
    weights = tmp_path / "model.safetensors"
    good = weights.read_bytes()
    flipped = bytearray(good)
    flipped[-1] ^= 1
    for content in (b"", good[:-1], good + b"x", bytes(flipped)):
        weights.write_bytes(content)
        with pytest.raises(RunError, match="not the file"):
            load_model(tmp_path)


def test_load_model_names_a_missing_file(tmp_path):
    with pytest.raises(RunError, match=r"config\.json is missing"):
        load_model(tmp_path / "nowhere")
    save_model(tmp_path, part_of("a"), card="")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RunError, match=r"model\.safetensors is missing"):
        load_model(tmp_path)
    with pytest.raises(RunError):
        load_model(tmp_path / "config.json")  # a file, not a folder


def test_load_model_of_an_unfinished_run(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match="is unfinished: there is no model in it yet") as caught:
        load_model(tmp_path)
    assert "--resume" in str(caught.value.fix)


def test_save_model_writes_the_config_last(tmp_path):
    """Old config, new weights: the hash in the config does not fit, so nothing is loaded rather
    than a mixture of both.
    """
    save_model(tmp_path, part_of("a"), card="")
    config = tmp_path / "config.json"
    config.rename(tmp_path / "old config")
    config.mkdir()  # no file can be written over it
    with pytest.raises(OSError, match="directory"):
        save_model(tmp_path, part_of("b"), card="")
    config.rmdir()
    (tmp_path / "old config").rename(config)
    with pytest.raises(RunError, match="not the file"):
        load_model(tmp_path)
