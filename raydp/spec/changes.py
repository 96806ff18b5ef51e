"""Changes of a section's fields: new values that are validated together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AliasChoices, BaseModel, TypeAdapter, ValidationError

from raydp.plugins import registries
from raydp.plugins.described import listed, messages_of, shortened


class Changes(dict[str, Any]):
    """New values of the fields of a section: name -> value, or `Changes` of an inner section."""


def with_values(section: BaseModel, changes: Mapping[str, Any], field: str) -> BaseModel:
    """Return a section of a spec with new values of some fields, validated as a whole.

    A field with its default value is left out of the validation's input, so that its default may
    follow the changes. For example, `target_modules` follows the type of an adapter.

    Args:
        section: the section.
        changes: name -> value, or `Changes` of an inner section.
        field: path of the section, for messages.

    Raises:
        ValueError: there is no such field, or the section is not valid with these values.
    """
    # Start from what the user wrote, without the defaults.
    cls = type(section)
    written = {
        name: getattr(section, name)
        for name, of in cls.model_fields.items()
        if getattr(section, name) != of.get_default(call_default_factory=True)
    }
    # Apply the changes, inner sections first.
    for given, value in changes.items():
        name = attribute_of(cls, given)
        if name is None:
            raise ValueError(
                registries.unknown_name(
                    f"{field}: the key", shortened(given), sorted(cls.model_fields)
                )
            )
        if isinstance(value, Changes):
            inner = getattr(section, name)
            if not isinstance(inner, BaseModel):
                raise ValueError(
                    f"{field}.{given} has no fields, got {'.'.join([given, *value])!r}. Correct "
                    "the path."
                )
            value = with_values(inner, value, f"{field}.{given}")
        written[name] = value
    # Validate the whole section: fields constrain each other.
    try:
        return cls.model_validate(written)
    except ValidationError as error:
        raise ValueError(listed(messages_of(cls, error, f"{field}."))) from error


def value_at(section: object, names: Sequence[str]) -> object:
    """Return the value of a field inside a section, in types that JSON has.

    Args:
        section: the outermost section; its own value is returned if `names` is empty.
        names: keys from the section down to the field, which `with_values` has accepted.
    """
    value = section
    for given in names:
        # A field may have another name in the spec.
        assert isinstance(value, BaseModel), "`with_values` has checked the names"
        value = getattr(value, str(attribute_of(type(value), given)))
    return TypeAdapter(Any).dump_python(value, mode="json")


def attribute_of(cls: type[BaseModel], given: str) -> str | None:
    """Return the name of the field that a key of a spec means, perhaps by an alias, or None."""
    for name, field in cls.model_fields.items():
        others = field.validation_alias
        if given == name or (isinstance(others, AliasChoices) and given in others.choices):
            return name
    return None
