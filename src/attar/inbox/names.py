"""Names of partners and addresses of servers."""

import re

from attar.errors import SettingsError

# A client's name in an upload, but without spaces: names are part of commands and addresses.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
NAME_RULE = "1 to 64 letters, digits or . _ @ + -"
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def parse_address(text: str) -> tuple[str, int]:
    """``fl.example.org:9080`` -> host and port.

    Raises:
        SettingsError: It is no address.
    """
    host, _, port = text.rpartition(":")
    if not HOST.fullmatch(host) or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise SettingsError(
            f"{text!r} is not an address.",
            fix="name the server as the partners reach it, such as fl.example.org:9080",
        )
    return host, int(port)
