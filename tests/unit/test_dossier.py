"""The privacy dossier: what it says of nets that tell and do not, and its page."""

import hashlib
import re
from dataclasses import replace

import pytest
import torch

from attar.backbones import backbone_of
from attar.core import Upload
from attar.errors import DataError, SpecError
from attar.privacy import (
    Audit,
    dossier_page,
    findings,
    make_dossier,
    part_attacks,
    reconstruction,
)
from attar.privacy.attacks import Attack, Rate
from attar.privacy.candidates import pick_candidates
from attar.privacy.findings import claim_finding, join_answers, membership_finding
from attar.privacy.reconstruction import try_reconstruction
from attar.privacy_claim import PrivacyClaim
from attar.seeds import rng
from attar.testing import SHAPE as TINY
from attar.testing import tiny_backbone, tiny_sums, tiny_upload
from attar.training import (
    ClientData,
    LocalTraining,
    add_statistics,
    split_trained,
    train_classifiers,
    train_cvaes,
)
from attar.uploads import (
    Received,
    encode,
    generate_key,
    read_trusted,
    receive,
    sign_page,
    verify_page,
    write_bundle,
)
from tiny_clients import random_client

CLASSES = ("a", "b", "c")
SHAPE = (1, 6, 6)
MEMBERS = random_client("ann", 120, SHAPE, CLASSES)
OTHERS = random_client("others", 1500, SHAPE, CLASSES)
QUICK = Audit(shadows=0)


def received(upload, tmp_path):
    path = tmp_path / "ann.attar"
    write_bundle(path, upload)
    (one,) = receive([path])
    return one


@pytest.fixture(scope="module")
def memorised():
    """Random images with random labels, learned by heart."""
    training = LocalTraining(epochs=60, batch_size=20, lr=5e-3, optimiser="adam")
    (upload,) = train_classifiers([MEMBERS], ["mlp:hidden=64"], training)
    return upload


@pytest.fixture(scope="module")
def unlearned():
    """A net that has seen nothing to speak of."""
    (upload,) = train_classifiers(
        [MEMBERS], ["mlp:hidden=64"], LocalTraining(epochs=1, batch_size=120, lr=1e-6)
    )
    return upload


def test_a_net_that_has_learned_by_heart_must_not_be_sent(memorised, tmp_path):
    dossier = make_dossier(received(memorised, tmp_path), MEMBERS, OTHERS, audit=QUICK)
    assert dossier.answer == "no"
    assert "Do not send it" in dossier.advice
    (found,) = [one for one in dossier.findings if one.subject == "classifier"]
    assert found.attacks[0].answer == "no"
    assert found.attacks[0].auc > 0.8
    assert ("not tried", "LiRA: no shadow nets were asked for") in found.facts


def test_a_net_that_has_learned_nothing_may_be_sent(unlearned, tmp_path):
    # 120 members leave an interval of 0 to 5 %; 600 of the same kind narrow it
    many = random_client("ann", 600, SHAPE, CLASSES)
    upload = replace(unlearned, num_examples=600, label_counts=None)
    dossier = make_dossier(received(upload, tmp_path), many, OTHERS, audit=QUICK)
    assert [found.answer for found in dossier.findings] == [None, "yes", "yes"]
    assert dossier.answer == "yes"


def test_few_non_members_cannot_tell(unlearned, tmp_path):
    few = replace(OTHERS, pixels=OTHERS.pixels[:300], labels=OTHERS.labels[:300])
    dossier = make_dossier(received(unlearned, tmp_path), MEMBERS, few, audit=QUICK)
    assert dossier.answer == "cannot tell"
    assert "--non-members" in dossier.advice
    none = replace(OTHERS, pixels=OTHERS.pixels[:0], labels=OTHERS.labels[:0])
    assert make_dossier(received(unlearned, tmp_path), MEMBERS, none).answer == "cannot tell"


def test_lira_finds_what_was_learned_by_heart(memorised, tmp_path):
    audit = Audit(shadows=3, passes=3000)
    dossier = make_dossier(received(memorised, tmp_path), MEMBERS, OTHERS, audit=audit)
    (found,) = [one for one in dossier.findings if one.subject == "classifier"]
    lira = found.attacks[1]
    assert lira.name == "LiRA, offline"
    assert lira.auc > 0.9
    assert "3 shadow nets" in lira.how
    assert "time was short" in lira.how


def test_statistics_and_decoders_are_attacked(memorised, tmp_path):
    upload = add_statistics(memorised, MEMBERS)
    dossier = make_dossier(received(upload, tmp_path), MEMBERS, OTHERS, audit=QUICK)
    assert [one.subject for one in dossier.findings if one.attacks] == ["classifier", "statistics"]
    (decoder,) = train_cvaes([MEMBERS], ["cvae-small:hidden=8"], {"epochs": 1, "batch_size": 40})
    dossier = make_dossier(received(decoder, tmp_path), MEMBERS, OTHERS, audit=QUICK)
    assert [one.subject for one in dossier.findings if one.attacks] == ["decoder"]


def test_sums_are_attacked_by_their_class_means(monkeypatch, tmp_path):
    upload = tiny_sums("ann")
    images = torch.rand(upload.num_examples, *TINY, generator=rng(0, "tiny sums", "ann"))
    classes = upload.parts["sums"].classes
    labels = torch.arange(upload.num_examples) % len(classes)
    owner = ClientData("ann", (images * 255).round().byte(), labels, classes)
    others = random_client("others", 1200, TINY, classes)
    monkeypatch.setattr(
        part_attacks, "load_backbone", lambda name: backbone_of(name, tiny_backbone(name))
    )
    dossier = make_dossier(received(upload, tmp_path), owner, others, audit=QUICK)
    by_title = {found.title: found for found in dossier.findings}
    assert by_title["Do the sums show single images?"].answer == "no", "4 images in each half"
    (attacked,) = [found for found in dossier.findings if found.subject == "sums"]
    assert attacked.attacks[0].auc > 0.7
    assert dossier.answer == "no"

    def unknown(name):
        raise SpecError("There is no such backbone.")

    monkeypatch.setattr(part_attacks, "load_backbone", unknown)
    dossier = make_dossier(received(upload, tmp_path), owner, others, audit=QUICK)
    (attacked,) = [found for found in dossier.findings if found.subject == "sums"]
    assert attacked.answer == "cannot tell"
    assert "no such backbone" in dict(attacked.facts)["not tried"]


def test_images_held_out_in_training_are_no_members():
    metadata = {"training": {"validation": 0.25}, "seed": 3}
    inside, held_out = split_trained(metadata, MEMBERS)
    assert len(inside) + len(held_out) == 120
    assert 25 <= len(held_out) <= 35
    assert not set(inside.tolist()) & set(held_out.tolist())
    assert len(split_trained(None, MEMBERS)[1]) == 0


def test_other_images_than_those_of_the_upload_are_refused(memorised, tmp_path):
    stranger = ClientData("ann", MEMBERS.pixels, MEMBERS.labels, ("x", "y", "z"))
    with pytest.raises(DataError, match="does not know the classes"):
        make_dossier(received(memorised, tmp_path), stranger, OTHERS, audit=QUICK)
    fewer = replace(MEMBERS, pixels=MEMBERS.pixels[:50], labels=MEMBERS.labels[:50])
    with pytest.raises(DataError, match="of 120 images, these are 50"):
        make_dossier(
            received(memorised, tmp_path), fewer, OTHERS, metadata={"training": {}}, audit=QUICK
        )


# --- candidates -----------------------------------------------------------------------------------


def test_pick_candidates_leaves_out_copies_of_members():
    mixed = replace(
        OTHERS,
        pixels=torch.cat([MEMBERS.pixels[:7], OTHERS.pixels]),
        labels=torch.cat([MEMBERS.labels[:7], OTHERS.labels]),
    )
    assert pick_candidates(MEMBERS, mixed).duplicates == 7


def test_pick_candidates_gives_others_the_classes_of_the_members():
    labels = torch.tensor([0] * 90 + [1] * 30)
    skewed = replace(MEMBERS, labels=labels)
    picked = pick_candidates(skewed, OTHERS)
    others = picked.images.labels[picked.members :].bincount(minlength=3).tolist()
    assert others[2] == 0, "members have no image of this class"
    assert 1.9 <= others[0] / others[1] <= 3.1


def test_pick_candidates_finds_classes_by_name():
    renamed = replace(OTHERS, classes=("c", "b", "unknown"))
    picked = pick_candidates(MEMBERS, renamed)
    others = picked.images.labels[picked.members :]
    assert set(others.tolist()) == {1, 2}
    assert 0 not in picked.images.labels[: picked.members], "no other image has class a"


def test_pick_candidates_refuses_another_shape():
    with pytest.raises(DataError, match="tell them apart"):
        pick_candidates(MEMBERS, random_client("others", 10, (1, 8, 8), CLASSES))


# --- reconstruction -------------------------------------------------------------------------------


def test_try_reconstruction_makes_pictures_of_the_classes_held(unlearned):
    found = try_reconstruction(
        unlearned.parts["classifier"], pick_candidates(MEMBERS, OTHERS), steps=3
    )
    assert found is not None
    assert found.pictures == 60
    assert set(found.labels) <= set(CLASSES)
    assert float(found.shown.min()) >= 0
    assert float(found.shown.max()) <= 1


def test_reconstruction_of_a_copy_is_a_no(unlearned, monkeypatch):
    copies = MEMBERS.pixels[:60].float() / 255
    monkeypatch.setattr(reconstruction, "invert", lambda *args, **more: copies)
    found = try_reconstruction(unlearned.parts["classifier"], pick_candidates(MEMBERS, OTHERS))
    assert found is not None
    assert found.answer == "no"


# --- statements and the page ----------------------------------------------------------------------


CLAIM = PrivacyClaim(8.0, 1e-5, 1.0, 0.8, 0.04, 240)


def test_claim_finding_recomputes_epsilon(monkeypatch):
    upload = replace(tiny_upload("ann"), label_counts=None, local_steps=240, privacy=CLAIM)
    monkeypatch.setattr(findings, "spent_epsilon", lambda *_: 7.9)
    found = claim_finding(upload)
    assert found.answer is None
    assert dict(found.facts)["epsilon, recomputed from the parameters below"] == "7.9"
    monkeypatch.setattr(findings, "spent_epsilon", lambda *_: 80.0)
    assert claim_finding(upload).answer == "no"
    assert "None" in claim_finding(tiny_upload("ann")).sentence


def test_membership_finding_names_what_decides():
    certain = Attack("a", "b", 0.7, (0.65, 0.75), (Rate(0.01, 2000, 20, 1000, 90),))
    average = Attack("c", "d", 0.7, (0.65, 0.75), (Rate(0.01, 2000, 20, 1000, 11),))
    harmless = Attack("e", "f", 0.5, (0.45, 0.55), (Rate(0.01, 2000, 20, 1000, 12),))
    assert "The attack a finds 9 %" in membership_finding("net", [certain, average]).sentence
    said = membership_finding("net", [average, harmless]).sentence
    assert "By the attack c a training image scores above another one" in said
    assert membership_finding("net", [harmless]).answer == "yes"


def test_join_answers():
    assert join_answers(["yes", "no", "cannot tell"]) == "no"
    assert join_answers(["yes", "cannot tell"]) == "cannot tell"
    assert join_answers(["yes", "yes"]) == "yes"
    assert join_answers([]) == "cannot tell"


def page_of(upload: Upload, **more):
    data = encode(upload)
    one = Received(
        path=more.pop("path"),
        upload=upload,
        bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    owner = ClientData("ann", MEMBERS.pixels, MEMBERS.labels, upload.parts["classifier"].classes)
    dossier = make_dossier(one, owner, replace(OTHERS, classes=owner.classes), audit=QUICK)
    return dossier, dossier_page(dossier, **more)


def test_page_escapes_names_and_asks_for_nothing(unlearned, tmp_path):
    evil = ("<script>alert(1)</script>", "a&b", '"onload="')
    part = replace(unlearned.parts["classifier"], classes=evil)
    upload = replace(unlearned, parts={"classifier": part})
    dossier, page = page_of(upload, path=tmp_path / "<b>.attar")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&lt;b&gt;.attar" in page
    assert not re.search(r"(src|href)=['\"](?!data:)", page)
    assert "default-src 'none'" in page
    assert dossier.sha256 in page
    assert "@media print" in page


def test_page_without_pictures(unlearned, tmp_path):
    _, page = page_of(unlearned, path=tmp_path / "a.attar", pictures=False)
    assert "<img" not in page
    assert "shows training images" not in page
    _, page = page_of(unlearned, path=tmp_path / "a.attar")
    assert "<img" in page
    assert "shows training images" in page


def test_sign_page_proves_who_wrote_it(tmp_path):
    page = tmp_path / "dossier.html"
    page.write_text("as it was")
    key = generate_key(tmp_path / "ann.key", "ann")
    trusted = read_trusted(tmp_path / "ann.pub")
    assert verify_page(page, "ann", trusted).status == "unsigned"
    sign_page(page, "ann", tmp_path / "ann.key")
    assert verify_page(page, "ann", trusted).key == key
    assert verify_page(page, "ann", trusted).status == "trusted"
    page.write_text("changed")
    assert verify_page(page, "ann", trusted).status == "bad"
