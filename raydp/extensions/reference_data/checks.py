"""Check that a row more moves no other row, and that each set weighs what its ε assumes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from raydp.extensions.classification.checks import table_rows
from raydp.extensions.reference_data.weighted import WeightedDPSGD
from raydp.methods.method import Method
from raydp.selftest.check_result import Check, FurtherChecks
from raydp.selftest.checks.divisions import moved_rows
from raydp.selftest.checks.sensitivity import sensitivity_checks
from raydp.selftest.subjects import DTYPES, Subject, toy_subjects
from raydp.tasks.text.language import LanguageModelingTask


class ReferenceChecks(FurtherChecks):
    """Checks of the task `with_reference`, and of reference data with a weight of their own."""

    title = "reference data"

    def checks(self, method: Method | None, progress: Callable[[float], object]) -> list[Check]:
        """Check the task on a table, and the weights on a language model."""
        return [
            *sensitivity_checks(weighted_subject()),
            moved_rows(
                "with_reference",
                lambda folder, rows: {
                    "name": "with_reference",
                    "of": table_rows(folder, rows),
                    "fraction": 0.4,
                },
            ),
        ]


def weighted_subject() -> Subject:
    """Return the random model with LoRA, whose last four sentences are reference data."""
    lora = next(subject for subject in toy_subjects(DTYPES[:1]) if subject.name == "Llama, LoRA")
    assert isinstance(lora.task, LanguageModelingTask)
    return replace(
        lora,
        name=f"{lora.name}, reference data",
        task=replace(lora.task, task_facts=replace(lora.task.facts(), num_reference=4)),
        method=WeightedDPSGD(max_grad_norm=lora.method.max_grad_norm, reference_weight=0.1),
    )


CHECKS = ReferenceChecks()
