"""Suites of tests for plug-ins: inherit the class of a kind, and name the plug-in.

Example:
    # test_my_score.py
    from raydp.testing.scores import ScoreConformance

    class TestFirstToken(ScoreConformance):
        name, score, kind = "first_token", FirstToken(), "verbatim"

The suites are `TaskConformance` (raydp.testing.tasks), `MethodConformance` (methods),
`ScoreConformance` (scores), `SearchConformance` (searches) and `AccountantConformance`
(accountants). They need pytest: `pip install '.[testing]'` in the repository.
"""

import pytest

# Asserts of the suites show their values, like those of a test file.
pytest.register_assert_rewrite(
    *(f"{__name__}.{kind}" for kind in ("tasks", "methods", "scores", "searches", "accountants"))
)
