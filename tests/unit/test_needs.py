"""What a method needs and does not get: each reason alone, all together, and the class lists
that do not meet the task's.
"""

from dataclasses import replace

import pytest

from attar.core import ModelSpec, Needs, Part, Preprocess, Task
from attar.errors import NeedsError, SpecError
from attar.fusion import check_needs, fuse, server_for
from attar.methods.ensemble import FedEns
from attar.methods.fedavg import FedAvg
from attar.methods.feddf import FedDF
from attar.methods.needs import unknown_capabilities, unmet_needs
from attar.testing import CLASSES, SHAPE, tiny_decoder, tiny_upload, tiny_world

WORLD = tiny_world()
ALIKE, SERVER = WORLD.uploads, WORLD.server
MIXED = tiny_world(("mlp:hidden=8,layers=1", "lenet5")).uploads
WITHHELD = (*ALIKE[:2], replace(ALIKE[2], label_counts=None))
NO_PUBLIC = replace(SERVER, public=None)
OTHER_CLASSES = (*ALIKE[:2], tiny_upload("client2", classes=("cross", "ring", "bar")))


def renormalised(upload, mean):
    part = upload.parts["classifier"]
    return replace(
        upload, parts={"classifier": replace(part, preprocess=Preprocess(SHAPE, (mean,), (0.5,)))}
    )


def renamed(upload, part):
    return replace(upload, parts={part: upload.parts["classifier"]})


ALONE = {
    "part": (
        Needs(parts=("decoder",)),
        ALIKE,
        SERVER,
        "clients client0, client1, client2 must send a decoder",
    ),
    "one part": (
        Needs(),
        (*ALIKE[:2], renamed(ALIKE[2], "decoder")),
        SERVER,
        "client client2 must send a classifier",
    ),
    "counts with a part": (
        Needs(parts=("classifier", "decoder"), label_counts_with=("decoder",)),
        (replace(ALIKE[0], label_counts=None), replace(tiny_decoder("weak"), label_counts=None)),
        SERVER,
        "client weak must send label counts",
    ),
    "alternatives": (
        Needs(parts=("knowledge", "decoder")),
        ALIKE[:1],
        SERVER,
        "client client0 must send a knowledge or decoder",
    ),
    "at least": (
        Needs(parts=("classifier", "decoder"), at_least=(("decoder", 2),)),
        (*ALIKE[:2], renamed(ALIKE[2], "decoder")),
        SERVER,
        "at least 2 client(s) must send a decoder, 1 did",
    ),
    "architecture": (
        Needs(same_architecture=True),
        MIXED,
        SERVER,
        "these have 1 x mlp:hidden=8,layers=1 on 1x16x16, 1 x lenet5 on 1x16x16",
    ),
    "normalisation": (
        Needs(same_architecture=True),
        (*ALIKE[:2], renormalised(ALIKE[2], 0.25)),
        SERVER,
        "on 1x16x16 with mean (0.25,) and std (0.5,)",
    ),
    "capability": (
        Needs(capabilities=("batchnorm",)),
        ALIKE,
        SERVER,
        "at least one client must have a net with batchnorm",
    ),
    "label counts": (
        Needs(label_counts=True),
        WITHHELD,
        SERVER,
        "client client2 must send label counts",
    ),
    "public data": (
        Needs(public_data=True),
        ALIKE,
        NO_PUBLIC,
        "the server needs unlabelled images",
    ),
    "classes": (
        Needs(different_classes=False),
        OTHER_CLASSES,
        SERVER,
        "the same classes in the same order",
    ),
    "class nobody knows": (
        Needs(),
        ALIKE,
        replace(SERVER, task=Task(SHAPE, (*CLASSES, "star", "dot"))),
        "no client knows the classes star, dot of the task",
    ),
    "class that the task lacks": (
        Needs(),
        ALIKE,
        replace(SERVER, task=Task(SHAPE, CLASSES[:2])),
        "the task lacks the class bar that clients know",
    ),
    "no uploads": (Needs(label_counts=True), (), SERVER, "there is no upload"),
}


@pytest.mark.parametrize("name", ALONE)
def test_unmet_needs_each_alone(name):
    needs, uploads, server, reason = ALONE[name]
    (found,) = unmet_needs(needs, uploads, server)
    assert reason in found


SATISFIED = {
    "nothing asked": (Needs(), MIXED, NO_PUBLIC),
    "one of the alternatives": (Needs(parts=("decoder", "classifier")), ALIKE, SERVER),
    "at least": (Needs(at_least=(("classifier", 3),)), ALIKE, SERVER),
    "one architecture": (Needs(same_architecture=True), ALIKE, SERVER),
    "one batchnorm is enough": (
        Needs(capabilities=("batchnorm",)),
        tiny_world(("lenet5", "resnet20")).uploads,
        SERVER,
    ),
    "counts": (Needs(label_counts=True), ALIKE, SERVER),
    "public": (Needs(public_data=True), ALIKE, SERVER),
    "classes in another order": (Needs(), OTHER_CLASSES, SERVER),
    "one list of classes": (Needs(different_classes=False), ALIKE, SERVER),
}


@pytest.mark.parametrize("name", SATISFIED)
def test_unmet_needs_none(name):
    assert unmet_needs(*SATISFIED[name]) == []


def test_unmet_needs_all_at_once():
    everything = Needs(
        parts=("classifier",),
        at_least=(("decoder", 1),),
        same_architecture=True,
        capabilities=("batchnorm",),
        label_counts=True,
        public_data=True,
        different_classes=False,
    )
    uploads = (
        tiny_upload("a", counts=False),
        tiny_upload("b", "lenet5", ("ring", "cross")),
        renamed(tiny_upload("c"), "knowledge"),
    )
    server = replace(NO_PUBLIC, task=Task(SHAPE, ("ring", "cross", "star")))
    reasons = unmet_needs(everything, uploads, server)
    words = [
        "client c must send a classifier",
        "must send a decoder",
        "one architecture",
        "batchnorm",
        "client a must send label",
        "unlabelled images",
        "same classes",
        "star",
        "bar",
    ]
    assert len(reasons) == len(words)
    for word, reason in zip(words, reasons, strict=True):
        assert word in reason


def test_unmet_needs_lists_some_clients():
    uploads = [tiny_upload(f"c{number}", counts=False) for number in range(8)]
    (reason,) = unmet_needs(Needs(label_counts=True), uploads, SERVER)
    assert "clients c0, c1, c2, c3, c4 and 3 more must send label counts" in reason


def test_fuse_refuses_with_every_reason(tmp_path):
    uploads = (tiny_upload("a"), tiny_upload("b", "lenet5", ("ring", "cross")))
    server = server_for(uploads)
    with pytest.raises(NeedsError) as caught:
        fuse(uploads, FedAvg(), server, out=tmp_path / "run")
    assert "fedavg cannot fuse these 2 uploads" in str(caught.value)
    assert len(caught.value.problems) == 2
    assert not (tmp_path / "run").exists()


def test_check_needs_follows_settings():
    check_needs(FedAvg(mixed="vote"), MIXED, SERVER)
    check_needs(FedEns(), WITHHELD, SERVER)
    with pytest.raises(NeedsError, match="label counts"):
        check_needs(FedEns("class-share"), WITHHELD, SERVER)
    with pytest.raises(NeedsError, match="unlabelled images"):
        check_needs(FedDF(), ALIKE, NO_PUBLIC)


def test_fuse_refuses_to_average_two_normalisations():
    uploads = (ALIKE[0], renormalised(ALIKE[1], 0.25))
    with pytest.raises(NeedsError, match="one architecture and preprocessing"):
        fuse(uploads, FedAvg(), server_for(uploads))


def test_check_needs_names_unregistered_method():
    class Unregistered(FedDF):
        pass

    with pytest.raises(NeedsError, match="Method Unregistered cannot"):
        check_needs(Unregistered(), ALIKE, NO_PUBLIC)


def test_server_for_no_upload():
    with pytest.raises(NeedsError, match="no upload"):
        server_for([])


def test_server_for_decoders_alone():
    server = server_for([tiny_decoder("weak")])
    assert server.task == Task(SHAPE, CLASSES)
    assert str(server.student) == "resnet20"
    assert str(server_for([tiny_decoder("weak")], student="lenet5").student) == "lenet5"


@pytest.mark.parametrize("student", ["cvae-small", "cvae-small-decoder"])
def test_server_for_refuses_student_without_classes(student):
    with pytest.raises(SpecError, match="name a net that classifies"):
        server_for(ALIKE, student=student)


def test_server_for_uploads():
    part = Part(ModelSpec("lenet5"), {}, ("x", "ring"), Preprocess.centred((3, 20, 18)))
    uploads = (*ALIKE, replace(ALIKE[0], client="z", parts={"classifier": part}))
    server = server_for(uploads, seed=5)
    assert server.task == Task((3, 20, 18), (*CLASSES, "x"))
    assert str(server.student) == "mlp:hidden=8,layers=1"
    assert server.student_preprocess == Preprocess.centred(SHAPE)
    assert server_for(uploads, student="resnet20").student_preprocess == Preprocess.centred(
        (3, 20, 18)
    )
    assert server.seed == 5


def test_unmet_needs_tokens():
    needs = Needs(capabilities=("tokens",))
    plain, vit = tiny_world(), tiny_world(["mlp", "vit-tiny:depth=1"])
    assert unmet_needs(needs, plain.uploads, plain.server) == [
        "at least one client must have a net with tokens"
    ]
    assert unmet_needs(needs, vit.uploads, vit.server) == []


@pytest.mark.parametrize(
    "needs", [Needs(capabilities=("attention",)), Needs(each=("attention",))], ids=["some", "each"]
)
def test_unknown_capabilities_are_named(needs):
    reason = (
        "it needs a net with 'attention', which attar does not know: it knows features, tokens, "
        "batchnorm"
    )
    assert unknown_capabilities(needs) == [reason]
    assert unmet_needs(needs, ALIKE, SERVER) == [f"the method itself is wrong: {reason}"]


def test_unknown_capabilities_are_named_once():
    assert len(unknown_capabilities(Needs(capabilities=("a", "features"), each=("a", "b")))) == 2
    assert (
        unknown_capabilities(Needs(capabilities=("batchnorm", "tokens"), each=("features",))) == []
    )
