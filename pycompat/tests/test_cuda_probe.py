"""Looking for a GPU must never hurt who looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from cuda_standins import StandIn

import weightfs.cuda as cuda
from weightfs.cuda import device, machine


@pytest.fixture(autouse=True)
def fresh():
    machine.forget()
    yield
    device.close_contexts()
    machine.forget()


def test_without_a_device_file_nothing_is_loaded(tmp_path, monkeypatch):
    standin = StandIn(tmp_path, monkeypatch)
    (tmp_path / "root/dev/nvidiactl").unlink()
    found = cuda.probe()
    assert "/dev/nvidiactl" in found.reason and "modprobe" in found.reason and found.devices == ()
    assert not standin.log_file.exists()
    with pytest.raises(cuda.CudaUnavailable, match="nvidiactl"):
        cuda.upload(__file__, {})


def test_what_is_there_is_listed(tmp_path, monkeypatch):
    StandIn(tmp_path, monkeypatch, "devices=2 vram=1000000 read_only=0")
    found = cuda.probe()
    assert (found.version, found.reason, len(found.devices)) == (12080, "", 2)
    assert found.devices[1] == cuda.Device("Stand-in 1", 1000000, registers=True, registers_read_only=False)
    with pytest.raises(cuda.CudaUnavailable, match="no cuda:2.*cuda:1 Stand-in 1"):
        cuda.upload(__file__, {}, "cuda:2")


@pytest.mark.parametrize(("script", "missing", "words"), [
    ("version=11000", (), "for CUDA 11.0; update"),
    ("devices=0", (), "CUDA_ERROR_NO_DEVICE"),
    ("fail=cuInit:0:999", (), "cuInit failed with CUDA_ERROR_UNKNOWN"),
    ("fail=cuInit:0:803", (), r"cuInit failed with error \(803\)"),
    ("abort=cuInit", (), "signal 6.*reinstall"),
    ("abort=cuDeviceGetName", (), "signal 6"),
    ("", ("cuStreamCreate",), "has no cuStreamCreate"),
    ("", ("cuInit",), "has no cuInit"),
])
def test_what_is_broken_says_what_is_wrong(tmp_path, monkeypatch, script, missing, words):
    StandIn(tmp_path, monkeypatch, script, missing)
    with pytest.raises(cuda.CudaUnavailable, match=words):
        cuda.upload(__file__, {})


def test_a_driver_that_hangs_is_given_up(tmp_path, monkeypatch):
    StandIn(tmp_path, monkeypatch, "hang=cuInit")
    assert "does not answer" in machine.probe(patience=0.5).reason


def test_a_library_that_is_none_is_an_answer(tmp_path, monkeypatch):
    StandIn(tmp_path, monkeypatch)
    (tmp_path / "libcuda.so.1").write_text("not a library")
    for path in (tmp_path / "libcuda.so.1", tmp_path / "missing.so"):
        monkeypatch.setenv("WEIGHTFS_LIBCUDA", str(path))
        assert "cannot be loaded" in machine.probe(again=True).reason


@pytest.mark.parametrize(("text", "number"), [("cuda", 0), ("cuda:3", 3), (2, 2), ("1", 1)])
def test_devices_have_numbers(text, number):
    assert machine.parse(text) == number


@pytest.mark.parametrize("text", ["cpu", "cuda:", "cuda:x", "", "cuda-1", -1])
def test_what_is_no_device_is_refused(text):
    with pytest.raises(ValueError, match="no CUDA device"):
        machine.parse(text)


def test_importing_loads_no_library():
    code = ("import sys, weightfs.cuda; "
            "sys.exit(any('libcuda' in line for line in open('/proc/self/maps')) or 'torch' in sys.modules)")
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(root)}, check=False).returncode == 0
