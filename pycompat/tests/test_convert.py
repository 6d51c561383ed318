"""Checkpoints become safetensors, or are refused for a reason that says what to do."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import samples
from checkpoints import Bytes, View, whole

from weightfs import read_header
from weightfs.convert import CannotConvert, convert
from weightfs.convert.__main__ import main

numpy = pytest.importorskip("numpy")


def tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    content = path.read_bytes()
    header = read_header(path)
    return {t.name: (t.dtype, t.shape, content[t.start : t.end]) for t in header.tensors.values()}


def weights() -> OrderedDict[str, Any]:
    noise = samples.noise(1, 240)
    return OrderedDict(
        first=whole("0", "F32", (3, 5), noise[:60]),
        scalar=whole("1", "I64", (), noise[:8]),
        empty=whole("2", "F16", (0, 4), b""),
        trained=whole("3", "F16", (30, 4), noise, parameter=True),
    )


@pytest.mark.parametrize("save", [checkpoints.save, checkpoints.save_legacy])
@pytest.mark.parametrize("wrap", [lambda w: w, lambda w: {"state_dict": w, "epoch": 3}, lambda w: {"net_g": w}])
def test_every_byte_arrives(tmp_path: Path, save: Any, wrap: Any) -> None:
    save(tmp_path / "m.ckpt", wrap(weights()))
    done = convert(tmp_path / "m.ckpt")
    assert done.path == str(tmp_path / "m.safetensors") and done.tensors == 4
    found = tensors(tmp_path / "m.safetensors")
    noise = samples.noise(1, 240)
    assert found == {
        "first": ("F32", (3, 5), noise[:60]),
        "scalar": ("I64", (), noise[:8]),
        "empty": ("F16", (0, 4), b""),
        "trained": ("F16", (30, 4), noise),
    }
    assert sorted(os.listdir(tmp_path)) == ["m.ckpt", "m.safetensors"]


def test_views_are_gathered_as_numpy_gathers_them(tmp_path: Path) -> None:
    chance = random.Random(3)
    root: dict[str, Any] = {}
    expected = {}
    for number in range(60):
        dtype, kind, size = chance.choice([("F32", "<u4", 4), ("F16", "<u2", 2), ("I64", "<u8", 8), ("U8", "u1", 1)])
        base = numpy.frombuffer(samples.noise(number, 24 * 20 * 6 * size), kind).reshape(24, 20, 6)
        axes = chance.sample(range(3), 3)
        cut = [slice(chance.randrange(3), chance.randrange(4, 7), chance.randint(1, 3)) for _ in range(3)]
        array = base.transpose(axes)[tuple(cut)]
        if chance.random() < 0.2:
            array = numpy.broadcast_to(array[:, :1], array.shape)
        start = (array.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // size
        stride = tuple(step // size for step in array.strides)
        root[f"t{number}"] = View(Bytes(str(number), dtype, base.tobytes()), array.shape, stride, start)
        expected[f"t{number}"] = array
    checkpoints.save(tmp_path / "m.pt", root)
    convert(tmp_path / "m.pt")
    found = tensors(tmp_path / "m.safetensors")
    for name, array in expected.items():
        assert found[name][1] == array.shape and found[name][2] == array.tobytes(), name


def test_a_view_larger_than_a_piece(tmp_path: Path) -> None:
    base = numpy.arange(3 << 20, dtype="<u4").reshape(3, 1 << 20)
    checkpoints.save(tmp_path / "m.pt", {"t": View(Bytes("0", "F32", base.tobytes()), (1 << 20, 3), (1, 1 << 20))})
    convert(tmp_path / "m.pt")
    assert tensors(tmp_path / "m.safetensors")["t"][2] == base.T.tobytes()


def test_shared_tensors_each_get_their_bytes(tmp_path: Path) -> None:
    shared = Bytes("0", "F32", samples.noise(2, 64))
    checkpoints.save(tmp_path / "m.bin", {"a": View(shared, (16,), (1,)), "b": View(shared, (8,), (1,), 8)})
    convert(tmp_path / "m.bin")
    found = tensors(tmp_path / "m.safetensors")
    assert found["a"][2] == shared.data and found["b"][2] == shared.data[32:]


def test_nothing_of_a_checkpoint_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/ran",)

    class Built:
        def __reduce__(self) -> Any:
            return eval, (f"open('{tmp_path}/ran', 'w')",), {"state": 1}, iter([1]), iter([(1, 2)])

    root = {"state_dict": weights(), "hook": Evil(), "callbacks": [Built(), Evil()]}
    checkpoints.save(tmp_path / "m.ckpt", root)
    assert convert(tmp_path / "m.ckpt").tensors == 4
    checkpoints.save(tmp_path / "n.ckpt", {**weights(), "hook": Evil()})
    with pytest.raises(CannotConvert, match=r"hook \(an object posix.system\).*--skip-non-tensors"):
        convert(tmp_path / "n.ckpt")
    assert convert(tmp_path / "n.ckpt", skip_non_tensors=True).tensors == 4
    assert not (tmp_path / "ran").exists()


def test_where_the_weights_are_can_be_said(tmp_path: Path) -> None:
    both = {"model": {"ema": weights(), "raw": {"x": weights()["first"]}}, "other": {"y": weights()["first"]}}
    checkpoints.save(tmp_path / "m.pth", {"one": both["model"], "two": both["other"]})
    with pytest.raises(CannotConvert, match="--state-dict-key; at the top are one, two"):
        convert(tmp_path / "m.pth")
    assert convert(tmp_path / "m.pth", state_dict_key="one.ema").tensors == 4
    with pytest.raises(CannotConvert, match="there is no 'three'"):
        convert(tmp_path / "m.pth", tmp_path / "n", state_dict_key="three")


def test_what_cannot_be_converted_says_why(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"

    def refused(words: str) -> None:
        with pytest.raises(CannotConvert, match=words):
            convert(path, overwrite=True)
        assert [name for name in os.listdir(tmp_path) if "tmp" in name] == []

    path.write_bytes(b"")
    refused("no checkpoint")
    path.write_bytes(pickle.dumps({"a": 1}))
    refused("no checkpoint of PyTorch")
    samples.write(path, samples.large(1))
    refused("safetensors file already")
    checkpoints.save(path, weights(), byteorder=b"big")
    refused("big-endian")
    checkpoints.save(path, weights(), compression=zipfile.ZIP_DEFLATED)
    refused("compressed")
    checkpoints.save(path, [1, 2])
    refused("a list rather than weights by name")
    checkpoints.save(path, {"a": 1})
    refused("not clear")
    checkpoints.save(path, {"a": View(Bytes("0", "F32", bytes(16)), (5,), (1,))})
    refused("beyond its storage")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "no model")
    refused("no data.pkl")
    with tarfile.open(path, "w") as archive:
        archive.add(__file__, "storages")
    refused("0.1.10")
    checkpoints.save(path, weights())
    path.write_bytes(path.read_bytes()[:-400])
    refused("no checkpoint")
    checkpoints.save_legacy(path, weights())
    path.write_bytes(path.read_bytes()[:-40])
    refused("not complete")


def test_damage_gives_an_error_and_no_file(tmp_path: Path) -> None:
    chance = random.Random(4)
    for save in (checkpoints.save, checkpoints.save_legacy):
        save(tmp_path / "good", weights())
        good = (tmp_path / "good").read_bytes()
        for _ in range(150):
            damaged = bytearray(good)
            for _ in range(3):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            (tmp_path / "m.pt").write_bytes(damaged)
            try:
                convert(tmp_path / "m.pt", overwrite=True)
            except CannotConvert:
                assert [n for n in os.listdir(tmp_path) if n.endswith(".tmp")] == []


def test_what_is_there_is_not_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints.save(tmp_path / "m.pt", weights())
    (tmp_path / "m.safetensors").write_text("mine")
    assert main([str(tmp_path / "m.pt")]) == 1
    assert "--force" in capsys.readouterr().err and (tmp_path / "m.safetensors").read_text() == "mine"
    assert main([str(tmp_path / "m.pt"), "--force"]) == 0
    assert "every byte compared" in capsys.readouterr().out
    assert main([str(tmp_path / "none.pt")]) == 1


def test_memory_stays_small(tmp_path: Path) -> None:
    """Far below what the issue of memory is: the largest tensor here is 400 MiB."""
    size = 400 << 20
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        checkpoints.save(tmp_path / "small.pt", {"a": whole("0", "U8", (8,), bytes(8))})
        with zipfile.ZipFile(tmp_path / "small.pt") as small:
            # The number of elements, in the structure: a BININT1 of 8 becomes a BININT of 400 Mi.
            text = small.read("model/data.pkl")
        text = text.replace(b"K\x08", b"J" + size.to_bytes(4, "little"))
        archive.writestr("model/data.pkl", text)
        with archive.open("model/data/0", "w", force_zip64=True) as entry:
            for _ in range(size >> 20):
                entry.write(bytes(1 << 20))
    code = (
        "import sys; from weightfs.convert import convert; convert(sys.argv[1]);"
        # Not ru_maxrss, which begins with what the parent had before the program was started.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    root = Path(__file__).resolve().parents[1]
    result = subprocess.run([sys.executable, "-c", code, tmp_path / "m.pt"], cwd=root, capture_output=True, check=True)
    assert int(result.stdout) < 128 << 10
    assert (tmp_path / "m.safetensors").stat().st_size > size
    os.unlink(tmp_path / "m.safetensors")
