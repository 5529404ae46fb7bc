"""The web service and the gallery: answers as of `attar predict`, limits, pages that load nothing
from elsewhere; one real start; and in a browser, images that are chosen.
"""

import asyncio
import io
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from chromium import PAPER, Chromium, browser, look_at
from PIL import Image

from attar.cli import main
from attar.core import ModelSpec, Part, Preprocess
from attar.deploy import Answer, Limits, allowed_hosts, gallery_page, make_service, unsure_first
from attar.deploy.answers import UNSURE, draw_thumbnail
from attar.errors import SettingsError
from attar.models import Classifier, save_model

CLASSES = ("cat", "<b>dog</b>", "bird & co")
TOKEN = "----attar"


def part():
    spec = ModelSpec.parse("mlp:hidden=16,layers=1")
    net = spec.build((3, 12, 10), 3, 0)
    state = {name: 4 * tensor for name, tensor in net.state_dict().items()}  # answers that differ
    return Part(spec, state, CLASSES, Preprocess.centred((3, 12, 10)))


def picture(seed=0, size=(30, 20), kind="PNG", mode="RGB"):
    """The bytes of an image file; ``size`` is width and height."""
    draw = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (size[1], size[0], 3), generator=draw, dtype=torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).convert(mode).save(file, kind)
    return file.getvalue()


def form(*files):
    """A form with files, as browsers and curl send it: body and headers."""
    parts = [
        f'--{TOKEN}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        f"Content-Type: application/octet-stream\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, data in files
    ]
    body = b"".join([*parts, f"--{TOKEN}--\r\n".encode()])
    return body, {"content-type": f"multipart/form-data; boundary={TOKEN}"}


class Client:
    """Requests to an ASGI application in this process."""

    def __init__(self, **words):
        self.app = make_service(Classifier(part()), "<i>pets</i>", **words)

    def ask(self, method, path, body=b"", headers=None, *, pause=0.0, length=True):
        """Status, headers and body of the answer; ``pause`` seconds lie before the last byte."""
        given = {"host": "127.0.0.1:8000", **(headers or {})}
        if length:
            given.setdefault("content-length", str(len(body)))
        bare, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": bare, "raw_path": bare.encode(),
            "query_string": query.encode(), "root_path": "",
            "headers": [(key.lower().encode(), value.encode()) for key, value in given.items()],
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        pieces = [body[:-1], body[-1:]] if body else [b""]
        sent = []

        async def receive():
            if not pieces:
                await asyncio.sleep(3600)
            piece = pieces.pop(0)
            if pause and not pieces:
                await asyncio.sleep(pause)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        async def send(message):
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        told = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
        return sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent)

    def json(self, *words, **more):
        status, _, body = self.ask(*words, **more)
        return status, json.loads(body)


@pytest.fixture(scope="module")
def client():
    return Client(hosts=allowed_hosts("127.0.0.1"))


def test_answers_are_those_of_predict(client, tmp_path, capsys):
    """For several sizes and kinds, in one request; and what a program computes by itself."""
    files = {
        "a.png": picture(1), "b.jpg": picture(2, (64, 48), "JPEG"),
        "c.png": picture(3, (10, 12), mode="L"), "d.png": picture(4, (300, 7), mode="P"),
    }  # fmt: skip
    status, told = client.json("POST", "/predict?top=2", *form(*files.items()))
    assert status == 200
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    save_model(tmp_path / "pets", part(), card=None)
    paths = [str(tmp_path / name) for name in files]
    assert main(["predict", str(tmp_path / "pets"), *paths, "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    for result, row, name in zip(told["results"], predicted, files, strict=True):
        assert result["image"] == name
        assert result["class"] == row["class"]
        assert result["probability"] == pytest.approx(row["probability"], abs=1e-5)
        assert result["top"][0]["probability"] == result["probability"]
        assert len(result["top"]) == 2
    assert len({result["probability"] for result in told["results"]}) == 4


def test_one_image_as_the_body(client):
    status, told = client.json(
        "POST", "/predict?name=x.png", picture(), {"content-type": "image/png"}
    )
    assert status == 200
    assert told["results"][0]["image"] == "x.png"
    assert len(told["results"][0]["top"]) == 3


def test_broken_image_beside_a_good_one(client):
    status, told = client.json(
        "POST", "/predict", *form(("good.png", picture()), ("bad.png", b"GIF89a"))
    )
    assert status == 200
    assert "class" in told["results"][0]
    assert told["results"][1] == {"image": "bad.png", "error": "not a PNG or JPEG image"}
    cut = picture(size=(90, 90))[:900]
    status, told = client.json("POST", "/predict", *form(("cut.png", cut)))
    assert status == 400
    assert "error" in told["results"][0]


def test_model_and_health(client):
    status, told = client.json("GET", "/model")
    assert status == 200
    assert told["classes"] == list(CLASSES)
    assert told["image"] == {"channels": 3, "height": 12, "width": 10}
    assert client.json("GET", "/health") == (200, {"status": "ok"})
    assert client.ask("GET", "/nothing")[0] == 404
    assert client.ask("GET", "/predict")[0] == 405


@pytest.mark.parametrize(
    ("limits", "body", "status", "says"),
    [
        (Limits(bytes=500), form(("a.png", picture())), 413, "A request may have 500 B"),
        (Limits(images=1), form(("a.png", picture()), ("b.png", picture())), 400, "Too many files"),
        (Limits(pixels=599), form(("a.png", picture())), 400, "30 x 20 pixels"),
        (Limits(), form(), 400, "There is no image"),
        (Limits(), (b"a=1", {"content-type": "text/plain"}), 415, "multipart/form-data"),
        (Limits(), (b"--x", {"content-type": "multipart/form-data; boundary=y"}), 400, "damaged"),
    ],
)
def test_limits(limits, body, status, says):
    found, _, text = Client(limits=limits).ask("POST", "/predict", *body)
    assert found == status
    assert says in text.decode()


def test_bytes_are_limited_without_a_stated_length():
    body, headers = form(("a.png", picture()))
    client = Client(limits=Limits(bytes=500))
    assert client.ask("POST", "/predict", body, headers, length=False)[0] == 413
    assert client.ask("POST", "/predict", body, {**headers, "content-length": "9"})[0] == 413


def test_time_is_limited():
    body, headers = form(("a.png", picture()))
    begun = time.monotonic()
    status, told = Client(limits=Limits(seconds=0.2)).json(
        "POST", "/predict", body, headers, pause=20
    )
    assert status == 503
    assert "more than 0.2 s" in told["error"]
    assert time.monotonic() - begun < 10


def test_pixels_are_counted_before_decoding(monkeypatch):
    """A small file may unpack to gigabytes."""
    from attar.deploy import service

    monkeypatch.setattr(service, "read_images", lambda *_, **__: pytest.fail("decoded"))
    status, told = Client(limits=Limits(pixels=599)).json(
        "POST", "/predict", *form(("a.png", picture()))
    )
    assert status == 400
    assert "at most 0.000599 million" in told["results"][0]["error"]


def test_too_many_requests_are_refused():
    """Two requests at once where one may wait, and afterwards one alone."""
    client = Client(limits=Limits(waiting=1))
    body, headers = form(("a.png", picture()))
    service = client.app.routes[-1].endpoint.__self__
    service._seats.acquire()
    status, told = client.json("POST", "/predict", body, headers)
    assert status == 503
    assert "Too many requests" in told["error"]
    service._seats.release()
    for _ in range(3):  # one after the other: each is over before the next
        assert client.ask("POST", "/predict", body, headers)[0] == 200
    with pytest.raises(ValueError, match="released too many"):
        service._seats.release()  # every seat is free again


def test_time_of_classifying_is_limited(monkeypatch):
    """The images that are left when the time is over are not classified."""
    client = Client(limits=Limits(seconds=0.5))
    service = client.app.routes[-1].endpoint.__self__
    begun = []

    def answer_slowly(name, *_, **__):
        begun.append(name)
        time.sleep(0.2)
        return Answer(name, (("cat", 1.0),))

    monkeypatch.setattr(service, "_answer_one", answer_slowly)
    images = [(f"{number}.png", picture()) for number in range(20)]
    status, told = client.json("POST", "/predict", *form(*images))
    assert status == 503
    assert "more than 0.5 s" in told["error"]
    service._worker.shutdown()
    assert 1 <= len(begun) < 10


def test_other_sites_are_refused(client):
    assert client.ask("GET", "/model", headers={"host": "evil.example"})[0] == 400
    body, headers = form(("a.png", picture()))
    status, _ = client.json("POST", "/predict", body, {**headers, "sec-fetch-site": "cross-site"})
    assert status == 403
    assert allowed_hosts("0.0.0.0") is None


@pytest.mark.parametrize("top", ["0", "x", "1001", "-1"])
def test_top_is_checked(client, top):
    status, told = client.json("POST", f"/predict?top={top}", *form(("a.png", picture())))
    assert status == 400
    assert "whole number" in told["error"]


def test_pages_load_nothing_from_elsewhere(client):
    status, told, body = client.ask("GET", "/")
    assert status == 200
    assert "default-src 'none'" in told["content-security-policy"]
    page = body.decode()
    assert set(re.findall(r'(?:src|href|action)="([^"]*)"', page)) == {"/service.js", "/predict"}
    assert "&lt;i&gt;pets&lt;/i&gt;" in page
    assert "<b>dog" not in page
    assert client.ask("GET", "/service.js")[1]["content-type"].startswith("text/javascript")


def test_form_without_script_gets_a_page(client):
    """Names of images and classes come from strangers."""
    body, headers = form(("<script>.png", picture(0, (200, 180))), ("bad.png", b"x"))
    status, told, page = client.ask("POST", "/predict", body, {**headers, "accept": "text/html"})
    text = page.decode()
    assert status == 200
    assert told["content-type"].startswith("text/html")
    assert text.count('class="card') == 2 + text.count('class="cards"')
    assert "<script>.png" not in text
    assert "&lt;script&gt;.png" in text
    assert "data:image/jpeg;base64," in text


def test_limits_are_positive():
    with pytest.raises(SettingsError, match="images = 0"):
        Limits(images=0)


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(SettingsError, match=r"starlette.*\n.*pip install 'attar\[serve\]'"):
        make_service(Classifier(part()), "pets")


# The gallery


def test_gallery_shows_unsure_answers_first(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for seed in range(12):
        (tmp_path / "images" / f"{seed}&.png").write_bytes(picture(seed))
    save_model(tmp_path / "pets", part(), card=None)
    page = tmp_path / "page.html"
    words = ["predict", str(tmp_path / "pets"), str(tmp_path / "images")]
    assert main([*words, "--gallery", str(page)]) == 0
    assert "12 predictions shown in" in capsys.readouterr().out
    text = page.read_text()
    found = [float(value) for value in re.findall(r'class="best">.*? <b>([\d.]+)%</b>', text)]
    assert len(found) == 12
    assert found == sorted(found)
    assert text.count('<span class="mark">') == sum(value < 100 * UNSURE for value in found) > 0
    assert text.count("data:image/") == 12 + text.count('^="data:image/')
    assert "//" not in re.sub(r"base64,[^\"]*", "", text)  # no address of a host
    assert main([*words, "--gallery", str(tmp_path / "page.txt")]) == 2


def test_gallery_of_broken_and_nothing():
    answers = [
        Answer("a", (("x", 0.9),)), Answer("b", problem="cut <off>"), Answer("c", (("y", 0.2),)),
    ]  # fmt: skip
    ordered = unsure_first(answers)
    assert [answer.image for answer in ordered] == ["b", "c", "a"]
    text = gallery_page("T", ordered)
    assert "cut &lt;off&gt;" in text
    assert "3 images, 1 unsure" in text
    assert "0 images" in gallery_page("T", [])


def test_thumbnails_are_small():
    large = draw_thumbnail(picture(0, (1600, 900), "JPEG"))
    assert large is not None
    assert large.startswith("data:image/jpeg")
    assert len(large) < 60_000
    tiny = draw_thumbnail(picture(0, (8, 8)))
    assert tiny is not None
    assert tiny.startswith("data:image/png")
    assert draw_thumbnail(b"nothing") is None


def test_port_in_use_is_said(tmp_path, capsys):
    save_model(tmp_path / "pets", part(), card=None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path / "pets"), "--port", port]) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"127.0.0.1:{port} cannot be listened on" in said
    assert "choose another --port" in said


# A real start


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    save_model(folder / "pets", part(), card=None)
    process = subprocess.Popen(
        [sys.executable, "-m", "attar", "serve", str(folder / "pets"), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = process.stdout.readline()
    (found,) = re.findall(r"http://127\.0\.0\.1:\d+/", line) or [process.stderr.read()]
    yield found
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode in (0, 130)
    assert "Traceback" not in said


def test_service_starts_and_ends(address):
    with urllib.request.urlopen(f"{address}health", timeout=30) as reply:
        assert json.load(reply) == {"status": "ok"}
    body, headers = form(("a.png", picture(1)), ("b.png", picture(2)))
    request = urllib.request.Request(f"{address}predict", body, headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        assert [result["image"] for result in json.load(reply)["results"]] == ["a.png", "b.png"]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_browser_shows_answers(address, width, tmp_path):
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    names = []
    for seed in range(3):
        (tmp_path / f"{seed}.png").write_bytes(picture(seed, (400, 300)))
        names.append(str(tmp_path / f"{seed}.png"))
    chromium = Chromium(browser())
    try:
        chromium.open(address, width)
        chromium.ask("DOM.enable", chromium.session)
        root = chromium.ask("DOM.getDocument", chromium.session)["root"]["nodeId"]
        chosen = chromium.ask(
            "DOM.querySelector", chromium.session, nodeId=root, selector="input[type=file]"
        )
        for number in (1, 2):
            chromium.ask("DOM.setFileInputFiles", chromium.session, files=names, **chosen)
            end = time.monotonic() + 30
            while chromium.run("return document.querySelectorAll('.card').length;") < 3 * number:
                assert time.monotonic() < end
                time.sleep(0.1)
        wide = chromium.run("return document.documentElement.scrollWidth > window.innerWidth;")
        assert not wide
        assert chromium.heard("Runtime.exceptionThrown") == []
        assert [
            told for told in chromium.heard("Log.entryAdded") if told["entry"]["level"] == "error"
        ] == []
        asked = {
            event["request"]["url"].split("/")[2]
            for event in chromium.heard("Network.requestWillBeSent")
            if not event["request"]["url"].startswith("data:")
        }
        assert asked == {address.split("/")[2]}
    finally:
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize(
    ("width", "scheme", "media"),
    [(1200, "dark", ""), (390, "light", ""), (PAPER, "light", "print")],
)
def test_browser_shows_all_of_the_gallery(width, scheme, media, tmp_path):
    """Nothing is cut: class and file names are broken where they are long."""
    assert browser() is not None, "there is no Chromium here; $ATTAR_CHROMIUM may name one"
    long = "pneumothorax-with-pleural-effusion"
    answers = [Answer(f"{'scan-' * 30}{number}.png", ((long, 0.4), ("normal", 0.3)))
               for number in range(4)]  # fmt: skip
    page = tmp_path / "gallery.html"
    page.write_text(gallery_page("What the model sees", answers))
    found = look_at(f"file://{page}", width, scheme, media)
    assert found["pale"] == []
    assert found["cut"] == []
    assert found["wide"] <= 0
