"""What an upload says of itself that nothing in it proves, and what its numbers contradict."""

from attar.core import Part, Upload
from attar.training import (
    MAX_EPSILON,
    STATISTICS,
    SUMS,
    GaussianMechanism,
    StatisticsSettings,
)

LEAST_NOISE = 0.5  # of the spread that the stated noise would give the class means


def list_claims(upload: Upload) -> list[str]:
    """List statements of an upload that whoever receives it must take on trust, one sentence each.

    Args:
        upload: its content. What is impossible was refused when it was read.
    """
    claims = []
    for role in (STATISTICS, SUMS):
        part = upload.parts.get(role)
        epsilon = None if part is None else dict(part.spec.options).get("epsilon")
        if part is not None and epsilon:
            claims.append(
                f"that noise of epsilon {epsilon:g} was added to its {role}: its sender says so, "
                "no number in the file proves it"
            )
    statistics = upload.parts.get(STATISTICS)
    if statistics is not None:
        claims += _contradictions(upload, statistics)
    return claims


def _contradictions(upload: Upload, part: Part) -> list[str]:
    found = []
    options = dict(part.spec.options)
    held = part.state["held"]
    counts = upload.label_counts
    names = [name for name, flag in zip(part.classes, held.tolist(), strict=True) if flag]
    if counts is not None:
        count_of = dict(zip(part.classes, counts, strict=True))
        if empty := [name for name in names if not count_of[name]]:
            found.append(
                f"CONTRADICTED: statistics of {len(empty)} classes of which it says that it has no "
                f"image ({', '.join(empty[:3])})"
            )
    if 0 < float(options.get("epsilon", 0)) <= MAX_EPSILON:
        settings = StatisticsSettings(
            epsilon=float(options["epsilon"]),
            delta=float(options["delta"]),
            clip=float(options["clip"]),
        )
        mechanism = GaussianMechanism(settings)
        most = upload.num_examples if counts is None else max(max(counts), 1)
        least = mechanism.first_scale * mechanism.clip / most
        seen = float(part.state["means"][held].square().mean().sqrt())
        if seen < LEAST_NOISE * least:
            found.append(
                f"CONTRADICTED: the noise of epsilon {settings.epsilon:g} would give its class "
                f"means a spread of {least:.2g} or more, they have {seen:.2g}"
            )
    return found
