"""The one error of narrowcast's own, and one that several modules raise."""

from narrowcast._C import PluginError

PluginError.__module__ = "narrowcast"
PluginError.__doc__ = (
    "A plugin that cannot be loaded: missing, cut short, of another version, or no plugin at all."
)


def usage_absent(store, usage: str) -> ValueError:
    """A product or a decoding needs bytes that a narrowcast.tensor.store.Store has not."""
    if store.gather is not None:
        there = " and ".join(store.bytes.usages)
        return ValueError(
            f"{store.describe()}: the {usage} bytes are needed, and this all-gather carried "
            f"{there} only. A matrix product reads one usage in the forward and the other in the "
            "backward; convolutions, LSTM, weight norm, penalties (weight.norm()) and backward "
            "hooks that read a weight decode the forward's in a backward too. With activation "
            "checkpointing, a pipeline's schedule after the first gather, an explicit unshard(), "
            "set_reshard_after_backward(False), set_is_last_backward(False) or a change of "
            "resharding at run time, FSDP2 does not say what a gather is for. Use nc.convert(..., "
            "recompute=True), which has every gather carry both usages. If a backward has ended in "
            "an exception, FSDP2 does not come back from that, with plain weights neither: make "
            "the model anew from a checkpoint"
        )
    return ValueError(
        f"{store.describe()} has no {usage} bytes: ask for them where it is made "
        f"(nc.quantize(..., {usage}=True)); a part of a weight that FSDP2 has gathered has those "
        "of the other pass with nc.convert(..., recompute=True)"
    )
