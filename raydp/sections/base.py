"""What all sections are made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastOne = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the spec: unknown keys are errors, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
