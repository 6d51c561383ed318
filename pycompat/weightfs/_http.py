"""HTTP/1.1 without input or output: requests become bytes, bytes become responses.

Only what the control interface speaks: one request for a connection, bodies with a length or in chunks, and
server-sent events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from .errors import ProtocolError

MAX_HEAD = 64 << 10
# An answer lists at most 10,000 files, or the tensors of one file.
MAX_BODY = 64 << 20


def request(method: str, path: str, query: dict[str, str] | None = None, body: object = None) -> bytes:
    """The bytes of a request, after which the connection is closed by the other side. `path` is quoted already."""
    target = path
    if query:
        target += "?" + urlencode(query, quote_via=quote, errors="surrogateescape")
    head = [f"{method} {target} HTTP/1.1", "Host: weightfs", "Connection: close", "Accept: */*"]
    content = b""
    if body is not None:
        content = json.dumps(body).encode("utf-8", "surrogatepass")
        head += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join([*head, "", ""]).encode("ascii") + content


@dataclass
class Response:
    """Takes the bytes of a response as they come, and gives the body as far as it is there.

    `status` is 0 until the head has come, `complete` becomes true with the last byte of the body.
    """

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    _buffer: bytearray = field(default_factory=bytearray)
    _left: int | None = None
    _chunked: bool = False

    def feed(self, data: bytes) -> bytes:
        """Takes what was received; nothing received means that the connection has ended. Gives decoded body bytes.

        Raises `ProtocolError` for what is no response, and for one that ends too early.
        """
        if not data:
            self._end()
            return b""
        self._buffer += data
        if not self.status and not self._head():
            return b""
        return self._chunks() if self._chunked else self._plain()

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD or not b"HTTP/1.1 ".startswith(bytes(self._buffer[:9])[:9]):
                raise ProtocolError(
                    "what answers on the control socket is not a weightfs daemon of this version; "
                    "'weightfs upgrade' or a new mount starts the installed one"
                )
            return False
        lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        parts = lines[0].split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise ProtocolError(f"not an HTTP response: {lines[0][:80]!r}")
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.status = int(parts[1])
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if "content-length" in self.headers:
            length = self.headers["content-length"]
            if not length.isdigit() or int(length) > MAX_BODY:
                raise ProtocolError(f"a response of {length!r} bytes")
            self._left = int(length)
        elif self.status in (204, 304):
            self._left = 0
        self.complete = self._left == 0 and not self._chunked
        return True

    def _plain(self) -> bytes:
        body = bytes(self._buffer if self._left is None else self._buffer[: self._left])
        self._buffer.clear()
        if self._left is not None:
            self._left -= len(body)
            self.complete = self._left == 0
        return body

    def _chunks(self) -> bytes:
        body = bytearray()
        while not self.complete:
            if self._left is None:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    break
                try:
                    self._left = int(bytes(self._buffer[:end]).split(b";")[0], 16)
                except ValueError:
                    raise ProtocolError("a chunk without a length") from None
                del self._buffer[: end + 2]
            if self._left == 0:
                self.complete = True
                break
            if len(self._buffer) < self._left + 2:
                break
            body += self._buffer[: self._left]
            del self._buffer[: self._left + 2]
            self._left = None
        return bytes(body)

    def _end(self) -> None:
        if self.status and self._left is None and not self._chunked:
            self.complete = True
        if not self.complete:
            raise ProtocolError("the daemon ended the connection before it had answered; it may have been stopped")


def document(content: bytes) -> Any:
    """The JSON of a body; None if it is empty."""
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError as error:
        raise ProtocolError(f"the daemon answered with something that is not JSON: {error}") from None


class EventStream:
    """Server-sent events out of the bytes of a body: (name, data) for each that is complete."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, body: bytes) -> Iterator[tuple[str, str]]:
        """Takes body bytes; comments (keep-alives) are skipped."""
        self._buffer += body.replace(b"\r\n", b"\n")
        *blocks, self._buffer = self._buffer.split(b"\n\n")
        for block in blocks:
            name, data = "message", []
            for line in block.decode("utf-8", "replace").split("\n"):
                key, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if key == "event":
                    name = value
                elif key == "data":
                    data.append(value)
            if data:
                yield name, "\n".join(data)
