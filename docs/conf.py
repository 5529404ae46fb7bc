"""Settings of the documentation site. ``make docs`` builds it into docs/_build/html."""

import sys
from pathlib import Path

import attar

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "attar"
author = "The attar authors"
copyright = author
version = release = attar.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "katex",
    "public_names",
    "repository_links",
]
exclude_patterns = ["_build"]

# Markdown
myst_enable_extensions = [
    "amsmath",
    "attrs_block",
    "attrs_inline",
    "colon_fence",
    "deflist",
    "dollarmath",
]
myst_heading_anchors = 4  # page.md#heading, spelled as on GitHub; a wrong one is a warning
myst_update_mathjax = False
highlight_language = "text"  # of blocks that name no language: commands and what they print

# Maths: vendored, see _ext/katex.py
html_math_renderer = "katex"

# The reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 96

# only the public names have a place to link to
nitpick_ignore_regex = [("py:.*", r"(?!attar\.\w+$).*")]

# Pages
html_theme = "furo"
html_title = f"attar {release}"
html_static_path = ["_static"]
html_css_files = sorted(path.name for path in Path(__file__).parent.glob("_static/*.css"))
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"footer_icons": []}


def tidy_signature(
    app: object,
    what: str,
    name: str,
    member: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write default factories as ``...`` and leave out the parameter that catches old keywords."""
    if signature is not None:
        signature = signature.replace("<factory>", "...")
        signature = signature.replace(", **unknown: ~typing.Never", "")
    return signature, returns


def setup(app) -> None:  # type: ignore[no-untyped-def]
    """Connect the hook."""
    app.connect("autodoc-process-signature", tidy_signature)
