"""The oracle at the beginning of a round."""

from pathlib import Path

import numpy as np

import reference
from net import build, groups
from oracle import Oracle, Parameter

SPECS = Path(__file__).parents[2] / "spec"


def oracle_of(setup) -> Oracle:
    model = build(setup, 1)
    format = reference.load_format(SPECS / f"{setup.format}.toml")
    parameters = []
    for index, group in enumerate(groups(model)):
        for name, p in group["params"]:
            value = p.detach().float().numpy().copy()
            is_quantized = name.endswith("weight") and p.dim() == 2
            parameter = Parameter(
                name=name,
                position=len(parameters),
                format=format if is_quantized else None,
                is_frozen=not p.requires_grad,
                group=index,
                value=value,
                exp_avg=np.zeros_like(value),
                exp_avg_sq=np.zeros_like(value),
            )
            parameter.cut(setup.worlds[0])
            parameters.append(parameter)
    options = [dict(setup.options), dict(setup.options)]
    return Oracle(parameters, options, setup.worlds[0], setup.bf16_state, setup.scale)
