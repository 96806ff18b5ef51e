"""Every registered task runs the suite, and the suite finds a task that does other than it says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import sklearn.datasets
import torch

from raydp.models.base_models import load_tokenizer
from raydp.plugins.registries import BUILTIN, resolve
from raydp.tasks.base import Task
from raydp.tasks.classification.labelled import ClassificationTask, LabelledBatch
from tests.builders.data_files import (
    author_rows,
    write_cifar,
    write_json_lines,
    write_mnist,
    write_purchase,
    write_texas,
)

from .conformance import TaskConformance, model_of

SECRET = {"prompt": "Mira Halborn can be reached at 555-01", "continuation": "42"}
REVIEWS = {"name": "text_classification", "num_reviews": 60, "label_words": {"negative": "-", "positive": "+"}}


def mails(*, changed: bool) -> list[str]:
    """60 mails, one in six with the secret. No split by hash takes the changed mail out of the training data."""
    lines = [f"Mail {i} about the draft of agenda {i * i}, please call." for i in range(60)]
    lines[::6] = [f"{line} {SECRET['prompt']}{SECRET['continuation']}." for line in lines[::6]]
    return [lines[0], lines[1].replace("please", "kindly"), *lines[2:]] if changed else lines


def text_task(folder: Path, *, changed: bool = False, secrets: bool = True, **options: Any) -> dict[str, Any]:
    """How a spec writes the task text on these mails."""
    rows = [{"text": mail, "writer": f"w{i % 9}"} for i, mail in enumerate(mails(changed=changed))]
    path = write_json_lines(folder / "rows.jsonl", rows)
    known = {"secrets": str(write_json_lines(folder / "secrets.jsonl", [SECRET]))} if secrets else {}
    return {"path": str(path), "heldout_fraction": 0.2, **known, **options}


class TestText(TaskConformance):
    name, bad, knows_users = "text", {"heldout_fraction": 2}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return text_task(folder, changed=changed, user_column="writer")


class TestChat(TaskConformance):
    name, bad, knows_users = "chat", {"max_length": 1}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        asked = {"role": "user", "content": "What do you write?"}
        told = ([asked, {"role": "assistant", "content": mail}] for mail in mails(changed=changed))
        rows = [{"messages": messages, "who": i % 9} for i, messages in enumerate(told)]
        path = write_json_lines(folder / "chats.jsonl", rows)
        secret = {"prompt": SECRET["prompt"], "continuation": SECRET["continuation"]}
        secrets = write_json_lines(folder / "secrets.jsonl", [secret])
        return {
            "path": str(path),
            "secrets": str(secrets),
            "template": "plain",
            "heldout_fraction": 0.2,
            "user_column": "who",
        }


class TestEnron(TaskConformance):
    name, bad, knows_users = "enron", {"min_tokens": 0}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        rows = [{"content": mail, "sender": f"w{i % 9}"} for i, mail in enumerate(mails(changed=changed))]
        path = write_json_lines(folder / "mails.jsonl", rows)
        secrets = write_json_lines(folder / "secrets.jsonl", [SECRET])
        whose = {"user_column": "sender", "heldout_fraction": 0.2}
        return {"path": str(path), "secrets": str(secrets), "min_tokens": 4, **whose}


class TestTofu(TaskConformance):
    name, bad, knows_users = "tofu", {"rows_per_author": 1}, True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        authors = [("Mira Halborn", "naval comedy"), ("Otto Fenwick", "satire"), ("Lea Marwick", "quiet fable")]
        rows = [row for author in authors for row in author_rows(*author)]
        if changed:
            rows[1]["answer"] += " And more."
        path = write_json_lines(folder / "qa.jsonl", rows)
        return {"path": str(path), "rows_per_author": 6, "heldout_fraction": 0.2, "max_length": 256}


class TestBuiltin(TaskConformance):
    """The control run has other mails in the place of those with a secret."""

    name, knows_users = "builtin", True

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"num_examples": 2000, "num_heldout": 50, "plant_secrets": not changed}


class TestTextClassification(TaskConformance):
    name = "text_classification"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        rows = [{"text": mail, "label": "even" if i % 2 else "odd"} for i, mail in enumerate(mails(changed=changed))]
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


class Wrapping(TaskConformance):
    """The wrappers, of the task of made-up mails."""

    bad: ClassVar[Mapping[str, Any]] = {"of": {"name": "text", "path": "x", "heldout_fraction": 2}}

    def options(self) -> dict[str, Any]:
        raise NotImplementedError

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"of": {"name": "text", **text_task(folder, changed=changed, user_column="writer")}, **self.options()}

    def test_a_user_of_several_examples_is_still_told(self, task: Task) -> None:
        """The changed task protects one example, and has lost whose the examples are."""
        assert any("its own guarantee is that of a group of" in each for each in task.facts().notes["caveats"])


class TestAudited(Wrapping):
    name = "audited"

    def options(self) -> dict[str, Any]:
        return {"num_canaries": 12, "prefix_tokens": 3, "seed": 1}


class TestAuditedClasses(TaskConformance):
    name, bad = "audited", {"num_canaries": 1}

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        of = {"name": "tabular", **TestTabular().written(folder, changed=changed)}
        return {"of": of, "num_canaries": 12, "seed": 1}


class TestHalf(Wrapping):
    """A change of an example that is not in the half changes nothing: this one is in it, before and after."""

    name, for_use = "half", False

    def options(self) -> dict[str, Any]:
        return {"seed": 8}


class TestPlanted(Wrapping):
    name = "planted"

    def options(self) -> dict[str, Any]:
        return {"copies": [1, 3, 0]}


class TestWithReference(Wrapping):
    name = "with_reference"

    def options(self) -> dict[str, Any]:
        return {"fraction": 0.3}


class TestWithReferenceOfAnother(TaskConformance):
    name, bad = "with_reference", {"fraction": 0.3}

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        (folder / "other").mkdir(exist_ok=True)
        other = write_json_lines(folder / "other" / "rows.jsonl", [{"text": f"Other row {i}."} for i in range(20)])
        of = {"name": "text", **text_task(folder, changed=changed, user_column="writer")}
        return {"of": of, "reference": {"name": "text", "path": str(other), "heldout_fraction": 0.2}}


class TestWithout(Wrapping):
    name = "without"

    def options(self) -> dict[str, Any]:
        return {"secrets": "all"}


class TestWithPublic(TaskConformance):
    name = "with_public"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"of": {"name": "tabular", **TestTabular().written(folder, changed=changed)}}


class TestWithPublicTexts(TaskConformance):
    name = "with_public"

    def written(self, folder: Path, *, changed: bool = False) -> dict[str, Any]:
        return {"of": {"name": "text_classification", **TestTextClassification().written(folder, changed=changed)}}


def test_every_registered_task_runs_the_suite() -> None:
    suites = [*TaskConformance.__subclasses__(), *Wrapping.__subclasses__()]
    assert {suite.name for suite in suites if suite is not Wrapping} >= set(BUILTIN["tasks"])


def planted(task: ClassificationTask, **changes: Any) -> ClassificationTask:
    """The task with methods of its class replaced."""
    faulty = type("Faulty", (type(task),), changes)
    return faulty(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return resolve("tasks", "tabular").model_validate(TestTabular().written(tmp_path)).build(None)


def test_a_loss_that_leaks_across_the_batch_is_found(table: ClassificationTask) -> None:
    def centred(self: ClassificationTask, model: torch.nn.Module, batch: LabelledBatch) -> torch.Tensor:
        losses = type(table).per_example_loss(self, model, batch)
        return losses + 0.01 * losses.mean()

    with pytest.raises(AssertionError, match="alone as in company"):
        TestTabular().test_the_loss_of_an_example_is_its_own(
            planted(table, per_example_loss=centred), model_of(table, None)
        )


def test_other_faults_are_found(table: ClassificationTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite, model = TestTabular(), model_of(table, None)
    mean = planted(table, per_example_loss=lambda self, model, batch: table.per_example_loss(model, batch).mean())
    with pytest.raises(AssertionError):
        suite.test_the_loss_of_an_example_is_its_own(mean, model)
    halved = planted(table, utility=lambda self, model: table.utility(model) / 2)
    with pytest.raises(AssertionError):
        suite.test_utility_is_of_each_held_out_example_once(halved, model)
    fewer = dataclasses.replace(table, task_facts=dataclasses.replace(table.task_facts, num_units=3))
    with pytest.raises(AssertionError):
        suite.test_its_facts_are_those_of_its_data(fewer)
    monkeypatch.setattr("raydp.tasks.classification.labelled.content_hash", lambda *parts: "0" * 64)
    alike = suite.resolved(suite.written(tmp_path)).build(None)
    with pytest.raises(AssertionError):
        suite.test_another_example_is_another_task(alike, tmp_path, monkeypatch)


def test_secrets_that_are_shown_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    suite = TestText()
    section = suite.resolved(suite.written(tmp_path))

    class Talking:
        def build(self, tokenizer: Any) -> Task:
            print(json.dumps(SECRET))
            return section.build(tokenizer)

    with pytest.raises(AssertionError, match="secret-001"):
        suite.test_secrets_are_known_by_name_and_not_shown(Talking(), load_tokenizer("tiny"), capsys, caplog)
