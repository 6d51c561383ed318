"""The daemons behind model files: one for each control socket, found by the files' own paths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from weightfs import Client, NoDaemon
from weightfs._find import control_socket


class Daemons:
    """Clients by control socket. Files that lie in no mount belong to none."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._clients: dict[str, Client] = {}

    def of(self, path: str) -> Client | None:
        """The client for a file, or None."""
        try:
            socket = control_socket(os.path.realpath(path))
        except NoDaemon:
            return None
        if socket not in self._clients:
            self._clients[socket] = Client(socket, timeout=5.0, owner=self._owner)
        return self._clients[socket]

    def all(self, paths: Iterable[str] = ()) -> list[Client]:
        """Every client so far, and those of `paths`."""
        for path in paths:
            self.of(path)
        return list(self._clients.values())

    def by_client(self, paths: Iterable[str]) -> dict[Client, list[str]]:
        """Files of mounts, by the daemon that serves them."""
        found: dict[Client, list[str]] = {}
        for path in paths:
            if client := self.of(path):
                found.setdefault(client, []).append(path)
        return found

    def queues(self, entries: Iterable[Mapping[str, Any]]) -> dict[Client, list[dict[str, Any]]]:
        """A queue, split by the daemons that serve its files; empty for daemons that have no part in it."""
        found: dict[Client, list[dict[str, Any]]] = {client: [] for client in self._clients.values()}
        # The same files come in many entries.
        known: dict[str, Client | None] = {}
        for entry in entries:
            split: dict[Client, list[Any]] = {}
            for item in entry["paths"]:
                if item["path"] not in known:
                    known[item["path"]] = self.of(item["path"])
                if client := known[item["path"]]:
                    split.setdefault(client, []).append(item)
            for client, items in split.items():
                found.setdefault(client, []).append({"id": entry["id"], "paths": items})
        return found
