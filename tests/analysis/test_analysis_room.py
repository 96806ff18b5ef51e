"""The room's boundary: what importing it may load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from raydp import analysis, search_spaces

HEAVY = ["ray", "torch", "mlflow", "transformers", "raydp.system", "raydp.plugins"]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        (
            "import raydp.analysis, raydp.search_spaces",
            [*HEAVY, "pandas", "numpy", "plotly", "statsmodels", "yaml", "pydantic"],
        ),
        ("from raydp.analysis import *; from raydp.search_spaces import *", HEAVY),
        (
            "from raydp.analysis import select, load_points",
            [*HEAVY, "plotly", "statsmodels", "scipy"],
        ),
    ],
)
def test_imports_stay_light(statement, absent):
    program = f"import sys; {statement}; print(sorted(set({absent!r}) & set(sys.modules)))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize("package", [analysis, search_spaces])
def test_every_listed_name_is_there(package):
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018 - the access is the test
