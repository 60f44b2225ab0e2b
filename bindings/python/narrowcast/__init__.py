"""narrowcast: model weights kept, gathered and updated in narrow number formats, under PyTorch
FSDP2.
"""

from narrowcast import torch_version as _torch_version  # before all that needs the right one

# isort: split
from narrowcast import matmul as _matmul  # enters handlers, as the next
from narrowcast import operators as _operators
from narrowcast import optim
from narrowcast._C import PluginError
from narrowcast.conversion.convert import convert
from narrowcast.conversion.fits import fits
from narrowcast.conversion.summary import summary
from narrowcast.conversion.to_plain import to_plain
from narrowcast.flat import post_all_gather_processing, quantize_master_weights
from narrowcast.fsdp.reduce_scatter import set_reduce_scatter_format
from narrowcast.master import MasterWeight, note_write
from narrowcast.optim import FusedAdam
from narrowcast.publishing.export import export
from narrowcast.publishing.load import load_published
from narrowcast.publishing.model import export_tensors
from narrowcast.ranks import DisagreementError, debug
from narrowcast.registry import format, formats, load_all, load_plugin, state_formats
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.quantization import quantize

__version__ = "0.1.0"
__all__ = [
    "DisagreementError",
    "FusedAdam",
    "MasterWeight",
    "PluginError",
    "QuantizedTensor",
    "convert",
    "debug",
    "export",
    "export_tensors",
    "fits",
    "format",
    "formats",
    "load_plugin",
    "load_published",
    "note_write",
    "optim",
    "post_all_gather_processing",
    "quantize",
    "quantize_master_weights",
    "set_reduce_scatter_format",
    "state_formats",
    "summary",
    "to_plain",
]

load_all()
del load_all, _matmul, _operators, _torch_version
