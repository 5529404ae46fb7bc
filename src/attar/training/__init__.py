"""Local training at the clients: their data, how their nets are trained, and what they send.

``train_classifiers`` and ``train_cvaes`` train clients from Python; ``make_stacks`` and
``train_stack`` do the same for the command line and the bench, ``group_clients`` for federations.
"""

from attar.training.classifier import ClassifierTraining
from attar.training.clients import ClientData
from attar.training.cvae import (
    DEFAULTS,
    LARGE_LR,
    TABLE_3,
    CvaeTraining,
    Preset,
    TrainingDefaults,
    paper_training,
)
from attar.training.evaluation import local_accuracy
from attar.training.flags import StatisticsFlags, TrainingFlags
from attar.training.from_partition import (
    client_names,
    make_client,
    parse_clients,
    server_images,
    share_out,
)
from attar.training.groups import ClientGroup, group_clients
from attar.training.loop import LocalStack, expected_uploads, train_stack
from attar.training.mutual import DEPLOYED, MutualTraining
from attar.training.objectives import (
    CONTROL,
    Distance,
    HasObjective,
    Mutual,
    Objective,
    Peer,
    get_objective,
)
from attar.training.options import LocalTraining
from attar.training.resident import RoundInput
from attar.training.reuse import (
    check_reuse,
    trained_on_other_images,
    training_metadata,
    write_metadata,
)
from attar.training.stacking import activation_bytes
from attar.training.stacks import (
    make_stacks,
    stack_classifiers,
    stack_cvaes,
    train_classifiers,
    train_cvaes,
)
from attar.training.statistics import (
    STATISTICS,
    StatisticsSettings,
    add_statistics,
    penultimate_features,
)

__all__ = [
    "CONTROL",
    "DEFAULTS",
    "DEPLOYED",
    "LARGE_LR",
    "STATISTICS",
    "TABLE_3",
    "ClassifierTraining",
    "ClientData",
    "ClientGroup",
    "CvaeTraining",
    "Distance",
    "HasObjective",
    "LocalStack",
    "LocalTraining",
    "Mutual",
    "MutualTraining",
    "Objective",
    "Peer",
    "Preset",
    "RoundInput",
    "StatisticsFlags",
    "StatisticsSettings",
    "TrainingDefaults",
    "TrainingFlags",
    "activation_bytes",
    "add_statistics",
    "check_reuse",
    "client_names",
    "expected_uploads",
    "get_objective",
    "group_clients",
    "local_accuracy",
    "make_client",
    "make_stacks",
    "paper_training",
    "parse_clients",
    "penultimate_features",
    "server_images",
    "share_out",
    "stack_classifiers",
    "stack_cvaes",
    "train_classifiers",
    "train_cvaes",
    "train_stack",
    "trained_on_other_images",
    "training_metadata",
    "write_metadata",
]
