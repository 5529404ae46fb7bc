"""FedENS: the clients' models side by side, combined by a rule, as a deployable model.

Papers: N. Guha et al., One-Shot Federated Learning, 2019 (mean of logits or probabilities).
Co-Boosting's FedENS and DW-FedENS are ``mean-logits`` and ``data-weighted``; ``max-logits`` is
FedKEM's Eq. (5), ``vote`` its majority vote.

    mean-logits          f(x)_c = mean_k f_k(x)_c
    data-weighted        f(x)_c = sum_k (n_k / n) f_k(x)_c
    mean-probabilities   p(c|x) = mean_k softmax(f_k(x))_c
    max-logits           f(x)_c = max_k f_k(x)_c
    vote                 p(c|x) = share of clients that put c first
    class-share          p(c|x) proportional to sum_k s_kc softmax(f_k(x))_c
    accord               p(c|x) proportional to sum_k s_kc gate_k(x) softmax(f_k(x) / 1.5)_c
    trimmed              p(c|x) proportional to the mean of softmax(f_k(x))_c without the largest
                         and the smallest; weighted by s_kc where all sent label counts

| symbol | here |
|---|---|
| f_k | the classifier of client k |
| n_k / n | ``data_shares`` |
| s_kc | ``class_shares``, n_kc / sum_j n_jc; of accord see accord/method.py |

Each sum is over the clients that know class c. On skewed splits the rules differ by tens of
points, so the rule is part of the result's name.

Departures: none; there is no student.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from attar.blocks.ensemble import RuleName, build_mixture, rule_needs_counts
from attar.core import Mixture, Needs, Result, Server, State, Upload
from attar.methods.without_phases import no_phases, no_state
from attar.settings import settings


@settings()
@dataclass(frozen=True)
class FedEns:
    """All clients' models side by side, combined by a rule (Guha et al. 2019)."""

    paper: ClassVar[str] = "Guha et al., 2019"
    cost: ClassVar[str] = "nothing to fuse; every image passes all clients"

    # how the answers of the clients become one; see docs/methods/fedens.md
    rule: RuleName = "mean-logits"

    @property
    def needs(self) -> Needs:
        """Label counts where the rule needs them; no student."""
        return Needs(label_counts=rule_needs_counts(self.rule), student=False)

    def prepare(self, uploads: Sequence[Upload], server: Server) -> Mixture:
        """Combine the clients' classifiers by the rule."""
        return build_mixture(self.rule, uploads, server.task.classes)

    start = no_state
    phases = no_phases

    def result(self, context: Mixture, state: State) -> Result:
        """The ensemble, under the name of its rule, and its weights."""
        arrays = {} if context.weights is None else {"weights": context.weights}
        return Result({self.rule: context}, arrays)
