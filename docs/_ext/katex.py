"""Maths by KaTeX 0.19.1 (MIT, _static/katex/LICENSE), from this folder and never from another
host.

Vendored are ``katex.min.js`` and ``katex.min.css`` of the npm package ``katex``. The style sheet
holds the ``woff2`` fonts that our formulas use, as data (AMS, Caligraphic, Main, Math, Size): not
those of ``\\mathfrak``, ``\\mathscr``, ``\\mathsf`` and ``\\mathtt``. A page without maths does not
load it; without JavaScript a reader sees the LaTeX source.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write the LaTeX of an inline formula for ``render.js``."""
    opening = self.starttag(node, "span", "", CLASS="math notranslate nohighlight")
    self.body.append(f"{opening}{self.encode(node.astext())}</span>")
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write the LaTeX of a displayed formula, with its number where it has one."""
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node.get("number"):
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    source = node.astext()
    if "\\\\" in source and "\\begin" not in source:
        source = f"\\begin{{aligned}}{source}\\end{{aligned}}"
    self.body.append(f'<span class="formula">{self.encode(source)}</span></div>\n')
    raise nodes.SkipNode


def add_files(
    app: Sphinx,
    page: str,
    template: str,
    context: dict[str, object],
    doctree: nodes.document | None,
) -> None:
    """Load KaTeX on the pages that have maths."""
    if doctree is not None and any(
        doctree.findall(lambda node: isinstance(node, nodes.math | nodes.math_block))
    ):
        app.add_css_file("katex/katex.min.css")
        app.add_js_file("katex/katex.min.js", loading_method="defer")
        app.add_js_file("katex/render.js", loading_method="defer")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("katex", (visit_inline, None), (visit_block, None))
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
