"""What a QuantizedTensor says of itself: its format, the buffers that it is made of, its master."""

from __future__ import annotations

import torch

from narrowcast import registry


class Attributes:
    """Of a tensor with a View, `_view`."""

    __slots__ = ()

    @property
    def format(self) -> registry.Format:
        """The facts of its format."""
        return self._store.format

    @property
    def rowwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the rowwise codes. None where absent.

        The buffer itself, or a copy if this is a view whose bytes do not lie together.
        """
        return self._view.buffer("rowwise", 0)

    @property
    def rowwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the rowwise scales with their zero padding; (1,) where one scale spans
        the tensor. None where absent.
        """
        return self._view.buffer("rowwise", 1)

    @property
    def columnwise_data(self) -> torch.Tensor | None:
        """uint8, two-dimensional: the columnwise codes. None where absent."""
        return self._view.buffer("columnwise", 0)

    @property
    def columnwise_scale_inv(self) -> torch.Tensor | None:
        """uint8 or float32: the columnwise scales, as rowwise_scale_inv."""
        return self._view.buffer("columnwise", 1)

    @property
    def amax(self) -> torch.Tensor | None:
        """float32 (1,): the whole tensor's largest magnitude, where a scale spans it; else None.
        torch's method of this name is hidden: torch.amax(w, dim) does the same.
        """
        return self._view.spanning("amax")

    @property
    def history(self) -> torch.Tensor | None:
        """float32, with delayed scaling: the multiplier of encoding behind the bytes, that of the
        next step, and the amaxes of the whole tensor's last casts, the newest first; else None.
        """
        return self._view.spanning("history")

    @property
    def master(self) -> torch.Tensor | None:
        """float32, of this shape: the value that the bytes are made from, which the optimizer
        owns. None if it is not kept. What is written to it, the bytes follow.
        """
        self._view.store.watch_master()
        master = self._view.master
        return master if master is None or master.shape == self.shape else master.view(self.shape)

    @property
    def nbytes(self) -> int:
        """Of codes, scales and what spans the tensor, padding included; the master apart.
        element_size() is that of the logical dtype.
        """
        return self._view.nbytes

    def get_high_precision_init_val(self) -> torch.Tensor | None:
        """float32, of this shape, on the CPU: a copy of the master (before the first step, what
        nc.convert was given), for an optimizer that keeps masters itself; None if it is not kept.
        Transformer Engine's name for it.
        """
        return None if self.master is None else self.master.detach().to("cpu", copy=True)

    def clear_high_precision_init_val(self) -> None:
        """Drops the master, after which the bytes alone are the value: nc.quantize_master_weights
        sets them from an optimizer's shards. FusedAdam then makes a master from the bytes.
        """
        self._store.refresh()
        self._store.drop_master()
