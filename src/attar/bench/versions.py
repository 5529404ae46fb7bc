"""The version of local training: a part of the names of trained clients.

Raise ``TRAINING_VERSION`` by hand in the change that makes clients come out otherwise: local
training, the networks and their first weights, the partition of the data.
``tests/golden/test_training_pins.py`` fails when that happens and the version has not changed.
"""

TRAINING_VERSION = 1

# Release 0.1 had no version. It named clients by a hash of the syntax and paths of its sources,
# and Python 3.11 and 3.12 write that syntax in two ways. Version 1 keeps both hashes, so that
# clients trained by 0.1 are found. Clients that are trained today get the first.
SOURCE_HASHES = {1: ("41b72f376a008ca3", "0f8cf0bdf82f87a8")}


def training_codes() -> tuple[str, ...]:
    """What stands for the version of training in the names of clients.

    Returns:
        The code for new clients, followed by those under which older ones may lie.
    """
    return SOURCE_HASHES.get(TRAINING_VERSION, (f"training-{TRAINING_VERSION}",))
