"""FSDP2's hooks: what a QuantizedTensor does before and after an all-gather."""

from __future__ import annotations

import torch

from narrowcast.fsdp.group import Sent, plan_for
from narrowcast.tensor import QuantizedTensor, dtensors
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
    on. At the first one it is made, and returned with the memory that FSDP2 has to free and to
    allocate again besides the receive buffers.
    """
    plan, index, backward = metadata
    if out is not None:
        if plan.unsharded.has(index, out):
            plan.receive(index, backward)
        else:
            _receive(dtensors.local_of(out)._view.store, all_gather_outputs, metadata)
            plan.unsharded.add(index, out, plan.members[index].gather)
        return None
    member = plan.members[index]
    gather, unpacked = member.gather, member.unpacked(all_gather_outputs)
    plan.lay_out(index, all_gather_outputs, unpacked)
    config = member.store.config
    store = GatheredStore(gather.gathered(backward), config, gather, gather.present)
    _receive(store, all_gather_outputs, metadata)
    whole = QuantizedTensor(store, member.shape, param_dtype)
    return whole, [] if unpacked is None or member.receive is not None else [unpacked]


def _receive(store: GatheredStore, received, sent: Sent) -> None:
    """The bytes of a gather have arrived in the receive buffers of the whole weight."""
    plan, index, backward = sent
    member = plan.members[index]
    gather = member.gather
    if store.gather is not gather:  # the shard is another one than at the last gather
        is_allocated_here = member.receive is not None
        unpacked = member.unpacked(received) if is_allocated_here else store.gather.unpacked
        plan.lay_out(index, received, unpacked)
        store.gather, store.present, store.traced = gather, gather.present, None
        store.format, store.config = member.store.format, member.store.config
    store.bytes = gather.arrive(backward)
    plan.receive(index, backward)


QuantizedTensor.fsdp_pre_all_gather = fsdp_pre_all_gather
QuantizedTensor.fsdp_post_all_gather = fsdp_post_all_gather
