"""By what torch.compile's caches, which outlive processes, know graphs: what those of a tensor rest
on, and the code that made them.
"""

import functools
import hashlib
from pathlib import Path

from torch._subclasses import FakeTensor

from narrowcast import _C, registry
from narrowcast.tensor import serialize

_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def _code() -> str:
    """A digest of narrowcast's own code: which operators a graph has, and with which arguments,
    follows from all of it, and a version number stays what it is while somebody works on that.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted([*_PACKAGE.rglob("*.py"), Path(_C.__file__)]):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _facts(format: registry.Format) -> tuple[str, ...]:
    """The code, and the identities of the formats that meet in the products of a weight."""
    partners = format.matmul and (format.matmul.input, format.matmul.gradient)
    loaded = {name for name in partners or () if name in registry.formats()}
    return _code(), *(registry.format(name).identity for name in sorted(loaded | {format.name}))


def of_fake(tensor) -> tuple[str, ...]:
    """What a graph rests on besides the parts, of a fake tensor; of others nothing. Torch 2.11
    pickles the inputs of a graph; later versions ask for stable_hash().
    """
    if not isinstance(tensor._store.tensors[0], FakeTensor):
        return ()
    names, _ = tensor.__tensor_flatten__()
    return *names, *_facts(tensor.format)


def stable_hash(tensor) -> str:
    """Of all of it."""
    there, context = tensor.__tensor_flatten__()
    facts = [one.label if isinstance(one, serialize.Aside) else one for one in context]
    inner = [
        (name, one.shape, one.stride(), one.storage_offset(), one.dtype, one.device)
        for name, one in ((name, getattr(tensor, name)) for name in there)
    ]
    known = (*facts, tensor.shape, tensor.requires_grad, tensor.is_inference(), inner)
    every = repr((known, _facts(tensor.format)))
    return hashlib.blake2b(every.encode(), digest_size=16).hexdigest()
