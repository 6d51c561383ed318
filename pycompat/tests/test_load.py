"""Tensors out of a mount: the right bytes, and no copy of them."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import samples

import weightfs
from weightfs import patching

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.mounted
MIB = 1 << 20


@pytest.fixture
def large(mount: mounts.Mount) -> Path:
    mount.fill("large.safetensors")
    return mount.path / "large.safetensors"


def data(array: Any) -> bytes:
    return numpy.ascontiguousarray(array).tobytes()


def kilobytes(name: str, source: str = "/proc/self/smaps_rollup") -> int:
    for line in Path(source).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def page_frame(address: int) -> int:
    """The physical page behind an address of this process."""
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(address // 4096 * 8)
        (entry,) = struct.unpack("<Q", file.read(8))
    assert entry >> 63 & 1, "the page is not present"
    return int(entry & ((1 << 55) - 1))


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def test_every_tensor_equals_the_source_resident_or_not(mount: mounts.Mount, large: Path) -> None:
    mount.fill("kinds.safetensors")
    for path in (large, mount.path / "kinds.safetensors", mount.source / "large.safetensors"):
        expected = samples.kinds() if path.name.startswith("kinds") else samples.large(48)
        loaded = weightfs.load(path, framework="np")
        assert list(loaded) == list(expected)
        for name, (_, shape, content) in expected.items():
            assert list(loaded[name].shape) == shape and data(loaded[name]) == content, name


def test_loading_copies_nothing(large: Path) -> None:
    for array in weightfs.load(large, framework="np").values():
        array.view(numpy.uint8)[::1024].sum()
    anonymous, shmem = kilobytes("Anonymous"), kilobytes("Shmem", "/proc/meminfo")
    cached = kilobytes("Cached", "/proc/meminfo") - shmem
    with weightfs.open(large, "np") as file:
        assert file.zero_copy
        arrays = file.get_tensors()
    seen = sum(int(array.view(numpy.uint8)[::64].sum()) for array in arrays.values())
    assert seen > 0
    # Half a MiB for Python and numpy themselves, of 48 MiB.
    assert kilobytes("Anonymous") - anonymous < 512
    assert kilobytes("Private_Dirty") < kilobytes("Pss") and kilobytes("Rss") > 48 << 10
    assert kilobytes("Shmem", "/proc/meminfo") - shmem < 24 << 10
    assert kilobytes("Cached", "/proc/meminfo") - kilobytes("Shmem", "/proc/meminfo") - cached < 24 << 10


def test_two_loads_and_both_ways_of_mapping_see_the_same_pages(large: Path) -> None:
    read_only = weightfs.load(large, framework="np")
    again = weightfs.load(large, framework="np", writable=True)
    for name, array in read_only.items():
        middle = array.nbytes // 2 // 4096 * 4096
        first, second = address(array) + middle, address(again[name]) + middle
        assert data(array[middle // 4 :][:1]) == data(again[name][middle // 4 :][:1])
        assert page_frame(first) == page_frame(second) != 0


def test_writing_to_a_view_is_an_error_or_a_private_copy(mount: mounts.Mount, large: Path) -> None:
    before = hashlib.sha256(large.read_bytes()).digest()
    array = weightfs.load(large, framework="np")["block.0.weight"]
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError):
        array.setflags(write=True)
    anonymous = kilobytes("Anonymous")
    mine = weightfs.load(large, framework="np", writable=True)["block.0.weight"]
    old = float(mine[5000])
    mine[5000] = 7.5
    assert mine[5000] == 7.5
    # One page, not the model; 2 MiB where the kernel takes a large one for it.
    assert kilobytes("Anonymous") - anonymous < 4 << 10
    assert struct.pack("<f", weightfs.load(large, framework="np")["block.0.weight"][5000]) == struct.pack("<f", old)
    assert hashlib.sha256(large.read_bytes()).digest() == before
    assert (mount.source / "large.safetensors").read_bytes() == large.read_bytes()


def test_without_passthrough_the_bytes_are_the_same(library: Path) -> None:
    with mounts.mounted(library, "--ram", "128MiB", "--reserve", "64MiB", "--no-passthrough") as mount:
        mount.fill("large.safetensors")
        for writable in (False, True):
            loaded = weightfs.load(mount.path / "large.safetensors", framework="np", writable=writable)
            assert all(data(loaded[name]) == content for name, (_, _, content) in samples.large(48).items())


def test_a_copy_on_request_is_one(large: Path) -> None:
    view = weightfs.load(large, framework="np")["block.0.weight"]
    copy = weightfs.load(large, framework="np", copy=True)["block.0.weight"]
    assert copy.flags.owndata and data(copy) == data(view)
    view.view(numpy.uint8)[::4096].max()
    assert page_frame(address(copy) + (2 << 20)) != page_frame(address(view) + (2 << 20))
    copy[0] = 1
    assert data(view[:1]) == samples.large(48)["block.0.weight"][2][:4]


def test_views_outlive_the_file_and_keep_its_content(mount: mounts.Mount, library: Path) -> None:
    samples.write(library / "short.safetensors", samples.large(4, seed=50))
    mounts.settle()
    mount.fill("short.safetensors")
    file = weightfs.open(mount.path / "short.safetensors", "np")
    assert file.zero_copy
    array = file.get_tensor("block.3.weight")
    del file
    samples.write(library / "new", samples.large(4, seed=90))
    os.replace(library / "new", library / "short.safetensors")
    assert data(array) == samples.large(4, seed=50)["block.3.weight"][2]
    fresh = weightfs.load(mount.path / "short.safetensors", framework="np")["block.3.weight"]
    assert data(fresh) == samples.large(4, seed=90)["block.3.weight"][2]


def test_open_is_what_safe_open_is(large: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    with weightfs.open(large, framework="numpy") as ours, safetensors.safe_open(large, framework="numpy") as theirs:
        assert list(ours.keys()) == list(theirs.keys())
        assert list(ours.offset_keys()) == list(theirs.offset_keys())
        assert ours.metadata() == theirs.metadata()
        for name in theirs.keys():  # noqa: SIM118 - it is no dictionary
            assert data(ours.get_tensor(name)) == data(theirs.get_tensor(name))
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert (list(one.get_shape()), one.get_dtype()) == (list(other.get_shape()), other.get_dtype())
            assert data(one[3:9]) == data(other[3:9])
        assert "block.0.weight" in ours and "none" not in ours
        with pytest.raises(KeyError, match="none"):
            ours.get_tensor("none")


def test_bits_of_types_that_numpy_lacks(tmp_path: Path) -> None:
    samples.write(tmp_path / "m", {"a": ("BF16", [2], b"\x80\x3f\x00\x40"), "b": ("F8_E4M3", [3], b"abc")})
    raw = weightfs.load(tmp_path / "m", framework="np", raw=True)
    assert raw["a"].dtype == numpy.uint16 and raw["a"].tolist() == [0x3F80, 0x4000]
    assert raw["b"].tobytes() == b"abc"


def test_what_is_no_model_is_a_clear_error(mount: mounts.Mount, library: Path) -> None:
    (library / "half.safetensors").write_bytes((library / "large.safetensors").read_bytes()[: 2 * MIB])
    with pytest.raises(weightfs.InvalidFile, match=r"half\.safetensors"):
        weightfs.load(mount.path / "half.safetensors", framework="np")
    with pytest.raises(FileNotFoundError):
        weightfs.load(mount.path / "none.safetensors", framework="np")
    with pytest.raises(ValueError, match="framework"):
        weightfs.load(library / "large.safetensors", framework="jax")


@pytest.fixture
def unpatched() -> Iterator[None]:
    yield
    weightfs.unpatch()


def test_patched_safetensors_gives_views_and_is_put_back(large: Path, tmp_path: Path, unpatched: None) -> None:
    safetensors = pytest.importorskip("safetensors")
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(large.read_bytes())

    theirs = safetensors.safe_open
    # As diffusers and transformers import it: under a name of their own.
    other = types.ModuleType("transformers.stand_in")
    other.safe_open = theirs  # type: ignore[attr-defined]
    sys.modules["transformers.stand_in"] = other
    try:
        places = weightfs.patch()
        assert "safetensors.safe_open" in places and "transformers.stand_in.safe_open" in places
        assert weightfs.patch() == []
        with other.safe_open(large, framework="np") as file:  # type: ignore[attr-defined]
            assert isinstance(file, weightfs.open) and file.zero_copy
        with safetensors.safe_open(plain, framework="np") as file:
            assert not isinstance(file, weightfs.open) and file.get_tensor("block.0.weight").size
        weightfs.unpatch()
        assert safetensors.safe_open is theirs and other.safe_open is theirs  # type: ignore[attr-defined]
        assert patching._replaced == []
    finally:
        del sys.modules["transformers.stand_in"]

