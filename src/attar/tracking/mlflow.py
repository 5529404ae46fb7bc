"""MLflow: a run in a local store or on a tracking server.

Its client is used and not its global functions, which would also log the user's name and the
command.
"""

import os
import re
import time
from collections.abc import Mapping
from importlib import import_module

from attar.tracking.tracker import Outcome, TrackedRun

EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
_STATUS: dict[Outcome, str] = {
    "finished": "FINISHED",
    "deadline": "FINISHED",
    "stopped": "KILLED",
    "failed": "FAILED",
}
# A server that does not answer must not hold up a run for the minutes that MLflow would try.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}


class MLflow:
    """A run of the experiment ``MLFLOW_EXPERIMENT_NAME``, or ``attar``.

    Args:
        place: of the store: a folder, ``sqlite:///FILE`` or ``http://HOST:PORT``.
        run: that begins.
    """

    def __init__(self, place: str, run: TrackedRun) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        if "://" not in place:  # a folder, which newer versions ask to be wanted
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        tracking = import_module("mlflow.tracking")
        self._entities = import_module("mlflow.entities")
        self._client = tracking.MlflowClient(tracking_uri=place)
        name = os.environ.get(EXPERIMENT) or "attar"
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._run = self._client.create_run(experiment, run_name=run.name).info.run_id
        parameters = [
            self._entities.Param(_as_key(key), str(value)) for key, value in run.settings.items()
        ]
        self._client.log_batch(self._run, params=parameters[:100])
        self._client.set_tag(self._run, "verb", run.verb)

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Log metrics ``GROUP/NAME``."""
        self._log({f"{group}/{name}": value for name, value in values.items()}, step)

    def finish(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        """Log metrics ``final/NAME`` and end the run."""
        self._log({f"final/{name}": value for name, value in result.items()}, 0)
        self._client.set_tag(self._run, "outcome", outcome)
        self._client.set_terminated(self._run, _STATUS[outcome])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [
            self._entities.Metric(_as_key(name), value, now, step) for name, value in values.items()
        ]
        if metrics:
            self._client.log_batch(self._run, metrics=metrics)


def _as_key(name: str) -> str:
    """A name with the characters that MLflow takes."""
    return re.sub(r"[^\w./ -]", "_", name, flags=re.ASCII)[:250]
