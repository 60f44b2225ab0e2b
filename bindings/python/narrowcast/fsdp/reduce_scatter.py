"""Gradients that travel narrow: a reduce-scatter for FSDP2's public set_custom_reduce_scatter.

    gradients    [part of rank 0, part of rank 1, ...], flat, as FSDP2 has put them together
       |  _C.cast_parts   1 launch: the parts of all other ranks, codes and scales
       v
    bytes        -------------- all-to-all --------------
       |  _C.add_parts    1 launch: decoded and added in float32, in the order of ranks, divided
       v
    sum          this rank's part

Each summand is rounded once, but this rank's own, and no sum is. docs/network.md says the rest.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from narrowcast import _C, ranks, registry
from narrowcast.registry import Format
from narrowcast.tensor import dtensors
from narrowcast.tensor.quantization import check_rounding, check_word


def set_reduce_scatter_format(
    model: nn.Module, format: str | Format | None, rounding: str = "nearest", seed: int = 0
) -> None:
    """From now on the gradients of all FSDP2 groups of a module and of those in it, of quantized
    and of plain parameters, are reduced in a format. Call it after fully_shard, on all ranks; in
    the place of one that was set before.

    format    a format with blocks of 1 x N and no scale of the whole tensor; None: FSDP2's own
              reduction in the dtype of its policy again
    rounding  "nearest" or "stochastic": of codes, with random words that are a function of `seed`
              (0 to 2^64 - 1) plus the group's place among those of the call, the number of the
              group's reductions since, the sending rank, and the element

    Collective, and the host waits. ValueError for a format, a rounding or a seed that does not
    serve, and for a module without FSDP2 groups; DisagreementError on every rank if ranks ask for
    different things: nothing is changed then.
    """
    modules = [one for one in model.modules() if isinstance(one, FSDPModule)]
    if not modules:
        raise ValueError(
            "nc.set_reduce_scatter_format: no module of the model is sharded by FSDP2: call "
            "fully_shard first"
        )
    fault = None
    try:
        chosen = None if format is None else _checked(format, rounding, seed)
        asked = f"{chosen and chosen.identity}, rounding={rounding!r}, seed={seed}"
    except (TypeError, ValueError) as error:
        fault, asked = error, f"{type(error).__name__}: {error}"
    ranks.same("nc.set_reduce_scatter_format", _facts(model, asked))
    if fault is not None:
        raise fault
    for place, module in enumerate(modules):
        draws = (int(seed) + place) % 2**64 if rounding == "stochastic" else None
        comm = PlainReduceScatter() if chosen is None else NarrowReduceScatter(chosen, draws)
        module.set_custom_reduce_scatter(comm)


def _checked(format: str | Format, rounding: str, seed: int) -> Format:
    chosen = registry.format(format)
    check_rounding(rounding)
    check_word("seed", seed)
    if not chosen.casts_parts:
        able = [name for name in registry.formats() if registry.format(name).casts_parts]
        raise ValueError(
            f"gradients cannot travel in {chosen.name}: a format serves whose rowwise blocks are "
            "1 x 8 or longer, and which has no scale of the whole tensor. Those are "
            f"{', '.join(able) or 'none of the loaded ones'}"
        )
    return chosen


def _facts(model: nn.Module, line: str) -> list[ranks.Fact]:
    """A line for each process group over which parameters are sharded. It is compared on the mesh's
    device: where parameters are offloaded, their own may have no backend.
    """
    sharded = [one for one in model.parameters() if isinstance(one, DTensor)]
    devices = {dtensors.shard_group(one): one.device_mesh.device_type for one in sharded}
    return [(group, torch.device(device), line) for group, device in devices.items()]


class PlainReduceScatter:
    """What FSDP2 does by itself."""

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        return dist.reduce_scatter_tensor(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


class NarrowReduceScatter(PlainReduceScatter):
    """The same in a format. `seed`: of stochastic rounding; None: to nearest."""

    def __init__(self, format: Format, seed: int | None):
        self._plugin, self._seed, self._reductions = format.plugin, seed, 0
        self._options = distributed_c10d.AllToAllOptions()
        self._options.asyncOp = False

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        """On the current stream, which is FSDP2's for reductions; `async_op`, which FSDP2 does not
        ask for, changes nothing.
        """
        count, rank = group.size(), group.rank()
        sent, received = _C.part_buffers(self._plugin, input_tensor, count)
        draw = None
        if self._seed is not None:
            draw = self._seed, self._reductions, dist.get_rank() * input_tensor.numel()
            self._reductions += 1
        _C.cast_parts(self._plugin, input_tensor, sent, count, rank, draw)
        rows = [int(other != rank) for other in range(count)]
        # dist.all_to_all_single does the same, and its checks take the host 4 us.
        work = group.alltoall_base(received, sent, rows, rows, self._options)
        if work is not None:
            work.wait()
        divisor = _divisor(op, count)
        _C.add_parts(self._plugin, input_tensor, received, output_tensor, count, rank, divisor)


def _divisor(op, count: int) -> float:
    """What an operation of a reduction divides the sum by. The factor that one multiplies with
    before it sums, which FSDP2 makes of set_gradient_divide_factor, is in its pickled state alone.
    """
    if op == dist.ReduceOp.AVG:
        return count
    if op == dist.ReduceOp.PREMUL_SUM:
        return 1 / float(op.__getstate__()[1])
    if op == dist.ReduceOp.SUM:
        return 1
    raise NotImplementedError(f"gradients in a format are summed or averaged, not reduced by {op}")
