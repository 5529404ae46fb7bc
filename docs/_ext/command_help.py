"""The directive ``attar-help``: what ``attar VERB --help`` prints, as this version prints it."""

import os
from contextlib import redirect_stdout
from io import StringIO
from unittest.mock import patch

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

from attar.cli import main

COLUMNS = "96"


def help_of(command: str) -> str:
    """The help text of a command such as ``train`` or ``network init``."""
    shown = StringIO()
    with patch.dict(os.environ, {"COLUMNS": COLUMNS, "NO_COLOR": "1"}), redirect_stdout(shown):
        try:
            main([*command.split(), "--help"])
        except SystemExit as ended:
            if ended.code:
                raise ValueError(f"attar {command} --help ends with status {ended.code}") from ended
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines())


class CommandHelp(Directive):
    """``attar-help`` with the command as its argument."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """The usage line, the description as text, and the options."""
        usage, *blocks = help_of(self.arguments[0]).split("\n\n")
        # options are indented
        first = next(number for number, block in enumerate(blocks) if block.startswith(" "))
        description = [nodes.paragraph("", block) for block in blocks[:first]]
        return [
            _literal(usage.removeprefix("usage: ")),
            *description,
            _literal("\n\n".join(blocks[first:])),
        ]


def _literal(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("attar-help", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
