"""Which format a layer's weight gets: from a provider, or from Megatron's quantization recipe."""

import difflib
from typing import NamedTuple

from narrowcast.registry import partners

KEY = "narrowcast"  # of a recipe's payload


class Options(NamedTuple):
    """format    a format's name, or None: the weight stays as Megatron made it
    matmul    of the layer: "dequantized" or "scaled", as for nc.convert
    """

    format: str | None = None
    matmul: str = "dequantized"

    def check(self) -> None:
        """ValueError or TypeError for a format that is not loaded, or lacks such products."""
        if self.format is not None:
            partners.check_options(self.format, self.matmul)
        elif self.matmul != "dequantized":
            raise ValueError(f'matmul="{self.matmul}" without a format: name one')


PLAIN = Options()


def chosen(quantization_config, default: Options | None, has_recipe: bool) -> Options:
    """The options of a layer.

    quantization_config  what Megatron found for it in the model's recipe: a QuantizationConfig, or
                         None where no matcher matches or there is no recipe
    default              the provider's, which what the recipe names replaces; None: it has none
    has_recipe           whether the model has a recipe at all

    ValueError if neither says what the weight is to be, or for a payload that cannot be meant.
    """
    if quantization_config is None:
        if default is None and not has_recipe:
            raise ValueError(
                "no format is chosen: neither does the spec name one (format=...), nor has the "
                "model a recipe (TransformerConfig.quant_recipe). Give one of the two"
            )
        return default or PLAIN
    where = f'config "{quantization_config.config_key}" of the recipe'
    payload = quantization_config.config
    if not isinstance(payload, dict) or KEY not in payload:
        raise ValueError(
            f"{where} matches this layer and does not say what narrowcast shall do: add "
            f"`{KEY}: {{format: ...}}`, or `{KEY}: null` for a plain weight"
        )
    if payload[KEY] is None:
        return PLAIN
    return _parsed(payload[KEY], where)


def _parsed(words, where: str) -> Options:
    """Options from `{format: ..., matmul: ...}`."""
    if not isinstance(words, dict):
        raise ValueError(f"{where}: `{KEY}` is {{format: ...}} or null, not {words!r}")
    for word in words:
        if word not in Options._fields:
            near = difflib.get_close_matches(str(word), Options._fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(Options._fields)}"
            raise ValueError(f"{where}: `{KEY}` has no key {word!r}: {hint}")
    if words.get("format") is None:
        raise ValueError(
            f"{where}: `{KEY}` names no format. `{KEY}: null` leaves the weight as it is"
        )
    options = Options(**words)
    try:
        options.check()
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None
    return options
