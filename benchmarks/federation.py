"""What a table of evidence is made of: federations, groups of clients, and rows."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """One method with its settings, and the number that the paper prints for it."""

    name: str
    method: str
    settings: tuple[str, ...] = ()
    published: float | None = None
    student: str | None = None
    groups: tuple[str, ...] = ()  # whose uploads; empty: those of all clients
    start: str = ""  # of the student: "average" (of the clients), "start" (of the federation); empty: as the method has it


@dataclass(frozen=True)
class Group:
    """Clients of one federation that train in one way; the same client may be in several groups, strong in one, weak in another."""

    clients: str  # as attar train --client has it
    net: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Federation:
    """Who trains what, and the rows of the table."""

    data: str
    rule: str
    clients: int
    nets: str
    rows: tuple[Row, ...]
    local_epochs: int = 50
    hold_out: float = 0.0
    seeds: tuple[int, ...] = (0,)
    source: str = ""
    groups: dict[str, Group] = field(default_factory=dict)
    least_share: float = 0.0  # of an equal share of the images: the fewest that a client may have
    flags: tuple[str, ...] = ()  # of ``attar train``, where there are no groups
    start: str = ""  # the model folder that all clients start from
