"""Packages that come with an extra of attar."""

from importlib import import_module
from typing import Any

from attar.errors import SettingsError


def import_extra(name: str, extra: str) -> Any:
    """Import a package that is not always installed.

    Args:
        name: of the package.
        extra: of attar, which brings it.

    Raises:
        SettingsError: if it cannot be imported, with the line that installs it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise SettingsError(
            f"This needs the package {name}, which cannot be imported: {error}.",
            fix=f"pip install 'attar[{extra}]', or '.[{extra}]' in a clone",
        ) from None
