"""Prompts that a search found for each model of a set.

Later models and resumed calls start from them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydp.extensions.prompt_search.tokens import Prompt
from raydp.system.files import write_atomically


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """Result of the search for one model.

    Attributes:
        prompts: secret's name -> the shortest confirmed prompt; None if there is none.
        refused: secret's name -> prompts of other models that do not work for this model.
        exhausted: names of the secrets whose search a budget ended.
        effort: secret's name -> the effort of its search, see `Effort.record`.
    """

    prompts: Mapping[str, Prompt | None]
    refused: Mapping[str, frozenset[Prompt]] = field(default_factory=dict)
    exhausted: frozenset[str] = frozenset()
    effort: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class KnownPrompts:
    """Prompts that searches found, by model.

    With a folder, they are also in files acr-<hash of the name>.json.

    A prompt makes its model generate a secret, so the files are private. They have mode 0600 and
    hold token ids under the secrets' names. Never log or upload them.

    Args:
        folder: created at the first write; None keeps the prompts in memory only.
        search: the definition of the search. A model counts as searched only if its search had this
            definition. The prompts of other searches are still candidates.
    """

    def __init__(self, folder: Path | None, search: Mapping[str, object]) -> None:
        self._folder, self._search = folder, json.loads(json.dumps(search))
        self._results: dict[str, SearchResult] = {}
        self._searched: set[str] = set()
        self._turns: dict[str, int] = {}
        # What earlier calls found, by model.
        for file in sorted(folder.glob("acr-*.json")) if folder is not None else []:
            kept = json.loads(file.read_text(encoding="utf-8"))
            self._results[kept["model"]] = SearchResult(
                prompts={
                    name: tuple(ids) if ids is not None else None
                    for name, ids in kept["prompts"].items()
                },
                refused={
                    name: frozenset(map(tuple, prompts))
                    for name, prompts in kept["refused"].items()
                },
                exhausted=frozenset(kept["exhausted"]),
                effort=kept["effort"],
            )
            # Only a search of this very definition makes a model count as searched.
            if kept["search"] == self._search:
                self._searched.add(kept["model"])
                self._turns[kept["model"]] = kept.get("turn", 0)  # older files have no turn

    def searched(self, model: str) -> SearchResult | None:
        """Return the result for a model whose search is complete; None for other models."""
        return self._results[model] if model in self._searched else None

    def shorter(self, secret: str, than: SearchResult) -> list[Prompt]:
        """Return other models' prompts for a secret that beat a model's own prompt.

        Prompts that the model has refused are left out.

        Args:
            secret: the secret's name.
            than: the result of the model.
        """
        best = than.prompts.get(secret)
        prompts = {
            p for result in self._results.values() if (p := result.prompts.get(secret)) is not None
        }
        return sorted(
            p
            for p in prompts - than.refused.get(secret, frozenset())
            if best is None or len(p) < len(best)
        )

    def in_turn(self, models: Sequence[str]) -> list[str]:
        """Rotate the models so that the first one follows the model that was put last.

        A resumed call thus continues in the order of the call before it, and finds the same
        prompts.
        """
        last = max(models, key=lambda model: self._turns.get(model, 0), default=None)
        start = 0 if last is None else models.index(last) + 1
        return [*models[start:], *models[:start]]

    def put(self, model: str, result: SearchResult) -> None:
        """Keep the result for a model."""
        self._results[model] = result
        self._searched.add(model)
        self._turns[model] = max(self._turns.values(), default=0) + 1
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        # The file holds token ids, under the name of a hash.
        kept = {
            "model": model,
            "search": self._search,
            "turn": self._turns[model],
            "prompts": result.prompts,
            "refused": {name: sorted(prompts) for name, prompts in result.refused.items()},
            "exhausted": sorted(result.exhausted),
            "effort": result.effort,
        }
        name = f"acr-{hashlib.sha256(model.encode()).hexdigest()[:16]}.json"
        write_atomically(self._folder / name, json.dumps(kept).encode(), private=True)
