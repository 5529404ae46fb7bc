"""Every command and program of docs/deploy.md, in its order."""

import json
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from PIL import Image

from attar.core import ModelSpec, Part, Preprocess
from attar.data import load_data
from attar.models import save_model

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()


def blocks(kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.S)


def attar_commands(block):
    for line in block.splitlines():
        if line.startswith("attar "):
            yield shlex.split(line, comments=True)[1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of fashion-mini's classes, and pictures to classify."""
    home = tmp_path_factory.mktemp("deploy")
    data = load_data("fashion-mini")
    spec = ModelSpec.parse("lenet5")
    part = Part(
        spec,
        spec.build((1, 28, 28), 10, 0).state_dict(),
        data.classes,
        Preprocess.centred((1, 28, 28)),
    )
    save_model(home / "fused", part, card=None)
    (home / "scans").mkdir()
    for number in range(3):
        picture = Image.fromarray(data.test.images[number, :, :, 0]).resize((90, 60))
        picture.save(home / "scans" / f"{number}.png")
    for name in ("scan.png", "scan2.png"):
        picture.save(home / name)
    return home


def test_page_has_what_is_run_here():
    verbs = [command[0] for block in blocks("bash") for command in attar_commands(block)]
    assert verbs == ["export", "export", "serve", "predict"]
    assert len(blocks("python")) == 2


def test_export_commands_and_programs(folder):
    for command in attar_commands(blocks("bash")[0]):
        run(*command, cwd=folder)
    for program in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.modules['attar'] = None\n" + program],
            cwd=folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert any(name in done.stdout for name in load_data("fashion-mini").classes)


def test_serve_command_and_requests(folder):
    serve, requests = blocks("bash")[1:3]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (command,) = attar_commands(serve.replace("8000", port))
    process = subprocess.Popen(
        [sys.executable, "-m", "attar", *command], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert f"http://127.0.0.1:{port}/" in process.stdout.readline()
        answers = []
        for line in requests.replace("8000", port).splitlines():
            done = subprocess.run(
                shlex.split(line), cwd=folder, capture_output=True, text=True, timeout=60
            )
            assert done.returncode == 0, done.stderr
            answers.append(json.loads(done.stdout))
    finally:
        process.terminate()
        process.communicate(timeout=30)
    several, one, model = answers
    (example,) = map(json.loads, blocks("json"))
    assert several.keys() == example.keys()
    assert several["results"][0].keys() == example["results"][0].keys()
    assert [result["image"] for result in several["results"]] == ["scan.png", "scan2.png"]
    assert [len(result["top"]) for result in several["results"]] == [3, 3]
    assert one["results"][0]["class"] == several["results"][0]["class"]
    assert len(model["classes"]) == 10


def test_gallery_command(folder):
    (command,) = attar_commands(blocks("bash")[3])
    run(*command, cwd=folder)
    assert (folder / "page.html").read_text().count('<li class="card') == 3


def test_numbers_of_the_page(folder):
    """The limits and tolerances that it names are those of the code."""
    from attar.deploy import LARGEST_DIFFERENCE, MOST_SHOWN, Limits
    from attar.deploy.files import BATCHES, OPSET

    usual = Limits()
    assert f"more than {LARGEST_DIFFERENCE:.0e}".replace("e-04", "e-4") in PAGE
    assert f"{2 * sum(BATCHES)} random images" in PAGE
    assert f"opset {OPSET}" in PAGE
    assert f"more than {MOST_SHOWN} images" in PAGE
    assert f"{usual.bytes // 1_000_000} MB and {usual.images} images" in PAGE
    assert f"{usual.pixels // 1_000_000} million pixels" in PAGE
    assert f"{usual.seconds:.0f} seconds" in PAGE
