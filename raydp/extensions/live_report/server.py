"""A page of a running sweep on this machine, which shows each run that ends."""

from __future__ import annotations

import html
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from raydp.sweep.api import sweep_folder
from raydp.sweep.reports import report
from raydp.sweep.store.folder import SweepFolder
from raydp.sweep.store.points import counts
from raydp.system.output import stderr, stdout

HOST = "127.0.0.1"
LOOK_SECONDS = 2.0
"""Time between two looks at the sweep, and between two questions of a page."""
_POLICY = (b"default-src 'none';", b"default-src 'none'; connect-src 'self';")
"""The page loads nothing; the served one may ask its own server whether it is still current."""
_RELOAD = """<script>
setInterval(async () => {{
  const answer = await fetch("version");
  if (answer.ok && (await answer.text()) !== "{version}") location.reload();
}}, {milliseconds});
</script>"""


@dataclass(kw_only=True)
class LivePage:
    """The page as it is served, and the number of the state that it shows.

    Attributes:
        token: the first part of the page's path. Other users of this machine can reach the port,
            and do not know the path.
        content: the page.
        version: how often the page has changed.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    content: bytes = b""
    version: int = 0

    def show(self, page: bytes) -> None:
        """Replace the page. Open pages load it within seconds."""
        self.version += 1
        script = _RELOAD.format(version=self.version, milliseconds=int(1000 * LOOK_SECONDS))
        self.content = page.replace(*_POLICY) + script.encode()

    def answer(self, path: str) -> bytes | None:
        """Return what is at a path; None for any other."""
        match path.split("?")[0].split("/"):
            case ["", token, place] if secrets.compare_digest(
                token.encode(), self.token.encode()
            ) and place in ("", "version"):
                return str(self.version).encode() if place else self.content
        return None


@dataclass(kw_only=True)
class SweepWatcher:
    """Makes the report of a sweep again whenever one of its runs has ended.

    Attributes:
        folder: the sweep.
        make: writes the report into a file.
    """

    folder: SweepFolder
    make: Callable[[Path], object]
    _seen: object = None

    def look(self) -> bytes | None:
        """Return the report if a run has ended since the last look, else None.

        Before enough runs have ended for a report, it is a page that says what is missing.
        """
        now = counts(self.folder)
        state = (now.numbers, self.folder.summary() is not None)
        if state == self._seen:
            return None
        self._seen = state
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "page.html"
            try:
                self.make(path)
            except ValueError as error:
                return _waiting(f"{now.sentence}. {error}")
            return path.read_bytes()


def serve(source: str, options: Mapping[str, object], port: int) -> None:
    """Serve the report of a sweep on this machine until Ctrl-C.

    Args:
        source: the sweep, by its name under the storage or by its folder.
        options: the arguments of `raydp.report` besides the sweep and the file.
        port: the port; 0 takes a free one.

    Raises:
        ValueError: there is no such sweep, or the port is taken.
    """
    folder = sweep_folder(source, str(options["storage"]))
    watcher = SweepWatcher(
        folder=folder,
        make=lambda path: report(source, path, **options),  # type: ignore[arg-type]
    )
    page, first = LivePage(), watcher.look()
    assert first is not None, "the first look always has a page"
    page.show(first)
    with open_server(page, port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://{HOST}:{server.server_port}/{page.token}/"
        stdout.print(url, markup=False, soft_wrap=True)
        with stderr.status("the page follows the sweep; Ctrl-C ends it"):
            while True:
                time.sleep(LOOK_SECONDS)
                if (changed := watcher.look()) is not None:
                    page.show(changed)


def open_server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """Open the port on the loopback address.

    Raises:
        ValueError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = page.answer(self.path)
            # A name of another site that resolves to this machine is refused (DNS rebinding).
            named = (self.headers.get("Host") or "").partition(":")[0]
            if content is None or named not in (HOST, "localhost"):
                self.send_error(404)
                return
            self.send_response(200)
            kind = "text/plain" if self.path.endswith("version") else "text/html"
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: each open page asks every two seconds."""

    try:
        return ThreadingHTTPServer((HOST, port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"--port must be a free port up to 65535, got {port} ({error}). Leave it out."
        ) from error


def _waiting(text: str) -> bytes:
    """Return a page that says why there is no report yet."""
    policy = "default-src 'none'; script-src 'unsafe-inline'"
    return (
        f'<!doctype html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" '
        f'content="{policy}"><title>raydp</title><p>No report yet: {html.escape(text)}</p>'
    ).encode()
