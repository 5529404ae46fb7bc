"""Fuzz the bundle reader: mutations of valid files, each of which must be read or refused, soon
and in little memory. What is read must also be described, priced and asked about a few images, as
``attar inspect`` and ``attar fuse`` do.

    python tests/fuzz/bundle_fuzz.py --minutes 15

Hypothesis draws the mutations: raw bytes, or a change of the header, the manifest or the weights
under a new and right seal, which gets behind the hash. Where ``atheris`` can be imported,
``--engine atheris`` is led by the coverage of the reader instead. Anything but an Upload or a
BundleError ends the run with the file in ``--keep``.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path

from corpus import GOOD, peak
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from attar.errors import AttarError, BundleError
from attar.fusion import check_price, find_broken_answers, server_for
from attar.methods import METHODS
from attar.privacy import describe_upload, summarise_upload
from attar.running import Budget
from attar.testing import tiny_decoder, tiny_statistics, tiny_sums, tiny_upload
from attar.uploads import decode, encode
from forge import compact, pack, repack, reseal, unpack

SECONDS = 5.0  # for one file
MEMORY = 500 * 2**20  # over that of the first minute's reading
SEEDS = (
    GOOD,
    encode(tiny_upload("lenet", "lenet5", ("a", "b", "c"))),
    encode(tiny_upload("quiet", "resnet20", ("a", "b"), counts=False)),
    encode(tiny_decoder("weak")),
    encode(tiny_statistics(tiny_upload("told", "lenet5", ("a", "b", "c")))),
    encode(tiny_sums("added")),
)
BUDGET = Budget(memory=2**30, work=0.1)

numbers = st.integers(-(2**70), 2**70) | st.sampled_from([0, 1, -1, 2**31, 2**40, 2**63, 10**30])
scalars = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
)


class Failure(Exception):
    """What the reader must not do."""


class Reader:
    """Reads files, counts them, and keeps the one that went wrong."""

    def __init__(self, keep):
        self.keep, self.read, self.refused, self.slowest = keep, 0, 0, 0.0
        self.left_out = 0
        for file in SEEDS:
            self._look(decode(file))
        self.at_rest = peak(anew=True)

    def __call__(self, file):
        begun = time.monotonic()
        try:
            upload = decode(file)
            self.read += 1
            self._look(upload)
        except BundleError as error:
            self.refused += 1
            if not error.problems or len(str(error)) > 10_000:
                raise self._failed(file, f"a message of {len(str(error))} letters") from None
        except Exception as error:
            raise self._failed(file, f"{type(error).__name__}: {error}") from error
        took = time.monotonic() - begun
        self.slowest = max(self.slowest, took)
        if took > SECONDS:
            raise self._failed(file, f"{took:.1f} seconds")
        if peak() - self.at_rest > MEMORY:
            raise self._failed(file, f"{(peak() - self.at_rest) / 2**20:.0f} MiB")

    def _look(self, upload):
        """What happens to a file that was read, before a method sees it."""
        describe_upload(upload, 1)
        summarise_upload(upload, 1)
        try:
            check_price([upload], server_for([upload]), METHODS["ensemble"](), BUDGET)
        except AttarError:
            self.left_out += 1
            return
        self.left_out += bool(find_broken_answers([upload]))

    def _failed(self, file, why):
        self.keep.mkdir(parents=True, exist_ok=True)
        place = self.keep / f"failed-{len(file)}-{abs(hash(file)) % 10**8}.attar"
        place.write_bytes(file)
        return Failure(f"{why}; the file is {place}")

    def outcome(self, **more):
        files = self.read + self.refused
        grew = peak() - self.at_rest
        return {
            "files": files,
            "read": self.read,
            "refused": self.refused,
            "left_out": self.left_out,
            "slowest": round(self.slowest, 3),
            "grew": grew,
            **more,
        }


@st.composite
def mutations(draw):
    """A valid file with raw bytes changed, or changed inside and sealed anew."""
    file = draw(st.sampled_from(SEEDS))
    kind = draw(
        st.sampled_from(
            ["bytes", "cut", "header", "manifest", "table", "text", "weights", "length"]
        )
    )
    if kind == "bytes":
        changed = bytearray(file)
        for _ in range(draw(st.integers(1, 8))):
            changed[draw(st.integers(0, len(file) - 1))] = draw(st.integers(0, 255))
        return reseal(bytes(changed)) if draw(st.booleans()) else bytes(changed)
    if kind == "cut":
        start, end = sorted((draw(st.integers(0, len(file))), draw(st.integers(0, len(file)))))
        return file[:start] + draw(st.binary(max_size=64)) + file[end:]
    if kind == "length":
        return draw(st.integers(0, 2**64 - 1)).to_bytes(8, "little") + file[8:]
    header, manifest, weights = unpack(file)
    if kind == "weights":
        at = draw(st.integers(0, max(0, len(weights) - 4)))
        raw = draw(st.binary(min_size=4, max_size=4))
        weights = weights[:at] + raw + weights[at + 4 :]
    elif kind == "header":
        return reseal(pack(compact(_changed(draw, header)), weights))
    elif kind == "table":
        name = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        header[name] = _changed(draw, header[name])
    elif kind == "manifest":
        manifest = _changed(draw, manifest)
    text = compact(manifest)
    if kind == "text":
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.text(max_size=8)) + text[at + draw(st.integers(0, 8)) :]
    return repack(header, text, weights)


def _changed(draw, value):
    """A JSON value with one thing in it, at any depth, replaced, removed or added."""
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        key = draw(st.sampled_from(sorted(value)))
        fate = draw(st.sampled_from(["inside", "inside", "inside", "gone", "renamed", "more"]))
        rest = {name: inner for name, inner in value.items() if name != key}
        if fate == "gone":
            return rest
        if fate == "renamed":
            return {**rest, draw(st.text(max_size=8)): value[key]}
        if fate == "more":
            return {**value, draw(st.text(max_size=8)): draw(values)}
        return {**value, key: _changed(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _changed(draw, value[at]), *value[at + 1 :]]
    return draw(values)


def by_hypothesis(reader, minutes, start):
    """Rounds of drawn files until the time is up; each round has a seed of its own, named when
    it fails.
    """
    deadline, number = time.monotonic() + 60 * minutes, start
    while time.monotonic() < deadline:
        quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

        @seed(number)
        @settings(
            max_examples=200,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=quiet,
        )
        @given(mutations())
        def one_round(file):
            if time.monotonic() < deadline:
                reader(file)

        one_round()
        number += 1
    return number - start


def by_atheris(reader, minutes):
    """Led by coverage; libFuzzer ends the process itself, so the outcome is printed from its
    last call.
    """
    import atheris

    atheris.instrument_all()
    deadline, draws = time.monotonic() + 60 * minutes, random.Random(0)

    def one(data):
        reader(data)
        if len(data) > 8:
            reader(reseal(data))
        if time.monotonic() > deadline:
            print(json.dumps(reader.outcome(engine="atheris")))
            sys.stdout.flush()
            sys.exit(0)

    corpus = Path(reader.keep) / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(draws.sample(SEEDS, len(SEEDS))):
        (corpus / str(number)).write_bytes(file)
    atheris.Setup([sys.argv[0], str(corpus)], one)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--json", action="store_true")
    given_ = parser.parse_args()
    reader = Reader(given_.keep)
    if given_.engine == "atheris":
        by_atheris(reader, given_.minutes)
        return 0
    try:
        rounds = by_hypothesis(reader, given_.minutes, given_.seed)
    except Failure as failure:
        print(f"FAILED after {reader.read + reader.refused} files: {failure}")
        return 1
    outcome = reader.outcome(engine="hypothesis", rounds=rounds, minutes=given_.minutes)
    print(
        json.dumps(outcome)
        if given_.json
        else "\n".join(f"{name:8} {value}" for name, value in outcome.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
