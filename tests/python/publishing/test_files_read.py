"""Which of a folder's files nc.load_published reads: those of an index, or what is there."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import narrowcast as nc
from published_models import FORMAT, SMALL, build, export
from weights import quantized


@pytest.fixture
def indexed(tmp_path):
    """A folder of several files, and its index."""
    out = tmp_path / "out"
    export(0, out, file_size=SMALL)
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    return out, index


def write_index(out, content):
    text = content if isinstance(content, str) else json.dumps(content)
    (out / "model.safetensors.index.json").write_text(text)


def is_loaded(out):
    model, whole = build(FORMAT, seed=3), build(FORMAT)
    unknown = nc.load_published(model, out)
    assert torch.equal(
        quantized(model[0].weight).dequantize(), quantized(whole[0].weight).dequantize()
    )
    assert torch.equal(
        quantized(model[1].weight).dequantize(), quantized(whole[1].weight).dequantize()
    )
    return unknown == []


@pytest.mark.parametrize("name", ["z.safetensors", "model.safetensors", "adapter.safetensors"])
def test_files_that_the_index_does_not_name(name, indexed):
    """As vLLM and SGLang have it."""
    out, index = indexed
    save_file({one: torch.zeros(3) for one in [*index, "more"]}, out / name)
    assert is_loaded(out)
    (out / name).unlink()
    os.mkfifo(out / name)
    assert is_loaded(out)


def test_a_tensor_is_that_of_the_file_that_the_index_names(indexed):
    out, index = indexed
    last = out / max(index.values())
    first = next(one for one, file in index.items() if file == min(index.values()))
    save_file(load_file(last) | {first: torch.zeros(3)}, last)
    assert is_loaded(out)


def test_tensors_that_the_index_does_not_name(indexed):
    """transformers reads them, from the files that it names."""
    out, index = indexed
    left, files = dict(index), list(index.values())
    unnamed = next(name for name, file in index.items() if files.count(file) > 1)
    file = left.pop(unnamed)
    write_index(out, {"weight_map": left})
    assert is_loaded(out)
    other = next(out / one for one in files if one != file)
    save_file(load_file(other) | {unnamed: torch.zeros(3)}, other)
    with pytest.raises(ValueError, match=f"{unnamed} is in .* and in another file of the folder"):
        is_loaded(out)


def test_folders_without_an_index(indexed):
    out, index = indexed
    (out / "model.safetensors.index.json").unlink()
    assert is_loaded(out)
    save_file({"1.weight": torch.zeros(3)}, out / "z.safetensors")
    with pytest.raises(ValueError, match=r"1\.weight is in .*z\.safetensors and in another file"):
        is_loaded(out)
    whole = [load_file(out / file) for file in sorted(set(index.values()))]
    save_file({k: v for one in whole for k, v in one.items()}, out / "model.safetensors")
    assert is_loaded(out)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "has no weight_map"),
        ({}, "has no weight_map"),
        (3, "has no weight_map"),
        ("{", "has no weight_map"),
        ("[" * 100_000, "has no weight_map"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {}}, "has no weight_map .*it is empty"),
        ({"weight_map": {"0.weight": 3}}, "has no weight_map"),
        ({"weight_map": {"0.weight": None}}, "has no weight_map"),
        ({"weight_map": {"0.weight": "none.safetensors"}}, r"none\.safetensors is missing"),
        ({"weight_map": {"0.weight": "a\0b"}}, "is missing, or no regular file"),
        ({"weight_map": {"0.weight": "a" * 300}}, "is cut short or no safetensors file"),
        ({"weight_map": {"0.weight": ""}}, "is missing, or no regular file"),
        ({"weight_map": {"0.weight": "config.json"}}, "is cut short or no safetensors file"),
        ({"weight_map": {"0.weight": "../x.safetensors"}}, "outside of the folder"),
        ({"weight_map": {"0.weight": "/x.safetensors"}}, "outside of the folder"),
    ],
)
def test_an_index_that_is_none(content, message, indexed, tmp_path):
    export(0, tmp_path / "x.safetensors")  # it is there
    write_index(indexed[0], content)
    with pytest.raises(ValueError, match=message):
        is_loaded(indexed[0])


def test_a_tensor_that_its_file_has_not(indexed):
    out, index = indexed
    write_index(out, {"weight_map": index | {"more": index["1.weight"]}})
    with pytest.raises(ValueError, match=f"{index['1.weight']} has no more, which the index says"):
        is_loaded(out)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "is missing, or no regular file"),
        ("model.safetensors.index.json", "is missing, or no regular file"),
        ("config.json", "has no quantization_config"),
    ],
)
def test_what_is_no_file(name, message, make, tmp_path):
    export(0, tmp_path / "out")
    (tmp_path / "out" / name).unlink(missing_ok=True)
    make(tmp_path / "out" / name)
    with pytest.raises(ValueError, match=f"{name} {message}"):
        is_loaded(tmp_path / "out")
