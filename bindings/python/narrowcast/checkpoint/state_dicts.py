"""What the state dict of a module holds of its quantized weights, and what a load of one does.

Hooks of torch's own, on each module of a model that nc.convert is given: whichever library asks one
for its state dict gets the same, also where a quantized weight was tied to it since.
"""

import torch
from torch import nn

from narrowcast.fsdp import torch_names
from narrowcast.master import weight as masters
from narrowcast.master.weight import MasterWeight
from narrowcast.tensor import QuantizedTensor, dtensors
from narrowcast.tensor.gathered import GatheredStore


def attach(model: nn.Module) -> None:
    """Has the state dicts of a model's modules hold the masters of quantized weights, in float32,
    and has load_state_dict(assign=True) keep those quantized. Twice is as once.
    """
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):  # takes no hooks; nor does FSDP2 shard it
            continue
        if module._parameters and hold_masters not in module._state_dict_hooks.values():
            module.register_state_dict_post_hook(hold_masters)
            module.register_load_state_dict_pre_hook(prepare_load)


def hold_masters(module: nn.Module, state_dict, prefix: str, local_metadata) -> None:
    """After module.state_dict(): the master in the place of a weight that has one, and no copy of
    it. A weight without master stays as it is, for its bytes are all that there is of it; so do
    parameters, which keep_vars=True asks for.
    """
    for name, parameter in _quantized(module):
        held = state_dict.get(prefix + name)
        if held is parameter or not _is_quantized(held):
            continue
        local = dtensors.local_of(held)
        if isinstance(local, QuantizedTensor) and local.kept_value is None:
            continue
        local = dtensors.local_of(parameter)
        value = local.value if isinstance(local, MasterWeight) else local.kept_value
        state_dict[prefix + name] = dtensors.like(held, value.detach())


def prepare_load(module, state_dict, prefix: str, local_metadata, *rest) -> None:
    """Before a load: one that assigns gets quantized tensors of the plain ones to assign."""
    every = _quantized(module)
    if any(_is_gathered(one) for _, one in every):
        # FSDP2's hook does this too, and comes later if fully_shard did.
        torch_names.reshard_all([module])
        every = _quantized(module)
    assigns = local_metadata.get("assign_to_params_buffers", False)
    for name, parameter in every:
        value = state_dict.get(prefix + name)
        if not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
            continue  # torch has words for other shapes
        if assigns and not _is_quantized(value):
            state_dict[prefix + name] = _like(parameter, value.detach())


def _quantized(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The quantized parameters of a module itself, by name."""
    named = module.named_parameters(recurse=False, remove_duplicate=False)
    return [(name, parameter) for name, parameter in named if _is_quantized(parameter)]


def _is_quantized(tensor: torch.Tensor) -> bool:
    return isinstance(dtensors.local_of(tensor), (QuantizedTensor, MasterWeight))


def _is_gathered(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, QuantizedTensor) and isinstance(tensor._store, GatheredStore)


def _like(parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A value in the format of a quantized parameter and with its options, on the value's device.
    The logical dtype is the value's if it can be, as assigning has it; but float32 may be a master,
    of a weight of any.
    """
    local, given = dtensors.local_of(parameter), dtensors.local_of(value)
    if isinstance(local, MasterWeight):
        return dtensors.like(value, masters.like(local, given))
    halves = torch.bfloat16, torch.float16
    dtype = value.dtype if value.dtype in halves else parameter.dtype
    quantized = torch.empty_like(local.detach(), dtype=dtype, device=given.device)
    return dtensors.like(value, quantized.copy_(given))
