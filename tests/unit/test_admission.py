"""Class names between partners: unions, synonyms, an explicit task; and who is let in."""

import json

import pytest
import torch

from attar.cli.arguments import parse_classes
from attar.core import Images
from attar.errors import BundleError, NeedsError, SettingsError
from attar.fusion import fuse, server_for
from attar.methods import METHODS
from attar.models import Classifier
from attar.testing import SHAPE, tiny_upload
from attar.uploads import admit, parse_class_map, receive, write_bundle
from attar.uploads.admission import rename_classes

ANN = tiny_upload("ann", classes=("kitty", "dog"))
BOB = tiny_upload("bob", classes=("dog", "bird"))
CID = tiny_upload("cid", classes=("cat", "hound"))


def classes_of(uploads):
    return [upload.parts["classifier"].classes for upload in uploads]


def test_server_for_joins_the_classes_of_partners():
    assert server_for([CID, BOB]).task.classes == ("cat", "hound", "dog", "bird")
    renamed = rename_classes([ANN, BOB], {"kitty": "cat"})
    assert server_for(renamed).task.classes == ("cat", "dog", "bird")
    assert server_for(renamed, classes=["bird", "cat", "dog"]).task.classes == (
        "bird",
        "cat",
        "dog",
    )


def test_rename_classes_changes_only_names():
    renamed = rename_classes([ANN, BOB, CID], {"kitty": "cat", "hound": "dog"})
    assert classes_of(renamed) == [("cat", "dog"), ("dog", "bird"), ("cat", "dog")]
    assert classes_of([ANN, BOB, CID]) == [("kitty", "dog"), ("dog", "bird"), ("cat", "hound")], (
        "uploads are never changed"
    )
    assert renamed[0].parts["classifier"].state is ANN.parts["classifier"].state
    assert renamed[0].label_counts == ANN.label_counts


def test_rename_classes_exchanges_two_names():
    assert classes_of(rename_classes([BOB], {"dog": "bird", "bird": "dog"})) == [("bird", "dog")]


def test_rename_classes_names_every_problem():
    with pytest.raises(SettingsError) as caught:
        rename_classes([ANN, BOB], {"wolf": "dog", "kitty": "dog", "bird": "\x1b[2J", "dog": ""})
    told = "\n".join(caught.value.problems)
    assert "no client has a class 'wolf'" in told
    assert "'bird' = '\\x1b[2J'" in told
    assert "'dog' = ''" in told
    with pytest.raises(SettingsError) as collision:
        rename_classes([ANN, BOB], {"kitty": "dog"})
    assert collision.value.problems == (
        "ann: the classifier distinguishes kitty and dog, which would both be 'dog'",
    )


def test_rename_classes_finds_hidden_collisions():
    with pytest.raises(SettingsError, match="ann: the classifier distinguishes kitty and dog"):
        rename_classes([ANN], {"kitty": "dog "})


def test_parse_class_map_pairs_and_files(tmp_path):
    (tmp_path / "map.toml").write_text('kitty = "cat"\n"big dog" = "dog"\n')
    (tmp_path / "map.json").write_text('{"hound": "dog"}')
    words = [str(tmp_path / "map.toml"), str(tmp_path / "map.json"), "birdie=bird"]
    assert parse_class_map(words) == {
        "kitty": "cat",
        "big dog": "dog",
        "hound": "dog",
        "birdie": "bird",
    }
    assert parse_class_map([]) == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["kitty"], "neither old=new"),
        (["=cat"], "neither old=new"),
        (["a=b", "a=c"], "mapped twice"),
        (["missing.toml"], "No such file"),
        (["broken.toml"], "broken.toml"),
        (["nested.json"], "one name to one name"),
        (["list.json"], "one name to one name"),
        (["twice.json"], "appears twice"),
    ],
)
def test_parse_class_map_refuses_bad_maps(tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.toml").write_text("kitty = ")
    (tmp_path / "nested.json").write_text('{"a": {"b": "c"}}')
    (tmp_path / "list.json").write_text('["a"]')
    (tmp_path / "twice.json").write_text('{"a": "b", "a": "c"}')
    with pytest.raises(SettingsError, match=told):
        parse_class_map(words)


def test_parse_classes_words_or_lines(tmp_path):
    assert parse_classes("cat, dog,bird,") == ("cat", "dog", "bird")
    (tmp_path / "names.txt").write_text("tench, Tinca tinca\ncat\n\n")
    assert parse_classes(str(tmp_path / "names.txt")) == ("tench, Tinca tinca", "cat")


def test_fuse_refuses_a_task_with_other_classes():
    server = server_for([ANN, BOB], classes=["dog", "bird", "fish"])
    with pytest.raises(NeedsError) as caught:
        fuse([ANN, BOB], METHODS["ensemble"](), server)
    told = "\n".join(caught.value.problems)
    assert "no client knows the class fish of the task" in told
    assert "the task lacks the class kitty that clients know" in told
    with pytest.raises(NeedsError, match="same name"):
        server_for([ANN], classes=["dog", "dog"])


def test_fuse_refuses_names_that_look_the_same():
    uploads = [
        tiny_upload("ann", classes=("fish", "dog")),
        tiny_upload("bob", classes=("\ufb01sh", "dog")),
    ]
    with pytest.raises(NeedsError, match=r"look the same.*: say by a class map"):
        fuse(uploads, METHODS["ensemble"](), server_for(uploads))
    joined = rename_classes(uploads, {"\ufb01sh": "fish"})
    assert fuse(joined, METHODS["ensemble"](), server_for(joined)).model.classes == ("fish", "dog")


def test_fuse_records_the_admission(tmp_path):
    for upload in (ANN, BOB, CID):
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
    received = receive(sorted(tmp_path.glob("*.attar")))
    uploads, admission = admit(received, exclude=["cid"], class_map={"kitty": "cat"})
    fused = fuse(
        uploads,
        METHODS["ensemble"](),
        server_for(uploads),
        out=tmp_path / "run",
        admission=admission,
    )
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["class_map"] == {"kitty": "cat"}
    assert record["excluded"] == ["cid"]
    assert record["task"]["classes"] == ["cat", "dog", "bird"]
    assert [(one["client"], one["sha256"], one["bytes"]) for one in record["clients"]] == [
        (one.upload.client, one.sha256, one.path.stat().st_size) for one in received[:2]
    ], "the files as they were sent, not as they were renamed"
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Left out: cid." in card
    assert "kitty to cat" in card
    assert fused.model.classes == ("cat", "dog", "bird")


def test_fuse_resumes_only_under_the_same_names(tmp_path):
    from attar.errors import RunError

    write_bundle(tmp_path / "ann.attar", ANN)
    write_bundle(tmp_path / "bob.attar", BOB)
    received = receive([tmp_path / "ann.attar", tmp_path / "bob.attar"])
    public = Images(torch.zeros(4, *SHAPE, dtype=torch.uint8), None, "black")
    for names, told in (({"kitty": "cat"}, None), ({}, "class_map")):
        uploads, admission = admit(received, class_map=names)
        server = server_for(uploads, public=public)
        method = METHODS["feddf"](steps=2, batch_size=2)
        if told is None:
            fuse(uploads, method, server, out=tmp_path / "run", admission=admission, minutes=0)
        else:
            with pytest.raises(RunError, match=told):
                fuse(
                    uploads, method, server, out=tmp_path / "run", admission=admission, resume=True
                )


@pytest.mark.parametrize(
    "rule",
    [
        "mean-logits",
        "data-weighted",
        "mean-probabilities",
        "max-logits",
        "vote",
        "class-share",
        "trimmed",
    ],
)
def test_ensemble_ignores_who_never_saw_a_class(rule):
    """However sure cid's net is, its logits of cat and hound leave the answers about dog and
    bird to bob.
    """
    method = METHODS["ensemble"](rule=rule)
    apart = tiny_upload("ann", classes=("cat", "fish"))
    server = server_for([apart, BOB])
    model = fuse([apart, BOB], method, server).model
    images = torch.rand(8, *SHAPE, generator=torch.Generator().manual_seed(0))
    logits = model(images)
    alone = Classifier(BOB.parts["classifier"])(images)
    assert torch.equal(logits[:, 2:].argmax(1), alone.argmax(1))


def test_admit_no_uploads_or_none_left(tmp_path):
    for exclude in ((), ("ann",)):
        with pytest.raises(NeedsError, match="No uploads given"):
            admit(receive([]), exclude=exclude)
    write_bundle(tmp_path / "ann.attar", ANN)
    with pytest.raises(NeedsError, match="--exclude removes all clients"):
        admit(receive([tmp_path / "ann.attar"]), exclude=["ann"])


def test_receive_fixes_for_folders_and_duplicate_names(tmp_path):
    with pytest.raises(BundleError, match=f"{tmp_path}: this is a folder") as told:
        receive([tmp_path])
    assert told.value.fix == f"name the files: {tmp_path}/*.attar"
    paths = [tmp_path / "one.attar", tmp_path / "two.attar"]
    for path in paths:
        write_bundle(path, ANN)
    with pytest.raises(BundleError, match="client 'ann' has sent") as told:
        receive(paths)
    assert told.value.fix.startswith("have one of them train or pack again with --client NAME, ")
