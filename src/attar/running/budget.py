"""What a run may ask of the machine."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """What a run may ask of the machine.

    Attributes:
        memory: Bytes; None: what is free on the device.
        work: Hours of this machine; None: an hour, or twenty times what the run would take if all
            clients cost what the median one does.
        evaluated: Images on which the model will be evaluated.
        robustness: Whether the robustness report will be made.
    """

    memory: int | None = None
    work: float | None = None
    evaluated: int = 0
    robustness: bool = True
