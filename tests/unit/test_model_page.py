"""The page of a fused model: the model beside its clients, what they sent, its pictures."""

import json
import re

import numpy as np
import pytest
from chromium import PAPER, Chromium, browser, look_at
from PIL import Image

from attar.cli import main
from attar.fusion import fuse
from attar.methods import METHODS
from attar.testing import CLASSES, SMALL_DECODERS, SMALL_NETS, tiny_world
from attar.uploads import write_bundle


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A fused model of three clients, one of which sent a decoder; their files; test images."""
    home = tmp_path_factory.mktemp("model")
    world = tiny_world((*SMALL_NETS[:1] * 2, *SMALL_DECODERS[:1]))
    method = METHODS["fedmho"](samples=60, epochs=1)
    fuse(world.uploads, method, world.server, out=home / "fused", robustness=True)
    for upload in world.uploads:
        write_bundle(home / f"{upload.client}.attar", upload)
    random = np.random.default_rng(0)
    for name in CLASSES:
        (home / "images" / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 255, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(home / "images" / name / f"{number}.png")
    return home


def page_of(home, *words):
    page = home / "page.html"
    assert main(["report", str(home / "fused"), "-o", str(page), *words]) == 0
    return page


def measured(home):
    files = [str(home / f"client{number}.attar") for number in range(3)]
    data = ["--data", f"folder:{home / 'images'}", "--split", "all"]
    return page_of(home, *data, "--uploads", *files)


def facts_of(page):
    found = re.search(r'id="facts">(.*?)</script>', page.read_text(), re.S)
    return json.loads(found[1].replace("<\\/", "</"))


def test_page_without_images_says_how_to_measure(home):
    page = page_of(home)
    text = page.read_text()
    assert "fused by fedmho from 3 clients" in text
    assert "Nothing was measured yet." in text
    assert "--data folder:own-test-images" in text
    (federation,) = facts_of(page)["federations"]
    assert federation["clients"] == ["client0", "client1", "client2"]
    assert federation["alone"] == [None, None, None]


def test_page_compares_the_model_with_each_client(home):
    page = measured(home)
    text, facts = page.read_text(), facts_of(page)
    assert "this model (fedmho)" in text
    assert "client0 alone" in text
    assert "12 images, all of folder:" in text
    assert "not known: the clients" in text  # central training
    (federation,) = facts["federations"]
    assert [value is None for value in federation["alone"]] == [False, False, True]
    assert [len(line) for line in federation["per_class"][:2]] == [len(CLASSES)] * 2
    (run,) = facts["runs"]
    assert run["accuracy"] == pytest.approx(np.mean(run["per_class"]), abs=0.01)


def test_page_shows_pictures_and_robustness(home):
    text = page_of(home).read_text()
    pictures = text[text.index('<section id="pictures">') :].split("</section>")[0]
    files = {path.name for path in (home / "fused").iterdir() if path.suffix in (".png", ".svg")}
    assert len(files) == 4
    for file in files:
        assert f"<code>{file}</code></figcaption>" in pictures
    assert pictures.count('<img src="data:image/') == 4
    assert f"Each row is a class, from the top: {', '.join(CLASSES)}." in pictures
    robustness = text[text.index('<section id="robustness">') :].split("</section>")[0]
    assert all(f'scope="row">client{number}<' in robustness for number in range(3))
    assert "Not on this page" not in text


def test_report_of_a_model_refuses_what_does_not_fit(home, tmp_path, capsys):
    assert main(["report", str(home / "fused"), "--uploads", str(home / "client0.attar")]) == 2
    assert "--data SOURCE" in capsys.readouterr().err
    stranger = tmp_path / "stranger.attar"
    (upload,) = tiny_world(SMALL_NETS[:1]).uploads
    write_bundle(stranger, type(upload)("stranger", upload.parts, upload.num_examples))
    data = ["--data", f"folder:{home / 'images'}"]
    assert main(["report", str(home / "fused"), *data, "--uploads", str(stranger)]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "was not fused from stranger" in said
    assert "give the files of client0, client1, client2" in said
    (tmp_path / "records").mkdir()
    assert main(["report", str(tmp_path), *data]) == 2
    assert "holds no fused model" in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_browser_shows_the_model(home, width):
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    page = measured(home)
    chromium = Chromium(browser())
    try:
        chromium.open(f"file://{page}", width)
        found = chromium.run("""
        const marks = (name) => document.querySelectorAll(`#${name} figure :is(rect, i, img)`).length;
        const words = document.querySelector("#classes figure").textContent;
        return { wide: document.documentElement.scrollWidth - innerWidth, words,
          marks: ["best", "clients", "classes", "confusion", "pictures"].map(marks) };
        """)
        assert chromium.heard("Runtime.exceptionThrown") == []
    finally:
        chromium.close()
    assert found["wide"] <= 0
    assert min(found["marks"]) >= 1
    assert "client0 alone" in found["words"]


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme", "media"),
    [(1200, "dark", ""), (390, "light", ""), (PAPER, "light", "print")],
)
def test_browser_shows_all_of_the_model_page(home, width, scheme, media):
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    found = look_at(f"file://{measured(home)}", width, scheme, media)
    assert found["pale"] == []
    assert found["cut"] == []
    assert found["bare"] == []
    assert found["wide"] <= 0
