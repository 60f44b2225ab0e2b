"""What gradients are when they are reduced in a format, by the reference: for a model that FSDP2
has sharded, from the gradients of the whole one.
"""

import torch
from torch.distributed.fsdp import FSDPModule

import reference


def groups(model):
    """The parameters of each FSDP2 group, in FSDP2's order."""
    sharded = {one for one in model.modules() if isinstance(one, FSDPModule)}
    for module in model.modules():
        if module in sharded:
            inner = sharded.intersection(module.modules()) - {module}
            theirs = {p for one in inner for p in one.parameters()}
            yield [p for p in module.parameters() if p not in theirs]


def gradients_of(whole, losses):
    """The gradients that each loss gives, by parameter."""
    every = []
    for loss in losses:
        whole.zero_grad()
        loss(whole).backward()
        every.append([p.grad.cpu() for p in whole.parameters()])
    return every


def parts_of(gradients, dims, count):
    """[count, elements]: the parts of all ranks, as FSDP2 puts a group's gradients together. Each
    is cut along one of `dims`.
    """
    rows = []
    for one, dim in zip(gradients, dims, strict=True):
        cut = torch.cat(one.chunk(count, dim)) if dim else one  # in equal parts
        padded = one.new_zeros(-(-len(cut) // count) * count, *cut.shape[1:])
        padded[: len(cut)] = cut
        rows.append(padded.view(count, -1))
    return torch.cat(rows, dim=1)


def expected(model, whole, gradients, fmt, *, divisor, rank, dtype=torch.float32, draws=None):
    """The local gradients of a rank, by parameter. `gradients`: of each rank, by parameter of the
    whole. `draws(place)`: of a group, (seed, step, sender) for each rank.
    """
    count, numbers = len(gradients), {p: i for i, p in enumerate(model.parameters())}
    found = [None] * len(numbers)
    for place, group in enumerate(groups(model)):
        places = [numbers[p] for p in group]
        if not places:
            continue
        dims = [p.placements[-1].dim for p in group]
        flat = [parts_of([of_rank[i] for i in places], dims, count) for of_rank in gradients]
        values = [one.to(dtype).float().numpy() for one in flat]
        sums = reference.reduce_scatter(values, fmt, divisor, draws and draws(place))
        part = torch.from_numpy(sums[rank]).to(dtype).float()
        begin = 0
        for i, parameter, dim in zip(places, group, dims, strict=True):
            shard = parameter.to_local()
            found[i] = part[begin : begin + shard.numel()].view(shard.shape)
            along = parameter.shape[dim]
            begin += -(-along // count) * (parameter.numel() // along)
    return found
