"""Tasks made of another: more training examples, or fewer."""

from __future__ import annotations

import numpy as np
import pytest

from raydp.models import base_models as models
from raydp.tasks.text.builtin import BuiltinTask
from raydp.tasks.text.examples import TokenizedExamples
from raydp.tasks.text.language import LanguageModelingTask
from raydp.tasks.wrappers.derived_task import DerivedTask


@pytest.fixture(scope="module")
def task() -> LanguageModelingTask:
    return BuiltinTask().build(models.load_tokenizer("tiny"))


def test_added_examples_come_last_and_count(task: LanguageModelingTask) -> None:
    extra = TokenizedExamples.from_lists([[5, 6, 7], [8, 9]], [2, 1])
    longer = task.extended(extra, unit="added")
    n = task.facts().num_units
    assert (longer.facts().num_units, longer.facts().num_examples) == (n + 2, n + 2)
    assert longer.facts().num_tokens == task.facts().num_tokens + 2
    assert longer.facts().content_hash != task.facts().content_hash
    assert longer.facts().privacy_unit.endswith("or added")
    (old,), (new,) = (t.batch(np.array([n - 1])).input_ids.tolist() for t in (task, longer))
    assert old == new
    assert longer.batch(np.array([n, n + 1])).labels.tolist() == [[-100, -100, 7], [-100, 9, -100]]


def test_a_subset_has_the_chosen_examples(task: LanguageModelingTask) -> None:
    chosen = np.array([7, 2])
    fewer = task.subset(chosen)
    assert fewer.facts().num_units == 2
    assert fewer.batch(np.arange(2)).input_ids.tolist() == task.batch(chosen).input_ids.tolist()


def test_users_stay_whole(task: LanguageModelingTask) -> None:
    with pytest.raises(ValueError, match=r"privacy\.unit must be example"):
        task.by_user().subset(np.arange(3))


@pytest.mark.extensions
def test_a_mistake_in_the_inner_task_is_named() -> None:
    with pytest.raises(ValueError, match=r"task\.of\.name 'enrn' is unknown. Did you mean 'enron'"):
        DerivedTask.model_validate({"of": {"name": "enrn"}})
