"""Links to folders of the repository, such as ``[results](../results)``, become plain text: the
site has no such page.

Links to single files (a table, a recipe) stay links: MyST copies the file into the site.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#]*|\.\.)\)")


def replace_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Take away the links that lead to a folder outside of ``docs``."""
    here = Path(app.env.doc2path(page)).parent

    def text_or_link(link: re.Match[str]) -> str:
        return link[1] if (here / link[2]).is_dir() else link[0]

    source[0] = LINK.sub(text_or_link, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register it."""
    app.connect("source-read", replace_folders)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
