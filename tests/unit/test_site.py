"""The documentation as ``make docs`` built it: it needs no network, no link is broken, and every
formula can be read.
"""

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
FOREIGN = re.compile(r"^(?:[a-z]+:)?//", re.I)  # http://…, https://…, //…
# attributes whose file a browser fetches
LOADED = {"src", "srcset", "data", "poster", "background", "xlink:href"}

pytestmark = pytest.mark.docs


class Page(HTMLParser):
    """What a page loads, where it links to, and the places that a link may name."""

    def __init__(self, path):
        super().__init__()
        self.loads = []
        self.links = []
        self.ids = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in LOADED or (tag == "link" and name == "href"):
                self.loads.append(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            if name == "style":
                self.loads.extend(css_loads(value))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)


def css_loads(text):
    """The files that a style sheet names."""
    return re.findall(r"url\(\s*['\"]?([^'\")]+)", text) + re.findall(
        r"@import\s+['\"]([^'\"]+)", text
    )


@pytest.fixture(scope="module")
def pages():
    assert (SITE / "index.html").exists(), "run: make docs"
    return {path: Page(path) for path in sorted(SITE.rglob("*.html"))}


def test_pages_load_nothing_from_another_host(pages):
    foreign = {
        (path.name, address)
        for path, page in pages.items()
        for address in page.loads
        if FOREIGN.match(address)
    }
    assert not foreign


def test_style_sheets_load_nothing_from_another_host():
    sheets = list(SITE.rglob("*.css"))
    assert sheets
    assert not {
        (sheet.name, address)
        for sheet in sheets
        for address in css_loads(sheet.read_text())
        if FOREIGN.match(address)
    }


def test_every_file_that_a_page_loads_is_there(pages):
    for path, page in pages.items():
        for address in page.loads:
            if not address.startswith(("data:", "#")):
                assert (path.parent / unquote(re.split(r"[?#]", address)[0])).exists(), (
                    f"{path.name}: {address}"
                )


def test_fonts_of_the_formulas_are_there():
    sheet = SITE / "_static" / "katex" / "katex.min.css"
    text = sheet.read_text()
    fonts = css_loads(text)
    assert len(fonts) == 12
    assert all(font.startswith("data:font/woff2;base64,") for font in fonts)
    families = set(re.findall(r"@font-face\{font-display:block;font-family:(\w+)", text))
    used = {"AMS", "Caligraphic", "Main", "Math", "Size1", "Size2", "Size3", "Size4"}
    assert families == {f"KaTeX_{name}" for name in used}


def test_internal_links_lead_to_a_page_and_a_heading(pages):
    for path, page in pages.items():
        for link in page.links:
            if FOREIGN.match(link) or link.startswith("mailto:"):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.exists(), f"{path.name}: {link}"
            assert not anchor or target.suffix != ".html" or anchor in pages[target].ids, (
                f"{path.name}: {link}"
            )


@pytest.mark.browser
def test_every_formula_renders(pages, tmp_path):
    names = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
    browser = os.environ.get("ATTAR_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    assert browser, "headless Chromium is needed: put it on the path or name it in ATTAR_CHROMIUM"
    with_maths = [path for path in pages if "katex/render.js" in path.read_text()]
    for path in with_maths:
        shown = subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                f"--user-data-dir={tmp_path}",
                "--dump-dom",
                path.as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        assert 'class="katex"' in shown, path.name
        assert "katex-error" not in shown, path.name
