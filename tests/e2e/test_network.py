"""A round on loopback with TLS and keys, through what goes wrong between organisations: separate
processes, nothing faked.
"""

import http.client
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

pytest.importorskip("flwr")

from processes import BIN, Line, free_port, until, world

from attar.inbox.folder import Journal
from attar.models import load_model
from attar.network.hosting import find_descendants
from attar.testing import tiny_upload
from attar.uploads import read_bundle, write_bundle

pytestmark = pytest.mark.network
__all__ = ["world"]  # a fixture
CLASSES = ("a", "b", "c")


def init(world, port, *partners, out="network"):
    made = subprocess.run(
        [sys.executable, "-m", "attar", "network", "init", *partners, "--address", f"127.0.0.1:{port}", "--out", out],
        cwd=world.home, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return made.stdout


def link_of(server):
    """The SuperLink below `attar network server`."""
    for pid in find_descendants(server.pid):
        command = subprocess.run(
            ["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True
        ).stdout
        if "attar.network.link" in command:
            return pid
    return None


def events(world, event, partner=None):
    journal = Journal(world.home / "network/server/inbox/journal.jsonl")
    return [
        entry
        for entry in journal.read()
        if entry.event == event and (partner is None or entry.partner == partner)
    ]


def test_a_round_survives_dead_partners_and_a_killed_superlink(world):
    port = free_port()
    shown = init(world, port, "berlin", "oslo", "rome", "paris")
    assert "attar network client berlin --bundle berlin.attar" in shown
    nets = {"berlin": "lenet5", "rome": "resnet20", "paris": "mlp:hidden=8"}
    for name, net in nets.items():
        write_bundle(world.home / f"{name}.attar", tiny_upload(name, net, CLASSES))
    write_bundle(
        world.home / "oslo.attar", tiny_upload("oslo", "mlp:hidden=2048,layers=3", CLASSES)
    )
    assert (world.home / "oslo.attar").stat().st_size > 30e6

    rest = ("--minutes", 10, "--quorum", 2, "--late", 0, "--fuse", "ensemble", "--out", "fused")
    server = world.attar("network", "server", "network/server", *rest, name="server")

    def client(name):
        return world.attar(
            "network", "client", f"network/{name}", "--bundle", f"{name}.attar", name=name
        )

    def story():
        return "\n".join(world.said(name) for name in ("server", "berlin", "oslo", "rome", "paris"))

    # Rome is asked and freezes: it will never answer.
    rome = client("rome")
    until(lambda: events(world, "asked", "rome"), 120, story)
    world.kill(rome, signal.SIGSTOP)

    # Strangers meanwhile: a key that nobody registered, and callers without TLS.
    init(world, port, "eve", out="forged")
    (world.home / "forged/eve/ca.crt").write_bytes(
        (world.home / "network/berlin/ca.crt").read_bytes()
    )
    write_bundle(world.home / "eve.attar", tiny_upload("eve", "lenet5", CLASSES))
    eve = world.attar(
        "network", "client", "forged/eve", "--bundle", "eve.attar", "--minutes", 0.5, name="eve"
    )
    bare = [
        str(BIN / "flower-supernode"),
        "--insecure",
        "--superlink",
        f"127.0.0.1:{port}",
        "--max-retries",
        "1",
    ]
    world.start([*bare, "--port", str(free_port())], "plain")
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(
            f"http://127.0.0.1:{port}/v1/fleet/pull-messages", data=b"", timeout=10
        )

    # Berlin arrives, has its receipt, and is done.
    berlin = client("berlin")
    assert until(lambda: berlin.poll() is not None, 180, story)
    assert berlin.returncode == 0, story()
    assert "the server has berlin.attar" in world.said("berlin")
    inbox = world.home / "network/server/inbox"
    assert (inbox / "berlin.attar").read_bytes() == (world.home / "berlin.attar").read_bytes()

    # Oslo dies in the middle of its upload.
    line = Line(port, limit=10_000_000)
    kit = world.home / "network/oslo/network.json"
    kit.write_text(json.dumps({**json.loads(kit.read_text()), "port": line.port}))
    oslo = client("oslo")
    until(line.broken.is_set, 180, story)
    world.kill(oslo)
    line.close()
    assert not events(world, "arrived", "oslo")

    assert until(lambda: eve.poll() is not None, 120, story)
    assert eve.returncode == 2
    refused = "Failed to initialize the connection to the SuperLink"
    assert until(lambda: refused in world.said("plain"), 120, lambda: world.said("plain"))
    assert "SuperNode ID" not in world.said("plain")
    log = (world.home / "forged/eve/supernode.log").read_text()
    assert refused in log
    assert "SuperNode ID" not in log

    # SuperLink is killed; the server starts it again and asks those who are missing.
    os.kill(until(lambda: link_of(server), 10, story), signal.SIGKILL)
    until(lambda: len(events(world, "open")) >= 2, 180, story)
    paris = client("paris")
    assert until(lambda: server.poll() is not None, 300, story) is True
    assert server.returncode == 0, story()
    assert until(lambda: paris.poll() is not None, 60, story) is True
    assert paris.returncode == 0, story()

    # What arrived was fused, and the report says who is missing and why.
    assert sorted(path.name for path in inbox.glob("*.attar")) == ["berlin.attar", "paris.attar"]
    assert not [path for path in inbox.rglob("*") if path.suffix == ".part"]
    assert len(events(world, "asked", "berlin")) == 1, "who had arrived is not asked again"
    assert [entry.details["reason"] for entry in events(world, "closed")] == ["quorum"]
    assert {entry.partner for entry in events(world, "asked")} == {
        "berlin",
        "oslo",
        "rome",
        "paris",
    }
    report = world.said("server")
    assert "SuperLink ended: started again, nothing that arrived is lost" in report
    assert re.search(r"oslo +missing +(was asked and has not answered|failed:)", report)
    assert re.search(
        r"rome +missing +(was asked and has not answered|failed: .*Node Unavailable)", report
    )
    assert load_model(world.home / "fused").classes == CLASSES
    record = json.loads((world.home / "fused/record.json").read_text())
    assert [one["client"] for one in record["clients"]] == ["berlin", "paris"]
    assert link_of(server) is None


def lan_address():
    """An address of this machine that is not loopback, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        found = probe.getsockname()[0]
    return None if found.startswith("127.") else found


def test_only_the_servers_own_machine_may_register_keys_or_start_programs(world):
    """And a round whose server is killed outright goes on when the same command is given again."""
    port = free_port()
    init(world, port, "berlin")
    command = ("network", "server", "network/server", "--minutes", 8, "--json")
    server = world.attar(*command, name="server")
    until(lambda: events(world, "open"), 120, lambda: world.said("server"))

    def status(host, path):
        trust = ssl.create_default_context(cafile=world.home / "network/server/ca.crt")
        trust.check_hostname = (
            False  # the certificate names loopback alone; who answers is not the question here
        )
        try:
            return urllib.request.urlopen(
                f"https://{host}:{port}{path}", data=b"", timeout=10, context=trust
            ).status
        except urllib.error.HTTPError as refused:
            return refused.code

    for path in ("/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/acquire-task"):
        assert status("127.0.0.1", path) not in (403, 404)
        if lan := lan_address():
            assert status(lan, path) == 403
    assert status("127.0.0.1", "/v1/fleet/pull-messages") not in (403, 404)

    link = link_of(server)
    os.kill(server.pid, signal.SIGKILL)  # the command itself, not only SuperLink
    until(
        lambda: subprocess.run(["ps", "-p", str(link)], capture_output=True).returncode != 0,
        20,
        "SuperLink outlived its server",
    )
    again = world.attar(*command, name="again")
    training = "attar train --data fashion-mini --net mlp:hidden=4 --epochs 1"
    client = world.attar(
        "network",
        "client",
        "network/berlin",
        "--bundle",
        "berlin.attar",
        "--train",
        training,
        name="berlin",
    )
    assert until(
        lambda: again.poll() is not None, 180, lambda: world.said("again") + world.said("berlin")
    )
    outcome = json.loads(world.said("again"))
    assert outcome["closed"] == "complete"
    assert outcome["missing"] == {}
    assert "fuse " in outcome["fuse"]
    assert client.wait(60) == 0


def test_strangers_neither_fill_the_memory_nor_take_the_places(world, record_property):
    """And a partner runs no other program than attar's, whatever the server sends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4000), hard), hard))
    port = free_port()
    init(world, port, "berlin", "oslo")
    for name in ("berlin", "oslo"):
        write_bundle(world.home / f"{name}.attar", tiny_upload(name, "lenet5", CLASSES))
    attar = f"{sys.executable} -m attar network server network/server"
    server = world.start(
        ["bash", "-c", f"ulimit -n 1024; exec {attar} --minutes 10 --quorum 1 --late 0"], "server"
    )
    until(lambda: events(world, "open"), 120, lambda: world.said("server"))

    # 1 GB to the one path that knows no node yet.
    idle = memory(server)
    trust = ssl.create_default_context(cafile=world.home / "network/server/ca.crt")
    stranger = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trust)
    stranger.putrequest("POST", "/v1/fleet/register-node")
    stranger.putheader("Content-Length", "1000000000")
    stranger.endheaders()
    taken = 0
    with suppress(OSError):
        while taken < 10**9:
            stranger.send(bytes(2**18))
            taken += 2**18
    stranger.close()
    grown = memory(server) - idle
    assert taken < 50e6
    assert grown < 50e6

    # 1,400 connections that say nothing, while Berlin sends.
    held = []
    for _ in range(1400):
        with suppress(OSError):
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
    begun = time.monotonic()
    words = ("network", "client", "network/berlin", "--bundle", "berlin.attar", "--minutes", 5)
    berlin = world.attar(*words, name="berlin")
    story = lambda: world.said("server") + world.said("berlin")  # noqa: E731
    assert until(lambda: berlin.poll() is not None, 200, story)
    assert berlin.returncode == 0, story()
    delivered = time.monotonic() - begun
    for connection in held:
        connection.close()
    assert len(held) > 1300
    assert until(lambda: server.poll() is not None, 100, story)
    told = f"{taken / 1e6:.1f} MB taken of 1 GB, memory +{grown / 1e6:.0f} MB; delivered in {delivered:.0f} s"
    record_property("network", told)
    sys.stdout.write(told + "\n")

    # The server's operator puts a line into the program that partners run.
    with (world.home / "network/server/app/attar_round/client_app.py").open("a") as program:
        program.write(f"open({str(world.home / 'stolen')!r}, 'w').close()\n")
    words = ("network", "server", "network/server", "--inbox", "other", "--minutes", 5)
    world.attar(*words, name="malicious")
    opened = world.home / "other/journal.jsonl"
    until(lambda: opened.exists() and "open" in opened.read_text(), 120, world.said("malicious"))
    words = ("network", "client", "network/oslo", "--bundle", "oslo.attar", "--minutes", 3)
    oslo = world.attar(*words, name="oslo")
    story = lambda: world.said("malicious") + world.said("oslo")  # noqa: E731
    assert until(lambda: oslo.poll() is not None, 200, story)
    assert oslo.returncode == 2, story()
    assert "another program than the one of this attar" in " ".join(world.said("oslo").split())
    assert not (world.home / "stolen").exists()
    assert not list((world.home / "other").glob("*.attar"))


@pytest.mark.slow
def test_a_bundle_of_400_megabytes_travels(world, record_property):
    port = free_port()
    init(world, port, "berlin")
    size = write_bundle(
        world.home / "berlin.attar", tiny_upload("berlin", "mlp:hidden=4096,layers=7", CLASSES)
    )
    assert size > 390e6
    server = world.attar(
        "network", "server", "network/server", "--minutes", 15, "--json", name="server"
    )
    client = world.attar(
        "network", "client", "network/berlin", "--bundle", "berlin.attar", name="berlin"
    )
    peak = {}

    def done():
        for whose, process in (("server", server), ("client", client)):
            peak[whose] = max(peak.get(whose, 0), memory(process))
        return server.poll() is not None

    assert until(done, 900, lambda: world.said("server") + world.said("berlin"))
    assert server.returncode == 0, world.said("server")
    assert client.wait(60) == 0
    (arrived,) = events(world, "arrived", "berlin")
    told = f"{size / 1e6:.0f} MB in {arrived.details['seconds']:.0f} s; peak {peak['server'] / 1e9:.1f} GB at the server, "
    record_property(
        "network",
        told + f"{peak['client'] / 1e9:.1f} GB at the client (all processes of each together)",
    )
    sys.stdout.write(told + f"{peak['client'] / 1e9:.1f} GB at the client\n")
    assert read_bundle(world.home / "network/server/inbox/berlin.attar").client == "berlin"


def memory(process):
    """Bytes of a process and all below it."""
    family = ",".join(map(str, [process.pid, *find_descendants(process.pid)]))
    listed = subprocess.run(
        ["ps", "-o", "rss=", "-p", family], capture_output=True, text=True
    ).stdout
    return sum(int(line) for line in listed.split()) * 1024
