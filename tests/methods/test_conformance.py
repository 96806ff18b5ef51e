"""Every registered method runs the suite, and the suite finds a method that does other than it
says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydp.methods.dp import DPSGD
from raydp.methods.nonprivate import NonPrivate, _NoClipping
from raydp.privacy import PoissonGaussian
from raydp.testing.methods import MethodConformance
from raydp.testing.points import points_task
from raydp.training.trial_plan import TrialPlan
from tests.builders.registered import of_core


class TestDPSGD(MethodConformance):
    name, written = "dp_sgd", {"max_grad_norm": 0.7, "momentum": 0.5}


class TestAutomaticClipping(MethodConformance):
    name, written = "dp_sgd", {"clipping": "automatic"}


class TestDPAdam(MethodConformance):
    name, written = "dp_adam", {"weight_decay": 0.5, "decay": "in_loss"}


class TestNonPrivate(MethodConformance):
    name = "nonprivate"


def test_every_registered_method_runs_the_suite() -> None:
    assert {suite.name for suite in MethodConformance.__subclasses__()} >= of_core("methods")


class Claiming(DPSGD):
    """DP-SGD whose event has another noise multiplier than the noise that is drawn."""

    factor: float

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        event = super().event(plan, noise_multiplier)
        return replace(event, noise_multiplier=self.factor * event.noise_multiplier)


class SamplingMore(DPSGD):
    """DP-SGD that draws each example 8 % more often than its event says."""

    def event(self, plan: TrialPlan, noise_multiplier: float) -> PoissonGaussian:
        event = super().event(plan, noise_multiplier)
        return replace(event, sample_rate=event.sample_rate / 1.08)


class Drifting(DPSGD):
    """DP-SGD whose batch depends on how many were drawn before, as of a generator that is not
    keyed."""

    def batch_indices(self, plan: TrialPlan, key: bytes, step: int) -> np.ndarray:
        count = self.__dict__.setdefault("drawn", [])
        count.append(step)
        return super().batch_indices(plan, key, len(count))


class Unclipped(DPSGD):
    """DP-SGD that forgets to clip."""

    def _clipping(self, plan: TrialPlan) -> Any:
        return _NoClipping(self.max_grad_norm)


class Careless(DPSGD):
    """DP-SGD whose noise depends on a generator of torch's, and so differs after a resume."""

    def optimizer(self, plan: TrialPlan, parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        for parameter in parameters:
            parameter.data += 1e-3 * torch.randn(parameter.shape)
        return super().optimizer(plan, parameters)


class Certifying(NonPrivate):
    """Training without noise that calls itself private."""

    private = True


@pytest.mark.parametrize("factor", [0.95, 1.05], ids=["less than is drawn", "more than is drawn"])
def test_an_event_with_another_noise_multiplier_is_found(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, method = TestDPSGD(), Claiming(factor=factor)
    with pytest.raises(AssertionError, match="noise variance"):
        suite.test_what_it_draws_is_what_its_event_says(method, monkeypatch)
    with pytest.raises(AssertionError):
        suite.test_its_event_is_of_the_noise_that_it_is_asked_for(method)


def test_other_faults_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    suite = TestDPSGD()
    with pytest.raises(AssertionError, match="sampling rate"):
        suite.test_what_it_draws_is_what_its_event_says(SamplingMore(), monkeypatch)
    with pytest.raises(AssertionError, match="the same again"):
        suite.test_a_batch_depends_on_key_run_and_step_alone(Drifting())
    with pytest.raises(AssertionError, match="one record"):
        suite.test_one_record_moves_the_sum_by_what_the_event_assumes(Unclipped(), points_task())
    with pytest.raises(AssertionError):
        suite.test_gradients_are_clipped_where_it_says_so(Unclipped(), points_task())
    with pytest.raises(AssertionError):
        suite.test_a_resumed_run_ends_where_an_undisturbed_one_does(Careless(), tmp_path)
    with pytest.raises(AssertionError):
        suite.test_its_event_is_a_guarantee_exactly_where_it_says_that_it_is_private(Certifying())
