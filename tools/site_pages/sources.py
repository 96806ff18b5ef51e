"""Pages that show a file of the repository, or list a folder, because a page links it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from site_pages.links import ROOT, site_path

_LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".sh": "bash",
    ".sbatch": "bash",
    ".toml": "toml",
    ".json": "json",
}
_HEAD = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"


def pages(paths: Iterable[str]) -> dict[str, str]:
    """Return the pages of these files and folders, and of the files in these folders.

    Args:
        paths: relative to the repository.

    Returns:
        Page of the site -> its Markdown.
    """
    made: dict[str, str] = {}
    for path in sorted(paths):
        if (ROOT / path).is_dir():
            files = sorted(
                file.relative_to(ROOT).as_posix()
                for file in (ROOT / path).iterdir()
                if file.is_file()
            )
            made[site_path(path)] = _folder(path, files)
            made |= {site_path(file): _file(file) for file in files}
        else:
            made[site_path(path)] = _file(path)
    return made


def _file(path: str) -> str:
    language = _LANGUAGES.get(posixpath.splitext(path)[1], "text")
    text = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    return f"{_HEAD}# {posixpath.basename(path)}\n\nThe file `{path}` of the repository:\n\n````{language}\n{text}\n````\n"


def _folder(path: str, files: list[str]) -> str:
    here = posixpath.dirname(site_path(path))
    links = [
        f"- [{posixpath.basename(file)}]({posixpath.relpath(site_path(file), here)})\n"
        for file in files
    ]
    return f"{_HEAD}# {posixpath.basename(path)}\n\nThe folder `{path}` of the repository:\n\n{''.join(links)}"
