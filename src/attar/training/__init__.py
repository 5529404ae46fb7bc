"""The client's half: what happens where the data are, and what leaves from there."""

from attar.training.classifier import ClassifierTraining, group_clients, train_classifiers
from attar.training.clients import ClientData
from attar.training.cvae import Preset, group_cvaes, paper_training, train_cvaes
from attar.training.evaluation import accuracy_at_home
from attar.training.flags import StatisticsFlags, TrainingFlags, make_stacks
from attar.training.from_partition import (
    as_client,
    client_names,
    parse_clients,
    server_images,
    share_out,
)
from attar.training.groups import Crew, muster
from attar.training.loop import LocalStack, promise, train_stack
from attar.training.mutual import DEPLOYED
from attar.training.objectives import (
    CONTROL,
    AsksOfClients,
    Distance,
    Mutual,
    Objective,
    Peer,
    objective_of,
)
from attar.training.options import LocalTraining
from attar.training.resident import Visit
from attar.training.reuse import check_kept, note_for, of_other_images, write_note
from attar.training.stacking import activation_bytes
from attar.training.statistics import STATISTICS, StatisticsSettings, penultimate, with_statistics

__all__ = [
    "CONTROL",
    "DEPLOYED",
    "STATISTICS",
    "AsksOfClients",
    "ClassifierTraining",
    "ClientData",
    "Crew",
    "Distance",
    "LocalStack",
    "LocalTraining",
    "Mutual",
    "Objective",
    "Peer",
    "Preset",
    "StatisticsFlags",
    "StatisticsSettings",
    "TrainingFlags",
    "Visit",
    "accuracy_at_home",
    "activation_bytes",
    "as_client",
    "check_kept",
    "client_names",
    "group_clients",
    "group_cvaes",
    "make_stacks",
    "muster",
    "note_for",
    "objective_of",
    "of_other_images",
    "paper_training",
    "parse_clients",
    "penultimate",
    "promise",
    "server_images",
    "share_out",
    "train_classifiers",
    "train_cvaes",
    "train_stack",
    "with_statistics",
    "write_note",
]
