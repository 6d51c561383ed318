"""Torch on the CPU: views that nothing can go wrong with, and checkpoints that torch itself has written."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mounts
import pytest
import samples

import weightfs
from weightfs import read_header
from weightfs.convert import convert

torch = pytest.importorskip("torch", reason="TORCH TESTS SKIPPED: no torch; 'make test-torch' installs it")
safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.torch
ROOT = Path(__file__).resolve().parents[1]


def data(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def anonymous() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1])
    raise KeyError


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    samples.write(folder / "kinds.safetensors", samples.kinds())
    samples.write(folder / "large.safetensors", samples.large(48))
    rare = {
        "bf16": ("BF16", [600_000], samples.noise(1, 1_200_000)), "e4m3": ("F8_E4M3", [7], samples.noise(2, 7)),
        "e5m2": ("F8_E5M2", [9], samples.noise(3, 9)),
    }  # fmt: skip
    samples.write(folder / "rare.safetensors", rare)
    return folder


@pytest.mark.mounted
@pytest.mark.parametrize("name", ["kinds", "large", "rare"])
def test_every_tensor_is_what_safetensors_gives(mount: mounts.Mount, name: str) -> None:
    source = mount.source / f"{name}.safetensors"
    theirs = safetensors.load_file(source)
    for resident in (False, True):
        if resident:
            mount.fill(f"{name}.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ours = weightfs.load_file(mount.path / f"{name}.safetensors")
        assert list(ours) == list(read_header(source).tensors) and set(ours) == set(theirs)
        for key, tensor in theirs.items():
            assert (ours[key].dtype, ours[key].shape) == (tensor.dtype, tensor.shape)
            assert data(ours[key]) == data(tensor), key


@pytest.mark.mounted
def test_writing_to_a_view_never_reaches_anybody_else(mount: mounts.Mount) -> None:
    mount.fill("large.safetensors")
    path = mount.path / "large.safetensors"
    before = hashlib.sha256(path.read_bytes()).digest()
    with weightfs.open(path, "pt") as file:
        assert file.zero_copy
        tensors = file.get_tensors()
    start = anonymous()
    total = sum(float(tensor.view(torch.uint8)[::4096].float().sum()) for tensor in tensors.values())
    # 48 MiB have been read; nothing but what torch itself took has become this process' own.
    assert total > 0 and anonymous() - start < 8 << 10
    tensors["block.0.weight"][1000] = 5
    tensors["block.1.weight"].zero_()
    assert float(tensors["block.0.weight"][1000]) == 5 and not tensors["block.1.weight"].any()
    assert hashlib.sha256(path.read_bytes()).digest() == before
    again = weightfs.load(path)
    assert data(again["block.1.weight"]) == samples.large(48)["block.1.weight"][2]
    copy = weightfs.load(path, copy=True)["block.2.weight"]
    copy.zero_()
    assert data(again["block.2.weight"]) == samples.large(48)["block.2.weight"][2]


@pytest.fixture
def patched() -> Iterator[list[str]]:
    yield weightfs.patch()
    weightfs.unpatch()


@pytest.mark.mounted
def test_patched_load_file(mount: mounts.Mount, patched: list[str]) -> None:
    assert "safetensors.torch.load_file" in patched
    mount.fill("large.safetensors")
    expected = samples.large(48)
    loaded = safetensors.load_file(mount.path / "large.safetensors")
    assert all(data(loaded[name]) == content for name, (_, _, content) in expected.items())
    with safetensors.safe_open(mount.path / "large.safetensors", framework="pt") as file:
        assert isinstance(file, weightfs.open)
        assert data(file.get_slice("block.3.weight")[10:20]) == expected["block.3.weight"][2][40:80]
    assert data(safetensors.load_file(mount.source / "large.safetensors", device="cpu")["block.0.weight"])
    weightfs.unpatch()
    assert safetensors.load_file.__module__ == "safetensors.torch"


def module() -> Any:
    torch.manual_seed(1)
    made = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 50), torch.nn.BatchNorm1d(3))
    made[1].weight = made[0].weight  # tied
    return made.half()


def state() -> dict[str, Any]:
    base = torch.arange(60.0).reshape(3, 4, 5)
    weights = module().state_dict()
    weights |= {
        "transposed": base.permute(2, 0, 1), "cut": base[1:, ::2, 1:4], "expanded": base[0, 0].expand(6, 5),
        "scalar": torch.tensor(4), "bool": torch.tensor([True, False]), "bf16": torch.randn(5).bfloat16(),
        "e4m3": torch.randn(6).to(torch.float8_e4m3fn), "u16": torch.tensor([1, 65535], dtype=torch.uint16),
        "c64": torch.randn(3, dtype=torch.complex64), "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }  # fmt: skip
    return weights


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("wrap", [False, True])
def test_checkpoints_of_torch_are_converted(tmp_path: Path, legacy: bool, wrap: bool) -> None:
    weights = state()
    if legacy:
        # The old form cannot hold these.
        weights = {name: value for name, value in weights.items() if name not in ("e4m3", "u16")}
    root = {"state_dict": weights, "optimizer": {"lr": 0.1}, "epoch": 2} if wrap else weights
    torch.save(root, tmp_path / "m.ckpt", _use_new_zipfile_serialization=not legacy)
    convert(tmp_path / "m.ckpt")
    found = safetensors.load_file(tmp_path / "m.safetensors")
    assert set(found) == set(weights)
    for name, value in weights.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert data(found[name]) == data(value.detach()), name


def test_a_conversion_imports_no_torch(tmp_path: Path) -> None:
    torch.save(module().state_dict(), tmp_path / "m.pt")
    code = "import sys, weightfs.convert as c; c.convert(sys.argv[1]); assert not {'torch', 'numpy'} & set(sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, tmp_path / "m.pt"], check=True, env=environment)


@pytest.mark.mounted
def test_transformers_loads_views_when_patched(tmp_path: Path) -> None:
    """The equivalents in other packages: whatever they import from safetensors."""
    transformers = pytest.importorskip("transformers")
    import transformers.modeling_utils as user

    size = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=3000, **size))
    model.save_pretrained(tmp_path / "models/bert")
    mounts.settle()
    with mounts.mounted(tmp_path / "models", "--ram", "128MiB", "--reserve", "64MiB") as mount:
        mount.fill("bert/model.safetensors")
        theirs = user.safe_open
        opened: list[Any] = []
        try:
            places = weightfs.patch()
            assert "transformers.modeling_utils.safe_open" in places
            ours = user.safe_open

            def watched(*arguments: Any, **named: Any) -> Any:
                opened.append(ours(*arguments, **named))
                return opened[-1]

            user.safe_open = watched
            loaded = transformers.BertModel.from_pretrained(mount.path / "bert")
            user.safe_open = ours
        finally:
            weightfs.unpatch()
        assert user.safe_open is theirs
        assert any(isinstance(file, weightfs.open) and file.zero_copy for file in opened)
        expected = model.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
        opened.clear()
