"""A round of a federation: draw clients, send, train, upload, fuse. ``federation.py`` walks from
round to round.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attar import seeds
from attar.core import AnyMethod, Broadcast, Mixture, Part, Result, Server, State, Upload
from attar.errors import AttarError, NeedsError, RunError, SettingsError, SpecError, Stopped
from attar.federation.communication import drawn
from attar.federation.state import Ledger, Standing
from attar.fusion import check_needs
from attar.methods import method_name
from attar.running import Driver, Ending, Moment, Watch
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


@dataclass(frozen=True)
class Rounds:
    """How many rounds, and who takes part."""

    rounds: int = 1  # how many, T
    fraction: float = 1.0  # f: of the clients drawn in each round
    drop: float = 0.0  # chance that a client that was drawn does not answer
    target: float | None = None  # accuracy whose rounds and bytes are reported
    home_every: int = (
        0  # measure the models that stay at home every so many rounds; 0: at the end alone
    )

    def __post_init__(self) -> None:
        checks = {
            "rounds: at least 1": self.rounds >= 1,
            "fraction: above 0, at most 1": 0 < self.fraction <= 1,
            "drop: from 0 to below 1": 0 <= self.drop < 1,
            "target: above 0, at most 1": self.target is None or 0 < self.target <= 1,
            "home_every: at least 0": self.home_every >= 0,
        }
        if wrong := [
            f"{rule}, got {getattr(self, rule.split(':')[0])}"
            for rule, holds in checks.items()
            if not holds
        ]:
            raise SettingsError("Settings of the rounds that do not fit:", problems=wrong)


COUNTERS = 8  # threads that find out how large files are
NOT_A_CLIENTS = (
    Stopped,
    RunError,
)  # what ends a training and is no fault of those who train: Ctrl-C, the run folder


class TimeIsUp(Exception):
    """The minutes are over in the middle of a round."""


@dataclass
class FederationRun:
    """One federation under way; ``federate`` says what everything is."""

    clients: Sequence[str]  # all names, in the order in which uploads are fused
    crews: Sequence[ClientGroup]
    method: AnyMethod
    rounds: Rounds
    server: Callable[[Sequence[Upload]], Server]
    seed: int
    device: str
    precision: str
    standing: Standing
    ledger: Ledger | None
    deadline: float
    checkpoint_seconds: float
    watch: Watch | None
    withhold_counts: bool
    begun: float
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(COUNTERS))
    counting: dict[str, Future[int]] = field(default_factory=dict)
    stages: tuple[int, int] = (0, 1)  # which of how many of this round

    @property
    def objective(self) -> Objective:
        return get_objective(self.method)

    def draw(self) -> tuple[list[str], list[str]]:
        """This round's clients, and those among them who will not answer."""
        names, number = sorted(self.clients), self.standing.round
        order = torch.randperm(
            len(names), generator=seeds.generator(self.seed, "clients", number)
        ).tolist()
        chosen = sorted(names[place] for place in order[: drawn(len(names), self.rounds.fraction)])
        chance = torch.rand(
            len(chosen), generator=seeds.generator(self.seed, "drop", number)
        ).tolist()
        return chosen, [
            name for name, luck in zip(chosen, chance, strict=True) if luck < self.rounds.drop
        ]

    def broadcast(self, crew: ClientGroup) -> Broadcast:
        """What the clients of a crew are sent: the model in their architecture, and what the
        method adds.
        """
        model = next(
            (
                part
                for part in self.standing.offers
                if part.spec == crew.exchanged_spec and not crew.is_decoder_group
            ),
            None,
        )
        parts = (
            {} if model is None else {self.objective.exchanged_part: model, **self.standing.memory}
        )
        return Broadcast(parts, self.standing.round)

    def train(self, chosen: Sequence[str], dropped: Sequence[str]) -> None:
        """Every client that was drawn trains and uploads; those who fail are left out, and why
        is remembered.
        """
        waiting = set(chosen) - set(dropped)
        if self.standing.round == 1 and not self.standing.uploads and not self.standing.failed:
            self._foresee(waiting)
        for place, crew in enumerate(self.crews):
            self.stages = (place, len(self.crews) + 1)
            names = [
                client.name
                for client in crew.clients
                if client.name in waiting and not self._has_answered(client.name)
            ]
            if crew.is_decoder_group:
                names = [name for name in names if not self._send_again(crew, name)]
            if not names:
                continue
            if str(place) not in self.standing.alone:
                try:
                    self._train_stack(crew, names, f"train {place}")
                except NOT_A_CLIENTS:
                    raise
                except (AttarError, RuntimeError) as error:
                    self.standing.alone[str(place)] = _reason(
                        error
                    )  # one of them spoils it for all: each by itself
            if str(place) in self.standing.alone:
                for name in names:
                    self._train_alone(crew, name, f"train {place} {name}")

    def _foresee(self, waiting: Collection[str]) -> None:
        """Refuse what the method could not fuse before anybody trains for it."""
        members = [
            (crew, [client.name for client in crew.clients if client.name in waiting])
            for crew in self.crews
        ]
        try:
            stacks = [self._stack(crew, names) for crew, names in members if names]
            uploads = [
                one
                for stack in stacks
                for one in expected_uploads(stack, withhold_counts=self.withhold_counts)
            ]
        except (AttarError, RuntimeError):
            return  # some client cannot even begin: training finds out which, and may do without it
        if uploads:
            check_needs(self.method, uploads, self._server(uploads))

    def _has_answered(self, name: str) -> bool:
        return name in self.standing.uploads or name in self.standing.failed

    def _train_alone(self, crew: ClientGroup, name: str, stage: str) -> None:
        try:
            self._train_stack(crew, [name], stage)
        except NOT_A_CLIENTS:
            raise
        except (AttarError, RuntimeError) as error:
            self.standing.failed[name] = _reason(error)

    def _train_stack(self, crew: ClientGroup, names: Sequence[str], stage: str) -> None:
        standing, stack = self.standing, self._stack(crew, names)
        state = stack.start()
        history: list[dict[str, Any]] = []
        title = f"{len(names)} x {crew.spec}"
        self._drive(stage, title, stack.phases(), state, history)
        uploads = [
            replace(one, round=standing.round)
            for one in stack.uploads(state, withhold_counts=self.withhold_counts)
        ]
        homes = stack.next_client_states(state, uploads)
        for upload in uploads:
            standing.losses[upload.client] = history[-1]["loss"] if history else None
        self._accept(uploads, homes)
        self.between()

    def _stack(self, crew: ClientGroup, names: Sequence[str]) -> LocalStack:
        homes = {name: self.standing.homes.get(name, {}) for name in names}
        return crew.make_stack(
            names, RoundInput(self.standing.round, self.broadcast(crew).parts, homes)
        )

    def _send_again(self, crew: ClientGroup, name: str) -> bool:
        """A decoder that was trained in an earlier round: it owes nothing to the server, so
        training would give the same one.
        """
        home = self.standing.homes.get(name)
        if home is None:
            return False
        (client,) = [client for client in crew.clients if client.name == name]
        counts = tuple(client.labels.bincount(minlength=len(client.classes)).tolist())
        sent = None if self.withhold_counts else counts
        self._accept([Upload(name, home, len(client.labels), sent, self.standing.round)], {})
        return True

    def _accept(self, uploads: Sequence[Upload], homes: Mapping[str, Mapping[str, Part]]) -> None:
        """What arrives: weights that are not finite have failed. How many bytes it is as a file
        is found out meanwhile.
        """
        for upload in uploads:
            kept = homes.get(upload.client, {})
            problems = [
                problem
                for part in (*upload.parts.values(), *kept.values())
                for problem in value_problems(part.state)
            ]
            if problems:
                self.standing.failed[upload.client] = problems[0]
                continue
            self.standing.uploads[upload.client] = upload
            self.counting[upload.client] = self.pool.submit(_bytes_of, upload)
            if upload.client in homes:
                self.standing.take_home(upload.client, homes[upload.client])

    def remarks(self) -> tuple[str, ...]:
        """What slowed this round's training down."""
        crews = [(self.crews[int(place)], why) for place, why in self.standing.alone.items()]
        return tuple(
            f"Clients with {crew.spec} trained one by one, since together they failed: {why}"
            for crew, why in crews
        )

    def size_of(self, broadcast: Broadcast) -> Future[int]:
        """Bytes of what the server sends to one client; nothing where there is nothing to send."""
        return self.pool.submit(lambda: len(encode_broadcast(broadcast)) if broadcast.parts else 0)

    def count(self) -> None:
        """Wait for the sizes of what has arrived."""
        self.standing.bytes_up |= {name: size.result() for name, size in self.counting.items()}
        self.counting.clear()

    def fuse(self) -> Result:
        """The uploads become one model by the method; what clients start from next is made, too."""
        standing = self.standing
        self.stages = (len(self.crews), len(self.crews) + 1)
        uploads = [standing.uploads[name] for name in self.clients if name in standing.uploads]
        if not uploads:
            raise NeedsError(
                f"Nobody answered in round {standing.round}.", problems=_reasons(standing.failed)
            )
        server = self._server(uploads)
        check_needs(self.method, uploads, server)
        result = self._fused("fuse", uploads, server)
        if standing.round < self.rounds.rounds:
            standing.offers = [
                self._offer(crew, result, uploads, server) for crew in architectures(self.crews)
            ]
        standing.memory = dict(result.memory)
        headline = next(iter(result.models.values()))
        standing.model = headline if isinstance(headline, Part) else None
        return result

    def _server(self, uploads: Sequence[Upload]) -> Server:
        """The server of this round, with all that it remembers."""
        standing, server = self.standing, self.server(uploads)
        if isinstance(self.method, HasObjective) and standing.offers:
            server = replace(server, initial=standing.offers[0])
        kept = (
            {**standing.memory}
            if standing.model is None
            else {**standing.memory, "model": standing.model}
        )
        seed = (
            self.seed if standing.round == 1 else seeds.derive(self.seed, "round", standing.round)
        )
        return replace(server, memory=kept, population=len(self.clients), seed=seed)

    def _fused(self, stage: str, uploads: Sequence[Upload], server: Server) -> Result:
        context = self.method.prepare(uploads, server)
        state = self.method.start(context)
        self._drive(
            stage,
            f"{stage} by {method_name(self.method)}",
            self.method.phases(context),
            state,
            [],
            server.seed,
        )
        return self.method.result(context, state)

    def _offer(
        self, crew: ClientGroup, result: Result, uploads: Sequence[Upload], server: Server
    ) -> Part:
        """The fused model in the architecture of a crew; where it is of another, the server
        fuses once more into that one.
        """
        theirs = {
            id(part) for upload in uploads for part in upload.parts.values()
        }  # an ensemble keeps the clients' own nets
        for model in result.models.values():
            for part in model.members if isinstance(model, Mixture) else (model,):
                if (part.spec, part.preprocess) == (crew.exchanged_spec, crew.preprocess) and id(
                    part
                ) not in theirs:
                    return part
        if not self.method.needs.student:
            raise SpecError(
                f"Method {method_name(self.method)} makes no {crew.exchanged_spec} that the next round could start from.",
                fix="give all clients one architecture, or take a method with a student",
            )
        kept = {**self.standing.memory}
        if self.standing.round > 1:  # goes on from the last one, as the headline's student does
            kept["model"] = next(
                part for part in self.standing.offers if part.spec == crew.exchanged_spec
            )
        other = replace(
            server,
            student=crew.exchanged_spec,
            student_preprocess=crew.preprocess,
            initial=None,
            memory=kept,
        )
        made = next(
            iter(self._fused(f"fuse into {crew.exchanged_spec}", uploads, other).models.values())
        )
        assert isinstance(made, Part), "a method with a student makes one net"
        return made

    def _drive(
        self,
        stage: str,
        title: str,
        phases: Any,
        state: State,
        history: list[dict[str, Any]],
        seed: int | None = None,
    ) -> None:
        """Walk a stage's phases, from where it was left when it was killed."""
        save = None
        if (ledger := self.ledger) is not None:
            ledger.restore_inside(self.standing, stage, state, self.device)

            def save() -> None:
                self.count()
                self.standing.elapsed = time.monotonic() - self.begun
                ledger.save_inside(self.standing, stage, state)

        minutes = (
            None
            if self.deadline == float("inf")
            else max(self.deadline - time.monotonic(), 0.0) / 60
        )
        driver = Driver(
            self.seed if seed is None else seed,
            self.device,
            self.precision,
            lambda moment: self.tell(title, moment),
            minutes,
            self.checkpoint_seconds,
        )
        ending: Ending = driver.run(phases, state, history=history, save=save)
        if ending == "stopped":
            kept = "run the same command with --resume" if ledger else "start it again"
            raise Stopped(f"Stopped by Ctrl-C in round {self.standing.round}.", fix=kept)
        if ending == "deadline":
            raise TimeIsUp

    def between(self) -> None:
        """Between two stages: save if it is time."""
        if (
            self.ledger is not None
            and time.monotonic() - self.ledger.saved_at >= self.checkpoint_seconds
        ):
            self.save()

    def save(self) -> None:
        if self.ledger is not None:
            self.count()
            self.standing.elapsed = time.monotonic() - self.begun
            self.ledger.save(self.standing)

    def tell(self, title: str, moment: Moment) -> None:
        """The moment of a stage as one of the whole federation."""
        if self.watch is None:
            return
        place, stages = self.stages
        rounds, number = self.rounds.rounds, self.standing.round
        done = (number - 1 + (place + moment.done) / stages) / rounds
        elapsed = time.monotonic() - self.begun
        left = elapsed * (1 - done) / done if done > 0 else None
        last = [one["accuracy"] for one in self.standing.records if one["accuracy"] is not None][
            -1:
        ]
        metrics = {**moment.metrics, **({"last accuracy": last[0]} if last else {})}
        self.watch(
            Moment(
                f"round {number}/{rounds}, {title}, {moment.phase}",
                moment.step,
                moment.steps,
                done,
                left,
                metrics,
            )
        )


def _bytes_of(upload: Upload) -> int:
    return len(encode(upload))


def architectures(crews: Sequence[ClientGroup]) -> list[ClientGroup]:
    """One crew for each architecture that travels."""
    return list({crew.exchanged_spec: crew for crew in crews if not crew.is_decoder_group}.values())


def _reasons(failed: Mapping[str, str]) -> list[str]:
    return [f"{name}: {why}" for name, why in failed.items()]


def _reason(error: Exception) -> str:
    """Why clients failed, in short. An error of CUDA itself is no client's, and is raised again:
    after it nothing can train here.
    """
    if "CUDA error" in str(error):  # not too little memory, which may be enough for one
        raise error
    return (str(error).splitlines() or [type(error).__name__])[0]
