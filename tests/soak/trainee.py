"""A rank: its model, its optimizer, and what it does with them when it is told."""

import copy
import hashlib
import io

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import narrowcast as nc
import setups
from disturbances import Network, keep_coming
from internals import bytes_of, is_stale
from narrowcast.optimizer import launches
from net import build, groups, loss_of

# Of what bytes consist.
PARTS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
PARTS += ("tensor_amax",)
_NETWORK = Network()
launches.Reduction = _NETWORK.reduction


def digest(value) -> str:
    """Of the bytes of an array or a tensor; moments of bfloat16 are widened."""
    if isinstance(value, torch.Tensor):
        value = value.detach().float() if value.dtype == torch.bfloat16 else value.detach()
        value = value.cpu().numpy()
    words = str(value.shape).encode() + np.ascontiguousarray(value).tobytes()
    return hashlib.blake2b(words, digest_size=8).hexdigest()


class Trainee:
    """One for each model. Methods are named as actions; they return what came of it."""

    def __init__(self, setup, mesh, folder: str, seed: int = 1):
        self.setup, self.mesh, self.folder, self.file = setup, mesh, folder, None
        self.scaler = torch.amp.GradScaler(setup.device, init_scale=setup.scale, growth_interval=2)
        self.make(seed)

    def make(self, seed: int) -> None:
        setup = self.setup
        model = build(setup, seed).to(setup.device)
        nc.convert(model, setup.format, recompute=setup.recompute, trainable=True)
        for module in (model.block, model):
            fully_shard(module, mesh=self.mesh, reshard_after_forward=setup.reshard)
        self.model = model
        moments = torch.bfloat16 if setup.bf16_state else torch.float32
        self.optimizer = nc.optim.Adam(groups(model), state_dtype=moments, **setup.options)
        self.optimizer.make_state()  # which a checkpoint is loaded into

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def reshard(self) -> None:
        for module in (self.model.block, self.model):
            module.reshard()

    # ---- actions ----

    def step(self, seed, source, size, missing=(), scaler=None, bad=None, **other):
        loss = None
        factor = self.scaler.get_scale() if scaler else 1.0
        if source == "backward":
            value = loss_of(self.model, self.setup, seed)
            (self.scaler.scale(value) if scaler else value).backward()
            self.reshard()
            loss = digest(value)
        for index, p in enumerate(self.parameters):
            if source == "drawn" and p.requires_grad:
                self._give(p, setups.noise(tuple(p.shape), seed + index, size) * factor)
            if index in missing:
                p.grad = None
        if bad is not None:
            self._spoil(*bad)
        gradients = [None if p.grad is None else digest(p.grad.to_local()) for p in self.parameters]
        error = self._take(scaler, **other)
        for p in self.parameters:
            p.grad = None
        return {"loss": loss, "gradients": gradients, "error": error}

    def _take(self, scaler, broken=False):
        if scaler:
            # A scaler has its scale on the device only after it has been asked to scale.
            self.scaler.scale(torch.zeros((), device=self.setup.device))
            if scaler == "unscale":
                self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return None
        _NETWORK.is_broken = broken
        try:
            self.optimizer.step()
        except ConnectionError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            _NETWORK.is_broken = False
        return None

    def _give(self, p, whole: np.ndarray) -> None:
        gradient = torch.from_numpy(whole).to(p.dtype)[self._rows(p)].to(self.setup.device)
        p.grad = _like(p, gradient)

    def _rows(self, p) -> slice:
        return slice(*setups.bounds(p.shape[0], self.mesh.size())[self.mesh.get_local_rank()])

    def _spoil(self, index: int, value: str, where: float) -> None:
        """One element of the whole gradient, which one rank has."""
        p = self.parameters[index]
        row, rows = int(where * p.shape[0]), self._rows(p)
        if rows.start <= row < rows.stop:
            p.grad.to_local()[row - rows.start].fill_(float(value))

    def write(self, weight, seed, size):
        p = self._quantized()[weight]
        local = p.to_local()
        if local.numel():
            with torch.no_grad():
                value = torch.from_numpy(setups.noise(tuple(p.shape), seed, size))
                local.copy_(value[self._rows(p)].to(self.setup.device))

    def _quantized(self) -> list[torch.Tensor]:
        return [p for p in self.parameters if isinstance(p.to_local(), nc.MasterWeight)]

    def options(self, group, options):
        self.optimizer.param_groups[group].update(options)

    def resharding(self, after_forward):
        self.model.set_reshard_after_forward(after_forward)

    def forward(self, seed):
        with torch.no_grad():
            loss = loss_of(self.model, self.setup, seed)
        self.reshard()
        return {"loss": digest(loss)}

    def unshard(self):
        """The values that a gather brings."""
        modules = {"block": self.model.block, "": self.model}
        for module in modules.values():
            module.unshard()
        values = {
            name: digest(weight.dequantize())
            for name, weight in self.model.named_parameters()
            if isinstance(weight, nc.QuantizedTensor)
        }
        self.reshard()
        return {"values": values}

    def save(self, way, name):
        if way == "checkpoint":
            states = dict(zip("mo", get_state_dict(self.model, self.optimizer), strict=True))
            dcp.save(states, checkpoint_id=f"{self.folder}/{name}")
            return
        self.file = io.BytesIO()
        states = {"m": self.model.state_dict(), "o": self.optimizer.state_dict()}
        torch.save(states, self.file)

    def load(self, way, fresh, world, name, scale):
        """`scale`: of the gradients, on those ranks that trained before."""
        self.scaler.load_state_dict({**self.scaler.state_dict(), **scale})
        if fresh:
            self.make(seed=2)
        if way == "checkpoint":
            states = dict(zip("mo", get_state_dict(self.model, self.optimizer), strict=True))
            dcp.load(states, checkpoint_id=f"{self.folder}/{name}")
            loaded = {"model_state_dict": states["m"], "optim_state_dict": states["o"]}
            set_state_dict(self.model, self.optimizer, **loaded)
            return
        self.file.seek(0)
        states = torch.load(copy.copy(self.file), weights_only=True)
        self.model.load_state_dict(states["m"])
        self.optimizer.load_state_dict(states["o"])

    # ---- what is looked at ----

    def look(self) -> list[dict]:
        """Digests of all that this rank has; the bytes only where they are made."""
        return [self._look_at(p) for p in self.parameters]

    def _look_at(self, p) -> dict:
        state, local = self.optimizer.state.get(p, {}), p.to_local()
        nothing = torch.zeros(local.shape, dtype=self.optimizer.state_dtype)
        seen = {}
        for key in ("exp_avg", "exp_avg_sq"):
            seen[key] = digest(state[key].to_local() if state else nothing)
        seen["steps"] = int(state.get("step", 0))
        if not isinstance(local, nc.MasterWeight):
            value = state["master"].to_local() if "master" in state else local.float()
            seen["value"] = digest(value)
            return seen
        seen["value"] = digest(local.value)
        seen["is stale"] = is_stale(local)
        store = bytes_of(local)
        if store.history is not None:
            seen["history"] = digest(store.history)
        if not is_stale(local):
            for part, value in zip(PARTS, (*store.buffers, store.amax), strict=True):
                seen[part] = None if value is None else digest(value)
        return seen


def _like(p: DTensor, local: torch.Tensor) -> DTensor:
    facts = {"shape": p.shape, "stride": p.stride(), "run_check": False}
    return DTensor.from_local(local, p.device_mesh, p.placements, **facts)


def leave() -> None:
    """The end of a round."""
    keep_coming(False)
    dist.barrier()
    dist.destroy_process_group()
