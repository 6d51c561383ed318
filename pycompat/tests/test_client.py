"""The client against a daemon that answers what the test says."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from pathlib import Path

import fake_daemon
import pytest
from fake_daemon import FakeDaemon, problem

import weightfs
from weightfs import aio
from weightfs.__main__ import main

STATUS = {
    "mounts": [{"mountpoint": "/m", "source": "/s", "passthrough": True}],
    "ram": {"resident_bytes": 5, "budget_bytes": 10, "pinned_bytes": 1},
    "version": "9", "notes": [],
}  # fmt: skip
OUTCOME = {"files": 1, "bytes": 2, "left_bytes": 3}


def job(state: str, done: int) -> dict[str, object]:
    return {"id": "j1", "state": state, "files": 1, "bytes_done": done, "bytes_total": 9, "bytes_per_second": 0}


def test_requests_have_the_form_of_the_interface(daemon: FakeDaemon) -> None:
    for path in ("pin", "unpin", "evict", "flush"):
        daemon.answer("POST", f"/v1/{path}", (200, OUTCOME))
    daemon.answer("POST", "/v1/hints/priority", (204, None))
    daemon.answer("POST", "/v1/hints/vram", (204, None))
    daemon.answer("POST", "/v1/hints/queue", (200, {"files": 1, "unknown": [], "expires_seconds": 600.0}))
    client = weightfs.connect(daemon.socket, owner="me")
    assert client.pin("/m/a b.safetensors", tensors="x.*", priority="high") == OUTCOME
    client.unpin("/m/*")
    client.evict("/m/a")
    client.flush()
    client.priority("/m/a", "low")
    client.hint_vram("cuda:0", ["/m/a"])
    client.hint_queue([{"id": "p", "paths": [{"path": "/m/a", "component": "vae"}]}], seconds=5)
    assert [(a.path, a.body) for a in daemon.asked] == [
        ("/v1/pin", {"path": "/m/a b.safetensors", "tensors": "x.*", "priority": "high"}),
        ("/v1/unpin", {"path": "/m/*"}),
        ("/v1/evict", {"path": "/m/a"}),
        ("/v1/flush", {}),
        ("/v1/hints/priority", {"path": "/m/a", "priority": "low"}),
        ("/v1/hints/vram", {"owner": "me", "device": "cuda:0", "paths": ["/m/a"]}),
        ("/v1/hints/queue", {
            "owner": "me", "entries": [{"id": "p", "paths": [{"path": "/m/a", "component": "vae"}]}], "seconds": 5,
        }),
    ]  # fmt: skip


def test_paths_are_absolute_and_lead_through_no_link(daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.answer("POST", "/v1/pin", (200, OUTCOME))
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/f").touch()
    client = weightfs.connect(daemon.socket)
    client.pin(tmp_path / "link/f")
    client.pin(tmp_path / "link/*.gguf")
    client.pin(os.path.relpath(tmp_path / "link/f"))
    real = str(tmp_path / "real")
    assert [b["path"] for b in daemon.bodies("/v1/pin")] == [f"{real}/f", f"{real}/*.gguf", f"{real}/f"]


def test_every_page_of_files_is_asked_for(daemon: FakeDaemon) -> None:
    def page(asked: fake_daemon.Asked) -> tuple[int, object]:
        at = int(asked.query.get("cursor", "0"))
        more = str(at + 1) if at < 2 else None
        return 200, {"files": [{"path": f"/m/{at}"}], "next": more, "totals": {}}

    daemon.answer("GET", "/v1/files", page)
    assert [f["path"] for f in weightfs.connect(daemon.socket).files(resident=True)] == ["/m/0", "/m/1", "/m/2"]
    assert daemon.asked[0].query == {"resident": "true"}


def test_a_prefetch_is_followed_to_its_end(daemon: FakeDaemon) -> None:
    states = [job("running", 3), job("running", 6), job("done", 9)]
    daemon.answer("POST", "/v1/prefetch", (202, job("running", 0)))
    daemon.answer("GET", "/v1/jobs/j1", lambda _: (200, states.pop(0)))
    seen: list[int] = []
    client = weightfs.connect(daemon.socket)
    end = client.prefetch("/m/a", component="vae", wait=True, progress=lambda job: seen.append(job["bytes_done"]))
    assert end["state"] == "done" and seen == [0, 3, 6, 9]
    assert daemon.asked[0].body == {"paths": ["/m/a"], "component": "vae"}
    assert client.prefetch(["/m/a", "/m/b"])["state"] == "running"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("no_room", weightfs.NoRoom), ("not_permitted", weightfs.NotPermitted), ("not_mounted", weightfs.NotMounted),
        ("busy", weightfs.Busy), ("overloaded", weightfs.Overloaded), ("from_the_future", weightfs.Problem),
    ],
)  # fmt: skip
def test_refusals_are_exceptions_in_the_words_of_the_daemon(
    daemon: FakeDaemon, kind: str, error: type[weightfs.Problem]
) -> None:
    daemon.answer("POST", "/v1/pin", (409, problem(kind, "Take less.", 409)))
    with pytest.raises(error) as raised:
        weightfs.connect(daemon.socket).pin("/m/a")
    assert (type(raised.value), str(raised.value), raised.value.kind) == (error, "Take less.", kind)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{", "before it had answered"),
        (b'{"error":{"kind":"bad_request"}}\n', "not a weightfs daemon of this version"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnot", "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "99999999999"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunk"),
        (b"", "before it had answered"),
    ],
)
def test_answers_that_are_none_are_clear_errors(daemon: FakeDaemon, raw: bytes, words: str) -> None:
    daemon.answer("GET", "/v1/status", ("raw", raw))
    with pytest.raises(weightfs.ProtocolError, match=words):
        weightfs.connect(daemon.socket).status()


def test_an_answer_in_chunks_is_put_together(daemon: FakeDaemon) -> None:
    text = json.dumps(STATUS).encode()
    halves = [text[:7], text[7:]]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in halves) + b"0\r\n\r\n"
    daemon.answer("GET", "/v1/status", ("raw", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks))
    assert weightfs.connect(daemon.socket).status() == STATUS


def test_a_daemon_that_does_not_answer_is_not_waited_for(daemon: FakeDaemon) -> None:
    def slow(_: fake_daemon.Asked) -> tuple[int, object]:
        time.sleep(1.0)
        return 200, STATUS

    daemon.answer("GET", "/v1/status", slow)
    with pytest.raises(weightfs.TimedOut, match=r"0\.2 s"):
        weightfs.connect(daemon.socket, timeout=0.2).status()
    with pytest.raises(weightfs.TimedOut):
        asyncio.run(aio.connect(daemon.socket, timeout=0.2).status())


def test_without_a_daemon_hints_do_nothing_and_say_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = weightfs.connect(tmp_path)
    with caplog.at_level(logging.WARNING, "weightfs"):
        assert client.prefetch(tmp_path / "a", wait=True)["state"] == "done"
        assert client.pin(tmp_path / "a")["files"] == 0
        client.hint_queue([{"id": "1", "paths": [{"path": str(tmp_path / "a")}]}])
        client.hint_vram("cuda:0", [])
        assert client.make_room(tmp_path / "a") == []
        with client.in_use(tmp_path / "a"):
            pass
    assert len(caplog.records) == 1 and "no mount" in caplog.text
    for query in (client.status, client.files, lambda: client.tensors("a"), lambda: next(client.events())):
        with pytest.raises(weightfs.NoDaemon):
            query()
    assert not client.available()
    with pytest.raises(weightfs.NoDaemon):
        weightfs.connect(tmp_path, strict=True).pin(tmp_path / "a")


def test_a_socket_that_nobody_listens_on_is_no_daemon(daemon: FakeDaemon, tmp_path: Path) -> None:
    import socket

    path = str(tmp_path / "dead")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(weightfs.NoDaemon, match="no daemon answers"):
        weightfs.connect(path).status()


def test_files_in_use_are_marked_and_released(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightfs.client.IN_USE_SECONDS", 0.06)
    daemon.answer("POST", "/v1/hints/in-use", (200, {"id": "h 7/%", "expires_seconds": 60.0}))
    daemon.answer("DELETE", "/v1/hints/in-use/h%207%2F%25", (204, None))
    client = weightfs.connect(daemon.socket, owner="me")
    with pytest.raises(KeyError), client.in_use(["/m/a", "/m/b"]):
        deadline = time.monotonic() + 5
        while len(daemon.bodies("/v1/hints/in-use")) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        raise KeyError
    marks = daemon.bodies("/v1/hints/in-use")
    assert len(marks) >= 3 and all(mark == marks[0] for mark in marks)
    assert marks[0]["paths"] == ["/m/a", "/m/b"] and marks[0]["owner"].startswith("me")
    assert daemon.asked[-1].method == "DELETE"


def test_events_come_one_by_one(daemon: FakeDaemon) -> None:
    content = [
        b": keep-alive\n\n", b'event: filled\ndata: {"kind":"filled","at":1.0,"pa', b'th":"/m/a"}\n\n',
        b'event: lost\ndata: {"lost":4}\n\nevent: budget\ndata: {"at":2.0,"bytes":8}\n\n',
    ]  # fmt: skip
    daemon.answer("GET", "/v1/events", ("events", content))
    expected = [
        {"kind": "filled", "at": 1.0, "path": "/m/a"}, {"kind": "lost", "lost": 4},
        {"kind": "budget", "at": 2.0, "bytes": 8},
    ]  # fmt: skip
    assert list(weightfs.connect(daemon.socket).events(["filled", "budget"])) == expected
    assert daemon.asked[-1].query == {"kinds": "filled,budget"}

    async def read() -> list[weightfs.wire.Event]:
        return [event async for event in aio.connect(daemon.socket).events()]

    assert asyncio.run(read()) == expected
    daemon.answer("GET", "/v1/events", (503, problem("overloaded", "Later.", 503)))
    with pytest.raises(weightfs.Overloaded, match="Later"):
        list(weightfs.connect(daemon.socket).events())


def test_the_asyncio_client_says_the_same(daemon: FakeDaemon, tmp_path: Path) -> None:
    daemon.answer("GET", "/v1/status", (200, STATUS))
    daemon.answer("POST", "/v1/pin", (409, problem("no_room", "Take less.", 409)))
    daemon.answer("POST", "/v1/prefetch", (202, job("running", 0)))
    daemon.answer("GET", "/v1/jobs/j1", (200, job("done", 9)))
    daemon.answer("POST", "/v1/hints/in-use", (200, {"id": "h7", "expires_seconds": 60.0}))
    daemon.answer("DELETE", "/v1/hints/in-use/h7", (204, None))

    async def talk() -> None:
        client = aio.connect(daemon.socket)
        assert await client.status() == STATUS
        with pytest.raises(weightfs.NoRoom, match="Take less"):
            await client.pin("/m/a")
        assert (await client.prefetch("/m/a", wait=True))["bytes_done"] == 9
        async with client.in_use("/m/a"):
            pass
        assert daemon.asked[-1].method == "DELETE"
        missing = aio.connect(tmp_path)
        assert (await missing.evict(tmp_path))["files"] == 0
        with pytest.raises(weightfs.NoDaemon):
            await missing.status()

    asyncio.run(talk())


def test_the_command_line(daemon: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    daemon.answer("GET", "/v1/status", (200, STATUS))
    daemon.answer("POST", "/v1/flush", (200, OUTCOME))
    assert main(["--at", daemon.socket, "status"]) == 0
    assert "/m: 5 B of 10 B" in capsys.readouterr().out
    assert main(["--at", daemon.socket, "--json", "flush"]) == 0
    assert json.loads(capsys.readouterr().out) == OUTCOME
    assert main(["pin", str(tmp_path)]) == 3
    assert "no mount" in capsys.readouterr().err
    daemon.answer("POST", "/v1/flush", (403, problem("not_permitted", "Ask root.", 403)))
    assert main(["--at", daemon.socket, "flush"]) == 4
    assert "Ask root." in capsys.readouterr().err
