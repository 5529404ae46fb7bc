"""For methods that are done once the uploads are combined: they train nothing.

Such a method says so in two lines of its class:

    start = no_state
    phases = no_phases
"""

from attar.core import Phase, State


def no_state(method: object, context: object) -> State:
    """The state of a method in which nothing changes."""
    return State()


def no_phases(method: object, context: object) -> tuple[Phase, ...]:
    """No phase."""
    return ()
