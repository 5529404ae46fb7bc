"""Flower's ServerApp of one round: the grid of nodes as the round's ``Post``."""

import threading
from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from attar.inbox.folder import Receipt
from attar.network import chunks
from attar.network.collect import Answer, Presence, Round
from attar.network.plan import read_plan

TTL_SECONDS = 30 * 24 * 3600.0

app = ServerApp()


class GridPost:
    """Messages over Flower's grid, one by one.

    ``send_and_receive`` would return only when the last partner has answered.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pushing = threading.Lock()

    def online(self) -> Mapping[str, Presence]:
        """The connected nodes by partner: by the name under which the key is registered."""
        return {
            node.name: Presence(node.node_id, node.last_activated_at)
            for node in self._grid.get_nodes()
        }

    def ask(self, node: int) -> str:
        """Ask a node for its upload."""
        return self._push(Message(RecordDict(), node, MessageType.TRAIN, ttl=TTL_SECONDS))

    def confirm(self, node: int, receipt: Receipt) -> str:
        """Send a node the receipt for its upload."""
        content = RecordDict(
            {"receipt": ConfigRecord({"sha256": receipt.sha256, "bytes": receipt.size})}
        )
        return self._push(Message(content, node, MessageType.QUERY, ttl=TTL_SECONDS))

    def answer(self, question: str) -> Answer | None:
        """The node's answer to a question; None while there is none."""
        replies = list(self._grid.pull_messages([question]))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():
            return Answer(None, _readable(f"{reply.error.reason} (code {reply.error.code})"))
        about = reply.content.config_records.get("about", ConfigRecord())
        if "failed" in about:
            return Answer(None, _readable(str(about["failed"])))
        records = reply.content.array_records
        if "bundle" not in records:
            return Answer(None, "the answer holds no bundle")
        return Answer(chunks.join({name: array.data for name, array in records["bundle"].items()}))

    def _push(self, message: Message) -> str:
        with self._pushing:
            (question,) = self._grid.push_messages([message])
        if not question:
            raise ConnectionError("the SuperLink did not take the message")
        return question


def _readable(reason: str) -> str:
    """Text from a partner on one line, safe to print: without control characters."""
    text = " ".join(reason.split())[:1000]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Collect by the plan whose file the run's configuration names."""
    Round(read_plan(str(context.run_config["plan"])), GridPost(grid)).run()
