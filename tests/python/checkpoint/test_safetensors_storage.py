"""torch.distributed.checkpoint with safetensors files, which hold masters in float32: a plain model
and other formats load them, and converted models load those of plain ones.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

import narrowcast as nc
import ranks
from models import assert_quantized, build, build_plain, one_of_each, same, shard, train

pytest.importorskip("safetensors", reason="safetensors is not installed")
storage = pytest.importorskip("torch.distributed.checkpoint.hf_storage")

FIRST, OTHER = one_of_each(lambda f: f.tensor_amax)[:2]
DTYPES = [torch.float32, torch.bfloat16]


def save(model, folder, **options):
    writer = storage.HuggingFaceStorageWriter(folder, **options)
    dcp.save(model.state_dict(), storage_writer=writer)


def load(model, folder):
    state = get_model_state_dict(model)
    dcp.load(state, storage_reader=storage.HuggingFaceStorageReader(folder))
    set_model_state_dict(model, state)
    return model


def assert_holds(model, expected):
    """Plain parameters have the values, in their dtypes; quantized ones have them as masters."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nc.QuantizedTensor):
            assert same(parameter.master, expected[name].float()), name
            assert_quantized(parameter.detach(), parameter.master, name)
        else:
            assert same(parameter, expected[name].to(parameter.dtype)), name


def of_shards(mesh, folder):
    """Trains and saves shards, put together at the end; another format loads plain values."""
    model = shard(build(FIRST, dtype=torch.bfloat16), mesh)
    train(model, nc.FusedAdam(model.parameters(), lr=1e-2), 1, dtype=torch.bfloat16)
    model.reshard()
    save(model, f"{folder}/converted", save_distributed=True, enable_consolidation=True)
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    if mesh.get_rank() == 0:
        torch.save(whole, f"{folder}/whole")
    for dtype in DTYPES:
        plain = build_plain(FIRST, dtype=dtype, seed=1).state_dict()
        other = load(shard(build(OTHER, seed=2), mesh), f"{folder}/{dtype}")
        for name, value in other.state_dict().items():
            assert same(value.full_tensor(), plain[name].float()), name


def test_both_ways(tmp_path):
    for dtype in DTYPES:
        save(build_plain(FIRST, dtype=dtype, seed=1), tmp_path / str(dtype))
    ranks.run(2, "cpu", of_shards, str(tmp_path))
    whole = torch.load(tmp_path / "whole", weights_only=True)
    for dtype in DTYPES:
        assert_holds(load(build_plain(FIRST, dtype=dtype, seed=3), tmp_path / "converted"), whole)
        for format in (FIRST, OTHER):
            model = build(format, dtype=dtype, seed=4)
            assert_holds(load(model, tmp_path / "converted"), whole)
            for saved in DTYPES:
                expected = build_plain(FIRST, dtype=saved, seed=1).state_dict()
                assert_holds(load(model, tmp_path / str(saved)), expected)
