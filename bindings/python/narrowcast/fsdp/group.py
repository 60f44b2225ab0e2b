"""FSDP2's hooks, and the gathers of a group: of the weights that FSDP2 gathers together. The plan
of a group is made at its first gather and never changed, because FSDP2 fixes payloads then. One
launch packs all weights of a format, and one unpacks them.
"""

from __future__ import annotations

import itertools
import weakref

import torch

from narrowcast import _C
from narrowcast.fsdp import first_gather, sharding, stale, torch_names, torch_parameters
from narrowcast.fsdp.copy_gather import CopyGather
from narrowcast.fsdp.gather_buffers import ReceiveBuffers, SendBuffer, ShardGather, gather_of
from narrowcast.master.weight import MasterWeight
from narrowcast.ranks import debugging
from narrowcast.tensor import QuantizedTensor, buffers, scale_groups
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.store import Store

# Plans are freed with their groups. Shards refer to their plan weakly, and so does the plan to
# torch's objects: the garbage collector cannot free a cycle that runs through a tensor.
_plans: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


# What the pre-hook hands to the post-hook on this rank: the plan, the number of the weight there,
# and whether the gather is the backward's.
Sent = tuple["GroupPlan", int, bool]


class GroupPlan:
    """The quantized weights of a group, in FSDP2's order, with their gathers and memory. FSDP2
    calls hooks for each weight, in this order; send() of the first one and receive() of the last
    one do the work for all.
    """

    def __init__(self, group):
        self._group = weakref.ref(group)
        # Of the whole weights, with the bytes that gathers of a forward and of a backward bring.
        self._gathered: list[tuple[GatheredStore, tuple[_C.Buffers, _C.Buffers]]] = []
        pairs = sharding.quantized(group)
        parameters, self._stores = [[*each] for each in zip(*pairs, strict=True)]
        self._shapes = [*map(torch_names.full_shape, parameters)]
        self._every: list[ShardGather] = []
        for parameter, store in pairs:
            store.sender = weakref.ref(self), len(self._every)
            torch_parameters.forget_gathered(parameter)
            self._every.append(gather_of(group, parameter, store))
        scale_groups.check(self._stores)
        self._asks = any(shard.is_asked for shard in _shards(group))
        self._sharing = [gather for gather in self._every if gather.shared_bytes]
        self._shared_received: torch.Tensor | None = None
        self._send_buffer = SendBuffer(self._every, self._stores[0].bytes.device)
        self._copying = [one for one in self._every if isinstance(one, CopyGather)]
        self._gathers = _C.GatherGroup(
            [one for one in self._every if one not in self._copying],
            **torch_names.training_state(group),
            keeps_packed=self._send_buffer.is_kept,
            keeps_parts=torch_names.reshards_to_smaller_mesh(group),
            has_empty_shards=self._asks,
        )
        # CPUOffloadPolicy: shards and payloads are on the CPU, and gathers elsewhere.
        self._moves_to = torch_names.offloading_device(parameters[0])
        self._receive_buffers: ReceiveBuffers | None = None  # of one rank, FSDP2 allocates
        if (world := torch_names.world(parameters[0])) > 1:
            payloads = self._send_buffer.payloads[0]
            sizes = [
                [*(one.nbytes * world for one in own), gather.unpacked_bytes]
                for own, gather in zip(payloads, self._every, strict=True)
            ]
            self._receive_buffers = ReceiveBuffers(sizes, torch_names.gather_device(parameters[0]))
            for number, parameter in enumerate(parameters):
                parameter.receive = self._receive_buffers, number
        self._is_alike = all(gather.carries_alike for gather in self._every)
        self._backward = False

    def send(self, index: int) -> tuple[list[torch.Tensor], Sent]:
        """The payloads of a weight. The call for the first one packs for all: one launch a format,
        or none if what was packed is still there; before a forward it also casts stale weights. If
        a shard has been replaced since the last gather, a new plan does this.
        """
        if index == 0:
            # One call of C++: each touches memory that is in no cache, which costs a microsecond.
            backward = None if debugging.is_on else self._gathers.begin()
            if backward is None:
                group = self._group()
                backward = torch_names.is_backward(group)
                if not self._gathers.are_quiet and not self._has_shards_of(group):
                    return make_plan(group).send(index)
                if not backward:
                    self._prepare(group)
                self._send_buffer.allocate()
                for one in (self._gathers, *self._copying):
                    one.pack(backward)
            self._backward = backward
        payloads = self._send_buffer.payloads[self._backward][index]
        if self._moves_to is not None:
            payloads = [one.to(self._moves_to, non_blocking=True) for one in payloads]
        return payloads, (self, index, self._backward)

    def _prepare(self, group) -> None:
        """Before a forward's gather packs: casts stale weights, and if a cast needs other ranks,
        those of the whole module tree together, with one reduction. A backward reads the weights of
        its forward.
        """
        debugging.compare("the weights of a forward", lambda: _facts_of_forward(group))
        if self._asks or not self._gathers.are_quiet:
            _come_after_writes(self._stores[0])
            watch, shards = _C.Watch(self._stores), _shards(group)
            # Ranks do not know alike whether such a shard is stale.
            known = (one.store for one in shards if not one.is_asked)
            if any(store.needs_others and store.is_stale for store in known):
                shards = _shards(*torch_names.groups_of_tree(group))
            stale.cast(shards)
            self._gathers.watch(watch)
        if self._send_buffer.is_kept:
            plans = map(_plans.get, torch_names.groups_of_tree(group))
            _C.GatherGroup.pack_together([plan._gathers for plan in plans if plan is not None])

    def _has_shards_of(self, group) -> bool:
        """Whether the shards of the group are those that the plan was made for."""
        return [store for _, store in sharding.quantized(group)] == self._stores

    def receive_first(self, index: int, received, dtype: torch.dtype) -> tuple:
        """The first payloads of a weight have arrived in these buffers: the whole weight over them,
        and the memory that FSDP2 has to free and to allocate again besides.
        """
        gather, unpacked, inner = self._every[index], None, []
        if gather.unpacked_bytes > 0 and self._receive_buffers is not None:
            unpacked = self._receive_buffers.unpacked(index)
        elif gather.unpacked_bytes > 0:
            with torch.inference_mode(False):
                unpacked = received[0].new_empty(gather.unpacked_bytes)
            inner = [unpacked]
        if gather in self._sharing[:1]:
            *received, self._shared_received = received
        shared = [self._shared_received] if gather in self._sharing else []
        with torch.inference_mode(False), torch.no_grad():
            gather.receive_into(received, unpacked, *shared)
        self._gathers.forget()
        of_passes = gather.gathered(False), gather.gathered(True)
        bytes, config = of_passes[self._backward], self._stores[index].config
        by_pass = of_passes[0].usages != of_passes[1].usages
        store = GatheredStore(bytes, config, gather, by_pass)
        self._gathered.append((store, of_passes))
        return QuantizedTensor(store, self._shapes[index], dtype), inner

    def receive(self, index: int, backward: bool) -> None:
        """The payloads of a weight have arrived. With the last one it selects the bytes of the pass
        and unpacks all weights, in one launch a format: nothing reads them before.
        """
        if index < len(self._every) - 1:
            return
        if not self._is_alike:
            for store, of_passes in self._gathered:
                store.bytes = of_passes[backward]
        for one in (self._gathers, *self._copying):
            one.unpack(backward)
        self._send_buffer.free()


def fsdp_pre_all_gather(self, parameter) -> tuple[list[torch.Tensor], Sent]:
    """The hook of a shard: its payloads, and the metadata of the post-hook, if that is called.
    FSDP2 looks for a function of this name, which torch_parameters calls in its place.
    """
    if not isinstance(parameter, torch_parameters.Quantized):
        raise NotImplementedError(
            f"{self.describe()}: fully_shard has cut this weight before the first nc.convert"
        )
    is_new = isinstance(self, MasterWeight) and not self.cell.is_shard
    sender = None if is_new else self._store.sender
    plan = None if sender is None else sender[0]()
    if plan is None:
        return _plan_for(parameter).send(0)
    return plan.send(sender[1])


def fsdp_post_all_gather(self, all_gather_outputs, metadata: Sent, param_dtype, *, out=None):
    """FSDP2's hook: payloads have arrived in the receive buffers of a whole weight, which is `out`
    from the second gather of a plan on. At the first one it is returned, with other memory.
    """
    plan, index, backward = metadata
    made = None
    if out is None:
        made = plan.receive_first(index, all_gather_outputs, param_dtype)
    plan.receive(index, backward)
    return made


for _kind in (QuantizedTensor, MasterWeight):
    _kind.fsdp_pre_all_gather = fsdp_pre_all_gather
    _kind.fsdp_post_all_gather = fsdp_post_all_gather


def _plan_for(parameter) -> GroupPlan:
    """A new plan of the group that a shard without a plan is the first one of. RuntimeError if it
    is another one: it took a shard's place, and FSDP2 was not told.
    """
    group = torch_names.group_of(parameter)
    if parameter is not sharding.quantized(group)[0][0]:
        _forget(group)
        shard = torch_names.local_tensor(parameter)
        raise RuntimeError(f"{shard.describe()}: it has taken the place of a shard of FSDP2's")
    return make_plan(group)


def _come_after_writes(store: Store) -> None:
    """Has the current stream wait for the default one. FSDP2 gathers on a stream of its own, which
    waits for the default one when a forward of the tree begins, but not for writes within it.
    """
    device = store.bytes.device
    if store.bytes.is_plain and device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(torch.cuda.default_stream(device))


def _shards(*groups) -> list[stale.Shard]:
    every = itertools.chain.from_iterable(map(sharding.quantized, groups))
    return stale.shards_of((torch_names.sharded(one), store) for one, store in every)


def _facts_of_forward(group) -> list:
    """What the debug mode compares before a forward's gather: which weights of the module tree were
    written to, and the tensor-wide scales of those that are gathered.
    """
    gathered = {one.store for one in _shards(group)}
    facts = []
    for store, ranks, is_asked in _shards(*torch_names.groups_of_tree(group)):
        if is_asked:
            continue  # its ranks need not know alike whether it was written
        line = store.config.name or store.describe()
        if store.is_stale:
            line += ", written to"
        elif store in gathered:
            scale = debugging.digest_of(buffers.spanning_of(store.bytes))
            line += f", with the scale {scale}"
        facts.append((ranks, store.bytes.device, line))
    return facts


def make_plan(group) -> GroupPlan:
    """A new plan of a group, which replaces an older one. The first of a module tree is collective:
    ranks compare facts, and the host waits. RuntimeError in a backward, whose graph has the whole
    weights of the older plan.
    """
    if group in _plans and torch_names.is_backward(group):
        raise RuntimeError(
            f"{sharding.quantized(group)[0][1].describe()}: shards of its FSDP2 group were "
            "replaced between a forward and its backward, as a load does. Load after the backward"
        )
    first_gather.check(group)
    with torch.inference_mode(False), torch.no_grad():  # it serves later gathers outside of it too
        plan = GroupPlan(group)
    _plans[group] = plan
    return plan


def replace_shard(group, parameter, local: torch.Tensor) -> None:
    """Replaces the local tensor of a shard."""
    torch_parameters.replace_shard(group, parameter, local)
    _forget(group)


def _forget(group) -> None:
    """Drops the plan of a group: its next gather makes a new one."""
    _plans.pop(group, None)
    _C.note_change()
