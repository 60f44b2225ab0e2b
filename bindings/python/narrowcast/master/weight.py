"""MasterWeight: a tensor around its float32 value. What torch does with it, it does with that."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.graph import increment_version

from narrowcast import _C, registry
from narrowcast.master import casts, operators
from narrowcast.master.cell import Cell
from narrowcast.tensor import QuantizedTensor, compiling, dispatch
from narrowcast.tensor.store import Store, WeightConfig
from narrowcast.tensor.view import View

Tensor = torch.Tensor

# By torch function, what must be seen above autograd; and the operators that read bytes, each with
# the value that a weight is there. Others act on the value.
FUNCTIONS: dict[Callable, Callable] = {}
DECODING: dict[Callable, Callable] = {}


class MasterWeight(torch.Tensor):
    """A weight in training, as nc.convert makes it: a float32 tensor to torch, its bytes to
    products of matrices.

    value  a plain float32 tensor: what optimizers, initializers and checkpoints read and write
    cell   shared by all tensors over the value's memory: the bytes
    """

    # In __dict__, so that torch.utils.swap_tensors can exchange one with a plain tensor.
    value: torch.Tensor
    cell: Cell
    seen_by_graphs: int | None = None  # the count of writes when one asked for its bytes

    @staticmethod
    def __new__(cls, value: torch.Tensor, cell: Cell):
        place = {"strides": value.stride(), "storage_offset": value.storage_offset()}
        with torch.inference_mode(False):
            self = Tensor._make_wrapper_subclass(
                cls, value.shape, **place, dtype=value.dtype, device=value.device
            )
        _C.share_count(self, value)  # autograd, and a graph that writes, count for this one
        self.value, self.cell = value, cell
        return self

    @classmethod
    def of(
        cls, value: torch.Tensor, format: registry.Format, config: WeightConfig, readers=None
    ) -> MasterWeight:
        """Of a value whose memory it takes over, if that is a run of float32. TypeError for a value
        of another dtype.
        """
        if value.dtype != torch.float32:
            raise TypeError(
                f"{config.name or 'a weight'}: its value is float32, not {value.dtype}. For "
                "gathers of bfloat16 use MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
            )
        with torch.inference_mode(False), torch.no_grad():
            # torch counts no writes to a tensor of inference mode.
            value = value.clone() if value.is_inference() else value.resolve_neg().contiguous()
            return cls(value, Cell(value, format, config, readers))

    # ---- for the rest of narrowcast ----

    @property
    def format(self) -> registry.Format:
        """The facts of its format."""
        return self.cell.format

    @property
    def _store(self) -> Store:
        return self.cell.store

    @property
    def _view(self) -> View:  # C++ finds bytes and value by it
        return self.cell.view(self.value)

    def describe(self) -> str:
        """For messages."""
        return self._store.describe()

    def stands_for(self, other: torch.Tensor) -> bool:
        """Whether it is over the memory of another weight, or a copy of that on another device."""
        origin = self.cell.origin
        mine = self.cell, None if origin is None else origin()
        return isinstance(other, MasterWeight) and other.cell in mine

    # ---- its memory is the value's: libraries find tied weights by it ----

    def data_ptr(self) -> int:
        return self.value.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        """An object of its own, for torch.compile asks which tensors share one."""
        storage = self.value.untyped_storage()
        is_own = type(self.value) is torch.Tensor and not self.value.is_meta
        return storage[:] if is_own else storage

    def __repr__(self, *, tensor_contents=None) -> str:
        return f"MasterWeight({self.format.name}, {self.value!r})"

    # ---- torch's protocols ----

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        handler = FUNCTIONS.get(func, dispatch.as_torch_does)
        return handler(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs, facts = kwargs or {}, operators.facts(func)
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
        read = DECODING.get(func, value_of)
        out = func(*mapped(read, args), **mapped(read, kwargs))
        if facts.written:
            leaves = operators.written_leaves(facts.written, args, kwargs)
            # What runs below autograd is counted by nobody else.
            increment_version([one.value for one in leaves if isinstance(one, cls)])
            for one in leaves:
                if isinstance(one, cls) and one.cell.written is not None:
                    one.cell.written = True
            if out is None or facts.is_collective:
                return out
            return leaves[0] if len(leaves) == 1 else leaves
        first = args[0] if args else None
        if not isinstance(first, cls):
            return out
        if facts.is_view:
            return first._part(out) if isinstance(out, Tensor) else [*map(first._part, out)]
        if func in operators.COPIES and out.dtype == torch.float32:
            return cls(out, first.cell.copy_of(out))
        return out

    def _part(self, value: torch.Tensor) -> MasterWeight:
        """A tensor over the same memory, to which torch has given a count of its own."""
        _C.share_count(value, self.cell.whole)
        return MasterWeight(value, self.cell)

    def __reduce_ex__(self, protocol):
        """A parameter is pickled with its format, any other as a plain tensor."""
        if not isinstance(self, nn.Parameter):
            return self.value.__reduce_ex__(protocol)
        config = tuple(self.cell.config._replace(scale_group=None))
        return rebuild, (self.value, self.format.name, config, self.requires_grad, self._own())

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
        made.__dict__.update(copy.deepcopy(self._own(), memo))
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    # ---- torch.compile: a graph has the value, and the bytes as a QuantizedTensor ----

    def __tensor_flatten__(self):
        return ["value", "narrowed"], None

    @property
    def narrowed(self) -> QuantizedTensor:
        """For a graph that is about to run."""
        return QuantizedTensor(casts.before_graph(self), self.shape, self.dtype)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        value, view = inner["value"], inner["narrowed"]._view
        cell = Cell(value, view.store.format, view.store.config)
        cell.use(view)
        cell.written = False
        return MasterWeight(value, cell)

    def _own(self) -> dict:
        """What others have set on it."""
        known = "value", "cell", "_is_param", "seen_by_graphs"
        return {key: one for key, one in self.__dict__.items() if key not in known}


# torch.compile looks at functions and operators, but not into what is behind them.
compiling.leave_alone(MasterWeight.__torch_function__)


def value_of(weight: MasterWeight) -> torch.Tensor:
    return weight.value


def mapped(function, argument):
    """An argument with function(weight) for each MasterWeight in it."""
    if isinstance(argument, MasterWeight):
        return function(argument)
    if isinstance(argument, (list, tuple)):
        return type(argument)([mapped(function, one) for one in argument])
    if isinstance(argument, dict):
        return {key: mapped(function, one) for key, one in argument.items()}
    return argument


def handles(*functions):
    """Enters a handler(func, args, kwargs) for torch functions."""
    return dispatch.enter(FUNCTIONS, functions)


@handles(Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.is_shared)
def _of_memory(func, args, kwargs):
    """These look at memory, of which a wrapper has none."""
    return func(*mapped(value_of, args), **mapped(value_of, kwargs))


@handles(Tensor.apply_, Tensor.map_, Tensor.map2_, Tensor.share_memory_)
def _on_memory(func, args, kwargs):
    """These change it, and torch counts that for nobody."""
    _of_memory(func, args, kwargs)
    increment_version([mapped(value_of, args[0])])
    return args[0]


@handles(Tensor.data.__set__)
def _set_data(func, args, kwargs):
    """weight.data = data: that memory from now on, with bytes of its own."""
    weight, data = args
    if isinstance(weight, MasterWeight) and not isinstance(data, MasterWeight):
        cell = weight.cell
        data = MasterWeight.of(data.detach(), cell.format, cell.config, cell.readers)
    if isinstance(data, MasterWeight):
        data.__class__ = MasterWeight  # nn.Module's came as another: conversions.py
    dispatch.as_torch_does(func, (weight, data), kwargs)
    if isinstance(weight, MasterWeight):
        weight.value, weight.cell = data.value, data.cell
        _C.share_count(weight, data.value)
        _C.note_change()


def rebuild(value: torch.Tensor, format: str, config: tuple, requires_grad: bool, own: dict):
    """A parameter as it was pickled."""
    for prepare in dispatch.PARAMETER_LOADED:
        prepare()
    config = WeightConfig(*config)
    weight = nn.Parameter(MasterWeight.of(value, registry.format(format), config), requires_grad)
    weight.__dict__.update(own)
    return weight


torch.serialization.add_safe_globals([rebuild])
