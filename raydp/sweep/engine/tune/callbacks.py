"""Callbacks of Ray Tune: the sweep's own, which commits results, and the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ray import tune
from ray.tune import Callback as Callback

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

    from raydp.sweep.engine.committer import Committers

LOGGER = logging.getLogger(__name__)


class CommitCallback(tune.Callback):
    """Commits a run when its trial ends. The queue has the run's outcome then.

    If the sweep's folder refuses the result, the round ends at its next step. Tune would retry the
    trial instead.
    """

    def __init__(self, committers: Committers) -> None:
        self._committers = committers
        self._refusal: ValueError | None = None

    def __getstate__(self) -> dict[str, object]:
        return {}  # Tune pickles its callbacks for a restore that a sweep never uses

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: object
    ) -> None:
        try:
            self._committers.commit(trial.config["run_id"])
        except ValueError as error:
            self._refusal = error

    def on_step_end(self, iteration: int, trials: list[Trial], **info: object) -> None:
        if self._refusal is not None:
            raise self._refusal


class GuardedCallback(tune.Callback):
    """A user's callback that cannot stop a sweep.

    After its first error there is a warning, and it is not called again.

    Args:
        callback: any callback of Tune, such as a logger for Weights & Biases, TensorBoard or Comet.
    """

    def __init__(self, callback: tune.Callback) -> None:
        self._callback: tune.Callback | None = callback
        self._is_set_up = False
        self._trials: list[Trial] = []

    def __getstate__(self) -> dict[str, object]:
        return {}  # see CommitCallback

    def setup(self, *args: object, **info: object) -> None:
        """Set the callback up before Tune's first round; later ones are the same experiment."""
        if not self._is_set_up:
            self._is_set_up = True
            self._call("setup", *args, **info)

    def on_experiment_end(self, trials: list[Trial], **info: object) -> None:
        """Keep the trials of this round for `end`: there may be another round."""
        self._trials += trials

    def end(self) -> None:
        """Tell the callback that the sweep has no more runs."""
        self._call("on_experiment_end", trials=self._trials)

    def _call(self, hook: str, *args: object, **info: object) -> None:
        if self._callback is None:
            return
        try:
            getattr(self._callback, hook)(*args, **info)
        except Exception as error:  # noqa: BLE001 - a logger's fault must not cost a result
            name = type(self._callback).__name__
            said = f"{type(error).__name__}: {error}"
            LOGGER.warning("the callback %s failed and is not called again (%s)", name, said)
            self._callback = None


@contextmanager
def ending(callbacks: Sequence[GuardedCallback]) -> Iterator[None]:
    """Tell the callbacks of the end when the block ends, also by an error or an interruption."""
    try:
        yield
    finally:
        for callback in callbacks:
            callback.end()


def _forwarded(hook: str) -> Callable[..., None]:
    def forward(self: GuardedCallback, *args: object, **info: object) -> None:
        self._call(hook, *args, **info)

    return forward


# Hooks that reach the user's callback unchanged. The setup and the end are handled above.
for _hook in (
    "on_step_begin",
    "on_step_end",
    "on_trial_start",
    "on_trial_restore",
    "on_trial_save",
    "on_trial_result",
    "on_trial_complete",
    "on_trial_recover",
    "on_trial_error",
    "on_checkpoint",
):
    setattr(GuardedCallback, _hook, _forwarded(_hook))
