"""What a newcomer types wrong, and what is answered: each answer names the fix."""

import re
import zipfile

import numpy as np
import pytest
import torch
from commands import run
from PIL import Image

from attar.models import save_model
from attar.testing import tiny_upload
from attar.uploads import write_bundle


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two uploads, a model, two folders of images, and files that are not what they seem."""
    home = tmp_path_factory.mktemp("newcomer")
    for client in ("ann", "bob"):
        write_bundle(home / f"{client}.attar", tiny_upload(client))
    save_model(home / "fused", tiny_upload("ann").parts["classifier"], card="# A model\n")
    draws = np.random.default_rng(0)
    for folder in ("xr/normal", "xr/covid", "one/normal"):
        (home / folder).mkdir(parents=True)
        for number in range(6):
            pixels = draws.integers(0, 255, (16, 16), np.uint8)
            Image.fromarray(pixels).save(home / folder / f"{number}.png")
    (home / "empty").mkdir()
    (home / "junk.attar").write_text("not an upload")
    (home / "cut.attar").write_bytes((home / "ann.attar").read_bytes()[:200])
    (home / "net.py").write_text("import torch\n\ndef make():\n    return torch.nn.Flatten()\n")
    (home / "notes.txt").write_text("hello")
    (home / "bad.toml").write_text('methd = "dense"\n')
    np.savez(home / "floats.npz", x=np.zeros((4, 8, 8), np.float32), y=np.zeros(4, np.int64))
    torch.save(torch.nn.Linear(2, 2), home / "module.pt")
    with zipfile.ZipFile(home / "fake.npz", "w"):
        pass
    return home


# what was typed | what is answered | the fix
TABLE = [
    ("trian --data folder:xr", "There is no verb 'trian': did you mean 'train'?", "the verbs are"),
    ("", "No verb is given.", "`attar VERB --help` explains each"),
    ("train", "No training images are named.", "give --data SOURCE or --partition FILE"),
    ("train xr", "'xr' is not an option of attar train.", "images are named with --data folder:xr"),
    ("train --data xr", "There is no data source 'xr'.", "write folder:xr"),
    ("train --data folder:nowhere", "nowhere", "folder"),
    ("train --data folder:empty", "empty", "sub-folder|one folder"),
    ("train --data fashion-mnni", "Did you mean 'fashion-m", "or a name:"),
    ("train --data npz:floats.npz", "images must be uint8, got float32", "it should hold x_train"),
    ("train --data npz:fake.npz", "has another layout", "it should hold x_train"),
    ("train --data folder:xr?sise=64", "unknown options", "known are size"),
    ("train --data folder:xr --net resnet17", "Did you mean 'resnet", "choose one of"),
    ("train --data folder:xr --net lenet5:hidden=3", "hidden", "settings of|options of|it has none"),
    ("train --data folder:xr --kind clasifier", "did you mean classifier?", "choose one of"),
    ("train --data folder:xr --epochs ten", "expected a whole number", "train --help"),
    ("train --data folder:xr --epochs 0", "an untrained net would be sent", "--epochs 1 or more"),
    ("train --data folder:xr --epoch 3", "'--epoch' is not an option", "did you mean --epochs"),
    ("train --data folder:xr --out cat.pt", "an upload ends in .attar", "--out cat.attar"),
    ("inspect junk.attar", "junk.attar", "ask the sender for the file again"),
    ("inspect cut.attar", "cut.attar", "ask the sender for the file again"),
    ("pack --module net.py --weights x.pt --size 8 -o x.attar", "names no factory", "package.module:factory"),
    ("pack --module net:make --weights ann.attar --size 8 -o x.attar",
     "ann.attar is an upload already", "send it as it is"),
    ("pack --module net:make --weights module.pt --size 8 -o x.attar",
     "it holds a whole module, not a state_dict", r"torch.save\(model.state_dict\(\), FILE\)"),
    ("fuse", "No uploads given.", "name the files"),
    ("fuse ann.attar none.attar --out x", "none.attar", "check the path"),
    ("fuse ann.attar bob.attar", "Missing output folder.", "--out DIR"),
    ("fuse ann.attar bob.attar --method dence --out x", "Did you mean 'dense'?", "choose one of"),
    ("fuse ann.attar bob.attar --student resnet99 --method feddf --out x",
     "There is no net called 'resnet99'", "choose one of: (?!.*cvae)"),
    ("fuse ann.attar bob.attar --classes normal,covid --out x",
     "no client knows the classes normal, covid", "no method can as it stands"),
    ("fuse ann.attar bob.attar --method feddf --out x", "the server needs unlabelled images",
     "ensemble, .*can"),
    ("fuse ann.attar bob.attar --method dense --set epoch=3 --out x", "has no such setting: did you mean epochs?", "settings of method dense: epochs"),
    ("fuse --config bad.toml", "methd is no flag: did you mean method?", "`attar fuse --help`"),
    ("eval fused --data folder:xr", "no class in common", "classes bear the same names"),
    ("predict fused notes.txt", "notes.txt", "images end in .png"),
    ("partition folder:xr --rule dirichlett:0.5", "did you mean dirichlet?", "dirichlet:0.1"),
    ("ls method", "invalid choice 'method': did you mean methods?", "choose one of"),
    ("ls methods acord", "Did you mean 'accord'?", "choose one of"),
    ("ls data cifra10", "Did you mean 'cifar10'?", "`attar ls data`"),
    ("--verison", "did you mean --version?", "the verbs are"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "told", "fix"), TABLE, ids=[typed or "-" for typed, *_ in TABLE])
def test_wrong_input(place, typed, told, fix, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    done = run(*typed.split(), cwd=place, status=2)
    assert done.stdout == ""
    stderr = " ".join(done.stderr.replace("│", " ").split())
    assert told in stderr
    _, _, proposed = stderr.partition("To fix it: ")
    assert re.search(fix, proposed), stderr
