"""Models to and from the Hugging Face hub, against a hub on this machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hub_server import TOKEN, Repository, serve_hub
from safetensors.torch import load_file, save_file

import attar
from attar import RunOptions, fuse
from attar.cli import main
from attar.core import Part
from attar.deploy import prepare, publish
from attar.errors import AttarError, RunError, SettingsError
from attar.models import (
    HubName,
    card_head,
    federation_card,
    hub_card,
    load_deployable,
    load_description,
    load_start,
    parse_hub_name,
)
from attar.testing import tiny_upload

huggingface_hub = pytest.importorskip(
    "huggingface_hub", reason="huggingface_hub is not installed: pip install 'attar[hub]'"
)
CLASSES = ("ring", "cross", "a | <b> `c`")
# huggingface_hub's own upload of a large file uses what its HTTP package calls outdated.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub, with an empty cache and the token of its only user."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve_hub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    """The folder of a real run: two clients' nets averaged, evaluated on a private folder."""
    folder = tmp_path_factory.mktemp("runs") / "fused"
    uploads = [tiny_upload(f"clinic-{place}", "mlp:hidden=8", CLASSES) for place in "ab"]

    def measure(model):
        images = torch.zeros(6, 8, 8, 3, dtype=torch.uint8)
        split = attar.Split(images.numpy(), torch.tensor([0, 1, 2] * 2).numpy())
        return attar.evaluate_on(model, split, CLASSES)

    options = RunOptions(
        out=folder, evaluate=measure, evaluated_on="6 images, the test part of folder:/home/me/x"
    )
    fuse(uploads, "fedavg", options=options)
    (folder / "sums.attar").write_bytes(b"sums")
    (folder / "command.toml").write_text("# in /home/me\n")
    (folder / "notes.txt").write_text("private")
    (folder / "patients.png").write_bytes(b"a private picture")
    return folder


def copied(fused, tmp_path):
    return Path(shutil.copytree(fused, tmp_path / "copy"))


def head_of(card):
    yaml = pytest.importorskip("yaml")
    assert card.startswith("---\n")
    return yaml.safe_load(card[4:].partition("\n---\n")[0])


# --- names and cards ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("me/net", HubName("me/net")),
        ("me/net@v1.0", HubName("me/net", "v1.0")),
        ("me/net@refs/pr/1", HubName("me/net", "refs/pr/1")),
        ("net", None),
        ("me/../net", None),
        ("a/b/c", None),
        ("me/net@", None),
        ("/me/net", None),
        ("me/net@../main", None),
        ("me/nét", None),
    ],
)
def test_parse_hub_name(text, name):
    assert parse_hub_name(text) == name


def test_card_head_is_what_the_hub_reads(fused):
    record = json.loads((fused / "record.json").read_text())
    head = head_of(card_head("student", record, license="apache-2.0", datasets=["me/scans"]))
    assert head["library_name"] == "attar"
    assert head["pipeline_tag"] == "image-classification"
    assert head["license"] == "apache-2.0"
    assert head["datasets"] == ["me/scans"]
    assert "fedavg" in head["tags"]
    data = huggingface_hub.ModelCardData(**head, model_name="student")
    (result,) = data.eval_results
    assert result.metric_type == "accuracy"
    assert result.metric_value == round(record["accuracy"], 4)
    assert (result.dataset_type, result.dataset_name) == ("private", "private images")


def test_card_head_quotes_what_others_wrote():
    yaml = pytest.importorskip("yaml")
    hostile = 'x"\n---\nlicense: mit\x85 \u2028 : #\t\x07 \\ \U0001f600 \ud83d'
    record = {"method": hostile, "accuracies": {hostile: 0.5}, "evaluated_on": "cifar10"}
    head = yaml.safe_load(card_head(hostile, record, datasets=[hostile]).strip().strip("-"))
    assert head["tags"][-1] == hostile
    assert head["datasets"] == [hostile]
    assert head["model-index"][0]["name"] == hostile
    assert head["model-index"][0]["results"][0]["dataset"] == {"type": "cifar10", "name": "cifar10"}
    assert "license" not in head
    for word in ("yes", "NULL", "1.5", "", "a: b", "@x", "no"):
        told = yaml.safe_load(card_head(word, {"method": word}).strip().strip("-"))
        assert told["tags"][-1] == word


def test_cards_of_runs_have_the_head_and_show_names_as_they_are(fused):
    card = (fused / "README.md").read_text()
    assert head_of(card)["model-index"][0]["results"][0]["task"]["type"] == "image-classification"
    assert r"ring, cross, a \| &lt;b&gt; \`c\`" in card
    federated = {
        "method": "fedavg", "rounds": [1], "clients": ["a"], "bytes_up": 1, "bytes_down": 1,
        "attar": "0", "settings": {}, "plan": {}, "seed": 0, "public": None, "remarks": [],
        "ending": "finished", "accuracies": {}, "task": {"classes": CLASSES},
    }  # fmt: skip
    model = tiny_upload("x", "mlp:hidden=8", CLASSES).parts["classifier"]
    assert head_of(federation_card("student", model, federated))["library_name"] == "attar"


def test_hub_card_says_nothing_about_clients_and_places(fused):
    record = json.loads((fused / "record.json").read_text())
    record["settings"] = {**record["settings"], "backbone": "/home/me/net", "temperature": 2.0}
    model = load_description(fused)
    card = hub_card("net", model, record, where="hf:me/net")
    assert "from the uploads of 2 clients" in card
    assert "| temperature | 2.0 |" in card
    assert 'attar.load_model("hf:me/net")' in card
    for private in ("clinic", "/home", record["clients"][0]["sha256"][:12], "folder:"):
        assert private not in card
    named = hub_card("net", model, record, where="hf:me/net", clients=True)
    assert "| clinic-a |" in named
    bare = hub_card("net", model, None, where="hf:me/net")
    assert "Not measured." in bare


# --- publishing -----------------------------------------------------------------------------------


def test_publish_and_load(hub, fused):
    publication = prepare(fused, "somebody/net", license="mit")
    published = publish(publication)
    assert published.url == f"{hub.address}/somebody/net"
    there = hub.repositories["somebody/net"].commits[published.commit]
    assert set(there) == {".gitattributes", "README.md", "config.json", "model.safetensors"}
    assert hub.modes["model.safetensors"] == "lfs"
    assert hub.modes["config.json"] == "regular"
    assert head_of(there["README.md"].decode())["license"] == "mit"
    ours = attar.load_model(fused)
    images = torch.rand(3, 3, 8, 8)
    for name in ("hf:somebody/net", f"hf:somebody/net@{published.commit}", "hf:somebody/net@main"):
        theirs = attar.load_model(name)
        assert theirs.classes == CLASSES
        assert torch.equal(theirs(images), ours(images))
    assert isinstance(load_deployable(Path("hf:somebody/net")), Part)
    assert load_start(Path("hf:somebody/net")).spec == ours.description.spec


def test_publish_sends_nothing_else(hub, fused):
    publication = prepare(fused, "somebody/net")
    stays = dict(publication.stays)
    assert {"sums.attar", "command.toml", "run.json", "record.json", "notes.txt"} <= set(stays)
    assert "taken apart" in stays["sums.attar"]
    assert stays["notes.txt"] == "not part of the model"
    assert "--picture" in stays["patients.png"]
    assert set(publication.files) == {"README.md", "config.json", "model.safetensors"}
    config = json.loads(publication.files["config.json"])
    assert set(config) == {"format", "attar", "model", "weights_sha256"}


def test_publish_leaves_other_keys_of_the_config(hub, fused, tmp_path):
    folder = copied(fused, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["sums"] = [{"file": "sums.attar", "clients": ["clinic-a"]}]
    (folder / "config.json").write_text(json.dumps(config))
    publish(prepare(folder, "somebody/net"))
    there = hub.repositories["somebody/net"]
    assert b"clinic" not in there.commits[there.branches["main"]]["config.json"]
    attar.load_model("hf:somebody/net")


def test_publish_refuses_weights_with_more_in_them(hub, fused, tmp_path):
    import hashlib

    for extra, facts in (({"secret": torch.zeros(3)}, None), ({}, {"note": "of patient 17"})):
        folder = copied(fused, tmp_path / str(len(extra)))
        weights = {**load_file(folder / "model.safetensors"), **extra}
        save_file(weights, folder / "model.safetensors", facts)
        config = json.loads((folder / "config.json").read_text())
        data = (folder / "model.safetensors").read_bytes()
        config["weights_sha256"] = hashlib.sha256(data).hexdigest()
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(
            RunError, match=r"unexpected tensor secret|more than the model's weights"
        ):
            prepare(folder, "somebody/net")
    assert hub.requests == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Trained on /home/me/scans.", "README.md names /home/me/scans"),
        ("See C:\\Users\\me.", "README.md names C:"),
        (f"export HF_TOKEN={TOKEN}", "looks like a token"),
        ("-----BEGIN PRIVATE KEY-----", "looks like a token or a key"),
    ],
)
def test_publish_refuses_texts_that_tell_too_much(hub, fused, tmp_path, text, words):
    card = tmp_path / "card.md"
    card.write_text(text)
    with pytest.raises(RunError, match="nothing is sent") as refused:
        prepare(fused, "somebody/net", card=card)
    assert words in str(refused.value)
    assert hub.requests == []


def test_publish_refuses_paths_in_the_config(hub, fused, tmp_path, monkeypatch):
    """The folder's own place, whatever it is called."""
    folder = copied(fused, tmp_path)
    card = tmp_path / "card.md"
    card.write_text(f"from {folder.resolve()}")
    with pytest.raises(RunError, match="nothing is sent"):
        prepare(folder, "somebody/net", card=card)


def test_publish_sends_pictures_that_are_named(hub, fused):
    publication = prepare(fused, "somebody/net", pictures=["patients.png"])
    assert publication.files["patients.png"] == b"a private picture"
    assert b"![patients.png](patients.png)" in publication.files["README.md"]
    for wrong in ("none.png", "../fused/patients.png", "notes.txt"):
        with pytest.raises(SettingsError, match="no such picture"):
            prepare(fused, "somebody/net", pictures=[wrong])


def test_publish_refuses_a_model_that_has_not_learned(fused, tmp_path):
    folder = copied(fused, tmp_path)
    record = json.loads((folder / "record.json").read_text())
    (folder / "record.json").write_text(json.dumps({**record, "learned": False}))
    with pytest.raises(RunError, match="has not learned anything yet"):
        prepare(folder, "somebody/net")
    (folder / "config.json").unlink()
    (folder / "record.json").unlink()
    with pytest.raises(RunError, match="unfinished"):
        prepare(folder, "somebody/net")


def test_publish_of_a_mixture_says_whose_nets_it_holds(tmp_path):
    uploads = [tiny_upload(f"clinic-{place}", "mlp:hidden=8", CLASSES) for place in "ab"]
    fuse(uploads, "ensemble", out=tmp_path / "fused")
    notes = prepare(tmp_path / "fused", "somebody/net").notes
    assert "the 2 clients' own nets" in notes[0]


def test_publish_to_a_branch_and_to_a_private_repository(hub, fused):
    publication = prepare(fused, "somebody/net", revision="trial")
    assert b"hf:somebody/net@trial" in publication.files["README.md"]
    publish(publication, private=True, revision="trial")
    there = hub.repositories["somebody/net"]
    assert there.private
    assert "config.json" not in there.commits[there.branches["main"]]
    assert attar.load_model("hf:somebody/net@trial").classes == CLASSES
    there.private = False
    with pytest.raises(RunError, match="there already, and public"):
        publish(publication, private=True, revision="trial")


@pytest.mark.parametrize("name", ["net", "me/net@main", "a/b/c", "../x"])
def test_prepare_refuses_other_names(fused, name):
    with pytest.raises(SettingsError, match="no name on the hub"):
        prepare(fused, name)


def test_publish_needs_a_token_of_the_environment(hub, fused, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SettingsError, match="needs a token") as refused:
        publish(prepare(fused, "somebody/net"))
    assert "export HF_TOKEN" in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(RunError, match="does not accept the token"):
        publish(prepare(fused, "somebody/net"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(RunError, match="may not do this"):
        publish(prepare(fused, "forbidden/net"))


# --- loading --------------------------------------------------------------------------------------


def test_load_model_says_what_is_not_there(hub, monkeypatch):
    with pytest.raises(RunError, match=r"no model somebody/none on the hub, or it is private"):
        attar.load_model("hf:somebody/none")
    with pytest.raises(RunError, match="no name on the Hugging Face hub"):
        attar.load_model("hf:nothing")
    hub.repositories["somebody/empty"] = repository = Repository()
    repository.commit("main", {"README.md": b"", "pytorch_model.bin": b"pickle"})
    with pytest.raises(RunError, match=r"no config\.json and no model\.safetensors") as refused:
        attar.load_model("hf:somebody/empty")
    assert "no pickled weights" in str(refused.value)
    with pytest.raises(RunError, match="no revision 'v9'"):
        attar.load_model("hf:somebody/empty@v9")
    assert not any("pytorch_model.bin" in path for _, path in hub.requests)


def test_load_model_of_a_private_repository(hub, fused, monkeypatch):
    publish(prepare(fused, "somebody/net"), private=True)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(RunError, match="or it is private") as refused:
        attar.load_model("hf:somebody/net")
    assert "HF_TOKEN" in str(refused.value)


def test_load_model_fetches_known_files_alone_and_bounded(hub, fused):
    publish(prepare(fused, "somebody/net"))
    there = hub.repositories["somebody/net"]
    there.commit("main", {"evil.py": b"print()", "model.pkl": b"pickle"})
    hub.requests.clear()
    attar.load_model("hf:somebody/net")
    fetched = {path.rpartition("/")[2] for method, path in hub.requests if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors"}
    hub.sizes["config.json"] = 2**30
    with pytest.raises(RunError, match=r"config\.json has 1\.1 GB, at most"):
        attar.load_model("hf:somebody/net")


def test_load_model_takes_all_files_from_one_commit(hub, fused, monkeypatch):
    publish(prepare(fused, "somebody/net"))
    there = hub.repositories["somebody/net"]
    fetch = huggingface_hub.HfApi.hf_hub_download

    def change_meanwhile(api, name, file, **more):
        path = fetch(api, name, file, **more)
        there.commit("main", {"README.md": b"new"})
        return path

    monkeypatch.setattr(huggingface_hub.HfApi, "hf_hub_download", change_meanwhile)
    with pytest.raises(RunError, match="changed while it was fetched"):
        attar.load_model("hf:somebody/net")


def test_load_model_checks_what_it_fetched(hub, fused):
    publish(prepare(fused, "somebody/net"))
    there = hub.repositories["somebody/net"]
    there.commit("main", {"model.safetensors": b"other weights"})
    with pytest.raises(RunError, match=r"is not the file that config\.json was written with"):
        attar.load_model("hf:somebody/net")


def test_load_model_reads_the_cache_where_the_hub_is_down(hub, fused, monkeypatch):
    publish(prepare(fused, "somebody/net"))
    attar.load_model("hf:somebody/net@main")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert attar.load_model("hf:somebody/net@main").classes == CLASSES
    with pytest.raises(RunError, match="cannot be reached") as refused:
        attar.load_model("hf:somebody/other")
    assert "HF_HUB_OFFLINE" in str(refused.value)


def test_load_model_names_the_missing_extra(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(SettingsError, match=r"attar\[hub\]"):
        attar.load_model("hf:somebody/net")
    with pytest.raises(AttarError, match=r"attar\[hub\]"):
        load_start(Path("hf:somebody/net"))


# --- the command line -----------------------------------------------------------------------------


def test_attar_publish_lists_and_sends(hub, fused, capsys):
    words = ["publish", str(fused), "somebody/net", "--license", "apache-2.0"]
    assert main([*words, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "What goes to somebody/net" in shown
    assert "sums.attar" in shown
    assert "Nothing was sent" in shown
    assert hub.requests == []
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["files"]) == {"README.md", "config.json", "model.safetensors"}
    assert told["commit"] == hub.repositories["somebody/net"].branches["main"]
    assert main(words) == 0
    assert 'attar.load_model("hf:somebody/net@' in capsys.readouterr().out


def test_verbs_take_a_model_of_the_hub(hub, fused, tmp_path, capsys):
    publish(prepare(fused, "somebody/net"))
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    name = "hf:somebody/net"
    assert main(["predict", name, str(tmp_path / "x.png"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["class"] in CLASSES
    assert main(["predict", "hf:somebody/none", str(tmp_path / "x.png")]) == 2
    assert "no model somebody/none" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_command_speaks_to_the_hub_of_the_environment(hub, fused, tmp_path):
    """In a process of its own: the real environment, not our patches."""
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    environment = {**os.environ, **home, "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    words = [sys.executable, "-m", "attar", "publish", str(fused), "somebody/net", "--json"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    code = "import attar; print(attar.load_model('hf:somebody/net').classes)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(CLASSES), done.stderr
