"""Models of several ranks that write to their shards, and what all must then have."""

import torch

import narrowcast as nc
from internals import is_stale
from models import Model, local_rows, loss_of, same, shard, uneven_rows
from weights import quantized


def model_for(mesh, format):
    """Two blocks and a head, sharded; on three ranks the last one has fewer rows."""
    torch.manual_seed(0)
    width = 32 if mesh.size() == 2 else max(uneven_rows(format), 32)
    width += -width % 16  # packed rows stay whole
    model = nc.convert(Model(width), format).to(mesh.device_type)
    return shard(model, mesh, reshard_after_forward=True)


def weights(model):
    """The quantized parameters, by name."""
    named = model.named_parameters()
    return {name: p for name, p in named if isinstance(p.to_local(), nc.MasterWeight)}


def write(mesh, weight, factor, largest=0):
    """On all ranks: `factor` times its values on one, and the same values on the others. The
    largest value of the tensor becomes another.
    """
    local = weight.to_local()
    with torch.no_grad():
        local.copy_((factor if mesh.get_local_rank() == largest else 1.0) * local.value)


def assert_whole(mesh, model):
    """Every weight has the bytes of its whole value, on every rank. With delayed scaling they
    follow from earlier amaxes too: there the newest one is that of the whole.
    """
    for name, weight in weights(model).items():
        local, whole = quantized(weight.to_local()), weight.full_tensor().cpu()
        assert not is_stale(local), name
        value = nc.quantize(whole, local.format)
        if local.history is None:
            assert same(local.tensor_amax, value.tensor_amax), name
            assert same(local.dequantize(), local_rows(value.dequantize(), weight, mesh)), name
        else:
            assert same(local.history[2:3], value.tensor_amax), name


def forward(model, mesh):
    with torch.no_grad():
        return loss_of(model, 0, mesh.device_type)


def expected_forward(mesh, model):
    """The loss of a whole model, converted from the sharded one's values."""
    whole = Model(model.width)
    values = {name: p.full_tensor().cpu() for name, p in model.named_parameters()}
    whole.load_state_dict(values)
    (format,) = {p.to_local().format for p in weights(model).values()}
    nc.convert(whole, format)
    with torch.no_grad():
        return loss_of(whole.to(mesh.device_type), 0, mesh.device_type)
