"""narrowcast: model weights kept, gathered and updated in narrow number formats, under PyTorch
FSDP2.
"""

import torch as _torch  # brings the libraries that narrowcast._C is linked to

from narrowcast import operators as _operators
from narrowcast.command import start as _start
from narrowcast.conversion import convert
from narrowcast.errors import PluginError
from narrowcast.fsdp import hooks as _hooks
from narrowcast.optimizer import FusedAdam
from narrowcast.parallel import wrappers as _wrappers
from narrowcast.registry import format, formats, load, load_all
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor import initialization as _initialization
from narrowcast.tensor.quantization import quantize
from narrowcast.zero import post_all_gather_processing, quantize_master_weights

__version__ = "0.1.0"
__all__ = [
    "FusedAdam",
    "PluginError",
    "QuantizedTensor",
    "convert",
    "format",
    "formats",
    "load",
    "post_all_gather_processing",
    "quantize",
    "quantize_master_weights",
]

_operators.load()
try:
    load_all()
except PluginError as error:
    _start.end_command(error)
    raise
del load_all, _torch, _hooks, _initialization, _operators, _start, _wrappers
