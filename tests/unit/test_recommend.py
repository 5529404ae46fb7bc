"""Which method is recommended for some uploads and why, which upload stands in the way, which net
the student gets, and class lists that are questioned before they are merged.
"""

from dataclasses import replace

import pytest

from attar.cli import main
from attar.cli.output import plan
from attar.errors import NeedsError
from attar.fusion import (
    best_rule,
    explain_student,
    find_obstacles,
    fuse,
    question_classes,
    recommend,
    server_for,
)
from attar.fusion.execute import start_method
from attar.fusion.recommend import HOURS, ORDER
from attar.methods import METHODS, unmet_needs
from attar.testing import (
    SMALL_DECODERS,
    SMALL_NETS,
    tiny_decoder,
    tiny_statistics,
    tiny_upload,
    tiny_world,
)
from attar.uploads import write_bundle

ALIKE = tiny_world().uploads
WITHHELD = tuple(replace(upload, label_counts=None) for upload in ALIKE)
CHEAP = (1.0, 1000)


def costs(**changes):
    """A second and a kilobyte for each of four methods."""
    names = ("dense", "ensemble", "accord", "co-boosting")
    return {name: changes.get(name, CHEAP) for name in names}


# --- ranking --------------------------------------------------------------------------------------


def test_order_has_all_methods():
    assert set(METHODS) <= set(ORDER), "a new method needs a place and a reason"


def test_recommend_by_record():
    ranked = recommend(costs(), ALIKE, "cpu")
    assert list(ranked) == ["accord", "ensemble", "co-boosting", "dense"]
    assert [one.place for one in ranked.values()] == [1, 2, 3, 4]
    assert ranked["accord"].reason.endswith("uses the label counts")
    assert ranked["ensemble"].settings == ("rule=accord",)
    assert ranked["dense"].settings == ()


def test_recommend_by_what_was_sent():
    alone = recommend(costs(), WITHHELD, "cpu")
    assert alone["accord"].reason.endswith("uses the nets alone")
    assert alone["ensemble"].settings == ("rule=mean-probabilities",)
    rich = (tiny_statistics(WITHHELD[0]), *WITHHELD[1:], tiny_decoder("weak", counts=False))
    assert recommend(costs(), rich, "cpu")["accord"].reason.endswith(
        "uses the statistics and decoders"
    )
    assert best_rule(rich) == "accord"
    assert best_rule([ALIKE[0], *WITHHELD[1:]]) == "mean-probabilities", "one withholds its counts"


def test_recommend_sums_first():
    """The place that heads from sums of a backbone have."""
    ranked = recommend({**costs(), "gaussian-head": CHEAP}, ALIKE, "cpu")
    assert next(iter(ranked)) == "gaussian-head"


def test_recommend_by_time_and_memory():
    day = (3600 * HOURS + 1, 1000)
    ranked = recommend(costs(accord=day), ALIKE, "cpu")
    assert list(ranked) == ["ensemble", "co-boosting", "dense", "accord"]
    assert ranked["accord"].reason.startswith("too long here; ")
    assert next(iter(recommend(costs(accord=(90.0, 1000)), ALIKE, "cpu", minutes=1))) == "ensemble"
    ranked = recommend(costs(accord=(1.0, 10**18)), ALIKE, "cpu")
    assert list(ranked)[-1] == "accord"
    assert ranked["accord"].reason.startswith("more memory than this machine has")


def test_recommend_plugin_last():
    ranked = recommend({**costs(), "theirs": CHEAP}, ALIKE, "cpu")
    assert list(ranked)[-1] == "theirs"
    assert ranked["theirs"].reason == "nothing on record"


def test_find_obstacles_names_the_decoder():
    world = tiny_world((*SMALL_NETS, SMALL_DECODERS[0]))
    methods = {name: kind() for name, kind in METHODS.items()}
    (obstacle,) = find_obstacles(methods, world.uploads, world.server)
    assert (obstacle.clients, obstacle.sent) == (("client3",), ("decoder",))
    assert obstacle.methods[:2] == ("feddf", "ensemble")
    assert {"dense", "co-boosting", "fedhydra"} <= set(obstacle.methods)
    assert not {"accord", "fedmho"} & set(obstacle.methods), "they fit as it is"
    rest = world.uploads[:3]
    for name in obstacle.methods:
        assert unmet_needs(methods[name].needs, world.uploads, world.server)
        assert not unmet_needs(
            methods[name].needs, rest, server_for(rest, public=world.server.public)
        )


def test_error_names_who_stands_in_the_way():
    world = tiny_world((*SMALL_NETS, SMALL_DECODERS[0]))
    with pytest.raises(NeedsError, match="it can without client3: --exclude client3; accord"):
        start_method(METHODS["dense"](), world.uploads, world.server)
    with pytest.raises(NeedsError, match=r"To fix it: .*dense.* can \(`attar fuse --dry-run`"):
        start_method(METHODS["fedcvae"](), world.uploads[:3], world.server)


def test_find_obstacles_leaves_the_larger_part():
    methods = {name: kind() for name, kind in METHODS.items()}
    few = tiny_world((SMALL_NETS[0], *SMALL_DECODERS))
    (obstacle,) = find_obstacles(methods, few.uploads, few.server)
    assert obstacle.clients == ("client0",), "three of four stay"
    assert obstacle.methods == ("fedcvae",)
    even = tiny_world((*SMALL_NETS[:2], *SMALL_DECODERS[:2]))
    assert find_obstacles(methods, even.uploads, even.server) == []


def test_find_obstacles_drops_classes_that_nobody_else_knows():
    uploads = (*ALIKE, tiny_decoder("weak", classes=("ring", "cross", "dot")))
    server = server_for(uploads)
    (obstacle,) = find_obstacles({"ensemble": METHODS["ensemble"]()}, uploads, server)
    assert obstacle.methods == ("ensemble",)


def plan_row(method, *, fits=True, seconds=60.0):
    return {
        "method": method,
        "fits": fits,
        "why_not": [] if fits else ["client weak must send a classifier"],
        "seconds": seconds if fits else None,
        "memory_bytes": 1000 if fits else None,
    }


def test_show_plan_says_where_to_start(capsys):
    world = tiny_world((*SMALL_NETS, SMALL_DECODERS[0]))
    rows = [plan_row("dense", fits=False), plan_row("fedmho"), plan_row("accord", seconds=900)]
    ranked, obstacles = plan.rank_rows(rows, world.uploads, world.server, None)
    assert [row["method"] for row in ranked] == ["accord", "fedmho", "dense"]
    assert [row["place"] for row in ranked] == [1, 2, None]
    assert [row["fits_without"] for row in ranked] == [[], [], ["client3"]]
    plan.show_plan(ranked, "default", obstacles)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Start here: --method accord, about 15 min." in shown
    assert "Without training" not in shown, "the ensemble does not fit"
    assert "Without client3 (decoder sent) 1 more method fits (dense): --exclude client3" in shown
    plan.show_plan([plan_row("dense", fits=False)], "these")
    assert "No method can fuse these files as they are." in capsys.readouterr().out


def test_show_plan_names_settings(capsys):
    world = tiny_world()
    rows, obstacles = plan.rank_rows(
        [plan_row("ensemble", seconds=0.0), plan_row("accord")], world.uploads, world.server, None
    )
    assert obstacles == []
    plan.show_plan(rows, "default", obstacles)
    assert "Without training: --method ensemble --set rule=accord." in capsys.readouterr().out


# --- the student ----------------------------------------------------------------------------------


def test_student_is_the_cheapest_of_equals():
    uploads = [tiny_upload(net, net) for net in ("resnet20", "mlp", "lenet5")]
    server = server_for(uploads)
    assert str(server.student) == "lenet5", "an mlp has fewer products, but more weights"
    assert explain_student(uploads, server) == (
        "the cheapest of 3 nets that 1 client each sent; choose with --student"
    )
    assert str(server_for(uploads, ties="first").student) == "resnet20", "as the records have it"


def test_student_is_the_commonest():
    uploads = [tiny_upload(f"c{place}", net) for place, net in enumerate(("lenet5", "resnet20"))]
    uploads.append(tiny_upload("c2", "resnet20"))
    server = server_for(uploads)
    assert str(server.student) == "resnet20"
    assert "the commonest net, of 2 of 3 clients" in explain_student(uploads, server)
    assert explain_student(uploads[1:], server).startswith("the net of 2 clients")
    assert explain_student(uploads, server, "resnet20") == "as chosen"
    decoders = [tiny_decoder("weak")]
    assert "no client sent a net" in explain_student(decoders, server_for(decoders))


# --- class lists ----------------------------------------------------------------------------------


def clients(**lists):
    return [tiny_upload(name, classes=classes) for name, classes in lists.items()]


def test_question_classes_of_disjoint_lists():
    question = question_classes(
        clients(berlin=("normal", "pneumonia"), rome=("NORMAL", "photos-pneumonia"),
                paris=("normal", "pneumonia"))
    )  # fmt: skip
    assert question is not None
    assert [names for names, _ in question.groups] == [("berlin", "paris"), ("rome",)]
    assert question.alike == {"NORMAL": "normal", "photos-pneumonia": "pneumonia"}
    text = str(question.error)
    assert "Some clients have no class in common" in text
    assert "as they are, the task would have 4 classes" in text
    assert "--class-map NORMAL=normal --class-map photos-pneumonia=pneumonia" in text
    assert "--merge-classes" in text


def test_question_classes_that_differ_in_capitals():
    question = question_classes(clients(a=("normal", "Pneumonia"), b=("normal", "pneumonia")))
    assert question is not None
    assert len(question.groups) == 1
    assert question.alike == {"pneumonia": "Pneumonia"}
    assert "Some class names look alike" in str(question.error)


@pytest.mark.parametrize(
    "lists",
    [
        {"a": ("cat", "dog"), "b": ("dog", "bird"), "c": ("bird", "fish")},  # connected by b
        {"a": ("a", "A", "b"), "b": ("A", "b", "c")},  # one client tells them apart
        {"a": ("normal", "abnormal"), "b": ("normal", "new normal")},
        {"a": ("cat", "dog")},
    ],
    ids=["a chain", "told apart", "names within one group", "one client"],
)
def test_question_classes_asks_nothing(lists):
    assert question_classes(clients(**lists)) is None


def test_question_classes_does_not_guess():
    question = question_classes(clients(a=("cat", "dog"), b=("lorry", "ship")))
    assert question is not None
    assert question.alike == {}
    assert "--class-map OTHER=NAME for each pair" in str(question.error)
    question = question_classes(clients(a=("normal",), b=("abnormal",)))
    assert question is not None
    assert question.alike == {}, "the opposite"


def test_fuse_asks_before_it_merges(tmp_path, capsys):
    lists = {"ann": ("normal", "sick"), "bob": ("NORMAL", "sick-photos")}
    for upload in clients(**lists):
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
    files = [str(tmp_path / f"{name}.attar") for name in lists]
    fused = ["fuse", *files, "--no-robustness", "--json", "--out"]
    assert main([*fused, str(tmp_path / "one")]) == 2
    assert not (tmp_path / "one").exists()
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "--class-map NORMAL=normal --class-map sick-photos=sick" in said
    assert main([*fused, str(tmp_path / "two"), "--merge-classes"]) == 0
    assert '"sick-photos"' in capsys.readouterr().out
    mapped = ("--class-map", "NORMAL=normal", "--class-map", "sick-photos=sick")
    assert main([*fused, str(tmp_path / "three"), *mapped]) == 0
    assert main(["fuse", *files, "--dry-run", "--method", "ensemble"]) == 0
    assert "Some clients have no class in common" in capsys.readouterr().err


# --- out of time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "step", "learned"),
    [(0, 1, False), (1, 1, False), (2, 1, False), (2, 2, True), (3, 1, True), (4, 1, True)],
)
def test_learned_of_fedmho(phase, step, learned):
    """generate, ask clients, initialise 2 epochs, ask initial model, train: it has learned when it
    is initialised, not after one of two epochs of that.
    """
    world = tiny_world((*SMALL_NETS[:2], SMALL_DECODERS[0]))
    method = METHODS["fedmho"](samples=20, initial_epochs=2, epochs=2, remember="sd")
    run = start_method(method, world.uploads, world.server)
    assert [one.name for one in run.phases if one.learns] == ["initialise", "train"]
    run.state.phase, run.state.step = phase, step
    assert run.learned is learned


def test_fuse_out_of_minutes_has_learned_nothing(tmp_path, capsys):
    world = tiny_world()
    fused = fuse(world.uploads, METHODS["feddf"](steps=3, batch_size=8), world.server, minutes=0)
    assert not fused.learned
    assert fuse(world.uploads, "ensemble", world.server, minutes=0).learned
    files = []
    for upload in world.uploads:
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
        files.append(str(tmp_path / f"{upload.client}.attar"))
    words = ["fuse", *files, "--method", "feddf", "--public", "sketches?number=16&size=32",
             "--set", "steps=2", "--set", "batch_size=8", "--no-robustness",
             "--out", str(tmp_path / "out"), "--minutes", "0"]  # fmt: skip
    assert main(words) == 2
    shown = capsys.readouterr()
    assert "╭─ not fused ─" in shown.err
    assert "Fused" not in shown.out
    said = " ".join(shown.err.replace("│", " ").split())
    assert "out of minutes before its model learned anything: ask 1 of 1, distil 0 of 2" in said
    assert "do not use it" in said
    assert "has not learned anything yet" in (tmp_path / "out" / "README.md").read_text()
    assert main([*words, "--resume"]) == 0, "one step of the distillation"
    shown = capsys.readouterr()
    assert shown.out.split("\n")[0].startswith("Fused, but ended early")
    assert "student: mlp:hidden=8,layers=1, the net of 3 clients" in " ".join(shown.err.split())
    assert main([*words[:-2], "--resume"]) == 0
    assert capsys.readouterr().out.startswith("Fused ")


def test_fuse_without_a_method_takes_probabilities(tmp_path, capsys):
    """On record the mean of probabilities is ahead of the papers' mean of logits."""
    files = []
    for upload in ALIKE:
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
        files.append(str(tmp_path / f"{upload.client}.attar"))
    for place, (typed, rule) in enumerate(
        {
            (): "mean-probabilities",
            ("--set", "rule=vote"): "vote",
            ("--method", "ensemble"): "mean-logits",
        }.items()
    ):
        out = str(tmp_path / str(place))
        assert main(["fuse", *files, *typed, "--no-robustness", "--out", out, "--json"]) == 0
        assert f'"rule": "{rule}"' in capsys.readouterr().out


def test_needs_error_of_a_question():
    question = question_classes(clients(a=("x",), b=("y",)))
    assert question is not None
    assert isinstance(question.error, NeedsError)
    assert question.classes == ("x", "y")
