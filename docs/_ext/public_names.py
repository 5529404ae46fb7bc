"""The reference speaks of public names: ``attar.Upload`` rather than the module that defines it."""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import attar


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Lead a reference to ``attar.some.module.Name`` to ``attar.Name`` where that is public."""
    target = str(node.get("reftarget", ""))
    name = target.rpartition(".")[2]
    if (
        node.get("refdomain") != "py"
        or not target.startswith("attar.")
        or name not in attar.__all__
    ):
        return None
    domain = env.domains["py"]
    matches = domain.resolve_any_xref(
        env, node["refdoc"], app.builder, f"attar.{name}", node, content
    )
    return matches[0][1] if matches else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
