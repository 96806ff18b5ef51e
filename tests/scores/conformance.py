"""What every score must do; each registered one runs it."""

from __future__ import annotations

import pytest

from raydp.scores.base import Measurement
from raydp.tasks.base import Secret
from tests.builders.secrets import made_up_secrets, make_task


class ScoreConformance:
    """Inherit and set `name` (as registered), `score` and the `kind` of secrets that it measures.

    `chance` is the value that the score has on average without memorisation, if that is not about 0.
    """

    name: str
    score: object
    kind: str
    chance: float = 0.0

    def task(self, secrets=(), controls=()):
        """A task with these secrets; a score that measures something else makes its own of them."""
        return make_task(secrets, controls)

    @pytest.fixture
    def known(self) -> list[Secret]:
        return made_up_secrets(self.kind, 8, seed=0)

    @pytest.fixture
    def unknown(self) -> list[Secret]:
        return made_up_secrets(self.kind, 8, seed=1)

    @pytest.fixture
    def controls(self) -> list[Secret]:
        return made_up_secrets(self.kind, 8, seed=2)

    def test_is_deterministic_in_its_seed(self, untrained, memorised, known, controls):
        task = self.task(known, controls)
        for model in (untrained, memorised):
            assert self.score.measure(model, task, seed=3) == self.score.measure(model, task, seed=3)

    def test_stays_in_its_expected_bounds_on_a_model_that_never_saw_the_secret(self, untrained, known, controls):
        low, high = self.score.expected_bounds()
        measured = self.score.measure(untrained, self.task(known, controls), seed=0)
        assert all(low <= value <= high for value in (measured.value, *measured.per_secret.values()))

    def test_rises_on_a_model_that_always_says_it(self, untrained, memorised, known, controls):
        task = self.task(known, controls)
        never, always = (self.score.measure(model, task, seed=0) for model in (untrained, memorised))
        assert always.value > never.value
        high = self.score.expected_bounds()[1]
        if high == 1:
            assert always.value > 0.9, "a ratio comes near its upper bound"
            assert never.value < self.chance + 0.1, "and stays near its chance level where nothing was memorised"

    def test_standard_error_shrinks_with_more_secrets(self, memorised, known, unknown, controls):
        errors = []
        for count in (2, 8):  # half of the secrets are known, so that values differ at any count
            task = self.task([*known[:count], *unknown[:count]], controls)
            errors.append(self.score.measure(memorised, task, seed=0).std_error)
        assert 0 < errors[1] < errors[0]

    def test_one_secret_has_no_standard_error(self, untrained, known, controls):
        measured = self.score.measure(untrained, self.task(known[:1], controls), seed=0)
        assert measured.std_error is None

    def test_a_subset_of_the_secrets_gets_the_same_values(self, memorised, known, unknown, controls):
        """What else is measured, and in what order, changes nothing but the last digits of a batched product."""
        whole = self.score.measure(memorised, self.task([*known, *unknown], controls), seed=5).per_secret
        part = self.score.measure(memorised, self.task([unknown[2], *known[::-3]], controls), seed=5).per_secret
        # fp32 logits of two batch shapes differ by some 1e-6; a sum of 4 log-probabilities by some 1e-5.
        assert part == pytest.approx({name: whole[name] for name in part}, abs=1e-4)

    def test_never_returns_a_secret_in_the_clear(self, memorised, known, controls, caplog, capsys):
        measured = self.score.measure(memorised, self.task(known, controls), seed=0)
        assert isinstance(measured, Measurement)
        assert list(measured.per_secret) == [secret.name for secret in known]
        shown = repr(measured) + caplog.text + "".join(capsys.readouterr())
        for secret in (*known, *controls):
            assert secret.prompt not in shown
            # Digits may occur in a number by chance; a whole repr field may not.
            assert repr(secret.continuation) not in shown

    def test_leaves_the_model_as_it_was(self, untrained, known, controls):
        before = {name: (p.data_ptr(), p.clone()) for name, p in untrained.model.named_parameters()}
        untrained.model.model.layers[1].train()
        try:
            self.score.measure(untrained, self.task(known, controls), seed=0)
            modes = [layer.training for layer in untrained.model.model.layers]
        finally:
            untrained.model.eval()
        assert modes == [False, True]
        for name, parameter in untrained.model.named_parameters():
            address, value = before[name]
            assert parameter.data_ptr() == address
            assert parameter.equal(value)

    def test_a_task_without_its_kind_of_secret_is_refused_before_training(self):
        with pytest.raises(ValueError, match=rf"must contain kind .* for the score '{self.name}', got none"):
            self.score.check(self.task())

    def test_a_task_that_fits_is_accepted(self, known, controls):
        assert self.score.check(self.task(known, controls)) is None

    def test_bounds_are_ordered_numbers(self):
        low, high = self.score.expected_bounds()
        assert low < high  # false for NaN too
