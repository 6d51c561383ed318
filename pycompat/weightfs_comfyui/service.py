"""Tells the daemons what ComfyUI is about to load. One thread of its own: nothing of ComfyUI ever waits for it.

Hooks note what happened and wake the thread; the thread looks at the queue, and sends what has changed.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from weightfs import Client, WeightfsError

from . import lookahead
from .daemons import Daemons
from .lookahead import Plan, Running
from .registry import Registry

LOG = logging.getLogger("weightfs.comfyui")
# A queue is forgotten by the daemon after so long without news, and sent anew in a third of it, in seconds.
QUEUE_SECONDS = 120.0
MARK_SECONDS = 30.0
# How long what was done for a loaded file is not done again, in seconds.
KEPT_SECONDS = 5.0
# Things come in bursts: a prompt that is queued, a node after the other. Seconds.
SETTLE = 0.02
# The prompts to look ahead to. Each names a few files; the daemon's memory holds far less than these need.
MOST_PROMPTS = 200


class Queue(Protocol):
    """ComfyUI's queue: (number, prompt id, prompt, extra, outputs, ...) for what runs, and for what waits."""

    def get_current_queue_volatile(self) -> tuple[list[Any], list[Any]]:
        """What runs and what waits. The latter is a heap."""


class Service:
    """The automatic part that has to do with the queue."""

    def __init__(
        self, queue: Queue, registry: Registry, daemons: Daemons, policy: str = "balanced", look_ahead: bool = True
    ) -> None:
        self._queue = queue
        self._registry = registry
        self._daemons = daemons
        self.policy = policy
        self._look_ahead = look_ahead
        self._plans: dict[str, Plan] = {}
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = False
        self._sent: dict[Client, tuple[float, list[dict[str, Any]]]] = {}
        self._marks: dict[Client, tuple[float, list[str], str]] = {}
        self._quiet: set[str] = set()
        self._loaded: list[str] = []
        self._kept: dict[str, float] = {}
        self._extra: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="weightfs-hints", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop = True
        self._wake.set()
        self._thread.join()

    def also(self, work: Callable[[], None]) -> None:
        """Something more to do whenever the thread has woken, unless nothing is to be told."""
        self._extra.append(work)

    def changed(self) -> None:
        """The queue may have changed."""
        self._wake.set()

    def begins(self, prompt: str, node: str) -> None:
        """A node of a prompt starts to run. Called by ComfyUI's thread for every node."""
        if prompt not in self._running:
            # Its first node: the thread may not have seen it yet, and what this node loads must be known.
            self._look()
        with self._lock:
            if state := self._running.get(prompt):
                state.begins(node)
        self._wake.set()

    def cached(self, prompt: str, nodes: Iterable[str]) -> None:
        """These nodes of a prompt will not run."""
        with self._lock:
            if state := self._running.get(prompt):
                state.cached(nodes)
        self._wake.set()

    def files_of(self, prompt: str, node: str) -> list[str]:
        """The model files that a node of a running prompt loads."""
        with self._lock:
            state = self._running.get(prompt)
        return state.plan.files_of(node) if state else []

    def loaded(self, paths: Iterable[str]) -> None:
        """These files have been loaded: what the policy wants is done to them."""
        if self.policy in ("prefer", "sticky"):
            with self._lock:
                self._loaded += paths
            self._wake.set()

    def _run(self) -> None:
        while not self._stop:
            self._wake.wait(MARK_SECONDS / 3)
            time.sleep(SETTLE)
            self._wake.clear()
            self.step()

    def step(self) -> None:
        """Looks at the queue once, and sends what has changed."""
        extra = self._extra if self.policy != "legacy" else []
        for work in (self._look, self._send, self._mark, self._keep, *extra):
            try:
                work()
            except WeightfsError as error:
                self._once(f"hints are not taken: {error}")
            except Exception as error:
                LOG.debug("a hint failed", exc_info=True)
                self._once(f"a part of the hints fails: {type(error).__name__}: {error}")

    def _look(self) -> None:
        running, waiting = self._queue.get_current_queue_volatile()
        waiting = heapq.nsmallest(MOST_PROMPTS, waiting, key=lambda item: item[0])
        plans = {str(item[1]): self._plan(item) for item in (*running, *waiting)}
        with self._lock:
            self._plans = plans
            states = {str(item[1]): self._running.get(str(item[1])) for item in running}
            self._running = {name: state or Running(plans[name]) for name, state in states.items()}

    def _plan(self, item: Any) -> Plan:
        identity = str(item[1])
        if known := self._plans.get(identity):
            return known
        try:
            return lookahead.plan(identity, item[2], item[4], self._registry)
        except Exception:
            LOG.debug("the files of a prompt are not known", exc_info=True)
            return Plan(identity)

    def _send(self) -> None:
        with self._lock:
            waiting = [plan for name, plan in self._plans.items() if name not in self._running]
            queue = lookahead.entries(self._running.values(), waiting) if self._tells() else []
        now = time.monotonic()
        for client, entries in self._daemons.queues(queue).items():
            at, before = self._sent.get(client, (0.0, []))
            if entries == before and (not entries or now - at < QUEUE_SECONDS / 3):
                continue
            client.hint_queue(entries, seconds=QUEUE_SECONDS)
            self._sent[client] = (now, entries)

    def _mark(self) -> None:
        with self._lock:
            paths = [path for state in self._running.values() for path in state.in_use()]
        wanted = self._daemons.by_client(paths) if self._tells() else {}
        now = time.monotonic()
        for client in {*wanted, *self._marks}:
            files = wanted.get(client, [])
            at, before, identity = self._marks.get(client, (0.0, [], ""))
            if files == before and now - at < MARK_SECONDS / 3:
                continue
            if files:
                self._marks[client] = (now, files, client.mark(files, MARK_SECONDS)["id"])
            else:
                del self._marks[client]
            client.unmark(identity)

    def _tells(self) -> bool:
        return self._look_ahead and self.policy != "legacy"

    def _keep(self) -> None:
        now = time.monotonic()
        with self._lock:
            loaded, self._loaded = self._loaded, []
        # A checkpoint is loaded as several models, one right after the other.
        paths = [path for path in dict.fromkeys(loaded) if now - self._kept.get(path, -KEPT_SECONDS) >= KEPT_SECONDS]
        self._kept.update(dict.fromkeys(paths, now))
        for client, files in self._daemons.by_client(paths).items():
            for path in files:
                if self.policy == "sticky":
                    client.pin(path, priority="high")
                else:
                    client.priority(path, "high")
                    client.prefetch(path)

    def _once(self, words: str) -> None:
        if words not in self._quiet:
            self._quiet.add(words)
            LOG.warning("weightfs: %s", words)
