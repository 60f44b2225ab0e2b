"""FusedAdam: Adam and the quantization of the new weights in one pass over memory."""

from collections.abc import Callable

import torch

from narrowcast import _C, ranks, stack_frames
from narrowcast.flat.fusing import Updates
from narrowcast.optimizer import loading, options, parameters, step_context
from narrowcast.optimizer import state as states
from narrowcast.optimizer.launches import Tables
from narrowcast.ranks import debugging
from narrowcast.tensor import compiling, dtensors


class FusedAdam(torch.optim.Optimizer):
    """Adam or AdamW over quantized and plain parameters together, one launch for each launches.Key.

    params        tensors, groups, or named parameters, as for any torch optimizer. float32,
                  bfloat16 or float16
    lr, betas, eps, weight_decay
                  Adam's constants: numbers, or tensors of one element. They may differ by group and
                  change between steps. Not torch.optim.AdamW's defaults, which are betas
                  (0.9, 0.999) and weight_decay 0.01: to train as with those, give them
    adamw         weight decay as in AdamW; False: an L2 term in the gradient
    state_dtype   of the moments: torch.float32 or torch.bfloat16
    rounding, seed
                  of the quantized weights' codes: "nearest" or "stochastic", as in nc.quantize; the
                  step is the number of the update, the seed is `seed` (0 to 2^64 - 1) plus the
                  parameter's position among all parameters, groups one after another. They may
                  differ by group and change between steps
    foreach, fused
                  as AdamW has them; they mean nothing here
    capturable, amsgrad, maximize, differentiable
                  as AdamW has them: not there yet, here and in groups (NotImplementedError)

    Formulas: docs/numerics.md, "Adam". The update acts on float32 masters; the bytes of a quantized
    weight, and the value of a bfloat16 or float16 one, are made from them. A weight of
    nc.convert is its own master.

    A parameter gets state with its first gradient, or from a state dict; a frozen one has none.
    Before that, the parameters of groups may be replaced freely. The entries are: master (of a
    plain bfloat16 or float16 parameter; others are their own), exp_avg and exp_avg_sq, as DTensors
    where the parameter is one, and step, a 0-dim float32 tensor on the CPU. In a format with
    delayed scaling also history, float32: the multiplier behind the present bytes, that of the next
    update, and the last amaxes of the whole tensor, the newest first. A value that is set by other
    means than step() is rounded to nearest, by its present amax, and begins a history anew; a
    history from a state dict goes on with the next step.

    With shards of a format whose scale spans the tensor, step() is collective: every rank of the
    shards' group must call it; and so is the first step with any shards,
    which raises a RuntimeError on all ranks if their parameters are not alike. All ranks have
    gradients of the same parameters. A gradient or a parameter that does not fit raises an error
    that names the parameter, and nothing changes on this rank.

    grad_scale and found_inf, as torch.amp.GradScaler sets them, act as in torch's fused optimizers;
    a skipped step changes nothing, and with shards all ranks skip it if one has found_inf. Groups
    and state may be changed by hand between steps, as with torch's optimizers: a parameter that is
    put into a group, or whose state is cleared, begins anew; one that is taken out is left alone.
    The next step begins with what was written to a parameter since the last.
    """

    _step_supports_amp_scaling = True

    def __init__(
        self,
        params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        adamw: bool = True,
        state_dtype: torch.dtype = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
        capturable: bool = False,
        *,
        foreach: bool | None = None,
        fused: bool | None = None,
        amsgrad: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ):
        if state_dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"state_dtype is torch.float32 or torch.bfloat16, not {state_dtype}")
        self.state_dtype = state_dtype
        self.flat_updates: list[Updates] = []  # by narrowcast.flat.fuse
        self.loaded_histories: dict[torch.Tensor, torch.Tensor] = {}  # for the next step
        self._forget()
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        defaults |= {"adamw": adamw, "rounding": rounding, "seed": seed, "capturable": capturable}
        refused = {"amsgrad": amsgrad, "maximize": maximize, "differentiable": differentiable}
        super().__init__(params, defaults | refused)
        self.register_state_dict_post_hook(states.as_saved)

    def add_param_group(self, param_group: dict) -> None:
        """Adds a group without state. ValueError or TypeError for options that make no sense."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        options.check(self.param_groups[index], index)

    def make_state(self, is_wanted: Callable[[torch.Tensor], bool] = lambda _: True) -> None:
        """Makes the state of parameters that have none, which the first step with a gradient does
        too: of all, or of those that are wanted.
        """
        for _, parameter, _ in parameters.named(self.param_groups):
            if not self.state.get(parameter) and is_wanted(parameter):
                self.state[parameter] = states.make_state(parameter, self.state_dtype)

    def step(self, closure=None):
        """Updates what has a gradient, after closure(), if given; returns what that returns."""
        step = self._observed_step if step_context.has_observers(self) else self._step
        return step(closure)

    @torch.no_grad()
    def _step(self, closure):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if step_context.is_estimate() or (not self.state and stack_frames.is_dcp_state_init()):
            self.make_state(lambda parameter: parameter.grad is not None)
            self.is_state_form = True
        elif not step_context.is_skipped(self):
            self._prepare()
            debugging.compare("a step of FusedAdam", lambda: parameters.facts_of_step(self))
            self._tables.step()
            self.loaded_histories.clear()
            self.is_state_form = False
        return loss

    _observed_step = torch.optim.Optimizer.profile_hook_step(_step)
    step.hooked = True  # torch need not wrap it

    def _prepare(self) -> None:
        """Reads and checks all that the step needs, and changes no parameter."""
        step_context.check_not_captured()
        checked = [options.check(group, index) for index, group in enumerate(self.param_groups)]
        constants, seeds = zip(*checked, strict=True)
        is_known = self._snapshot is not None and seeds == self._seeds
        if not is_known or not self._snapshot.is_of(self.state, self.param_groups):
            self._seeds = seeds
            self._rebuild()
        grad_scale = getattr(self, "grad_scale", None)
        scale = None if grad_scale is None else float(grad_scale)
        if not self._tables.prepare(constants, scale):
            self._rebuild()
            if not self._tables.prepare(constants, scale):
                raise RuntimeError("FusedAdam: a parameter's memory changes while a step reads it")

    def _rebuild(self) -> None:
        """Makes the tables anew, after construction, when a parameter has its first gradient, when
        memory has moved (a parameter put on another device, a shard that FSDP2 has padded again),
        and when groups or state were changed by hand.
        """
        self._snapshot = None
        self.make_state(lambda parameter: parameter.grad is not None)
        states.share_histories(self)
        entries = parameters.entries(self)
        if not self._are_alike:
            facts = [dtensors.fact(entry.parameter, entry.line) for entry in entries]
            ranks.same("parameters of FusedAdam", facts)
            self._are_alike = True
        self._tables = Tables(entries, self.flat_updates, self.loaded_histories)
        self._snapshot = _C.ParamGroupsSnapshot(self.state, self.param_groups)

    def _forget(self) -> None:
        """What steps keep: the tables, what they were made from (no `_snapshot`: make them anew),
        and whether ranks were compared.
        """
        self._seeds = self._snapshot = self._tables = None
        self._are_alike = False
        self.is_state_form = False  # the state is there for a checkpoint to be loaded into it

    def forget_tables(self) -> None:
        """Has the next step make its tables anew."""
        self._snapshot = None

    def state_dict(self):
        """As torch's; histories are copies. Once there is state, that of parameters which require a
        gradient and have had none is made too: so all ranks have the same entries, and checkpoints
        of all times.
        """
        if any(self.state.values()):
            self.make_state(lambda parameter: parameter.requires_grad)
        self._follow_writes()
        return super().state_dict()

    def load_state_dict(self, state_dict) -> None:
        """Copies a state dict's values, its own or one of torch's AdamW or Adam, into the state,
        which is made where there is none, without a cast. A parameter of which it has nothing
        begins anew. ValueError, before anything changes, if it does not fit.
        """
        loading.load_state_dict(self, state_dict)
        self._snapshot, self.is_state_form = None, False

    def _follow_writes(self) -> None:
        """The state's histories are those of the weights, and its masters what was written."""
        states.share_histories(self)
        states.follow_writes(self.state)

    def __getstate__(self):
        self._follow_writes()  # the copy sees no write before it
        return {**super().__getstate__(), "state_dtype": self.state_dtype}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.flat_updates, self.loaded_histories = [], {}
        self._forget()
        self.register_state_dict_post_hook(states.as_saved)


# torch.compile calls a step and does not look into it.
compiling.leave_alone(FusedAdam.step)
