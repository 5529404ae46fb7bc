"""What a reader of a page has before the first command: images, files of partners, a net."""

import re
import shutil
from pathlib import Path

import torch
from commands import run
from PIL import Image

from attar.core import Preprocess
from attar.data import load_data
from attar.testing import tiny_upload
from attar.uploads import write_bundle

ROOT = Path(__file__).parents[2]
DIAGNOSES = ("normal", "pneumonia")  # folders of photos; their pictures are bags and boots
PHOTOS = {"normal": "Bag", "pneumonia": "Ankle boot"}
MODULE = """
import torch

class OurResNet(torch.nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(
            torch.nn.Conv2d(3, 4, 16, 16), torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, num_classes),
        )
"""


def write_photos(folder, each=12, part="train", size=None):
    """Real pictures in folders by class, no two neighbours of the same size.

    Args:
        folder: Its sub-folders are the classes.
        each: Pictures of a class.
        part: Of fashion-mini.
        size: Of all pictures, if they have one.
    """
    data = load_data("fashion-mini")
    split = getattr(data, part)
    for name, pictured in PHOTOS.items():
        (folder / name).mkdir(parents=True)
        chosen = (split.labels == data.classes.index(pictured)).nonzero()[0][:each]
        for number, place in enumerate(chosen):
            picture = Image.fromarray(split.images[place, :, :, 0])
            shape = (size, size) if size else (40 + 7 * (number % 5), 36 + 5 * (number % 4))
            picture.resize(shape).save(folder / name / f"{number}.png")


def hospitals(folder):
    """Images of one partner, test images of the server, the file of another partner."""
    write_photos(folder / "xrays")
    write_photos(folder / "scans")
    write_photos(folder / "own-test-images", 5, part="test")
    for number in (1, 2):
        scan = folder / "own-test-images" / "normal" / f"{number}.png"
        (folder / f"scan{number}.png").write_bytes(scan.read_bytes())
    write_bundle(folder / "oslo.attar", upload("oslo"))


def scans_of_one_size(folder):
    """Images of one partner that need not be scaled."""
    write_photos(folder / "xrays", size=28)
    write_photos(folder / "scans", 6, size=28)


def upload(client, classes=DIAGNOSES):
    """An untrained net for grey pictures of 28 x 28 pixels."""
    preprocess = Preprocess.centred((1, 28, 28))
    return tiny_upload(client, "lenet5", classes, preprocess=preprocess)


def dossier(folder):
    """A partner's images and upload, a key, and images of others."""
    write_photos(folder / "xrays", size=28)
    write_photos(folder / "other-xrays", part="test", size=28)
    write_bundle(folder / "berlin.attar", upload("berlin"))
    run("keygen", "berlin.key", cwd=folder)


def trained_scans(folder):
    """A decoder of the pictures in ``scans``."""
    write_photos(folder / "scans")
    words = "train --data folder:scans?size=28 --kind cvae --epochs 1 --client berlin"
    run(*words.split(), "--out", "berlin.attar", cwd=folder)


def own_module(folder):
    """A module and its weights, with the factory of the page."""
    page = ROOT / "docs" / "foreign-models.md"
    (factory,) = re.findall(r"```py\n# our_model.py\n(.*?)```", page.read_text(), re.S)
    (folder / "our_model.py").write_text(MODULE + factory)
    scope = {}
    exec(MODULE + factory, scope)
    torch.save(scope["make"]().state_dict(), folder / "ours.pt")


def sums_of_three(folder):
    """Sums of a backbone: of two clients, and of one that joins later."""
    for name in ("berlin", "oslo", "new"):
        write_photos(folder / name, 6, size=64)
        place = "sent" if name == "oslo" else "."
        words = f"train --backbone efficientnet-lite0 --features 32 --data folder:{name}"
        out = folder / place / f"{name}.attar"
        run(*words.split(), "--client", name, "--out", out, cwd=folder)
    (folder / "sent" / "berlin.attar").write_bytes((folder / "berlin.attar").read_bytes())
    write_photos(folder / "test", 5, part="test", size=64)


def repository(folder):
    """What pages take from the repository: examples, recipes, records."""
    for name in ("examples", "recipes"):
        (folder / name).symlink_to(ROOT / name)


def records(folder):
    """Records of this repository, which the page packs, and a bench with some of them."""
    repository(folder)
    shutil.copytree(ROOT / "results", folder / "results")
    (folder / "bench" / "records").mkdir(parents=True)
    for path in sorted((ROOT / "results").rglob("fedmitr*.jsonl.xz"))[:1]:
        shutil.copy(path, folder / "bench" / "records")


# Between two commands of a page.


def fused_hospitals(folder):
    """Uploads of two partners, the model that they became, and test images of the server."""
    hospitals(folder)
    write_bundle(folder / "berlin.attar", upload("berlin"))
    run("fuse", "berlin.attar", "oslo.attar", "--method", "ensemble", "--out", "fused", cwd=folder)


def trusted_keys(folder):
    """The server's list, from the partner's public key."""
    (folder / "keys.toml").write_text((folder / "berlin.pub").read_text())


def one_suspect(folder):
    """Uploads of four partners."""
    clear(folder)
    for number in range(4):
        write_bundle(folder / f"client-{number}.attar", upload(f"client-{number}"))


def pets(folder):
    """Partners with different names for the same classes."""
    clear(folder)
    write_bundle(folder / "ann.attar", upload("ann", ("cat", "dog")))
    write_bundle(folder / "bob.attar", upload("bob", ("hound", "kitty")))
    (folder / "names.toml").write_text('kitty = "cat"\nhound = "dog"\n')


def clear(folder):
    """Take away uploads, signatures and what was fused."""
    for path in [*folder.glob("*.attar"), *folder.glob("*.sig")]:
        path.unlink()
    shutil.rmtree(folder / "fused", ignore_errors=True)


def public_key(folder):
    """The key that Oslo sent, and no folder of an earlier try."""
    (folder / "network").rename(folder / "first network")
    (folder / "node.key.pub").rename(folder / "oslo.pub")
