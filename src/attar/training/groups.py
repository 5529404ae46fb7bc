"""Clients of one architecture in a federation: they train together in the rounds they are in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attar import seeds
from attar.core import ModelSpec, Part, Preprocess
from attar.errors import SettingsError
from attar.training.classifier import ClassifierTraining, fresh_preprocess
from attar.training.clients import ClientData, group_by_stack
from attar.training.cvae import CvaeTraining, paper_training
from attar.training.loop import LocalStack
from attar.training.mutual import MutualTraining
from attar.training.objectives import Objective
from attar.training.options import LocalTraining
from attar.training.pairs import KNOWLEDGE
from attar.training.resident import ResidentClients, RoundInput, load_clients


@dataclass(frozen=True)
class ClientGroup:
    """Clients of one architecture, image shape and class list.

    Their images go to the device with the first round and stay there for all others.

    Attributes:
        spec: The architecture that the clients train.
        clients: All of them, whether a round samples them or not.
        preprocess: How images reach the net.
        training: The hyper-parameters.
        objective: What the method asks for.
        capacity: The most of these clients in one round.
        seed: Of the run.
        device: Where they train.
    """

    spec: ModelSpec
    clients: tuple[ClientData, ...]
    preprocess: Preprocess
    training: LocalTraining
    objective: Objective
    capacity: int
    seed: int
    device: str

    @property
    def is_decoder_group(self) -> bool:
        """Whether the clients train autoencoders, of which they send the decoders."""
        return self.spec.kind == "cvae"

    @property
    def exchanged_spec(self) -> ModelSpec:
        """The architecture of the model that server and clients exchange."""
        return self.spec if self.objective.mutual is None else self.objective.mutual.knowledge

    def initial_model(self) -> Part:
        """Return the untrained model that the server sends in the first round.

        Without a server, the clients would start from the same one.
        """
        purpose = "init" if self.objective.mutual is None else KNOWLEDGE
        classes = self.clients[0].classes
        seed = seeds.derive(self.seed, purpose)
        net = self.exchanged_spec.build(self.preprocess.input_shape, len(classes), seed)
        return Part(self.exchanged_spec, net.state_dict(), classes, self.preprocess)

    def make_stack(self, names: Sequence[str], round_input: RoundInput) -> LocalStack:
        """Return the training of some of the clients in one round.

        Args:
            names: Which clients.
            round_input: The round, and what the server sent.
        """
        members = [client for client in self.clients if client.name in set(names)]
        stack = self._make_training(members, round_input)
        if isinstance(stack, CvaeTraining):
            return stack
        return replace(stack, round_input=replace(round_input, resident=self._resident))

    def _make_training(
        self, clients: Sequence[ClientData], round_input: RoundInput
    ) -> ClassifierTraining | MutualTraining | CvaeTraining:
        if self.is_decoder_group:
            return CvaeTraining(
                clients=clients,
                spec=self.spec,
                training=self.training,
                seed=self.seed,
                device=self.device,
            )
        if self.objective.mutual is not None:
            return MutualTraining(
                clients=clients,
                spec=self.spec,
                preprocess=self.preprocess,
                training=self.training,
                mutual=self.objective.mutual,
                seed=self.seed,
                device=self.device,
                round_input=round_input,
            )
        return ClassifierTraining(
            clients=clients,
            spec=self.spec,
            preprocess=self.preprocess,
            training=self.training,
            seed=self.seed,
            device=self.device,
            initial=round_input.broadcast.get("classifier"),
            objective=self.objective,
            round_input=round_input,
        )

    @cached_property
    def _resident(self) -> ResidentClients:
        """What stays on the device between rounds."""
        stack = self._make_training(self.clients, RoundInput())
        assert not isinstance(stack, CvaeTraining)
        return load_clients(
            self.clients,
            stack.build_code(),
            self.preprocess,
            self.training,
            seed=self.seed,
            device=self.device,
            capacity=self.capacity,
        )


def group_clients(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining,
    objective: Objective,
    *,
    capacity: int,
    seed: int,
    device: str,
    cvae_settings: Mapping[str, Any] | None = None,
    initial: Part | None = None,
) -> list[ClientGroup]:
    """Return the groups of a federation's clients.

    Args:
        clients: All of them.
        specs: The architecture of each client.
        training: The hyper-parameters of classifiers.
        objective: What the method asks for.
        capacity: The most clients in one round.
        seed: Of the run.
        device: Where they train.
        cvae_settings: What differs from ``paper_training`` for CVAEs.
        initial: The model that classifiers start from, whose preprocessing they take over.

    Raises:
        SettingsError: A setting has no meaning where clients train in rounds or in pairs.
    """
    without = {"min_steps": training.min_steps, "patience": training.patience}
    if wrong := [f"{name} = {value}" for name, value in without.items() if value]:
        raise SettingsError(
            "Settings that neither rounds nor pairs of networks have:",
            problems=wrong,
            fix="leave them out; epochs says how long clients train",
        )
    groups = []
    for (spec, shape, classes), members in group_by_stack(clients, specs).items():
        if spec.kind == "cvae":
            own_training = replace(
                paper_training(spec, shape, len(classes)), **(cvae_settings or {})
            )
            preprocess = Preprocess.plain(shape)
        elif initial is None:
            own_training = training
            preprocess = fresh_preprocess(spec, shape, training)
        else:
            own_training = training
            preprocess = initial.preprocess
        groups.append(
            ClientGroup(
                spec=spec,
                clients=tuple(members),
                preprocess=preprocess,
                training=own_training,
                objective=objective,
                capacity=min(capacity, len(members)),
                seed=seed,
                device=device,
            )
        )
    return groups
