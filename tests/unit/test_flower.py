"""The round without a network: what is kept, what is told, when it closes, and that nobody holds
up anybody else.
"""

import base64
import datetime
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attar.errors import BundleError, RunError, SettingsError, TrustError
from attar.inbox.folder import Entry, Inbox, Journal
from attar.inbox.names import parse_address
from attar.network import chunks, require_flower
from attar.network import link as gate
from attar.network.collect import FIRST_PATIENCE, Answer, Presence, Round
from attar.network.flags import Server
from attar.network.hosting import Program, find_descendants, find_reason
from attar.network.kit import (
    make_app_files,
    parse_partners,
    read_partner_kit,
    read_server_kit,
    write_kits,
)
from attar.network.node import check_app, hash_own_app
from attar.network.plan import Plan, read_plan
from attar.network.verbs import describe_entry, explain_missing, make_fuse_command, parse_training
from attar.testing import tiny_upload
from attar.uploads import decode, encode

CLASSES = ("a", "b")
NAMES = ("berlin", "oslo", "rome")


def file_of(name, net="mlp:hidden=2,layers=1"):
    return encode(tiny_upload(name, net, CLASSES))


# --- pieces


@given(data=st.binary(max_size=5000), size=st.integers(1, 700))
def test_join_restores_what_split_cut(data, size):
    pieces = chunks.split(data, size)
    assert all(1 <= len(piece) <= size for piece in pieces)
    named = dict(zip(chunks.names(len(pieces)), pieces, strict=True))
    shuffled = dict(sorted(named.items(), key=lambda item: item[0][::-1]))
    assert chunks.join(shuffled) == data


@given(data=st.binary(min_size=1, max_size=500), lost=st.integers(0, 10**6))
def test_join_refuses_missing_piece(data, lost):
    pieces = chunks.split(data, 7)
    named = dict(zip(chunks.names(len(pieces)), pieces, strict=True))
    del named[sorted(named)[lost % len(named)]]
    try:
        assert (
            chunks.join(named) != data
        )  # the last piece leaves no gap; the file's own hash tells then
        assert lost % len(pieces) == len(pieces) - 1
    except BundleError:
        assert lost % len(pieces) != len(pieces) - 1


def test_join_refuses_other_names_and_large_files():
    with pytest.raises(BundleError, match="other names"):
        chunks.join({"../../x": b"abc"})
    with pytest.raises(BundleError, match="larger than the limit"):
        chunks.join({"000000": bytes(30), "000001": bytes(30)}, limit=59)


# --- plan


@given(
    arrived=st.sets(st.sampled_from([*NAMES, "eve"])),
    quorum=st.integers(1, 3),
    now=st.floats(0, 20),
)
def test_plan_state_complete_quorum_deadline(arrived, quorum, now):
    plan = Plan(NAMES, quorum, 10.0, 0.0, "inbox")
    ours = arrived & set(NAMES)
    state = plan.state(arrived, now)
    assert (state == "complete") == (len(ours) == 3)
    assert (state == "quorum") == (quorum <= len(ours) < 3)
    assert (state == "deadline") == (len(ours) < quorum and now >= 10.0)
    assert set(plan.missing(arrived)) == set(NAMES) - arrived


def test_read_plan_returns_what_was_written(tmp_path):
    plan = Plan(NAMES, 2, 10.5, 60.0, str(tmp_path / "inbox"))
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    with pytest.raises(SettingsError) as refused:
        Plan(("oslo", "Oslo"), 3, 10.0, -1.0, "inbox")
    assert len(refused.value.problems) == 3
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(RunError, match="not the plan"):
        read_plan(tmp_path / "plan.json")


# --- inbox


def test_inbox_store_arrived_same_again_late(tmp_path):
    inbox = Inbox(tmp_path)
    first, other = file_of("oslo"), file_of("oslo", "lenet5")
    assert inbox.store("oslo", first).stored == "arrived"
    assert inbox.store("oslo", first).stored == "same"
    again = inbox.store("oslo", other)
    assert again.stored == "again"
    assert inbox.store("oslo", other).path == again.path
    assert list(inbox.close()) == ["oslo"]
    late = inbox.store("rome", file_of("rome"))
    assert late.stored == "late"
    assert inbox.store("rome", file_of("rome")).stored == "same"
    assert (tmp_path / "oslo.attar").read_bytes() == first
    assert again.path.read_bytes() == other
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.attar"))
    assert found == [f"again/{again.path.name}", "late/rome.attar", "oslo.attar"]
    assert list(Inbox(tmp_path).files()) == ["oslo"], (
        "what `attar fuse inbox/*.attar` takes does not change after closing"
    )


def test_inbox_store_refuses_invalid_uploads(tmp_path):
    inbox = Inbox(tmp_path)
    damaged = bytearray(file_of("oslo"))
    damaged[-1] ^= 1
    for data in (b"", b"hello", bytes(damaged), file_of("oslo")[:-5]):
        with pytest.raises(BundleError, match="oslo"):
            inbox.store("oslo", data)
    with pytest.raises(BundleError, match="'rome'"):  # Rome's file, but Oslo's key
        inbox.store("oslo", file_of("rome"))
    assert list(tmp_path.iterdir()) == []


def test_inbox_store_leaves_no_half_file(tmp_path, monkeypatch):
    def out_of_space(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attar.internal.files.os.fsync", out_of_space)
    with pytest.raises(OSError, match="No space"):
        Inbox(tmp_path).store("oslo", file_of("oslo"))
    assert list(tmp_path.iterdir()) == []


def test_journal_read_skips_cut_line(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.read() == []
    journal.write("asked", "oslo")
    with journal.path.open("ab") as file:
        file.write(b'{"time": 1, "event": "arr')
    journal.write("failed", "oslo", why="it broke")
    assert [(entry.event, entry.partner) for entry in journal.read()] == [
        ("asked", "oslo"),
        ("failed", "oslo"),
    ]
    assert journal.read()[1].details == {"why": "it broke"}


# --- the round


class FakePost:
    """A network of scripted partners: for each question in turn bytes, a reason, an exception,
    or an event to block on.
    """

    def __init__(self, **scripts):
        self.scripts = {name: list(script) for name, script in scripts.items()}
        self.presence = {name: Presence(number, "first") for number, name in enumerate(scripts)}
        self.asked, self.confirmed, self.waiting = [], [], {}
        self.lock = threading.Lock()

    def online(self):
        return dict(self.presence)

    def ask(self, node):
        name = next(name for name, presence in self.presence.items() if presence.node == node)
        with self.lock:
            self.asked.append(name)
            question = f"question {len(self.asked)}"
            self.waiting[question] = self.scripts[name].pop(0) if self.scripts[name] else None
        return question

    def confirm(self, node, receipt):
        self.confirmed.append((receipt.partner, receipt.sha256, receipt.size))
        self.waiting["receipt"] = "read"
        return "receipt"

    def answer(self, question):
        script = self.waiting[question]
        if isinstance(script, threading.Event):
            script.wait(30)
            return Answer(None, "upload broke off")
        if isinstance(script, Exception):
            raise script
        if isinstance(script, str):
            return Answer(None, script)
        return None if script is None else Answer(script)


def plan_for(tmp_path, *, quorum=3, seconds=20.0, late=0.0):
    return Plan(NAMES, quorum, time.time() + seconds, late, str(tmp_path))


def run(plan, post):
    made = Round(plan, post, pause=0.01)
    made.run()
    return made


def told(made, event):
    return [entry for entry in made.journal.read() if entry.event == event]


def test_round_collects_and_confirms(tmp_path):
    post = FakePost(**{name: [file_of(name)] for name in NAMES})
    made = run(plan_for(tmp_path), post)
    assert sorted(made.inbox.files()) == list(NAMES)
    assert sorted(post.asked) == list(NAMES)
    assert sorted(name for name, _, _ in post.confirmed) == list(NAMES)
    assert told(made, "closed")[0].details["reason"] == "complete"
    assert len(told(made, "receipt")) == 3
    assert told(made, "finished")[0].details["missing"] == []


def test_round_stores_while_another_upload_blocks(tmp_path):
    """Rome's answer blocks, as Flower's does while pieces are missing; Oslo never answers."""
    stuck = threading.Event()
    post = FakePost(berlin=[file_of("berlin")], oslo=[None], rome=[stuck])
    made = Round(plan_for(tmp_path, seconds=3.0), post, pause=0.01)
    thread = threading.Thread(target=made.run)
    begun = time.monotonic()
    thread.start()
    while not (tmp_path / "berlin.attar").exists():
        assert time.monotonic() - begun < 2.5, "Berlin's upload waits for the others"
        time.sleep(0.01)
    assert not told(made, "closed")
    assert decode((tmp_path / "berlin.attar").read_bytes()).client == "berlin"
    thread.join(10)
    assert not thread.is_alive()
    stuck.set()
    (closed,) = told(made, "closed")
    assert closed.details["reason"] == "deadline"
    assert closed.details["missing"] == ["oslo", "rome"]


def test_round_stores_late_after_quorum(tmp_path):
    post = FakePost(berlin=[file_of("berlin")], oslo=[file_of("oslo")], rome=[None])
    made = Round(plan_for(tmp_path, quorum=2, late=10.0), post, pause=0.01)
    thread = threading.Thread(target=made.run)
    thread.start()
    while not told(made, "closed"):
        time.sleep(0.01)
    question = next(key for key, value in post.waiting.items() if value is None)
    post.waiting[question] = file_of("rome")
    thread.join(10)
    assert not thread.is_alive(), "once everybody is here nobody is waited for"
    assert sorted(made.inbox.files()) == ["berlin", "oslo"]
    assert list(made.inbox.late_files()) == ["rome"]
    assert [entry.partner for entry in told(made, "late")] == ["rome"]
    assert told(made, "finished")[0].details["missing"] == []


def test_round_finishes_after_last_journal_line(tmp_path, monkeypatch):
    """The file is on disk first; the round sees it there and must not be over before its line is
    written.
    """
    made = Round(
        plan_for(tmp_path), FakePost(**{name: [file_of(name)] for name in NAMES}), pause=0.01
    )
    write = made.journal.write

    def slowly(event, partner=None, /, **details):
        if event == "arrived":
            time.sleep(0.2)
        write(event, partner, **details)

    monkeypatch.setattr(made.journal, "write", slowly)
    made.run()
    events = [entry.event for entry in made.journal.read()]
    assert events.count("arrived") == 3
    assert events[-1] == "finished"


def test_round_confirms_arrival_during_poll(tmp_path):
    class Late(dict):
        def items(self):
            yield from super().items()
            if told(
                made, "closed"
            ):  # Rome had its turn, and the round has not yet looked who is missing
                (tmp_path / "rome.attar").write_bytes(file_of("rome"))

    post = FakePost(berlin=[file_of("berlin")], oslo=[file_of("oslo")], rome=[None])
    post.presence = Late(post.presence)
    post.online = lambda: post.presence
    made = Round(plan_for(tmp_path, quorum=2, late=10.0), post, pause=0.01)
    made.run()
    assert sorted({name for name, _, _ in post.confirmed}) == list(NAMES)


def test_round_restarted_asks_only_missing(tmp_path):
    Inbox(tmp_path).store("berlin", file_of("berlin"))
    (tmp_path / "oslo.attar").write_bytes(file_of("oslo"))  # carried here by hand
    post = FakePost(berlin=[], oslo=[], rome=[file_of("rome")])
    made = run(plan_for(tmp_path), post)
    assert post.asked == ["rome"]
    assert sorted(name for name, _, _ in post.confirmed) == list(NAMES), (
        "a receipt lost with the last server is sent again"
    )
    assert told(made, "open")[0].details["here"] == 2


def test_round_asks_again_after_patience(tmp_path):
    clock = [1000.0]
    bad = file_of("berlin")[:-1]
    post = FakePost(
        berlin=["no data yet", bad, OSError("reset"), file_of("berlin")], oslo=[], rome=[]
    )
    plan = replace(plan_for(tmp_path, quorum=1), deadline=1e12)
    made = Round(plan, post, clock=lambda: clock[0], pause=0.005)
    thread = threading.Thread(target=made.run)
    thread.start()
    for failures in range(1, 4):
        while len(told(made, "failed")) + len(told(made, "refused")) < failures:
            time.sleep(0.005)
        time.sleep(0.1)
        assert post.asked.count("berlin") == failures, "asked again without patience"
        clock[0] += FIRST_PATIENCE * 2 ** (failures - 1) + 0.1
    thread.join(10)
    assert not thread.is_alive()
    assert [entry.details["why"] for entry in told(made, "failed")] == [
        "no data yet",
        "OSError: reset",
    ]
    assert "cut off" in told(made, "refused")[0].details["why"]
    assert list(made.inbox.files()) == ["berlin"]


def test_round_asks_restarted_node_at_once(tmp_path):
    post = FakePost(
        berlin=[None, file_of("berlin")], oslo=[file_of("oslo")], rome=[file_of("rome")]
    )
    made = Round(plan_for(tmp_path), post, pause=0.01)
    thread = threading.Thread(target=made.run)
    thread.start()
    while post.asked.count("berlin") < 1:
        time.sleep(0.01)
    time.sleep(0.1)
    assert post.asked.count("berlin") == 1
    post.presence["berlin"] = Presence(post.presence["berlin"].node, "second")
    thread.join(10)
    assert not thread.is_alive()
    assert post.asked.count("berlin") == 2
    assert sorted(made.inbox.files()) == list(NAMES)


def test_round_ignores_unknown_node(tmp_path):
    post = FakePost(**{name: [file_of(name)] for name in NAMES}, eve=[file_of("eve")])
    made = run(plan_for(tmp_path), post)
    assert "eve" not in post.asked
    assert "eve" not in made.inbox.files()


def test_flower_messages_carry_files_and_safe_text(tmp_path, monkeypatch):
    """The two apps through Flower's own records, with a grid that only hands messages over."""
    pytest.importorskip("flwr")
    from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from attar.network import client, server

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    (tmp_path / "oslo.attar").write_bytes(file_of("oslo"))
    settings = {
        "bundle": str(tmp_path / "oslo.attar"),
        "train": [],
        "receipt": str(tmp_path / "receipt.json"),
    }
    (tmp_path / "node.json").write_text(json.dumps(settings))
    context = Context(1, 7, {"settings": str(tmp_path / "node.json")}, RecordDict(), {})

    class Grid:
        def __init__(self):
            self.replies = {}

        def push_messages(self, messages):
            (message,) = messages
            message.metadata.__dict__["_message_id"] = f"m{len(self.replies)}"
            message.metadata.__dict__["_src_node_id"] = 1
            work = {"train": client.send, "query": client.receive_receipt}[
                message.metadata.message_type
            ]
            self.replies[message.metadata.message_id] = work(message, context)
            return [message.metadata.message_id]

        def pull_messages(self, ids):
            return [self.replies.pop(one) for one in ids if one in self.replies]

    grid = Grid()
    post = server.GridPost(grid)
    question = post.ask(7)
    assert post.answer(question).data == file_of("oslo")
    assert post.answer(question) is None
    receipt = Inbox(tmp_path / "inbox").store("oslo", file_of("oslo"))
    post.confirm(7, receipt)
    assert json.loads((tmp_path / "receipt.json").read_text()) == {
        "sha256": receipt.sha256,
        "bytes": receipt.size,
    }
    (tmp_path / "oslo.attar").write_bytes(b"broken")
    assert "cannot be used" in post.answer(post.ask(7)).failed
    (tmp_path / "oslo.attar").unlink()
    assert "oslo.attar" in post.answer(post.ask(7)).failed
    quick = [
        "--data",
        "fashion-mini",
        "--net",
        "mlp:hidden=2",
        "--epochs",
        "1",
        "--batch-size",
        "4096",
        "--client",
        "oslo",
    ]
    (tmp_path / "node.json").write_text(json.dumps({**settings, "train": quick}))
    assert decode(post.answer(post.ask(7)).data).client == "oslo", (
        "a bundle that is not there is trained when asked for"
    )
    (tmp_path / "oslo.attar").unlink()
    (tmp_path / "node.json").write_text(json.dumps({**settings, "train": ["--data", "nowhere"]}))
    assert "The training failed (status 2)" in post.answer(post.ask(7)).failed
    asked = Message(RecordDict(), 7, "train")
    asked.metadata.__dict__.update(_message_id="m", _src_node_id=1)
    evil = RecordDict({"about": ConfigRecord({"failed": "\x1b]0;owned\x07 x\ny"})})
    grid.replies["evil"] = Message(evil, reply_to=asked)
    assert post.answer("evil").failed == "?]0;owned? x y"
    grid.replies["error"] = Message(Error(8, "it\x1b died"), reply_to=asked)
    assert post.answer("error").failed == "it? died (code 8)"
    grid.replies["empty"] = Message(RecordDict(), reply_to=asked)
    assert "no bundle" in post.answer("empty").failed


# --- words


def test_explain_missing_and_describe_entry():
    def entry(event, **details):
        return Entry(0.0, event, "oslo", details)

    assert explain_missing("oslo", []) == "never connected"
    assert explain_missing("oslo", [entry("asked")]) == "was asked and has not answered"
    assert (
        explain_missing("oslo", [entry("asked"), entry("failed", why="no disk"), entry("asked")])
        == "failed: no disk"
    )
    assert describe_entry(entry("receipt"), 3) is None
    assert describe_entry(entry("arrived", bytes=1_500_000, seconds=3.2, here=2), 3).endswith(
        "oslo arrived: 1.5 MB in 3 s (2 of 3)"
    )


def test_make_fuse_command_names_each_file(tmp_path):
    flags = Server(
        tmp_path, fuse="dense", student="lenet5", settings=("steps=3",), out=tmp_path / "out"
    )
    command = make_fuse_command(flags, {"oslo": tmp_path / "oslo.attar"})
    assert command == [
        "fuse", str(tmp_path / "oslo.attar"), "--method", "dense", "--out", str(tmp_path / "out"),
        "--student", "lenet5", "--set", "steps=3",
    ]  # fmt: skip


def test_find_reason_in_flower_log():
    log = (
        "INFO: x\nFailed to initialize the connection to the SuperLink.\n[code: 2004] Failed to "
        "activate SuperNode.\n"
        "The SuperNode could not establish a connection.\n\nINFO: Shutting down\n"
    )
    assert find_reason(log) == "[code: 2004] Failed to activate SuperNode."
    assert find_reason("a\nb\n") == "b"
    assert find_reason("") == "no reason given"


def test_program_stop_ends_children(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("of an earlier start\n")
    script = "import subprocess, sys, time; print('\\x1b[91mhello', flush=True); "
    script += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
    script += "start_new_session=True); time.sleep(60)"
    program = Program([sys.executable, "-c", script], log, os.environ)
    while not find_descendants(program.pid) or not program.output():
        time.sleep(0.05)
    family = [program.pid, *find_descendants(program.pid)]
    assert program.status() is None
    program.stop()
    assert program.status() is not None
    assert program.output() == "hello\n"
    time.sleep(0.2)
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", ",".join(map(str, family))], capture_output=True, text=True
    ).stdout
    assert all(state.startswith("Z") for state in listed.split())


def test_parse_training_returns_flags():
    assert parse_training("", "oslo") == []
    assert parse_training("attar train --data 'folder:my scans'", "oslo") == [
        "--data",
        "folder:my scans",
        "--client",
        "oslo",
    ]
    assert parse_training("attar train --client=oslo", "oslo") == ["--client=oslo"]
    for text in ("rm -rf x", "attar fuse x", "attar train --out x", "attar train 'x"):
        with pytest.raises(SettingsError, match="--train"):
            parse_training(text, "oslo")


def test_require_flower_names_what_to_install(monkeypatch):
    monkeypatch.setattr("attar.network.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"needs flwr and cryptography.*\n.*attar\[flower\]"):
        require_flower()


# --- folders, certificates, gate


def test_write_kits_files(tmp_path):
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    kit = write_kits(tmp_path / "net", "fl.example.org:9080", NAMES)
    assert read_server_kit(tmp_path / "net/server") == kit
    partner = read_partner_kit(tmp_path / "net/oslo")
    assert (partner.host, partner.port, partner.partner) == ("fl.example.org", 9080, "oslo")
    assert sorted(path.name for path in (tmp_path / "net/oslo").iterdir()) == [
        "ca.crt",
        "network.json",
        "node.key",
    ]
    secrets = list((tmp_path / "net").rglob("*.key"))
    assert len(secrets) == 5
    assert all(path.stat().st_mode & 0o077 == 0 for path in secrets)
    authority = x509.load_pem_x509_certificate((tmp_path / "net/oslo/ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((tmp_path / "net/server/server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fl.example.org"]
    private = serialization.load_ssh_private_key(
        (tmp_path / "net/oslo/node.key").read_bytes(), None
    )
    public = serialization.load_ssh_public_key((tmp_path / "net/server/keys/oslo.pub").read_bytes())
    assert private.public_key() == public
    with pytest.raises(RunError, match="not empty"):
        write_kits(tmp_path / "net", "fl.example.org:9080", NAMES)


def test_write_kits_takes_public_keys_only(tmp_path):
    pytest.importorskip("cryptography")
    write_kits(tmp_path / "first", "127.0.0.1:9080", ["oslo"])
    own = tmp_path / "first/server/keys/oslo.pub"
    write_kits(tmp_path / "net", "127.0.0.1:9080", ["berlin", f"oslo={own}"])
    assert (tmp_path / "net/server/keys/oslo.pub").read_bytes() == own.read_bytes()
    assert not (tmp_path / "net/oslo/node.key").exists()
    with pytest.raises(RunError, match=r"has no node\.key"):
        read_partner_kit(tmp_path / "net/oslo")
    with pytest.raises(SettingsError, match="ssh-keygen"):
        write_kits(
            tmp_path / "other", "127.0.0.1:9080", [f"oslo={tmp_path / 'first/oslo/node.key'}"]
        )
    assert not (tmp_path / "other").exists()


def test_write_kits_refuses_names_and_addresses():
    with pytest.raises(SettingsError) as refused:
        parse_partners(["ok", "../up", "server", "OK", "a b", "x=nowhere.pub"])
    assert len(refused.value.problems) == 5
    for text in ("example.org", "example.org:99999", ":80", "a b:80", "-x:80", "http://x:80"):
        with pytest.raises(SettingsError):
            parse_address(text)


def test_read_kit_refuses_other_folders(tmp_path):
    (tmp_path / "network.json").write_text(json.dumps({"host": "x", "port": 1, "partner": "oslo"}))
    with pytest.raises(RunError, match="not the server's folder"):
        read_server_kit(tmp_path)
    with pytest.raises(RunError, match="not a partner's folder"):
        read_partner_kit(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("client", "path", "open_"),
    [
        ("127.0.0.1", "/v1/control/start-run", True),
        ("::1", "/v1/runtime/acquire-task", True),
        ("192.0.2.7", "/v1/fleet/pull-messages", True),
        ("192.0.2.7", "/v1/control/start-run", False),
        ("192.0.2.7", "/v1/control/register-node", False),
        ("192.0.2.7", "/v1/runtime/acquire-task", False),
        ("192.0.2.7", "/docs", False),
        ("192.0.2.7", "/v1/fleet", False),
        (None, "/v1/control/start-run", False),
    ],
)
def test_gate_closes_all_but_fleet(client, path, open_):
    import asyncio

    passed, sent = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "client": None if client is None else (client, 1234)}
    asyncio.run(gate.Gate(app)(scope, None, send))
    assert bool(passed) == open_
    assert open_ or sent[0]["status"] == 403


@pytest.fixture
def node():
    """A partner's key, and the headers of a call that it signs."""
    pytest.importorskip("cryptography", reason="calls are signed with it")
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key()

    def sign(age=0.0, length=b"100"):
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
        stamp = now.isoformat().encode()
        pem = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        return {
            b"flwr-public-key": base64.b64encode(pem),
            b"flwr-timestamp": stamp,
            b"flwr-signature": base64.b64encode(key.sign(stamp, ec.ECDSA(hashes.SHA256()))),
            b"content-length": length,
        }

    return public.public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH), sign


def test_is_signed_knows_fresh_signatures_of_registered_keys(tmp_path, node):
    public, sign = node
    (tmp_path / "berlin.pub").write_bytes(public + b"\n")
    keys = gate.read_keys(tmp_path)
    assert gate.is_signed(sign(), keys)
    assert not gate.is_signed(sign(), frozenset())
    for age in (gate.MOST_AGE + 1, -gate.MOST_AGE - 1):
        assert not gate.is_signed(sign(age), keys)
    for name in (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"):
        headers = sign()
        assert not gate.is_signed({**headers, name: b"\xff"}, keys)
        assert not gate.is_signed({**headers, name: base64.b64encode(b"other")}, keys)
        del headers[name]
        assert not gate.is_signed(headers, keys)
    later = sign()
    assert not gate.is_signed({**later, b"flwr-timestamp": sign(1)[b"flwr-timestamp"]}, keys)


@pytest.mark.parametrize(
    ("age", "length", "status"),
    [
        (0, b"100000", None),
        (400, b"100000", 401),
        (400, b"100", None),  # SuperLink itself says what is wrong
        (0, b"", 411),
        (0, b"1" * 9, 413),
        (400, b"9" * 99, 413),
    ],
)
def test_gate_refuses_before_a_body_is_read(tmp_path, node, age, length, status):
    import asyncio

    public, sign = node
    (tmp_path / "berlin.pub").write_bytes(public)
    passed, sent = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    async def send(message):
        sent.append(message)

    async def receive():
        pytest.fail("the body was read")

    scope = {
        "type": "http",
        "path": "/v1/fleet/register-node",
        "client": ("192.0.2.7", 1234),
        "headers": list(sign(age, length).items()),
    }
    asyncio.run(gate.Gate(app, gate.read_keys(tmp_path))(scope, receive, send))
    assert bool(passed) == (status is None)
    assert [message["status"] for message in sent[:1]] == ([] if status is None else [status])


def test_check_app_refuses_another_program():
    content = b"packed"
    check_app(content, hashlib.sha256(content).hexdigest())
    with pytest.raises(TrustError, match="another program"):
        check_app(content + b"!", hashlib.sha256(content).hexdigest())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in a package that Flower uses
def test_hash_own_app_is_that_of_the_folder_that_init_writes(tmp_path):
    pytest.importorskip("flwr", reason="it packs the app")
    from flwr.cli.build import build_fab_from_disk

    for name, content in make_app_files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    check_app(build_fab_from_disk(tmp_path), hash_own_app())
    with (tmp_path / "attar_round/client_app.py").open("a") as file:
        file.write("import os\n")
    with pytest.raises(TrustError):
        check_app(build_fab_from_disk(tmp_path), hash_own_app())
