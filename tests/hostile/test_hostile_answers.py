"""Files whose numbers are finite and whose nets answer NaN, infinity or more than can be added."""

from dataclasses import replace

import pytest
import torch

from attar.core import ModelSpec, Part, Preprocess, Result
from attar.errors import DivergedError, NeedsError
from attar.fusion import check_answers, find_broken_answers, fuse
from attar.fusion.broken_answers import explain_divergence
from attar.methods import METHODS
from attar.models import Classifier, evaluate
from attar.testing import tiny_decoder, tiny_statistics, tiny_upload
from attar.uploads import decode, encode
from e2e.commands import run
from forge import compact

pytestmark = pytest.mark.hostile

HONEST = [tiny_upload(f"client-{number}", "lenet5") for number in range(3)]


def changed(upload, role="classifier", **state):
    """An upload with some tensors of a part computed anew from the old ones."""
    part = upload.parts[role]
    new = {name: state.get(name, lambda old: old)(old) for name, old in part.state.items()}
    return replace(upload, parts={**upload.parts, role: replace(part, state=new)})


def scaled(upload, times):
    part = upload.parts["classifier"]
    state = {name: old * times for name, old in part.state.items()}
    return replace(upload, parts={"classifier": replace(part, state=state)})


def packed(client, *nodes):
    """A graph over 1 x 16 x 16 images that ends in a linear layer with three outputs."""
    weights = [["float32", [3, 1]], ["float32", [3]]]
    head = {"input": {"node": len(nodes)}, "weight": {"weight": 0}, "bias": {"weight": 1}}
    graph = {"graph": 1, "weights": weights, "nodes": [*nodes, {"op": "linear", "args": head}]}
    spec = ModelSpec.of("graph", {"graph": compact(graph)})
    preprocess = Preprocess.centred((1, 16, 16))
    net = spec.blank(preprocess.input_shape, 3)
    state = {name: torch.ones_like(value) for name, value in net.state_dict().items()}
    part = Part(spec, state, ("ring", "cross", "bar"), preprocess)
    return replace(tiny_upload(client), parts={"classifier": part})


MEAN = {"op": "mean", "args": {"input": {"node": 0}, "dim": [2, 3]}}


def unary(op):
    return {"op": op, "args": {"input": {"node": 1}}}


STATISTICS = tiny_statistics(tiny_upload("evil", "lenet5"))
BROKEN = {
    "weights times 1e30": scaled(tiny_upload("evil", "lenet5"), 1e30),
    "one weight of 3.4e38": changed(
        tiny_upload("evil", "lenet5"),
        **{"head.weight": lambda old: old.new_full(old.shape, 3.4e38)},
    ),
    "logits of 1e20, finite": changed(
        tiny_upload("evil", "lenet5"), **{"head.bias": lambda old: old + 1e20}
    ),
    "root of a negative number": packed("evil", MEAN, unary("sqrt")),
    "whitening of 1e38": changed(
        STATISTICS, "statistics", whitening=lambda old: old.new_full(old.shape, 1e38)
    ),
    "means of 1e38": changed(STATISTICS, "statistics", means=lambda old: old + 1e38),
    "decoder of 1e38": changed(
        tiny_decoder("evil"), "decoder", **{"hidden.weight": lambda old: old * 1e38}
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_find_broken_answers_names_the_client(name):
    evil = decode(encode(BROKEN[name]))  # the reader has nothing against it
    (found,) = find_broken_answers([*HONEST, evil])
    assert found.client == "evil"
    with pytest.raises(NeedsError, match="--exclude evil") as caught:
        check_answers([*HONEST, evil])
    assert "client evil: its" in caught.value.problems[0]


def test_find_broken_answers_leaves_honest_nets_alone():
    honest = [
        *HONEST,
        tiny_statistics(tiny_upload("told", "resnet20")),
        tiny_decoder("drawn"),
        scaled(tiny_upload("large", "lenet5"), 10),
    ]
    assert find_broken_answers(honest) == []


@pytest.mark.parametrize("method", ["ensemble", "accord"])
def test_fuse_refuses_broken_answers_by_name(method):
    evil = BROKEN["weights times 1e30"]
    with pytest.raises(NeedsError, match="answers of evil cannot be used"):
        fuse([*HONEST, evil], method)


def test_check_answers_where_every_client_is_broken():
    with pytest.raises(NeedsError, match="every client is concerned"):
        check_answers([BROKEN["weights times 1e30"]])


def test_explain_divergence_names_the_client_not_the_learning_rate():
    told = DivergedError("Method accord diverged.", fix="use a smaller learning rate")
    evil = scaled(tiny_upload("evil", "lenet5"), 30)  # finite, and passes the door
    assert find_broken_answers([evil]) == []
    better = explain_divergence(told, [*HONEST, evil], "cpu", {})
    assert "client evil: its classifier answers with" in str(better)
    assert "--exclude evil" in str(better)
    assert "learning rate" not in str(better)
    assert explain_divergence(told, HONEST, "cpu", {}) is told


def test_explain_divergence_follows_gradients():
    spread = {"op": "var", "args": {"input": {"node": 0}, "dim": [2, 3]}}
    evil = packed("evil", spread, unary("sqrt"))  # infinitely steep where an image has one colour
    assert find_broken_answers([evil]) == []
    told = DivergedError("Method dense diverged.", fix="use a smaller learning rate")
    flat = {"synthetic": torch.full((2, 1, 16, 16), 0.5)}
    assert "client evil" in str(explain_divergence(told, [*HONEST, evil], "cpu", flat))


def test_fuse_that_diverges_names_the_client():
    class Diverging(METHODS["ensemble"]):
        def result(self, context, state):
            part = HONEST[0].parts["classifier"]
            broken = {name: old * float("nan") for name, old in part.state.items()}
            return Result({"student": replace(part, state=broken)})

    evil = scaled(tiny_upload("evil", "lenet5"), 30)
    with pytest.raises(DivergedError, match="--exclude evil"):
        fuse([*HONEST, evil], Diverging())


def test_evaluate_counts_nan_as_wrong():
    part = scaled(HONEST[0], 1e30).parts["classifier"]
    pixels = torch.randint(0, 256, (12, 1, 16, 16), dtype=torch.uint8)
    result = evaluate(Classifier(part), pixels, torch.zeros(12, dtype=torch.int64), part.classes)
    assert result.accuracy == 0
    assert result.calibration_error == 0
    assert result.unanswered == 12
    assert "answers NaN to 12 of 12 images" in result.advice


def test_fuse_command_names_the_client_and_leaves_it_out(tmp_path):
    for upload in (*HONEST, BROKEN["weights times 1e30"]):
        (tmp_path / f"{upload.client}.attar").write_bytes(encode(upload))
    files = [f"{upload.client}.attar" for upload in (*HONEST, BROKEN["weights times 1e30"])]
    for more in (["--out", "x"], ["--dry-run"]):
        told = run("fuse", *files, *more, cwd=tmp_path, status=2)
        assert "evil" in told.stderr
        assert "--exclude evil" in told.stderr
    assert not (tmp_path / "x").exists()
    run("fuse", *files, "--exclude", "evil", "--out", "x", cwd=tmp_path)
    told = run("inspect", *files, cwd=tmp_path)
    assert "client evil: its classifier answers NaN or infinity" in told.stdout
