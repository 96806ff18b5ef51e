"""The base class of all sections, and common types of fields."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import CoreSchema

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the spec. Unknown keys are errors, and values do not change.

    The docstring below a field is its description in the JSON Schema. The sources are read only when a schema is
    needed. Pydantic's use_attribute_docstrings reads them when a class is imported, which takes up to 10 ms per class.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for base in reversed(cls.__mro__):
            for name, text in field_docstrings(base).items() if issubclass(base, Section) else ():
                if name in properties:
                    properties[name]["description"] = text
        return schema


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the annotated names in a class's own body, each on one line.

    Return {} if the class has no source file.
    """
    try:
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
