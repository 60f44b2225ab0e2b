"""Quantized weights under FSDP2: what a weight is at each moment of a step, on two ranks.

                 rank 0                       rank 1
    parameter    MasterWeight: fp32 value     the same               a frozen one: QuantizedTensor
       |  FSDP2 cuts rows, and copies them (of frozen bytes sharding.py does). Launches copies
       v
    shard        Store of its rows            Store of its rows      UnalignedStore, if it shares
       |                                                             blocks with the other
       |  fsdp_pre_all_gather -> GroupPlan.send (group.py), once for all weights of a group:
       |    stale.cast            if a value was written: 1 cast a format. 1 reduction, if a scale
       |                          spans ranks or they share blocks
       |    GatherGroup::pack     0 or 1 launch a format: what is padded, repeated or transposed.
       |                          All else is sent from where the shard has it
       |  before the first gather of a module tree: first_gather.check. The host waits
       v
    payloads     -------------- all-gather of bytes (FSDP2's) --------------
       |  fsdp_post_all_gather -> GroupPlan.receive, with the last weight of the group:
       |    GatherGroup::unpack   0 or 1 launch a format: what did not arrive in place
       v
    gathered     GatheredStore: the whole     the same               no master; `bytes` are of the
       |                                                             pass (forward, backward)
       |  matmul/linear.py. Launches a decode and a product, or a cast of the input and a product
       v
    output ... loss ... backward: send and receive again (columnwise bytes, or the same as before),
       |                two products
       v
    gradient     -------------- reduce-scatter (FSDP2's), plain dtype --------------
       |  a fused step (optimizer/). 1 launch a format for master, moments and bytes; 2 launches
       |  and 1 reduction, if a scale spans the tensor
       v
    shard        new master and bytes         new master and bytes   what a checkpoint saves is the
                                                                     master

What arrives in place: if the pieces of all ranks, one after the other, are the whole buffer, the
receive buffer of FSDP2 is the gathered weight's. _C.WeightGather (bindings/gather/) lays that out;
where pieces have to be copied, CopyGather (copy_gather.py) does. The host waits where it is said
above, and nowhere else. docs/sharding.md has what works and what does not.
"""
