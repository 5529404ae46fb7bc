"""The round itself: ask each partner, poll for answers, and store each upload as it arrives.

Every question has a thread of its own. An answer may take as long as a training, and fetching
one blocks while the upload is under way (Flower waits for the missing pieces), so a partner that
fails in the middle of its upload delays nobody else. A partner whose node was started again is
asked again at once: the old question was lost with the old node.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from attar.errors import AttarError
from attar.inbox.folder import Inbox, Journal, Receipt, hash_file
from attar.network.plan import Plan

PAUSE_SECONDS = 1.0
FIRST_PATIENCE = 5.0  # before a partner that failed is asked again: doubled each time
MOST_PATIENCE = 300.0
RECEIPT_SECONDS = 25.0  # how long the end of a round waits for receipts to be read


@dataclass(frozen=True)
class Presence:
    """A partner's connected node, and since when; a node that was started again is another one."""

    node: int
    since: str


@dataclass(frozen=True)
class Answer:
    """A partner's file, or None and the reason why there is none."""

    data: bytes | None
    failed: str = ""


class Post(Protocol):
    """The messages that a round sends and receives. Several threads use it."""

    def online(self) -> Mapping[str, Presence]:
        """The connected nodes by the partner's name."""

    def ask(self, node: int) -> str:
        """Ask a node for its upload; returns the id of the question."""

    def confirm(self, node: int, receipt: Receipt) -> str:
        """Tell a node that its upload is stored; returns the id of the message."""

    def answer(self, question: str) -> Answer | None:
        """The answer, None while there is none; may block while it is on its way."""


@dataclass
class _Partner:
    """What the round knows of one partner.

    Attributes:
        since: Start of the node that was asked last.
        failures: Failed answers of this node in a row.
        not_before: Time of the next question.
        open: The thread that waits for an answer.
        confirmed: Start of the node that was sent a receipt.
    """

    since: str | None = None
    failures: int = 0
    not_before: float = 0.0
    open: threading.Thread | None = None
    confirmed: str | None = None

    def due(self, presence: Presence, now: float) -> bool:
        """Whether it is time to ask (again)."""
        if self.since != presence.since:
            return True
        return self.open is None and now >= self.not_before


class Round:
    """Collects uploads by a plan.

    Attributes:
        inbox: Where uploads are stored.
        journal: Where events are written.
    """

    def __init__(
        self,
        plan: Plan,
        post: Post,
        *,
        clock: Callable[[], float] = time.time,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._plan = plan
        self._post = post
        self._clock = clock
        self._pause = pause
        self.inbox = Inbox(plan.inbox)
        self.journal = Journal(self.inbox.path / "journal.jsonl")
        self._partners = {name: _Partner() for name in plan.partners}
        self._confirmations: list[threading.Thread] = []
        self._storing = threading.Lock()
        self._over = threading.Event()
        self._closed_at: float | None = None

    def run(self) -> None:
        """Collect until everybody has answered, or the time for late uploads is over."""
        self.journal.write(
            "open",
            pid=os.getpid(),
            quorum=self._plan.quorum,
            deadline=self._plan.deadline,
            here=len(self.inbox.files()),
        )
        try:
            while not self._step():
                time.sleep(self._pause)
            waiting_until = time.monotonic() + RECEIPT_SECONDS
            for thread in self._confirmations:
                thread.join(max(0.0, waiting_until - time.monotonic()))
            with self._storing:
                self.journal.write("finished", missing=self._missing())
        finally:
            self._over.set()

    def _step(self) -> bool:
        """Look once at everybody; returns whether the round is over."""
        online = self._post.online()
        now = self._clock()
        self._close_if_due(now)
        last = self._is_over(now)  # first: whoever has arrived by now still gets a receipt
        for name, presence in online.items():
            if name in self._partners:
                self._serve(name, presence, now)
        return last

    def _is_over(self, now: float) -> bool:
        if self._closed_at is None:
            return False
        return not self._missing() or now >= self._closed_at + self._plan.late_seconds

    def _close_if_due(self, now: float) -> None:
        reason = self._plan.state(self.inbox.files(), now)
        if self._closed_at is not None or reason == "waiting":
            return
        self._closed_at = now
        arrived = sorted(self.inbox.close())
        self.journal.write(
            "closed", reason=reason, arrived=arrived, missing=self._plan.missing(arrived)
        )

    def _missing(self) -> list[str]:
        return [name for name in self._plan.partners if self.inbox.find(name) is None]

    def _serve(self, name: str, presence: Presence, now: float) -> None:
        partner = self._partners[name]
        path = self.inbox.find(name)
        if path is not None:
            # Also where the receipt was lost with the last SuperLink.
            if partner.confirmed != presence.since:
                partner.confirmed = presence.since
                self._confirmations.append(self._start(self._confirm, name, presence))
            return
        if partner.due(presence, now):
            if partner.since != presence.since:
                partner.since = presence.since
                partner.failures = 0
            partner.open = self._start(self._run_question, name, presence)

    def _start(
        self, work: Callable[[str, Presence], None], name: str, presence: Presence
    ) -> threading.Thread:
        thread = threading.Thread(
            target=work, args=(name, presence), daemon=True, name=f"{work.__name__}-{name}"
        )
        thread.start()
        return thread

    def _run_question(self, name: str, presence: Presence) -> None:
        failed = self._ask_and_store(name, presence)
        partner = self._partners[name]
        if partner.open is threading.current_thread():
            if failed:
                partner.failures += 1
                wait = min(FIRST_PATIENCE * 2 ** (partner.failures - 1), MOST_PATIENCE)
                partner.not_before = self._clock() + wait
            partner.open = None

    def _ask_and_store(self, name: str, presence: Presence) -> bool:
        """Ask a partner and store its upload; returns whether that failed."""
        begun = self._clock()
        try:
            self.journal.write("asked", name)
            answer = self._wait(self._post.ask(presence.node))
            if answer is None:
                return False
            if answer.data is None:
                self.journal.write("failed", name, why=answer.failed)
                return True
            self._store(name, answer.data, begun)
            return False
        except AttarError as error:
            self.journal.write("refused", name, why=str(error))
            return True
        # The end of a thread: any error of the network goes to the journal; it is asked again.
        except Exception as error:
            self.journal.write("failed", name, why=f"{type(error).__name__}: {error}"[:500])
            return True

    def _store(self, name: str, data: bytes, begun: float) -> None:
        with self._storing:  # the round must not end between a file and its line in the journal
            receipt = self.inbox.store(name, data)
            seconds = round(self._clock() - begun, 1)
            self.journal.write(
                receipt.stored,
                name,
                bytes=receipt.size,
                sha256=receipt.sha256,
                file=str(receipt.path),
                seconds=seconds,
                here=len(self.inbox.files()),
            )

    def _confirm(self, name: str, presence: Presence) -> None:
        """Tell a partner that its file is on disk here; a lost receipt does no harm."""
        path = self.inbox.find(name)
        assert path is not None
        try:
            receipt = Receipt(name, "same", path, hash_file(path), path.stat().st_size)
            if self._wait(self._post.confirm(presence.node, receipt)) is not None:
                self.journal.write("receipt", name)
        except Exception as error:  # the end of a thread, as above
            self.journal.write("no receipt", name, why=f"{type(error).__name__}: {error}"[:500])

    def _wait(self, question: str) -> Answer | None:
        """Poll for an answer; None when the round ends before."""
        while not self._over.is_set():
            answer = self._post.answer(question)
            if answer is not None:
                return answer
            self._over.wait(self._pause)
        return None
