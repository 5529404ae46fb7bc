"""Files that are small and ask for much: memory and work of a run, counted before it begins."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from measured import run_measured

from attar.core import ModelSpec, Part, Preprocess
from attar.errors import NeedsError
from attar.fusion import check_price, price_run, question_classes, server_for
from attar.internal import memory
from attar.methods import METHODS
from attar.models import Classifier, evaluate, predict
from attar.nets import MAX_CLASSES
from attar.nets.cost import image_cost
from attar.running import Budget
from attar.testing import tiny_upload
from attar.uploads import encode, write_bundle
from forge import compact

pytestmark = pytest.mark.hostile

MANY = 20_000
TINY = "mlp:hidden=2,layers=1"


def with_classes(client, number, prefix="class"):
    return tiny_upload(client, TINY, tuple(f"{prefix} {place}" for place in range(number)))


def test_confusion_has_a_row_for_each_class_of_the_data_alone():
    part = with_classes("evil", MANY).parts["classifier"]
    pixels = torch.randint(0, 256, (300, 1, 16, 16), dtype=torch.uint8)
    labels = torch.arange(300) % 3
    names = part.classes
    result = evaluate(Classifier(part), pixels, labels, names[:3], model_classes=names)
    assert result.confusion.shape[0] == 3
    assert result.confusion.shape[1] == len(result.classes) <= 3 + 100 + 1
    assert int(result.confusion.sum()) == 300


def test_confusion_counts_rare_classes_together():
    class Diagonal(torch.nn.Module):
        """Image i -> class i, by its first two pixels."""

        def forward(self, images):
            number = (images[:, 0, 0, 0] * 255 + 256 * images[:, 0, 0, 1] * 255).round().long()
            return torch.nn.functional.one_hot(number, 500).float()

    pixels = torch.zeros(500, 1, 1, 2, dtype=torch.uint8)
    pixels[:, 0, 0, 0] = torch.arange(500) % 256
    pixels[:, 0, 0, 1] = torch.arange(500) // 256
    names = [str(number) for number in range(500)]
    result = evaluate(
        Diagonal(), pixels, torch.zeros(500, dtype=torch.int64), names[:2], model_classes=names
    )
    assert result.confusion.shape == (2, 2 + 100 + 1)
    assert result.classes[-1] == "(other classes)"
    assert int(result.confusion[0, -1]) == 500 - 2 - 100
    assert int(result.confusion.sum()) == 500


def test_question_classes_of_long_lists_is_quick():
    uploads = [with_classes("a", 8000), with_classes("b", 8000, "Class"), with_classes("c", 3)]
    question = question_classes(uploads)
    assert question is not None
    assert question.alike["Class 7"] == "class 7"


def test_server_for_names_the_client_with_too_many_classes():
    uploads = [tiny_upload("a"), with_classes("evil", MAX_CLASSES)]
    with pytest.raises(NeedsError, match="client evil alone lists 30,000") as caught:
        server_for(uploads)
    assert "--exclude evil" in caught.value.fix


@pytest.mark.slow
def test_fuse_with_many_classes_in_little_memory(tmp_path):
    classes = ("T-shirt/top", "Trouser", "Pullover")
    write_bundle(tmp_path / "a.attar", tiny_upload("a", TINY, classes))
    more = (*classes, *(f"class {number}" for number in range(MANY)))
    write_bundle(tmp_path / "evil.attar", tiny_upload("evil", TINY, more))
    little = run_measured("fuse", "a.attar", "--data", "fashion-mini", "--out", "x", cwd=tmp_path)
    much = run_measured(
        "fuse", "a.attar", "evil.attar", "--data", "fashion-mini", "--out", "y", cwd=tmp_path
    )
    assert (little.status, much.status) == (0, 0), little.err + much.err
    assert much.peak - little.peak < 600 * 2**20
    assert much.seconds < 60


# --- images and layers that are larger than what they are made of ---------------------------------


def packed(client, nodes, weights, input_shape, outputs=3):
    """An upload of a packed net; its weights are zeros."""
    graph = {"graph": 1, "weights": weights, "nodes": nodes}
    spec = ModelSpec.of("graph", {"graph": compact(graph)})
    preprocess = Preprocess.centred(input_shape)
    state = spec.blank(input_shape, outputs).state_dict()
    honest = tiny_upload(client)
    part = Part(spec, state, honest.parts["classifier"].classes[:outputs], preprocess)
    return replace(honest, parts={"classifier": part})


def mean_and_head(channels):
    """A kilobyte that sees images of any size."""
    nodes = [
        {"op": "mean", "args": {"input": {"node": 0}, "dim": [2, 3]}},
        {
            "op": "linear",
            "args": {"input": {"node": 1}, "weight": {"weight": 0}, "bias": {"weight": 1}},
        },
    ]
    return nodes, [["float32", [3, channels]], ["float32", [3]]]


def megapixels(client="evil", channels=3):
    return packed(client, *mean_and_head(channels), (channels, 1024, 1024))


def widened(client="evil", to=2**26):
    """One image becomes 2^26 numbers and is summed again."""
    nodes = [
        {"op": "mean", "args": {"input": {"node": 0}, "dim": [2, 3], "keepdim": True}},
        {
            "op": "expand",
            "args": {"input": {"node": 1}, "size": [{"batch": 1}, 1, to // 1024, 1024]},
        },
        {"op": "relu", "args": {"input": {"node": 2}}},
        {"op": "mean", "args": {"input": {"node": 3}, "dim": [2, 3]}},
        {
            "op": "linear",
            "args": {"input": {"node": 4}, "weight": {"weight": 0}, "bias": {"weight": 1}},
        },
    ]
    return packed(client, nodes, [["float32", [3, 1]], ["float32", [3]]], (1, 16, 16))


def laborious(client="evil", layers=30):
    """Convolutions with windows of 33 x 33 on images of 28 x 28."""
    nodes = []
    for place in range(layers):
        args = {"input": {"node": place}, "weight": {"weight": 0}, "padding": [16, 16]}
        nodes.append({"op": "conv2d", "args": args})
    nodes += [
        {"op": "mean", "args": {"input": {"node": layers}, "dim": [2, 3]}},
        {
            "op": "linear",
            "args": {"input": {"node": layers + 1}, "weight": {"weight": 1}, "bias": {"weight": 2}},
        },
    ]
    weights = [["float32", [18, 18, 33, 33]], ["float32", [3, 18]], ["float32", [3]]]
    return packed(client, nodes, weights, (18, 28, 28))


HONEST = [tiny_upload(f"client-{number}", "lenet5") for number in range(3)]
GIB = 2**30
SMALL = Budget(memory=2 * GIB)
COSTLY = {
    "images of a megapixel": (megapixels(), "images of 3x1024x1024"),
    "images of 64 megapixels": (megapixels(channels=64), "images of 64x1024x1024"),
    "a layer of 2^26 numbers": (widened(), "and 805.3 MB"),
}


def refused(uploads, budget, method="ensemble", steps=0):
    with pytest.raises(NeedsError) as caught:
        check_price(uploads, server_for(uploads), METHODS[method](), budget, steps)
    return caught.value


@pytest.mark.parametrize("name", COSTLY)
def test_check_price_names_the_client_that_does_not_fit_into_memory(name):
    evil, words = COSTLY[name]
    assert len(encode(evil)) < 4000
    error = refused([*HONEST, evil], SMALL)
    assert "it may take 2.1 GB" in error.what
    (problem,) = error.problems
    assert problem.startswith("client evil: ")
    assert words in problem
    assert "--exclude evil" in error.fix
    assert "--max-memory" in error.fix
    check_price(HONEST, server_for(HONEST), METHODS["ensemble"](), SMALL)


def test_check_price_names_the_client_that_takes_hours():
    evil = laborious()
    error = refused([*HONEST, evil], Budget(memory=64 * GIB))
    assert "client evil" in error.problems[0]
    assert "--max-work" in error.fix
    check_price(
        [*HONEST, evil],
        server_for([*HONEST, evil]),
        METHODS["ensemble"](),
        Budget(work=1e6, memory=64 * GIB),
    )


@pytest.mark.parametrize("net", ["lenet5", "resnet20", "vit-tiny:patch=4"])
@pytest.mark.parametrize("method", ["dense", "accord", "fedavg", "ensemble"])
def test_check_price_accepts_what_people_do(net, method):
    shape = Preprocess.centred((3, 32, 32))
    uploads = [tiny_upload(f"{net[:4]}-{n}", net, preprocess=shape) for n in range(4)]
    budget = Budget(memory=128 * GIB, evaluated=10_000)
    price = check_price(uploads, server_for(uploads), METHODS[method](), budget, steps=200)
    assert price.memory > 0
    assert price.hours > 0


def test_check_price_counts_the_steps_of_a_method():
    uploads = [tiny_upload("a", "resnet20"), tiny_upload("b", "resnet20")]
    server = server_for(uploads)
    method = METHODS["dense"]()
    few = price_run(uploads, server, method, Budget(), steps=1)
    many = price_run(uploads, server, method, Budget(), steps=1000)
    assert many.hours > 100 * few.hours
    assert many.memory == few.memory
    assert "--max-work" in refused(uploads, Budget(work=many.hours / 2), "dense", 1000).fix


def test_check_price_where_no_client_stands_out():
    uploads = [tiny_upload(f"c{number}", "resnet20") for number in range(30)]
    error = refused(uploads, Budget(memory=2**20))
    assert "--exclude" not in error.fix
    assert "--max-memory" in error.fix


def test_affordable_images_cuts_batches(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device="cpu": 4 * GIB)
    assert memory.affordable_images(500, 1000) == 500
    assert memory.affordable_images(500, 2**28) == 4
    assert memory.affordable_images(500, 2**40) == 1
    monkeypatch.setattr(memory, "free_memory", lambda device="cpu": None)
    assert memory.affordable_images(500, 2**40) == 500


def test_predict_cuts_batches_to_the_memory(monkeypatch):
    sizes = []
    part = megapixels().parts["classifier"]
    model = Classifier(part)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(memory, "free_memory", lambda device="cpu": GIB // 4)
    predict(model, torch.zeros(12, 1, 16, 16, dtype=torch.uint8))
    assert sum(sizes) == 12
    assert max(sizes) < 12


def test_free_memory_obeys_the_limit_of_the_shell():
    words = "import resource; from attar.internal.memory import free_memory;"
    words += f"resource.setrlimit(resource.RLIMIT_AS, ({3 * GIB},) * 2); print(free_memory())"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 3 * GIB


def test_price_of_a_graph_is_what_the_reader_checked():
    cost = image_cost(widened().parts["classifier"].spec, (1, 16, 16), 3)
    assert cost.kept >= 2 * 4 * 2**26
    work = image_cost(laborious().parts["classifier"].spec, (18, 28, 28), 3).products
    assert work > 8e9


@pytest.mark.slow
@pytest.mark.parametrize(
    "evil", [megapixels(), widened(), laborious()], ids=["pixels", "wide", "work"]
)
def test_fuse_command_refuses_in_little_memory_and_time(tmp_path, evil):
    for upload in (*HONEST, evil):
        write_bundle(tmp_path / f"{upload.client}.attar", upload)
    files = sorted(path.name for path in tmp_path.glob("*.attar"))
    done = run_measured("fuse", *files, "--out", "x", "--max-memory", 2, cwd=tmp_path)
    assert done.status == 2, done.err
    assert "Traceback" not in done.err
    assert "client evil" in done.err
    assert done.peak < 2 * GIB
    assert not (tmp_path / "x").exists()
    dry = run_measured("fuse", *files, "--dry-run", "--max-memory", 2, cwd=tmp_path)
    assert dry.status == 2
    assert "evil" in dry.out
