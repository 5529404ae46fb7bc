"""Every reader on small files in the true format; fetching without a network."""

import bz2
import gzip
import hashlib
import io
import os
import pickle
import struct
import sys
import tarfile
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attar.cli.arguments import load_public_images
from attar.data import FORMS, SOURCES, Dataset, Split, is_available, list_sources, load_data
from attar.data.dataset import choose_test
from attar.data.fetch import SourceFile, data_root, fetch, locate
from attar.errors import DataError

RNG = np.random.default_rng(0)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and no network."""

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network in tests")

    monkeypatch.setenv("ATTAR_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path


def noise(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def picture(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(out, kind)
    return out.getvalue()


def tar_gz(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def zipped(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        for name, data in members.items():
            file.writestr(name, data)


def problem(source: str) -> str:
    with pytest.raises(DataError) as caught:
        load_data(source)
    return str(caught.value)


# --- shipped --------------------------------------------------------------------------------------


def test_load_data_fashion_mini(root: Path) -> None:
    data = load_data("fashion-mini")
    assert (len(data.train), len(data.test), data.input_shape) == (6000, 1000, (1, 28, 28))
    assert data.classes[0] == "T-shirt/top"
    assert np.bincount(data.train.labels).tolist() == [600] * 10
    assert np.bincount(data.test.labels[:50]).tolist() == [5] * 10  # every prefix is balanced
    assert data.train.images.flags.c_contiguous
    trousers, bags = (data.train.images[data.train.labels == label] for label in (1, 8))
    assert trousers.mean() < bags.mean()  # a pair of trousers is narrower than a bag
    assert load_data("fashion-mini?size=16").input_shape == (1, 16, 16)


def test_fashion_mini_is_small_and_licensed() -> None:
    folder = Path(sys.modules["attar.data"].__file__ or "").parent
    assert (folder / "fashion-mini.png").stat().st_size < 3_000_000
    assert "Copyright © 2017 Zalando SE" in (folder / "fashion-mini.LICENSE").read_text(
        encoding="utf-8"
    )


def test_split_take_and_dataset_problems() -> None:
    split = Split(noise(4, 2, 2, 1), np.arange(4), np.array([0, 0, 1, 1]))
    assert split.take([3, 1]).labels.tolist() == [3, 1]
    domains = split.take([3, 1]).domains
    assert domains is not None
    assert domains.tolist() == [1, 0]
    with pytest.raises(DataError) as caught:
        Dataset("x", ("a", "a"), split, Split(noise(1, 2, 2, 1), np.array([7])), ("one", "two"))
    assert len(caught.value.problems) == 4


# --- one's own files ------------------------------------------------------------------------------


def test_read_npz(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    arrays: dict[str, Any] = {"x_train": noise(6, 5, 4), "x_test": noise(3, 5, 4)}
    arrays |= {
        "y_train": np.array([[0], [1], [2], [0], [1], [2]], np.uint8),
        "y_test": np.arange(3),
    }
    np.savez(path, **arrays)
    data = load_data(f"npz:{path}")
    assert data.input_shape == (1, 5, 4)
    assert data.classes == ("0", "1", "2")
    assert data.train.labels.dtype == np.int64
    assert np.array_equal(data.train.images[..., 0], arrays["x_train"])
    np.savez(path, **arrays, classes=np.array(["cat", "dog", "eel"]))
    assert load_data(f"npz:{path}").classes == ("cat", "dog", "eel")
    np.savez(path, **arrays, classes=np.array(["cat", "dog"]))
    assert "but 2 classes" in problem(f"npz:{path}")
    np.savez(
        path,
        x=noise(50, 4, 4, 3),
        y=np.repeat(np.arange(5), 10),
        d=np.tile([0, 1], 25),
        domains=["ink", "oil"],
    )
    data = load_data(f"npz:{path}")
    assert np.bincount(data.test.labels).tolist() == [2] * 5
    assert data.domains == ("ink", "oil")


def test_read_npz_problems(tmp_path: Path) -> None:
    path = tmp_path / "my.npz"
    np.savez(path, x_train=np.zeros((2, 4, 4), np.float32), y_train=np.zeros(2), x_test=noise(2, 4))
    text = problem(f"npz:{path}")
    for part in (
        "x_train: images must be uint8",
        "y_train: labels must be whole",
        "x_test",
        "y_test: missing",
    ):
        assert part in text
    np.savez(path, x=np.array([object()]), y=np.zeros(1, int))
    assert "cannot be read" in problem(f"npz:{path}")  # no pickles
    path.write_bytes(b"PK nonsense")
    assert "cannot be read" in problem(f"npz:{path}")
    assert "no such file" in problem(f"npz:{tmp_path / 'absent.npz'}")
    np.save(tmp_path / "one.npy", noise(3))
    assert "cannot be read" in problem(f"npz:{tmp_path / 'one.npy'}")


@pytest.mark.parametrize(("images", "labels"), [(60, 30), (30, 60)])
@pytest.mark.parametrize("part", ["", "_train"])
def test_read_npz_unequal_images_and_labels(
    tmp_path: Path, part: str, images: int, labels: int
) -> None:
    path = tmp_path / "uneven.npz"
    rest = {"x_test": noise(2, 4, 4), "y_test": np.arange(2)} if part else {}
    np.savez(path, **{f"x{part}": noise(images, 4, 4), f"y{part}": np.arange(labels) % 3}, **rest)
    text = problem(f"npz:{path}")
    assert str(path) in text
    assert f"{images} images but labels of shape ({labels},)" in text


@pytest.mark.parametrize("count", [20, 40])
def test_read_npz_unequal_labels_and_domains(tmp_path: Path, count: int) -> None:
    path = tmp_path / "uneven.npz"
    np.savez(
        path, x=noise(30, 4, 4), y=np.arange(30) % 3, d=np.arange(count) % 2, domains=["ink", "oil"]
    )
    text = problem(f"npz:{path}")
    assert str(path) in text
    assert f"30 labels but domains of shape ({count},)" in text


def folder(
    path: Path, sizes: dict[str, int], *, channels: int = 3, kind: str = "PNG", side: int = 8
) -> Path:
    for name, count in sizes.items():
        for number in range(count):
            put(
                path / name / f"{number:03}.{kind if number % 2 else kind.lower()}",
                picture(noise(side, side, channels), kind),
            )
    return path


def test_read_folder_cuts_by_name(tmp_path: Path) -> None:
    path = folder(tmp_path / "pets", {"cat": 20, "dog": 11, "eel": 2})
    put(path / "cat" / "notes.txt", b"not an image")
    put(path / ".cache" / "x.png", b"not a class")
    heard: list[tuple[str, int, int]] = []
    data = load_data(f"folder:{path}", lambda *event: heard.append(event))
    assert data.classes == ("cat", "dog", "eel")
    assert data.input_shape == (3, 8, 8)
    assert np.bincount(data.train.labels).tolist() == [16, 9, 1]
    assert np.bincount(data.test.labels).tolist() == [4, 2, 1]
    assert data.was_cut
    assert heard[-1] == ("decoding images", 33, 33)
    files = sorted((path / "cat").glob("*.[pP][nN][gG]"))
    again = [np.asarray(Image.open(file)) for file in files]
    kept = [
        pixels
        for pixels, test in zip(
            again, choose_test([f"cat/{f.name}" for f in files], np.zeros(20, int)), strict=True
        )
        if not test
    ]
    assert np.array_equal(
        data.train.images[:16], np.stack(kept)
    )  # pixel for pixel, in the order of names


def test_read_folder_with_train_and_test(tmp_path: Path) -> None:
    folder(tmp_path / "train", {"cat": 3, "dog": 2}, channels=1)
    folder(tmp_path / "test", {"dog": 1}, channels=1)
    data = load_data(f"folder:{tmp_path}")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 0, 0, 1, 1], [1])
    assert not data.was_cut
    assert data.input_shape == (1, 8, 8)  # all grey
    folder(tmp_path / "test", {"owl": 1})
    assert "owl" in problem(f"folder:{tmp_path}")


def test_read_folder_grey_among_colours(tmp_path: Path) -> None:
    folder(tmp_path, {"cat": 5}, channels=1)
    folder(tmp_path, {"dog": 5}, channels=3, kind="JPEG")
    assert load_data(f"folder:{tmp_path}").input_shape == (3, 8, 8)


def test_read_folder_of_different_sizes(tmp_path: Path) -> None:
    folder(tmp_path, {"cat": 5})
    folder(tmp_path, {"dog": 5}, side=12, kind="JPEG")
    text = problem(f"folder:{tmp_path}")
    assert "8x8" in text
    assert "12x12" in text
    assert "?size=64" in text
    assert load_data(f"folder:{tmp_path}?size=6").input_shape == (3, 6, 6)


def test_load_unlabelled_needs_no_classes(tmp_path: Path) -> None:
    first, second, grey = noise(8, 8, 3), noise(8, 8, 3), noise(8, 8)
    put(tmp_path / "b.png", picture(second))
    put(tmp_path / "a.PNG", picture(first))
    put(tmp_path / "below" / "it" / "c.png", picture(grey))
    put(tmp_path / ".hidden.png", b"not an image")
    put(tmp_path / "notes.txt", b"nor this")
    found = load_public_images(f"images:{tmp_path}", quiet=True)
    assert found.labels is None
    assert found.pixels.shape == (3, 3, 8, 8)
    expected = [first, second, np.repeat(grey[:, :, None], 3, 2)]
    assert np.array_equal(found.pixels.numpy().transpose(0, 2, 3, 1), np.stack(expected))
    put(tmp_path / "large.png", picture(noise(12, 9, 3)))
    with pytest.raises(DataError, match="differ in size"):
        load_public_images(f"images:{tmp_path}", quiet=True)
    assert load_public_images(f"images:{tmp_path}?size=6", quiet=True).pixels.shape == (4, 3, 6, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("images:{}/nowhere", "There is no folder"),
        ("images:{}", "holds no images"),
        ("images:{}?sise=3", "unknown options"),
        ("folder:{}", "--public images:DIR"),
    ],
)
def test_load_unlabelled_missing_images(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DataError) as caught:
        load_public_images(text.format(tmp_path), quiet=True)
    assert said in str(caught.value)


def test_load_public_images_without_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no labels"):
        load_public_images(f"images:{tmp_path}", quiet=True, labelled=True)


def test_read_folder_names_every_broken_image(tmp_path: Path) -> None:
    folder(tmp_path, {"cat": 20})
    put(tmp_path / "cat" / "empty.png", b"")
    put(tmp_path / "cat" / "text.jpg", b"this is not an image")
    put(tmp_path / "cat" / "cut.png", picture(noise(64, 64, 3))[:2000])
    text = problem(f"folder:{tmp_path}")
    assert "3 images" in text
    assert all(name in text for name in ("empty.png", "text.jpg", "cut.png"))
    for number in range(20):
        put(tmp_path / "cat" / f"bad{number}.png", b"\x89PNG\r\n\x1a\n")
    assert "and 13 more" in problem(f"folder:{tmp_path}")


def test_read_folder_one_image_a_class(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (8, 8)).save(tmp_path / name / "0.png")
    with pytest.raises(
        DataError,
        match=r"test: no images(.|\n)*train/ and test/ of a folder(.|\n)*two images of some class",
    ):
        load_data(f"folder:{tmp_path}")


def test_read_folder_odd_pictures(tmp_path: Path) -> None:
    deep = Image.fromarray(np.full((8, 8), 40000, np.uint16))  # 16 bits: scaled, not clipped
    clear = Image.fromarray(noise(8, 8, 3)).convert("P")
    for name, image, extra in (("deep", deep, {}), ("clear", clear, {"transparency": b"\x00\x01"})):
        out = io.BytesIO()
        image.save(out, "PNG", **extra)
        put(tmp_path / "odd" / f"{name}.png", out.getvalue())
    data = load_data(f"folder:{tmp_path}")
    assert 155 in (data.train.images[0, 0, 0, 0], data.test.images[0, 0, 0, 0])
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    wide = Image.new("RGB", (20, 10))
    out = io.BytesIO()
    wide.save(out, "JPEG", exif=exif)
    for number in range(2):
        put(tmp_path / "turned" / "photo" / f"{number}.jpg", out.getvalue())
    assert load_data(f"folder:{tmp_path / 'turned'}").input_shape == (3, 20, 10)


def test_read_folder_with_one_part(tmp_path: Path) -> None:
    folder(tmp_path / "half" / "train", {"cat": 2})
    told = problem(f"folder:{tmp_path / 'half'}")
    assert "has train/ but no test/" in told
    assert f"folder:{tmp_path / 'half' / 'train'}" in told
    folder(tmp_path / "yard", {"train": 2, "tram": 2})  # a class of that name is a class
    assert load_data(f"folder:{tmp_path / 'yard'}").classes == ("train", "tram")


def test_read_folder_missing(tmp_path: Path) -> None:
    assert "no folder" in problem(f"folder:{tmp_path / 'absent'}")
    assert "no class folders" in problem(f"folder:{tmp_path}")
    folder(tmp_path / "art", {"cat": 2})  # domain/class, one level too deep
    assert "without images" in problem(f"folder:{tmp_path}")


def test_read_hub_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "attar[hf]" in problem("hf:someone/pets")


def test_read_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    class ImageFeature:
        def __init__(self, decode: bool = True) -> None:
            self.decode = decode

    class ClassLabel:
        names = ("cat", "dog")

    class Table:
        def __init__(self, rows: int) -> None:
            self.features = {"img": ImageFeature(), "kind": ClassLabel(), "other": ClassLabel()}
            self.rows = [
                {"img": {"bytes": picture(noise(6, 6, 1)), "path": None}, "kind": i % 2}
                for i in range(rows)
            ]

        def cast_column(self, column: str, feature: ImageFeature) -> "Table":
            assert column == "img"
            assert not feature.decode
            return self

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, key: int | str) -> object:
            return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]

    fake: Any = types.ModuleType("datasets")
    fake.Image, fake.ClassLabel = ImageFeature, ClassLabel
    fake.load_dataset = lambda name, config: {"train": Table(10), "validation": Table(4)}
    monkeypatch.setitem(sys.modules, "datasets", fake)
    data = load_data("hf:someone/pets?label=kind")
    assert (len(data.train), len(data.test), data.classes, data.input_shape) == (
        10,
        4,
        ("cat", "dog"),
        (1, 6, 6),
    )
    fake.load_dataset = lambda name, config: {"train": Table(10)}
    assert len(load_data("hf:someone/pets?label=kind&size=4").test) == 2
    assert "?label=COLUMN" in problem("hf:someone/pets")
    assert "?image=COLUMN" in problem("hf:someone/pets?image=kind")


# --- named sources --------------------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return (
        struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        + array.astype(np.uint8).tobytes()
    )


def test_read_mnist_gzipped_and_unpacked(root: Path) -> None:
    train, test = noise(12, 28, 28), noise(4, 28, 28)
    labels = np.arange(12) % 10
    for name in ("mnist", "fashion-mnist"):
        put(root / name / "train-images-idx3-ubyte.gz", gzip.compress(idx(train)))
        put(root / name / "train-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
        put(root / name / "t10k-images-idx3-ubyte", idx(test))
        assert not is_available(name)
        put(root / name / "t10k-labels-idx1-ubyte", idx(labels[:4]))
        assert is_available(name)
    data = load_data("mnist")
    assert np.array_equal(data.train.images[..., 0], train)
    assert np.array_equal(data.test.images[..., 0], test)
    assert data.train.labels.tolist() == labels.tolist()
    assert data.classes == tuple("0123456789")
    assert load_data("fashion-mnist").classes[-1] == "Ankle boot"
    assert load_data("mnist?size=32").input_shape == (1, 32, 32)


def test_read_mnist_damaged(root: Path) -> None:
    files = [file.name for file in SOURCES["mnist"].files]
    for name in files:
        put(
            root / "mnist" / name,
            gzip.compress(idx(np.zeros(4) if "idx1" in name else noise(4, 28, 28))),
        )
    path = root / "mnist" / files[0]
    for data in (
        path.read_bytes()[:-20],
        gzip.compress(idx(noise(4, 28, 28))[:-1]),
        gzip.compress(b"PK"),
        b"",
    ):
        path.write_bytes(data)
        assert files[0] in problem("mnist")


@pytest.mark.parametrize("packed", [True, False])
def test_read_emnist_exchanges_rows_and_columns(root: Path, packed: bool) -> None:
    upright = noise(6, 28, 28)
    sideways = upright.swapaxes(1, 2)
    members = {}
    for split, labels in (("letters", [1, 2, 26, 1, 2, 3]), ("balanced", [0, 10, 46, 36, 1, 2])):
        for part in ("train", "test"):
            members[f"gzip/emnist-{split}-{part}-images-idx3-ubyte.gz"] = gzip.compress(
                idx(sideways)
            )
            members[f"gzip/emnist-{split}-{part}-labels-idx1-ubyte.gz"] = gzip.compress(
                idx(np.array(labels))
            )
    if packed:
        zipped(root / "emnist" / "gzip.zip", members)
    else:
        for name, data in members.items():
            put(root / "emnist" / name, data)
    letters = load_data("emnist:letters")
    assert np.array_equal(letters.train.images[..., 0], upright)
    assert [letters.classes[label] for label in letters.train.labels] == [
        "A",
        "B",
        "Z",
        "A",
        "B",
        "C",
    ]
    for name in ("emnist", "emnist:balanced"):
        balanced = load_data(name)
        assert [balanced.classes[label] for label in balanced.test.labels] == [
            "0",
            "A",
            "t",
            "a",
            "1",
            "2",
        ]
    assert len(SOURCES["emnist:byclass"].classes) == 62  # type: ignore[arg-type]
    assert "emnist-digits-train" in problem("emnist:digits")


def mat(images: np.ndarray, labels: list[int]) -> bytes:
    from scipy.io import savemat

    out = io.BytesIO()
    savemat(out, {"X": images.transpose(1, 2, 3, 0), "y": np.array(labels, np.uint8)[:, None]})
    return out.getvalue()


def test_read_svhn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = noise(3, 32, 32, 3)
    put(root / "svhn" / "train_32x32.mat", mat(images, [10, 1, 9]))
    put(root / "svhn" / "test_32x32.mat", mat(images[:2], [2, 10]))
    data = load_data("svhn")
    assert np.array_equal(data.train.images, images)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 9], [2, 0])
    assert "extra_32x32.mat" in problem("svhn:extra")
    put(root / "svhn" / "extra_32x32.mat", mat(images, [3, 3, 3]))
    assert load_data("svhn:extra").train.labels.tolist() == [0, 1, 9, 3, 3, 3]
    put(root / "svhn" / "test_32x32.mat", b"x" * 200)
    assert "test_32x32.mat cannot be read" in problem("svhn")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert "attar[mat]" in problem("svhn")


@pytest.mark.parametrize("packed", [True, False])
def test_read_synth_digits(root: Path, packed: bool) -> None:
    images = noise(3, 32, 32, 3)
    members = {
        "synth_train_32x32.mat": mat(images, [0, 1, 9]),
        "synth_test_32x32.mat": mat(images[:1], [4]),
    }
    if packed:
        zipped(root / "syn-digits" / "SynthDigits.zip", members)
    else:
        for name, data in members.items():
            put(root / "syn-digits" / name, data)
    data_set = load_data("syn-digits")
    assert np.array_equal(data_set.train.images, images)
    assert data_set.train.labels.tolist() == [0, 1, 9]


def test_load_data_digits_from_image_folders(root: Path) -> None:
    for name in ("syn-digits", "mnist-m"):
        folder(root / name / "train", {"0": 2, "1": 2})
        folder(root / name / "test", {"0": 1, "1": 1})
        assert len(load_data(name).train) == 4


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
def test_read_cifar_binary_and_python_agree(root: Path, kind: str) -> None:
    number = kind.removeprefix("cifar")
    top = {"cifar10": "cifar-10-batches", "cifar100": "cifar-100"}[kind]
    parts = (
        [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        if kind == "cifar10"
        else ["train", "test"]
    )
    images, labels = {}, {}
    for part in parts:
        images[part], labels[part] = noise(4, 32, 32, 3), RNG.integers(0, int(number), 4)
    planes = {part: images[part].transpose(0, 3, 1, 2).reshape(4, -1) for part in parts}

    def record(part: str) -> bytes:
        coarse = [labels[part][:, None] // 5] if kind == "cifar100" else []
        return (
            np.concatenate([*coarse, labels[part][:, None], planes[part]], axis=1)
            .astype(np.uint8)
            .tobytes()
        )

    def batch(part: str) -> bytes:
        key = "labels" if kind == "cifar10" else "fine_labels"
        return pickle.dumps(
            {b"data": planes[part], key.encode(): labels[part].tolist(), b"batch_label": b"x"},
            protocol=2,
        )

    folder_name = {"cifar10": f"{top}-bin", "cifar100": f"{top}-binary"}[kind]
    tar_gz(
        root / kind / f"cifar-{number}-python.tar.gz",
        {f"{top}-py/{part}": batch(part) for part in parts},
    )
    python = load_data(kind)
    tar_gz(
        root / kind / f"cifar-{number}-binary.tar.gz",
        {f"{folder_name}/{part}.bin": record(part) for part in parts},
    )
    binary = load_data(kind)
    assert np.array_equal(
        binary.train.images, np.concatenate([images[part] for part in parts[:-1]])
    )
    assert np.array_equal(binary.test.labels, labels[parts[-1]])
    for split in ("train", "test"):
        assert np.array_equal(getattr(python, split).images, getattr(binary, split).images)
        assert np.array_equal(getattr(python, split).labels, getattr(binary, split).labels)
    assert len(binary.classes) == int(number)


def test_read_cifar_runs_no_program(root: Path, tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    path = root / "cifar10" / "cifar-10-batches-py" / "data_batch_1"
    put(path, pickle.dumps({b"data": Harm()}, protocol=2))
    text = problem("cifar10")
    assert "refused" in text
    assert "mkdir" in text
    assert not (tmp_path / "harm").exists()
    for junk in (
        b"",
        b"junk",
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.zeros(3), "labels": [1]}, protocol=2),
    ):
        put(path, junk)
        assert "data_batch_1" in problem("cifar10")


def test_read_cifar_pickles_of_python_2(root: Path) -> None:
    """The official batches: byte strings, and numpy's modules under their old names."""
    planes = noise(2, 3072)

    def batch(label: int) -> bytes:
        array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        head = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ"
        dtype = head + b"\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        state = (
            b"(K\x01K\x02M\x00\x0c\x86"
            + dtype
            + b"\x89T"
            + struct.pack("<i", planes.size)
            + planes.tobytes()
            + b"tb"
        )
        return (
            b"\x80\x02}(U\x04data"
            + array
            + state
            + b"U\x06labels](K\x03K"
            + bytes([label])
            + b"eu."
        )

    for number in range(1, 6):
        put(root / "cifar10" / "cifar-10-batches-py" / f"data_batch_{number}", batch(number))
    put(root / "cifar10" / "cifar-10-batches-py" / "test_batch", batch(9))
    data = load_data("cifar10")
    assert data.train.labels.tolist() == [3, 1, 3, 2, 3, 3, 3, 4, 3, 5]
    assert np.array_equal(data.test.images, planes.reshape(2, 3, 32, 32).transpose(0, 2, 3, 1))


def test_read_cifar_cut_archive(root: Path) -> None:
    path = root / "cifar10" / "cifar-10-binary.tar.gz"
    tar_gz(path, {"cifar-10-batches-bin/data_batch_1.bin": noise(3073).tobytes()})
    assert "data_batch_2.bin is missing" in problem("cifar10")
    path.write_bytes(path.read_bytes()[:500])
    assert "cannot be read" in problem("cifar10")


def test_read_usps(root: Path) -> None:
    values = np.linspace(-1, 1, 256)
    full = "1 " + " ".join(f"{i + 1}:{value:.6f}" for i, value in enumerate(values))
    put(root / "usps" / "usps.bz2", bz2.compress(f"{full} \n10 1:-1 256:1\n".encode()))
    put(root / "usps" / "usps.t", f"{full}\n".encode())
    data = load_data("usps")
    assert data.train.labels.tolist() == [0, 9]
    assert data.input_shape == (1, 16, 16)
    assert np.array_equal(data.train.images[0].ravel(), np.rint((values + 1) / 2 * 255))
    sparse = data.train.images[1].ravel()
    assert (sparse[0], sparse[1], sparse[255]) == (0, 128, 255)  # what is left out is 0, halfway
    for bad in (b"11 1:0\n", b"1 257:0\n", b"1 1:0 2\n", b"1 x:y\n", b"BZhnonsense"):
        put(root / "usps" / "usps.t", bad)
        assert "usps.t" in problem("usps")


@pytest.mark.parametrize("packed", [True, False])
def test_read_mnist_m(root: Path, packed: bool) -> None:
    images = noise(3, 32, 32, 3)
    members = {
        f"mnist_m/mnist_m_{part}/{i:08}.png": picture(images[i])
        for part in ("train", "test")
        for i in range(3)
    }
    for part in ("train", "test"):
        members[f"mnist_m/mnist_m_{part}_labels.txt"] = (
            b"00000000.png 5\n00000002.png 0\n00000001.png 4\n"
        )
    if packed:
        tar_gz(root / "mnist-m" / "mnist_m.tar.gz", members)
    else:
        for name, data in members.items():
            put(root / "mnist-m" / name, data)
    data_set = load_data("mnist-m")
    assert data_set.train.labels.tolist() == [5, 0, 4]
    assert np.array_equal(data_set.train.images, images[[0, 2, 1]])


@pytest.mark.parametrize("packed", [True, False])
def test_read_tiny_imagenet(root: Path, packed: bool) -> None:
    wnids = ["n02124075", "n01443537", "n09999999"]
    members = {"wnids.txt": "\n".join(wnids).encode()}
    members["words.txt"] = (
        b"n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
        b"n09999999\tEgyptian cat, two\n"
    )
    for wnid in wnids:
        for number in range(2):
            members[f"train/{wnid}/images/{wnid}_{number}.JPEG"] = picture(noise(64, 64, 3), "JPEG")
        members[f"train/{wnid}/{wnid}_boxes.txt"] = b"x"
    members["val/images/val_0.JPEG"] = picture(noise(64, 64, 1), "JPEG")  # some are grey
    members["val/images/val_1.JPEG"] = picture(noise(64, 64, 3), "JPEG")
    members["val/val_annotations.txt"] = (
        b"val_0.JPEG\tn02124075\t0\t0\t62\t62\nval_1.JPEG\tn01443537\t0\t0\t62\t62\n"
    )
    members["test/images/test_0.JPEG"] = picture(
        noise(64, 64, 3), "JPEG"
    )  # without a label: not read
    members = {f"tiny-imagenet-200/{name}": data for name, data in members.items()}
    if packed:
        zipped(root / "tiny-imagenet" / "tiny-imagenet-200.zip", members)
    else:
        for name, data in members.items():
            put(root / "tiny-imagenet" / name, data)
    data_set = load_data("tiny-imagenet")
    assert data_set.classes == ("goldfish", "Egyptian cat (n02124075)", "Egyptian cat (n09999999)")
    assert data_set.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data_set.test.labels.tolist() == [1, 0]
    assert data_set.input_shape == (3, 64, 64)
    assert load_data("tiny-imagenet?size=32").input_shape == (3, 32, 32)


def test_read_classes_mini_imagenet(root: Path) -> None:
    put(root / "mini-imagenet" / "mini-imagenet-cache-train.pkl", b"x")
    assert "pickle" in problem("mini-imagenet")
    (root / "mini-imagenet" / "mini-imagenet-cache-train.pkl").unlink()
    folder(root / "mini-imagenet" / "train", {"n02": 5}, kind="JPEG")
    folder(root / "mini-imagenet" / "val", {"n01": 5}, kind="JPEG", side=9)
    data = load_data("mini-imagenet?size=8")
    assert data.classes == ("n01", "n02")
    assert np.bincount(data.test.labels).tolist() == [1, 1]
    assert load_data("mini-imagenet").input_shape == (3, 84, 84)


@pytest.mark.parametrize(("name", "below"), [("pacs", "PACS"), ("officehome", ".")])
def test_read_domains(root: Path, name: str, below: str) -> None:
    domains = {
        "pacs": ("art_painting", "cartoon", "photo", "sketch"),
        "officehome": ("Art", "Clipart", "Product", "Real World"),
    }
    for number, domain in enumerate(domains[name]):
        folder(
            root / name / below / domain, {"dog": 5, "elephant": 10}, kind="JPEG", side=8 + number
        )
    data = load_data(name)
    assert data.domains == domains[name]
    assert data.input_shape == (3, 64, 64)
    assert data.train.domains is not None
    assert data.test.domains is not None
    assert (
        np.bincount(data.test.labels + 2 * data.test.domains).tolist() == [1, 2] * 4
    )  # in each domain and class
    assert np.bincount(data.train.labels + 2 * data.train.domains).tolist() == [4, 8] * 4


def test_read_domains_missing(root: Path) -> None:
    folder(root / "pacs" / "photo", {"dog": 2})
    assert "sketch" in problem("pacs")


def test_load_data_prefers_a_file_of_arrays(root: Path) -> None:
    arrays = {
        "x_train": noise(4, 8, 8, 3),
        "y_train": np.arange(4),
        "x_test": noise(1, 8, 8, 3),
        "y_test": np.arange(1),
    }
    for name in ("cifar10", "emnist-letters", "anything"):
        np.savez(root / f"{name}.npz", **arrays)
    assert load_data("cifar10").classes[3] == "cat"
    assert load_data("emnist:letters").classes[0] == "A"
    assert load_data("anything").classes == ("0", "1", "2", "3")
    assert is_available("anything")
    assert {info.name for info in list_sources() if info.available} == {
        "fashion-mini",
        "cifar10",
        "emnist:letters",
    }


def test_list_sources(root: Path) -> None:
    infos = {info.name: info for info in list_sources()}
    assert set(infos) == set(SOURCES)
    assert (infos["tiny-imagenet"].classes, infos["cifar100"].classes, infos["usps"].shape) == (
        200,
        100,
        (1, 16, 16),
    )
    assert [name for name, info in infos.items() if info.available] == ["fashion-mini"]
    assert set(FORMS) == {"npz:FILE", "folder:DIR", "hf:NAME"}


# --- what is asked for ----------------------------------------------------------------------------


def test_load_data_refuses_bad_sources(root: Path) -> None:
    assert "Did you mean 'cifar10'" in problem("cifar-10")
    assert "folder:DIR" in problem("nothing-like-it")
    assert f"Did you mean 'folder:{root}'" in problem(str(root))
    assert f"Did you mean 'folder:{root}'" in problem(f"images:{root}")
    np.savez(root / "mine.npz", x=np.zeros((1, 2, 2, 1), np.uint8))
    assert f"Did you mean 'npz:{root}/mine.npz'" in problem(f"{root}/mine.npz")
    assert "no data source" in problem("../escape")
    assert "known are size" in problem("mnist?colour=red")
    assert "known are size, image, label, config" in problem("hf:x?colour=red")
    assert "key=value" in problem("mnist?size")
    for size in ("0", "x", "99999", "-4", "4.5"):
        assert "pixels" in problem(f"mnist?size={size}")
    for empty in ("folder:", "npz:", "hf:"):
        assert "which" in problem(empty)


def test_locate_names_missing_files(root: Path) -> None:
    text = problem("mnist")
    for file in SOURCES["mnist"].files:
        assert str(root / "mnist" / file.name) in text
        assert str(file.url) in text
        assert str(file.checksum) in text
    assert "no network in tests" in text
    assert list((root / "mnist").iterdir()) == []
    assert "dali-dl.github.io" in problem("pacs")
    assert "SynthDigits.zip" in problem("syn-digits")


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ATTAR_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "attar"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_root() == Path.home() / ".cache" / "attar"


def test_fetch_checks_and_renames(tmp_path: Path) -> None:
    served = put(tmp_path / "served" / "a.bin", b"content" * 1000)
    md5 = hashlib.md5(served.read_bytes(), usedforsecurity=False).hexdigest()
    heard: list[tuple[str, int, int]] = []
    target = tmp_path / "here"
    good = SourceFile("a.bin", served.as_uri(), f"md5:{md5}")
    assert locate("x", target, [good], lambda *event: heard.append(event)) == [target / "a.bin"]
    assert (target / "a.bin").read_bytes() == served.read_bytes()
    assert heard == [("fetching a.bin", 7000, 7000)]
    bad = SourceFile("b.bin", served.as_uri(), "md5:" + "0" * 32)
    with pytest.raises(DataError, match="not the file it should be"):
        fetch(bad, target)
    gone = SourceFile("c.bin", (tmp_path / "gone").as_uri())
    with pytest.raises(DataError, match=r"c\.bin"):
        locate("x", target, [gone])
    assert [entry.name for entry in target.iterdir()] == ["a.bin"]  # nothing is left behind


def test_fetch_refuses_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(io.BytesIO):
        headers = types.MappingProxyType({"Content-Length": "100"})

    monkeypatch.setattr("urllib.request.urlopen", lambda url, timeout: Answer(b"short"))
    with pytest.raises(DataError, match="5 of 100 bytes"):
        locate("x", tmp_path, [SourceFile("a.bin", "https://example.org/a.bin")])
    assert list(tmp_path.iterdir()) == []


def test_import_data_needs_no_optional_package() -> None:
    import subprocess

    code = (
        "import sys, attar.data; "
        "print([m for m in ('PIL', 'scipy', 'datasets') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
