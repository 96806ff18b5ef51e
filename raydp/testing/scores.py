"""The suite of scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from raydp.models.base_models import LoadedModel
from raydp.scores.score import Measurement, SecretKind
from raydp.tasks.task import Secret, Task
from raydp.testing.models import byte_tokenizer, llama, memorise
from raydp.testing.secrets import made_up_secrets, make_task


@cache
def untrained_model() -> LoadedModel:
    """Return a model that never saw anything. Nothing may change it."""
    tokenizer = byte_tokenizer()
    return LoadedModel(model=llama(len(tokenizer)), tokenizer=tokenizer)


@cache
def memorised_model() -> LoadedModel:
    """Return a model that says the first eight secrets of seed 0 of either kind."""
    known = [s for kind in ("verbatim", "attribute") for s in made_up_secrets(kind, 8, seed=0)]
    return memorise(known, untrained_model().tokenizer)


class ScoreConformance:
    """Inherit and set `name` (as registered), `score` and the `kind` of secrets that it measures.

    `chance` is the value that the score has on average without memorisation, if that is not about
    0.
    """

    name: str
    score: Any
    kind: SecretKind
    chance: float = 0.0

    @pytest.fixture
    def untrained(self) -> LoadedModel:
        return untrained_model()

    @pytest.fixture
    def memorised(self) -> LoadedModel:
        return memorised_model()

    def task(self, secrets: Sequence[Secret] = (), controls: Sequence[Secret] = ()) -> Task:
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

    def test_is_deterministic_in_its_seed(
        self,
        untrained: LoadedModel,
        memorised: LoadedModel,
        known: list[Secret],
        controls: list[Secret],
    ) -> None:
        task = self.task(known, controls)
        for model in (untrained, memorised):
            assert self.score.measure(model, task, seed=3) == self.score.measure(
                model, task, seed=3
            )

    def test_stays_in_its_expected_bounds_on_a_model_that_never_saw_the_secret(
        self, untrained: LoadedModel, known: list[Secret], controls: list[Secret]
    ) -> None:
        low, high = self.score.expected_bounds()
        measured = self.score.measure(untrained, self.task(known, controls), seed=0)
        assert all(
            low <= value <= high for value in (measured.value, *measured.per_secret.values())
        )

    def test_rises_on_a_model_that_always_says_it(
        self,
        untrained: LoadedModel,
        memorised: LoadedModel,
        known: list[Secret],
        controls: list[Secret],
    ) -> None:
        task = self.task(known, controls)
        never, always = (
            self.score.measure(model, task, seed=0) for model in (untrained, memorised)
        )
        assert always.value > never.value
        high = self.score.expected_bounds()[1]
        if high == 1:
            assert always.value > 0.9, "a ratio comes near its upper bound"
            assert never.value < self.chance + 0.1, (
                "and stays near its chance level where nothing was memorised"
            )

    def test_standard_error_shrinks_with_more_secrets(
        self,
        memorised: LoadedModel,
        known: list[Secret],
        unknown: list[Secret],
        controls: list[Secret],
    ) -> None:
        errors = []
        for count in (2, 8):  # half of the secrets are known, so that values differ at any count
            task = self.task([*known[:count], *unknown[:count]], controls)
            errors.append(self.score.measure(memorised, task, seed=0).std_error)
        assert 0 < errors[1] < errors[0]

    def test_one_secret_has_no_standard_error(
        self, untrained: LoadedModel, known: list[Secret], controls: list[Secret]
    ) -> None:
        measured = self.score.measure(untrained, self.task(known[:1], controls), seed=0)
        assert measured.std_error is None

    def test_a_subset_of_the_secrets_gets_the_same_values(
        self,
        memorised: LoadedModel,
        known: list[Secret],
        unknown: list[Secret],
        controls: list[Secret],
    ) -> None:
        """What else is measured, and in what order, changes nothing but the last digits of a
        batched product."""
        whole = self.score.measure(
            memorised, self.task([*known, *unknown], controls), seed=5
        ).per_secret
        part = self.score.measure(
            memorised, self.task([unknown[2], *known[::-3]], controls), seed=5
        ).per_secret
        # fp32 logits of two batch shapes differ by some 1e-6; a sum of 4 log-probabilities by some
        # 1e-5.
        assert part == pytest.approx({name: whole[name] for name in part}, abs=1e-4)

    def test_never_returns_a_secret_in_the_clear(
        self,
        memorised: LoadedModel,
        known: list[Secret],
        controls: list[Secret],
        caplog: pytest.LogCaptureFixture,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        measured = self.score.measure(memorised, self.task(known, controls), seed=0)
        assert isinstance(measured, Measurement)
        assert list(measured.per_secret) == [secret.name for secret in known]
        shown = repr(measured) + caplog.text + "".join(capsys.readouterr())
        for secret in (*known, *controls):
            assert secret.prompt not in shown
            # Digits may occur in a number by chance; a whole repr field may not.
            assert repr(secret.continuation) not in shown

    def test_leaves_the_model_as_it_was(
        self, untrained: LoadedModel, known: list[Secret], controls: list[Secret]
    ) -> None:
        before = {name: (p.data_ptr(), p.clone()) for name, p in untrained.model.named_parameters()}
        inner: Any = untrained.model.model
        layers = inner.layers
        layers[1].train()
        try:
            self.score.measure(untrained, self.task(known, controls), seed=0)
            modes = [layer.training for layer in layers]
        finally:
            untrained.model.eval()
        assert modes == [False, True]
        for name, parameter in untrained.model.named_parameters():
            address, value = before[name]
            assert parameter.data_ptr() == address
            assert parameter.equal(value)

    def test_a_task_without_its_kind_of_secret_is_refused_before_training(self) -> None:
        with pytest.raises(
            ValueError, match=rf"must contain kind .* for the score '{self.name}', got none"
        ):
            self.score.check(self.task())

    def test_a_task_that_fits_is_accepted(
        self, known: list[Secret], controls: list[Secret]
    ) -> None:
        assert self.score.check(self.task(known, controls)) is None

    def test_bounds_are_ordered_numbers(self) -> None:
        low, high = self.score.expected_bounds()
        assert low < high  # false for NaN too
