"""Clients join and leave a model of sums: the bits of a new fusion, and files checked by hash."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from attar.errors import RunError
from attar.fusion import find_files, fuse, read_folder, server_for, update
from attar.methods import Analytic, GaussianHead, LocalHeads
from attar.models import load_model
from attar.running import RunOptions
from attar.testing import CLASSES, SMALL_SUMS, tiny_sums, tiny_upload, tiny_world
from attar.uploads import admit, read_bundle, receive, write_bundle

BACKBONES = tiny_world(SMALL_SUMS).server.backbones


@pytest.fixture
def files(tmp_path):
    paths = {}
    for number, name in enumerate(("berlin", "oslo", "rome", "turin", "york")):
        kind = SMALL_SUMS[2] if name == "turin" else SMALL_SUMS[0]
        classes = CLASSES[:2] if name == "oslo" else CLASSES
        paths[name] = tmp_path / f"{name}.attar"
        write_bundle(paths[name], tiny_sums(name, kind, classes))
        assert number < 5
    return paths


def fused(paths, out, method=None, **more):
    uploads, admission = admit(receive(paths), **more)
    server = replace(server_for(uploads, classes=CLASSES), backbones=BACKBONES)
    return fuse(uploads, method or GaussianHead(), server, admission=admission, out=out)


def updated(folder, out, add=(), remove=()):
    uploads, admission = admit(receive(add)) if add else ([], None)
    return update(
        folder,
        add=uploads,
        remove=receive(remove),
        admission=admission,
        backbones=BACKBONES,
        options=RunOptions(out=out),
    )


def same_files(one, other):
    first, second = (load_file(folder / "model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for file in sorted(path.name for path in one.glob("*.attar")):
        left, right = (read_bundle(folder / file).parts["sums"] for folder in (one, other))
        assert left.spec == right.spec
        assert all(torch.equal(left.state[name], right.state[name]) for name in left.state)
    assert [p.name for p in one.glob("*.attar")] == [p.name for p in other.glob("*.attar")]


@pytest.mark.parametrize("method", [GaussianHead(kind="lda"), Analytic()])
def test_update_has_the_bits_of_a_new_fusion(files, tmp_path, method):
    before = [files[name] for name in ("berlin", "oslo", "rome")]
    after = [files[name] for name in ("oslo", "york", "rome")]
    fused(before, tmp_path / "old", method)
    updated(tmp_path / "old", tmp_path / "new", add=[files["york"]], remove=[files["berlin"]])
    fused(after, tmp_path / "again", method)
    same_files(tmp_path / "new", tmp_path / "again")
    # and back
    updated(tmp_path / "new", tmp_path / "back", add=[files["berlin"]], remove=[files["york"]])
    same_files(tmp_path / "back", tmp_path / "old")


def test_record_says_who_left_and_when(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "old")
    updated(tmp_path / "old", tmp_path / "new", add=[files["york"]], remove=[files["berlin"]])
    record = json.loads((tmp_path / "new" / "record.json").read_text())
    assert [client["client"] for client in record["clients"]] == ["oslo", "york"]
    (step,) = record["updates"]
    assert step["removed"] == [{"client": "berlin", "sha256": receive([files["berlin"]])[0].sha256}]
    assert [one["client"] for one in step["added"]] == ["york"]
    assert step["at"].endswith("+00:00")
    card = (tmp_path / "new" / "README.md").read_text()
    assert f"{step['at']}: joined: york; left: berlin." in card
    assert "`sums.attar` beside this card" in card
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert [one["client"] for one in config["sums"][0]["clients"]] == ["oslo", "york"]
    updated(tmp_path / "new", tmp_path / "third", remove=[files["oslo"]])
    assert len(json.loads((tmp_path / "third" / "record.json").read_text())["updates"]) == 2


def test_folder_holds_the_sums_of_the_rest_alone(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "old")
    updated(tmp_path / "old", tmp_path / "new", remove=[files["berlin"]])
    kept = read_bundle(tmp_path / "new" / "sums.attar").parts["sums"]
    alone = read_bundle(files["oslo"]).parts["sums"]
    places = [kept.classes.index(name) for name in alone.classes]
    assert torch.equal(kept.state["sums"][:, places], alone.state["sums"])
    assert torch.equal(kept.state["squares"], alone.state["squares"])
    assert int(kept.state["counts"].sum()) == int(alone.state["counts"].sum())


def test_a_backbone_leaves_with_its_last_client(files, tmp_path):
    fused([files["berlin"], files["turin"]], tmp_path / "old")
    assert (tmp_path / "old" / "sums-2.attar").exists()
    updated(tmp_path / "old", tmp_path / "new", remove=[files["turin"]])
    fused([files["berlin"]], tmp_path / "again")
    same_files(tmp_path / "new", tmp_path / "again")
    model = load_model(tmp_path / "new")
    assert model(torch.rand(2, 1, 16, 16)).isfinite().all()


def test_class_map_holds_for_those_who_join_and_leave(files, tmp_path):
    names = {"ring": "circle"}
    uploads, admission = admit(receive([files["berlin"], files["oslo"]]), class_map=names)
    classes = ("circle", *CLASSES[1:])
    server = replace(server_for(uploads, classes=classes), backbones=BACKBONES)
    fuse(uploads, GaussianHead(), server, admission=admission, out=tmp_path / "old")
    updated(tmp_path / "old", tmp_path / "new", add=[files["york"]], remove=[files["berlin"]])
    assert load_model(tmp_path / "new").classes == classes


def test_refusals(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "old")
    out = tmp_path / "new"
    with pytest.raises(RunError, match="rome with hash"):
        updated(tmp_path / "old", out, remove=[files["rome"]])
    other = tmp_path / "other.attar"
    write_bundle(other, replace(tiny_sums("x"), client="berlin"))
    with pytest.raises(RunError, match="another file of it is"):
        updated(tmp_path / "old", out, remove=[other])
    with pytest.raises(RunError, match="berlin is in it already"):
        updated(tmp_path / "old", out, add=[files["berlin"]])
    with pytest.raises(RunError, match="No client is left"):
        updated(tmp_path / "old", out, remove=[files["berlin"], files["oslo"]])
    assert not out.exists()
    # the same file under the same name may come again once the old one leaves
    updated(tmp_path / "old", out, add=[other], remove=[files["berlin"]])


def test_by_hash_and_name_the_file_is_found_or_asked_for(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "old")
    old = read_folder(tmp_path / "old")
    digest = receive([files["berlin"]])[0].sha256
    for word in (digest, digest[:12], "berlin"):
        (found,) = find_files(old, [word], list(files.values()))
        assert found.path == files["berlin"]
        with pytest.raises(RunError, match="holds the sum of all clients"):
            find_files(old, [word], [files["oslo"]])
    with pytest.raises(RunError, match="no such file, and no client"):
        find_files(old, ["atlantis"], [])


def test_changed_sums_are_noticed(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "old")
    write_bundle(tmp_path / "old" / "sums.attar", tiny_sums("york"))
    with pytest.raises(RunError, match="is not the file that"):
        read_folder(tmp_path / "old")


def test_models_without_sums_cannot_be_updated(files, tmp_path):
    fused([files["berlin"], files["oslo"]], tmp_path / "local", LocalHeads(combine="average"))
    with pytest.raises(RunError, match="keeps no sums"):
        read_folder(tmp_path / "local")
    strong = tmp_path / "strong.attar"
    write_bundle(strong, tiny_upload("strong"))
    fused([files["berlin"], strong], tmp_path / "mixed")
    with pytest.raises(RunError, match="strong sent a classifier"):
        updated(tmp_path / "mixed", tmp_path / "new", add=[files["oslo"]])
