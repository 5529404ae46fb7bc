"""References lead to public names: ``attar.Upload`` rather than the module that defines it."""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import attar


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Node | None:
    """Resolve a reference to ``attar.package.module.Name`` by the public name of the same object.

    That is ``attar.Name``, or else ``attar.package.Name`` where the reference documents it.
    """
    target = str(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or not target.startswith("attar."):
        return None
    module, _, name = target.rpartition(".")
    places = [f"attar.{name}"] if name in attar.__all__ else []
    while "." in module:
        module = module.rpartition(".")[0]
        places.append(f"{module}.{name}")
    domain = env.domains["py"]
    for place in places:
        found = domain.resolve_any_xref(env, node["refdoc"], app.builder, place, node, content)
        if found:
            return found[0][1]
    return None


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
