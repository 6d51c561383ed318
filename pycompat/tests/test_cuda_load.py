"""Loading files of a real mount to a device, against the stand-ins for NVIDIA's libraries."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
import samples
from cuda_standins import StandIn

import weightfs
from weightfs import cuda
from weightfs.cuda import device, gds, machine, registration

SETTLES = 2.2

pytestmark = pytest.mark.mounted


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration, "registrations", registration.Registrations(1 << 40))
    monkeypatch.setattr(gds, "_said", False)
    machine.forget()
    yield
    registration.registrations.drop_all()
    device.close_contexts()
    machine.forget()


@contextlib.contextmanager
def served(library: Path, *options: str) -> Iterator[mounts.Mount]:
    """A mount whose daemon sees the GPU of the test."""
    # What has just been written is not known to be the same content yet.
    newest = max(path.stat().st_ctime for path in library.iterdir())
    time.sleep(max(0.0, newest + SETTLES - time.time()))
    with mounts.mounted(library, "--ram", "256MiB", "--reserve", "64MiB", *options) as mount:
        yield mount


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    samples.write(folder / "kinds.safetensors", samples.kinds())
    samples.write(folder / "large.safetensors", samples.large(24))
    return folder


def load(path: Path, **options: object) -> tuple[dict, cuda.Report]:
    reports: list[cuda.Report] = []
    loaded = weightfs.load(path, "cuda:0", on_report=reports.append, **options)
    return loaded, reports[0]


def check(loaded: dict, source: Path) -> None:
    with weightfs.MappedFile(source) as file:
        header = file.header
    data = source.read_bytes()
    assert set(loaded) == set(header.tensors)
    for name, tensor in header.tensors.items():
        assert loaded[name].to_bytes() == data[tensor.start : tensor.end], name
        assert (loaded[name].shape, loaded[name].dtype) == (tensor.shape, tensor.dtype)


def test_a_resident_file_is_copied_from_the_pages_of_the_arena(tmp_path, monkeypatch, models) -> None:
    standin = StandIn(tmp_path, monkeypatch)
    with served(models) as mount:
        cold, report = load(mount.path / "large.safetensors")
        check(cold, models / "large.safetensors")
        assert report.path == "ring", report
        mount.fill("large.safetensors")
        warm, report = load(mount.path / "large.safetensors")
        check(warm, models / "large.safetensors")
        assert (report.path, report.notes) == ("direct", []), report
        again, report = load(mount.path / "large.safetensors")
        assert report.path == "direct" and registration.registrations.reused > 0
        # What is registered is mapped: it cannot be evicted, only let go of.
        client = weightfs.connect(mount.path)
        client.evict(mount.path / "large.safetensors")
        check(again, models / "large.safetensors")
        held = client.status()["ram"]["client_held_bytes"]
        cuda.release()
        del cold, warm, again
        assert client.status()["ram"]["client_held_bytes"] <= held
        device.close_contexts()
        assert standin.live() == {}


def test_files_of_every_kind(tmp_path, monkeypatch, models) -> None:
    StandIn(tmp_path, monkeypatch)
    check(load(models / "kinds.safetensors")[0], models / "kinds.safetensors")
    with pytest.raises(ValueError, match="device='cuda'"):
        weightfs.load(models / "kinds.safetensors", framework="np", gds=True)


@pytest.mark.parametrize("mode", ["gds", "p2pdma"])
def test_gds_reads_beneath_the_mount(tmp_path, monkeypatch, models, mode) -> None:
    standin = StandIn(tmp_path, monkeypatch, f"mode={mode}")
    standin.add_cufile()
    # An open that waits would have the daemon read the file into RAM.
    with served(models, "--open-wait", "0") as mount:
        for name in ("large.safetensors", "kinds.safetensors"):
            if (models / name).stat().st_size < 1 << 20:
                continue
            loaded, report = load(mount.path / name, gds=True)
            check(loaded, models / name)
            assert report.path == "gds" and report.ring_bytes == 0
        assert weightfs.connect(mount.path).status()["ram"]["resident_bytes"] == 0, "RAM is left out"


def test_what_was_prefetched_to_the_device_is_taken_over(tmp_path, monkeypatch, models) -> None:
    standin = StandIn(tmp_path, monkeypatch)
    standin.add_cufile()
    with served(models) as mount:
        path = mount.path / "large.safetensors"
        job = weightfs.connect(mount.path).prefetch_body({"paths": [str(path)], "to": "cuda:0"})
        assert job["state"] == "done" and job["bytes_done"] == path.stat().st_size, job
        assert "GPUDirect" in job["detail"]
        reads = sum(" read " in line for line in standin.log_file.read_text().splitlines())
        loaded, report = load(path, gds=True)
        check(loaded, models / "large.safetensors")
        assert report.path == "gds"
        assert sum(" read " in line for line in standin.log_file.read_text().splitlines()) == reads


def test_gds_that_is_impossible_says_why(tmp_path, monkeypatch, models) -> None:
    standin = StandIn(tmp_path, monkeypatch, "mode=compat")
    with served(models) as mount:
        path = mount.path / "large.safetensors"
        with pytest.raises(cuda.GdsUnavailable, match=r"nvidia-fs.*gds=False"):
            load(path, gds=True)
        with pytest.warns(UserWarning, match="nvidia-fs"):
            loaded, report = load(path, gds="auto")
        check(loaded, models / "large.safetensors")
        assert report.path in ("ring", "direct") and "nvidia-fs" in str(report)
        standin.add_cufile()
        with pytest.raises(cuda.GdsUnavailable, match="compatibility mode, through RAM"):
            load(path, gds=True)
        job = weightfs.connect(mount.path).prefetch_body({"paths": [str(path)], "to": "cuda:0"})
        assert job["state"] == "done" and "compatibility" in job["detail"], job
        for body, words in [
            ({"to": "cpu"}, "is no device"),
            ({"into": {"handle": "", "size_bytes": 1, "spans": []}}, "'to'"),
        ]:
            with pytest.raises(weightfs.BadRequest, match=words):
                weightfs.connect(mount.path).prefetch_body({"paths": [str(path)], **body})
        job = weightfs.connect(mount.path).prefetch_body({"paths": [str(path)], "to": "cuda:9"})
        assert job["state"] == "failed" and "no cuda:9" in job["detail"], json.dumps(job)


def test_status_says_what_was_found(tmp_path, monkeypatch, models) -> None:
    standin = StandIn(tmp_path, monkeypatch, "devices=2")
    standin.add_cufile()
    with served(models) as mount:
        client = weightfs.connect(mount.path)
        deadline = time.monotonic() + 20
        while "gpu" not in client.status() and time.monotonic() < deadline:
            time.sleep(0.05)
        gpu = client.status()["gpu"]
        assert [device["name"] for device in gpu["driver"]["devices"]] == ["Stand-in 0", "Stand-in 1"]
        assert gpu["driver"]["devices"][0]["direct_uploads"] is True
        assert gpu["driver"]["devices"][0]["registered_bytes"] == 1 << 30
        assert gpu["cufile"]["mode"] == "gds"
