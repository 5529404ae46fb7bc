"""What a request to the web service may ask for."""

from dataclasses import asdict, dataclass
from typing import Any

from attar.errors import SettingsError


@dataclass(frozen=True)
class Limits:
    """Bounds of one request; a larger one is refused.

    Attributes:
        bytes: of the whole request.
        pixels: of one image, before it is decoded.
        images: in one request.
        seconds: from its first byte to its answer.
        waiting: requests at a time; one of them is classified, the others wait.
    """

    bytes: int = 32_000_000
    pixels: int = 50_000_000
    images: int = 32
    seconds: float = 30.0
    waiting: int = 8

    def __post_init__(self) -> None:
        small = [f"{name} = {value}" for name, value in asdict(self).items() if not value > 0]
        if small:
            raise SettingsError("Limits must be above 0:", problems=small)

    def to_json(self) -> dict[str, Any]:
        """The limits for programs."""
        return asdict(self)
