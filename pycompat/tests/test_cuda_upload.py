"""Uploads through a stand-in for the driver: the bytes, the way that they took, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import threading

import pytest
from cuda_standins import StandIn

import weightfs.cuda as cuda
from weightfs.cuda import device, gds, layout, machine, registration, transfer

MIB = 1 << 20
#: Those of a direct upload and of the fallbacks, each with an error as the driver gives it.
COPYING = [
    "cuStreamCreate", "cuMemHostRegister_v2", "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuMemHostAlloc",
    "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuMemHostUnregister", "cuMemFreeHost",
    "cuEventDestroy_v2", "cuStreamDestroy_v2",
]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Each test meets the driver for the first time, and small pieces make small files do."""
    monkeypatch.setattr(registration, "PIECE", 2 * MIB)
    monkeypatch.setattr(transfer, "PIECE", 2 * MIB)
    monkeypatch.setattr(registration, "registrations", registration.Registrations(1 << 40))
    monkeypatch.setattr(gds, "_said", False)
    machine.forget()
    yield
    registration.registrations.drop_all()
    device.close_contexts()
    machine.forget()


@pytest.fixture
def standin(tmp_path, monkeypatch):
    return StandIn(tmp_path, monkeypatch)


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(random.Random(1).randbytes(9 * MIB + 1234))
    return path


def tensors_of(path):
    """Some that lie side by side, with gaps, overlapping, empty, unaligned to one another, and to the very end."""
    size = path.stat().st_size
    return {
        "a": (1000, 3 * MIB), "b": (1000 + 3 * MIB, 17), "c": (1000 + 3 * MIB + 17, 2 * MIB), "empty": (5, 0),
        "inside": (2000, 64), "across": (3 * MIB, 2 * MIB), "end": (size - 3 * MIB, 3 * MIB), "last": (size - 1, 1),
    }


def check(path, tensors, loaded):
    data = path.read_bytes()
    for name, (offset, size) in tensors.items():
        assert loaded.buffer.read(loaded.places[name], size) == data[offset:offset + size], name


def finish(standin, loaded=None):
    """Gives everything back and sees that nothing is left."""
    if loaded is not None:
        loaded.buffer.free()
    cuda.release()
    device.close_contexts()
    assert standin.live() == {}


def test_resident_pages_are_copied_with_nothing_in_between(standin, model):
    tensors = tensors_of(model)
    loaded = cuda.upload(model, tensors, "cuda:0", direct=True)
    check(model, tensors, loaded)
    report = loaded.report
    assert (report.path, report.ring_bytes, report.pageable_bytes, report.notes) == ("direct", 0, 0, [])
    assert report.direct_bytes >= sum(size for _, size in tensors.values()) - 2 * MIB - 100
    assert report.gb_per_s > 0 and "by direct" in str(report)
    calls = standin.calls()
    assert not [call for call in calls if call.startswith("pageable")]
    # Read-only (8) and portable (1).
    assert all(call.endswith("flags 9") for call in calls if call.startswith("registered"))
    order = [next(i for i, call in enumerate(calls) if call == name)
             for name in ("cuInit", "cuDevicePrimaryCtxRetain", "cuMemAlloc_v2", "cuMemHostRegister_v2",
                          "cuMemcpyHtoDAsync_v2", "cuStreamSynchronize", "cuStreamDestroy_v2")]
    assert order == sorted(order)
    assert "cuMemHostAlloc" not in calls
    finish(standin, loaded)
    assert standin.calls().count("cuMemHostUnregister") == sum(c.startswith("registered") for c in calls)


def test_registrations_are_used_again_until_the_file_changes(standin, model):
    tensors = {"all": (0, model.stat().st_size)}
    first = cuda.upload(model, tensors, direct=True)
    registered = registration.registrations.registered
    assert registered == 5 and registration.registrations.bytes == model.stat().st_size
    second = cuda.upload(model, tensors, direct=True)
    assert (registration.registrations.registered, registration.registrations.reused) == (registered, registered)
    check(model, tensors, second)
    model.write_bytes(os.urandom(4 * MIB))
    third = cuda.upload(model, {"all": (0, 4 * MIB)}, direct=True)
    check(model, {"all": (0, 4 * MIB)}, third)
    assert registration.registrations.bytes == 4 * MIB
    for loaded in (first, second):
        loaded.buffer.free()
    finish(standin, third)


def test_a_limit_on_what_stays_registered_is_kept_and_a_part_is_found_again(standin, model):
    cuda.set_registered_limit(4 * MIB)
    tensors = {"all": (0, model.stat().st_size)}
    loaded = cuda.upload(model, tensors, direct=True)
    check(model, tensors, loaded)
    assert loaded.report.direct_bytes == model.stat().st_size
    assert registration.registrations.bytes <= 4 * MIB
    loaded.buffer.free()
    again = cuda.upload(model, tensors, direct=True)
    assert registration.registrations.reused >= 1
    check(model, tensors, again)
    finish(standin, again)
    with pytest.raises(ValueError):
        cuda.set_registered_limit(-1)


def test_pieces_that_the_driver_refuses_go_through_the_ring(standin, model):
    standin.script(f"register_bytes={4 * MIB}")
    tensors = {"all": (0, model.stat().st_size)}
    loaded = cuda.upload(model, tensors, direct=True)
    check(model, tensors, loaded)
    assert loaded.report.direct_bytes == 4 * MIB
    assert loaded.report.ring_bytes == model.stat().st_size - 4 * MIB
    assert any("could not be registered" in note for note in loaded.report.notes)
    finish(standin, loaded)
    standin.script("register_number=1")
    loaded = cuda.upload(model, tensors, direct=True)
    check(model, tensors, loaded)
    assert loaded.report.direct_bytes == 2 * MIB
    finish(standin, loaded)


def test_memory_that_may_only_be_read_needs_a_device_that_says_so(tmp_path, monkeypatch, model):
    standin = StandIn(tmp_path, monkeypatch, "read_only=0")
    tensors = {"all": (0, model.stat().st_size)}
    loaded = cuda.upload(model, tensors, direct=True)
    check(model, tensors, loaded)
    assert loaded.report.path == "ring"
    finish(standin, loaded)


def test_files_that_are_not_resident_go_through_the_ring(standin, model):
    tensors = tensors_of(model)
    loaded = cuda.upload(model, tensors)
    check(model, tensors, loaded)
    assert (loaded.report.path, loaded.report.direct_bytes, loaded.report.pageable_bytes) == ("ring", 0, 0)
    assert not [call for call in standin.calls() if call.startswith(("registered", "pageable"))]
    finish(standin, loaded)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("which", [0, 1, 5])
@pytest.mark.parametrize("function", COPYING)
def test_every_failure_on_the_way_has_another_way(standin, monkeypatch, model, function, which, direct):
    known = machine.Device("Stand-in 0", 1 << 30, registers=True, registers_read_only=True)
    # Saves the process that looks.
    monkeypatch.setattr(machine, "_known", machine.Probe(12080, (known,)))
    tensors = tensors_of(model)
    standin.script(f"fail={function}:{which}:999")
    loaded = cuda.upload(model, tensors, direct=direct)
    check(model, tensors, loaded)
    spans = layout.plan(tensors, model.stat().st_size).spans
    assert loaded.report.bytes == sum(span.size for span in spans)
    standin.script("")
    finish_all_but_refused(standin, loaded, function)


def finish_all_but_refused(standin, loaded, function):
    """What the driver refused to take back, nobody can give back."""
    loaded.buffer.free()
    cuda.release()
    device.close_contexts()
    refused = {"cuMemFreeHost": "host allocations", "cuEventDestroy_v2": "events", "cuStreamDestroy_v2": "streams"}
    live = standin.live()
    live.pop(refused.get(function, ""), None)
    assert live == {}


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("function", [
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuMemAlloc_v2", "cuMemGetInfo_v2",
    "cuCtxPopCurrent_v2",
])
def test_failures_without_another_way_are_errors_and_leave_nothing(standin, model, function, which):
    tensors = tensors_of(model)
    standin.script(f"fail={function}:{which}:999")
    loaded = None
    with contextlib.suppress(cuda.CudaError, cuda.CudaUnavailable):
        loaded = cuda.upload(model, tensors, direct=True)
        check(model, tensors, loaded)
    standin.script("")
    finish(standin, loaded)


def test_when_even_the_last_way_fails_it_is_an_error(standin, model):
    standin.script("fail=cuMemcpyHtoDAsync_v2:0:999 fail=cuMemcpyHtoD_v2:2:999")
    with pytest.raises(cuda.CudaError, match="cuMemcpyHtoD_v2 failed with CUDA_ERROR_UNKNOWN"):
        cuda.upload(model, tensors_of(model), direct=True)
    standin.script("")
    finish(standin)


def test_full_memory_says_how_much_is_missing(standin, model):
    standin.script(f"vram={4 * MIB}")
    with pytest.raises(cuda.CudaError, match=f"{4 * MIB} bytes free of the {model.stat().st_size}"):
        cuda.upload(model, {"all": (0, model.stat().st_size)})
    finish(standin)


@pytest.mark.parametrize("missing", [
    ("cuMemHostRegister_v2",), ("cuMemHostUnregister",), ("cuMemHostAlloc", "cuMemHostRegister_v2"),
    ("cuMemFreeHost", "cuGetErrorName"),
])
def test_functions_that_an_older_driver_lacks_cost_only_their_way(tmp_path, monkeypatch, model, missing):
    standin = StandIn(tmp_path, monkeypatch, missing=missing)
    tensors = tensors_of(model)
    loaded = cuda.upload(model, tensors, direct=True)
    check(model, tensors, loaded)
    assert loaded.report.notes or "cuMemFreeHost" in missing
    if "cuMemFreeHost" not in missing:
        finish(standin, loaded)


def test_bad_ranges_and_short_files_are_errors(standin, model, tmp_path):
    size = model.stat().st_size
    for bad in [(size, 1), (-1, 5), (0, size + 1), (5, -1)]:
        with pytest.raises(ValueError, match="does not lie in the file"):
            cuda.upload(model, {"bad": bad})
    with pytest.raises(FileNotFoundError):
        cuda.upload(tmp_path / "nothing", {})
    with pytest.raises(ValueError, match="none of True"):
        cuda.upload(model, {}, gds="maybe")
    short = memoryview(bytearray(100))
    with open(model, "rb") as file, pytest.raises(OSError, match="cut short"):
        transfer.read_full(file.fileno(), short, size - 50)
    assert cuda.upload(model, {"none": (0, 0)}, direct=True).report.path == "none"
    finish(standin)


def test_several_threads_load_at_once(standin, model):
    tensors = tensors_of(model)
    results = []

    def load(direct):
        results.append(cuda.upload(model, tensors, direct=direct))

    threads = [threading.Thread(target=load, args=(number % 2 == 0,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for loaded in results:
        check(model, tensors, loaded)
        loaded.buffer.free()
    finish(standin)


def test_memory_goes_with_its_last_reference(standin, model):
    loaded = cuda.upload(model, tensors_of(model))
    infos = {"a": ("F32", (3 * MIB // 4,), 3 * MIB), "inside": ("BF16", (8, 4), 64)}
    made = cuda.tensors_of(loaded, infos)
    del loaded
    assert standin.live()["allocations"] == 1
    shown = made["a"].__cuda_array_interface__
    assert (shown["shape"], shown["typestr"], shown["data"]) == ((3 * MIB // 4,), "<f4", (made["a"].pointer, False))
    assert made["inside"].to_bytes() == model.read_bytes()[2000:2064] and made["inside"].device == "cuda:0"
    assert not hasattr(made["inside"], "__cuda_array_interface__")
    del made
    assert "allocations" not in standin.live()
    finish(standin)


def test_a_forked_child_leaves_its_parents_memory_alone(standin, model):
    loaded = cuda.upload(model, tensors_of(model), direct=True)
    child = os.fork()
    if child == 0:
        loaded.buffer.free()
        cuda.release()
        os._exit(0 if not [call for call in standin.calls() if call] else 1)
    assert os.waitpid(child, 0)[1] == 0
    check(model, tensors_of(model), loaded)
    finish(standin, loaded)


def test_gds_asked_for_and_impossible_is_an_error_that_says_how_to_turn_it_off(standin, model):
    with pytest.raises(cuda.GdsUnavailable, match="gds=False"):
        cuda.upload(model, tensors_of(model), gds=True)
    refuse = lambda body: {"state": "failed", "detail": "there is no nvidia-fs", "bytes_done": 0}  # noqa: E731
    with pytest.raises(cuda.GdsUnavailable, match="there is no nvidia-fs.*gds='auto'"):
        cuda.upload(model, tensors_of(model), gds=True, request=refuse)
    with pytest.warns(UserWarning, match="there is no nvidia-fs"):
        loaded = cuda.upload(model, tensors_of(model), gds="auto", request=refuse)
    check(model, tensors_of(model), loaded)
    assert loaded.report.path == "ring" and "nvidia-fs" in str(loaded.report)
    # Once is enough.
    cuda.upload(model, tensors_of(model), gds="auto", request=refuse).buffer.free()
    finish(standin, loaded)


def test_gds_hands_the_daemon_the_memory_and_the_spans(standin, model):
    tensors = tensors_of(model)
    asked = []

    def fill(body):
        asked.append(body)
        return {"state": "done", "bytes_done": sum(size for _, size, _ in body["into"]["spans"])}

    loaded = cuda.upload(model, tensors, "cuda:0", gds=True, request=fill)
    spans = layout.plan(tensors, model.stat().st_size).spans
    [body] = asked
    assert (body["paths"], body["to"], body["into"]["size_bytes"]) == ([str(model)], "cuda:0", loaded.buffer.size)
    assert body["into"]["spans"] == [[span.start, span.size, span.at] for span in spans]
    assert len(bytes.fromhex(body["into"]["handle"])) == 64
    assert (loaded.report.path, loaded.report.gds_bytes) == ("gds", sum(span.size for span in spans))
    finish(standin, loaded)
