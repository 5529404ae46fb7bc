"""What a fusion does against clients that are wrong or lie: bounds before it, a report after it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from attar.core import Result, Server, Upload
from attar.fusion.claims import Claim, bound_claims, bound_weights, find_claims
from attar.fusion.impossible import impossible_statistics
from attar.fusion.outliers import OutlierReport, find_outliers
from attar.training import STATISTICS


@dataclass(frozen=True)
class Safeguards:
    """What is done.

    Attributes:
        bound: Numbers of images and weights out of all proportion do not count as they were sent,
            and statistics that cannot be do not count at all.
        report: Clients that do not fit in are looked for when the model is there.
        backdoors: Triggers are searched for, too: some seconds for each client.
    """

    bound: bool = True
    report: bool = True
    backdoors: bool = False

    def guard(self, uploads: Sequence[Upload]) -> "Guarded":
        """Bound what the clients say."""
        if not self.bound:
            return Guarded(uploads, find_claims(uploads), {}, {})
        believed, claims = bound_claims(uploads)
        bounded, factors = bound_weights(believed)
        wrong = {one.client: told[0] for one in uploads if (told := impossible_statistics(one))}
        kept = [_without_statistics(one) if one.client in wrong else one for one in bounded]
        return Guarded(kept, claims, factors, wrong)

    def examine(
        self, sent: Sequence[Upload], claims: Sequence[Claim], server: Server, result: Result
    ) -> OutlierReport | None:
        """Look for clients that do not fit in.

        Args:
            sent: The uploads as they came.
            claims: That stand out.
            server: On which they were fused.
            result: Of the fusion.
        """
        if not self.report:
            return None
        return find_outliers(sent, server, result, claims=claims, backdoors=self.backdoors)


NONE = Safeguards(bound=False, report=False)


@dataclass(frozen=True)
class Guarded:
    """Uploads as they count.

    Attributes:
        uploads: With bounded numbers of images and weights.
        claims: Numbers of images that stand out.
        weights: By what the weights of a client were divided at most, by client.
        statistics: Why the statistics of a client do not count, by client.
    """

    uploads: Sequence[Upload]
    claims: Sequence[Claim]
    weights: dict[str, float]
    statistics: dict[str, str]

    def describe(self) -> dict[str, Any]:
        """What was bounded, for the record; empty where nothing was."""
        bounded: dict[str, Any] = {}
        if doubted := [claim.as_json() for claim in self.claims if not claim.believed]:
            bounded["claims"] = doubted
        if self.weights:
            bounded["weights"] = {name: round(by, 2) for name, by in self.weights.items()}
        if self.statistics:
            bounded["statistics"] = self.statistics
        return {"bounded": bounded} if bounded else {}


def _without_statistics(upload: Upload) -> Upload:
    parts = {name: part for name, part in upload.parts.items() if name != STATISTICS}
    return replace(upload, parts=parts)
