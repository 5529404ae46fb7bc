"""Whether mixtures of Gaussians (``nets/feature_mixtures.py``) can be those of some images."""

from collections.abc import Mapping

from attar.core import Part

MIXTURES = "mixtures"
AGREED = ("backbone", "fingerprint", "features", "dimensions", "clip")
_SLACK = 1e-3  # for numbers in single precision


def mixtures_problems(parts: Mapping[str, Part]) -> list[str]:
    """Check the mixtures in an upload.

    Args:
        parts: of the upload; no part ``mixtures`` is no problem.

    Returns:
        One sentence for each problem; empty if they are those of some images, and of those that
        the sums beside them are of.
    """
    part = parts.get(MIXTURES)
    if part is None:
        return []
    sums = parts.get("sums")
    if sums is None:
        return ["mixtures without the sums of the same images"]
    options, theirs = dict(part.spec.options), dict(sums.spec.options)
    if part.classes != sums.classes or any(options.get(n) != theirs.get(n) for n in AGREED):
        return ["mixtures of other classes or of another backbone than the sums beside them"]
    counts = part.state["counts"]
    if not counts.equal(sums.state["counts"].sum(0)):
        return ["its mixtures are of other numbers of images than its sums"]
    weights = part.state["weights"].double()
    problems = []
    total = weights.sum(1)
    held = counts > 0
    if bool((weights < 0).any()):
        problems.append("a negative weight of a mixture")
    elif bool(((total - 1).abs() > _SLACK)[held].any()) or bool((total[~held] != 0).any()):
        problems.append("weights of a mixture that do not add up to 1")
    if options.get("covariance", "diagonal") != "full" and bool((part.state["spreads"] < 0).any()):
        problems.append("a negative variance in a mixture")
    clip = options.get("clip", 0.0)
    assert isinstance(clip, int | float)
    lengths = part.state["means"].double().norm(dim=-1)
    if clip and bool((lengths > clip * (1 + _SLACK)).any()):
        problems.append(f"a mean of a mixture is longer than the clip of {clip:g} allows")
    return problems
