from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import fake_daemon
import mounts
import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    missing = mounts.why_not()
    if missing and os.environ.get("CI") == "true":
        raise pytest.UsageError(f"mounted tests cannot run: {missing}")
    for item in items:
        if missing and item.get_closest_marker("mounted"):
            item.add_marker(pytest.mark.skip(reason=f"MOUNTED TEST SKIPPED: {missing}"))


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[fake_daemon.FakeDaemon]:
    with fake_daemon.running(str(tmp_path)) as running:
        yield running


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of every kind of tensor, and a larger one."""
    import samples

    folder = tmp_path_factory.mktemp("models")
    samples.write(folder / "kinds.safetensors", samples.kinds())
    samples.write(folder / "large.safetensors", samples.large(48))
    return folder


@pytest.fixture(scope="module")
def mount(library: Path) -> Iterator[mounts.Mount]:
    mounts.settle()
    with mounts.mounted(library, "--ram", "256MiB", "--reserve", "64MiB") as mount:
        yield mount
