"""A daemon that answers what a test tells it to: for errors and for answers that the real one gives seldom."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    body: Any


Answer = tuple[int, Any]


@dataclass
class FakeDaemon:
    """`answers` are functions or values by "METHOD /path"; what was asked is kept."""

    socket: str
    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)

    def answer(self, method: str, path: str, value: Answer | Callable[[Asked], Answer]) -> None:
        self.answers[f"{method} {path}"] = value

    def bodies(self, path: str) -> list[Any]:
        return [asked.body for asked in self.asked if asked.path == path]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    fake: FakeDaemon

    def handle_error(self, *_: object) -> None:
        """Clients that went away are what some tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "test"

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        fake = self.server.fake
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        asked = Asked(self.command, parts.path, query, body)
        fake.asked.append(asked)
        answer = fake.answers.get(f"{self.command} {parts.path}")
        if callable(answer):
            answer = answer(asked)
        if answer is None:
            answer = (404, problem("not_found", f"nothing at {parts.path}", 404))
        status, content = answer
        if status == "raw":
            self.wfile.write(content)
        elif status == "events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for chunk in content:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.write(b"0\r\n\r\n")
        else:
            data = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        self.close_connection = True

    do_GET = do_POST = do_DELETE = _any


def problem(kind: str, detail: str, status: int) -> dict[str, Any]:
    return {"type": f"urn:weightfs:problem:{kind}", "title": kind, "status": status, "detail": detail}


@contextlib.contextmanager
def running(folder: str) -> Iterator[FakeDaemon]:
    path = os.path.join(folder, "control.sock")
    server = _Server(path, _Handler)
    server.fake = FakeDaemon(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
