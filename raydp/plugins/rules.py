"""Rules of selection as users give them: by name, by `file.py:NAME`, or as objects in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydp.analysis.selection.default import DEFAULT_RULE
from raydp.plugins import files, registries
from raydp.plugins.described import place_of_object
from raydp.system.imports import imported

if TYPE_CHECKING:
    from raydp.analysis.selection.own_rules import GivenRule


def rule_at(name: str, *, field: str = "rule") -> str:
    """Return a rule's name; the rule of a file is imported, and its name has its steps.

    Args:
        name: a name, or `file.py:NAME`.
        field: the option or the field that gives the rule, for messages.

    Raises:
        ValueError: the file must not be imported, or it has no such rule.
    """
    if (place := files.place_of(name)) is None:
        return name
    return _named(files.attribute_of(*place, field=field), place[1], field)


def asked_rule(rule: GivenRule) -> str:
    """Return the rule that a user's own command or call gives, as `rule_at` does."""
    if not isinstance(rule, str):
        return _named(rule, "", "rule")
    files.trust(rule)
    return rule_at(rule)


def written_rule(rule: object, problems: list[str], *, run: bool) -> object:
    """Return a spec's `select.rule` as a stored spec has it. Mistakes are appended to problems.

    Args:
        rule: a name, `file.py:NAME`, or an object.
        run: whether a file may be run.
    """
    field = "select.rule"
    try:
        if callable(rule) or isinstance(rule, tuple):
            # Later commands read the rule from its file, so a tuple of steps needs a name there.
            if (name := _named(rule, "", field)) in registries.names("rules"):
                return name
            if (place := place_of_object(rule) if callable(rule) else None) is None:
                raise ValueError(
                    f"{field} must be a function that later commands can import, got {name!r}. "
                    "Move it to the top of a file of its own, and import it from there, or give "
                    "`file.py:NAME`."
                )
            files.trust(place)
            rule = place
        if (found := files.place_of(rule)) is None:
            return rule
        rule = f"{found[0]}:{found[1]}"
        rule_at(rule, field=field) if run else files.checked_file(found[0], field=field)
    except ValueError as error:
        problems.append(str(error))
        return rule if isinstance(rule, str) else DEFAULT_RULE
    return rule


def _named(found: object, name: str, field: str) -> str:
    # The rules need pandas and SciPy, which a spec with a registered rule does without.
    rules = imported("raydp.analysis.selection.own_rules")
    named: str = rules.named_rule(found, name=name, field=field)
    return named
