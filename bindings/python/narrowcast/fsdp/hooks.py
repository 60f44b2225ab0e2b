"""FSDP2's hooks: what a QuantizedTensor does before and after an all-gather."""

from __future__ import annotations

import torch

from narrowcast.fsdp.group import Sent, plan_for
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.gathered import GatheredStore


def fsdp_pre_all_gather(self, mesh) -> tuple[list[torch.Tensor], Sent]:
    """The payloads of a shard, and what the post-hook needs, if it is called. FSDP2 counts the
    parameters of this function.
    """
    sender = self._view.store.sender
    plan = None if sender is None else sender[0]()
    if plan is None:
        plan, index = plan_for(self)
        return plan.send(index)
    return plan.send(sender[1])


def fsdp_post_all_gather(self, all_gather_outputs, metadata: Sent, param_dtype, *, out=None):
    """Payloads have arrived in the receive buffers of a whole weight: `out`, from the second gather
    of a plan on. At the first one it is made, and returned with the memory that FSDP2 has to free
    and to allocate again besides the receive buffers.
    """
    plan, index, backward = metadata
    if out is not None:
        plan.receive(index, backward)
        return None
    member = plan.members[index]
    gather, unpacked = member.gather, member.unpacked(all_gather_outputs)
    plan.lay_out(index, all_gather_outputs, unpacked)
    config = member.store.config
    store = GatheredStore(gather.gathered(backward), config, gather, gather.present)
    plan.gathered.append((store, gather.gathered(False), gather.gathered(True)))
    plan.receive(index, backward)
    whole = QuantizedTensor(store, member.shape, param_dtype)
    return whole, [] if unpacked is None or member.receive is not None else [unpacked]


QuantizedTensor.fsdp_pre_all_gather = fsdp_pre_all_gather
QuantizedTensor.fsdp_post_all_gather = fsdp_post_all_gather
