"""The documentation site has every page, builds without a warning, and loads nothing from
elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from site_hooks import LOADED
from site_pages import commands, notebooks, prose, sources
from site_pages import spec as spec_reference
from site_pages.links import outside_pages, repository_path, rewritten, site_path

from tests.chromium import OpenPage

ROOT = Path(__file__).parents[1]
SETTINGS = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PHONE, DESKTOP = 390, 1300
"""Widths in CSS pixels."""


class TestLinks:
    def test_files_have_one_place(self) -> None:
        for path in [
            "README.md",
            "SECURITY.md",
            "deploy/slurm/README.md",
            "docs/data.md",
            "docs/figures.ipynb",
        ]:
            assert repository_path(site_path(path)) == path
        assert site_path("docs/results/demo.csv") == "results/demo.csv"
        assert site_path("raydp/data/demo.yaml") == "source/raydp/data/demo.yaml.md"
        assert site_path("docs/specs/planted.yaml") == "source/docs/specs/planted.yaml.md"
        assert repository_path("reference/spec.md") is None

    def test_links_of_the_repository_become_links_of_the_site(self) -> None:
        text = "[a](../deploy/README.md) [b](data.md#a-first-spec) [c](../raydp/data/demo.yaml) [d](../tools)"
        moved, shown = rewritten(text, "docs/parts.md")
        assert moved == (
            "[a](deploy/README.md) [b](data.md#a-first-spec) [c](source/raydp/data/demo.yaml.md) "
            "[d](source/tools.md)"
        )
        assert shown == {"raydp/data/demo.yaml", "tools"}
        assert (
            rewritten("[a](../../docs/privacy.md)", "deploy/cloud/README.md")[0]
            == "[a](../../privacy.md)"
        )

    @pytest.mark.parametrize(
        "text",
        [
            "[a](https://example.com/README.md)",
            "[a](#here) [b](mailto:a@example.com)",
            "[a](no-such-page.md)",  # MkDocs complains about it
            "```\n[a](../README.md)\n```",
        ],
    )
    def test_other_links_stay(self, text: str) -> None:
        assert rewritten(text, "docs/parts.md") == (text, set())

    def test_sources_are_shown_and_folders_are_listed(self) -> None:
        pages = sources.pages({"docs/specs/mechanisms"})
        assert "[pate.yaml](mechanisms/pate.yaml.md)" in pages["source/docs/specs/mechanisms.md"]
        assert "````yaml\n" in pages["source/docs/specs/mechanisms/pate.yaml.md"]


def test_a_notebook_becomes_a_page() -> None:
    table = [
        "<div>\n",
        "<style scoped>p {}</style>\n",
        '<table border="1" class="dataframe">\n',
        "<tr></tr>\n",
        "</table></div>",
    ]
    outputs = [
        {"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n"]},
        {"output_type": "execute_result", "data": {"text/html": table, "text/plain": ["a table"]}},
        {
            "output_type": "display_data",
            "data": {"text/html": ["<script></script>"], "text/plain": ["a figure"]},
        },
        {"output_type": "display_data", "data": {"image/png": "iVBORw0\nKGgo"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "[link](data.md)"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": outputs},
        {"cell_type": "code", "source": ["%%sh\n", "raydp list"], "outputs": []},
    ]
    assert notebooks.as_markdown(json.dumps({"cells": cells})).split("\n\n") == [
        "# Title\n[link](data.md)",
        "````python\nprint(1)\n````",
        "````text\nred\n````",
        "<div><table><tr></tr></table></div>",
        "````text\na figure\n````",
        "![Output of the cell above](data:image/png;base64,iVBORw0KGgo)",
        "````bash\nraydp list\n````\n",
    ]


def test_plain_text_stays_plain() -> None:
    assert prose.escaped("p* < q_1 | `a|b*`\n of [x]") == "p\\* &lt; q\\_1 \\| `a\\|b*` of \\[x\\]"
    assert prose.paragraphs("One.\n\nSource:\n    Hu et al.") == "One.\n\n**Source.** Hu et al."


def test_every_command_is_in_the_reference() -> None:
    (text,) = commands.pages().values()
    for name in [
        "init",
        "sweep",
        "audit bound",
        "models promote",
        "analyze verify-heuristics",
        "data enron",
    ]:
        assert f"\n### raydp {name}\n" in text
    assert "`-o, --output" in text


@pytest.mark.slow
def test_every_section_and_plug_in_is_in_the_reference() -> None:
    pages = spec_reference.pages()
    headings = re.findall(r"^#+ ([\w.]+) \{", pages["reference/spec.md"], re.MULTILINE)
    assert {
        "model.adapter",
        "privacy",
        "space",
        "seeds",
        "select",
        "stopping",
        "cluster",
        "tracking",
    } <= set(headings)
    assert (
        "| `target_epsilon` | number, >\N{NO-BREAK SPACE}0, ≤\N{NO-BREAK SPACE}1,000"
        in pages["reference/spec.md"]
    )
    for kind, name in [
        ("tasks", "chat"),
        ("methods", "dp_mf"),
        ("scores", "acr"),
        ("searches", "frugal"),
    ]:
        assert f"\n## `{name}`\n" in pages[f"reference/{kind}.md"]
    empty = [
        row for text in pages.values() for row in re.findall(r"^\| `.*\|  \|$", text, re.MULTILINE)
    ]
    assert not empty, "a field without a description"


def test_every_page_is_in_the_navigation() -> None:
    """MkDocs checks it too, but takes a minute."""
    pages = [
        path.relative_to(ROOT / "docs").as_posix()
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in {".md", ".ipynb"}
    ]
    listed = set(re.findall(r"[\w./-]+\.(?:md|ipynb)", SETTINGS.partition("\nnav:\n")[2]))
    assert {*pages, *outside_pages().values()} - listed == set()
    assert all(
        (ROOT / "docs" / page).exists() or not page.startswith(("tutorials/", "results/"))
        for page in listed
    )


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ('<script async src="https://example.com/a.js"></script>', "https://example.com/a.js"),
        ('<link rel="stylesheet" href=//example.com/a.css>', "//example.com/a.css"),
        ("@font-face {src: url('http://example.com/a.woff2')}", "http://example.com/a.woff2"),
        ('@import "https://example.com/a.css";', "https://example.com/a.css"),
        (
            '<a href="https://example.com/">a link</a> <img src="images/a.png"> <link '
            'href="a.css">',
            None,
        ),
    ],
)
def test_loads_of_foreign_addresses_are_detected(text: str, address: str | None) -> None:
    found = LOADED.search(text)
    assert (found and found[1]) == address


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site.

    A build checks links, anchors, the navigation, and that nothing is loaded from elsewhere.
    """
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    environment["NO_MKDOCS_2_WARNING"] = "1"
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.daily("docs", "README.md", "mkdocs.yml", "tools")
def test_no_page_names_the_machine_or_the_day(site: Path) -> None:
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert str(ROOT) not in text, file
        assert str(site) not in text, file
    assert "lastmod" not in (site / "sitemap.xml").read_text(encoding="utf-8")


@pytest.mark.daily("docs", "README.md", "mkdocs.yml", "tools")
@pytest.mark.browser
class TestInABrowser:
    def test_the_search_finds_a_page_without_a_server(self, site: Path) -> None:
        with OpenPage(f"{site.as_uri()}/reference/spec.html", width=DESKTOP) as page:
            page.evaluate("document.querySelector('[data-md-toggle=search]').click()")
            page.evaluate(
                "(query => {query.focus(); query.value = 'counterfactual';"
                " query.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))})"
                "(document.querySelector('[data-md-component=search-query]'))"
            )
            page.wait_for("document.querySelector('.md-search-result__item a')")
            found = page.evaluate(
                "[...document.querySelectorAll('.md-search-result__item a')].map(link => link.href)"
            )
            assert any("scores/exposure.html" in address for address in found)
            assert page.complaints == []
            assert all(
                address.startswith(("file:", "data:", "about:")) for address in page.requested
            )

    @pytest.mark.parametrize(
        ("name", "dark"),
        [
            ("index.html", False),
            ("index.html", True),
            ("reference/spec.html", False),
            ("reference/commands.html", True),
            ("tutorials/private_corpus.html", False),
        ],
    )
    def test_a_page_fits_a_phone_in_the_readers_colours(
        self, site: Path, name: str, dark: bool
    ) -> None:
        with OpenPage(f"{site.as_uri()}/{name}", width=PHONE, dark=dark) as page:
            page.wait_for(
                "document.querySelector('.md-typeset__scrollwrap')"
            )  # tables may be wider than the page
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
            scheme = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
            assert scheme == ("slate" if dark else "default")
            assert page.complaints == []
