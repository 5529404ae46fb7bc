"""Run folders and fusion: resume, refusals that say what differs, the deadline, Ctrl-C, records,
cards.
"""

import hashlib
import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from evaluations import evaluate_to, evaluation_of

from attar.blocks.student import server_plan
from attar.core import Images, ModelSpec, Part, Phase, Preprocess, Result, State, Task
from attar.errors import RunError, SettingsError, SpecError, Stopped
from attar.fusion import describe_run, fuse, server_for
from attar.methods import METHODS, find_method
from attar.methods.ensemble import FedEns
from attar.methods.fedavg import FedAvg
from attar.methods.feddf import FedDF
from attar.models import list_pictures, load_model, model_card
from attar.running import Driver, RunFolder, RunOptions
from attar.settings import configure
from attar.testing import CLASSES, SHAPE, model_bits, tiny_upload, tiny_world

WORLD = tiny_world()
UPLOADS, SERVER = WORLD.uploads, WORLD.server
METHOD = FedDF(steps=6, batch_size=8)
IMAGES = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))


def stop_after(steps):
    """An evaluation that presses Ctrl-C after so many steps of the distillation."""
    seen = []

    def evaluate(model):
        seen.append(1)
        if len(seen) == steps:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluation_of(0.5)

    return {"options": RunOptions(evaluate=evaluate, evaluate_every=1)}


def unfinished(out, steps=3, **changes):
    """A run in ``out`` that Ctrl-C ended early."""
    with pytest.raises(Stopped) as caught:
        fuse(UPLOADS, METHOD, SERVER, out=out, **stop_after(steps), **changes)
    return str(caught.value)


def weights(out):
    return (out / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    out = tmp_path_factory.mktemp("straight") / "run"
    fuse(UPLOADS, METHOD, SERVER, out=out)
    return weights(out)


# --- resume ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_fuse_resumes_after_ctrl_c(tmp_path, straight, steps):
    out = tmp_path / "run"
    message = unfinished(out, steps)
    assert "--resume" in message
    assert str(out) in message
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    fused = fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert fused.finished
    assert weights(out) == straight
    assert not (out / "checkpoint.safetensors").exists()


def test_fuse_resumes_after_many_interrupts(tmp_path, straight):
    out = tmp_path / "run"
    unfinished(out, 1)
    for _ in range(4):
        unfinished(out, 1, resume=True)
    fused = fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert weights(out) == straight
    assert [row["step"] for row in fused.record["history"] if row["phase"] == "distil"] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]


def test_fuse_resumes_after_minutes(tmp_path, straight):
    out = tmp_path / "run"
    fused = fuse(UPLOADS, METHOD, SERVER, out=out, minutes=0)
    assert not fused.finished
    assert fused.record["ending"] == "deadline"
    assert fused.record["steps"] == {"ask": "1 of 1", "distil": "0 of 6"}
    early = load_model(out)
    assert torch.equal(early(IMAGES), fused.model(IMAGES))
    assert "Ended early" in (out / "README.md").read_text()
    for done in range(1, 6):
        again = fuse(UPLOADS, METHOD, SERVER, out=out, minutes=0, resume=True)
        assert again.record["steps"]["distil"] == f"{done} of 6"
    fused = fuse(UPLOADS, METHOD, SERVER, out=out, minutes=0, resume=True)
    assert fused.finished
    assert weights(out) == straight
    assert not torch.equal(early(IMAGES), load_model(out)(IMAGES))
    assert "Ended early" not in (out / "README.md").read_text()
    assert json.loads((out / "record.json").read_text())["ending"] == "finished"
    assert not (out / "checkpoint.safetensors").exists()


def test_fuse_refuses_steps_before_the_folder(tmp_path):
    class Backwards(FedDF):
        def phases(self, context):
            return [replace(phase, steps=-3) for phase in super().phases(context)]

    with pytest.raises(SettingsError, match="distil: -3 steps"):
        fuse(UPLOADS, Backwards(), SERVER, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_fuse_adds_up_seconds(tmp_path):
    out = tmp_path / "run"
    unfinished(out, 2)
    notes = RunFolder(out).begin(
        describe_run(UPLOADS, METHOD, SERVER),
        METHOD.start(METHOD.prepare(UPLOADS, SERVER)),
        resume=True,
    )
    fused = fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert fused.record["seconds"] >= round(notes["seconds"], 3) > 0


def test_fuse_resumes_without_checkpoint(tmp_path, straight):
    out = tmp_path / "run"
    RunFolder(out).begin(describe_run(UPLOADS, METHOD, SERVER), State(), resume=False)
    with pytest.raises(RunError, match="unfinished"):
        fuse(UPLOADS, METHOD, SERVER, out=out)
    fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert weights(out) == straight


def test_fuse_resume_deletes_half_files(tmp_path, straight):
    out = tmp_path / "run"
    unfinished(out)
    half, theirs = out / "deeper" / ".checkpoint.safetensors.k3yq0x_z.part", out / "notes.part"
    half.parent.mkdir()
    half.write_bytes(b"half of it")
    theirs.write_text("not ours")
    fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert not half.exists()
    assert theirs.exists()
    assert weights(out) == straight


def test_fuse_resume_of_nothing_starts(tmp_path, straight):
    out = tmp_path / "run"
    fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)
    assert weights(out) == straight


def test_fuse_checkpoints_change_nothing(tmp_path, straight):
    out = tmp_path / "run"
    fuse(
        UPLOADS,
        METHOD,
        SERVER,
        out=out,
        options=RunOptions(checkpoint_seconds=0, evaluate=evaluate_to(0.0), evaluate_every=1),
    )
    assert weights(out) == straight


def test_fuse_refuses_damaged_checkpoint(tmp_path):
    out = tmp_path / "run"
    unfinished(out)
    content = bytearray((out / "checkpoint.safetensors").read_bytes())
    content[-3] ^= 1
    (out / "checkpoint.safetensors").write_bytes(bytes(content))
    with pytest.raises(RunError, match="checkpoint"):
        fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)


# --- refusals -------------------------------------------------------------------------------------


def retrained(upload):
    part = upload.parts["classifier"]
    return replace(
        upload,
        parts={"classifier": replace(part, state={name: t + 1 for name, t in part.state.items()})},
    )


def other_pixels(images):
    pixels = images.pixels.clone()
    pixels[0, 0, 0, 0] += 1
    return replace(images, pixels=pixels)


LABELLED = replace(SERVER, public=replace(SERVER.public, labels=torch.zeros(24, dtype=torch.int64)))

OTHER = {
    "setting": (UPLOADS, replace(METHOD, lr=0.5), SERVER, "settings.lr: was 0.001, now 0.5"),
    "two settings": (UPLOADS, replace(METHOD, steps=7, teacher="vote"), SERVER, "settings.teacher"),
    "method": (UPLOADS, FedAvg(), SERVER, 'method: was "feddf", now "fedavg"'),
    "seed": (UPLOADS, METHOD, replace(SERVER, seed=1), "seed: was 0, now 1"),
    "precision": (
        UPLOADS,
        METHOD,
        replace(SERVER, precision="bf16"),
        'precision: was "fp32", now "bf16"',
    ),
    "student": (
        UPLOADS,
        METHOD,
        server_for(UPLOADS, student="lenet5", public=SERVER.public),
        'student: was "mlp',
    ),
    "upload": (
        (UPLOADS[0], retrained(UPLOADS[1]), UPLOADS[2]),
        METHOD,
        SERVER,
        "clients.client1.sha256: was",
    ),
    "upload left out": (UPLOADS[:2], METHOD, SERVER, "clients.client2"),
    "upload added": ((*UPLOADS, tiny_upload("late")), METHOD, SERVER, "clients.late"),
    "order of uploads": (UPLOADS[::-1], METHOD, SERVER, "clients: was"),
    "examples": (
        (replace(UPLOADS[0], num_examples=1, label_counts=None), *UPLOADS[1:]),
        METHOD,
        SERVER,
        "client0.num_examples",
    ),
    "public pixels": (
        UPLOADS,
        METHOD,
        replace(SERVER, public=other_pixels(SERVER.public)),
        "public.sha256",
    ),
    "public source": (
        UPLOADS,
        METHOD,
        replace(SERVER, public=replace(SERVER.public, source="web")),
        "public.source",
    ),
    "public labels": (UPLOADS, METHOD, LABELLED, "public.labelled"),
    "initial": (
        UPLOADS,
        METHOD,
        replace(SERVER, initial=UPLOADS[0].parts["classifier"]),
        "initial: was null",
    ),
    "normalisation": (
        UPLOADS,
        METHOD,
        replace(SERVER, student_preprocess=Preprocess(SHAPE, (0.1,), (0.5,))),
        "student_preprocess.mean",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_fuse_refuses_to_resume_another_run(tmp_path, name):
    uploads, method, server, named = OTHER[name]
    out = tmp_path / "run"
    unfinished(out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(RunError) as caught:
        fuse(uploads, method, server, out=out, resume=True)
    problems = "\n".join(caught.value.problems)
    assert named in problems
    if name not in (
        "two settings",
        "method",
        "upload added",
        "upload left out",
        "examples",
        "public labels",
    ):
        assert len(caught.value.problems) == 1, "something that did not change is blamed"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_describe_run_has_public_labels():
    one = describe_run(UPLOADS, METHOD, LABELLED)
    other = replace(
        LABELLED, public=replace(LABELLED.public, labels=torch.ones(24, dtype=torch.int64))
    )
    assert describe_run(UPLOADS, METHOD, other) != one


def test_describe_run_leaves_out_the_device():
    described = describe_run(UPLOADS, METHOD, replace(SERVER, device="cuda:3"))
    assert described == describe_run(UPLOADS, METHOD, SERVER)


def test_fuse_keeps_unfinished_folder(tmp_path):
    out = tmp_path / "run"
    unfinished(out)
    before = (out / "checkpoint.safetensors").read_bytes()
    with pytest.raises(RunError, match="unfinished run") as caught:
        fuse(UPLOADS, METHOD, SERVER, out=out)
    assert "--resume" in str(caught.value)
    assert (out / "checkpoint.safetensors").read_bytes() == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("method", [METHOD, FedAvg()], ids=["feddf", "fedavg"])
def test_fuse_keeps_finished_folder(tmp_path, method, resume):
    out = tmp_path / "run"
    fuse(UPLOADS, method, SERVER, out=out)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    with pytest.raises(RunError, match="finished"):
        fuse(UPLOADS, method, SERVER, out=out, resume=resume)
    assert {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()
    } == before


def test_fuse_keeps_foreign_files(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="is a file"):
        fuse(UPLOADS, FedAvg(), SERVER, out=tmp_path / "file")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("mine")
    with pytest.raises(RunError, match=r"README\.md"):
        fuse(UPLOADS, FedAvg(), SERVER, out=tmp_path / "project")
    assert (tmp_path / "project" / "README.md").read_text() == "mine"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(RunError, match="finished run"):
        fuse(UPLOADS, FedAvg(), SERVER, out=tmp_path / "model")


@pytest.mark.parametrize("content", ["", "{", "[]", "7"])
def test_fuse_refuses_damaged_description(tmp_path, content):
    out = tmp_path / "run"
    unfinished(out)
    (out / "run.json").write_text(content)
    with pytest.raises(RunError, match=r"run\.json cannot be read"):
        fuse(UPLOADS, METHOD, SERVER, out=out, resume=True)


# --- what is written ------------------------------------------------------------------------------


def test_fuse_evaluates_phases_that_learn():
    options = RunOptions(evaluate=evaluate_to(0.5), evaluate_every=1)
    asked = fuse(UPLOADS, METHOD, SERVER, options=options).record["history"]
    assert {row["phase"] for row in asked if "accuracy" in row} == {"distil"}


def test_fuse_record(tmp_path):
    out = tmp_path / "run"
    fused = fuse(
        UPLOADS,
        METHOD,
        SERVER,
        out=out,
        evaluate=evaluate_to(0.625),
        evaluated_on="a test set",
        options=RunOptions(evaluate_every=2),
    )
    record = json.loads((out / "record.json").read_text())
    assert record == json.loads(json.dumps(fused.record))
    assert record["method"] == "feddf"
    assert record["settings"]["steps"] == 6
    assert record["device"] == "cpu"
    assert record["ending"] == "finished"
    assert record["steps"] == {"ask": "1 of 1", "distil": "6 of 6"}
    assert record["accuracy"] == 0.625
    assert record["evaluated_on"] == "a test set"
    assert [row["step"] for row in record["history"] if "accuracy" in row] == [2, 4, 6]
    assert [row["step"] for row in record["history"] if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert record["bytes_received"] == sum(client["bytes"] for client in record["clients"])
    assert record["public"] == {
        "source": "noise", "images": 24, "labelled": False,
        "sha256": hashlib.sha256(SERVER.public.pixels.numpy().tobytes()).hexdigest(),
    }  # fmt: skip


def test_describe_run_has_bytes_of_files(tmp_path):
    from attar.uploads import read_digest, write_bundle

    sizes = [write_bundle(tmp_path / f"{upload.client}.attar", upload) for upload in UPLOADS]
    record = fuse(UPLOADS, FedAvg(), SERVER).record
    assert [client["bytes"] for client in record["clients"]] == sizes
    assert record["clients"][1]["sha256"] == read_digest((tmp_path / "client1.attar").read_bytes())


def test_fuse_config_names_model_and_hash(tmp_path):
    fuse(UPLOADS, METHOD, SERVER, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["format"] == "attar-model/1"
    assert config["model"]["arch"] == "mlp"
    assert config["model"]["classes"] == list(CLASSES)
    assert config["weights_sha256"] == hashlib.sha256(weights(tmp_path / "run")).hexdigest()


def test_model_card_has_everything(tmp_path):
    out = tmp_path / "run"
    fused = fuse(
        UPLOADS,
        METHOD,
        SERVER,
        out=out,
        evaluate=evaluate_to(0.625),
        evaluated_on="fashion-mini test",
    )
    card = (out / "README.md").read_text()
    for client in fused.record["clients"]:
        assert (
            f"| {client['client']} | classifier: mlp:hidden=8,layers=1 | "
            f"{client['num_examples']:,} | {client['bytes']:,} |" in card
        )
        assert client["sha256"][:12] in card
    for name, value in {
        "method": "feddf",
        "steps": 6,
        "batch_size": 8,
        "lr": 0.001,
        "temperature": 1.0,
        "seed": 0,
    }.items():
        assert f"| {name} | {value} |" in card
    assert "kB received" in card
    assert "62.50 % of fashion-mini test" in card
    assert "24 unlabelled from noise" in card
    assert "ring, cross, bar" in card
    assert "Finished in" in card


def pictured(images, classes=CLASSES):
    """The card of a run with these images, and its record."""
    record = {**fuse(UPLOADS, FedAvg(), SERVER).record, "task": {"classes": list(classes)}}
    result = Result({"student": UPLOADS[0].parts["classifier"]}, {}, images)
    return model_card(
        "student", result.models["student"], record, list_pictures(result, record)
    ), record


def test_model_card_names_pictures():
    sheet = torch.zeros(3, 5, 1, 4, 4)
    names = "synthetic before filter", "synthetic after filter", "sketches"
    card, _ = pictured({names[0]: sheet, names[1]: sheet, names[2]: sheet[0]})
    lines = card.partition("## Pictures\n\n")[2].partition("\n\n## ")[0].splitlines()
    assert lines[0].startswith("- `synthetic-after-filter.png`: ")
    assert lines[0].endswith("Look at this one first.")
    assert [line.split("`")[1] for line in lines[1:3]] == [
        "synthetic-before-filter.png",
        "sketches.png",
    ]
    assert lines[-1] == (
        "In `synthetic-after-filter.png`, `synthetic-before-filter.png` each row is a class, "
        "from the top: ring, cross, bar. "
        "White is a place without an image."
    )


def test_model_card_names_classes_of_rows():
    classes = [f"c{number}" for number in range(60)]
    card, _ = pictured({"synthetic": torch.zeros(50, 5, 1, 4, 4)}, classes)
    assert "c48, c49 (the first 50 of 60 classes)." in card
    assert "Look at this one first" not in card, "there is no other"


def test_model_card_without_pictures(tmp_path):
    assert "Pictures" not in pictured({})[0]
    one = UPLOADS[0].parts["classifier"]
    result = Result({"first": one, "second": one}, {}, {"synthetic": torch.zeros(2, 1, 4, 4)})
    RunFolder(tmp_path).finish(result, fuse(UPLOADS, FedAvg(), SERVER).record)
    assert "`synthetic.png`" in (tmp_path / "README.md").read_text()
    assert "Pictures" not in (tmp_path / "second" / "README.md").read_text()


def test_model_card_says_why_nobody_was_compared(tmp_path):
    fuse(UPLOADS[:2], FedAvg(), out=tmp_path / "run", robustness=True)
    card = (tmp_path / "run" / "README.md").read_text()
    assert (
        "none could be compared with the rest: it takes 3 classifiers that share 3 classes, "
        "or 4 that share 2." in card
    )


def test_model_card_without_evaluation(tmp_path):
    fuse(UPLOADS, FedEns("vote"), SERVER, out=tmp_path / "run")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "Not measured." in card
    assert "combined by the rule `vote`" in card
    assert "| rule | vote |" in card


def test_fuse_writes_its_model(tmp_path):
    for number, method in enumerate((FedAvg(), FedEns("class-share"), METHOD)):
        out = tmp_path / str(number)
        fused = fuse(UPLOADS, method, SERVER, out=out)
        assert fused.model.classes == CLASSES
        assert torch.equal(load_model(out)(IMAGES), fused.model(IMAGES))


def test_finish_writes_further_models(tmp_path):
    from safetensors.torch import load_file

    one, two = (upload.parts["classifier"] for upload in UPLOADS[:2])
    shared = torch.rand(3, 2)
    result = Result(
        {"first": one, "second": two},
        {"weights": shared, "again": shared},
        {"samples": torch.zeros(2, 1, 4, 4)},
    )
    record = fuse(UPLOADS, FedAvg(), SERVER).record
    RunFolder(tmp_path).finish(result, record)
    assert torch.equal(load_model(tmp_path)(IMAGES), one.build()(one.preprocess(IMAGES)))
    assert torch.equal(load_model(tmp_path / "second")(IMAGES), two.build()(two.preprocess(IMAGES)))
    arrays = load_file(tmp_path / "arrays.safetensors")
    assert torch.equal(arrays["arrays/weights"], shared)
    assert torch.equal(arrays["arrays/again"], shared)
    assert arrays["images/samples"].shape == (2, 1, 4, 4)


def test_fuse_without_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fuse(UPLOADS, METHOD, SERVER)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stopped, match="start it again"):
        fuse(UPLOADS, METHOD, SERVER, **stop_after(2))


# --- students, tasks and settings -----------------------------------------------------------------


def test_server_for_refuses_a_student_too_deep():
    with pytest.raises(SpecError, match="alexnet"):
        server_for(UPLOADS, student="alexnet")
    small = [
        replace(
            u,
            parts={
                "classifier": replace(
                    u.parts["classifier"], preprocess=Preprocess.centred((1, 2, 2))
                )
            },
        )
        for u in UPLOADS
    ]
    with pytest.raises(SpecError):
        server_for(small, student="vgg11")


def test_fuse_orders_classes_by_task():
    task = Task(SHAPE, CLASSES[::-1])
    server = server_for(UPLOADS, task=task)
    fused = fuse(UPLOADS, FedAvg(), server)
    assert fused.model.classes == task.classes
    plain = fuse(UPLOADS, FedAvg(), SERVER).model(IMAGES)
    assert torch.equal(fused.model(IMAGES).argmax(-1), 2 - plain.argmax(-1))


def test_fuse_starts_from_initial():
    given = retrained(UPLOADS[0]).parts["classifier"]
    method = FedDF(steps=0)

    def started(initial):
        return (
            fuse(UPLOADS, method, replace(SERVER, initial=initial)).result.models["student"].state
        )

    assert all(torch.equal(started(given)[name], tensor) for name, tensor in given.state.items())
    average = started(None)
    other_look = replace(given, preprocess=Preprocess(SHAPE, (0.1,), (0.2,)))
    assert all(torch.equal(started(other_look)[name], tensor) for name, tensor in average.items())
    assert server_for(UPLOADS, initial=other_look).student_preprocess == other_look.preprocess, (
        "weights go with their look"
    )
    with pytest.raises(SpecError, match="cannot start from a lenet5"):
        server_for(UPLOADS, initial=replace(given, spec=ModelSpec("lenet5")))


def test_fuse_starts_from_body_of_other_classes():
    given = retrained(UPLOADS[0]).parts["classifier"]
    more = given.spec.build(SHAPE, 4, 0).state_dict()
    fresh = server_plan(SERVER).fresh(SERVER.seed).state_dict()
    other = Part(given.spec, more, (*given.classes, "star"), given.preprocess)
    state = (
        fuse(UPLOADS, FedDF(steps=0), replace(SERVER, initial=other)).result.models["student"].state
    )
    for name, tensor in state.items():
        assert torch.equal(tensor, fresh[name] if name.startswith("head.") else other.state[name])


def test_fuse_starts_from_reordered_head():
    given = retrained(UPLOADS[0]).parts["classifier"]
    turned = replace(given, classes=given.classes[::-1])
    state = (
        fuse(UPLOADS, FedDF(steps=0), replace(SERVER, initial=turned))
        .result.models["student"]
        .state
    )
    for name, tensor in state.items():
        assert torch.equal(
            tensor, given.state[name].flip(0) if name.startswith("head.") else given.state[name]
        )


def test_configure_refuses_all_settings_at_once():
    with pytest.raises(SettingsError) as caught:
        configure(
            FedDF,
            {"steps": "-1", "batch_size": "0", "lr": "0", "temperature": "-2"},
            of="method feddf",
        )
    for word in (
        "steps = -1: expected 0 or more",
        "batch_size = 0: expected above 0",
        "lr = 0.0",
        "temperature = -2.0",
    ):
        assert word in str(caught.value)
    with pytest.raises(SettingsError, match="one of examples, uniform"):
        configure(FedAvg, {"weights": "none"}, of="method fedavg")


def test_find_method_by_name():
    assert {find_method(name) for name in METHODS} == set(METHODS.values())
    with pytest.raises(SettingsError, match="feddf"):
        find_method("fedmagic")


def test_fuse_resizes_public_images():
    pixels = torch.randint(
        0, 256, (10, 3, 20, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    fused = fuse(UPLOADS, METHOD, replace(SERVER, public=Images(pixels, None, "colour")))
    assert torch.isfinite(fused.model(IMAGES)).all()


def test_driver_records_infinite_loss_as_null():
    history = []
    phase = Phase("burst", 1, lambda state: {"loss": float("inf"), "other": 1.0})
    Driver().run([phase], State(), history=history)
    assert history == [{"phase": "burst", "step": 1, "loss": None, "other": 1.0}]


def test_run_options_refuse_evaluate_every_0():
    world = tiny_world()
    with pytest.raises(SettingsError, match="evaluate_every"):
        fuse(
            world.uploads,
            METHODS["fedavg"](),
            world.server,
            options=RunOptions(evaluate_every=0),
        )


# --- options --------------------------------------------------------------------------------------


def count_evaluations(seen):
    """An ``evaluate`` that keeps the weights of every model that it is given."""

    def evaluate(model):
        seen.append(model_bits({"model": model.description}))
        return evaluation_of(0.5)

    return evaluate


@pytest.mark.parametrize(("every", "points"), [(1, 6), (2, 3), (6, 1), (None, 1)])
def test_fuse_evaluates_each_model_once(every, points):
    """The last point of the curve is the end, where the end falls on a point."""
    seen = []
    options = RunOptions(evaluate_every=every)
    fused = fuse(UPLOADS, METHOD, SERVER, evaluate=count_evaluations(seen), options=options)
    assert len(seen) == points
    assert len({tuple(bits) for bits in seen}) == points
    assert seen[-1] == model_bits(fused.result.models)
    assert fused.evaluations["student"].accuracy == fused.record["accuracy"] == 0.5


def test_fuse_evaluates_the_end_between_two_points():
    seen = []
    options = RunOptions(evaluate=count_evaluations(seen), evaluate_every=4)
    fused = fuse(UPLOADS, METHOD, SERVER, options=options)
    assert len(seen) == 2
    assert [row["step"] for row in fused.record["history"] if "accuracy" in row] == [4]


def test_fuse_refuses_an_evaluation_that_is_a_number():
    with pytest.raises(SettingsError, match="evaluate returned a float: expected an Evaluation"):
        fuse(UPLOADS, FedAvg(), SERVER, evaluate=lambda model: 0.5)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("checkpoint_seconds", r"options=RunOptions\(checkpoint_seconds=...\)"),
        ("evaluate_every", r"options=RunOptions\(evaluate_every=...\)"),
        ("colour", "unexpected keyword argument 'colour'"),
    ],
)
def test_fuse_names_the_new_place_of_a_keyword(keyword, message):
    with pytest.raises(TypeError, match=message):
        fuse(UPLOADS, METHOD, SERVER, **{keyword: 1})


def test_fuse_refuses_options_given_twice(tmp_path):
    options = RunOptions(out=tmp_path / "one", minutes=3)
    with pytest.raises(SettingsError, match="with different values: out"):
        fuse(UPLOADS, METHOD, SERVER, out=tmp_path / "other", options=options)
    fuse(UPLOADS, METHOD, SERVER, out=tmp_path / "one", options=options)
    assert (tmp_path / "one" / "model.safetensors").exists()


def test_finish_without_cards_and_pictures(tmp_path):
    part = UPLOADS[0].parts["classifier"]
    result = Result({"one": part, "two": part}, {}, {"synthetic": torch.zeros(2, 1, 4, 4)})
    RunFolder(tmp_path).finish(result, fuse(UPLOADS, FedAvg(), SERVER).record, for_people=False)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {
        "arrays.safetensors", "config.json", "model.safetensors", "record.json"
    }  # fmt: skip
    assert torch.equal(load_model(tmp_path / "two")(IMAGES), load_model(tmp_path)(IMAGES))


def test_fuse_records_what_a_variant_filled():
    world = tiny_world()
    given = {"epochs": 0, "temperature": 3.0}
    record = fuse(world.uploads, METHODS["dense"](variant="authors", **given), world.server).record
    filled = record["filled_by_variant"]
    assert (filled["beta1"], filled["keep"], "temperature" in filled) == (0.5, "best", False)
    assert {name: record["settings"][name] for name in filled} == filled
    plain = fuse(world.uploads, METHODS["dense"](epochs=0), world.server).record
    assert plain["filled_by_variant"] == {}
