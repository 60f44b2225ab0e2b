"""What the packed gather of flat shards refuses, before it moves a byte."""

import pytest
import torch

import narrowcast as nc
import ranks
from internals import bytes_of, store_of
from narrowcast import _C
from narrowcast.flat import Gather


def out_of_turn(mesh):
    weight = nc.quantize(torch.ones(64, 128, device=mesh.device_type), nc.formats()[0])
    gather = Gather([weight], [[(0, 4096)], [(4096, 8192)]], mesh.get_group())
    with pytest.raises(RuntimeError, match=r"has not been started: call start\(\)"):
        gather.finish()
    gather.start()
    with pytest.raises(RuntimeError, match=r"has been started: call finish\(\)"):
        gather.start()
    gather.finish()
    with pytest.raises(RuntimeError, match="has not been started"):
        gather.finish()
    assert gather.is_current()
    store_of(weight).bytes = bytes_of(nc.quantize(torch.ones(64, 128), nc.formats()[0]))
    assert not gather.is_current()
    with pytest.raises(ValueError, match="have moved or have been freed"):
        gather.start()
    none = Gather([], [[], []], mesh.get_group())
    none.start()
    none.finish()
    assert none.payload_bytes == 0


def test_out_of_turn():
    ranks.run(2, "cpu", out_of_turn)


def test_wrong_weights(format):
    weight = nc.quantize(torch.ones(64, 128), format)
    everything = [[(0, 64 * 128)]]
    with pytest.raises(TypeError, match="weight 1 is a Tensor, not a QuantizedTensor"):
        Gather([weight, torch.ones(2)], everything, None)
    with pytest.raises(ValueError, match="weight 0 is a view of a 256x128 matrix"):
        Gather([nc.quantize(torch.ones(256, 128), format)[:128]], everything, None)
    with pytest.raises(ValueError, match="has columnwise bytes alone"):
        Gather([nc.quantize(torch.ones(64, 128), format, rowwise=False)], everything, None)
    with pytest.raises(ValueError, match="ranges of 2 ranks, and a group of 1"):
        Gather([weight], 2 * everything, None)


def flat_gather(ranges, rank=0, count=1):
    weights = [nc.quantize(torch.ones(64, 128), nc.formats()[0]) for _ in range(count)]
    return _C.FlatGather([bytes_of(weight) for weight in weights], ranges, rank)


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ([[(0, 8192), (0, 8192)]], "rank 0 has ranges of 2 matrices, not of 1"),
        ([[(0, 8192)], []], "rank 1 has ranges of 0 matrices, not of 1"),
        ([[(0, 8191)]], "matrix 0 are not its 8192 elements, .* from 8192 to 8192 .* 8191 is due"),
        ([[(0, 4097)], [(4096, 8192)]], "the one from 4096 to 8192 comes where 4097 is due"),
        ([[(0, 8192)], [(8192, 8193)]], "are not its 8192 elements"),
        ([[(-1, 8192)]], "the one from -1 to 8192 comes where 0 is due"),
    ],
)
def test_wrong_ranges(ranges, message):
    with pytest.raises(ValueError, match=message):
        flat_gather(ranges)


def test_wrong_payloads():
    with pytest.raises(ValueError, match="there is no matrix to gather"):
        flat_gather([[]], count=0)
    with pytest.raises(ValueError, match="rank 2 is none of the 2 whose ranges are given"):
        flat_gather([[(0, 4096)], [(4096, 8192)]], rank=2)
    gather = flat_gather([[(0, 4096)], [(4096, 8192)]])
    size = gather.payload_bytes
    with pytest.raises(ValueError, match=f"the payload has {size - 1} bytes, not the {size} of"):
        gather.pack(torch.empty(size - 1, dtype=torch.uint8))
    with pytest.raises(ValueError, match=f"has {size} bytes, not the {2 * size} of this gather"):
        gather.unpack(torch.empty(size, dtype=torch.uint8))
    with pytest.raises(TypeError, match="the payload is Float, not uint8"):
        gather.pack(torch.empty(size))
    with pytest.raises(ValueError, match="the payload is not contiguous"):
        gather.pack(torch.empty(2 * size, dtype=torch.uint8)[::2])
    with pytest.raises(ValueError, match="the payload is on meta, the matrices on cpu"):
        gather.pack(torch.empty(size, dtype=torch.uint8, device="meta"))


def test_freed_buffers():
    weight = nc.quantize(torch.ones(64, 128), nc.formats()[0])
    bytes = bytes_of(weight)
    gather = _C.FlatGather([bytes], [[(0, 4096)], [(4096, 8192)]], 0)
    assert gather.is_of([bytes]) and not gather.is_of([bytes, bytes]) and not gather.is_of([])
    bytes.buffer(0).untyped_storage().resize_(0)
    assert not gather.is_of([bytes])
    with pytest.raises(ValueError, match="has been freed"):
        gather.pack(torch.empty(gather.payload_bytes, dtype=torch.uint8))
    with pytest.raises(ValueError, match="has been freed"):
        gather.unpack(torch.empty(2 * gather.payload_bytes, dtype=torch.uint8))
