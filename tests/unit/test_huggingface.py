"""Hugging Face checkpoints: the same logits, tokens and attention as theirs, a round trip as an
upload, and what is refused.
"""

import json
import shutil

import pytest
import torch
from hub_server import Repository, serve_hub
from torch import nn

import attar
from attar.blocks.ensemble import Teachers
from attar.cli import main
from attar.core import Upload
from attar.errors import AttarError, RunError, SpecError
from attar.models import load_description, parse_net
from attar.models.huggingface import load_checkpoint
from attar.nets.registry import token_net
from attar.uploads import decode, encode

transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 1,
    "id2label": {0: "ring", 1: "cross", 2: "bar"},
}
KINDS = {
    "vit": ("ViTConfig", "ViTForImageClassification", {}),
    "vit without biases": (
        "ViTConfig",
        "ViTForImageClassification",
        {"qkv_bias": False, "layer_norm_eps": 1e-3},
    ),
    "deit": ("DeiTConfig", "DeiTForImageClassification", {}),
    "distilled deit": ("DeiTConfig", "DeiTForImageClassificationWithTeacher", {}),
}


def theirs(name):
    config, model, more = KINDS[name]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        net = getattr(transformers, model)(
            getattr(transformers, config)(**SMALL, **more, attn_implementation="eager")
        )
        for (
            parameter
        ) in net.parameters():  # biases, tokens and norms start at 0 or 1, where mistakes hide
            nn.init.normal_(parameter, 0.0, 0.3)
    return net.eval()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    home = tmp_path_factory.mktemp("checkpoints")
    for name in KINDS:
        theirs(name).save_pretrained(home / name)
    return home


def their_look(net, x):
    """Logits, tokens after the last norm and the class attention of the last block, as
    transformers has them.
    """
    with torch.no_grad():
        out = net(x, output_attentions=True)
        tokens = net.base_model(x).last_hidden_state
    extra = 2 if net.config.model_type == "deit" else 1
    return out.logits, tokens, out.attentions[-1][:, :, 0, extra:].mean(1)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", KINDS)
def test_load_checkpoint_computes_what_transformers_computes(folders, name):
    part = load_checkpoint(f"hf:{folders / name}")
    x = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    look = token_net(part.spec.arch, part.build()).look(x)
    for ours, other in zip(look, their_look(theirs(name), x), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5)
    assert part.classes == ("ring", "cross", "bar")
    assert part.preprocess.input_shape == (1, 16, 16)
    assert part.preprocess.mean == part.preprocess.std == (0.5,)
    assert part.spec == parse_net(f"hf:{folders / name}")


def test_load_checkpoint_reads_preprocessing(folders, tmp_path):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.3], "image_std": [0.2], "size": 16})
    )
    preprocess = load_checkpoint(f"hf:{folder}").preprocess
    assert (preprocess.mean, preprocess.std) == ((0.3,), (0.2,))


def test_load_checkpoint_numbers_repeated_class_names(folders, tmp_path):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**config, "id2label": {"0": "crane", "1": "ring", "2": "crane"}})
    )
    assert load_checkpoint(f"hf:{folder}").classes == ("crane", "ring", "crane (2)")


@pytest.mark.parametrize("name", KINDS)
def test_load_checkpoint_travels_and_stacks(folders, name):
    part = load_checkpoint(f"hf:{folders / name}")
    upload = Upload("ann", {"classifier": part}, 1)
    back = decode(encode(upload), "ann.attar").parts["classifier"]
    assert back.spec == part.spec
    images = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    stacked = Teachers([part, back], part.classes, stack=True)
    alone = part.build()(part.preprocess(images))
    torch.testing.assert_close(stacked(images), alone.expand(2, -1, -1), rtol=1e-4, atol=1e-5)


DAMAGE = {
    "another model": ({"model_type": "swin"}, "supported model types: vit, deit"),
    "no head": ({"architectures": ["ViTModel"]}, "expected a classifier"),
    "another activation": ({"hidden_act": "relu"}, "only gelu"),
    "another size": ({"hidden_size": 24}, "has shape"),
    "a size that is none": ({"patch_size": "eight"}, "patch"),
    "too few blocks": ({"num_hidden_layers": 0}, "depth"),
    "more blocks": ({"num_hidden_layers": 3}, "layer.2.layernorm_before.weight is missing"),
    "a class without a name": ({"id2label": {"0": "ring", "1": " ", "2": "bar"}}, "is empty"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_load_checkpoint_refuses_other_models(folders, tmp_path, name):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    config = json.loads((folder / "config.json").read_text())
    changes, words = DAMAGE[name]
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(AttarError, match=words):
        load_checkpoint(f"hf:{folder}")


def test_load_checkpoint_refuses_other_folders(folders, tmp_path):
    with pytest.raises(RunError, match="There is no folder"):
        load_checkpoint("hf:./nothing")
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(SpecError, match=r"model\.safetensors is missing"):
        load_checkpoint(f"hf:{folder}")
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(SpecError, match="cannot be used"):
        load_checkpoint(f"hf:{folder}")
    (folder / "config.json").write_text("[]")
    (folder / "model.safetensors").write_bytes((folders / "vit" / "model.safetensors").read_bytes())
    with pytest.raises(SpecError, match=r"config\.json is not a JSON object"):
        load_checkpoint(f"hf:{folder}")


def test_load_checkpoint_asks_the_hub(folders, tmp_path, monkeypatch):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        files = {path.name: path.read_bytes() for path in (folders / "vit").iterdir()}
        hub.repositories["somebody/vit"] = Repository()
        hub.repositories["somebody/vit"].commit("main", {**files, "pytorch_model.bin": b"pickle"})
        part = load_checkpoint("hf:somebody/vit")
        assert part.classes == ("ring", "cross", "bar")
        assert attar.load_model("hf:somebody/vit").classes == part.classes
        assert not any("pytorch_model" in path for _, path in hub.requests)
        with pytest.raises(RunError, match="There is no model somebody/none"):
            load_checkpoint("hf:somebody/none")


def test_resolve_start_from_a_checkpoint(folders, tmp_path, capsys):
    """fashion-mini has ten classes, the checkpoint three: its body, a fresh head. As the net and
    as the start it is the same.
    """
    where = f"hf:{folders / 'deit'}"
    short = ["--data", "fashion-mini", "--epochs", "0", "--json"]
    for out, words in (("net", ["--net", where]), ("start", ["--start", where])):
        main(["train", *short, *words, "--out", str(tmp_path / f"{out}.attar")])
    capsys.readouterr()
    parts = [
        decode((tmp_path / f"{out}.attar").read_bytes(), out).parts["classifier"]
        for out in ("net", "start")
    ]
    given = load_checkpoint(where)
    for part in parts:
        assert part.spec == given.spec
        assert len(part.classes) == 10
        assert torch.equal(part.state["positions"], given.state["positions"])
        assert torch.equal(part.state["head.weight"], parts[0].state["head.weight"])
    settings = [
        "--method",
        "fedmitr",
        "--set",
        "epochs=1",
        "--set",
        "inversion_steps=2",
        "--set",
        "batch_size=4",
        "--json",
    ]
    main(
        [
            "fuse",
            str(tmp_path / "net.attar"),
            *settings,
            "--set",
            "student_lr=1e-30",
            "--student",
            where,
            "--no-robustness",
            "--out",
            str(tmp_path / "fused"),
        ]
    )
    capsys.readouterr()
    student = load_description(tmp_path / "fused")
    torch.testing.assert_close(student.state["positions"], given.state["positions"])
    assert {path.name for path in (tmp_path / "fused").glob("*.png")} == {
        "synthetic.png",
        "density.png",
    }
