"""nc.export: a folder of published weights."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from narrowcast import ranks
from narrowcast.publishing import configuration
from narrowcast.publishing import model as models
from narrowcast.publishing.model import Entry
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
    index, and config.json with a quantization_config. The codes and scales are those that the
    forward multiplies: they are not made anew.

    layout     "deepseek", "mxfp8", "compressed-tensors", "modelopt" or "gpt-oss", if it is one of
               nc.format(name).layouts of every quantized weight's format
    rename, plain_dtype, scale_fmt
               as nc.export_tensors takes them
    config     the rest of config.json; by default that of a transformers model, else nothing
    file_size  of each safetensors file, in GB
    overwrite  replaces a folder that is there; without it that is an error

    Every rank of the job calls it, with the same weights or shards of them, and the first writes.
    DisagreementError where ranks have other weights, as the stages of a pipeline. At most one
    whole weight is on the device beyond the model, and one file in the host's memory. The folder
    appears when it is complete: before, it has another name, ".NAME.partial".
    FileExistsError for a folder that is there, before anything is written; ValueError as in
    nc.export_tensors.
    """
    target = Path(folder)
    _check_free(target, overwrite)
    entries = models.entries_of(model, layout, scale_fmt, rename, plain_dtype)
    tensors = models.tensors_of(entries, layout)
    own = dict(config if config is not None else _config_of(model, plain_dtype))
    plain = models.plain_layers(model, rename)
    texts = _configurations(own, _quantization_config(entries, plain, layout), layout)
    has_ranks = dist.is_initialized()
    if has_ranks:  # all have then looked at the folder, too
        group, device = dist.group.WORLD, models.gather_device(entries[0].tensor)
        lines = [f"{one.name} {list(one.tensor.shape)}" for one in entries]
        ranks.same("the weights that nc.export writes", [(group, device, one) for one in lines])
    if has_ranks and dist.get_rank() > 0:
        for _ in tensors:
            pass
        dist.barrier()
        return
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, text in texts.items():
        (partial / name).write_text(text, encoding="utf-8")
    _write_tensors(partial, tensors, int(file_size * _GB))
    _replace(target, partial)
    if has_ranks:
        dist.barrier()


def _check_free(target: Path, overwrite: bool) -> None:
    if target.exists() and not overwrite and (target.is_file() or any(target.iterdir())):
        raise FileExistsError(
            f"{target} is there already: name another folder, or overwrite=True replaces it"
        )


def _write_tensors(folder: Path, tensors: Iterable, most: int) -> None:
    """Files of at most so many bytes, or of one tensor, and their index if there are several."""
    pending: dict[str, torch.Tensor] = {}
    files: list[list[str]] = []
    size = total = 0

    def write() -> None:
        save_file(pending, folder / f"{len(files)}.safetensors", metadata={"format": "pt"})
        files.append(list(pending))
        pending.clear()

    for name, tensor in tensors:
        if pending and size + tensor.nbytes > most:
            write()
            size = 0
        pending[name] = tensor.cpu()
        size, total = size + tensor.nbytes, total + tensor.nbytes
    write()
    if len(files) == 1:
        (folder / "0.safetensors").rename(folder / "model.safetensors")
        return
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for number, its_names in enumerate(files):
        name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        (folder / f"{number}.safetensors").rename(folder / name)
        index["weight_map"] |= dict.fromkeys(its_names, name)
    (folder / "model.safetensors.index.json").write_text(_json(index), encoding="utf-8")


def _json(value) -> str:
    return json.dumps(value, indent=2) + "\n"


def _replace(target: Path, partial: Path) -> None:
    """Puts a complete folder in its place: one that is there goes out of the way as a whole."""
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


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


def _quantization_config(entries: list[Entry], plain: list[str], layout: str) -> dict:
    quantized = [one for one in entries if one.scheme is not None]
    layers = [layer for one in quantized for layer in configuration.layers_of(one, layout)]
    return configuration.quantization_config(layout, [*dict.fromkeys(layers)], plain)


def _of_modelopt(config: dict) -> dict:
    """The file that modelopt writes beside config.json."""
    names = {"quant_algo", "kv_cache_quant_algo", "group_size", "quantized_layers"}
    quantization = {name: config[name] for name in sorted(names & set(config))}
    return {
        "producer": {"name": "narrowcast"},
        "quantization": quantization | {"exclude_modules": config["ignore"]},
    }
