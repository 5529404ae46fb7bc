"""How many rounds a federation has, and who takes part in them."""

from dataclasses import dataclass

from attar.errors import SettingsError


@dataclass(frozen=True)
class Rounds:
    """How many rounds, and who takes part."""

    rounds: int = 1  # how many, T
    fraction: float = 1.0  # f: of the clients drawn in each round
    drop: float = 0.0  # chance that a client that was drawn does not answer
    target: float | None = None  # accuracy whose rounds and bytes are reported
    # evaluate the model after every so many rounds, and after the last
    evaluate_every: int = 1
    # measure the models that stay at home every so many rounds; 0: at the end alone
    home_every: int = 0

    def __post_init__(self) -> None:
        checks = {
            "rounds: at least 1": self.rounds >= 1,
            "fraction: above 0, at most 1": 0 < self.fraction <= 1,
            "drop: from 0 to below 1": 0 <= self.drop < 1,
            "target: above 0, at most 1": self.target is None or 0 < self.target <= 1,
            "evaluate_every: at least 1": self.evaluate_every >= 1,
            "home_every: at least 0": self.home_every >= 0,
        }
        problems = [
            f"{rule}, got {getattr(self, rule.split(':')[0])}"
            for rule, holds in checks.items()
            if not holds
        ]
        if problems:
            raise SettingsError("Settings of the rounds that do not fit:", problems=problems)
