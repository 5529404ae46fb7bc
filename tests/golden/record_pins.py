"""Record ``pins.json`` again: ``python tests/golden/record_pins.py``.

Do so only when results are meant to change, and say why in CHANGELOG.
"""

import json

from numerics import numerics
from test_pins import PINS, PINS_FILE, calculate


def main() -> None:
    """Calculate every pin and write them, one a line."""
    pins = []
    for name in PINS:
        pin = json.dumps(calculate(name), separators=(",", ":"))
        pins.append(f"{json.dumps(name)}: {pin}")
    machine = json.dumps(numerics())
    lines = [f'{{"numerics": {machine},', '"pins": {', ",\n".join(pins), "}}"]
    PINS_FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
