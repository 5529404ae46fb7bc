"""Hostile upload files, each built here by name, with the words that its refusal must contain.

    python tests/fuzz/corpus.py            read every one, print what each cost and said as JSON
    python tests/fuzz/corpus.py --write D  write them as files, for other readers

Every file is sealed anew after it was changed, so that the hash is not what refuses it.
"""

import argparse
import gzip
import json
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from attar.errors import BundleError
from attar.testing import tiny_upload
from attar.uploads import decode, encode
from forge import compact, pack, repack, unpack

GOOD = encode(tiny_upload("small", "mlp:hidden=2,layers=1", ("a", "b")))
HEADER = "classifier/head.weight"


def forged(*, manifest=None, text=None, table=None, weights=None):
    """The good file with its manifest (or its text), its tensor table or its weights changed."""
    header, entries, content = unpack(GOOD)
    if manifest is not None:
        manifest(entries)
    written = compact(entries) if text is None else text(compact(entries))
    if table is not None:
        table(header)
    return repack(header, written, content if weights is None else weights(content))


def with_manifest(**changes):
    return forged(manifest=lambda m: m.update(changes))


def with_part(**changes):
    return forged(manifest=lambda m: m["parts"]["classifier"].update(changes))


def with_tensor(**changes):
    return forged(table=lambda h: h[HEADER].update(changes))


def first_number(raw):
    def change(weights):
        header, _, _ = unpack(GOOD)
        start = header[HEADER]["data_offsets"][0]
        return weights[:start] + raw + weights[start + 4 :]

    return forged(weights=change)


def nested(depth):
    return forged(
        text=lambda text: text.replace('"schema":1', '"schema":' + "[" * depth + "]" * depth)
    )


def many_tensors(number, name):
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    return forged(table=lambda h: h.update({f"{name}{n}": entry for n in range(number)}))


def utf16():
    header, manifest, weights = unpack(GOOD)
    header["__metadata__"] = {"attar": compact(manifest)}
    return pack(compact(header).encode("utf-16"), weights)


MEGA = 2**20
NAMES = {
    "parent": "..",
    "path": "a/../b",
    "absolute": "/etc/passwd",
    "drive": "C:\\x",
    "nul": "a\x00",
    "newline": "berlin\n",
    "return": "berlin\r",
    "full width": "ｂｅｒｌｉｎ",
    "cyrillic": "bеrlin",
    "right to left": "\u202eniltreb",
    "zero width": "ber\u200blin",
    "combining": "be\u0301rlin",
    "emoji": "🎩",
    "leading space": " berlin",
    "flag": "-rf",
    "markup": "[red]x",
    "escape": "\x1b[2J",
    "long": "b" * 65,
    "tilde": "~root",
    "surrogate": "\ud800",
}
CLASSES = {
    "zero width": ["a", "b\u200d"],
    "right to left": ["a", "\u202eb"],
    "look-alikes": ["fi", "\ufb01"],
    "spaces": ["a", "a "],
    "double space": ["a b", "a  b"],
    "blank": ["a", "  "],
    "no-break space": ["a", "b\u00a0"],
    "tab": ["a", "\t"],
    "surrogate": ["a", "\udfff"],
    "tag letters": ["a", "\U000e0061"],
    "a list": ["a", ["b"]],
    "null": ["a", None],
}
WRONG = (None, True, -1, 1.5, "x", [], {}, [[]], {"a": {}}, 10**40, "x" * MEGA)

BUILDERS = {
    # containers
    "empty": (lambda: b"", "no header"),
    "one byte": (lambda: b"\x00", "no header"),
    "header of 2^64 - 1 bytes": (lambda: b"\xff" * 8 + GOOD[8:], "larger than"),
    "header of 2^63 bytes": (lambda: (2**63).to_bytes(8, "little"), "larger than"),
    "header of 16 MiB and one byte": (
        lambda: (16 * MEGA + 1).to_bytes(8, "little") + b" " * (16 * MEGA + 1),
        "larger than",
    ),
    "header of 16 MiB of brackets": (lambda: pack(b"[" * (16 * MEGA), b""), "values"),
    "header of 4 MiB of nested objects": (
        lambda: pack(b'{"a":' * 900_000, b""),
        "nested too deeply",
    ),
    "header of 16 MiB of empty lists": (
        lambda: pack(b"[" + b"[]," * (5 * MEGA) + b"[]]", b""),
        "values",
    ),
    "header of 16 MiB of numbers": (lambda: pack(b"[" + b"0," * (7 * MEGA) + b"0]", b""), "values"),
    "header of 16 MiB of spaces": (lambda: pack(b" " * (16 * MEGA), b""), "damaged"),
    "header of one long text": (lambda: pack(b'"' + b"a" * (15 * MEGA) + b'"', b""), "no manifest"),
    "header in UTF-16": (utf16, ""),
    "header with a byte order mark": (lambda: pack(b"\xef\xbb\xbf" + GOOD[8:], b""), "damaged"),
    "header not in UTF-8": (lambda: pack(b'{"\xff\xfe":1}', b""), "damaged"),
    "pickle": (lambda: b"\x80\x04\x95" + b"\x00" * 5 + b"cos\nsystem\n(S'true'\ntR.", ""),
    "gzip bomb": (lambda: gzip.compress(bytes(32 * MEGA)), ""),
    "two metadata entries": (
        lambda: GOOD.replace(b'{"__metadata__"', b'{"__metadata__":{},"__metadata__"', 1),
        "",
    ),
    "metadata of numbers": (lambda: pack('{"__metadata__":{"attar":7}}', b""), "no manifest"),
    "metadata a list": (lambda: pack('{"__metadata__":["attar"]}', b""), "no manifest"),
    # manifests
    "manifest of 10 MiB of lists": (
        lambda: forged(text=lambda t: t[:-1] + ',"x":[' + "[]," * (3 * MEGA) + "[]]}"),
        "values",
    ),
    "number of a million digits": (
        lambda: forged(text=lambda t: t.replace('"round":1', '"round":' + "9" * MEGA)),
        "damaged",
    ),
    "duplicate key by escape": (
        lambda: forged(text=lambda t: t.replace('"round":1', '"round":1,"\\u0072ound":2')),
        "twice",
    ),
    "NaN": (lambda: forged(text=lambda t: t.replace('"round":1', '"round":NaN')), "NaN"),
    "30,001 classes": (
        lambda: with_part(classes=[str(n) for n in range(30_001)]),
        "classes must be",
    ),
    "30,000 classes": (
        lambda: with_part(classes=[str(n) for n in range(30_000)]),
        "label_counts",
    ),
    "a million label counts": (lambda: with_manifest(label_counts=[0] * 900_000), "label_counts"),
    "a million means": (
        lambda: with_part(
            preprocess={"input_shape": [1, 16, 16], "mean": [0.5] * 900_000, "std": [0.5]}
        ),
        "",
    ),
    "counts that overflow": (
        lambda: with_manifest(label_counts=[2**62, 2**62], num_examples=2**62),
        "add up",
    ),
    "image of 4096 x 4096": (
        lambda: with_part(
            preprocess={"input_shape": [4096, 4096, 4096], "mean": [0] * 4096, "std": [1] * 4096}
        ),
        "",
    ),
    "net named by a path": (lambda: with_part(arch="../../etc/passwd"), "no net called"),
    "net of a megabyte": (lambda: with_part(arch="x" * MEGA), "name of a net"),
    "option named after an attribute": (
        lambda: with_part(options={"__class__": 1}),
        "no such setting",
    ),
    "option of a megabyte": (lambda: with_part(options={"x" * MEGA: 1}), ""),
    "options by the hundred thousand": (
        lambda: with_part(options={f"o{n}": 1 for n in range(100_000)}),
        "at most 64",
    ),
    "net of too many layers": (lambda: with_part(options={"layers": 10**6}), "out of bounds"),
    "parts by the thousand": (
        lambda: with_manifest(parts={f"p{n}": {} for n in range(1000)}),
        "parts must be",
    ),
    # tensors
    "10,000 tiny tensors of no part": (lambda: many_tensors(10_000, "other/t"), "and 9994 more"),
    "10,000 tiny tensors of a part": (
        lambda: many_tensors(10_000, "classifier/t"),
        "and 9997 more",
    ),
    "20,001 tensors": (lambda: many_tensors(20_001, "classifier/t"), "more than the limit"),
    "tensor of 2^320 numbers": (lambda: with_tensor(shape=[2**40] * 8), "has shape"),
    "tensor of nothing, hugely": (lambda: with_tensor(shape=[0, 2**40]), "has shape"),
    "tensor of rank 1000": (lambda: with_tensor(shape=[1] * 1000), "impossible shape"),
    "tensor that ends before it begins": (lambda: with_tensor(data_offsets=[16, 0]), "safetensors"),
    "tensor beyond the end": (lambda: with_tensor(data_offsets=[0, 2**31]), "cut off"),
    "tensors over each other": (lambda: with_tensor(data_offsets=[0, 16]), "safetensors"),
    "tensor name of a megabyte": (
        lambda: many_tensors(1, "classifier/" + "x" * MEGA),
        "unexpected tensor",
    ),
    "tensor name a path": (lambda: many_tensors(1, "../../x"), "belongs to no part"),
    "NaN weight": (lambda: first_number(b"\x00\x00\xc0\x7f"), "NaN or infinite"),
    "signalling NaN weight": (lambda: first_number(b"\x01\x00\x80\x7f"), "NaN or infinite"),
    "infinite weight": (lambda: first_number(b"\x00\x00\x80\xff"), "NaN or infinite"),
    **{
        f"nested {depth} deep": (lambda depth=depth: nested(depth), "")
        for depth in (200, 400, 700, 900, 950, 980, 990, 995, 2000)
    },
    **{
        f"client name: {what}": (lambda name=name: with_manifest(client=name), "client must be")
        for what, name in NAMES.items()
    },
    **{
        f"class names: {what}": (lambda names=names: with_part(classes=names), "")
        for what, names in CLASSES.items()
    },
    **{
        f"cut after {place}": (lambda place=place: GOOD[:place], "cut off")
        for place in (3, 9, 100, len(GOOD) // 2, len(GOOD) - 1)
    },
    **{
        f"{key} of the wrong kind {place}": (
            lambda key=key, value=value: with_manifest(**{key: value}),
            "",
        )
        for key in (
            "schema",
            "attar",
            "client",
            "num_examples",
            "round",
            "local_steps",
            "parts",
            "label_counts",
            "sha256",
        )
        for place, value in enumerate(WRONG)
        if (key, value)
        not in (("label_counts", None), ("client", "x"), ("attar", "x"), ("attar", "x" * MEGA))
    },
    **{
        f"part's {key} of the wrong kind {place}": (
            lambda key=key, value=value: with_part(**{key: value}),
            "",
        )
        for key in ("arch", "classes", "preprocess", "options")
        for place, value in enumerate(WRONG)
        if (key, value) != ("options", {})
    },
}


def peak(*, anew=False):
    """The most memory that this process had, in bytes; on Linux since the last count ``anew``."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def read_all():
    """Every file once: what it said, how long it took, and by how much the process grew over
    what the file itself takes.
    """
    decode(GOOD)
    found = {}
    for name, (build, words) in BUILDERS.items():
        file = build()
        before, begun = peak(anew=True), time.monotonic()
        try:
            decode(file)
            told = None
        except BundleError as error:
            told = str(error)
        found[name] = {
            "told": told,
            "words": words,
            "bytes": len(file),
            "seconds": time.monotonic() - begun,
            "grew": peak() - before,
        }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path)
    where = parser.parse_args().write
    if where is None:
        print(json.dumps(read_all()))
        return
    where.mkdir(parents=True, exist_ok=True)
    for number, (build, _) in enumerate(BUILDERS.values()):
        (where / f"{number:03d}.attar").write_bytes(build())


if __name__ == "__main__":
    main()
