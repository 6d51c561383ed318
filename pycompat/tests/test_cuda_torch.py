"""What torch makes of an upload: real tensors over the memory of the stand-in, which is host memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import samples
from cuda_standins import StandIn

import weightfs
from weightfs import cuda
from weightfs.cuda import device, files, machine, registration, tensors
from weightfs.frameworks import UnsupportedType

torch = pytest.importorskip("torch", reason="TORCH TESTS SKIPPED: no torch; 'make test-torch' installs it")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def standin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A torch that takes the stand-in for a device, in the one call that needs one: all that follows is torch's own."""
    monkeypatch.setattr(registration, "registrations", registration.Registrations(1 << 40))
    machine.forget()
    made = StandIn(tmp_path, monkeypatch)
    for module in (tensors, files):
        monkeypatch.setattr(module, "has_torch", lambda: True)
    theirs = torch.as_tensor

    def as_tensor(given: Any, **named: Any) -> Any:
        if not isinstance(given, device.DeviceBuffer):
            return theirs(given, **named)
        assert named == {"device": "cuda:0"}
        array = given.__cuda_array_interface__
        assert (array["typestr"], array["version"], array["strides"]) == ("|u1", 3, None)
        memory = (ctypes.c_ubyte * array["shape"][0]).from_address(array["data"][0])
        # As torch does, until the last of its tensors is gone.
        memory.owner = given
        return torch.frombuffer(memory, dtype=torch.uint8)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    yield made
    registration.registrations.drop_all()
    device.close_contexts()
    machine.forget()


def data(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("name", ["kinds", "large", "rare"])
def test_tensors_on_the_device_are_what_safetensors_gives(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.safetensors"
    rare = {
        "bf16": ("BF16", [3, 200_000], samples.noise(1, 1_200_000)), "e4m3": ("F8_E4M3", [7], samples.noise(2, 7)),
        "e5m2": ("F8_E5M2", [9], samples.noise(3, 9)),
    }  # fmt: skip
    samples.write(path, {"kinds": samples.kinds, "large": lambda: samples.large(8), "rare": lambda: rare}[name]())
    theirs = safetensors.load_file(path)
    ours = weightfs.load(path, "cuda:0")
    assert set(ours) == set(theirs)
    for key, tensor in theirs.items():
        assert (ours[key].dtype, ours[key].shape) == (tensor.dtype, tensor.shape), key
        assert data(ours[key]) == data(tensor), key


def test_any_alignment_in_the_file_is_one_that_torch_can_view(tmp_path: Path) -> None:
    pick = random.Random(3)
    path = tmp_path / "model.bin"
    path.write_bytes(pick.randbytes(300_000))
    sizes = {"F64": 8, "C64": 8, "F32": 4, "I64": 8, "BF16": 2, "F16": 2, "I8": 1, "BOOL": 1, "F8_E4M3": 1}
    infos, ranges, alignments = {}, {}, {}
    for number in range(60):
        dtype, width = pick.choice(list(sizes.items()))
        shape = tuple(pick.choice([(), (0,), (5,), (3, 7), (2, 1, 4)]))
        size = width
        for length in shape:
            size *= length
        name = f"t{number}"
        # Formats align tensors to their elements, from wherever the data begins.
        ranges[name] = (pick.randrange(3, 200_000), size)
        infos[name], alignments[name] = (dtype, shape, size), max(16, width)
    done = cuda.upload(path, ranges, "cuda:0", alignments=alignments)
    found = cuda.tensors_of(done, infos)
    content = path.read_bytes()
    for name, (dtype, shape, size) in infos.items():
        start = ranges[name][0]
        assert tuple(found[name].shape) == shape, (name, dtype)
        assert data(found[name]) == content[start : start + size], (name, dtype)


def test_two_to_a_byte_and_what_torch_has_no_type_for(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(range(64)))
    done = cuda.upload(path, {"w": (8, 12)}, "cuda:0")
    if hasattr(torch, "float4_e2m1fn_x2"):
        found = cuda.tensors_of(done, {"w": ("F4", (3, 8), 12)})["w"]
        assert (tuple(found.shape), found.dtype) == ((3, 4), torch.float4_e2m1fn_x2)
        assert bytes(found.view(torch.uint8).reshape(-1).numpy()) == bytes(range(8, 20))
    with pytest.raises(UnsupportedType, match="no type for F6_E2M3"):
        cuda.tensors_of(done, {"w": ("F6_E2M3", (16,), 12)})


def test_memory_of_the_device_lives_as_long_as_the_last_tensor(tmp_path: Path, standin: StandIn) -> None:
    path = tmp_path / "large.safetensors"
    samples.write(path, samples.large(4))
    expected = samples.large(4)
    loaded = weightfs.load(path, "cuda:0")
    name, kept = next(iter(loaded.items()))
    part = kept.reshape(-1)[10:]
    del loaded, kept
    assert standin.live()["allocations"] == 1
    assert data(part) == expected[name][2][-part.numel() * part.element_size() :]
    del part
    assert "allocations" not in standin.live()


def test_where_nothing_can_be_uploaded_torch_loads_in_its_own_way(tmp_path: Path, standin: StandIn) -> None:
    path = tmp_path / "large.safetensors"
    samples.write(path, samples.large(4))
    standin.script("fail=cuMemAlloc_v2:0:2")
    asked: list[bool] = []

    def ordinary() -> dict[str, Any]:
        asked.append(True)
        return dict(safetensors.load_file(path))

    assert set(files.load(path, "cuda:0", ordinary=ordinary)) == set(samples.large(4)) and asked == [True]
    with pytest.raises(cuda.CudaError, match="OUT_OF_MEMORY"):
        files.load(path, "cuda:0")
