"""The named image sets: their official files, where these come from, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from attar.data import names
from attar.data.cifar import read_cifar
from attar.data.dataset import Dataset, Progress
from attar.data.embedded import read_fashion_mini
from attar.data.fetch import SourceFile, data_root
from attar.data.folders import read_classes, read_domains, read_folder
from attar.data.idx import idx_files, read_emnist, read_mnist
from attar.data.libsvm import read_usps
from attar.data.mat import read_svhn, read_synth_digits
from attar.data.mnist_m import read_mnist_m
from attar.data.tiny_imagenet import read_tiny_imagenet


@dataclass(frozen=True)
class Request:
    """What a reader is asked for.

    Attributes:
        name: of the source, for messages.
        paths: one for each file of the source.
        size: of the images in pixels; None for their own.
        progress: told about decoding; None for nobody.
    """

    name: str
    paths: list[Path]
    size: int | None
    progress: Progress | None


@dataclass(frozen=True)
class Source:
    """A named image set.

    Attributes:
        name: by which it is asked for.
        summary: what it is, in a line.
        shape: (C, H, W) of its images; of the default size where they differ.
        classes: names where they are known beforehand, otherwise how many.
        files: the official ones.
        read: makes the data set.
        licence: as its authors state it.
        folder: inside the data root; the name of the source if empty.
    """

    name: str
    summary: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...] | int
    files: tuple[SourceFile, ...]
    read: Callable[[Request], Dataset]
    licence: str
    folder: str = ""

    @property
    def home(self) -> Path:
        """The folder with its files."""
        return data_root() / (self.folder or self.name)


_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_HOUSES = "http://ufldl.stanford.edu/housenumbers/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
_GANIN = "by hand, see http://yaroslav.ganin.net/"
_DOMAIN_SIZE = 64  # pixels, where ?size= is not given
_MINI_SIZE = 84
_DOMAIN_TEXT = f"stretched to {_DOMAIN_SIZE}x{_DOMAIN_SIZE} unless ?size= is given"

_SVHN = (
    SourceFile(
        "train_32x32.mat", f"{_HOUSES}train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"
    ),
    SourceFile(
        "test_32x32.mat", f"{_HOUSES}test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"
    ),
)
_SVHN_EXTRA = SourceFile(
    "extra_32x32.mat", f"{_HOUSES}extra_32x32.mat", "md5:a93ce644f1a588dc4d68dda5feec44a7"
)
_EMNIST = SourceFile(
    "gzip.zip",
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "md5:58c8d27c78d21e728a6bc7b3cc06412e",
    also=("gzip", "."),
)


def _mnist_m(ask: Request) -> Dataset:
    path = ask.paths[0]
    if path.name.startswith("mnist_m"):
        return read_mnist_m(path, ask.name, ask.size, ask.progress)
    return read_folder(path, ask.name, ask.size, ask.progress)


def _syn_digits(ask: Request) -> Dataset:
    path = ask.paths[0]
    if path.is_dir() and not any(path.glob("*.mat")):
        return read_folder(path, ask.name, ask.size, ask.progress)
    return read_synth_digits(path, ask.name)


def _emnist(name: str, split: str, counts: str) -> Source:
    return Source(
        name,
        f"EMNIST {split}: handwritten characters, {counts}",
        (1, 28, 28),
        names.EMNIST[split],
        (_EMNIST,),
        lambda ask: read_emnist(ask.paths[0], ask.name, split),
        "public domain (NIST)",
        folder="emnist",
    )


_TABLE = (
    Source(
        "fashion-mini",
        "6,000/1,000 images cut class-balanced from Fashion-MNIST, shipped with attar",
        (1, 28, 28),
        names.FASHION,
        (),
        lambda ask: read_fashion_mini(ask.name),
        "MIT",
    ),
    Source(
        "mnist",
        "handwritten digits, 60,000/10,000",
        (1, 28, 28),
        names.DIGITS,
        idx_files(
            # the mirror that stands in for yann.lecun.com
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        lambda ask: read_mnist(ask.paths, ask.name, names.DIGITS),
        "CC BY-SA 3.0",
    ),
    Source(
        "fashion-mnist",
        "articles of clothing, 60,000/10,000",
        (1, 28, 28),
        names.FASHION,
        idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        lambda ask: read_mnist(ask.paths, ask.name, names.FASHION),
        "MIT",
    ),
    _emnist("emnist", "balanced", "112,800/18,800"),
    _emnist("emnist:balanced", "balanced", "112,800/18,800"),
    _emnist("emnist:byclass", "byclass", "697,932/116,323"),
    _emnist("emnist:bymerge", "bymerge", "697,932/116,323"),
    _emnist("emnist:letters", "letters", "124,800/20,800"),
    _emnist("emnist:digits", "digits", "240,000/40,000"),
    _emnist("emnist:mnist", "mnist", "60,000/10,000"),
    Source(
        "svhn",
        "house numbers, cropped digits, 73,257/26,032 (needs attar[mat])",
        (3, 32, 32),
        names.DIGITS,
        _SVHN,
        lambda ask: read_svhn(ask.paths, ask.name),
        "non-commercial",
    ),
    Source(
        "svhn:extra",
        "SVHN with its 531,131 extra images in the training part",
        (3, 32, 32),
        names.DIGITS,
        (*_SVHN, _SVHN_EXTRA),
        lambda ask: read_svhn(ask.paths, ask.name),
        "non-commercial",
        folder="svhn",
    ),
    Source(
        "cifar10",
        "photographs in 10 classes, 50,000/10,000",
        (3, 32, 32),
        names.CIFAR10,
        (
            SourceFile(
                "cifar-10-binary.tar.gz",
                f"{_TORONTO}cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                also=("cifar-10-batches-bin", "cifar-10-python.tar.gz", "cifar-10-batches-py"),
            ),
        ),
        lambda ask: read_cifar(ask.paths[0], ask.name, "cifar10"),
        "not stated",
    ),
    Source(
        "cifar100",
        "photographs in 100 classes, 50,000/10,000",
        (3, 32, 32),
        names.CIFAR100,
        (
            SourceFile(
                "cifar-100-binary.tar.gz",
                f"{_TORONTO}cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                also=("cifar-100-binary", "cifar-100-python.tar.gz", "cifar-100-python"),
            ),
        ),
        lambda ask: read_cifar(ask.paths[0], ask.name, "cifar100"),
        "not stated",
    ),
    Source(
        "usps",
        "digits from envelopes, 7,291/2,007",
        (1, 16, 16),
        names.DIGITS,
        (
            SourceFile(
                "usps.bz2",
                f"{_LIBSVM}usps.bz2",
                "md5:ec16c51db3855ca6c91edd34d0e9b197",
                also=("usps",),
            ),
            SourceFile(
                "usps.t.bz2",
                f"{_LIBSVM}usps.t.bz2",
                "md5:8ea070ee2aca1ac39742fdd1ef5ed118",
                also=("usps.t",),
            ),
        ),
        lambda ask: read_usps(ask.paths, ask.name),
        "not stated",
    ),
    Source(
        "mnist-m",
        "MNIST digits on patches of photographs, 59,001/9,001",
        (3, 32, 32),
        names.DIGITS,
        (SourceFile("mnist_m.tar.gz", also=("mnist_m", "."), hint=_GANIN),),
        _mnist_m,
        "not stated",
    ),
    Source(
        "syn-digits",
        "SynthDigits: rendered digits, 479,400/9,553 (needs attar[mat])",
        (3, 32, 32),
        names.DIGITS,
        (SourceFile("SynthDigits.zip", also=("SynthDigits", "."), hint=_GANIN),),
        _syn_digits,
        "not stated",
    ),
    Source(
        "tiny-imagenet",
        "photographs in 200 classes, 100,000/10,000 (the validation part)",
        (3, 64, 64),
        200,
        (
            SourceFile(
                "tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
                also=("tiny-imagenet-200",),
            ),
        ),
        lambda ask: read_tiny_imagenet(ask.paths[0], ask.name, ask.size, ask.progress),
        "ImageNet's terms",
    ),
    Source(
        "mini-imagenet",
        "photographs in 100 classes, cut 80/20 in each; "
        f"stretched to {_MINI_SIZE}x{_MINI_SIZE} unless ?size= is given",
        (3, _MINI_SIZE, _MINI_SIZE),
        100,
        (
            SourceFile(
                ".",
                hint="one folder of JPEG files per class (or train/, val/, test/ with them), "
                "cut from ImageNet",
            ),
        ),
        lambda ask: read_classes(ask.paths[0], ask.name, ask.size or _MINI_SIZE, ask.progress),
        "ImageNet's terms",
    ),
    Source(
        "pacs",
        f"4 domains, 7 classes, 9,991 images, cut 80/20; {_DOMAIN_TEXT}",
        (3, _DOMAIN_SIZE, _DOMAIN_SIZE),
        7,
        (
            SourceFile(
                ".",
                hint=f"folders {', '.join(names.PACS_DOMAINS)} with one folder per class, by hand, "
                "see https://dali-dl.github.io/project_iccv2017.html",
            ),
        ),
        lambda ask: read_domains(
            ask.paths[0], ask.name, names.PACS_DOMAINS, ask.size or _DOMAIN_SIZE, ask.progress
        ),
        "not stated",
    ),
    Source(
        "officehome",
        f"4 domains, 65 classes, 15,588 images, cut 80/20; {_DOMAIN_TEXT}",
        (3, _DOMAIN_SIZE, _DOMAIN_SIZE),
        65,
        (
            SourceFile(
                ".",
                hint=f"folders {', '.join(names.OFFICEHOME_DOMAINS)} with one folder per class, "
                "by hand, see https://www.hemanthdv.org/officeHomeDataset.html",
            ),
        ),
        lambda ask: read_domains(
            ask.paths[0], ask.name, names.OFFICEHOME_DOMAINS, ask.size or _DOMAIN_SIZE, ask.progress
        ),
        "non-commercial",
    ),
)
SOURCES: Mapping[str, Source] = {source.name: source for source in _TABLE}
assert len(SOURCES) == len(_TABLE)
