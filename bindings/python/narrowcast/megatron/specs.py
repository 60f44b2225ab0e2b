"""The layers of a GPT, as Megatron's specs have them."""

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import L2Norm
from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

from narrowcast.megatron.provider import SpecProvider

# What the norms are called in checkpoints, as in Megatron's own specs: with this, one can be loaded
# into layers of another backend.
_NAMES_IN_CHECKPOINTS = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}


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

    format, products, fallback
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
