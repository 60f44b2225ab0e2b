"""A backend of Megatron's layer specs, whose linear layers have weights in narrow formats; and the
layers of a GPT over it.
"""

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import BackendSpecProvider, LocalSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import L2Norm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from narrowcast.megatron import layers
from narrowcast.megatron.options import Options

# What the norms are called in checkpoints, as in Megatron's own specs: with this, one can be loaded
# into layers of another backend.
_NAMES_IN_CHECKPOINTS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


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


def get_gpt_layer_spec(
    format: str | None = None,
    matmul: str = "dequantized",
    *,
    fallback: BackendSpecProvider | None = None,
    num_experts: int | None = None,
    moe_grouped_gemm: bool = False,
    qk_layernorm: bool = False,
    qk_l2_norm: bool = False,
    normalization: str | None = None,
) -> ModuleSpec:
    """A transformer layer whose attention, MLP and experts have narrowcast's linear layers.

    format, matmul, fallback
        as SpecProvider takes them
    num_experts, moe_grouped_gemm, qk_layernorm, qk_l2_norm, normalization
        as Megatron's get_gpt_layer_local_spec takes them

    ValueError or TypeError for a format that cannot be used; NotImplementedError for grouped
    products of experts.
    """
    backend = SpecProvider(fallback, format, matmul)
    rms_norm = normalization == "RMSNorm"
    norm = backend.layer_norm(rms_norm=rms_norm)
    qk_norm = IdentityOp
    if qk_l2_norm:
        qk_norm = L2Norm
    elif qk_layernorm:
        qk_norm = backend.layer_norm(rms_norm=rms_norm, for_qk=True)
    attention = SelfAttentionSubmodules(
        linear_qkv=backend.column_parallel_linear(),
        core_attention=backend.core_attention(),
        linear_proj=backend.row_parallel_linear(),
        q_layernorm=qk_norm,
        k_layernorm=qk_norm,
    )
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=norm,
            self_attention=ModuleSpec(
                module=SelfAttention,
                params={"attn_mask_type": AttnMaskType.causal},
                submodules=attention,
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=norm,
            mlp=get_mlp_module_spec_for_backend(
                backend, num_experts=num_experts, moe_grouped_gemm=moe_grouped_gemm
            ),
            mlp_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map=_NAMES_IN_CHECKPOINTS,
        ),
    )


# What `--spec narrowcast.megatron gpt_layer_spec` names: Megatron takes the spec itself, and calls
# nothing. Formats come from the model's recipe.
gpt_layer_spec = get_gpt_layer_spec()
