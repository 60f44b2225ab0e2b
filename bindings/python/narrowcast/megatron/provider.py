"""A backend of Megatron's layer specs, whose linear layers have weights in narrow formats."""

from megatron.core.models.backends import BackendSpecProvider, LocalSpecProvider
from megatron.core.transformer.mlp import MLPSubmodules

from narrowcast.megatron import layers
from narrowcast.megatron.options import Options


class SpecProvider(BackendSpecProvider):
    """Returns narrowcast's linear layers, and another backend's modules for all else.

    fallback  a BackendSpecProvider; None: Megatron's LocalSpecProvider
    format    a format's name, for each layer of which the model's recipe says nothing else; None:
              those stay plain
    matmul    of those layers: "dequantized" or "scaled", as for nc.convert

    ValueError or TypeError for a format that is not loaded, or that lacks such products.
    """

    def __init__(
        self,
        fallback: BackendSpecProvider | None = None,
        format: str | None = None,
        matmul: str = "dequantized",
    ):
        options = Options(format, matmul)
        options.check()
        self.fallback = fallback or LocalSpecProvider()
        self._linears = [
            _with_options(one, options if format is not None else None)
            for one in (layers.ColumnParallelLinear, layers.RowParallelLinear)
        ]

    def column_parallel_linear(self) -> type:
        return self._linears[0]

    def row_parallel_linear(self) -> type:
        return self._linears[1]

    def fuse_layernorm_and_linear(self) -> bool:
        return False

    def column_parallel_layer_norm_linear(self) -> None:
        """None: a norm is a module of its own, also where the other backend fuses it."""

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False) -> type:
        return self.fallback.layer_norm(rms_norm=rms_norm, for_qk=for_qk)

    def core_attention(self) -> type:
        return self.fallback.core_attention()

    def activation_func(self) -> type | None:
        return self.fallback.activation_func()

    def grouped_mlp_modules(
        self, moe_use_grouped_gemm: bool, moe_use_legacy_grouped_gemm: bool = False
    ) -> tuple[type, MLPSubmodules]:
        """The module that runs experts one after the other, each with linear layers of its own.
        NotImplementedError for grouped products.
        """
        if moe_use_grouped_gemm:
            raise NotImplementedError(
                "narrowcast has no grouped products: the weights of all experts would be one "
                "parameter, which no linear layer multiplies. Use moe_grouped_gemm=False, where "
                "each expert has linear layers of its own"
            )
        experts, _ = self.fallback.grouped_mlp_modules(False, moe_use_legacy_grouped_gemm)
        return experts, MLPSubmodules(
            linear_fc1=self.column_parallel_linear(), linear_fc2=self.row_parallel_linear()
        )


def _with_options(layer: type, options: Options | None) -> type:
    """A class, because specs hold classes: Megatron gives a layer no argument that says this."""
    return type(layer.__name__, (layer,), {"options": options, "__doc__": layer.__doc__})
