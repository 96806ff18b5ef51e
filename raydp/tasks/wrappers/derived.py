"""Tasks that are made of another task: more examples, or fewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationInfo, field_validator

from raydp.plugins.described import PluginField, resolve_plugin
from raydp.tasks.base import TaskSection
from raydp.tasks.text.language import LanguageModelingTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class DerivedTask(TaskSection):
    """The base of such tasks' parameters."""

    of: PluginField
    """The task that this one is made of, written {name: ..., **parameters}."""

    @field_validator("of", "reference", mode="before", check_fields=False)
    @classmethod
    def _known_task(cls, value: object, info: ValidationInfo) -> object:
        if value is None and info.field_name != "of":
            return None
        problems: list[str] = []
        plugin = resolve_plugin("tasks", f"task.{info.field_name}", value, problems)
        if problems:
            raise ValueError("\n".join(problems))
        return plugin

    @property
    def classifies(self) -> bool:
        """Whether the task that it is made of is one of classification."""
        return bool(self.of.params.classifies)

    @property
    def of_texts(self) -> bool:
        """Whether a language model classifies its texts, and no network."""
        return bool(self.of.params.of_texts)

    def inner(self, tokenizer: PreTrainedTokenizerBase | None) -> LanguageModelingTask:
        """The task that it is made of.

        Raises:
            ValueError: its data are not usable, or it is no language modelling task.
        """
        task = self.of.params.build(tokenizer)
        if not isinstance(task, LanguageModelingTask):
            raise ValueError(f"task.of must be a language modelling task, got {self.of.name!r}. Choose enron or text.")
        return task
