"""What each client's images add to a head: its score with all clients, minus that without one.

The score is measured on what all clients hold together, in the half to which the head was not
fitted: accuracy of drawn scores. The same random numbers are drawn with and without the client.
"""

from collections.abc import Callable

from attar.blocks.heads import Halves, Head, Moments, draw_scores
from attar.methods.feature_groups import Group


def measure_contributions(
    group: Group, halves: Halves, fit: Callable[[Moments], Head], *, most: int
) -> dict[str, float]:
    """Leave out each client in turn.

    Args:
        group: the clients.
        halves: of all of them.
        fit: moments -> the head, with the shrinkage that was chosen for all.
        most: clients; where there are more, nothing is measured.

    Returns:
        By client, in shares of all images: 0.01 is a point of accuracy. Empty where there is one
        client, too many, or a half without images.
    """
    if not 1 < len(group.named) <= most or not halves.usable:
        return {}
    whole = _score(halves, fit, halves)
    contributions = {}
    for client, part in group.named.items():
        rest = group.totals.copy()
        rest.remove(part, client)
        fitted = Halves.of(rest)
        if fitted.usable:
            contributions[client] = round(whole - _score(fitted, fit, halves), 6)
    return contributions


def _score(fitted: Halves, fit: Callable[[Moments], Head], tested: Halves) -> float:
    """Accuracy of drawn scores, fitted to one half and drawn from the other, both ways."""
    score = 0.0
    for (half, _, _), (_, test, share) in zip(
        fitted.directions(), tested.directions(), strict=True
    ):
        score += share * draw_scores(fit(half), test).accuracy()
    return score
