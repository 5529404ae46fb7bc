"""Nets from ONNX files: what is packed computes what onnxruntime computes, or there is a reason."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import attar
from attar.core import ModelSpec
from attar.errors import PackError, SettingsError
from attar.packing.onnx import pack_onnx
from attar.packing.onnx.file import NEWEST, OLDEST
from attar.uploads import decode, encode

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'attar[export]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write(
    path, nodes, weights, sizes, *, opset=13, outputs=("out",), kind=TensorProto.FLOAT, **more
):
    """An ONNX file of some nodes."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("images", kind, sizes)],
        [result(name, kind) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)
    path.write_bytes(model.SerializeToString())
    return path


def result(name, kind):
    """The type of a result: rows of numbers, or dictionaries as scikit-learn's converter has."""
    if name != "output_probability":
        return helper.make_tensor_value_info(name, kind, ["n", None])
    number = helper.make_tensor_type_proto(kind, [])
    rows = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, number))
    return helper.make_value_info(name, rows)


def node(op, inputs, outputs, **attributes):
    inputs, outputs = (text.split() for text in (inputs, outputs))
    return helper.make_node(op, inputs, outputs, name=f"our/{outputs[0]}", **attributes)


def tensorflow_net(path, *, batch="n", reshape=(-1, 4)):
    """Nodes as tf2onnx writes them: channels last outside and first inside, dense layers in two."""
    weights = {
        "kernel": draw(8, 3, 3, 3),
        "depthwise": draw(8, 1, 3, 3, seed=1),
        "scale": 1 + draw(8, seed=2) / 9,
        "shift": draw(8, seed=3),
        "mean": draw(8, seed=4),
        "variance": 1 + draw(8, seed=5) ** 2,
        "zero": np.float32(0),
        "six": np.float32(6),
        "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1]),
        "dense": draw(8, 4, seed=6),
        "bias": draw(4, seed=7),
        "shape": np.array(reshape),
    }
    nodes = [
        node("Transpose", "images", "first", perm=[0, 3, 1, 2]),
        node("Pad", "first pads", "padded"),
        node("Conv", "padded kernel", "conv", strides=[2, 2], kernel_shape=[3, 3]),
        node("BatchNormalization", "conv scale shift mean variance", "norm", epsilon=1e-3),
        node("Clip", "norm zero six", "relu6"),
        node("Conv", "relu6 depthwise", "deep", group=8, auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Relu", "deep", "on"),
        node("MaxPool", "on", "pooled", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        node("AveragePool", "pooled", "mild", kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
        node("GlobalAveragePool", "mild", "global"),
        node("Squeeze", "global last", "flat"),
        node("MatMul", "flat dense", "product"),
        node("Add", "product bias", "sum"),
        node("Reshape", "sum shape", "rows"),
        node("Softmax", "rows", "probabilities", axis=-1),
    ]
    weights["last"] = np.array([2, 3])
    return write(path, nodes, weights, [batch, 32, 32, 3], outputs=("probabilities",))


def runtime_answers(path, images, name=None):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return session.run([name] if name else None, {given.name: images})[0]


class Small(nn.Module):
    """Skip connection, group norm, layer norm, slices and joins."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.Hardswish())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.LeakyReLU(0.2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, images):
        stem = self.stem(images)
        first, second = (stem + self.deep(stem)).chunk(2, 1)
        joined = torch.cat([first * 2, second, torch.sigmoid(second - first), first.clamp(0, 6)], 1)
        return self.head(self.norm(joined.mean((2, 3))))


def torch_file(path, net, shape, *, dynamo=False, opset=17):
    images = torch.randn(2, *shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            sizes = ({0: torch.export.Dim("batch")},)
            torch.onnx.export(
                net, (images,), path, dynamo=True, dynamic_shapes=sizes, verbose=False,
                external_data=False,
            )  # fmt: skip
        else:
            torch.onnx.export(
                net, (images,), path, dynamo=False, opset_version=opset, input_names=["x"],
                dynamic_axes={"x": {0: "batch"}},
            )  # fmt: skip
    return path


def logits_of(packed, images):
    part = decode(encode(packed.upload)).parts["classifier"]
    with torch.inference_mode():
        return part.build()(images)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet5", (1, 28, 28)),
        ("ours", (3, 16, 16)),
        pytest.param("mlp:hidden=12", (3, 8, 8), marks=pytest.mark.slow),
        pytest.param("resnet20", (3, 16, 16), marks=pytest.mark.slow),
        pytest.param("mobilenetv2", (3, 32, 32), marks=pytest.mark.slow),
    ],
)
def test_pack_onnx_of_exports_of_torch(tmp_path, name, shape):
    net = Small() if name == "ours" else ModelSpec.parse(name).build(shape, 5, seed=1)
    net.eval()
    for key, tensor in net.named_buffers():
        if key.endswith("running_var"):
            tensor.uniform_(0.5, 1.5)
    packed = pack_onnx(torch_file(tmp_path / "net.onnx", net, shape))
    assert packed.largest_difference <= 1e-5
    images = torch.randn(3, *shape)
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(packed, images), net(images), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_pack_onnx_of_the_newer_exporter(tmp_path):
    pytest.importorskip("onnxscript")
    spec = ModelSpec.parse("vit:patch=8,width=16,depth=1,heads=2,hidden=32")
    net = spec.build((3, 16, 16), 5, seed=1).eval()
    packed = pack_onnx(torch_file(tmp_path / "net.onnx", net, (3, 16, 16), dynamo=True))
    images = torch.randn(3, 3, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(packed, images), net(images), atol=1e-4, rtol=1e-4)
    assert packed.notes == ()


def test_pack_onnx_of_a_net_of_tensorflow(tmp_path):
    path = tensorflow_net(tmp_path / "tf.onnx")
    packed = pack_onnx(path, classes=list("abcd"), mean=[0.5], std=[0.5], client="berlin")
    part = packed.upload.parts["classifier"]
    assert part.preprocess.input_shape == (3, 32, 32)
    assert part.preprocess.mean == (0.5,) * 3
    assert "channels last" in packed.notes[0]
    assert "softmax" in packed.notes[1]
    images = torch.randn(4, 3, 32, 32)
    wanted = runtime_answers(path, images.permute(0, 2, 3, 1).contiguous().numpy())
    found = logits_of(packed, images).softmax(-1).numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    text = dict(part.spec.options)["graph"]
    assert '"batch_norm"' in text
    assert '"permute"' not in text, "the transpose at the start undoes our own"
    assert part.state["head.weight"].shape == (4, 8), "found before a reshape that changes nothing"


def test_pack_onnx_finds_the_head_of_two_nodes(tmp_path):
    weights = {"dense": draw(6, 4), "bias": draw(4)}
    nodes = [
        node("GlobalAveragePool", "images", "global"),
        node("Flatten", "global", "flat"),
        node("MatMul", "flat dense", "product"),
        node("Add", "product bias", "out"),
    ]
    path = write(tmp_path / "net.onnx", nodes, weights, ["n", 6, 8, 8])
    part = pack_onnx(path).upload.parts["classifier"]
    torch.testing.assert_close(part.state["head.weight"], torch.from_numpy(weights["dense"]).T)
    torch.testing.assert_close(part.state["head.bias"], torch.from_numpy(weights["bias"]))


def learning_net(path, kind):
    """Graphs as skl2onnx writes them, of a perceptron and of linear models."""
    weights = {
        "w1": draw(16, 6), "b1": draw(1, 6, seed=1), "w2": draw(6, 3, seed=2),
        "b2": draw(1, 3, seed=3), "w3": draw(6, 1, seed=4), "one": np.float32([1]),
    }  # fmt: skip
    scaler = helper.make_node(
        "Scaler", ["images"], ["scaled"], domain="ai.onnx.ml",
        offset=draw(16, seed=5).tolist(), scale=(1 + draw(16, seed=6) ** 2).tolist(),
    )  # fmt: skip
    hidden = [
        scaler,
        node("MatMul", "scaled w1", "m1"),
        node("Add", "m1 b1", "a1"),
        node("Relu", "a1", "h1"),
    ]
    labels = {"classlabels_strings": ["bird", "cat", "dog"]}
    if kind == "perceptron":
        nodes = [
            *hidden,
            node("MatMul", "h1 w2", "m2"),
            node("Add", "m2 b2", "a2"),
            node("Softmax", "a2", "probabilities"),
            helper.make_node(
                "ZipMap", ["probabilities"], ["output_probability"], domain="ai.onnx.ml", **labels
            ),
        ]
        outputs = ("output_probability",)
    elif kind == "two classes":
        nodes = [
            *hidden,
            node("MatMul", "h1 w3", "m2"),
            node("Sigmoid", "m2", "sure"),
            node("Sub", "one sure", "rest"),
            node("Concat", "rest sure", "out", axis=1),
        ]
        outputs = ("out",)
    else:
        rows = draw(2 if kind == "pair" else 3, 16, seed=7)
        intercepts = draw(3, seed=8)[: len(rows)]
        if kind == "pair":
            rows[0], intercepts[0] = -rows[1], -intercepts[1]
        post = {"pair": "LOGISTIC", "apart": "LOGISTIC", "linear": "SOFTMAX"}[kind]
        classifier = helper.make_node(
            "LinearClassifier", ["scaled"], ["label", "scores"], domain="ai.onnx.ml",
            coefficients=rows.flatten().tolist(), intercepts=intercepts.tolist(),
            post_transform=post, classlabels_ints=list(range(len(rows))),
        )  # fmt: skip
        norm = helper.make_node(
            "Normalizer", ["scores"], ["probabilities"], domain="ai.onnx.ml", norm="L1"
        )
        nodes, outputs = [scaler, classifier, norm], ("probabilities",)
    used = {name for one in nodes for name in one.input}
    weights = {name: array for name, array in weights.items() if name in used}
    return write(path, nodes, weights, [None, 16], outputs=outputs)


@pytest.mark.parametrize("kind", ["perceptron", "two classes", "pair", "linear"])
def test_pack_onnx_of_a_net_of_scikit_learn(tmp_path, kind):
    path = learning_net(tmp_path / "net.onnx", kind)
    packed = pack_onnx(path, input_shape=(1, 4, 4))
    images = torch.randn(5, 1, 4, 4)
    if kind == "perceptron":
        assert packed.upload.parts["classifier"].classes == ("bird", "cat", "dog")
        rows = runtime_answers(path, images.flatten(1).numpy())
        wanted = [[row[name] for name in ("bird", "cat", "dog")] for row in rows]
    else:
        wanted = runtime_answers(path, images.flatten(1).numpy())
    found = logits_of(packed, images).softmax(-1)
    np.testing.assert_allclose(found.numpy(), np.array(wanted), atol=1e-5)
    assert any("softmax" in note for note in packed.notes)


def test_pack_onnx_of_a_file_of_scikit_learn_itself(tmp_path):
    """The real thing, where the two packages are there."""
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed").to_onnx
    network = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    rows, labels = draw(90, 16), np.array(["cat", "dog", "bird"])[np.arange(90) % 3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = network.MLPClassifier((8,), max_iter=5, random_state=0).fit(rows, labels)
        path = tmp_path / "net.onnx"
        path.write_bytes(convert(net, rows[:1]).SerializeToString())
    packed = pack_onnx(path, input_shape=(1, 4, 4))
    found = logits_of(packed, torch.from_numpy(rows).reshape(-1, 1, 4, 4)).softmax(-1)
    np.testing.assert_allclose(found.numpy(), net.predict_proba(rows), atol=1e-5)
    assert packed.upload.parts["classifier"].classes == tuple(net.classes_)


def test_pack_onnx_reads_what_attar_exports(tmp_path):
    pytest.importorskip("onnxscript")
    from attar.deploy import export_onnx
    from attar.testing import tiny_upload

    model = tiny_upload("rome", "lenet5", ("ring", "cross", "bar")).parts["classifier"]
    export_onnx(model, tmp_path / "model.onnx")
    packed = pack_onnx(tmp_path / "model.onnx")
    part = packed.upload.parts["classifier"]
    assert part.classes == ("ring", "cross", "bar")
    images = torch.rand(3, *part.preprocess.input_shape)
    wanted = attar.Classifier(model)(images)
    torch.testing.assert_close(attar.Classifier(part)(images), wanted, atol=1e-4, rtol=1e-4)


def plain(path, *nodes, sizes=("n", 3, 8, 8), weights=None, **more):
    """A file that ends in a pool and one linear layer, after ``nodes`` from ``images`` to ``x``."""
    tail = [
        node("GlobalAveragePool", "x", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w b", "out"),
    ]
    weights = {"w": draw(3, 4), "b": draw(4), **(weights or {})}
    return write(path, [*nodes, *tail], weights, list(sizes), **more)


@pytest.mark.parametrize(
    ("op", "attributes", "more"),
    [
        ("Elu", {"alpha": 0.5}, ""),
        ("Selu", {}, ""),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, ""),
        ("Softplus", {}, ""),
        ("PRelu", {}, "slopes"),
        ("Pow", {}, "two"),
        ("Max", {}, "slopes"),
        ("Mean", {}, "slopes"),
        ("InstanceNormalization", {"epsilon": 1e-3}, "ones shifts"),
        ("LayerNormalization", {"axis": -1}, "eight"),
        ("Unsqueeze", {}, "minus"),
    ],
)
def test_pack_onnx_of_single_operators(tmp_path, op, attributes, more):
    weights = {
        "slopes": draw(3, 1, 1, seed=1), "two": np.float32(2), "ones": 1 + draw(3, seed=2),
        "shifts": draw(3, seed=3), "eight": draw(8, seed=4), "minus": np.array([1]),
    }  # fmt: skip
    weights = {name: weights[name] for name in more.split()}
    nodes = [node(op, f"images {more}".strip(), "x", **attributes)]
    if op == "Unsqueeze":
        nodes = [node(op, "images minus", "wide"), node("Squeeze", "wide minus", "x")]
    path = plain(tmp_path / "net.onnx", *nodes, weights=weights, opset=17)
    assert pack_onnx(path).largest_difference <= 1e-5


def test_pack_onnx_follows_sizes_of_the_batch(tmp_path):
    """Shape, Gather, Concat and Reshape, as exporters write a flatten."""
    weights = {
        "w": draw(192, 4),
        "zero": np.array(0),
        "axis": np.array([0]),
        "rest": np.array([-1]),
    }
    nodes = [
        node("Shape", "images", "sizes"),
        node("Gather", "sizes zero", "batch"),
        node("Unsqueeze", "batch axis", "one"),
        node("Concat", "one rest", "target", axis=0),
        node("Reshape", "images target", "rows"),
        node("Gemm", "rows w", "out"),
    ]
    path = write(tmp_path / "net.onnx", nodes, weights, ["n", 3, 8, 8])
    assert pack_onnx(path).largest_difference <= 1e-5


def test_pack_onnx_folds_what_does_not_depend_on_images(tmp_path):
    """A quantised weight becomes a weight."""
    weights = {
        "q": np.random.default_rng(0).integers(-99, 99, (5, 3, 3, 3)).astype(np.int8),
        "scale": np.float32(0.02),
        "w": draw(5, 4),
    }
    nodes = [node("DequantizeLinear", "q scale", "kernel"), node("Conv", "images kernel", "x")]
    path = plain(tmp_path / "net.onnx", *nodes, weights=weights)
    part = pack_onnx(path).upload.parts["classifier"]
    kernel = next(tensor for tensor in part.state.values() if tensor.dim() == 4)
    np.testing.assert_allclose(kernel, weights["q"] * np.float32(0.02), rtol=1e-6)


@pytest.mark.parametrize("opset", [9, 11, 12])
def test_pack_onnx_reads_older_operators(tmp_path, opset):
    """Clip, Pad, Slice, Squeeze and Softmax have attributes that became inputs."""
    weights = {}
    if opset == 9:
        start = [
            node("Clip", "images", "clipped", min=-1.0, max=1.0),
            node("Pad", "clipped", "padded", pads=[0, 0, 1, 1, 0, 0, 1, 1]),
            node("Slice", "padded", "x", starts=[0], ends=[9], axes=[2]),
        ]
    else:
        start = [
            node("Clip", "images low high", "clipped"),
            node("Pad", "clipped pads", "x"),
        ]
        weights = {"low": np.float32(-1), "high": np.float32(1), "pads": np.array([0, 0, 1, 1] * 2)}
    path = plain(tmp_path / "net.onnx", *start, weights=weights, opset=opset)
    model = onnx.load(path)
    model.graph.node.append(node("Softmax", "out", "sure"))
    model.graph.output[0].name = "sure"
    path.write_bytes(model.SerializeToString())
    packed = pack_onnx(path)
    assert packed.largest_difference <= 1e-5
    assert "softmax" in packed.notes[0]


# --- refusals -------------------------------------------------------------------------------------


def test_pack_onnx_refuses_weights_in_other_files(tmp_path):
    path = plain(tmp_path / "net.onnx", node("Relu", "images", "x"))
    onnx.save(
        onnx.load(path), tmp_path / "apart.onnx", save_as_external_data=True, size_threshold=0
    )
    with pytest.raises(PackError, match="other files, which attar does not open") as refused:
        pack_onnx(tmp_path / "apart.onnx")
    assert refused.value.problems == ("w, b",)


def test_pack_onnx_refuses_a_file_that_points_outside(tmp_path):
    """A path out of the folder is never followed, whatever it names."""
    (tmp_path / "secret").write_bytes(bytes(48))
    path = plain(tmp_path / "net.onnx", node("Relu", "images", "x"))
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(PackError, match="other files"):
        pack_onnx(path)


def test_pack_onnx_refuses_a_file_that_points_outside_from_an_inner_graph(tmp_path):
    """A branch of a condition that is known in advance would be computed before all checks."""
    (tmp_path / "secret").write_bytes(bytes(12))
    hidden = numpy_helper.from_array(np.zeros(3, np.float32), "hidden")
    hidden.ClearField("raw_data")
    hidden.data_location = TensorProto.EXTERNAL
    hidden.external_data.add(key="location", value="../secret")
    out = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [3])
    branch = helper.make_graph([node("Identity", "hidden", "inner")], "b", [], [out], [hidden])
    condition = helper.make_node("If", ["yes"], ["bias"], then_branch=branch, else_branch=branch)
    nodes = [condition, node("Reshape", "bias shape", "r"), node("Add", "images r", "x")]
    weights = {"yes": np.array(True), "shape": np.array([3, 1, 1])}
    path = plain(tmp_path / "net.onnx", *nodes, weights=weights)
    with pytest.raises(PackError, match="other files"):
        pack_onnx(path)


def test_pack_onnx_refuses_operators_of_others(tmp_path):
    strange = helper.make_node("FusedConv", ["images"], ["x"], domain="com.microsoft", name="fused")
    path = plain(tmp_path / "net.onnx", strange)
    with pytest.raises(PackError, match="not ONNX's own") as refused:
        pack_onnx(path)
    assert refused.value.problems == ("com.microsoft: FusedConv (1 nodes)",)


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            [node("Resize", "images   sizes", "x")],
            "node 1 (Resize 'our/x'): this operator is not supported",
        ),
        ([node("Floor", "images", "y"), node("Floor", "y", "x")], "node 2 (Floor 'our/x')"),
    ],
)
def test_pack_onnx_names_every_operator_that_is_missing(tmp_path, start, words):
    weights = {"sizes": np.array([1, 3, 4, 4])} if start[0].op_type == "Resize" else {}
    path = plain(tmp_path / "net.onnx", *start, weights=weights)
    with pytest.raises(PackError) as refused:
        pack_onnx(path)
    assert words in str(refused.value)
    assert "docs/foreign-models.md" in str(refused.value)


def test_pack_onnx_names_the_node_of_a_fixed_batch(tmp_path):
    path = tensorflow_net(tmp_path / "tf.onnx", reshape=(1, 4))
    with pytest.raises(PackError) as refused:
        pack_onnx(path)
    assert "node 14 (Reshape 'our/rows')" in str(refused.value)
    assert "batches of any size" in str(refused.value)


def test_pack_onnx_refuses_a_node_that_looks_at_the_images(tmp_path):
    path = plain(
        tmp_path / "net.onnx",
        node("Cast", "images", "whole", to=int(TensorProto.INT64)),
        node("Cast", "whole", "x", to=1),
    )
    with pytest.raises(PackError, match=r"node 1 \(Cast 'our/whole'\) makes whole numbers"):
        pack_onnx(path)


def test_pack_onnx_refuses_classes_that_are_judged_apart(tmp_path):
    with pytest.raises(PackError, match="judges each class by itself"):
        pack_onnx(learning_net(tmp_path / "net.onnx", "apart"), input_shape=(1, 4, 4))
    path = plain(tmp_path / "several.onnx", node("Relu", "images", "x"))
    model = onnx.load(path)
    model.graph.node.append(node("Sigmoid", "out", "sure"))
    model.graph.output[0].name = "sure"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(PackError, match="sigmoid over 4 numbers"):
        pack_onnx(path)


def test_pack_onnx_refuses_probabilities_of_unknown_origin(tmp_path):
    weights = {"w": draw(3, 4), "half": np.float32(0.5)}
    nodes = [
        node("GlobalAveragePool", "images", "g"),
        node("Flatten", "g", "f"),
        node("Gemm", "f w", "logits_"),
        node("Softmax", "logits_", "p", axis=1),
        node("Mul", "p half", "halves"),
        node("Add", "halves halves", "out"),
    ]
    path = write(tmp_path / "net.onnx", nodes, weights, ["n", 3, 8, 8])
    with pytest.raises(PackError, match="its logits cannot be found"):
        pack_onnx(path)


def test_pack_onnx_says_what_it_computes_otherwise(tmp_path, monkeypatch):
    """A wrong translation never leaves the machine."""
    from attar.packing.onnx import operators

    table = {**operators.OPERATORS, "Relu": lambda call: call.tensor().clamp(-0.1)}
    monkeypatch.setattr("attar.packing.onnx.net.OPERATORS", table)
    path = plain(tmp_path / "net.onnx", node("Relu", "images", "x"))
    with pytest.raises(PackError, match="does not compute what onnxruntime computes"):
        pack_onnx(path)


def test_pack_onnx_wants_to_know_the_images(tmp_path):
    path = plain(tmp_path / "net.onnx", node("Relu", "images", "x"), sizes=("n", 3, "h", "w"))
    with pytest.raises(PackError, match=r"how large its images are \(3 x \? x \?\)"):
        pack_onnx(path)
    assert pack_onnx(path, input_shape=(3, 12, 12)).largest_difference <= 1e-5
    with pytest.raises(PackError, match="not of 1 x 12 x 12"):
        pack_onnx(path, input_shape=(1, 12, 12))
    rows = learning_net(tmp_path / "rows.onnx", "perceptron")
    with pytest.raises(PackError, match="rows of 16 numbers"):
        pack_onnx(rows)
    with pytest.raises(PackError, match="images of 1 x 5 x 5 have 25"):
        pack_onnx(rows, input_shape=(1, 5, 5))


def test_pack_onnx_arranges_rows_by_pixels_or_by_channels(tmp_path):
    nodes = [node("Gemm", "images w", "out")]
    path = write(tmp_path / "net.onnx", nodes, {"w": draw(12, 4)}, ["n", 12])
    images = torch.randn(2, 3, 2, 2)
    last = pack_onnx(path, input_shape=(3, 2, 2), layout="nhwc")
    wanted = images.permute(0, 2, 3, 1).flatten(1) @ torch.from_numpy(draw(12, 4))
    torch.testing.assert_close(logits_of(last, images), wanted)


def test_pack_onnx_chooses_among_results(tmp_path):
    nodes = [
        node("GlobalAveragePool", "images", "g"),
        node("Flatten", "g", "first"),
        node("Gemm", "first w", "second"),
    ]
    path = write(
        tmp_path / "net.onnx", nodes, {"w": draw(3, 4)}, ["n", 3, 8, 8], outputs=("first", "second")
    )
    with pytest.raises(PackError, match="2 results: first, second"):
        pack_onnx(path)
    with pytest.raises(PackError, match="no result 'third'"):
        pack_onnx(path, output="third")
    assert len(pack_onnx(path, output="second").upload.parts["classifier"].classes) == 4


@pytest.mark.parametrize("opset", [OLDEST - 1, NEWEST + 1])
def test_pack_onnx_says_which_versions_it_reads(tmp_path, opset):
    path = plain(tmp_path / "net.onnx", node("Relu", "images", "x"), opset=opset)
    with pytest.raises(PackError, match=f"opset {opset}; attar reads {OLDEST} to {NEWEST}"):
        pack_onnx(path)


def test_pack_onnx_refuses_what_is_no_net_of_images(tmp_path):
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(PackError, match="is not"):
        pack_onnx(tmp_path / "text.onnx")
    with pytest.raises(PackError, match="There is no file"):
        pack_onnx(tmp_path / "none.onnx")
    whole = plain(
        tmp_path / "whole.onnx", node("Relu", "images", "x"), kind=TensorProto.INT32, opset=14
    )
    with pytest.raises(PackError, match="type int32: images are floats"):
        pack_onnx(whole)
    fits = plain(tmp_path / "fits.onnx", node("Relu", "images", "x"))
    with pytest.raises(PackError, match="mean has 2 numbers"):
        pack_onnx(fits, mean=[0.1, 0.2])
    with pytest.raises(PackError, match="divide mean and std by 255"):
        pack_onnx(fits, mean=[127.0])


def test_attar_pack_takes_an_onnx_file(tmp_path, capsys):
    from attar.cli import main

    path = tensorflow_net(tmp_path / "tf.onnx")
    out = tmp_path / "berlin.attar"
    flags = ["--onnx", str(path), "--std", "0.00392157", "--label-counts", "1,2,3,4"]
    assert main(["pack", *flags, "-o", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["largest_difference"] <= 1e-4
    assert len(told["notes"]) == 2
    assert attar.read_bundle(out).num_examples == 10
    assert main(["pack", *flags, "-o", str(out)]) == 0
    assert "Compared with onnxruntime on 37 random images" in capsys.readouterr().out
    for wrong in (
        ["--onnx", str(path), "--module", "a:b"],
        ["--module", "a:b"],
        ["--module", "a:b", "--weights", "w.pt", "--layout", "nhwc"],
    ):
        assert main(["pack", *wrong, "-o", str(out)]) == 2
        assert "--onnx" in capsys.readouterr().err


def test_pack_onnx_names_the_missing_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(SettingsError, match=r"attar\[export\]"):
        pack_onnx(tmp_path / "net.onnx")


def test_the_documents_list_every_operator_of_onnx():
    from attar.packing.onnx.operators import OPERATORS

    page = (Path(__file__).parents[2] / "docs" / "foreign-models.md").read_text()
    begun = page.index("The operators of ONNX that are translated")
    listed = re.findall(r"`([A-Z]\w+)`", page[page.index("\n\n", begun) :].split("\n\n")[1])
    assert listed == list(OPERATORS)
    assert f"opset {OLDEST} to {NEWEST}" in page
