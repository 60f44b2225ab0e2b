"""MasterWeight: a tensor around its value. What torch does with it, it does with that.

The value is float32, or bfloat16 where nc.convert was told so. A weight of a bfloat16 or float16
model announces this dtype over a float32 value. Then

    read      the value rounded to it
    written   in float32: of other weights the values, of other tensors what they are, widened
    copied    the value, and so is what `to` makes of another dtype that can be announced
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.autograd.graph import increment_version

from narrowcast import _C, registry
from narrowcast.master import casts, operators
from narrowcast.master.cell import Cell
from narrowcast.tensor import LOGICAL_DTYPES, compiling, dispatch, graphs
from narrowcast.tensor.store import Store, WeightConfig
from narrowcast.tensor.view import View
from narrowcast.tensor.wrapper import moved

Tensor = torch.Tensor

# By torch function, what must be seen above autograd; and the operators that read bytes, each with
# the value that a weight is there. Others act on the value.
FUNCTIONS: dict[Callable, Callable] = {}
DECODING: dict[Callable, Callable] = {}


class MasterWeight(torch.Tensor):
    """A weight in training, as nc.convert makes it. To torch it is a tensor over its value;
    products of matrices read its bytes. Over a float32 value it announces a dtype, float32,
    bfloat16 or float16: torch reads the value rounded to it, and the gradient has it.

    value   a plain tensor of the same shape, float32 or with value_dtype=torch.bfloat16 that, which
            optimizers and initializers write, and which checkpoints have
    format  the facts of its format (nc.format)
    cell    private: the bytes, which all tensors over the value's memory share

    NotImplementedError for an operation that would change its shape or its memory.
    """

    # In __dict__, so that torch.utils.swap_tensors can exchange one with a plain tensor.
    value: torch.Tensor
    cell: Cell
    seen_by_graphs: int | None = None  # the count of writes when one asked for its bytes
    in_graphs: tuple = None, None  # what __tensor_flatten__ found, and of which store

    @staticmethod
    def __new__(
        cls,
        value: torch.Tensor,
        cell: Cell | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        requires_grad: bool = False,
    ):
        if cell is None:
            return moved(cls, value, requires_grad)
        place = {"strides": value.stride(), "storage_offset": value.storage_offset()}
        with torch.inference_mode(False):
            self = Tensor._make_wrapper_subclass(
                cls, value.shape, **place, dtype=dtype, device=value.device
            )
        _C.withhold_memory(self)
        _C.share_count(self, value)  # autograd, and a graph that writes, count for this one
        self.value, self.cell = value, cell
        return self

    def __init__(self, *arguments, **options):
        super().__init__()  # all is done in __new__

    @classmethod
    def of(
        cls,
        value: torch.Tensor,
        format: registry.Format,
        config: WeightConfig,
        readers: weakref.WeakSet[Cell] | None = None,
        dtype: torch.dtype = torch.float32,
        value_dtype: torch.dtype = torch.float32,
    ) -> MasterWeight:
        """Of a value whose memory it takes over, if that is a run of value_dtype. It announces the
        value's dtype, or `dtype` over one of float32, which may be a master; with a bfloat16 value
        that. TypeError for others.
        """
        if value.dtype not in LOGICAL_DTYPES:
            raise wrong_dtype(config, value.dtype)
        if value_dtype != torch.float32:
            dtype = value_dtype
        elif value.dtype != torch.float32:
            dtype = value.dtype
        with torch.inference_mode(False), torch.no_grad():
            # torch counts no writes to a tensor of inference mode.
            value = value.clone() if value.is_inference() else value.resolve_neg()
            value = value.to(value_dtype).contiguous()
            return cls(value, Cell(value, format, config, readers), dtype)

    # ---- for the rest of narrowcast ----

    @property
    def format(self) -> registry.Format:
        """The facts of its format."""
        return self.cell.format

    @property
    def config(self) -> WeightConfig:
        """Its name and nc.convert's options."""
        return self.cell.config

    @config.setter
    def config(self, config: WeightConfig) -> None:
        self.cell.config = config

    @property
    def _store(self) -> Store:
        return self.cell.store

    @property
    def _view(self) -> View:  # C++ finds bytes and value by it
        return self.cell.view(self.value)

    def describe(self) -> str:
        """For messages."""
        return self._store.describe()

    def become_part(self, is_part: bool) -> None:
        """From now on it is what tensor parallelism has given this rank of a weight, in memory of
        its own. `is_part`: other ranks have other parts.
        """
        if not self.cell.is_entire(self.value):
            self._take_over(like(self, self.value.clone()))
        self.cell.is_part = self._store.partial = is_part

    def _take_over(self, other: MasterWeight) -> None:
        """Has the value and the bytes of another one from now on."""
        is_narrow = self.value.dtype != torch.float32  # so optimizers may have residuals of it
        if is_narrow and other.cell is not self.cell and self.cell.has_store:
            other.cell.store.replace(self.cell.store)
        self.value, self.cell, self.in_graphs = other.value, other.cell, (None, None)
        _C.share_count(self, other.value)
        _C.note_change()

    # ---- its memory is the value's: libraries find tied weights by it ----

    def data_ptr(self) -> int | Address:
        address = self.value.data_ptr()
        return Address(self, address) if announces(self) else address

    def untyped_storage(self) -> torch.UntypedStorage:
        return compiling.storage_of(self.value)

    def _typed_storage(self) -> torch.TypedStorage:
        return self.value._typed_storage()

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"MasterWeight({self.format.name}, {self.dtype}, {self.value!r})"

    # ---- torch's protocols ----

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        handler = FUNCTIONS.get(func, dispatch.as_torch_does)
        return handler(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, dispatch.facts(func)
        if facts.reshapes:
            raise NotImplementedError(
                f"{func}: a weight keeps its shape and its memory, of which it has bytes. Assign "
                "another tensor to its .data"
            )
        if torch.is_inference_mode_enabled():  # of whose tensors torch counts no writes
            if func._can_decompose():
                return func.decompose(*args, **kwargs)
            with torch.inference_mode(False), torch.no_grad():
                return cls.__torch_dispatch__(func, types, args, kwargs)
        if facts.written:
            return cls._write(func, facts, args, kwargs)
        first = args[0] if args else None
        if isinstance(first, cls) and facts.is_view:
            out = func(*mapped(value_of, args), **mapped(value_of, kwargs))
            return first._part(out) if isinstance(out, Tensor) else [*map(first._part, out)]
        if isinstance(first, cls) and func in operators.COPIES:
            dtype = kwargs.get("dtype") or first.dtype
            if dtype in LOGICAL_DTYPES:
                return first._copy(func, args, kwargs, dtype)
        read = DECODING.get(func, rounded)
        return func(*mapped(read, args), **mapped(read, kwargs))

    @classmethod
    def _write(cls, func, facts, args, kwargs):
        """Runs an operator that writes to weights, or to plain tensors what it reads of weights."""
        leaves = dispatch.written_leaves(func, args, kwargs)
        weights = [one for one in leaves if isinstance(one, cls)]
        if not weights:
            return func(*mapped(rounded, args), **mapped(rounded, kwargs))
        if compiling.is_recorded():
            for one in weights:
                if one.cell.written is None:  # which is no copy in a trace
                    compiling.check_write(one.describe())
        narrow = [at for at, one in enumerate(leaves) if announces(one)]
        if narrow and func._schema.name.startswith("aten::_fused_"):
            raise NotImplementedError(
                f"{func}: torch's fused steps know no weight of {leaves[narrow[0]].dtype} over a "
                "float32 value. Use one of nc.optim, leave out fused=True, or train a float32 "
                "model under MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
            )
        if narrow and len(leaves) > 1 and isinstance(args[0], (list, tuple)):
            for some in operators.one_by_one(narrow, len(leaves), args, kwargs):
                cls.__torch_dispatch__(func, (cls,), *some)
            return None

        def in_float32(one):
            if isinstance(one, cls):
                return one.value
            is_read = func not in operators.CONVERTING and all(one is not other for other in leaves)
            return one.float() if is_read and one.dtype in LOGICAL_DTYPES else one

        if narrow:
            out = func(*mapped(in_float32, args, Tensor), **mapped(in_float32, kwargs, Tensor))
        else:
            out = func(*mapped(value_of, args), **mapped(value_of, kwargs))
        # What runs below autograd is counted by nobody else.
        increment_version([one.value for one in weights])
        if any(one.value.shape != one.shape for one in weights):  # torch resizes `out`
            raise ValueError(f"{func}: its result has another shape than the weight it is for")
        for one in weights:
            if one.cell.written is not None:
                one.cell.written = True
        if out is None or facts.is_collective:
            return out
        return leaves[0] if len(leaves) == 1 else leaves

    def _part(self, value: torch.Tensor) -> MasterWeight:
        """A tensor over the same memory, to which torch has given a count of its own."""
        _C.share_count(value, self.cell.whole)
        return MasterWeight(value, self.cell, self.dtype)

    def _copy(self, func, args, kwargs, dtype: torch.dtype) -> MasterWeight:
        """One that announces a dtype, whose value is as exact as this one's. Of a bfloat16 value
        those of other dtypes have float32 ones.
        """
        if "dtype" in kwargs:
            is_narrow = self.value.dtype == dtype == torch.bfloat16
            kwargs = {**kwargs, "dtype": dtype if is_narrow else torch.float32}
        value = func(*mapped(value_of, args), **mapped(value_of, kwargs))
        copied = MasterWeight(value, self.cell.copy_of(value), dtype)
        if func is torch.ops.aten.clone.default:  # one that is no longer the model's
            copied.config = copied.config._replace(scale_group=None)
        return copied

    def __reduce_ex__(self, protocol):
        """A parameter is pickled with its format, any other as a plain tensor."""
        if isinstance(self.value, FakeTensor):  # torch 2.11 pickles what a graph rests on, as a key
            return rebuild, (self._stable_hash_for_caching(),)
        if not isinstance(self, nn.Parameter):
            return self.value.__reduce_ex__(protocol)
        config = tuple(self.cell.config._replace(scale_group=None))
        rest = self.requires_grad, self.attributes(), self.dtype
        return rebuild, (self.value, self.format.name, config, *rest)

    def __deepcopy__(self, memo):
        made = self.detach().clone()
        # The weights of a copied model are cast together, and not with those of the model.
        readers = self.cell.readers
        made.cell.readers = memo.setdefault(id(readers), type(readers)())
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, self.requires_grad)
        elif self.requires_grad:
            made.requires_grad_()
        memo[id(self)] = made
        made.__dict__.update(copy.deepcopy(self.attributes(), memo))
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    # ---- torch.compile: a graph has the value, and the key of the bytes ----

    def __tensor_flatten__(self):
        casts.before_graph(self)
        store = self.cell.store
        known, facts = self.in_graphs
        if known != (store, store.config, store.partial):
            view, place = self._view, None
            if not view.is_whole:
                # A graph has the values of a part, because it asks where their memory is.
                place = tuple(self.shape), self.stride(), view.first
            facts = self.dtype, graphs.facts_of(View(store, place=place), self.dtype, None)
            self.in_graphs = (store, store.config, store.partial), facts
        return ["value", "graph_key"], facts

    @property
    def graph_key(self) -> torch.Tensor:
        """By which the operators of a graph find the bytes."""
        return self.cell.store.graph_key

    @staticmethod
    def __tensor_unflatten__(inner, facts, outer_size, outer_stride):
        (value, key), (dtype, facts) = (inner["value"], inner["graph_key"]), facts
        view, _ = graphs.unflatten(key, facts, tuple(map(int, outer_size)))
        cell = Cell(value, view.store.format, view.store.config)
        cell.use(view)
        cell.written = False
        return MasterWeight(value, cell, dtype)

    _stable_hash_for_caching = graphs.stable_hash  # torch asks it from 2.12 on

    def attributes(self) -> dict:
        """What others have set on it."""
        known = "value", "cell", "_is_param", "seen_by_graphs", "in_graphs"
        return {key: one for key, one in self.__dict__.items() if key not in known}


# torch.compile looks at functions and operators, but not into what is behind them.
compiling.leave_alone(MasterWeight.__torch_function__)


class Address:
    """Of the value of a weight that announces another dtype: libraries tell parameters apart by it.
    TypeError where it is taken for a number, to read memory.
    """

    def __init__(self, weight: MasterWeight, number: int):
        self._number, self._dtype = number, weight.dtype

    def __hash__(self) -> int:
        return hash(self._number)

    def __eq__(self, other) -> bool:
        return self._number == (other._number if isinstance(other, Address) else int(self))

    def __int__(self) -> int:
        raise TypeError(
            f"a weight of {self._dtype} has no memory of this dtype, because its value is float32: "
            "use weight.value, or what the model's state_dict() has"
        )

    __index__ = __int__


def announces(tensor) -> bool:
    """Whether it is a weight that announces another dtype than that of its value."""
    return isinstance(tensor, MasterWeight) and tensor.dtype != tensor.value.dtype


def value_of(weight: MasterWeight) -> torch.Tensor:
    return weight.value


def rounded(weight: MasterWeight) -> torch.Tensor:
    """What is read of a weight."""
    return weight.value.to(weight.dtype)


def mapped(function, argument, kind: type = MasterWeight):
    """An argument with function(one) for each MasterWeight in it, or each tensor of a kind."""
    if isinstance(argument, kind):
        return function(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)([mapped(function, one, kind) for one in argument])
    if isinstance(argument, dict):
        return {key: mapped(function, one, kind) for key, one in argument.items()}
    return argument


def wrong_dtype(config: WeightConfig, dtype: torch.dtype) -> TypeError:
    return TypeError(
        f"{config.name or 'a weight'}: its value is float32, read as float32, bfloat16 or float16, "
        f"not {dtype}: use nc.to_plain(model) first, or a copy of weight.value"
    )


def handles(*functions):
    """Enters a handler(func, args, kwargs) for torch functions."""
    return dispatch.enter(FUNCTIONS, functions)


def like(weight: MasterWeight, value: torch.Tensor) -> MasterWeight:
    """Of another value, or over it: see MasterWeight.of()."""
    cell = weight.cell
    dtypes = weight.dtype, weight.value.dtype
    return MasterWeight.of(value, cell.format, cell.config, cell.readers, *dtypes)


def rebuild(
    value: torch.Tensor,
    format: str,
    config: tuple,
    requires_grad: bool,
    own: dict,
    dtype: torch.dtype = torch.float32,
) -> nn.Parameter:
    """A parameter as it was pickled."""
    for prepare in dispatch.PARAMETER_LOADED:
        prepare()
    facts = registry.format(format), WeightConfig(*config)
    dtypes = {"dtype": dtype, "value_dtype": value.dtype}
    weight = nn.Parameter(MasterWeight.of(value, *facts, **dtypes), requires_grad)
    weight.__dict__.update(own)
    return weight


torch.serialization.add_safe_globals([rebuild])
