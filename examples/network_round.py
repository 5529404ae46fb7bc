"""A real federation on one machine: a server and three partners as processes of their own, with
encrypted connections, and nothing shared but a port.

Each partner has a folder of its own with its pictures and its key, and trains when the server asks.
The server has no pictures while it fuses; at the end the model is measured on test pictures.

Run it:   pip install 'attar[flower]'; python examples/network_round.py
It takes 45 seconds of a processor, of which most is the start of Flower's programs.
docs/consortium.md has the same steps for partners on different machines.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import attar

PARTNERS = {"berlin": "lenet5", "oslo": "mlp", "rome": "cnn1"}
MINUTES = 10
# All three nets, each weighted by class and image.
FUSE = ["--fuse", "ensemble", "--set", "rule=accord"]
ATTAR = [sys.executable, "-m", "attar"]
# Where Flower's programs are, and one thread for each process: they share this machine.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
ENVIRONMENT = {**os.environ, "PATH": PATH, "OMP_NUM_THREADS": "1"}


def write_pictures(home: Path) -> None:
    """Give each partner a file of pictures in a folder of its own."""
    data = attar.load_data("fashion-mini")
    split = attar.partition(data.train.labels, "dirichlet:0.5", clients=len(PARTNERS), seed=0)
    for name, indices in zip(PARTNERS, split.clients, strict=True):
        (home / name).mkdir()
        own = data.train.take(indices)
        classes = np.array(data.classes)
        np.savez(home / name / "pictures.npz", x=own.images, y=own.labels, classes=classes)


def free_port() -> int:
    """A TCP port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start ``attar`` in a folder; what it says is shown when it has ended."""
    return subprocess.Popen(
        [*ATTAR, *words], cwd=folder, env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def run_round(home: Path) -> None:
    """Make the keys, open the round, let the partners connect, and wait for all of them."""
    address = f"127.0.0.1:{free_port()}"
    words = ["network", "init", *PARTNERS, "--address", address, "--out", "network"]
    subprocess.run(
        [*ATTAR, *words], cwd=home, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL
    )
    processes = {}
    try:
        opened = ["network", "server", "server", "--minutes", str(MINUTES), "--late", "0"]
        processes["server"] = start([*opened, *FUSE, "--out", "fused"], home / "network")
        for name, net in PARTNERS.items():
            shutil.move(home / "network" / name, home / name / "kit")  # handed over
            train = f"attar train --data npz:pictures.npz --client {name} --net {net} --epochs 5"
            words = ["network", "client", "kit", "--bundle", f"{name}.attar", "--train", train]
            processes[name] = start(words, home / name)
        for name, process in processes.items():
            told, _ = process.communicate(timeout=60 * MINUTES)
            print(f"--- {name} ---\n{told.strip()}")
            if process.returncode:
                raise SystemExit(f"{name} ended with {process.returncode}")
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def main() -> None:
    """Run it in a folder that is deleted at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        write_pictures(home)
        run_round(home)
        data = attar.load_data("fashion-mini")
        inbox = home / "network" / "server" / "inbox"
        for path in sorted(inbox.glob("*.attar")):
            alone = attar.Classifier(attar.read_bundle(path).parts["classifier"])
            accuracy = attar.evaluate_on(alone, data.test, data.classes).accuracy
            print(f"{path.stem} alone: {accuracy:.3f}")
        model = attar.load_model(home / "network" / "fused")
        print(f"fused: {attar.evaluate_on(model, data.test, data.classes).accuracy:.3f}")


if __name__ == "__main__":
    main()
