"""The clients' half of a round: sample clients, send them the model, train, receive uploads."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attar import seeds
from attar.core import AnyMethod, Broadcast, Part, Phase, Server, State, Upload
from attar.errors import AttarError, RunError, Stopped
from attar.federation.communication import sampled_clients
from attar.federation.options import Rounds
from attar.federation.state import FederationFolder, FederationState
from attar.fusion import check_needs
from attar.running import Driver, ProgressReport, RunOptions
from attar.training import (
    ClientGroup,
    HasObjective,
    LocalStack,
    Objective,
    RoundInput,
    expected_uploads,
    get_objective,
)
from attar.uploads import encode, encode_broadcast, value_problems

ENCODERS = 8  # threads that measure how large files are
# Errors that end a training and are not a client's: Ctrl-C, the run folder.
NOT_OF_CLIENTS = (Stopped, RunError)


class DeadlineReachedError(Exception):
    """The minutes are over in the middle of a round."""


@dataclass
class FederationRun:
    """A federation under way.

    Attributes:
        clients: All names, in the order in which uploads are fused.
        groups: The clients of each architecture.
        method: Fuses the uploads of each round.
        rounds: How many rounds, and who takes part.
        server: Makes the server for a round's uploads.
        seed: Of everything that is drawn.
        device: Where clients train and uploads are fused.
        precision: Arithmetic of both.
        state: Everything that changes from round to round.
        folder: Where the state is saved. None: it is not.
        options: How the run is driven.
        deadline: On the monotonic clock; infinite without a time limit.
        begun: On the monotonic clock, with the time before the run was resumed.
        withhold_counts: Clients do not send their label counts.
    """

    clients: Sequence[str]
    groups: Sequence[ClientGroup]
    method: AnyMethod
    rounds: Rounds
    server: Callable[[Sequence[Upload]], Server]
    seed: int
    device: str
    precision: str
    state: FederationState
    folder: FederationFolder | None
    options: RunOptions
    deadline: float
    begun: float
    withhold_counts: bool
    _encoders: Executor = field(default_factory=lambda: ThreadPoolExecutor(ENCODERS))
    _sizes: dict[str, Future[int]] = field(default_factory=dict)  # of uploads, as files
    _stage: int = 0  # of this round: each group's training is one, the fusion is the last

    @property
    def objective(self) -> Objective:
        """What the method asks of the clients' training."""
        return get_objective(self.method)

    def sample_clients(self) -> tuple[list[str], list[str]]:
        """Draw this round's clients.

        Returns:
            Their names, and those among them who will not answer.
        """
        number = self.state.round
        names = sorted(self.clients)
        draws = seeds.rng(self.seed, "clients", number)
        order = torch.randperm(len(names), generator=draws).tolist()
        sampled = order[: sampled_clients(len(names), self.rounds.fraction)]
        chosen = sorted(names[place] for place in sampled)
        draws = seeds.rng(self.seed, "drop", number)
        chances = torch.rand(len(chosen), generator=draws).tolist()
        dropped = [
            name for name, chance in zip(chosen, chances, strict=True) if chance < self.rounds.drop
        ]
        return chosen, dropped

    def broadcast(self, group: ClientGroup) -> Broadcast:
        """What the clients of a group are sent: the model in their architecture, and what the
        method adds.
        """
        for part in self.state.start_models:
            if part.spec == group.exchanged_spec and not group.is_decoder_group:
                parts = {self.objective.exchanged_part: part, **self.state.memory}
                return Broadcast(parts, self.state.round)
        return Broadcast({}, self.state.round)

    def broadcast_size(self, group: ClientGroup) -> Future[int]:
        """Bytes of what a client of this group is sent, measured while clients train."""
        broadcast = self.broadcast(group)
        return self._encoders.submit(
            lambda: len(encode_broadcast(broadcast)) if broadcast.parts else 0
        )

    def train(self, chosen: Sequence[str], dropped: Sequence[str]) -> None:
        """Train every client that takes part, and receive its upload.

        A client that fails is left out, and why is recorded. Where clients fail together, each
        trains by itself.
        """
        state = self.state
        waiting = set(chosen) - set(dropped)
        if state.round == 1 and not state.uploads and not state.failed:
            self._check_expected_uploads(waiting)
        for place, group in enumerate(self.groups):
            self._stage = place
            names = [
                client.name
                for client in group.clients
                if client.name in waiting and not self._has_answered(client.name)
            ]
            if group.is_decoder_group:
                names = [name for name in names if not self._resend_decoder(group, name)]
            if not names:
                continue
            if str(place) not in state.trained_alone:
                try:
                    self._train_stack(group, names, f"train {place}")
                except NOT_OF_CLIENTS:
                    raise
                except (AttarError, RuntimeError) as error:
                    state.trained_alone[str(place)] = _reason(error)
            if str(place) in state.trained_alone:
                for name in names:
                    self._train_alone(group, name, f"train {place} {name}")

    def _check_expected_uploads(self, waiting: Collection[str]) -> None:
        """Refuse what the method could not fuse before any client trains for it."""
        members = [
            (group, [client.name for client in group.clients if client.name in waiting])
            for group in self.groups
        ]
        try:
            uploads = [
                upload
                for group, names in members
                if names
                for upload in expected_uploads(
                    self._stack(group, names), withhold_counts=self.withhold_counts
                )
            ]
        except (AttarError, RuntimeError):
            return  # some client cannot start to train: training finds out which
        if uploads:
            check_needs(self.method, uploads, self.server_of_round(uploads))

    def _has_answered(self, name: str) -> bool:
        return name in self.state.uploads or name in self.state.failed

    def _train_alone(self, group: ClientGroup, name: str, stage: str) -> None:
        try:
            self._train_stack(group, [name], stage)
        except NOT_OF_CLIENTS:
            raise
        except (AttarError, RuntimeError) as error:
            self.state.failed[name] = _reason(error)

    def _train_stack(self, group: ClientGroup, names: Sequence[str], stage: str) -> None:
        """Train clients of one architecture together, and receive their uploads."""
        stack = self._stack(group, names)
        training_state = stack.start()
        history: list[dict[str, Any]] = []
        title = f"{len(names)} x {group.spec}"
        self.drive(stage, title, stack.phases(), training_state, history=history)
        uploads = [
            replace(upload, round=self.state.round)
            for upload in stack.uploads(training_state, withhold_counts=self.withhold_counts)
        ]
        client_state = stack.next_client_states(training_state, uploads)
        for upload in uploads:
            self.state.losses[upload.client] = history[-1]["loss"] if history else None
        self._receive(uploads, client_state)
        self.save_if_due()

    def _stack(self, group: ClientGroup, names: Sequence[str]) -> LocalStack:
        client_state = {name: self.state.client_state.get(name, {}) for name in names}
        return group.make_stack(
            names, RoundInput(self.state.round, self.broadcast(group).parts, client_state)
        )

    def _resend_decoder(self, group: ClientGroup, name: str) -> bool:
        """Send the decoder of an earlier round again, where there is one: its training does not
        depend on the server, so it would give the same one.
        """
        parts = self.state.client_state.get(name)
        if parts is None:
            return False
        (client,) = [client for client in group.clients if client.name == name]
        counts = tuple(client.labels.bincount(minlength=len(client.classes)).tolist())
        upload = Upload(
            name,
            parts,
            len(client.labels),
            None if self.withhold_counts else counts,
            self.state.round,
        )
        self._receive([upload], {})
        return True

    def _receive(
        self, uploads: Sequence[Upload], client_state: Mapping[str, Mapping[str, Part]]
    ) -> None:
        """Take uploads, but not those with weights that are NaN or infinite. How large they are
        as files is measured meanwhile.
        """
        for upload in uploads:
            parts = client_state.get(upload.client, {})
            problems = [
                problem
                for part in (*upload.parts.values(), *parts.values())
                for problem in value_problems(part.state)
            ]
            if problems:
                self.state.failed[upload.client] = problems[0]
                continue
            self.state.uploads[upload.client] = upload
            self._sizes[upload.client] = self._encoders.submit(_file_size, upload)
            if upload.client in client_state:
                self.state.update_client_state(upload.client, parts)

    def remarks(self) -> tuple[str, ...]:
        """What slowed this round's training down, for the record."""
        return tuple(
            f"Clients with {self.groups[int(place)].spec} trained one by one, since together they "
            f"failed: {why}"
            for place, why in self.state.trained_alone.items()
        )

    def wait_for_sizes(self) -> None:
        """Wait until the sizes of all uploads are measured."""
        self.state.bytes_up |= {name: size.result() for name, size in self._sizes.items()}
        self._sizes.clear()

    def server_of_round(self, uploads: Sequence[Upload]) -> Server:
        """The server of this round, with all that it keeps from earlier rounds."""
        state = self.state
        server = self.server(uploads)
        if isinstance(self.method, HasObjective) and state.start_models:
            server = replace(server, initial=state.start_models[0])
        memory = dict(state.memory)
        if state.model is not None:
            memory["model"] = state.model
        first = state.round == 1
        seed = self.seed if first else seeds.derive(self.seed, "round", state.round)
        return replace(server, memory=memory, population=len(self.clients), seed=seed)

    def begin_fusion(self) -> None:
        """The progress of the round goes on with its last stage."""
        self._stage = len(self.groups)

    def drive(
        self,
        stage: str,
        title: str,
        phases: Sequence[Phase],
        inner: State,
        *,
        history: list[dict[str, Any]],
        seed: int | None = None,
    ) -> None:
        """Take the steps of a training or a fusion, from where it was saved.

        Args:
            stage: Its name within the round, for the checkpoint.
            title: Its name for the progress.
            phases: Their steps change ``inner``.
            inner: Its fresh state.
            history: Metrics are appended to it.
            seed: Of layers that draw; None: the federation's.

        Raises:
            Stopped: Ctrl-C.
            DeadlineReachedError: The minutes are over.
        """
        folder = self.folder
        save = None
        if folder is not None:
            folder.restore_unfinished(self.state, stage, inner, self.device)

            def save() -> None:
                self._update_for_checkpoint()
                folder.save_unfinished(self.state, stage, inner)

        driver = Driver(
            seed=self.seed if seed is None else seed,
            device=self.device,
            precision=self.precision,
            watch=lambda report: self._watch(title, report),
            minutes=self._minutes_left(),
            checkpoint_seconds=self.options.checkpoint_seconds,
            watch_seconds=self.options.watch_seconds,
        )
        ending = driver.run(phases, inner, history=history, save=save)
        if ending == "stopped":
            raise Stopped(
                f"Stopped by Ctrl-C in round {self.state.round}.",
                fix="start it again" if folder is None else "run the same command with --resume",
            )
        if ending == "deadline":
            raise DeadlineReachedError

    def _minutes_left(self) -> float | None:
        if self.deadline == float("inf"):
            return None
        return max(self.deadline - time.monotonic(), 0.0) / 60

    def save_if_due(self) -> None:
        """Save between two stages, if the last checkpoint is old enough."""
        if (
            self.folder is not None
            and time.monotonic() - self.folder.saved_at >= self.options.checkpoint_seconds
        ):
            self.save()

    def save(self) -> None:
        """Write a checkpoint, where there is a folder."""
        if self.folder is not None:
            self._update_for_checkpoint()
            self.folder.save(self.state)

    def _update_for_checkpoint(self) -> None:
        self.wait_for_sizes()
        self.state.elapsed = time.monotonic() - self.begun

    def _watch(self, title: str, report: ProgressReport) -> None:
        """Report the progress of a stage as that of the whole federation."""
        if self.options.watch is None:
            return
        number = self.state.round
        rounds = self.rounds.rounds
        stages = len(self.groups) + 1
        done = (number - 1 + (self._stage + report.done) / stages) / rounds
        elapsed = time.monotonic() - self.begun
        metrics = dict(report.metrics)
        measured = [
            record["accuracy"] for record in self.state.records if record["accuracy"] is not None
        ]
        if measured:
            metrics["last accuracy"] = measured[-1]
        self.options.watch(
            ProgressReport(
                phase=f"round {number}/{rounds}, {title}, {report.phase}",
                step=report.step,
                steps=report.steps,
                done=done,
                seconds_left=elapsed * (1 - done) / done if done > 0 else None,
                metrics=metrics,
            )
        )


def _file_size(upload: Upload) -> int:
    return len(encode(upload))


def one_group_per_architecture(groups: Sequence[ClientGroup]) -> list[ClientGroup]:
    """One group for each architecture in which models are exchanged."""
    return list(
        {group.exchanged_spec: group for group in groups if not group.is_decoder_group}.values()
    )


def _reason(error: Exception) -> str:
    """Why clients failed, in short. An error of CUDA itself is not a client's and is raised
    again: after it nothing can train here. (Too little memory is no such error, and may be enough
    for one client.)
    """
    if "CUDA error" in str(error):
        raise error
    return (str(error).splitlines() or [type(error).__name__])[0]
