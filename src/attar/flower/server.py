"""Flower's ServerApp of one round: the grid as the round's post office."""

import threading
from collections.abc import Mapping

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

from attar.errors import BundleError
from attar.flower import chunks
from attar.flower.collect import Answer, Presence, Round
from attar.flower.inbox import Receipt
from attar.flower.plan import read_plan

TTL_SECONDS = 30 * 24 * 3600.0

app = ServerApp()


class GridPost:
    """Push and pull messages one by one: ``send_and_receive`` would return only when the last partner has answered."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._pushing = threading.Lock()

    def online(self) -> Mapping[str, Presence]:
        """By the name under which the SuperLink registered the node's key; what a node says of itself does not count."""
        return {node.name: Presence(node.node_id, node.last_activated_at) for node in self._grid.get_nodes()}

    def ask(self, node: int) -> str:
        return self._push(Message(RecordDict(), node, MessageType.TRAIN, ttl=TTL_SECONDS))

    def confirm(self, node: int, receipt: Receipt) -> str:
        content = RecordDict({"receipt": ConfigRecord({"sha256": receipt.sha256, "bytes": receipt.size})})
        return self._push(Message(content, node, MessageType.QUERY, ttl=TTL_SECONDS))

    def answer(self, question: str) -> Answer | None:
        replies = list(self._grid.pull_messages([question]))
        if not replies:
            return None
        reply = replies[0]
        if reply.has_error():
            return Answer(None, f"{reply.error.reason} (code {reply.error.code})")
        about = reply.content.config_records.get("about", ConfigRecord())
        if "failed" in about:
            return Answer(None, str(about["failed"])[:2000])
        records = reply.content.array_records
        if "bundle" not in records:
            return Answer(b"")
        try:
            return Answer(chunks.join({name: array.numpy() for name, array in records["bundle"].items()}))
        except (ValueError, TypeError, BundleError) as error:
            return Answer(None, f"what was sent is not a file in pieces ({error})")

    def _push(self, message: Message) -> str:
        with self._pushing:
            (question,) = self._grid.push_messages([message])
        if not question:
            raise ConnectionError("the SuperLink did not take the message")
        return question


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Collect by the plan whose file the run's configuration names."""
    Round(read_plan(str(context.run_config["plan"])), GridPost(grid)).run()
