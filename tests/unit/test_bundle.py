"""Upload files: a round trip keeps every bit; changed, cut or forged files are refused."""

import hashlib
import io
import os
import pickle
import time
import unicodedata
import zipfile
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from attar.core import ModelSpec, Part, Preprocess, Upload
from attar.errors import BundleError
from attar.fusion import fuse
from attar.methods.dense import Dense
from attar.methods.fedavg import FedAvg
from attar.testing import tiny_upload, tiny_world
from attar.uploads import (
    container,
    decode,
    encode,
    read_bundle,
    read_bundles,
    read_digest,
    write_bundle,
)
from forge import compact, encode_unchecked, pack, repack, reseal, unpack

SHAPE = (1, 16, 16)
NETS = ("mlp:hidden=2,layers=1", "lenet5", "resnet20", "mlp:hidden=3,layers=0")
DECODERS = ["cvae-small-decoder:hidden=4", "cvae-small-decoder:form=emnist,hidden=4,latent=3"]
SMALL = tiny_upload("small", "mlp:hidden=2,layers=1", ("a", "b"))
FILE = encode(SMALL)
HEADER_END = 8 + int.from_bytes(FILE[:8], "little")
ODD_NUMBERS = torch.tensor(
    [-0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 1.0, -1.0]
)  # signed zero, denormals, largest


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def same_bits(one, other):
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and raw(one[name]) == raw(other[name])
        for name in one
    )


def reasons_of(data):
    with pytest.raises(BundleError) as caught:
        decode(data)
    assert caught.value.problems
    return "\n".join(caught.value.problems)


def forged(change=None, *, table=None, text=None):
    """The small upload with its manifest, its tensor table or the text of its manifest changed,
    and sealed anew.
    """
    header, manifest, weights = unpack(FILE)
    if change is not None:
        change(manifest)
    if table is not None:
        table(header)
    written = compact(manifest)
    return repack(header, written if text is None else text(written), weights)


def with_tensors(change, arch="mlp:hidden=2,layers=1"):
    """An upload file whose tensors were changed by somebody who knows the format."""
    upload = tiny_upload("small", arch, ("a", "b"))
    header, manifest, _ = unpack(encode(upload))
    tensors = {
        f"classifier/{name}": tensor.clone()
        for name, tensor in upload.parts["classifier"].state.items()
    }
    change(tensors)
    file = save(tensors, metadata=header["__metadata__"])
    header, manifest, weights = unpack(file)
    return repack(header, compact(manifest), weights)


def part_of(manifest):
    return manifest["parts"]["classifier"]


# --- round trip -----------------------------------------------------------------------------------

clients = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._@+ -]{0,63}", fullmatch=True)
tricky = st.sampled_from(
    [
        '"',
        "\\",
        '\\"sha256\\":\\"',
        '"sha256":"' + "0" * 64 + '"',
        "шапка",
        "帽子",
        "🎩",
        "a/b",
        "é",
        "{}",
        "'",
    ]
)
plain = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=12)
class_lists = st.lists(
    tricky | plain,
    min_size=1,
    max_size=5,
    unique_by=lambda name: unicodedata.normalize("NFKC", name),
)


@st.composite
def uploads(draw):
    classes = tuple(name for name in draw(class_lists) if name.isprintable()) or ("one",)
    counts = draw(st.lists(st.integers(0, 10**9), min_size=len(classes), max_size=len(classes)))
    counts[0] += sum(counts) == 0
    parts = {}
    for name in draw(
        st.lists(
            st.sampled_from(["classifier", "decoder", "knowledge", "x-2"]),
            min_size=1,
            max_size=3,
            unique=True,
        )
    ):
        spec = ModelSpec.parse(draw(st.sampled_from(DECODERS if name == "decoder" else NETS)))
        state = spec.build(SHAPE, len(classes), draw(st.integers(0, 2**31))).state_dict()
        state = {
            key: odd(key, tensor) if draw(st.booleans()) else tensor
            for key, tensor in state.items()
        }
        mean, std = draw(st.floats(-2, 2)), draw(st.floats(1e-3, 1e3))
        parts[name] = Part(spec, state, classes, Preprocess(SHAPE, (mean,), (std,)))
    told = draw(st.booleans())
    number = sum(counts) if told else draw(st.integers(1, 10**12))
    return Upload(
        draw(clients),
        parts,
        number,
        tuple(counts) if told else None,
        draw(st.integers(1, 99)),
        draw(st.integers(0, 10**6)),
    )


def odd(name, tensor):
    """The same tensor with numbers in it that careless code loses."""
    tensor = tensor.clone()
    if tensor.is_floating_point():
        numbers = ODD_NUMBERS[: tensor.numel()]
        tensor.view(-1)[: len(numbers)] = numbers.abs() if name.endswith("running_var") else numbers
    return tensor


@given(uploads())
@settings(max_examples=40)
def test_decode_restores_every_bit(upload):
    file = encode(upload)
    back = decode(file)
    assert replace(back, parts={}) == replace(upload, parts={})
    assert set(back.parts) == set(upload.parts)
    for name, part in upload.parts.items():
        twin = back.parts[name]
        assert (twin.spec, twin.classes, twin.preprocess) == (
            part.spec,
            part.classes,
            part.preprocess,
        )
        assert same_bits(twin.state, part.state)
    assert encode(upload) == file, "encoding is not deterministic"
    assert encode(back) == file


def test_decode_keeps_signed_zeros_and_denormals():
    state = dict(SMALL.parts["classifier"].state)
    name = next(iter(state))
    state[name] = odd(name, state[name])
    upload = replace(SMALL, parts={"classifier": replace(SMALL.parts["classifier"], state=state)})
    kept = decode(encode(upload)).parts["classifier"].state[name].view(-1)[: len(ODD_NUMBERS)]
    assert raw(kept) == raw(ODD_NUMBERS)


def test_encode_ignores_the_order_of_parts_and_tensors():
    part = SMALL.parts["classifier"]
    backwards = replace(part, state=dict(reversed(part.state.items())))
    one = replace(
        SMALL,
        parts={
            "classifier": part,
            "knowledge": replace(part, state={k: v + 1 for k, v in part.state.items()}),
        },
    )
    other = replace(one, parts={"knowledge": one.parts["knowledge"], "classifier": backwards})
    assert encode(one) == encode(other)


def test_encode_parts_with_shared_weights():
    part = SMALL.parts["classifier"]
    back = decode(encode(replace(SMALL, parts={"classifier": part, "knowledge": part})))
    assert same_bits(back.parts["knowledge"].state, part.state)


def test_encode_views_into_one_stack():
    part = SMALL.parts["classifier"]
    stacked = {name: torch.stack([tensor * 0, tensor]) for name, tensor in part.state.items()}
    views = replace(part, state={name: tensor[1] for name, tensor in stacked.items()})
    turned = replace(
        part,
        state={
            name: tensor.t().contiguous().t() if tensor.dim() == 2 else tensor
            for name, tensor in part.state.items()
        },
    )
    assert encode(replace(SMALL, parts={"classifier": views})) == FILE
    assert encode(replace(SMALL, parts={"classifier": turned})) == FILE


def test_read_digest_is_of_the_whole_blanked_file():
    blanked = FILE.replace(read_digest(FILE).encode(), b"0" * 64)
    assert hashlib.sha256(blanked).hexdigest() == read_digest(FILE)


def test_write_bundle_and_read_bundle(tmp_path):
    path = tmp_path / "deep" / "client.attar"
    assert write_bundle(path, SMALL) == path.stat().st_size == len(FILE)
    assert path.read_bytes() == FILE
    assert encode(read_bundle(str(path))) == FILE


# --- every byte -----------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [0x01, 0x02, 0x20, 0x80, 0xFF])
def test_decode_refuses_every_flipped_header_byte(pattern):
    for place in range(HEADER_END):
        changed = bytearray(FILE)
        changed[place] ^= pattern
        with pytest.raises(BundleError):
            decode(bytes(changed))


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_decode_refuses_any_flipped_byte(place, pattern):
    changed = bytearray(FILE)
    changed[place] ^= pattern
    with pytest.raises(BundleError):
        decode(bytes(changed))


def test_decode_refuses_every_cut():
    for length in range(len(FILE)):
        with pytest.raises(BundleError):
            decode(FILE[:length])


@given(st.binary(min_size=1, max_size=20))
@settings(max_examples=50)
def test_decode_refuses_appended_bytes(tail):
    with pytest.raises(BundleError):
        decode(FILE + tail)


@given(st.integers(0, len(FILE)), st.binary(max_size=12), st.integers(0, 12))
@example(8, b"", 0)
@settings(max_examples=200)
def test_decode_refuses_splices(place, new, gone):
    changed = FILE[:place] + new + FILE[place + gone :]
    if changed == FILE:
        assert encode(decode(changed)) == FILE
    else:
        with pytest.raises(BundleError):
            decode(changed)


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_decode_refuses_noise(data):
    with pytest.raises(BundleError):
        decode(data)


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_decode_refuses_noise_behind_a_good_length(data):
    with pytest.raises(BundleError):
        decode(len(data).to_bytes(8, "little") + data)


# --- named refusals -------------------------------------------------------------------------------

HUGE = int("9" * 400)

MANIFESTS = {
    "newer schema": (
        lambda m: m.update(schema=3),
        "schema 3, this attar reads schema 1 and 2",
    ),
    "schema of a claim without one": (lambda m: m.update(schema=2), "parts, privacy, round"),
    "a claim that is a list": (lambda m: m.update(schema=2, privacy=[]), "privacy must have"),
    "a claim that is huge": (
        lambda m: m.update(
            schema=2,
            label_counts=None,
            privacy={
                "epsilon": 10**400,
                "delta": 1e-400,
                "clip": True,
                "noise_multiplier": "1",
                "sampling_rate": [],
                "steps": 1.5,
                "accountant": {},
                "unit": None,
            },
        ),
        "privacy.epsilon must be a number",
    ),
    "schema true": (lambda m: m.update(schema=True), "schema True"),
    "schema 1.0": (lambda m: m.update(schema=1.0), "schema 1.0"),
    "schema a list": (lambda m: m.update(schema=[1]), "schema"),
    "no schema": (lambda m: m.pop("schema"), "schema None"),
    "missing entry": (lambda m: m.pop("round"), "exactly the entries"),
    "extra entry": (lambda m: m.update(extra=1), "exactly the entries"),
    "version not a text": (lambda m: m.update(attar={"x": 1}), "attar must be a text"),
    "client a path": (lambda m: m.update(client="../../etc/passwd"), "client must be"),
    "client absolute": (lambda m: m.update(client="/root"), "client must be"),
    "client hidden": (lambda m: m.update(client=".ssh"), "client must be"),
    "client newline": (lambda m: m.update(client="a\n"), "client must be"),
    "client backslash": (lambda m: m.update(client="a\\b"), "client must be"),
    "client empty": (lambda m: m.update(client=""), "client must be"),
    "client long": (lambda m: m.update(client="a" * 65), "client must be"),
    "client a number": (lambda m: m.update(client=7), "client must be"),
    "examples true": (
        lambda m: m.update(num_examples=True, label_counts=None),
        "num_examples must be a whole number",
    ),
    "examples zero": (
        lambda m: m.update(num_examples=0, label_counts=None),
        "num_examples must be a whole number from 1",
    ),
    "examples a float": (
        lambda m: m.update(num_examples=3.0, label_counts=None),
        "num_examples must be a whole number",
    ),
    "examples huge": (
        lambda m: m.update(num_examples=HUGE, label_counts=None),
        "num_examples must be a whole number",
    ),
    "round zero": (lambda m: m.update(round=0), "round must be"),
    "round null": (lambda m: m.update(round=None), "round must be"),
    "steps negative": (lambda m: m.update(local_steps=-1), "local_steps must be"),
    "counts too few": (
        lambda m: m.update(label_counts=[m["num_examples"]]),
        "label_counts has 1 entries",
    ),
    "counts too many": (
        lambda m: m.update(label_counts=[m["num_examples"], 0, 0]),
        "label_counts has 3 entries",
    ),
    "counts off by one": (
        lambda m: m["label_counts"].__setitem__(0, m["label_counts"][0] + 1),
        "label_counts add up to",
    ),
    "counts negative": (
        lambda m: m.update(label_counts=[-1, m["num_examples"] + 1]),
        "label_counts must be",
    ),
    "counts booleans": (lambda m: m.update(label_counts=[True, False]), "label_counts must be"),
    "counts a dict": (lambda m: m.update(label_counts={"a": 1}), "label_counts must be"),
    "parts a list": (lambda m: m.update(parts=[m["parts"]]), "parts must be"),
    "no parts": (lambda m: m.update(parts={}), "parts must be"),
    "nine parts": (
        lambda m: m.update(parts={f"p{i}": part_of(m) for i in range(9)}),
        "parts must be",
    ),
    "part name a path": (lambda m: m.update(parts={"../x": part_of(m)}), "parts must be"),
    "part a list": (lambda m: m["parts"].update(classifier=[]), "a part must have exactly"),
    "part lacks options": (lambda m: part_of(m).pop("options"), "a part must have exactly"),
    "unknown net": (lambda m: part_of(m).update(arch="alexnet"), "no net called 'alexnet'"),
    "net not a text": (lambda m: part_of(m).update(arch=None), "arch must be the name of a net"),
    "net a dict": (lambda m: part_of(m).update(arch={}), "arch must be the name of a net"),
    "options a list": (lambda m: part_of(m).update(options=[["hidden", 2]]), "options must map"),
    "option nested": (lambda m: part_of(m)["options"].update(hidden={"a": 1}), "options must map"),
    "option unknown": (lambda m: part_of(m)["options"].update(eval="1"), "no such setting"),
    "option true": (
        lambda m: part_of(m)["options"].update(hidden=True),
        "hidden = True: expected a whole number",
    ),
    "option huge": (lambda m: part_of(m)["options"].update(layers=HUGE), "out of bounds"),
    "option a billion": (lambda m: part_of(m)["options"].update(layers=10**9), "out of bounds"),
    "option negative": (lambda m: part_of(m)["options"].update(layers=-1), "out of bounds"),
    "option large": (
        lambda m: part_of(m)["options"].update(hidden=4096, layers=64),
        "missing tensor",
    ),
    "classes a text": (lambda m: part_of(m).update(classes="ab"), "classes must be a list"),
    "no classes": (lambda m: part_of(m).update(classes=[]), "classes must be a list"),
    "class a number": (lambda m: part_of(m).update(classes=["a", 1]), "class name '1'"),
    "class empty": (lambda m: part_of(m).update(classes=["a", ""]), "class name ''"),
    "class long": (lambda m: part_of(m).update(classes=["a", "x" * 201]), "longer than 200"),
    "class escape": (lambda m: part_of(m).update(classes=["a", "\x1b[2J"]), "not printable"),
    "class surrogate": (lambda m: part_of(m).update(classes=["a", "\ud800"]), "not printable"),
    "class twice": (
        lambda m: part_of(m).update(classes=["a", "a"]),
        "two classes have the same name",
    ),
    "class twice in disguise": (
        lambda m: part_of(m).update(classes=["fi", "\ufb01"]),
        "two classes have the same name",
    ),
    "more classes than outputs": (lambda m: part_of(m)["classes"].append("c"), "has shape [2, 2]"),
    "preprocess a list": (
        lambda m: part_of(m).update(preprocess=[]),
        "preprocess must have exactly",
    ),
    "shape of two": (
        lambda m: part_of(m)["preprocess"].update(input_shape=[16, 16]),
        "input_shape must be three",
    ),
    "shape with true": (
        lambda m: part_of(m)["preprocess"].update(input_shape=[True, 16, 16]),
        "input_shape must be three",
    ),
    "shape huge": (
        lambda m: part_of(m)["preprocess"].update(input_shape=[1, HUGE, 16]),
        "input_shape must be three",
    ),
    "shape too large": (
        lambda m: part_of(m)["preprocess"].update(input_shape=[1, 4096, 4096]),
        "cannot take images",
    ),
    "shape other": (lambda m: part_of(m)["preprocess"].update(input_shape=[1, 8, 8]), "has shape"),
    "two means": (lambda m: part_of(m)["preprocess"].update(mean=[0, 0]), "1 means and stds"),
    "mean a text": (lambda m: part_of(m)["preprocess"].update(mean=["0"]), "preprocess.mean"),
    "mean true": (lambda m: part_of(m)["preprocess"].update(mean=[True]), "preprocess.mean"),
    "mean huge": (lambda m: part_of(m)["preprocess"].update(mean=[HUGE]), "preprocess.mean"),
    "mean beyond float32": (
        lambda m: part_of(m)["preprocess"].update(mean=[1e300]),
        "preprocess.mean",
    ),
    "std zero": (lambda m: part_of(m)["preprocess"].update(std=[0]), "preprocess.std"),
    "std negative": (lambda m: part_of(m)["preprocess"].update(std=[-1.0]), "preprocess.std"),
    "std below float32": (
        lambda m: part_of(m)["preprocess"].update(std=[1e-300]),
        "preprocess.std",
    ),
    "std null": (lambda m: part_of(m)["preprocess"].update(std=[None]), "preprocess.std"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_decode_refuses_forged_manifests_quickly(name):
    change, reason = MANIFESTS[name]
    file = forged(change)
    begun = time.monotonic()
    assert reason in reasons_of(file)
    assert time.monotonic() - begun < 5, "something large was built before it was refused"


def test_repack_can_write_a_good_file():
    assert encode(decode(forged())) == FILE
    assert encode(decode(with_tensors(lambda tensors: None))) == FILE


TEXTS = {
    "duplicate key": (
        lambda text: text.replace('"round":1', '"round":1,"round":2'),
        "appears twice",
    ),
    "nested deeply": (
        lambda text: text.replace('"round":1', '"round":' + "[" * 100_000 + "]" * 100_000),
        "nested too deeply",
    ),
    "too many digits": (
        lambda text: text.replace('"round":1', '"round":' + "1" * 5000),
        "manifest is damaged",
    ),
    "not a number": (lambda text: text.replace('"round":1', '"round":NaN'), "NaN is not a number"),
    "infinite": (
        lambda text: text.replace('"round":1', '"round":-Infinity'),
        "-Infinity is not a number",
    ),
    "infinite in disguise": (
        lambda text: text.replace('"round":1', '"round":1e999'),
        "round must be a whole number",
    ),
    "infinite mean": (
        lambda text: text.replace('"mean":[0.5]', '"mean":[-1e999]'),
        "preprocess.mean",
    ),
    "a list": (lambda text: f"[{text}]", "not a JSON object"),
    "a number": (lambda text: "7", "no sha256"),
    "empty": (lambda text: "", "no sha256"),
    "two hashes": (
        lambda text: text.replace('"round":1', '"round":{"sha256":"' + "0" * 64 + '"}'),
        "more than one",
    ),
    "trailing words": (lambda text: text + "x", "manifest is damaged"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_decode_refuses_forged_manifest_texts(name):
    change, reason = TEXTS[name]
    file = forged(text=change)
    assert file != FILE
    assert reason in reasons_of(file)


def entry(header):
    return header["classifier/head.weight"]


TABLES = {
    "type a list": (lambda h: entry(h).update(dtype=["F32"]), "unsupported type"),
    "type a dict": (lambda h: entry(h).update(dtype={}), "unsupported type"),
    "type unknown": (lambda h: entry(h).update(dtype="F4"), "unsupported type F4"),
    "shape negative": (lambda h: entry(h).update(shape=[-1, 2]), "impossible shape"),
    "shape huge": (lambda h: entry(h).update(shape=[HUGE]), "impossible shape"),
    "shape true": (lambda h: entry(h).update(shape=[True, 2]), "impossible shape"),
    "shape of nine": (lambda h: entry(h).update(shape=[1] * 9), "impossible shape"),
    "shape a text": (lambda h: entry(h).update(shape="22"), "impossible shape"),
    "offsets of three": (
        lambda h: entry(h).update(data_offsets=[0, 1, 2]),
        "impossible shape or place",
    ),
    "offsets negative": (
        lambda h: entry(h).update(data_offsets=[-4, 0]),
        "impossible shape or place",
    ),
    "offsets huge": (
        lambda h: entry(h).update(data_offsets=[0, 2**62]),
        "impossible shape or place",
    ),
    "offsets beyond": (lambda h: entry(h).update(data_offsets=[0, 10**6]), "cut off or padded"),
    "entry a list": (
        lambda h: h.update({"classifier/head.weight": [1]}),
        "not described as safetensors requires",
    ),
    "entry lacks a shape": (
        lambda h: entry(h).pop("shape"),
        "not described as safetensors requires",
    ),
    "tensor of no part": (
        lambda h: h.update({"other/head.weight": entry(h)}),
        "other/head.weight belongs to no part",
    ),
    "tensor twice": (lambda h: h.update({"classifier/more": entry(h)}), "unexpected tensor more"),
    "overlapping tensors": (
        lambda h: entry(h).update(data_offsets=[0, 16]),
        "not a readable safetensors file",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_decode_refuses_forged_tensor_tables(name):
    change, reason = TABLES[name]
    assert reason in reasons_of(forged(table=change))


def test_decode_refuses_further_metadata():
    header, _, weights = unpack(FILE)
    header["__metadata__"]["more"] = "x"
    assert "not alone" in reasons_of(reseal(pack(compact(header), weights)))


def set_first(name, value):
    def change(tensors):
        tensors[name].view(-1)[0] = value

    return change


TENSORS = {
    "missing": (lambda t: t.pop("classifier/head.bias"), "missing tensor head.bias"),
    "extra": (lambda t: t.update({"classifier/extra": torch.zeros(3)}), "unexpected tensor extra"),
    "misshapen": (
        lambda t: t.update({"classifier/head.weight": torch.zeros(2, 3)}),
        "head.weight has shape [2, 3], mlp",
    ),
    "turned": (
        lambda t: t.update({"classifier/trunk.1.weight": torch.zeros(256, 2)}),
        "has shape [256, 2]",
    ),
    "half": (
        lambda t: t.update({"classifier/head.bias": torch.zeros(2).half()}),
        "head.bias has type float16",
    ),
    "double": (
        lambda t: t.update({"classifier/head.bias": torch.zeros(2).double()}),
        "head.bias has type float64",
    ),
    "integers": (
        lambda t: t.update({"classifier/head.bias": torch.zeros(2, dtype=torch.int64)}),
        "has type int64",
    ),
    "nan": (set_first("classifier/head.bias", float("nan")), "head.bias holds NaN or infinite"),
    "infinite": (
        set_first("classifier/head.weight", float("-inf")),
        "head.weight holds NaN or infinite",
    ),
    "empty": (lambda t: t.clear(), "missing tensor"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_decode_refuses_other_tensors(name):
    change, reason = TENSORS[name]
    assert reason in reasons_of(with_tensors(change))


def test_value_problems_of_negative_variances_and_counters():
    variance = next(
        name
        for name in tiny_upload("x", "resnet20").parts["classifier"].state
        if name.endswith("running_var")
    )
    assert f"{variance} holds negative" in reasons_of(
        with_tensors(set_first(f"classifier/{variance}", -1e-9), "resnet20")
    )
    counter = variance.replace("running_var", "num_batches_tracked")
    assert f"{counter} is negative" in reasons_of(
        with_tensors(set_first(f"classifier/{counter}", -1), "resnet20")
    )


def test_decode_names_all_problems_of_a_file():
    def change(manifest):
        manifest.update(client="../x", round=0, num_examples=0)

    text = reasons_of(forged(change))
    assert all(word in text for word in ("client must be", "round must be", "num_examples must be"))

    def bad_part(manifest):
        part_of(manifest).update(arch="alexnet", classes=[], preprocess=None)

    text = reasons_of(forged(bad_part))
    assert all(word in text for word in ("alexnet", "classes must be", "preprocess must have"))


def test_printable_reasons_hold_no_control_characters():
    text = reasons_of(forged(table=lambda h: h.update({"classifier/\x1b[2J\u202e": entry(h)})))
    assert "unexpected tensor" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


# --- files ----------------------------------------------------------------------------------------


def pickled():
    return pickle.dumps({"weights": [1.0, 2.0]})


def zipped():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("data.pkl", pickled())
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no header"),
        (b"1234567", "no header"),
        (pickled(), ".attar"),
        (zipped(), ".attar"),
        (save({"a": torch.ones(2)}), "manifest"),
    ],
    ids=["empty", "seven bytes", "pickle", "zip", "other safetensors"],
)
def test_read_bundle_refuses_other_formats(tmp_path, content, reason):
    path = tmp_path / "x.attar"
    path.write_bytes(content)
    with pytest.raises(BundleError, match=reason) as caught:
        read_bundle(path)
    assert str(path) in str(caught.value)


def test_read_bundle_never_unpickles(tmp_path):
    path = tmp_path / "x.attar"
    path.write_bytes(pickle.dumps(_Bomb(str(tmp_path / "exploded"))))
    with pytest.raises(BundleError):
        read_bundle(path)
    assert not (tmp_path / "exploded").exists()


class _Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_read_bundles_refuses_missing_files_and_folders(tmp_path):
    with pytest.raises(BundleError) as caught:
        read_bundles([tmp_path, tmp_path / "none.attar"])
    assert f"{tmp_path}: this is a folder" in str(caught.value)
    assert f"{tmp_path / 'none.attar'}: No such file" in str(caught.value)
    assert "ask the sender" in str(caught.value)
    with pytest.raises(BundleError, match="check the path"):
        read_bundles([tmp_path / "none.attar"])


def test_read_bundle_checks_limits_before_reading(tmp_path, monkeypatch):
    path = tmp_path / "x.attar"
    write_bundle(path, SMALL)
    monkeypatch.setattr(container, "MAX_FILE", len(FILE) - 1)
    for read in ("read_bytes", "open"):
        monkeypatch.setattr(type(path), read, lambda *_: pytest.fail("it was read"))
    with pytest.raises(BundleError, match="larger than the limit"):
        read_bundle(path)
    with pytest.raises(BundleError, match="larger than the limit"):
        decode(FILE)
    with pytest.raises(BundleError, match="too large"):
        encode(SMALL)
    monkeypatch.setattr(container, "MAX_FILE", len(FILE))
    monkeypatch.setattr(container, "MAX_HEADER", HEADER_END - 9)
    with pytest.raises(BundleError, match="header is larger than"):
        decode(FILE)
    with pytest.raises(BundleError, match="too large"):
        encode(SMALL)
    monkeypatch.setattr(container, "MAX_HEADER", HEADER_END - 8)
    monkeypatch.setattr(container, "MAX_TENSORS", 3)
    with pytest.raises(BundleError, match="4 tensors are more than the limit"):
        decode(FILE)
    monkeypatch.setattr(container, "MAX_TENSORS", 4)
    assert encode(decode(FILE)) == FILE


def test_decode_refuses_a_header_of_a_terabyte():
    assert "header is larger" in reasons_of((2**40).to_bytes(8, "little") + FILE[8:])
    assert "header is larger" in reasons_of(b"\xff" * 8 + FILE[8:])


def test_read_bundles_refuses_two_uploads_of_one_client(tmp_path):
    paths = [tmp_path / "one.attar", tmp_path / "two.attar", tmp_path / "three.attar"]
    for path, upload in zip(
        paths, [SMALL, tiny_upload("other"), replace(SMALL, round=2)], strict=True
    ):
        write_bundle(path, upload)
    with pytest.raises(BundleError) as caught:
        read_bundles(paths)
    assert len(caught.value.problems) == 1
    assert str(paths[2]) in caught.value.problems[0]
    assert str(paths[0]) in caught.value.problems[0]


def test_read_bundles_names_all_problems_of_all_files(tmp_path):
    good, bad = encode(tiny_upload("good")), bytearray(FILE)
    bad[-1] ^= 1
    contents = {
        "good.attar": good,
        "again.attar": good,
        "changed.attar": bytes(bad),
        "cut.attar": FILE[:-1],
        "empty.attar": b"",
        "forged.attar": forged(lambda manifest: part_of(manifest).update(arch="alexnet")),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleError) as caught:
        read_bundles(tmp_path / name for name in [*contents, "missing.attar"])
    problems = "\n".join(caught.value.problems)
    for name in {*contents, "missing.attar"} - {"good.attar"}:
        assert f"{tmp_path / name}: " in problems
    assert "sha256 mismatch" in problems
    assert f"{tmp_path / 'good.attar'}: " not in problems


# --- writing --------------------------------------------------------------------------------------


def test_write_bundle_keeps_the_old_file_in_a_crash(tmp_path, monkeypatch):
    path = tmp_path / "x.attar"
    write_bundle(path, SMALL)

    def crash(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(path, replace(SMALL, round=9))
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(KeyboardInterrupt):
        write_bundle(path, replace(SMALL, round=9))
    assert path.read_bytes() == FILE
    assert list(tmp_path.iterdir()) == [path]


def changed_part(**changes):
    return {"classifier": replace(SMALL.parts["classifier"], **changes)}


@pytest.mark.parametrize(
    "changes",
    [
        {"client": "a/b"},
        {"client": ""},
        {"num_examples": 0, "label_counts": None},
        {"num_examples": 1.5, "label_counts": None},
        {"num_examples": SMALL.num_examples + 1},
        {"label_counts": (SMALL.num_examples,)},
        {"label_counts": (SMALL.num_examples + 1, -1)},
        {"round": 0},
        {"local_steps": -1},
        {"parts": {}},
        {"parts": {"Classifier": SMALL.parts["classifier"]}},
        {"parts": {f"p{i}": SMALL.parts["classifier"] for i in range(9)}},
        {"parts": changed_part(classes=("a", "a"))},
        {"parts": changed_part(classes=("a", "b", "c"))},
        {"parts": changed_part(spec=ModelSpec("alexnet"))},
        {"parts": changed_part(spec=ModelSpec("mlp", (("layers", 10**9),)))},
        {"parts": changed_part(preprocess=Preprocess(SHAPE, (1e300,), (1.0,)))},
        {
            "parts": changed_part(
                state={
                    name: t * float("nan") for name, t in SMALL.parts["classifier"].state.items()
                }
            )
        },
        {"parts": changed_part(state={})},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_write_bundle_refuses_what_could_not_be_read(tmp_path, changes):
    with pytest.raises(BundleError):
        write_bundle(tmp_path / "x.attar", replace(SMALL, **changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("role", "net", "told"),
    [
        ("classifier", "cvae-small-decoder:hidden=4", "is a decoder, not a classifier"),
        ("knowledge", "cvae-small:hidden=4", "is a cvae, not a classifier"),
        ("decoder", "mlp:hidden=2,layers=1", "is a classifier, not a decoder"),
        ("decoder", "cvae-small:hidden=4", "is a cvae, not a decoder"),
    ],
)
def test_role_problems_refuse_a_net_of_another_kind(role, net, told):
    spec = ModelSpec.parse(net)
    state = spec.build(SHAPE, 2, seed=0).state_dict()
    part = Part(spec, state, ("a", "b"), Preprocess.plain(SHAPE))
    upload = Upload("x", {role: part}, 3, (1, 2))
    with pytest.raises(BundleError, match=told):
        encode(upload)
    with pytest.raises(BundleError, match=told):
        decode(encode_unchecked(upload))


# --- weights that stay in their files -------------------------------------------------------------


def test_read_bundles_leaves_weights_in_checked_files(tmp_path):
    upload = tiny_upload("ann", "resnet20")
    path = tmp_path / "ann.attar"
    write_bundle(path, upload)
    (lazy,) = read_bundles([path], resident=False)
    assert encode(lazy) == path.read_bytes()
    state = lazy.parts["classifier"].state
    assert list(state) == list(read_bundle(path).parts["classifier"].state)
    assert "no such tensor" not in state
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match="was changed while it was in use"):
        state["head.weight"]
    with pytest.raises(BundleError, match="sha256"):
        read_bundles([path], resident=False)


@pytest.mark.parametrize(
    "method",
    [Dense(epochs=2, generator_steps=2, batch_size=8, noise=8, generator_width=4), FedAvg()],
)
def test_fuse_from_weights_in_files_gives_the_same_model(tmp_path, method):
    world = tiny_world(("resnet20", "lenet5", "resnet20", "resnet20"))
    paths = [tmp_path / f"{upload.client}.attar" for upload in world.uploads]
    for path, upload in zip(paths, world.uploads, strict=True):
        write_bundle(path, upload)
    if isinstance(method, FedAvg):
        paths, uploads = [paths[0], *paths[2:]], [world.uploads[0], *world.uploads[2:]]
    else:
        uploads = world.uploads
    plain = fuse(uploads, method, world.server).result
    lazy = fuse(
        read_bundles(paths, resident=False), method, replace(world.server, teacher_memory=1)
    ).result
    for one, other in zip(plain.models.values(), lazy.models.values(), strict=True):
        for name, value in one.state.items():
            torch.testing.assert_close(value, other.state[name], rtol=1e-3, atol=1e-4)


def test_decode_reads_a_header_whose_length_looks_like_a_pickle():
    """A pickle begins with 0x80 and its version; so does the length of a header of 640, 896,
    1,152 or 1,408 bytes.
    """
    alike = []
    for letters in range(1, 180):
        data = encode(tiny_upload("ann", "mlp:hidden=2,layers=1", ("a", "b" * letters)))
        if data[0] == 0x80 and 2 <= data[1] <= 5:
            alike.append(decode(data).client)
    assert alike
    assert set(alike) == {"ann"}
