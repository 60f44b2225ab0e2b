"""Experts: modules that keep the weights of many linear layers in one parameter of three
dimensions, [experts, out, in] or [experts, in, out].
"""

from torch import nn

from narrowcast.registry import Format

_OF_ONE_MATRIX = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_OF_ONE_MATRIX += (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def is_of_one_matrix(module: nn.Module) -> bool:
    """Whether a module's weight is one matrix, whatever its dimensions."""
    return isinstance(module, _OF_ONE_MATRIX)


def are_experts(name: str, module: nn.Module) -> bool:
    """Whether a module is called so, by its class or its own name, and has such parameters."""
    names = f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
    return "expert" in names and bool(stacks(module))


def is_router(name: str, linear: nn.Linear) -> bool:
    """Whether a linear layer chooses experts, by its class, its own name or its module's: such are
    kept as they are by all who publish mixtures. What is called a gate is one if it narrows.
    """
    parts = [*name.lower().split(".")[-2:], type(linear).__name__.lower()]
    is_gate = any(one in ("gate", "gating", "shared_expert_gate") for one in parts)
    return any("router" in one for one in parts) or (
        is_gate and linear.out_features < linear.in_features
    )


def weights_of(module: nn.Module) -> list[str]:
    """What a module's weights are called: `weight`, else all of its stacks."""
    if module._parameters.get("weight") is not None:
        return ["weight"]
    return stacks(module)


def stacks(module: nn.Module) -> list[str]:
    """The floating parameters of a module that are stacks of matrices."""
    if is_of_one_matrix(module):
        return []
    return [
        name
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() == 3 and parameter.is_floating_point()
    ]


def check_blocks(name: str, weight: nn.Parameter, modules, format: Format) -> None:
    """ValueError if a block would lie in two matrices of a stack."""
    if weight.dim() != 3 or any(map(is_of_one_matrix, modules)):
        return
    count, rows, columns = weight.shape
    if count > 1 and rows % format.row_step != 0:
        raise ValueError(
            f"{name}: {count} experts of {rows}x{columns} cannot be kept in {format.name}: its "
            f"blocks begin at multiples of {format.row_step} rows, so some would lie in two "
            f"experts. Use experts of a multiple of {format.row_step} rows, or a format with a "
            "smaller row step; or leave them out with nc.convert's filter"
        )
