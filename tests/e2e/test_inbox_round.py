"""The inbox on loopback with TLS: separate processes, nothing faked, and what goes wrong."""

import hashlib
import http.client
import json
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("hypercorn", reason="the server of an inbox needs it")
pytest.importorskip("cryptography", reason="the server makes its certificate with it")

from commands import run
from processes import Line, free_port, until, world

from attar.inbox.certificate import make_certificate
from attar.inbox.folder import Journal
from attar.inbox.invitation import read_invitation
from attar.models import load_model
from attar.network.hosting import find_descendants
from attar.testing import tiny_upload
from attar.uploads import write_bundle

__all__ = ["world"]  # a fixture
CLASSES = ("a", "b", "c")
LARGE = "mlp:hidden=2048,layers=3"  # 34 MB
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


class Inbox:
    """An inbox with its server and its partners, below the folder of a test."""

    def __init__(self, world, *partners):
        self.world, self.home, self.port = world, world.home, free_port()
        self.path = world.home / "inbox"
        for name in partners:
            address = f"127.0.0.1:{self.port}"
            run("inbox", "invite", name, "--address", address, cwd=self.home)

    def serve(self, *words, name="server", descriptors=None):
        attar = [sys.executable, "-m", "attar", "inbox", "serve", "inbox"]
        command = [*attar, "--listen", "127.0.0.1", *map(str, words)]
        if descriptors is not None:
            command = ["bash", "-c", f'ulimit -n {descriptors} && exec "$@"', "bash", *command]
        opened = len(self.events("open"))
        server = self.world.start(command, name)
        until(
            lambda: len(self.events("open")) > opened or server.poll() is not None,
            120,
            lambda: self.world.said(name),
        )
        assert server.poll() is None, self.world.said(name)
        return server

    def events(self, event, partner=None):
        return [
            entry
            for entry in Journal(self.path / "journal.jsonl").read()
            if entry.event == event and partner in (None, entry.partner)
        ]

    def invitation(self, name):
        return read_invitation(self.home / f"{name}.invitation")

    def through(self, name, port):
        """A copy of an invitation that leads through another port."""
        file = self.home / f"{name}-{port}.invitation"
        text = (self.home / f"{name}.invitation").read_text()
        file.write_text(text.replace(f":{self.port}/", f":{port}/"))
        return file.name

    def connect(self, name):
        """An encrypted connection as a partner's program opens it."""
        context = ssl.create_default_context(cadata=self.invitation(name).certificate)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=context)

    def ask(self, name, token, method="HEAD", body=None, **headers):
        """Status and headers of one request."""
        connection = self.connect(name)
        given = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request(method, f"/{name}", body=body, headers={**given, **headers})
            answer = connection.getresponse()
            return answer.status, dict(answer.headers)
        finally:
            connection.close()

    def curl(self, name, file, *words):
        """What curl prints when it sends a file, as the documentation says."""
        invitation = self.invitation(name)
        done = subprocess.run(
            [
                "curl", "--silent", "--show-error", "--cacert", f"{name}.invitation",
                "--header", f"Authorization: Bearer {invitation.token}", *words,
                "-T", file, invitation.url,
            ],
            cwd=self.home, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def stored(self):
        """The files of the inbox that hold uploads or parts of them."""
        return sorted(
            str(path.relative_to(self.path))
            for path in self.path.rglob("*")
            if path.is_file() and path.suffix in (".attar", ".part")
        )

    def part(self, name):
        path = self.path / "partial" / f"{name}.part"
        return path.stat().st_size if path.exists() else 0


def hash_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def anonymous(server):
    """Anonymous memory of a server and the processes below it, in bytes (Linux)."""
    total = 0
    for pid in [server.pid, *find_descendants(server.pid)]:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            told = re.search(r"RssAnon:\s+(\d+) kB", status)  # not of one that has ended
            total += int(told[1]) * 1024 if told else 0
    return total


@needs_curl
def test_two_partners_send_one_by_attar_one_by_curl(world):
    """Also: a file that goes on, a file of somebody else, and a server that is another one."""
    inbox = Inbox(world, "berlin", "oslo")
    for name, net in (("berlin", "lenet5"), ("oslo", "mlp:hidden=64")):
        write_bundle(world.home / f"{name}.attar", tiny_upload(name, net, CLASSES))
    run("keygen", "berlin.key", cwd=world.home)
    run("sign", "berlin.attar", "--key", "berlin.key", cwd=world.home)
    server = inbox.serve("--json")
    data = (world.home / "berlin.attar").read_bytes()

    # No invitation, another's, and another server's certificate.
    tokens = {name: inbox.invitation(name).token for name in ("berlin", "oslo")}
    assert inbox.ask("berlin", None, "PUT", b"x")[0] == 401
    assert inbox.ask("berlin", tokens["oslo"], "PUT", b"x")[0] == 403
    text = (world.home / "berlin.invitation").read_text().partition("-----BEGIN")[0]
    (world.home / "forged").write_text(text + make_certificate("127.0.0.1")[0].decode())
    refused = run("inbox", "send", "berlin.attar", "forged", cwd=world.home, status=2)
    assert "is not the server of this invitation" in " ".join(refused.stderr.split())
    other = run("inbox", "send", "oslo.attar", "berlin.invitation", cwd=world.home, status=2)
    assert "upload of a client 'oslo'" in " ".join(other.stderr.split())
    assert inbox.stored() == []

    # The half that came before a break is not sent again.
    half = len(data) // 2
    headers = {
        "Upload-SHA256": hashlib.sha256(data).hexdigest(),
        "Content-Range": f"bytes 0-{half - 1}/{len(data)}",
    }
    status, said = inbox.ask("berlin", tokens["berlin"], "PUT", data[:half], **headers)
    assert (status, said["upload-offset"]) == (202, str(half))
    sent = run("inbox", "send", "berlin.attar", "berlin.invitation", cwd=world.home)
    assert "already" in sent.stdout
    assert "the server has accepted berlin.attar" in sent.stdout
    assert [entry.details["offset"] for entry in inbox.events("sending", "berlin")] == [0, half]
    # Once more: the server has it, and says so.
    run("inbox", "send", "berlin.attar", "berlin.invitation", cwd=world.home)
    assert len(inbox.events("sending", "berlin")) == 2

    # By curl: first another partner's file, then a piece, then the rest.
    told = inbox.curl("oslo", "berlin.attar")
    assert (told["state"], told["tries_left"]) == ("refused", 4)
    assert "client 'berlin'" in told["why"][0]
    mine = (world.home / "oslo.attar").read_bytes()
    (world.home / "piece").write_bytes(mine[:1000])
    piece = f"Content-Range: bytes 0-999/{len(mine)}"
    assert inbox.curl("oslo", "piece", "--header", piece)["offset"] == 1000
    assert inbox.ask("oslo", tokens["oslo"])[1]["upload-offset"] == "1000"
    assert inbox.curl("oslo", "oslo.attar", "-C", "1000")["state"] == "arrived"

    assert until(lambda: server.poll() is not None, 60, lambda: world.said("server"))
    outcome = json.loads(world.said("server"))
    assert (server.returncode, outcome["closed"]) == (0, "complete")
    assert inbox.stored() == ["berlin.attar", "oslo.attar"]
    signed = run("inspect", "inbox/berlin.attar", "--trusted", "berlin.pub", cwd=world.home)
    assert "trusted" in signed.stdout
    for name in ("berlin", "oslo"):
        assert (inbox.path / f"{name}.attar").read_bytes() == (
            world.home / f"{name}.attar"
        ).read_bytes()


def flood(inbox, seconds=60):
    """1 GB from somebody without an invitation, as fast as the server takes it; bytes taken."""
    connection = inbox.connect("berlin")
    connection.putrequest("PUT", "/berlin")
    connection.putheader("Content-Length", "1000000000")
    connection.endheaders()
    block, sent, ends = bytes(2**18), 0, time.monotonic() + seconds
    try:
        while sent < 10**9 and time.monotonic() < ends:
            connection.send(block)
            sent += len(block)
    except OSError:
        pass
    connection.close()
    return sent


def drip(inbox, name, first, slowly):
    """Bytes, then one byte now and then; returns after how many seconds the server closed."""
    connection = inbox.connect(name)
    connection.connect()
    connection.sock.sendall(first)
    connection.sock.settimeout(0.5)
    begun = time.monotonic()
    while time.monotonic() - begun < 90:
        try:
            connection.sock.sendall(slowly)
            if not connection.sock.recv(65536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    connection.close()
    return time.monotonic() - begun


@pytest.mark.network
def test_an_inbox_survives_strangers_breaks_and_kills(world, record_property):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 4000:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (4000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
    inbox = Inbox(world, "berlin", "oslo", "rome")
    for name, net in (("berlin", "lenet5"), ("oslo", LARGE), ("rome", "resnet20")):
        write_bundle(world.home / f"{name}.attar", tiny_upload(name, net, CLASSES))
    rest = ("--minutes", 20, "--fuse", "ensemble", "--out", "fused")
    server = inbox.serve(*rest, descriptors=1024)
    idle = anonymous(server)

    def story():
        return "\n".join(world.said(name) for name in ("server", "again", "oslo", "berlin"))

    def send(name, invitation=None, wait=True):
        words = ("inbox", "send", f"{name}.attar", invitation or f"{name}.invitation")
        process = world.attar(*words, "--minutes", 5, name=name)
        if wait:
            assert until(lambda: process.poll() is not None, 200, story)
            assert process.returncode == 0, story()
        return process

    # 1 GB from somebody without an invitation.
    taken = flood(inbox)
    assert taken < 50e6, "the server closes long before 1 GB"
    grown = anonymous(server) - idle
    assert grown < 50e6
    assert inbox.stored() == []

    # 1,500 connections that say nothing; the server may open 1,024 files. They come again.
    def besiege():
        while not over.is_set():
            held = []
            for _ in range(1500):
                with suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", inbox.port), timeout=5))
            most.append(len(held))
            ends = time.monotonic() + 5
            while time.monotonic() < ends and not over.is_set():
                memory.append(anonymous(server) - idle)
                time.sleep(0.2)
            for connection in held:
                connection.close()

    over, most, memory = threading.Event(), [], []
    siege = threading.Thread(target=besiege, daemon=True)
    siege.start()
    time.sleep(2)
    begun = time.monotonic()
    send("berlin")
    delivered = time.monotonic() - begun
    over.set()
    siege.join(120)
    besieged = max(memory)
    assert max(most) >= 1400
    assert besieged < 100e6
    assert (inbox.path / "berlin.attar").read_bytes() == (world.home / "berlin.attar").read_bytes()

    # Oslo dies in the middle of its upload; then the server does, and is started again.
    line = Line(inbox.port, limit=10_000_000)
    oslo = send("oslo", inbox.through("oslo", line.port), wait=False)
    until(line.broken.is_set, 120, story)
    until(lambda: inbox.part("oslo") > 5e6, 30, story)
    world.kill(oslo)
    line.close()
    (examiner,) = find_descendants(server.pid)
    server.send_signal(signal.SIGKILL)
    server.wait(20)
    until(lambda: not Path(f"/proc/{examiner}").exists(), 20, "its process outlived the server")
    here = inbox.part("oslo")
    server = inbox.serve(*rest, name="again", descriptors=1024)

    # Headers and a body that hardly come, at the same time.
    closed = {}
    token = inbox.invitation("rome").token
    head = f"PUT /rome HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    slow = {
        "headers": (b"PUT /rome HTTP/1.1\r\n", b"X: y\r\n"),
        "body": (f"{head}Content-Length: 1000000\r\n\r\n".encode(), b"x"),
    }
    drips = [
        threading.Thread(target=lambda kind=kind: closed.update({kind: drip(inbox, "rome", *slow[kind])}))
        for kind in slow
    ]  # fmt: skip
    for thread in drips:
        thread.start()

    send("oslo")  # meanwhile, from where it was
    assert [entry.details["offset"] for entry in inbox.events("sending", "oslo")] == [0, here]
    assert "already" in world.said("oslo")
    for thread in drips:
        thread.join(100)
    assert closed["headers"] < 30
    assert closed["body"] < 40
    assert inbox.events("broken off", "rome")[-1].details["why"].startswith("too slow")

    # Another's name, with a right invitation: not in the inbox, and rome may send again.
    (world.home / "wrong").write_bytes((world.home / "berlin.attar").read_bytes())
    status, _ = inbox.ask("rome", token, "PUT", (world.home / "wrong").read_bytes())
    assert status == 422
    assert inbox.stored() == ["berlin.attar", "oslo.attar"]
    send("rome")

    assert until(lambda: server.poll() is not None, 200, story)
    assert server.returncode == 0, story()
    assert inbox.stored() == ["berlin.attar", "oslo.attar", "rome.attar"]
    for name in ("berlin", "oslo", "rome"):
        assert hash_of(inbox.path / f"{name}.attar") == hash_of(world.home / f"{name}.attar")
    assert load_model(world.home / "fused").classes == CLASSES
    told = (
        f"stranger: {taken / 1e6:.1f} MB taken of 1 GB, memory +{grown / 1e6:.0f} MB; "
        f"1,500 half-open: delivered in {delivered:.0f} s, memory +{besieged / 1e6:.0f} MB; "
        f"slow headers closed after {closed['headers']:.0f} s, slow body {closed['body']:.0f} s"
    )
    record_property("inbox", told)
    sys.stdout.write(told + "\n")


@pytest.mark.network
@pytest.mark.slow
def test_an_upload_of_1_gb_needs_little_memory(world, record_property):
    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not say what is anonymous memory")
    inbox = Inbox(world, "berlin")
    file = world.home / "berlin.attar"
    size = write_bundle(file, tiny_upload("berlin", "mlp:hidden=4096,layers=17", CLASSES))
    assert size > 1e9
    server = inbox.serve("--json")
    idle = anonymous(server)
    begun = time.monotonic()
    client = world.attar("inbox", "send", "berlin.attar", "berlin.invitation", name="berlin")
    peaks = [0, 0]

    def done():
        peaks[0] = max(peaks[0], anonymous(server))
        peaks[1] = max(peaks[1], anonymous(client))
        return server.poll() is not None

    def story():
        return world.said("server") + world.said("berlin")

    assert until(done, 500, story)
    seconds = time.monotonic() - begun
    assert server.returncode == 0, story()
    assert client.wait(60) == 0
    grown = peaks[0] - idle
    told = (
        f"{size / 1e6:.0f} MB in {seconds:.0f} s; server: {idle / 1e6:.0f} MB of anonymous memory "
        f"when idle, +{grown / 1e6:.0f} MB at most; client {peaks[1] / 1e6:.0f} MB"
    )
    record_property("inbox", told)
    sys.stdout.write(told + "\n")
    assert grown < 100e6
    assert inbox.stored() == ["berlin.attar"]
    assert hash_of(inbox.path / "berlin.attar") == hash_of(file)
