"""Hooks of MkDocs, which builds the site: pages from outside docs/, from notebooks and from the
code (mkdocs.yml)."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_pages import commands, notebooks, python_api, sources, spec
from site_pages.links import DOCS, ROOT, outside_pages, repository_path, rewritten

LOADED = re.compile(
    r"""(?:<(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*\b(?:src|data|href)=["']?"""
    r"""|url\(["']?|@import\s+["'])((?:https?:)?//[^"'\s>)]+)"""
)
"""An address outside the site that a page would load something from."""
SEE_ALSO = {
    "commands.md": "[Every command with its arguments and options](reference/commands.md)",
    "parts.md": "The fields of each part: [tasks](reference/tasks.md), [methods](reference/methods.md), "
    "[scores](reference/scores.md), [searches](reference/searches.md)",
    "extending.md": "[The classes to inherit](reference/extension_points.md)",
    "analysis.md": "[The functions of `raydp.analysis`](reference/analysis.md)",
}
"""Page -> what its top points to on the site alone: these pages are made when the site is built."""

BUTTONS = """[Run the demo](#two-commands){ .md-button .md-button--primary }
[Your own sweep](#your-own-sweep){ .md-button }
[Tutorials](tutorials/private_corpus.ipynb){ .md-button }"""


class PageFile(File):
    """A file that MkDocs takes for a page, whatever its name ends with."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not Markdown files in docs/.

    Args:
        files: what MkDocs found in docs/.
        config: MkDocs's own configuration.

    Returns:
        The files, with the pages from outside docs/, from notebooks, from the code, and of the
        sources that pages link.
    """
    for path, page in outside_pages().items():
        files.append(
            File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8"))
        )
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = notebooks.as_markdown((ROOT / DOCS / file.src_uri).read_text(encoding="utf-8"))
        files.remove(file)
        files.append(PageFile.generated(config, file.src_uri, content=text))
    for page, text in {**spec.pages(), **commands.pages(), **python_api.pages()}.items():
        files.append(File.generated(config, page, content=text))
    linked: set[str] = set()
    for file in files.documentation_pages():
        if (source := repository_path(file.src_uri)) is not None:
            linked |= rewritten(file.content_string, source)[1]
    for page, text in sources.pages(linked).items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links of the repository into links of the site, and point to the generated pages."""
    if (path := repository_path(page.file.src_uri)) is not None:
        markdown = rewritten(markdown, path)[0]
    if page.file.src_uri == "index.md":
        markdown = front_page(markdown)
    if page.file.src_uri in SEE_ALSO:
        title, _newline, rest = markdown.partition("\n")
        markdown = f'{title}\n\n!!! info "Reference"\n\n    {SEE_ALSO[page.file.src_uri]}.\n{rest}'
    return markdown


def front_page(readme: str) -> str:
    """Return the README with its picture, and where to go from here, above its first section."""
    picture = next(line for line in readme.splitlines() if line.startswith("!["))
    above, heading, below = readme.replace(f"{picture}\n", "", 1).partition("\n## ")
    return f"{above}\n{BUTTONS}\n\n{picture}\n{heading}{below}"


def on_post_build(config: MkDocsConfig, **_: object) -> None:
    """Check that no page and no style loads anything from outside the site.

    Raises:
        PluginError: a page does; the message names the page and the address.
    """
    site = Path(config.site_dir)
    for page in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        if page.name.endswith("-report.html"):
            continue  # raydp's own reports, which have tests of their own
        if (found := LOADED.search(page.read_text(encoding="utf-8"))) is not None:
            raise PluginError(
                f"{page} loads {found[1]}. The site must not load anything from elsewhere."
            )
