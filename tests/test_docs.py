"""What README and docs point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("deploy/**/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    paths = [
        link.partition("#")[0]
        for link in links
        if "://" not in link and not link.startswith(("#", "mailto:"))
    ]
    assert [path for path in paths if not (page.parent / path).exists()] == []
