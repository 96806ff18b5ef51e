"""Base of tasks that are derived from another task by adding or removing examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationInfo, field_validator

from raydp.plugins.described import PluginField, resolve_plugin
from raydp.tasks.task import TaskSection
from raydp.tasks.text.language import LanguageModelingTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DerivedTask(TaskSection):
    """Base of the parameters of derived tasks."""

    of: PluginField
    """The task that this task is derived from, written {name: ..., **parameters}."""

    @field_validator("of", "reference", mode="before", check_fields=False)
    @classmethod
    def _known_task(cls, value: object, info: ValidationInfo) -> object:
        # `reference` is optional; `of` is not.
        if value is None and info.field_name != "of":
            return None
        problems: list[str] = []
        # Problems are collected and raised at once, in the words of the spec's own check.
        plugin = resolve_plugin("tasks", f"task.{info.field_name}", value, problems)
        if problems:
            raise ValueError("\n".join(problems))
        return plugin

    @property
    def classifies(self) -> bool:
        """Return whether the task `of` asks for classes."""
        return bool(self.of.params.classifies)

    @property
    def model_family(self) -> str | None:
        """Return the family of models that learn the task `of`."""
        family: str | None = self.of.params.model_family
        return family

    def inner(self, tokenizer: PreTrainedTokenizerBase | None) -> LanguageModelingTask:
        """Build the task `of`.

        Raises:
            ValueError: its data are unusable, or it is not a language modelling task.
        """
        task = self.of.params.build(tokenizer)
        if not isinstance(task, LanguageModelingTask):
            raise ValueError(
                f"task.of must be a language modelling task, got {self.of.name!r}. Choose enron or "
                "text."
            )
        return task
