"""The loaded formats and their facts, as derived from their specs."""

import dataclasses
import difflib
import functools
import hashlib
import math
import os
from pathlib import Path

import torch

from narrowcast import _C
from narrowcast._C import PluginError
from narrowcast.registry import layouts
from narrowcast.registry.states import state_formats

# The buffers of a quantized matrix, in the order of every tuple of buffers.
BUFFERS = range(4)
SCALES = BUFFERS[1::2]  # the others are data
USAGES = ("rowwise", "columnwise")


def buffers_of(usage: str) -> tuple[int, int]:
    """The data and the scale buffer of "rowwise" or "columnwise"."""
    if usage not in USAGES:
        raise ValueError(f'usage is "rowwise" or "columnwise", not {usage!r}')
    return tuple(BUFFERS[:2] if usage == "rowwise" else BUFFERS[2:])


@dataclasses.dataclass(frozen=True)
class UsageLayout:
    """How one usage is stored. `block`, `scale_per`: (rows, columns) or "tensor"; `scale_pad`: of
    the stored scale matrix; `step`: the rows and columns at whose multiples it can be cut.
    """

    block: tuple[int, int] | str
    scale_per: tuple[int, int] | str
    scale_pad: tuple[int, int]
    transposed: bool
    scale_transposed: bool
    step: tuple[int, int]
    element_bits: int
    scale_bytes: int

    @property
    def wire_bits(self) -> float:
        """Of an element in a gather: a scale travels once a block, one of the tensor not at all."""
        if self.block == "tensor":
            return self.element_bits
        rows, columns = self.block
        return self.element_bits + 8 * self.scale_bytes / (rows * columns)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What an operation does with a weight. `kind`: "exact" (on the bytes) or "error"; `text`:
    under which condition, or for which reason.
    """

    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Rules:
    """Of the operations whose outcome depends on the format."""

    cut: Outcome
    transpose: Outcome
    write_part: Outcome


@dataclasses.dataclass(frozen=True)
class Product:
    """A matrix product of operands that are cast. `kind`: by the scales of its operands;
    `machines`: those whose matrix units know the kind, while all others decode the operands;
    `reason`: in words.
    """

    number: int  # of the kind
    kind: str
    machines: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Products:
    """The formats that a layer's input and its output's gradient are cast to; its products."""

    input: str
    gradient: str
    stochastic_gradient: bool  # its codes are rounded stochastically
    forward: Product
    input_gradient: Product
    weight_gradient: Product


@dataclasses.dataclass(frozen=True, eq=False)
class Format:
    """The facts of a loaded format, which follow from its spec. Words, units: docs/numerics.md."""

    name: str
    summary: str
    reference: str
    element: str
    packing: str
    scale: str
    scale_dtype: str  # of a stored scale, as torch names it
    tensor_scale: str | None
    scale_rule: str
    amax: str
    rowwise: UsageLayout
    columnwise: UsageLayout
    columnwise_derived: bool
    group: int  # elements that fill whole bytes: a stored row holds a multiple of them
    mirrored: bool  # the usages, exchanged, are those of the transposed matrix
    tensor_amax: bool
    row_step: int
    shard_row_step: int
    bits_per_element: float
    wire_bits_per_element: float
    rules: Rules
    matmul: Products | None  # None where the spec says nothing of them
    casts_parts: bool  # gradients can travel in it: nc.set_reduce_scatter_format
    cuda: bool
    plugin: _C.Plugin = dataclasses.field(repr=False)

    @property
    def gather(self) -> str:
        """What FSDP2 gathers: "rowwise" in both passes, or "by pass" (each pass its own usage)."""
        return "rowwise" if self.columnwise_derived else "by pass"

    @property
    def layouts(self) -> list[str]:
        """The layouts of published weights that hold its bytes: see nc.export."""
        return sorted(name for name in layouts.LAYOUTS if layouts.scheme_of(self, name) is not None)

    @property
    def is_delayed(self) -> bool:
        """Whether its scale follows from the amaxes of earlier casts."""
        return self.amax == "delayed"

    @functools.cached_property
    def identity(self) -> str:
        """Its name, and a digest of its facts: processes may have loaded others under one name."""
        compared = [f for f in dataclasses.fields(self) if f.name not in ("cuda", "plugin")]
        facts = repr([getattr(self, field.name) for field in compared])
        return f"{self.name} ({hashlib.blake2b(facts.encode(), digest_size=4).hexdigest()})"

    @property
    def path(self) -> str:
        """The file that the format was loaded from."""
        return self.plugin.path

    @property
    def column_step(self) -> int:
        """The columns at whose multiples a tensor can be cut, in both usages."""
        return self.step(USAGES)[1]

    def step(self, usages) -> tuple[int, int]:
        """The rows and columns at whose multiples some usages can be cut."""
        steps = [getattr(self, usage).step for usage in usages]
        return tuple(math.lcm(*along) for along in zip((1, 1), *steps, strict=True))

    def buffer_dtype(self, buffer: int) -> torch.dtype:
        """Of a buffer's entries: data is bytes."""
        return getattr(torch, self.scale_dtype) if buffer in SCALES else torch.uint8

    def is_spanning(self, buffer: int) -> bool:
        """Whether a buffer is the one scale of a whole tensor."""
        return buffer in SCALES and self.rowwise.block == "tensor"

    def buffer_shape(self, buffer: int, rows: int, columns: int) -> tuple[int, ...]:
        """The shape of a buffer of a rows x columns matrix, padding included."""
        return self.plugin.buffer_shape(buffer, rows, columns)

    def used_shape(self, buffer: int, rows: int, columns: int) -> tuple[int, ...]:
        """The same without padding."""
        return self.plugin.used_shape(buffer, rows, columns)

    def stored_box(self, buffer: int, region) -> tuple[tuple[int, int], ...]:
        """Where a Region lies in a buffer: the first entry and their number, by dimension."""
        return self.plugin.stored_box(buffer, *region)

    def check_holds(self, usage: str, rows: int, columns: int) -> None:
        """ValueError, with the multiple, if sub-byte elements do not fill whole bytes."""
        self.plugin.check_holds(usage, rows, columns)

    def check_matmul(self, option: str) -> None:
        """ValueError for an option of matrix products that makes no sense, and if the formats that
        scaled ones multiply are not those which this one was built for.
        """
        if option not in ("dequantized", "scaled"):
            raise ValueError(f'matmul is "dequantized" or "scaled", not {option!r}')
        if option == "dequantized":
            return
        matmul = self.matmul
        if matmul is None:
            able = [name for name in formats() if format(name).matmul]
            raise ValueError(
                f'matmul="scaled": {self.name} names no formats for activations and gradients. '
                f"Use one that does ({', '.join(able)}), or add [matmul] to its spec"
            )
        partners = (format(name).plugin for name in (matmul.input, matmul.gradient))
        built = matmul.forward, matmul.input_gradient, matmul.weight_gradient
        if _C.product_kinds(self.plugin, *partners) != tuple(one.number for one in built):
            raise ValueError(
                f'matmul="scaled": {self.name} was built when {matmul.input} and '
                f"{matmul.gradient}, which its products name, had other facts than what is "
                f"loaded: build it again, together with them ({self.path})"
            )

    def __reduce__(self):
        return format, (self.name,)


_formats: dict[str, Format] = {}


def _register(plugin: _C.Plugin) -> str:
    """Enters the format that a plugin brings, and returns its name."""
    facts = plugin.facts()
    for usage in USAGES:
        facts[usage] = UsageLayout(**facts[usage])
    facts["rules"] = Rules(*(Outcome(*rule) for rule in facts["rules"]))
    if matmul := facts["matmul"]:
        each = (Product(*product) for product in matmul.pop("products"))
        facts["matmul"] = Products(*matmul.values(), *each)
    _formats.setdefault(facts["name"], Format(**facts, plugin=plugin))
    return facts["name"]


def formats() -> list[str]:
    """The names of all loaded formats, in alphabetical order."""
    return sorted(_formats)


def format(name: str | Format) -> Format:
    """The facts of a loaded format, by its name; of a Format, itself. ValueError, with the nearest
    names, if no format has this name; TypeError if `name` is neither.
    """
    if isinstance(name, Format):
        return name
    if not isinstance(name, str):
        raise TypeError(f"a format is a name or nc.format(name), not a {type(name).__name__}")
    if name in _formats:
        return _formats[name]
    if name in state_formats():
        raise ValueError(
            f"{name!r} is a state format: of what an optimizer keeps (state_dtype={name!r} of "
            "nc.optim.AdamW), not of weights"
        )
    longer = [other for other in formats() if name and other.startswith(name)]
    near = longer or difflib.get_close_matches(name, _formats, n=3, cutoff=0.5)
    loaded = f"loaded are {', '.join(formats()) or 'none'}"
    hint = f"did you mean {' or '.join(near)}?" if near else loaded
    raise ValueError(
        f"there is no format {name!r}: {hint} (formats of your own: nc.load_plugin or "
        "NARROWCAST_PLUGINS)"
    )


def load_plugin(path: str | os.PathLike) -> list[str]:
    """Loads a plugin file, or every .so file of a folder. Returns the names of their formats,
    without plain parameters, for which a file of `narrowcast build --rule` may be.

    A file may be loaded twice. If its format is loaded, its optimizer rules join the format's.
    PluginError if a file is missing, cut short, damaged, of another version or no plugin, if the
    format or a rule is not as loaded, or if another file has loaded a rule of the same name for it;
    ValueError for an empty path. A plugin is code, and may do all that this process may.
    """
    if not os.fspath(path):  # which Path takes for the present folder
        raise ValueError("the path of a plugin is empty: name a file, or a folder of .so files")
    path = Path(path)
    # A format comes before the rules that were built for it, <rule>.<format>.so.
    in_order = sorted(path.glob("*.so"), key=lambda file: (file.name.count("."), file.name))
    files = in_order if path.is_dir() else [path]
    if not files:
        raise PluginError(f"{path} is a folder without plugins (*.so)")
    plugins = [_C.load_plugin(str(file)) for file in files]
    return list(dict.fromkeys(_register(plugin) for plugin in plugins if plugin is not None))


def shipped_plugins() -> list[Path]:
    """The plugin files that come with the package, each named as its format."""
    return sorted((Path(__file__).parents[1] / "plugins").glob("*.so"))


def load_all() -> None:
    """Loads the shipped formats, and those of NARROWCAST_PLUGINS (files, folders, os.pathsep)."""
    named = filter(None, os.environ.get("NARROWCAST_PLUGINS", "").split(os.pathsep))
    for path in (*shipped_plugins(), *named):
        load_plugin(path)
