"""Save figures as SVG, PNG or PDF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import plotly.graph_objects as go

FORMATS = ("svg", "png", "pdf")
WIDTH, HEIGHT = 900, 540
"""Size in pixels. A PNG has twice as many in each direction."""


def save_figures(
    figures: Mapping[str, go.Figure], folder: str | Path, *, file_format: str = "svg"
) -> list[Path]:
    """Write each figure to folder/<name>.<format>.

    Args:
        figures: name -> figure.
        folder: created if it is missing.
        file_format: svg, png or pdf.

    Returns:
        The paths of the written files.

    Raises:
        ValueError: an unknown format, or kaleido or its browser is missing.
    """
    check_format(file_format)
    # kaleido and its browser are optional: only files need them, pages do not.
    try:
        import kaleido
        from choreographer.errors import BrowserClosedError, BrowserFailedError, ChromeNotFoundError
    except ImportError as error:
        raise ValueError(
            "figures must have kaleido to become files, got none. Run pip install '.[figures]'."
        ) from error
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{name}.{file_format}" for name in figures]
    size = {"width": WIDTH, "height": HEIGHT, "scale": 2 if file_format == "png" else 1}
    jobs = [
        {"fig": figure.to_dict(), "path": file, "opts": {"format": file_format, **size}}
        for file, figure in zip(files, figures.values(), strict=True)
    ]
    # One call for all figures, because each call starts a browser.
    try:
        kaleido.write_fig_from_object_sync(jobs)
    except (ChromeNotFoundError, BrowserFailedError, BrowserClosedError) as error:
        raise ValueError(
            "figures must have a browser that starts to become files, got none. Install Chrome or "
            "Chromium, or set BROWSER_PATH; the page itself is written."
        ) from error
    return files


def check_format(file_format: str) -> None:
    """Raise ValueError if the format is not one of `FORMATS`."""
    if file_format not in FORMATS:
        raise ValueError(
            f"format must be one of {', '.join(FORMATS)}, got {file_format!r}. Choose one of them."
        )
