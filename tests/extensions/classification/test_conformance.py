"""Every task of the extension runs the suite, and the suite finds a task that does other than it says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
import torch

from raydp.extensions.classification.labelled import ClassificationTask, LabelledBatch
from raydp.plugins.registries import resolve
from raydp.tasks.task import Task
from raydp.testing.tasks import TaskConformance, model_of
from tests.builders.data_files import (
    write_cifar,
    write_json_lines,
    write_mnist,
    write_purchase,
    write_texas,
)
from tests.tasks.test_conformance import mails


class TestTextClassification(TaskConformance):
    name = "text_classification"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        rows = [
            {"text": mail, "label": "even" if i % 2 else "odd"}
            for i, mail in enumerate(mails(changed=changed))
        ]
        path = write_json_lines(folder / "texts.jsonl", rows)
        return {"path": str(path), "label_words": {"even": "-", "odd": "+"}, "max_length": 32}


class TestDigits(TaskConformance):
    name = "digits"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"heldout_fraction": 0.9}

    def changed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
        """It is in a library: one training digit gets a darker corner."""
        digits = sklearn.datasets.load_digits()
        at = np.random.default_rng(0).permutation(len(digits.images))[-1]
        digits.images[at, 0, 0] += 1
        with monkeypatch.context() as patch:
            patch.setattr(sklearn.datasets, "load_digits", lambda: digits)
            return super().changed(folder, monkeypatch)


class TestMnist(TaskConformance):
    name = "mnist"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        write_mnist(folder, np.random.default_rng(0), changed=changed)
        return {"path": str(folder)}


class TestCifar(TaskConformance):
    name = "cifar"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        write_cifar(folder, np.random.default_rng(0), changed=changed)
        return {"path": str(folder)}


class TestPurchase100(TaskConformance):
    name = "purchase100"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        write_purchase(folder, np.random.default_rng(0), changed=changed)
        return {"path": str(folder / "dataset_purchase"), "num_examples": 25, "num_heldout": 10}


class TestTexas100(TaskConformance):
    name = "texas100"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        write_texas(folder, np.random.default_rng(0), changed=changed)
        return {"path": str(folder), "num_examples": 25, "num_heldout": 10}


class TestTabular(TaskConformance):
    name = "tabular"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        rows = [f"{i + 0.25 * (changed and i == 3)},{'xy'[i % 2]},{i / 2}\n" for i in range(60)]
        path = folder / "table.csv"
        path.write_text("a,kind,b\n" + "".join(rows))
        return {"path": str(path), "label": "kind", "utility": "cross_entropy"}


def planted(task: ClassificationTask, **changes: Any) -> ClassificationTask:
    """The task with methods of its class replaced."""
    faulty = type("Faulty", (type(task),), changes)
    return faulty(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return resolve("tasks", "tabular").model_validate(TestTabular().written(tmp_path)).build(None)


def test_check_fails_when_a_loss_couples_examples(table: ClassificationTask) -> None:
    def centred(
        self: ClassificationTask, model: torch.nn.Module, batch: LabelledBatch
    ) -> torch.Tensor:
        losses = type(table).per_example_loss(self, model, batch)
        return losses + 0.01 * losses.mean()

    with pytest.raises(AssertionError, match="alone as in company"):
        TestTabular().test_the_loss_of_an_example_is_its_own(
            planted(table, per_example_loss=centred), model_of(table, None)
        )


def test_other_faults_are_found(
    table: ClassificationTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, model = TestTabular(), model_of(table, None)
    mean = planted(
        table,
        per_example_loss=lambda self, model, batch: table.per_example_loss(model, batch).mean(),
    )
    with pytest.raises(AssertionError):
        suite.test_the_loss_of_an_example_is_its_own(mean, model)
    halved = planted(table, utility=lambda self, model: table.utility(model) / 2)
    with pytest.raises(AssertionError):
        suite.test_utility_is_of_each_held_out_example_once(halved, model)
    fewer = dataclasses.replace(
        table, task_facts=dataclasses.replace(table.task_facts, num_units=3)
    )
    with pytest.raises(AssertionError):
        suite.test_its_facts_are_those_of_its_data(fewer)
    monkeypatch.setattr(
        "raydp.extensions.classification.labelled.content_hash", lambda *parts: "0" * 64
    )
    alike = suite.resolved(suite.written(tmp_path)).build(None)
    with pytest.raises(AssertionError):
        suite.test_another_example_is_another_task(alike, tmp_path, monkeypatch)
