"""Weights & Biases. Without a key it works offline: ``wandb sync`` sends the run later.

Only what attar logs is sent: no console output, no code, no state of git, no packages, no name of
the machine. W&B itself adds its version, that of Python, and the platform.
"""

import os
from collections.abc import Mapping
from importlib import import_module

from attar.tracking.tracker import Outcome, TrackedRun


class WandB:
    """A run of a project.

    It is online where ``WANDB_API_KEY`` is set, else offline; ``WANDB_MODE`` decides otherwise. Its
    files are in ``WANDB_DIR``, or in ``wandb`` here.

    Args:
        place: ``PROJECT`` or ``ENTITY/PROJECT``.
        run: that begins.
    """

    def __init__(self, place: str, run: TrackedRun) -> None:
        wandb = import_module("wandb")
        entity, _, project = place.rpartition("/")
        usual = "online" if os.environ.get("WANDB_API_KEY") else "offline"
        self._run = wandb.init(
            project=project,
            entity=entity or None,
            name=run.name,
            job_type=run.verb,
            config=dict(run.settings),
            mode=os.environ.get("WANDB_MODE") or usual,
            reinit="create_new",
            settings=wandb.Settings(
                console="off",
                silent=True,
                save_code=False,
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
                init_timeout=20,
            ),
        )
        self._groups: set[str] = set()

    def log(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Log metrics ``GROUP/NAME`` over ``GROUP/step``."""
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/step")
        named = {f"{group}/{name}": value for name, value in values.items()}
        self._run.log({**named, f"{group}/step": step})

    def finish(self, outcome: Outcome, result: Mapping[str, float]) -> None:
        """Write the summary and end the run."""
        summary = {f"final/{name}": value for name, value in result.items()}
        self._run.summary.update({**summary, "outcome": outcome})
        self._run.finish(exit_code=0 if outcome in ("finished", "deadline") else 1)
