"""A stand-in for the Hugging Face hub: the part of its HTTP interface that uploading and downloading a model uses."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories with their files, and what was asked. Every file is a regular one: large-file storage is left out."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def commit_id(self, name: str) -> str:
        state = sorted((file, hashlib.sha1(content).hexdigest()) for file, content in self.files[name].items())
        return hashlib.sha1(repr(state).encode()).hexdigest()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        """Status, headers and content of an answer."""
        self.requests.append((method, path))
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given['organization']}/{given['name']}" if given.get("organization") else given["name"]
            self.files.setdefault(name, {})
            self.private.setdefault(name, bool(given.get("private")) or given.get("visibility") == "private")
            return 200, {}, {"url": f"{self.url}/{name}"}
        if path == "/api/validate-yaml":
            return 200, {}, {"errors": [], "warnings": []}
        if match := re.fullmatch(r"/api/models/([\w.-]+/[\w.-]+)(?:/(.*))?", path):
            name, rest = match[1], match[2] or ""
            if name not in self.files:
                return 404, {"X-Error-Code": "RepoNotFound"}, {"error": "Repository not found"}
            return self._repository(name, rest, body)
        if match := re.fullmatch(r"/([\w.-]+/[\w.-]+)/resolve/[^/]+/(.*)", path):
            content = self.files.get(match[1], {}).get(match[2])
            if content is None:
                return 404, {"X-Error-Code": "EntryNotFound"}, {"error": "Entry not found"}
            etag = hashlib.sha1(content).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": self.commit_id(match[1])}, content
        return 404, {}, {"error": f"{method} {path}"}

    def _repository(self, name: str, rest: str, body: bytes) -> tuple[int, dict[str, str], Any]:
        files = self.files[name]
        if rest.startswith("preupload/"):
            wanted = json.loads(body)["files"]
            return (
                200,
                {},
                {"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in wanted]},
            )
        if rest.startswith("commit/"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                elif line["key"] == "deletedFile":
                    files.pop(line["value"]["path"], None)
            commit = self.commit_id(name)
            return 200, {}, {"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit, "hookOutput": ""}
        if rest.startswith("tree/"):
            tree = [{"type": "file", "path": path, "size": len(content), "oid": "0"} for path, content in files.items()]
            return 200, {}, tree
        siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
        return (
            200,
            {},
            {"id": name, "modelId": name, "sha": self.commit_id(name), "private": self.private[name], "siblings": siblings},
        )

    def matching(self, name: str, pattern: str) -> list[str]:
        return sorted(file for file in self.files[name] if fnmatch.fnmatch(file, pattern))


@contextmanager
def hub() -> Iterator[Hub]:
    """The stand-in, on a free port."""
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self._body()
            status, headers, content = found.answer(self.command, unquote(urlsplit(self.path).path), body)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
            for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_HEAD = do_PUT = _handle  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
