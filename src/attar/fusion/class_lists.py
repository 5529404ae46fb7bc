"""Class lists that may mean the same by other names: a question to ask before they are merged."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attar.core import Upload
from attar.errors import NeedsError
from attar.internal.text import list_some

COMPARED = 2_000  # names that are compared each with each; of more, those of equal words


@dataclass(frozen=True)
class ClassQuestion:
    """Why the class lists of some uploads should be looked at.

    Attributes:
        groups: Clients that are connected by classes which they share, with these classes; two
            groups have no class in common.
        alike: Names that may mean the same, each with the one to map it to.
        classes: Of the task if they are merged as they are.
    """

    groups: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    alike: dict[str, str]
    classes: tuple[str, ...]

    @property
    def error(self) -> NeedsError:
        """The question as an error, with both answers."""
        if len(self.groups) > 1:
            what = "Some clients have no class in common:"
            problems = [
                f"{list_some(clients)}: {list_some(classes, 8)}" for clients, classes in self.groups
            ]
        else:
            what = "Some class names look alike:"
            problems = [f"{old!r} and {new!r}" for old, new in self.alike.items()]
        number = len(self.classes)
        problems.append(
            f"as they are, the task would have {number} classes: {list_some(self.classes, 12)}"
        )
        mapped = " ".join(f"--class-map {_quote(f'{a}={b}')}" for a, b in self.alike.items())
        same = mapped or "--class-map OTHER=NAME for each pair"
        fix = f"if they mean the same: {same}; if they are different classes: --merge-classes"
        return NeedsError(what, problems=problems, fix=fix)


def question_classes(uploads: Sequence[Upload]) -> ClassQuestion | None:
    """Ask about class lists without a common class, and about names that look alike.

    Returns:
        The question; None where every client shares a class with another and all names differ.
    """
    lists = {
        upload.client: tuple(
            dict.fromkeys(name for part in upload.parts.values() for name in part.classes)
        )
        for upload in uploads
    }
    groups = _connect(lists)
    alike = _find_alike(lists, [classes for _, classes in groups])
    if len(groups) == 1 and not alike:
        return None
    classes = tuple(dict.fromkeys(name for names in lists.values() for name in names))
    return ClassQuestion(tuple(groups), alike, classes)


def _connect(lists: dict[str, tuple[str, ...]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Clients in groups, the largest first: two groups share no class."""
    groups: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    for client, names in lists.items():
        touching = [group for group in groups if set(group[1]) & set(names)]
        clients = (*(one for group in touching for one in group[0]), client)
        classes = dict.fromkeys([*(name for group in touching for name in group[1]), *names])
        groups = [group for group in groups if group not in touching]
        groups.append((clients, tuple(classes)))
    return sorted(groups, key=lambda group: -len(group[0]))


def _find_alike(
    lists: dict[str, tuple[str, ...]], groups: Sequence[tuple[str, ...]]
) -> dict[str, str]:
    """Names that no client tells apart and that look alike: from one group to another, or that
    differ in capitals alone. Of very many names, only equal words count as alike.
    """
    group_of = {name: number for number, classes in enumerate(groups) for name in classes}
    clients_of: dict[str, set[str]] = {}
    for client, names in lists.items():
        for name in names:
            clients_of.setdefault(name, set()).add(client)
    few = len(group_of) <= COMPARED
    earlier: dict[str, tuple[str, ...]] = {}  # name -> words, without those that look like others
    same_words: dict[tuple[str, ...], list[str]] = {}
    alike: dict[str, str] = {}
    for old in group_of:
        words = _words(old)
        for new in earlier if few else same_words.get(words, ()):
            if clients_of[old] & clients_of[new]:
                continue
            others = earlier[new]
            if words == others or (group_of[old] != group_of[new] and _contain(words, others)):
                alike[old] = new
                break
        else:
            earlier[old] = words
            same_words.setdefault(words, []).append(old)
    return alike


def _words(name: str) -> tuple[str, ...]:
    """The words of a name, without capitals, punctuation and the s of a plural."""
    words = re.findall(r"\w+?(?=_|\b)", name.casefold().replace("_", " "))
    return tuple(word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words)


def _contain(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether one name has all words of the other: ``photos-normal`` and ``normal``."""
    return bool(words and others) and (set(words) <= set(others) or set(others) <= set(words))


def _quote(text: str) -> str:
    return f"'{text}'" if re.search(r"[^\w=.,:/-]", text) else text
