"""``python -m attar``."""

import sys

from attar.cli import main

if __name__ == "__main__":
    sys.exit(main())
