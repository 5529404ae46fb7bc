"""Run everything that is made to do harm, and write what came of it.

    python tests/hostile/record.py --out build/hostile.json --minutes 2

The corpus of hostile files, every row of the audit (all tests that are marked ``hostile``), and the
three fuzzers for ``--minutes`` each. The status is 1 if anything went through that must not.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

TESTS = Path(__file__).parents[1]
FUZZ = TESTS / "fuzz"


def run_corpus():
    """Every file of the corpus: how many were refused, the slowest, the most memory."""
    done = _python(FUZZ / "corpus.py")
    if done.returncode:
        return {"failed": done.stderr[-500:]}
    found = json.loads(done.stdout)
    missed = [name for name, one in found.items() if one["told"] is None]
    return {
        "cases": len(found),
        "refused": len(found) - len(missed),
        "slowest_seconds": round(max(one["seconds"] for one in found.values()), 2),
        "peak_bytes": max(one["grew"] for one in found.values()),
        **({"failed": missed} if missed else {}),
    }


def run_audit(quick):
    """Every test that is marked hostile: one for each row of the audit, or more."""
    marked = "hostile and not slow" if quick else "hostile"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            marked,
            f"--junitxml={report}",
        ]
        done = _python(*words, TESTS / "hostile", TESTS / "unit" / "test_hostile.py")
        if not report.exists():
            return {"failed": done.stdout[-500:] + done.stderr[-500:]}
        cases = list(ElementTree.parse(report).iter("testcase"))
    wrong = [
        case.get("name") for case in cases if {"failure", "error"} & {found.tag for found in case}
    ]
    slowest = max(cases, key=lambda case: float(case.get("time", 0)))
    return {
        "cases": len(cases),
        "passed": len(cases) - len(wrong),
        "skipped": sum(any(found.tag == "skipped" for found in case) for case in cases),
        "slowest_seconds": round(float(slowest.get("time", 0)), 1),
        "slowest": slowest.get("name"),
        **({"failed": wrong} if wrong else {}),
    }


def fuzz_bundles(minutes):
    """Mutations of valid uploads, read and described as ``attar inspect`` does."""
    with tempfile.TemporaryDirectory() as folder:
        done = _python(
            FUZZ / "bundle_fuzz.py", "--minutes", str(minutes), "--json", "--keep", folder
        )
    if done.returncode:
        return {"failed": done.stdout[-500:] + done.stderr[-500:]}
    found = json.loads(done.stdout)
    return {
        "cases": found["files"],
        "refused": found["refused"],
        "left_out": found["left_out"],
        "slowest_seconds": found["slowest"],
        "peak_bytes": found["grew"],
    }


def fuzz_graphs(minutes, target):
    """Graphs of packed nets, or uploads that hold them; what is accepted is also run."""
    done = _python(FUZZ / "graph_fuzz.py", "--minutes", str(minutes), "--target", target)
    if done.returncode:
        return {"failed": done.stdout[-500:] + done.stderr[-500:]}
    found = json.loads(done.stdout.strip().splitlines()[-2 if target == "graph" else -1])
    return {
        "cases": found["cases"],
        "refused": found.get("refused", 0),
        "run": found.get("run", 0),
        "peak_bytes": found["grew"],
    }


def _python(*words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=TESTS.parent,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/hostile.json"))
    parser.add_argument("--minutes", type=float, default=2.0, help="of each fuzzer")
    parser.add_argument("--quick", action="store_true", help="leave slow tests out")
    options = parser.parse_args()
    begun = time.monotonic()
    stages = {
        "corpus": run_corpus,
        "fuzz of uploads": partial(fuzz_bundles, options.minutes),
        "fuzz of graphs": partial(fuzz_graphs, options.minutes, "graph"),
        "fuzz of uploads with graphs": partial(fuzz_graphs, options.minutes, "bundle"),
        "audit": partial(run_audit, options.quick),
    }
    record = {}
    for name, stage in stages.items():
        record[name] = stage()
        print(f"{name}: {json.dumps(record[name])}", flush=True)
    scale = 1 if sys.platform == "darwin" else 1024
    record["machine"] = (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    record["seconds"] = round(time.monotonic() - begun)
    record["peak_of_a_process"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * scale
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(isinstance(found, dict) and "failed" in found for found in record.values()))


if __name__ == "__main__":
    sys.exit(main())
