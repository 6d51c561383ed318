"""A prompt as a graph: in which order its nodes will run, and which of them use what a loader loaded.

A prompt is ComfyUI's API format: nodes by id, each with a `class_type` and `inputs`; an input that is a list
`[node, output]` is a link. Nothing here knows ComfyUI: what it says of node types comes in as `Kinds`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

Prompt = Mapping[str, Mapping[str, Any]]
Link = tuple[str, int]


class Kinds(Protocol):
    """What is known of node types."""

    def outputs(self, class_type: str) -> list[str]:
        """The types of a node's outputs, such as MODEL."""

    def is_output(self, class_type: str) -> bool:
        """Whether nodes of this type are what a prompt is run for."""


def links(node: Mapping[str, Any]) -> Iterator[tuple[str, Link]]:
    """The inputs of a node that come from other nodes."""
    inputs = node.get("inputs")
    for name, value in inputs.items() if isinstance(inputs, Mapping) else ():
        if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int:
            yield name, (value[0], value[1])


def class_type(prompt: Prompt, node: str) -> str:
    """The type of a node."""
    return str(prompt[node].get("class_type", ""))


def order(prompt: Prompt, outputs: Iterable[str], kinds: Kinds) -> list[str]:
    """The nodes that `outputs` need, in the order in which ComfyUI is expected to run them.

    Known of its executor: nodes are collected from each output back through its inputs, the last input first; of those
    whose inputs are there, outputs go first, then what an output waits for directly, then what such a node waits for,
    then the one that was collected first.
    """
    waits_for: dict[str, set[str]] = {}
    for output in outputs:
        stack = [output]
        while stack:
            node = stack.pop()
            if node in waits_for or node not in prompt:
                continue
            sources = [source for _, (source, _) in links(prompt[node]) if source in prompt]
            waits_for[node] = set(sources)
            stack += sources
    waited_by: dict[str, list[str]] = {node: [] for node in waits_for}
    for node, sources_of in waits_for.items():
        for source in sources_of:
            waited_by[source].append(node)
    ending = {node for node in waits_for if kinds.is_output(class_type(prompt, node))}

    def rank(node: str) -> int:
        if node in ending:
            return 0
        if ending.intersection(waited_by[node]):
            return 1
        return 2 if any(ending.intersection(waited_by[next_]) for next_ in waited_by[node]) else 3

    ranks = {node: rank(node) for node in waits_for}
    done: list[str] = []
    while waits_for:
        ready = [node for node, sources_of in waits_for.items() if not sources_of]
        if not ready:
            break  # a circle, which ComfyUI refuses
        node = min(ready, key=ranks.__getitem__)  # of equals the first
        del waits_for[node]
        for follower in waited_by[node]:
            if follower in waits_for:
                waits_for[follower].discard(node)
        done.append(node)
    return done


def users(prompt: Prompt, loader: str, kinds: Kinds) -> set[str]:
    """The nodes that use what a loader gives, through nodes that hand the same on (a LoRA loader hands on a MODEL)."""
    followers: dict[Link, list[str]] = {}
    for node, content in prompt.items():
        for _, link in links(content):
            followers.setdefault(link, []).append(node)
    found: set[str] = set()
    todo = [((loader, index), kind) for index, kind in enumerate(kinds.outputs(class_type(prompt, loader)))]
    seen = {link for link, _ in todo}
    while todo:
        link, kind = todo.pop()
        for node in followers.get(link, ()):
            found.add(node)
            for index, given in enumerate(kinds.outputs(class_type(prompt, node))):
                if given == kind and (node, index) not in seen:
                    seen.add((node, index))
                    todo.append(((node, index), kind))
    return found


def upstream(prompt: Prompt, node: str, input_name: str, kinds: Kinds) -> list[str]:
    """The nodes that made what an input of a node gets, nearest first: its source, and from there through inputs that
    bring the same type of thing."""
    found: list[str] = []
    todo = [link for name, link in links(prompt.get(node, {})) if name == input_name]
    while todo:
        source, index = todo.pop(0)
        if source in found or source not in prompt:
            continue
        found.append(source)
        given = kinds.outputs(class_type(prompt, source))
        kind = given[index] if index < len(given) else None
        for _, (before, output) in links(prompt[source]):
            types = kinds.outputs(class_type(prompt, before)) if before in prompt else []
            if output < len(types) and types[output] == kind:
                todo.append((before, output))
    return found
