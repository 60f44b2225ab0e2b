"""Quantized weights under FSDP2: what a weight is until it is gathered, on two ranks.

                 rank 0                       rank 1
    parameter    QuantizedTensor: Store       the same               master fp32, bytes
       |  sharding.chunk: FSDP2 cuts rows, and copies them
       v
    shard        Store of its rows            Store of its rows      UnalignedStore, if it shares
       |                                                             blocks with the other
       |  fsdp_pre_all_gather -> GroupPlan.send (group.py), once for all weights of a group:
       |    first_gather.check, before the first gather of a module tree; stale.cast (flat/);
       |    GatherGroup::pack. What is sent as it is stored is sent from where the shard has it
       v
    payloads     -------------- all-gather of bytes (FSDP2's) --------------
       |  fsdp_post_all_gather -> GroupPlan.receive, with the last weight of the group:
       |    GatherGroup::unpack, what did not arrive in place
       v
    gathered     GatheredStore: the whole     the same               no master; `bytes` are of the
                                                                     pass (forward, backward)

What arrives in place: if the pieces of all ranks, one after the other, are the whole buffer, the
receive buffer of FSDP2 is the gathered weight's. _C.WeightGather (bindings/gather/) lays that out;
where pieces have to be copied, CopyGather (copy_gather.py) does. The rest of a step, and what each
part launches and reduces: docs/architecture.md, "One weight, one step". What works and what does
not: docs/sharding.md.
"""
