"""The base class of all sections, and common types of fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import CoreSchema

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastOne = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Of:
    """Marks a field that a section has only together with another field.

    Where it does not apply, it cannot be given and is no part of a run's identity.

    Attributes:
        field: the other field; empty for the field itself, see `LATER`.
        values: values of the other field; by default all but its default.
        written_with: further values with which the identity of runs has always had this field.

    Example:
        clip_quantile: Annotated[float, Of("clipping", ("adaptive",))] = 0.5
    """

    field: str
    values: tuple[str, ...] = ()
    written_with: tuple[str, ...] = ()


LATER = Of("")
"""Marks a field that earlier versions did not have: with its default it changes no run's identity."""


class Section(BaseModel):
    """A part of the spec. Unknown keys are errors, and values do not change.

    The base of all sections, and of the parameters of tasks, methods, scores and searches. A field
    may be marked with `Of` or `LATER`.

    The docstring below a field is its description in the JSON Schema. The sources are read only
    when a schema is needed. Pydantic's use_attribute_docstrings reads them when a class is
    imported, which takes up to 10 ms per class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    written_in: ClassVar[str] = ""
    """The section's path in a spec, for messages."""

    @model_validator(mode="after")
    def _every_field_applies(self) -> Self:
        # A field with its default cannot be told from one that is left out.
        for name, marks in _marks(type(self)).items():
            for of in marks if self._is_given(name) else ():
                if not self._applies(name, of, of.values):
                    where, remedy = f"without {of.field}", f"give a {of.field}"
                    if of.values:
                        where = f"with {of.field} {getattr(self, of.field)!r}"
                        remedy = f"use {of.field} {' or '.join(map(repr, of.values))}"
                    raise ValueError(
                        f"{self.written_in}.{name} must be left out {where}, got "
                        f"{getattr(self, name)!r}. Remove it, or {remedy}."
                    )
        return self

    def _is_given(self, name: str) -> bool:
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) != default)

    def _applies(self, name: str, of: Of, values: tuple[str, ...]) -> bool:
        return getattr(self, of.field) in values if values else self._is_given(of.field or name)

    @model_serializer(mode="wrap")
    def _fields_that_apply(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = handler(self)
        for name, marks in _marks(type(self)).items():
            also = ((of, of.values and (*of.values, *of.written_with)) for of in marks)
            if not all(self._applies(name, of, values) for of, values in also):
                values.pop(name, None)
        return values

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        # Bases come first, so that a subclass's own docstring of a field wins.
        for base in reversed(cls.__mro__):
            for name, text in field_docstrings(base).items() if issubclass(base, Section) else ():
                if name in properties:
                    properties[name]["description"] = text
        return schema


@cache
def _marks(cls: type[Section]) -> dict[str, list[Of]]:
    """Return the marks of the fields that have any. A redeclared field keeps its base's marks."""
    bases = [base.model_fields for base in cls.__mro__ if issubclass(base, Section)]
    marks = {
        name: [m for fields in bases if name in fields for m in fields[name].metadata]
        for name in cls.model_fields
    }
    of = {name: [m for m in found if isinstance(m, Of)] for name, found in marks.items()}
    return {name: found for name, found in of.items() if found}


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the annotated names in a class's own body, each on one line.

    Return {} if the class has no source file.
    """
    try:
        # The source is parsed, because Python keeps no docstrings of attributes.
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef), "the source of a class is its definition"
    return {
        field.target.id: " ".join(after.value.value.split())
        for field, after in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }
