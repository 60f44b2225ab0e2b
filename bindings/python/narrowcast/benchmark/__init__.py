"""The command `narrowcast bench`: steps of optimizers on this machine, with its formats, beside
torch's and other libraries'. Each row is an optimizer with weights of its own.
"""

from pathlib import Path

import torch

from narrowcast import registry
from narrowcast.benchmark import report, rows, timing
from narrowcast.benchmark.weights import Weights

_COLUMNS = [
    ("optimizer", "optimizer", "s"),
    ("format", "weights", "s"),
    ("state", "state", "s"),
    ("kept", "kept", ".2f"),
    ("bytes", "moved", ".2f"),
    ("ms", "ms/step", ".3f"),
    ("ms_25", "25 %", ".3f"),
    ("ms_75", "75 %", ".3f"),
    ("of_copy", "of copy", ".3f"),
    ("of_torch", "of torch's", ".3f"),
    ("host_us", "host us", ".0f"),
]
_LAYER = 218e6  # parameters
_ON_CPU = 1e6
_ROUNDS = {"cuda": 20, "cpu": 5}
_SHARE = 0.8  # of the GPU's free memory


def run(
    formats: list[str] | None = None,
    rules: list[str] | None = None,
    states: list[str] | None = None,
    millions: float | None = None,
    rounds: int | None = None,
    device: str | None = None,
    json: str | None = None,
    plot: str | None = None,
) -> bool:
    """Measures, and prints a table; progress goes to the standard error. False if a step of
    narrowcast's failed; ValueError, with what there is, for what cannot be run.

    formats    of weights; None: all
    rules      those of narrowcast's optimizers; None: all
    states     of moments: float32, bfloat16, state formats; None: all. Each rule runs with those
               that it takes
    millions   of parameters; None: as many as a layer of Llama-3-8B has, or as the GPU's free
               memory has room for; on the CPU 1
    rounds     in each of which all rows step in turn; None: 20, on the CPU 5
    device     "cpu" or "cuda"; None: cuda where there is one
    json, plot
               files: a line a row ("-": the standard output), and the times as bars, by matplotlib
    """
    device = _device(device)
    rounds = _ROUNDS[device] if rounds is None else rounds
    if rounds < 1 or (millions is not None and millions <= 0):
        raise ValueError("--rounds is at least 1, and --millions more than 0")
    formats = [registry.format(name).name for name in formats or registry.formats()]
    chosen = rows.all_rows(formats, rules, states)
    if plot:
        from narrowcast.benchmark import chart  # which wants matplotlib

        chart.check(plot)
    for path in {json, plot} - {None, "-"}:
        Path(path).touch()  # a file that cannot be written is found before the work
    count = 1e6 * millions if millions else _fitting(chosen, device)
    weights = Weights(count, device)
    report.progress(f"{len(chosen)} optimizers with {weights.count:,} parameters each, on {device}")
    made, failed = _made(chosen, weights)
    copy, *samples = timing.in_turn([weights.copy(), *made.values()], rounds, device)
    found = _figures([*made], copy, samples, weights)
    print(report.table(found, _COLUMNS))
    print(f"\n{_legend(weights, copy, rounds, device)}")
    report.write_json(found, json)
    if plot:
        chart.write(found, plot)
    return not failed


def _device(name: str | None) -> str:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no GPU here")
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def _fitting(chosen: list[rows.Row], device: str) -> float:
    """How many parameters each row has where none are asked for."""
    if device == "cpu":
        return _ON_CPU
    free, _ = torch.cuda.mem_get_info()
    return min(_LAYER, _SHARE * free / (Weights.SHARED_BYTES + sum(row.kept for row in chosen)))


def _made(chosen: list[rows.Row], weights: Weights) -> tuple[dict, list[rows.Row]]:
    """The step of each row, after a first one, and the rows of narrowcast's that have failed. Other
    libraries' are left out where they are not installed, or cannot step here.
    """
    steps, failed, progress = {}, [], report.Progress()
    for number, row in enumerate(chosen):
        progress.tell(f"made {number} of {len(chosen)}")
        try:
            step = row.make(weights)
            step()
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"{row}: the GPU's memory is full; give fewer --millions or --formats"
            ) from error
        except ModuleNotFoundError as error:
            report.progress(f"{row.optimizer} is left out: {error.name} is not installed")
        except Exception as error:
            report.progress(f"{row} is left out: {type(error).__name__}: {error}")
            failed += [row] if row.is_own else []
        else:
            steps[row] = step
    return steps, failed


def _figures(made: list[rows.Row], copy, samples, weights: Weights) -> list[dict]:
    """The table's rows, each with all that JSON has of it."""
    medians = {row.optimizer: one.seconds for row, one in zip(made, samples, strict=True)}
    bytes_per_second = Weights.COPIED_BYTES * weights.count / copy.seconds
    found = []
    for row, one in zip(made, samples, strict=True):
        facts = {key: getattr(row, key) for key in ("optimizer", "format", "state", "kept")}
        facts |= {"bytes": row.moved, "parameters": weights.count}
        facts |= {"device": weights.device_name, "torch": torch.__version__}
        times = zip(("ms", "ms_25", "ms_75"), (one.seconds, *one.quartiles), strict=True)
        facts |= {key: 1e3 * seconds for key, seconds in times}
        facts |= {"host_us": 1e6 * one.host, "copy_gb_per_s": bytes_per_second / 1e9}
        least = None if row.moved is None else row.moved * weights.count / bytes_per_second
        facts["of_copy"] = None if least is None else least / one.seconds
        beside = medians.get(row.beside)
        facts["of_torch"] = None if beside is None else one.seconds / beside
        found.append(facts)
    return found


def _legend(weights: Weights, copy, rounds: int, device: str) -> str:
    rate = Weights.COPIED_BYTES * weights.count / copy.seconds / 1e9
    return (
        f"{weights.count:,} parameters each, in the shapes of Llama-3-8B's linear layers; "
        f"{weights.device_name}, torch {torch.__version__}.\n"
        f"Medians and quartiles of {rounds} rounds, all rows and a copy in turn; the copy moves "
        f"{rate:,.1f} GB/s.\n"
        "kept: bytes of an element between steps, value and state and codes; moved: bytes that a "
        "step must read and write of it,\nby formula. of copy: the time in which the copy moves "
        "as many, over the step's. of torch's: the step's time over that of\ntorch.optim.Muon for "
        "Muon, of torch's fused AdamW for all else. host: until step() returns"
        + (", which is when it is done on a CPU." if device == "cpu" else ".")
    )
