"""Damaged headers are refused before anything is believed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import samples

from weightfs import InvalidFile, read_header
from weightfs.header import parse


def test_what_is_in_a_file(tmp_path: Path) -> None:
    samples.write(tmp_path / "m", samples.kinds(), {"format": "pt"})
    header = read_header(tmp_path / "m")
    assert list(header.tensors) == list(samples.kinds()) and header.metadata == {"format": "pt"}
    content = (tmp_path / "m").read_bytes()
    for name, (dtype, shape, data) in samples.kinds().items():
        tensor = header.tensors[name]
        assert (tensor.dtype, list(tensor.shape)) == (dtype, shape)
        assert content[tensor.start : tensor.end] == data
    assert header.data_bytes == sum(len(data) for _, _, data in samples.kinds().values())


def entry(dtype: str = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "entries",
    [
        {"a": entry(offsets=[1, 5])},
        {"a": entry(), "b": entry(offsets=[2, 6])},
        {"a": entry(), "b": entry(offsets=[5, 9])},
        {"a": entry(offsets=[0, 8])},
        {"a": entry(shape=[5])},
        {"a": entry(shape=[-2, -2])},
        {"a": entry(shape=[True, 4])},
        {"a": entry(shape="4")},
        {"a": entry(dtype="U7")},
        {"a": entry(dtype="F4", shape=[3])},
        {"a": {"dtype": "U8"}},
        {"a": [1]},
        {"a": entry(offsets=[4, 0])},
        [],
        {"__metadata__": 3, "a": entry()},
        {},
    ],
)
def test_headers_that_cannot_be(entries: object) -> None:
    text = json.dumps(entries).encode()
    with pytest.raises(InvalidFile):
        parse(text, 8 + len(text) + 4)


def test_no_damage_gives_anything_but_an_error_or_a_header(tmp_path: Path) -> None:
    text = json.dumps({name: entry(offsets=[i * 4, i * 4 + 4]) for i, name in enumerate("abc")}).encode()
    whole = len(text).to_bytes(8, "little") + text + bytes(12)
    chance = random.Random(1)
    for _ in range(2000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(8 + len(text))] = chance.randrange(256)
        if chance.random() < 0.3:
            del damaged[chance.randrange(len(damaged)) :]
        (tmp_path / "m").write_bytes(damaged)
        try:
            header = read_header(tmp_path / "m")
        except InvalidFile:
            continue
        assert sum(t.nbytes for t in header.tensors.values()) == 12
