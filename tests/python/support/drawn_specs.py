"""Specs drawn at random from the whole vocabulary, and which of them are to be refused.

A spec is the dictionary that its TOML file holds.
"""

import itertools

ELEMENTS = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2", "int8")
PACKINGS = ("dense", "byte")
SCALES = ("e8m0", "e4m3", "f32")
RULES = ("exact", "quotient", "nearest_even", "floor", "even", "rceil")
DEFINED = (
    *(("exact", "f32"), ("rceil", "f32"), ("quotient", "f32")),
    *(("rceil", "e8m0"), ("floor", "e8m0"), ("even", "e8m0")),
    ("nearest_even", "e4m3"),
)
SIDES = (1, 2, 4, 8, 16, 32, 64, 128)
PADS = (1, 2, 3, 4, 16, 128)


def any_spec(name, rng):
    """Any words of the vocabulary, most of which do not go together."""
    blocks = [_any_block(rng) for _ in range(2)]
    spec = _spec(name, rng, rng.choice(ELEMENTS), rng.choice(SCALES), rng.choice(RULES), blocks)
    if rng.random() < 0.3:
        spec["tensor_scale"] = {"type": "f32"}
    if rng.random() < 0.2:
        spec["quantize"]["amax"] = rng.choice(("current", "delayed"))
    for usage in (spec["rowwise"], spec["columnwise"]):
        if rng.random() < 0.2:
            usage["scale_per"] = [rng.choice((*SIDES, 3)), rng.choice(SIDES)]
        if rng.random() < 0.1:
            usage["scale_pad"] = [rng.choice((*PADS, 2048)), rng.choice(PADS)]
    return spec


def _any_block(rng):
    if rng.random() < 0.25:
        return "tensor"
    return [
        rng.choice((*SIDES, 3, 48, 256)) if rng.random() < 0.1 else rng.choice(SIDES) for _ in "rc"
    ]


def defined_specs(count, rng):
    """Specs that must work. Rules, elements and blocks take turns, so that few
    specs meet all of them."""
    pairs, elements = itertools.cycle(DEFINED), itertools.cycle(ELEMENTS)
    for i in range(count):
        rule, scale = next(pairs)
        two_levels = rule == "nearest_even"
        element = "e2m1" if two_levels else next(elements)
        spans_tensor = i % 5 == 2 and not two_levels
        blocks = ["tensor"] * 2 if spans_tensor else _blocks(rng, scale)
        spec = _spec(f"drawn_{i}", rng, element, scale, rule, blocks)
        if two_levels:
            spec["tensor_scale"] = {"type": "f32"}
        if spans_tensor and i % 10 == 7 and rule != "quotient":  # every other one of them
            spec["quantize"]["amax"] = "delayed"
        yield spec


def _blocks(rng, scale):
    blocks = [[rng.choice(SIDES), rng.choice(SIDES)] for _ in range(2)]
    if rng.random() < 0.4:
        blocks[1] = blocks[0]
    least = 4 if scale == "f32" else 1
    return [block if block[0] * block[1] >= least else [2, 2] for block in blocks]


def _spec(name, rng, element, scale, rule, blocks):
    spec = {
        "format": name,
        "summary": "A format drawn at random.",
        "reference": "none",
        "vocabulary": 1,
        "element": {"type": element},
        "scale": {"type": scale},
        "rowwise": _usage(rng, blocks[0]),
        "columnwise": _usage(rng, blocks[1]),
        "quantize": {"scale": rule},
    }
    if rng.random() < 0.4:
        spec["element"]["packing"] = rng.choice(PACKINGS)
    return spec


def _usage(rng, block):
    usage = {"block": block}
    if rng.random() < 0.5:
        usage["transposed"] = rng.random() < 0.6
    if block == "tensor":
        return usage
    if rng.random() < 0.5:
        usage["scale_per"] = [rng.choice([s for s in SIDES if side % s == 0]) for side in block]
    if rng.random() < 0.6:
        usage["scale_pad"] = [rng.choice(PADS), rng.choice(PADS)]
    if rng.random() < 0.4:
        usage["scale_transposed"] = rng.random() < 0.5
    return usage


def text(spec):
    """The spec's TOML file."""
    lines = [f"{key} = {_value(spec[key])}" for key in spec if not isinstance(spec[key], dict)]
    for table, keys in spec.items():
        if isinstance(keys, dict):
            lines += [f"[{table}]", *(f"{key} = {_value(value)}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"


def _value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


# What each reason to refuse a spec is called in the message about it.
REASONS = (
    "fits no tile",
    "for a scale of 4 bytes",
    "does not divide the block",
    "is too large",
    "does not\n",
    'has no meaning with a block of "tensor"',
    'amax "delayed" with a block of [',
    'amax "delayed" with scale rule "quotient"',
    "is not defined for scales of type",
    'scale rule "nearest_even" with elements of type',
    'scale rule "nearest_even" without a tensor scale',
    "a tensor scale with scale rule",
    'a tensor scale above a block of "tensor"',
)


def faults(spec):
    """Those of REASONS that hold."""
    element, scale = spec["element"]["type"], spec["scale"]["type"]
    rule, delayed = spec["quantize"]["scale"], spec["quantize"].get("amax") == "delayed"
    two_levels = "tensor_scale" in spec
    usages = spec["rowwise"], spec["columnwise"]
    spans = [usage["block"] == "tensor" for usage in usages]
    small = [usage for usage, whole in zip(usages, spans, strict=True) if not whole]
    whole = [usage for usage, whole in zip(usages, spans, strict=True) if whole]
    holds = (
        any(side not in SIDES for usage in small for side in usage["block"]),
        scale == "f32" and any(usage["block"][0] * usage["block"][1] < 4 for usage in small),
        any(
            side % per
            for usage in small
            for side, per in zip(usage["block"], usage.get("scale_per", [1, 1]), strict=True)
        ),
        any(max(usage.get("scale_pad", [1])) > 1024 for usage in usages),
        spans[0] != spans[1],
        any(
            key in usage
            for usage in whole
            for key in ("scale_per", "scale_pad", "scale_transposed")
        ),
        delayed and not spans[0],
        delayed and rule == "quotient",
        (rule, scale) not in DEFINED,
        rule == "nearest_even" and element != "e2m1",
        rule == "nearest_even" and not two_levels,
        two_levels and rule != "nearest_even",
        two_levels and spans[0],
    )
    return {reason for reason, is_so in zip(REASONS, holds, strict=True) if is_so}
