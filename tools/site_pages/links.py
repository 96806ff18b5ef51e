"""Paths of the repository and of the site: where a file is shown, and how a link between two files
is written there."""

from __future__ import annotations

import posixpath
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = "docs"
SOURCES = "source"
"""The site's folder of pages that each show one file of the repository."""
_TOP = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_SERVED = {".md", ".ipynb", ".png", ".svg", ".csv", ".html"}
"""Suffixes of files in docs/ that the site has under their own names. Of any other file a page
shows the text."""
_FENCED = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(?=[#)])")


@cache
def outside_pages() -> dict[str, str]:
    """Return the Markdown files outside docs/ that are pages: path in the repository -> page of the
    site."""
    deploy = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "deploy").rglob("*.md"))
    return {**_TOP, **{path: path for path in deploy}}


def repository_path(page: str) -> str | None:
    """Return the path in the repository of a page of the site, or None if the page is made when the
    site is built."""
    outside = {shown: path for path, shown in outside_pages().items()}
    if page in outside:
        return outside[page]
    path = f"{DOCS}/{page}"
    return path if (ROOT / path).is_file() else None


def site_path(path: str) -> str:
    """Return where the site shows a file or folder of the repository.

    Args:
        path: relative to the repository, with slashes.

    Returns:
        A path relative to the site's own top: a page, a file of docs/, or the page that shows the
        source.
    """
    if path in outside_pages():
        return outside_pages()[path]
    if path.startswith(f"{DOCS}/") and posixpath.splitext(path)[1] in _SERVED:
        return path.removeprefix(f"{DOCS}/")
    return f"{SOURCES}/{path}.md"


def rewritten(markdown: str, path: str) -> tuple[str, set[str]]:
    """Turn the links of one page from paths in the repository into paths in the site.

    Args:
        markdown: the text of the page. Links in fenced blocks stay.
        path: the page's own path in the repository.

    Returns:
        The text, and the paths in the repository of the linked files and folders of which a page
        must show the source. A link that leads nowhere stays as it is, so that MkDocs complains
        about it.
    """
    folder, here = posixpath.dirname(path), posixpath.dirname(site_path(path))
    shown: set[str] = set()

    def moved(link: re.Match[str]) -> str:
        if "://" in link[0] or link[0].startswith("mailto:"):
            return link[0]
        target = posixpath.normpath(posixpath.join(folder, link[0]))
        if target.startswith("..") or not (ROOT / target).exists():
            return link[0]
        page = site_path(target)
        if page.startswith(f"{SOURCES}/"):
            shown.add(target)
        return posixpath.relpath(page, here or ".")

    parts = _FENCED.split(markdown)
    return "".join(
        part if at % 2 else _LINK.sub(moved, part) for at, part in enumerate(parts)
    ), shown
