"""nc.export: a folder of published weights."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from numbers import Real
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from narrowcast import ranks
from narrowcast.publishing import configuration
from narrowcast.publishing import model as models
from narrowcast.publishing.folder import NewFolder
from narrowcast.publishing.names import Rename

_GB = 10**9


def export(
    model: nn.Module,
    folder: str | os.PathLike,
    layout: str,
    *,
    rename: Rename = None,
    plain_dtype: torch.dtype | str | None = "auto",
    scale_fmt: str | None = None,
    config: dict | None = None,
    file_size: float = 5.0,
    overwrite: bool = False,
) -> None:
    """Writes a model's weights as readers of open models expect them: safetensors files, their
    index, and config.json with a quantization_config. Codes and scales are those that the forward
    multiplies.

    folder     its path; it must not exist unless overwrite is true
    layout     "deepseek", "mxfp8", "compressed-tensors", "modelopt" or "gpt-oss": a layout of every
               quantized weight's format (nc.format(name).layouts)
    rename, plain_dtype, scale_fmt
               as in nc.export_tensors
    config     the rest of config.json, a dict; None: that of a transformers model, else nothing
    file_size  the largest size of a safetensors file, in GB (10^9 bytes)
    overwrite  replaces an existing folder as a whole; a link stays a link

    Every rank calls it, with the same weights or shards of them, and the first rank writes. At most
    one whole weight is on the device beyond the model, and one file in the host's memory. The
    folder appears when it is complete. Until then it is ".NAME.partial-..." beside its place, and
    is removed if the export fails.

    FileExistsError, before anything is written: the folder exists. ValueError: file_size, and as in
    nc.export_tensors. DisagreementError: ranks have other weights, as stages of a pipeline have. If
    the first rank fails later (a full disk), it raises that error and the others a RuntimeError.
    """
    if not (isinstance(file_size, Real) and file_size > 0):
        raise ValueError(f"file_size is a number of GB above 0, not {file_size!r}")
    new = NewFolder(Path(folder), overwrite, file_size * _GB)
    group = dist.group.WORLD if dist.is_initialized() else None
    device = models.gather_device(next(model.parameters(), torch.empty(0)))
    try:
        entries, error = models.entries_of(model, layout, scale_fmt, rename, plain_dtype), None
    except (TypeError, ValueError) as one:
        entries, error = [], one
    lines = [f"{one.name} {list(one.tensor.shape)}" for one in entries] or [str(error)]
    ranks.same("the weights that nc.export writes", [(group, device, one) for one in lines])
    if error is not None:
        raise error
    tensors = models.tensors_of(entries)
    quantized = [one for one in entries if one.scheme is not None]
    layers = dict.fromkeys(one for entry in quantized for one in configuration.layers_of(entry))
    plain = models.plain_layers(model, rename)
    own = dict(config if config is not None else _config_of(model, plain_dtype))
    quantization = configuration.quantization_config(layout, [*layers], plain)
    texts = _configurations(own, quantization, layout)
    stacks = [one.name for one in quantized if any(len(slot.shape) > 2 for slot in one.slots)]
    if stacks and layout != "gpt-oss":
        warnings.warn(
            f"{stacks[0]} is one tensor of experts in the file, as save_pretrained has it, and no "
            "reader is known that takes scales of such: transformers takes its codes for values. "
            "Leave it out by nc.convert's filter= for transformers",
            stacklevel=2,
        )
    failure: Exception | None = None

    def write(step: Callable, *arguments) -> None:
        """On the first rank, which goes on gathering once it has failed: the others wait for it."""
        nonlocal failure
        if failure is None and (group is None or dist.get_rank() == 0):
            try:
                step(*arguments)
            except Exception as error:
                failure = error

    def raise_failure(told: Exception | None) -> None:
        """Its own on the first rank, and what it has told them on the others."""
        if first := ranks.gather_objects(told, group, device)[0]:
            raise failure or first

    try:
        write(new.begin, texts)
        raise_failure(failure)
        for name, tensor in tensors:
            write(new.add, name, tensor)
        write(new.finish)
        how = f"the first rank failed to write {folder}: {failure!r}"
        raise_failure(failure and RuntimeError(how))
    finally:
        new.discard()


def _json(value) -> str:
    return json.dumps(value, indent=2) + "\n"


# ---- config.json ----


def _configurations(own: dict, quantization: dict, layout: str) -> dict[str, str]:
    """The texts of the files that say how the tensors are to be read, by their names."""
    experts = quantization.get("expert_dtype", "fp8")
    if "expert_dtype" in own or experts != "fp8":  # readers look in either place
        own["expert_dtype"] = experts
    texts = {"config.json": _json(own | {"quantization_config": quantization})}
    if layout == "modelopt":
        texts["hf_quant_config.json"] = _json(_of_modelopt(quantization))
    return texts


def _config_of(model: nn.Module, plain_dtype: torch.dtype | str | None) -> dict:
    """That of a transformers model, as its save_pretrained writes it."""
    config = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return {}
    kind = type(getattr(model, "_orig_mod", model))  # of what torch.compile has wrapped
    own = {"architectures": [kind.__name__.removeprefix("FSDP")]}
    if plain_dtype is not None:
        own["dtype"] = str(plain_dtype).removeprefix("torch.").replace("auto", "bfloat16")
    return config.to_dict() | own


def _of_modelopt(config: dict) -> dict:
    """The file that modelopt writes beside config.json."""
    names = {"quant_algo", "kv_cache_quant_algo", "group_size", "quantized_layers"}
    quantization = {name: config[name] for name in sorted(names & set(config))}
    return {
        "producer": {"name": "narrowcast"},
        "quantization": quantization | {"exclude_modules": config["ignore"]},
    }
