"""Several rounds of local training and fusion."""

from attar.federation.communication import (
    cumulative_bytes,
    highest_common_accuracy,
    rounds_to_accuracy,
)
from attar.federation.devices import allocate, read_devices
from attar.federation.options import Rounds
from attar.federation.run import Federated, federate, federate_data

__all__ = [
    "Federated",
    "Rounds",
    "allocate",
    "cumulative_bytes",
    "federate",
    "federate_data",
    "highest_common_accuracy",
    "read_devices",
    "rounds_to_accuracy",
]
