"""FusedOptimizer: a rule's step and the quantization of the new weights in one pass over memory."""

from collections.abc import Callable

import torch

from narrowcast import _C, ranks, stack_frames
from narrowcast.flat.fusing import Updates
from narrowcast.optimizer import loading, options, parameters, residuals, step_context
from narrowcast.optimizer import state as states
from narrowcast.optimizer.launches import Tables
from narrowcast.ranks import debugging
from narrowcast.tensor import compiling, dtensors


class FusedOptimizer(torch.optim.Optimizer):
    """What the classes of nc.optim have in common. A step updates the values and the state of
    quantized and plain parameters together, and writes the weights' bytes, in one pass over memory.

    params        tensors, groups, or named parameters, as for any torch optimizer: float32,
                  bfloat16 or float16
    state_dtype   of the numbers that the rule keeps of each element: torch.float32, torch.bfloat16,
                  or for AdamW and Adam the name of a state format (nc.state_formats()), which has
                  eight bits for each. Vectors, and parameters whose rows are shorter than a block,
                  keep float32 then
    rounding, seed
                  how codes are rounded: "nearest" or "stochastic", as in nc.quantize. There the
                  step is the number of the update, and the seed is `seed` (0 to 2^64 - 1) plus the
                  parameter's position among all parameters. They may differ by group and change
                  between steps

    The constants are numbers, or tensors of one element; they, too, may differ by group and change
    between steps. Options of torch's class that this one has not are a NotImplementedError, here
    and in groups.

    Formulas: docs/numerics.md, "Optimizers". The update acts on float32 masters. A weight of
    nc.convert is its own master. Of a plain bfloat16 or float16 parameter the state has a master,
    from which the value is made.

    A parameter gets state with its first gradient, or from a state dict; before that, the
    parameters of groups may be replaced. Frozen parameters have no state. Its entries:

    step          0-dim float32, on the CPU, or with capturable=True beside the parameter
    what the group's rule keeps (state_names)
                  of the parameter's shape and state_dtype; DTensors if the parameter is a DTensor.
                  In a state format it is two tensors, STATE_FORMAT (uint8 codes) and
                  STATE_FORMAT_scale (float32, one for each block of a row)
    master        float32, of plain bfloat16 and float16 parameters
    history       float32, with delayed scaling: the multiplier of the present bytes, the multiplier
                  of the next update, and the last amaxes of the tensor, the newest first

    A value that anything but step() sets is rounded to nearest by its present amax, and begins a
    history anew. A history from a state dict goes on with the next step.

    With shards of a format whose scale spans the tensor, every rank of the shards' group must call
    step(), because it is collective. So is the first step with any shards: DisagreementError on all
    ranks if their parameters are not alike. All ranks have gradients of the same parameters. A
    gradient or a parameter that does not fit is an error that names the parameter. Nothing changes
    on this rank then.

    With capturable=True, which all groups have or none, step() can be captured in a CUDA graph, and
    takes the same step at each replay as it would outside. GPUs count steps (`step` is there), and
    read constants that are tensors (float32, on the GPU), grad_scale and found_inf, without a check
    and without a wait of the host. Constants that are numbers are the graph's own. RuntimeError for
    a capture without it, or before the first steps.

    grad_scale and found_inf, as torch.amp.GradScaler sets them, act as in torch's fused optimizers.
    A skipped step changes nothing. With shards all ranks skip it if one rank has found_inf. Groups
    and state may be changed by hand between steps: a parameter that is new in a group, or whose
    state was cleared, begins anew. A step begins with the parameter's present value.

    A subclass has `rule`, the name of a header of runtime/rules or of one's own, which
    `narrowcast build --rule` compiles (docs/writing-an-optimizer.md), and numbers().
    NotImplementedError, with the command to run, if no loaded plugin has the rule for a parameter.
    """

    rule: str
    takes_flat_shards = True  # whether the rule can update runs of a matrix's elements
    can_be_captured = True  # whether there is an option capturable
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params,
        defaults: dict,
        state_dtype: torch.dtype | str,
        rounding: str,
        seed: int,
        residual_bits: int = 8,
    ):
        self.state_dtype, self.residual_bits = state_dtype, residual_bits
        options.state_format_of(self)  # checks it
        residuals.check_bits(residual_bits)
        self.flat_updates: list[Updates] = []  # by narrowcast.flat.fuse
        self.loaded_histories: dict[torch.Tensor, torch.Tensor] = {}  # for the next step
        self._forget()
        super().__init__(params, {**defaults, "rounding": rounding, "seed": seed})
        self.register_state_dict_post_hook(states.as_saved)

    @staticmethod
    def numbers(group: dict) -> dict:
        """The rule's options (kOptionNames of its header) of a group."""
        raise NotImplementedError

    @staticmethod
    def adopted(saved: dict) -> dict:
        """A parameter's state in a state dict, which torch's optimizer of this name may have saved,
        with the names of this one; none: it begins anew.
        """
        return saved

    def rule_of(self, group: dict) -> str:
        """The rule that updates a group's parameters."""
        return self.rule

    def state_names(self, group: dict) -> list[str]:
        """What is kept for each element of a group's parameters."""
        return options.rule_facts(self.rule_of(group))[1]

    @property
    def name(self) -> str:
        """What messages call it."""
        return type(self).__name__

    def add_param_group(self, param_group: dict) -> None:
        """Adds a group without state. ValueError or TypeError for an option that is not valid."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        group = self.param_groups[index]
        try:
            options.check(self, group, index)
            for parameter in group["params"]:
                residuals.check(self, parameter, group)
        except BaseException:
            del self.param_groups[index]
            raise

    def make_state(
        self, is_wanted: Callable[[torch.Tensor], bool] = lambda parameter: parameter.requires_grad
    ) -> None:
        """Makes the state of parameters that have none, as the first step with a gradient does: of
        those that require one, or for which is_wanted(parameter) is true.
        """
        for index, parameter, _ in parameters.named(self.param_groups):
            if not self.state.get(parameter) and is_wanted(parameter):
                group = self.param_groups[index]
                self.state[parameter] = states.make_state(self, parameter, group)

    def step(self, closure=None):
        """Updates the parameters that have a gradient, after closure(), whose result it returns."""
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
            grad_scale = self._prepare()
            if debugging.is_on and not step_context.is_captured():
                debugging.compare(f"a step of {self.name}", lambda: parameters.facts_of_step(self))
            self._take(grad_scale)
            self.loaded_histories.clear()
            self.is_state_form = False
        return loss

    def _take(self, grad_scale: float | None) -> None:
        """Takes the step that is prepared. `grad_scale`: that gradients are divided by."""
        self._tables.step()

    _observed_step = torch.optim.Optimizer.profile_hook_step(_step)
    step.hooked = True  # torch need not wrap it

    def _prepare(self) -> float | None:
        """Reads and checks all that the step needs, and changes no parameter. Returns the present
        grad_scale.
        """
        step_context.check_capture(self)
        checked = [options.check(self, *one[::-1]) for one in enumerate(self.param_groups)]
        constants, seeds = zip(*checked, strict=True)
        counted = options.is_capturable(self)
        kind = seeds, counted
        is_known = self._snapshot is not None and kind == self._kind
        if not is_known or not self._snapshot.is_of(self.state, self.param_groups):
            self._kind = kind
            self._rebuild()
        amp = step_context.amp_of(self, counted)
        if not self._tables.prepare(constants, amp):
            self._rebuild()
            if not self._tables.prepare(constants, amp):
                raise RuntimeError(
                    f"{self.name}: a parameter's memory changes while a step reads it"
                )
        is_replayed = counted and step_context.is_captured()
        if is_replayed and (self._tables.has_stale or residuals.outdated(self)):
            step_context.check_warm(self, "a weight was written to")
        return amp.grad_scale

    def _rebuild(self) -> None:
        """Makes the tables anew, after construction, when a parameter has its first gradient, when
        memory has moved (a parameter put on another device, a shard that FSDP2 has padded again),
        and when groups or state were changed by hand.
        """
        step_context.check_warm(self, "a parameter's state or memory is new")
        self._snapshot = None
        self.make_state(lambda parameter: parameter.grad is not None)
        states.place_counts(self)
        residuals.fit(self)
        states.share_histories(self)
        entries = parameters.entries(self)
        if not self._are_alike:
            facts = [dtensors.fact(entry.parameter, entry.line) for entry in entries]
            ranks.same(f"parameters of {self.name}", facts)
            self._are_alike = True
        _, counted = self._kind
        self._tables = Tables(entries, self.flat_updates, self.loaded_histories, counted)
        self._use(entries)
        self._snapshot = _C.ParamGroupsSnapshot(self.state, self.param_groups)

    def _use(self, entries: list[parameters.Entry]) -> None:
        """For a subclass, which keeps more of the entries than tables do."""

    def _forget(self) -> None:
        """What steps keep: the tables, what they were made from (no `_snapshot`: make them anew),
        and whether ranks were compared.
        """
        self._kind = self._snapshot = self._tables = None
        self._are_alike = False
        self.is_state_form = False  # the state is there for a checkpoint to be loaded into it

    def forget_tables(self) -> None:
        """Has the next step make its tables anew."""
        self._snapshot = None

    def state_dict(self):
        """As torch's; histories are copies. Once there is any state, the state of parameters that
        require a gradient and have had none is made too. So all ranks have the same entries, and
        so have early and late checkpoints.
        """
        if any(self.state.values()):
            self.make_state()
        self._follow_writes()
        return super().state_dict()

    def load_state_dict(self, state_dict) -> None:
        """Copies the values of a state dict, of this class or of torch's, into the state, without a
        cast. A parameter that the state dict lacks begins anew. ValueError, before anything
        changes, if it does not fit.
        """
        loading.load_state_dict(self, state_dict)
        self._snapshot, self.is_state_form = None, False

    def _follow_writes(self) -> None:
        """The state's histories are those of the weights, its masters what was written, and its
        residuals of the present values.
        """
        states.share_histories(self)
        states.follow_writes(self.state)
        residuals.follow_writes(self)

    def __getstate__(self):
        self._follow_writes()  # the copy sees no write before it
        kept = {"state_dtype": self.state_dtype, "residual_bits": self.residual_bits}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state):
        super().__setstate__(state)
        self.flat_updates, self.loaded_histories = [], {}
        self._forget()
        self.register_state_dict_post_hook(states.as_saved)


# torch.compile calls a step and does not look into it.
compiling.leave_alone(FusedOptimizer.step)
