"""What readers look for in config.json: quantization_config, by layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from narrowcast.master import MasterWeight
from narrowcast.publishing.names import Entry
from narrowcast.registry.layouts import Scheme
from narrowcast.tensor import QuantizedTensor, dtensors


class Layer(NamedTuple):
    """A module with a quantized weight: its name in the file, how its weight is stored, the block
    of a scale there, and whether it multiplies bytes (matmul="scaled").
    """

    name: str
    scheme: Scheme
    block: tuple[int, int] | str
    is_scaled: bool


def layers_of(entry: Entry) -> list[Layer]:
    """The modules of the file that a quantized weight is in, or would be."""
    local = dtensors.local_of(entry.tensor)
    is_quantized = isinstance(local, (QuantizedTensor, MasterWeight))
    is_scaled = is_quantized and entry.store.config.matmul == "scaled"
    names = [entry.names_of(slot)["codes"].rpartition(".")[0] for slot in entry.slots]
    return [Layer(one, entry.scheme, entry.block, is_scaled) for one in names]


class Facts:
    """of(layer)  what a quantization_config says of the bytes of its weight, in its own words

    ValueError for a configuration of another structure than its quant_method has.
    """

    def __init__(self, config: dict):
        self._config, self._named, self._groups = config, {}, []
        try:
            if "config_groups" in config and config.get("quant_method") == "compressed-tensors":
                self._groups = [*config["config_groups"].values()]
                for group in self._groups:
                    self._named |= dict.fromkeys(group["targets"], group) | self._named
            self._patterns = [re.compile(one[3:]) for one in self._named if one[:3] == "re:"]
            self.of("")
        except (AttributeError, KeyError, TypeError, re.error) as error:
            raise ValueError(f"config.json has a damaged quantization_config: {error!r}") from None

    def of(self, layer: str) -> dict:
        if self._groups:
            found = (f"re:{one.pattern}" for one in self._patterns if one.match(layer))
            name = layer if layer in self._named else next(found, None)
            said = self._named.get(name, self._groups[0]).get("weights") or {}
            words = "type", "num_bits", "strategy", "group_size", "block_structure"
            return {one: said.get(one) for one in words}
        said = self._config.get("quantized_layers", {}).get(layer, self._config)
        if said.get("quant_algo") is not None:
            return {"quant_algo": said["quant_algo"].removeprefix("W4A16_")}
        return {one: said.get(one) for one in ("fmt", "weight_block_size")}


def contradictions(facts: Facts, layout: str, layer: Layer) -> Iterator[str]:
    """What a quantization_config of a layout says of a layer that its scheme does not."""
    if layout == "deepseek" and layer.scheme.algorithm != "fp8":
        return  # experts, of which it says nothing
    own = Facts(quantization_config(layout, [layer], [])).of(layer.name)
    for word, value in facts.of(layer.name).items():
        if None not in (value, own.get(word)) and value != own[word]:
            yield f"config.json says {word} {value} of {layer.name}, and {own[word]} was expected"


def quantization_config(layout: str, layers: list[Layer], plain: list[str]) -> dict:
    """`plain`: the names of layers that multiply by a matrix, and are not quantized."""
    return _CONFIGS[layout](layers, plain)


def _deepseek(layers: list[Layer], plain: list[str]) -> dict:
    blocks = [list(one.block) for one in layers if one.scheme.algorithm == "fp8"]
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    config["weight_block_size"] = blocks[0] if blocks else [1, 32]
    if any(one.scheme.scales[1] == "float8_e8m0fnu" for one in layers):
        config["scale_fmt"] = "ue8m0"
    if any(one.scheme.algorithm == "fp4" for one in layers):
        config["expert_dtype"] = "fp4"
    return config | {"modules_to_not_convert": plain}


def _mxfp8(layers: list[Layer], plain: list[str]) -> dict:
    config = {"quant_method": "mxfp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    block = {"weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
    return config | block | {"modules_to_not_convert": plain}


def _gpt_oss(layers: list[Layer], plain: list[str]) -> dict:
    return {"quant_method": layers[0].scheme.algorithm, "modules_to_not_convert": plain}


def _compressed_tensors(layers: list[Layer], plain: list[str]) -> dict:
    groups: dict[tuple, list[str]] = {}
    for one in layers:
        groups.setdefault((one.scheme, one.block, one.is_scaled), []).append(one.name)
    formats = {scheme.algorithm for scheme, _, _ in groups}
    config_groups = {}
    for number, ((scheme, block, is_scaled), names) in enumerate(groups.items()):
        weights = _arguments(scheme, block)
        inputs = None  # of two levels engines read the upper from the file: a calibration's
        if is_scaled and scheme.global_scale is None:
            inputs = _arguments(scheme, _INPUT_BLOCKS.get(block, block)) | {"dynamic": True}
        targets = ["Linear"] if len(groups) == 1 else names
        config_groups[f"group_{number}"] = {
            "targets": targets,
            "weights": weights,
            "input_activations": inputs,
            "output_activations": None,
            "format": scheme.algorithm,
        }
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": config_groups,
        "ignore": plain,
        "kv_cache_scheme": None,
    }


# Of inputs, which engines cast: one row has no block of rows.
_INPUT_BLOCKS = {(128, 128): (1, 128)}


def _arguments(scheme: Scheme, block) -> dict:
    """QuantizationArgs of compressed-tensors."""
    arguments = {"num_bits": scheme.bits, "type": "float", "symmetric": True, "dynamic": False}
    if block == "tensor":
        return arguments | {"strategy": "tensor"}
    if block[0] > 1:
        return arguments | {"strategy": "block", "block_structure": list(block)}
    arguments["strategy"] = "tensor_group" if scheme.global_scale else "group"
    arguments["group_size"] = block[1]
    if scheme.scale != "f32":
        arguments["scale_dtype"] = f"torch.{scheme.scales[1]}"
    return arguments


def _modelopt(layers: list[Layer], plain: list[str]) -> dict:
    each = {one.name: {"quant_algo": one.scheme.algorithm} for one in layers}
    for one in layers:
        if one.block != "tensor":
            each[one.name]["group_size"] = one.block[1]
    kinds = {tuple(one.items()) for one in each.values()}
    config = dict(kinds.pop()) if len(kinds) == 1 else {"quant_algo": "MIXED_PRECISION"}
    if config["quant_algo"] == "MIXED_PRECISION":
        config["quantized_layers"] = each
    return {"quant_method": "modelopt", **config, "kv_cache_quant_algo": None, "ignore": plain}


_CONFIGS = {
    "deepseek": _deepseek,
    "mxfp8": _mxfp8,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "gpt-oss": _gpt_oss,
}
