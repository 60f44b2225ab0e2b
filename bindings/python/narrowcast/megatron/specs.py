"""A backend of Megatron's layer specs, whose linear layers have weights in narrow formats; and the
layers of a GPT over it.
"""

from megatron.core.models.backends import BackendSpecProvider, LocalSpecProvider
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec

from narrowcast.megatron import borrowed, layers


class SpecProvider(BackendSpecProvider):
    """Returns narrowcast's linear layers, and another backend's modules for all else.

    fallback  a BackendSpecProvider; None: Megatron's LocalSpecProvider
    format    a format's name, for each layer of which the model's recipe says nothing else; None:
              those stay plain
    matmul    of those layers: "dequantized" or "scaled", as for nc.convert
    """

    def __init__(
        self,
        fallback: BackendSpecProvider | None = None,
        format: str | None = None,
        matmul: str = "dequantized",
    ):
        options = None if format is None else layers.Options(format, matmul)
        self.fallback = fallback or LocalSpecProvider()
        self._linears = [
            # A class, because specs hold classes: Megatron gives a layer no argument that says it.
            type(one.__name__, (one,), {"options": options, "__doc__": one.__doc__})
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


def get_gpt_layer_spec(
    format: str | None = None,
    matmul: str = "dequantized",
    *,
    fallback: BackendSpecProvider | None = None,
    **options,
) -> ModuleSpec:
    """A transformer layer whose attention, MLP and experts have narrowcast's linear layers.

    format, matmul, fallback
        as SpecProvider takes them
    options
        as Megatron's get_gpt_layer_local_spec takes them: num_experts, qk_layernorm, qk_l2_norm,
        normalization

    NotImplementedError for grouped products of experts.
    """
    with borrowed.for_specs(lambda: SpecProvider(fallback, format, matmul)):
        return gpt_layer_specs.get_gpt_layer_local_spec(**options)


# What `--spec narrowcast.megatron gpt_layer_spec` names: Megatron takes the spec itself, and calls
# nothing. Formats come from the model's recipe.
gpt_layer_spec = get_gpt_layer_spec()
