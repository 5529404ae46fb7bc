"""The round itself: ask each partner, poll for answers, and keep each upload the moment it is
there.

Every question has a thread of its own. An answer may take as long as a training, and fetching
one blocks while the upload is still under way (Flower waits for the missing pieces), so a
partner that dies in the middle of its upload holds up nobody else. A partner whose node was
started again is asked again at once: the old question went down with the old node.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from attar.errors import AttarError
from attar.network.inbox import Inbox, Journal, Receipt, file_digest
from attar.network.plan import Plan

PAUSE_SECONDS = 1.0
FIRST_PATIENCE, MOST_PATIENCE = (
    5.0,
    300.0,
)  # before a partner that failed is asked again: doubled each time
RECEIPT_SECONDS = 25.0  # how long the end of a round waits for receipts to be read


@dataclass(frozen=True)
class Presence:
    """A partner's node that is connected, and since when: a node that was started again is
    another presence.
    """

    node: int
    since: str


@dataclass(frozen=True)
class Answer:
    """A file, or the reason why there is none."""

    data: bytes | None
    failed: str = ""


class Post(Protocol):
    """What the round needs of a network. Several threads use it."""

    def online(self) -> Mapping[str, Presence]: ...
    def ask(self, node: int) -> str: ...
    def confirm(self, node: int, receipt: Receipt) -> str: ...
    def answer(self, question: str) -> Answer | None:
        """None while there is none; may block while an answer is on its way."""


@dataclass
class _Talk:
    """How things stand with one partner."""

    since: str | None = None
    failures: int = 0
    not_before: float = 0.0
    open: threading.Thread | None = None
    confirmed: str | None = None

    def due(self, presence: Presence, now: float) -> bool:
        """Is it time to ask (again)?"""
        if self.since != presence.since:
            return True
        return self.open is None and now >= self.not_before


class Round:
    """Collects by a plan; ``run`` returns when everybody has answered or late uploads are taken
    no more.
    """

    def __init__(
        self,
        plan: Plan,
        post: Post,
        *,
        clock: Callable[[], float] = time.time,
        pause: float = PAUSE_SECONDS,
    ) -> None:
        self._plan, self._post, self._clock, self._pause = plan, post, clock, pause
        self.inbox = Inbox(plan.inbox)
        self.journal = Journal(self.inbox.path / "journal.jsonl")
        self._talks = {name: _Talk() for name in plan.partners}
        self._confirmations: list[threading.Thread] = []
        self._keeping = threading.Lock()
        self._over = threading.Event()
        self._closed_at: float | None = None

    def run(self) -> None:
        about = {
            "quorum": self._plan.quorum,
            "deadline": self._plan.deadline,
            "here": len(self.inbox.files()),
        }
        self.journal.write("open", pid=os.getpid(), **about)
        try:
            while not self._step():
                time.sleep(self._pause)
            waiting_until = time.monotonic() + RECEIPT_SECONDS
            for thread in self._confirmations:
                thread.join(max(0.0, waiting_until - time.monotonic()))
            with self._keeping:
                self.journal.write("finished", missing=self._unheard())
        finally:
            self._over.set()

    def _step(self) -> bool:
        online, now = self._post.online(), self._clock()
        self._close_if_due(now)
        last = self._ends(now)  # before anybody is attended to: who is here by now gets a receipt
        for name, presence in online.items():
            if name in self._talks:
                self._attend(name, presence, now)
        return last

    def _ends(self, now: float) -> bool:
        if self._closed_at is None:
            return False
        return not self._unheard() or now >= self._closed_at + self._plan.late_seconds

    def _close_if_due(self, now: float) -> None:
        reason = self._plan.standing(self.inbox.files(), now)
        if self._closed_at is not None or reason == "waiting":
            return
        self._closed_at = now
        arrived = sorted(self.inbox.close())
        self.journal.write(
            "closed", reason=reason, arrived=arrived, missing=self._plan.missing(arrived)
        )

    def _unheard(self) -> list[str]:
        return [name for name in self._plan.partners if self.inbox.holds(name) is None]

    def _attend(self, name: str, presence: Presence, now: float) -> None:
        talk = self._talks[name]
        path = self.inbox.holds(name)
        if path is not None:
            if (
                talk.confirmed != presence.since
            ):  # also those whose receipt was lost with the last SuperLink
                talk.confirmed = presence.since
                self._confirmations.append(self._start(self._confirm, name, presence))
            return
        if talk.due(presence, now):
            if talk.since != presence.since:
                talk.since, talk.failures = presence.since, 0
            talk.open = self._start(self._question, name, presence)

    def _start(
        self, work: Callable[[str, Presence], None], name: str, presence: Presence
    ) -> threading.Thread:
        thread = threading.Thread(
            target=work, args=(name, presence), daemon=True, name=f"{work.__name__}-{name}"
        )
        thread.start()
        return thread

    def _question(self, name: str, presence: Presence) -> None:
        trouble = self._ask_and_keep(name, presence)
        talk = self._talks[name]
        if talk.open is threading.current_thread():
            if trouble:
                talk.failures += 1
                wait = min(FIRST_PATIENCE * 2 ** (talk.failures - 1), MOST_PATIENCE)
                talk.not_before = self._clock() + wait
            talk.open = None

    def _ask_and_keep(self, name: str, presence: Presence) -> bool:
        begun = self._clock()
        try:
            self.journal.write("asked", name)
            answer = self._wait(self._post.ask(presence.node))
            if answer is None:
                return False
            if answer.data is None:
                self.journal.write("failed", name, why=answer.failed)
                return True
            self._keep(name, answer.data, begun)
            return False
        except AttarError as error:
            self.journal.write("refused", name, why=str(error))
            return True
        # a thread's end: whatever the network raises is told in the journal, and asked again
        except Exception as error:
            self.journal.write("failed", name, why=f"{type(error).__name__}: {error}"[:500])
            return True

    def _keep(self, name: str, data: bytes, begun: float) -> None:
        with self._keeping:  # the round does not end between a file and its line in the journal
            receipt = self.inbox.keep(name, data)
            seconds = round(self._clock() - begun, 1)
            told = {
                "bytes": receipt.size,
                "sha256": receipt.sha256,
                "file": str(receipt.path),
                "seconds": seconds,
            }
            self.journal.write(receipt.kept, name, **told, here=len(self.inbox.files()))

    def _confirm(self, name: str, presence: Presence) -> None:
        """Tell a partner that its file is on disk here; a receipt that does not arrive costs
        nothing but patience.
        """
        path = self.inbox.holds(name)
        assert path is not None
        try:
            receipt = Receipt(name, "same", path, file_digest(path), path.stat().st_size)
            if self._wait(self._post.confirm(presence.node, receipt)) is not None:
                self.journal.write("receipt", name)
        except Exception as error:  # a thread's end, as above
            self.journal.write("no receipt", name, why=f"{type(error).__name__}: {error}"[:500])

    def _wait(self, question: str) -> Answer | None:
        while not self._over.is_set():
            answer = self._post.answer(question)
            if answer is not None:
                return answer
            self._over.wait(self._pause)
        return None
