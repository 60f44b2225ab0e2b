"""One process that saw the same: values, moments, histories and bytes of all shards, from the
definitions in tests/python/support/reference and from the law of docs/sharding.md. Nothing of it
is taken from narrowcast.
"""

import copy
from dataclasses import dataclass, field

import numpy as np

import reference
from setups import bounds

WINDOW = 1024


class History(reference.Delayed):
    """Of delayed scaling, told amaxes of the whole tensor."""

    def record(self, amax: np.float32) -> None:
        self.present = self._multiplier(amax) if self.next is None else self.next
        self.amaxes.append(amax)
        largest = max(self.amaxes)
        self.next = self._multiplier(largest) if 0 < largest < np.inf else self.present

    def values(self) -> np.ndarray:
        """As the library keeps it: both multipliers, and the amaxes, the newest first."""
        values = np.zeros(2 + WINDOW, np.float32)
        values[:2] = self.present, self.next
        values[2 : 2 + len(self.amaxes)] = [*self.amaxes][::-1]
        return values


@dataclass
class Shard:
    """`is_written`: the bytes are still to be made of the value. `loaded`: the history with which
    the next step goes on.
    """

    begin: int
    end: int
    step: int = 0
    is_written: bool = True
    bytes: reference.Quantized | None = None
    history: History | None = None
    loaded: History | None = None

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.end)


@dataclass
class Parameter:
    """`format`: None of a plain one; `position`: among all of the optimizer's."""

    name: str
    position: int
    format: reference.Format | None
    is_frozen: bool
    group: int
    value: np.ndarray
    exp_avg: np.ndarray
    exp_avg_sq: np.ndarray
    shards: list[Shard] = field(default_factory=list)

    def cut(self, world: int) -> None:
        """For so many ranks, all of which have counted the same steps."""
        first = self.shards[0] if self.shards else Shard(0, 0)
        self.shards = [
            Shard(*some, first.step, loaded=copy.deepcopy(first.loaded))
            for some in bounds(len(self.value), world)
        ]

    @property
    def spans(self) -> bool:
        return self.format is not None and self.format.spans_tensor

    @property
    def is_delayed(self) -> bool:
        return self.format is not None and self.format.amax == "delayed"

    @property
    def amax(self) -> np.float32:
        return reference.amax_of(self.value)[0, 0]

    def cast(self, shard: Shard, amax, draw: tuple[int, int] | None) -> None:
        """The bytes of a shard under the amax of the whole, or under the history's multiplier."""
        options = {"tensor_amax": amax} if self.spans else {}
        if self.is_delayed:
            options["tensor_multiplier"] = shard.history.present
        if draw is not None:
            options |= {"rounding": "stochastic", "seed": draw[0], "step": draw[1]}
            options["offset"] = shard.begin * self.value.shape[1]
        derived = self.format.columnwise.block == self.format.rowwise.block
        value = self.value[shard.rows]
        shard.bytes = reference.quantize(value, self.format, columnwise=not derived, **options)

    def cast_anew(self, shards: list[Shard]) -> None:
        """Of a value that somebody has set: to nearest, and a history begins."""
        amax = self.amax
        for shard in shards:
            if self.is_delayed:
                shard.history = History(self.format)
                shard.history.record(amax)
            self.cast(shard, amax, None)
            shard.is_written = False

    def agree(self) -> None:
        """All ranks make what waits: before a gather."""
        written = [shard for shard in self.shards if shard.is_written]
        if written:
            self.cast_anew(self.shards if self.spans else written)

    def go_on(self) -> None:
        """With loaded histories, whatever was written since."""
        for shard in self.shards:
            shard.history, shard.loaded = shard.loaded or shard.history, None

    def write(self, shard: Shard, value: np.ndarray) -> None:
        self.value[shard.rows] = value
        self.mark(shard)

    def mark(self, shard: Shard) -> None:
        """The bytes are to be made anew."""
        shard.is_written, shard.history = True, None

    def decoded(self, usage: str) -> np.ndarray:
        """The value of the whole, of settled bytes."""
        derived = self.format.columnwise.block == self.format.rowwise.block
        usage = "rowwise" if derived else usage
        columns = self.value.shape[1]
        return np.concatenate(
            [
                reference.dequantize(
                    shard.bytes, self.format, (shard.end - shard.begin, columns), usage
                )
                for shard in self.shards
                if shard.end > shard.begin
            ]
        )


@dataclass
class Oracle:
    """`options`: of each group; `scale`: of the GradScaler, and the good steps since it changed."""

    parameters: list[Parameter]
    options: list[dict]
    world: int
    bf16_state: bool
    scale: float
    good: int = 0

    def draw_of(self, parameter: Parameter, shard: Shard) -> tuple[int, int] | None:
        options = self.options[parameter.group]
        if options["rounding"] == "nearest" or shard.step == 0:
            return None
        return (options["seed"] + parameter.position) % 2**64, shard.step

    def agree(self) -> None:
        for parameter in self.parameters:
            if parameter.format is not None:
                parameter.agree()

    def step(self, gradients, failed: bool = False) -> None:
        """An update with gradients[parameter][rank], None where one is missing. `failed`: the
        reduction has.
        """
        for parameter, given in zip(self.parameters, gradients, strict=True):
            if parameter.is_delayed:  # the step begins with casts of what was written
                parameter.agree()
                parameter.go_on()
            if given[0] is None:
                continue
            for shard, gradient in zip(parameter.shards, given, strict=True):
                self._update(parameter, shard, gradient)
            if parameter.format is None:
                continue
            if failed and parameter.spans:
                for shard in parameter.shards:
                    parameter.mark(shard)
            else:
                self._cast(parameter)

    def _update(self, parameter: Parameter, shard: Shard, gradient: np.ndarray) -> None:
        options = self.options[parameter.group]
        names = ("lr", "betas", "eps", "weight_decay", "decoupled_weight_decay")
        adam = {key: options[key] for key in names}
        shard.step += 1
        whole = parameter.value, parameter.exp_avg, parameter.exp_avg_sq
        parts = [one[shard.rows] for one in whole]
        new = reference.adam(*parts, gradient, t=shard.step, bf16_state=self.bf16_state, **adam)
        for part, value in zip(parts, new, strict=True):
            part[...] = value

    def _cast(self, parameter: Parameter) -> None:
        amax = parameter.amax
        for shard in parameter.shards:
            if parameter.is_delayed:
                shard.history.record(amax)
            parameter.cast(shard, amax, self.draw_of(parameter, shard))
            shard.is_written = False

    def update_scale(self, found_inf: bool) -> None:
        """As the GradScaler of the ranks does: half of it, or twice after two good steps."""
        self.good = 0 if found_inf else self.good + 1
        if found_inf:
            self.scale /= 2
        elif self.good == 2:
            self.scale, self.good = self.scale * 2, 0

    def loaded(self, world: int, from_checkpoint: bool, seen: list[list[dict]]) -> "Oracle":
        """What becomes of this state when it is loaded. A checkpoint that ranks wrote together has
        one number of steps for all shards, that of any rank (seen[rank][parameter]).
        """
        new = copy.deepcopy(self)
        new.world = world
        for index, parameter in enumerate(new.parameters):
            step = seen[0][index]["steps"]
            if from_checkpoint and step in {shard.step for shard in parameter.shards}:
                for shard in parameter.shards:
                    shard.step = step
            for shard in parameter.shards:
                shard.loaded = None if parameter.is_frozen else shard.history
            if world != self.world:
                parameter.cut(world)
            for shard in parameter.shards if parameter.format is not None else ():
                parameter.mark(shard)
        return new
