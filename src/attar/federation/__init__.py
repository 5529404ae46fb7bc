"""Several rounds of local training and fusion."""

from attar.federation.communication import highest_common, running_bytes, to_target
from attar.federation.devices import allocate, read_devices
from attar.federation.run import Federated, Rounds, federate, federate_data

__all__ = [
    "Federated",
    "Rounds",
    "allocate",
    "federate",
    "federate_data",
    "highest_common",
    "read_devices",
    "running_bytes",
    "to_target",
]
