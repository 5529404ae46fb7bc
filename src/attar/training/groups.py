"""Clients of one architecture, who train together in whichever rounds they are drawn for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attar import seeds
from attar.core import ModelSpec, Part, Preprocess
from attar.training.classifier import ClassifierTraining, fresh_preprocess
from attar.training.clients import ClientData, checked_groups
from attar.training.cvae import CvaeTraining, paper_training
from attar.training.loop import LocalStack
from attar.training.mutual import KNOWLEDGE, MutualTraining
from attar.training.objectives import Objective
from attar.training.options import LocalTraining
from attar.training.resident import Visit, Workplace, open_workplace


@dataclass(frozen=True)
class Crew:
    """One architecture, image shape and class list. Its workplace is opened with the first round
    and kept for all others.
    """

    spec: ModelSpec
    clients: tuple[ClientData, ...]
    preprocess: Preprocess
    training: LocalTraining
    objective: Objective
    seats: int
    seed: int
    device: str
    opened: list[Workplace] = field(default_factory=list)

    @property
    def weak(self) -> bool:
        """Autoencoders, of which the decoder is sent."""
        return self.spec.kind == "cvae"

    @property
    def travels(self) -> ModelSpec:
        """The architecture of the model that goes to and fro."""
        return self.spec if self.objective.mutual is None else self.objective.mutual.knowledge

    def first(self) -> Part:
        """The untrained model that the server sends in the first round: the one that clients
        would start from by themselves.
        """
        purpose = "init" if self.objective.mutual is None else KNOWLEDGE
        classes = self.clients[0].classes
        net = self.travels.build(
            self.preprocess.input_shape, len(classes), seeds.derive(self.seed, purpose)
        )
        return Part(self.travels, net.state_dict(), classes, self.preprocess)

    def stack(self, names: Sequence[str], visit: Visit) -> LocalStack:
        """The training of these clients in one round."""
        members = [client for client in self.clients if client.name in set(names)]
        if self.weak:
            return CvaeTraining(members, self.spec, self.training, self.seed, self.device)
        if self.objective.mutual is not None:
            return self._placed(
                MutualTraining(
                    members,
                    self.spec,
                    self.preprocess,
                    self.training,
                    self.objective.mutual,
                    self.seed,
                    self.device,
                    visit,
                )
            )
        initial = visit.received.get("classifier")
        return self._placed(
            ClassifierTraining(
                members,
                self.spec,
                self.preprocess,
                self.training,
                self.seed,
                self.device,
                initial,
                self.objective,
                visit,
            )
        )

    def _placed(self, stack: ClassifierTraining | MutualTraining) -> LocalStack:
        if not self.opened:
            place = open_workplace(
                self.clients,
                stack.code(),
                self.preprocess,
                self.training,
                seed=self.seed,
                device=self.device,
                seats=self.seats,
            )
            self.opened.append(place)
        return replace(stack, visit=replace(stack.visit, workplace=self.opened[0]))


def muster(
    clients: Sequence[ClientData],
    specs: Sequence[ModelSpec],
    training: LocalTraining,
    objective: Objective,
    *,
    seats: int,
    seed: int,
    device: str,
    weak: Mapping[str, Any] | None = None,
    initial: Part | None = None,
) -> list[Crew]:
    """The crews of a federation, at most ``seats`` of all clients in one round. ``weak``:
    settings of CVAEs beside their paper's.
    """
    crews = []
    for (spec, shape, classes), members in checked_groups(clients, specs).items():
        how, preprocess = training, Preprocess.plain(shape)
        if spec.kind == "cvae":
            how = replace(paper_training(spec, shape, len(classes)), **(weak or {}))
        else:
            preprocess = (
                fresh_preprocess(spec, shape, training) if initial is None else initial.preprocess
            )
        crews.append(
            Crew(
                spec,
                tuple(members),
                preprocess,
                how,
                objective,
                min(seats, len(members)),
                seed,
                device,
            )
        )
    return crews
