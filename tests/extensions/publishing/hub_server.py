"""A local server that speaks the part of the Hugging Face hub's protocol that uploads and downloads
need.

Repositories live in memory. Safetensors files go through Git LFS, all others into the commit
itself, as on the hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote

COMMIT = "c" * 40
TOKEN = "hf_writes"


class Hub(ThreadingHTTPServer):
    """The server with its repositories: name -> {"private", "files"}, and LFS contents by their
    hash."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict] = {}
        self.large: dict[str, bytes] = {}
        self.messages: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(self.path.partition("?")[0])
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._say(401, {"error": "Invalid username or password."})
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._say(200, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/(.+)/preupload/main", path):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._say(200, {"files": files})
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            objects = [
                {
                    **item,
                    "actions": {"upload": {"href": f"{self.server.address}/lfs/{item['oid']}"}},
                }
                for item in json.loads(body)["objects"]
            ]
            return self._say(200, {"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/models/(.+)/commit/main", path):
            return self._commit(match[1], [json.loads(line) for line in body.decode().splitlines()])
        return self._say(404, {"error": path})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == oid
        self.server.large[oid] = content
        self._say(200, {})

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/.+)?", path):
            repository = self.server.repositories.get(match[1])
            if repository is None:
                return self._say(
                    404, {"error": "Repository not found"}, **{"X-Error-Code": "RepoNotFound"}
                )
            siblings = [{"rfilename": name} for name in repository["files"]]
            return self._say(
                200,
                {
                    "id": match[1],
                    "private": repository["private"],
                    "sha": COMMIT,
                    "siblings": siblings,
                },
            )
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/.+", path):
            files = self.server.repositories[match[1]]["files"]
            entries = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha256(content).hexdigest(),
                }
                for name, content in files.items()
            ]
            return self._say(200, entries)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            content = self.server.repositories.get(match[1], {"files": {}})["files"].get(match[2])
            if content is None:
                return self._say(
                    404, {"error": "Entry not found"}, **{"X-Error-Code": "EntryNotFound"}
                )
            digest = hashlib.sha256(content).hexdigest()
            return self._answer(200, content, ETag=f'"{digest}"', **{"X-Repo-Commit": COMMIT})
        return self._say(404, {"error": path})

    do_HEAD = do_GET  # noqa: N815

    def _create(self, asked: dict) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.server.repositories:
            return self._say(
                409,
                {
                    "error": "You already created this model repo",
                    "url": f"{self.server.address}/{name}",
                },
            )
        self.server.repositories[name] = {
            "private": asked.get("visibility") == "private" or asked.get("private"),
            "files": {},
        }
        return self._say(200, {"url": f"{self.server.address}/{name}"})

    def _commit(self, name: str, lines: list[dict]) -> None:
        files = self.server.repositories[name]["files"]
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.messages.append(value["summary"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.large[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        self._say(
            200, {"commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT}
        )

    def _say(self, status: int, document: object, **headers: str) -> None:
        self._answer(
            status, json.dumps(document).encode(), **{"Content-Type": "application/json", **headers}
        )

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a hub for the block."""
    with Hub() as hub:
        Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()
