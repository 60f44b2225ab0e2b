"""FSDP2's hooks: what a QuantizedTensor does before and after an all-gather."""

from __future__ import annotations

import torch

from narrowcast.fsdp.group import Sent, plan_for
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.store import Store


def fsdp_pre_all_gather(self, mesh) -> tuple[list[torch.Tensor], Sent]:
    """The payloads of a shard, and what goes from here to the post-hook. It may run without that.
    FSDP2 counts the parameters of this function.
    """
    sender = self._view.store.sender
    plan = None if sender is None else sender[0]()
    if plan is None:
        plan, index = plan_for(self)
        return plan.send(index)
    return plan.send(sender[1])


def fsdp_post_all_gather(self, all_gather_outputs, metadata: Sent, param_dtype, *, out=None):
    """Payloads have arrived in the slots of a whole weight: `out`, from the second gather on. At
    the first one it is made, and returned with the memory that FSDP2 has to free and to allocate
    again besides the slots.
    """
    plan, index, backward = metadata
    if out is not None:
        if plan.wholes.has(index, out):
            plan.receive(index, backward)
        else:
            _receive(dtensors.local_of(out)._view.store, all_gather_outputs, metadata)
            plan.wholes.know(index, out, plan.members[index].gather)
        return None
    member = plan.members[index]
    arena = member.arena(all_gather_outputs)
    plan.settle(index, all_gather_outputs, arena)
    store = Store(member.gather.whole(backward), label=member.store.label)
    store.gather, store.present = member.gather, member.gather.present
    _receive(store, all_gather_outputs, metadata)
    whole = QuantizedTensor(store, member.shape, param_dtype)
    return whole, [] if arena is None or member.room is not None else [arena]


def _receive(store: Store, slots, sent: Sent) -> None:
    """The bytes of a gather have arrived in the slots of the whole weight."""
    plan, index, backward = sent
    member = plan.members[index]
    gather = member.gather
    if store.gather is not gather:  # the shard is another one than at the last gather
        arena = store.gather.arena if member.room is None else member.arena(slots)
        plan.settle(index, slots, arena)
        store.gather, store.present, store.traced = gather, gather.present, None
        store.format, store.label = member.store.format, member.store.label
    store.bytes = gather.arrive(backward)
    plan.receive(index, backward)


QuantizedTensor.fsdp_pre_all_gather = fsdp_pre_all_gather
QuantizedTensor.fsdp_post_all_gather = fsdp_post_all_gather
