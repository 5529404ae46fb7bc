"""Local training at the clients: their data, how their nets are trained, and what they send.

``train_classifiers`` and ``train_cvaes`` train clients from Python; ``make_stacks`` and
``train_stack`` do the same for the command line and the bench, ``group_clients`` for federations.
"""

from attar.training.accountant import solve_noise, spent_epsilon
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
from attar.training.feature_mixtures import mixtures_spec
from attar.training.feature_pass import SumsPass, kept_features, sum_features
from attar.training.feature_sums import SUMS, SumsSettings, SumTables, make_sums, sums_spec
from attar.training.flags import PrivacyFlags, StatisticsFlags, SumsFlags, TrainingFlags
from attar.training.from_partition import (
    client_names,
    make_client,
    parse_clients,
    server_images,
    share_out,
)
from attar.training.gaussian import MAX_EPSILON, gaussian_delta, gaussian_mu
from attar.training.groups import ClientGroup, group_clients
from attar.training.loop import LocalStack, expected_uploads, train_stack
from attar.training.mutual import MutualTraining
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
from attar.training.pairs import DEPLOYED
from attar.training.private_settings import PrivacySettings
from attar.training.private_stacks import make_private_stacks, suggest_private_training
from attar.training.private_training import PrivateTraining
from attar.training.resident import RoundInput
from attar.training.reuse import (
    check_reuse,
    read_metadata,
    split_trained,
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
    GaussianMechanism,
    StatisticsSettings,
    add_statistics,
    penultimate_features,
)
from attar.training.suggest import explain_floor, suggest_training
from attar.training.verdict import Verdict, judge

__all__ = [
    "CONTROL",
    "DEFAULTS",
    "DEPLOYED",
    "LARGE_LR",
    "MAX_EPSILON",
    "STATISTICS",
    "SUMS",
    "TABLE_3",
    "ClassifierTraining",
    "ClientData",
    "ClientGroup",
    "CvaeTraining",
    "Distance",
    "GaussianMechanism",
    "HasObjective",
    "LocalStack",
    "LocalTraining",
    "Mutual",
    "MutualTraining",
    "Objective",
    "Peer",
    "Preset",
    "PrivacyFlags",
    "PrivacySettings",
    "PrivateTraining",
    "RoundInput",
    "StatisticsFlags",
    "StatisticsSettings",
    "SumTables",
    "SumsFlags",
    "SumsPass",
    "SumsSettings",
    "TrainingDefaults",
    "TrainingFlags",
    "Verdict",
    "activation_bytes",
    "add_statistics",
    "check_reuse",
    "client_names",
    "expected_uploads",
    "explain_floor",
    "gaussian_delta",
    "gaussian_mu",
    "get_objective",
    "group_clients",
    "judge",
    "kept_features",
    "local_accuracy",
    "make_client",
    "make_private_stacks",
    "make_stacks",
    "make_sums",
    "mixtures_spec",
    "paper_training",
    "parse_clients",
    "penultimate_features",
    "read_metadata",
    "server_images",
    "share_out",
    "solve_noise",
    "spent_epsilon",
    "split_trained",
    "stack_classifiers",
    "stack_cvaes",
    "suggest_private_training",
    "suggest_training",
    "sum_features",
    "sums_spec",
    "train_classifiers",
    "train_cvaes",
    "train_stack",
    "trained_on_other_images",
    "training_metadata",
    "write_metadata",
]
