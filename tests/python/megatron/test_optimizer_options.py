"""narrowcast.megatron's data parallelism and optimizer: what they refuse, what Megatron wraps
models in, and which elements a rank owns.
"""

import pytest
import torch

import ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.transformer.module import Float16Module

import megatron_models as mm
import megatron_training as mt
from narrowcast import megatron
from narrowcast.megatron import data_parallel
from parallel_models import message_of

FORMATS = ["mxfp8_e4m3"]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_owned_ranges_are_cuts_of_the_bucket(count):
    places, elements = [(0, 10), (64, 65), (128, 200), (256, 300)], 42 * 8
    ranges = data_parallel.owned_ranges(places, elements, count)
    for place, (first, last) in enumerate(places):
        owners = []
        for rank, own in enumerate(ranges):
            begin, end = own[place]
            assert (begin, end) == (0, 0) or 0 <= begin < end
            owners += [(first + i, rank) for i in range(begin, end)]
        size = elements // count
        assert owners == [(i, i // size) for i in range(first, last)]


@ranks.on(1, "cpu")
def test_megatrons_float16_module_keeps_quantized_weights(mesh, format=FORMATS[0]):
    with mt.megatron_on_cpu():
        model = mm.gpt(megatron.get_gpt_layer_spec(format))
        before = mt.all_bytes(model)
        config = mm.config(dtype=torch.bfloat16, bf16=True)
        wrapped = Float16Module(config, model).module
        assert {p.dtype for p in wrapped.parameters()} == {torch.bfloat16}
        assert all(mt.same_bytes(b, before[name]) for name, b in mt.all_bytes(wrapped).items())
        assert len(mm.quantized(wrapped)) == 8


REFUSED = [
    ({"use_distributed_optimizer": False}, {}, "use_distributed_optimizer=True"),
    ({"optimizer": "sgd"}, {}, 'optimizer="adam"'),
    ({"optimizer_cpu_offload": True}, {}, "optimizer_cpu_offload=True"),
    ({}, {"num_distributed_optimizer_instances": 2}, "num_distributed_optimizer_instances"),
    ({}, {"use_megatron_fsdp": True}, "use_megatron_fsdp=True"),
]


def in_megatrons_ddp():
    model = mm.gpt(mm.plain_spec(), **mt.MODEL)
    config = DistributedDataParallelConfig(use_distributed_optimizer=True)
    ddp = DistributedDataParallel(model.config, config, model)
    return megatron.get_megatron_optimizer(mt.adam_config(), [ddp])


def refuse(mesh, format):
    with mt.megatron_on_cpu():
        errors = NotImplementedError, ValueError
        said = [message_of(errors, mt.Run, format, ddp, adam) for adam, ddp, _ in REFUSED]
        return [*said, message_of(errors, in_megatrons_ddp)]


def test_what_cannot_work_is_an_error_on_every_rank():
    for said in ranks.run(2, "cpu", refuse, FORMATS[0]):
        expected = [message for *_, message in REFUSED]
        expected.append("wrap it in narrowcast.megatron.DistributedDataParallel")
        for part, got in zip(expected, said, strict=True):
            assert part in got
