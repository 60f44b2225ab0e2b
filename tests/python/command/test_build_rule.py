"""narrowcast build --rule: what it makes, how that is loaded, and what is refused."""

import shutil
import sys

import pytest

from building import NAME, QUICK, RULE, RULE_NAME, SPEC, run, write, write_rule
from narrowcast.__main__ import main

pytestmark = pytest.mark.usefixtures("generator")
TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]

# Loads files, and prints the names of their formats or the reason against it.
LOAD = """
import sys
import narrowcast as nc
for path in sys.argv[1:]:
    try:
        print(nc.load_plugin(path))
    except nc.PluginError as error:
        print(error)
"""
# Updates a weight and a plain parameter, and compares them with numpy; the weight's bytes are those
# of its value.
TRAIN = (
    LOAD
    + """
import numpy as np
import torch
from narrowcast.optimizer import FusedOptimizer

class Mine(FusedOptimizer):
    rule = "signed_momentum"
    def __init__(self, params):
        super().__init__(params, {"lr": 0.125, "beta": 0.5}, torch.float32, "nearest", 0)
    @staticmethod
    def numbers(group):
        return {key: group[key] for key in ("lr", "beta")}

torch.manual_seed(0)
layer = nc.convert(torch.nn.Linear(48, 36), "fine_fp8")
optimizer = Mine(layer.parameters())
assert optimizer.state_names(optimizer.param_groups[0]) == ["momentum"]
truth = [((one.detach() + 0).numpy(), 0) for one in layer.parameters()]
for step in range(3):
    for i, one in enumerate(layer.parameters()):
        one.grad = torch.randint(-4, 5, one.shape) / 8
        p, m = truth[i]
        m = 0.5 * m + one.grad.numpy()
        truth[i] = (p - np.float32(0.125) * np.sign(m)).astype(np.float32), m
    optimizer.step()
for one, (p, m) in zip(layer.parameters(), truth):
    assert np.array_equal((one.detach() + 0).numpy(), p)
    assert np.array_equal(optimizer.state[one]["momentum"].numpy(), m)
weight = layer.weight
made = nc.QuantizedTensor(weight._view, weight.shape, weight.dtype).dequantize()
assert torch.equal(made, nc.quantize(weight.detach() + 0, "fine_fp8").dequantize())
print("trained")
"""
)


def built(*arguments):
    assert main(["build", *map(str, arguments), *QUICK, "--no-test"]) == 0


def printed(program, *paths):
    answer = run(sys.executable, "-c", program, *paths)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


@pytest.mark.slow
def test_build_and_load(spec, tmp_path, capsys):
    rules, formats = tmp_path / "my rules, 100%", tmp_path / "formats"
    header = write_rule(tmp_path / "source")
    built("--rule", header, spec, "-o", rules)
    output = capsys.readouterr().out
    assert f"s  {RULE_NAME} for baseline" in output
    assert f"{RULE_NAME}.{NAME}: built {rules / RULE_NAME}.{NAME}.so" in output
    assert "1 rule, 1 format," in output
    assert {path.name for path in rules.glob("*.so")} == {
        f"{RULE_NAME}.so",
        f"{RULE_NAME}.{NAME}.so",
    }
    built(spec, "-o", formats)

    # The format is there in any order, and without its own plugin too.
    for folders in ([formats, rules], [rules, formats], [rules, rules]):
        assert printed(TRAIN, *folders) == [f"['{NAME}']"] * 2 + ["trained"]

    mine = rules / f"{RULE_NAME}.{NAME}.so"
    for file, of in ((mine, f"the format '{NAME}'"), (rules / f"{RULE_NAME}.so", "plain")):
        copy = shutil.copy(file, tmp_path / "copy.so")
        reason = printed(LOAD, rules, copy)[1]
        assert f"copy.so' brings the rule '{RULE_NAME}' for {of}" in reason
        assert f"which '{file}' has already brought" in reason

    # An older header's plugin of another format would take another step.
    kept = shutil.copy(mine, tmp_path / "kept.so")
    write_rule(tmp_path / "source", text=RULE.replace('"beta"', '"b"'))
    built("--rule", header, "-o", rules)
    assert f"removed {mine}, because {header} has changed" in capsys.readouterr().out
    assert [path.name for path in rules.glob("*.so")] == [f"{RULE_NAME}.so"]
    reason = printed(LOAD, kept, rules)[1]
    assert f"was built with another version of the rule '{RULE_NAME}' than '{kept}'" in reason

    write(tmp_path, SPEC | {"quantize": {"scale": "even"}})
    built(spec, "-o", formats)
    reason = printed(LOAD, formats, kept)[1]
    assert f"was built for another version of the format '{NAME}' than '{formats}" in reason


def error_of(capsys, *arguments):
    """What an unsuccessful command says, without a traceback."""
    assert main(["build", *map(str, arguments), *QUICK]) == 1
    error = capsys.readouterr().err
    assert error.startswith("narrowcast: ")
    return error


def test_what_is_refused_at_once(tmp_path, capsys, format):
    output = ("-o", tmp_path / "out")
    header = write_rule(tmp_path)
    assert "nothing is named to build" in error_of(capsys, *output)
    assert "none.hpp: there is no such file" in error_of(
        capsys, "--rule", tmp_path / "none.hpp", *output
    )
    for name in ("my-rule.hpp", "rule.h", "Rule.hpp"):
        assert f"{name}: the header of a rule is called" in error_of(
            capsys, "--rule", tmp_path / name, *output
        )
    error = error_of(capsys, "--rule", write_rule(tmp_path, "adamw"), *output)
    assert "adamw: a rule of this name comes with narrowcast" in error
    error = error_of(capsys, "--rule", header, f"{format}x", *output)
    assert f"{format}x: no format of this name comes with narrowcast; did you mean" in error
    assert f"named by its spec, {format}x.toml" in error
    assert f"did you mean {format}" in error_of(capsys, "--rule", header, format[:-1], *output)
    assert f"{header}: the header of a rule stands after" in error_of(capsys, header, *output)
    error = error_of(capsys, "--rule", header, "int8_root", *output)
    assert "int8_root: a state format, whose code is in every plugin" in error
    error = error_of(capsys, "--rule", header, tmp_path / f"{format}.toml", *output)
    assert f"{format}: a format of this name comes with narrowcast" in error
    twice = ("--rule", header, "--rule", write_rule(tmp_path / "more"))
    assert "the name of two rules" in error_of(capsys, *twice, *output)
    assert not (tmp_path / "out").exists()


def test_a_spec_of_a_state_and_a_format_of_the_rules_name(tmp_path, capsys):
    state = SPEC | {"kind": "state", "block": 32, "signed": {"root": 1}, "nonnegative": {"root": 2}}
    kept = ("format", "summary", "reference", "vocabulary", "kind", "block")
    state = {key: state[key] for key in (*kept, "signed", "nonnegative")}
    output = ("-o", tmp_path / "out")
    error = error_of(capsys, "--rule", write_rule(tmp_path), write(tmp_path, state), *output)
    assert f'{NAME}: of kind "state", whose code is in every plugin' in error
    spec = write(tmp_path, SPEC | {"format": RULE_NAME})
    error = error_of(capsys, "--rule", write_rule(tmp_path), spec, *output)
    assert f"{RULE_NAME}: the name of two rules, or of a rule and a format" in error


@pytest.mark.slow
def test_a_header_that_does_not_compile(tmp_path, capsys):
    """What the compiler printed is shown, and where all of it is."""
    for right, wrong, sentence in (
        ("state[0] > 0", "state[0] > nothing", "nothing"),
        (f'kName = "{RULE_NAME}"', 'kName = "another"', f"the name of the file, {RULE_NAME}"),
        ('{"lr", "beta", nullptr}', '{"lr", nullptr}', "kOptionNames has a name for each number"),
        ('{"momentum", nullptr}', '{"momentum"}', "kStateNames has kStates names"),
    ):
        assert right in RULE
        header = write_rule(tmp_path, text=RULE.replace(right, wrong))
        error = error_of(capsys, "--rule", header, "-o", tmp_path / "out")
        assert sentence in error
        assert f"out/build/rule_{RULE_NAME}/log.txt" in error
