"""From prompts to the list of files that will be loaded, in order. Pure: no clock, no threads, nothing of ComfyUI."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import graph
from .graph import Kinds, Prompt

# What the daemon takes.
MOST_ENTRIES = 1000
MOST_PATHS = 100


class Files(Kinds, Protocol):
    """What is known of nodes and their files."""

    def files_of(self, prompt: Prompt, node: str) -> list[str]:
        """The model files that a node loads."""


@dataclass(frozen=True)
class Use:
    """A file of a prompt: the node that loads it, and the nodes that use what was loaded, the loader among them."""

    path: str
    loader: str
    users: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """One prompt: its nodes and its files, in the order in which they are expected."""

    id: str
    order: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ()

    def files_of(self, node: str) -> list[str]:
        """What a node loads."""
        return [use.path for use in self.uses if use.loader == node]


def plan(identity: str, prompt: Prompt, outputs: Iterable[str], files: Files) -> Plan:
    """The plan of a prompt that is run for `outputs`.

    Files come in the order of their loaders: what loads them reads the header there, and programs that copy what they
    load read all of it.
    """
    nodes = graph.order(prompt, outputs, files)
    uses = []
    for node in nodes:
        for path in files.files_of(prompt, node):
            uses.append(Use(path, node, frozenset(graph.users(prompt, node, files) & set(nodes)) | {node}))
    return Plan(identity, tuple(nodes), tuple(uses))


@dataclass
class Running:
    """How far a prompt has come. Nodes run one after the other, so that what began before has ended."""

    plan: Plan
    current: str | None = None
    done: set[str] = field(default_factory=set)

    def begins(self, node: str) -> None:
        """A node starts to run."""
        if self.current is not None and self.current != node:
            self.done.add(self.current)
        self.done.discard(node)
        self.current = node

    def cached(self, nodes: Iterable[str]) -> None:
        """These will not run: their results are there. What they loaded may still be read by those that do."""
        self.done.update(nodes)

    def remaining(self) -> list[str]:
        """The files that some node still needs, in order."""
        return _once(use.path for use in self.plan.uses if not use.users <= self.done)

    def in_use(self) -> list[str]:
        """The files that the node which runs now uses."""
        return _once(use.path for use in self.plan.uses if self.current in use.users)


def entries(running: Iterable[Running], waiting: Iterable[Plan]) -> list[dict[str, Any]]:
    """The queue as the daemon takes it: what runs, then what waits, each with its files."""
    queue = [(state.plan.id, state.remaining()) for state in running]
    queue += [(plan.id, _once(use.path for use in plan.uses)) for plan in waiting]
    return [
        {"id": identity, "paths": [{"path": path} for path in paths[:MOST_PATHS]]} for identity, paths in queue if paths
    ][:MOST_ENTRIES]


def _once(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(paths))
