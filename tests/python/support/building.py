"""A spec and a rule to build, the commands that build and load them, and an installed package."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import drawn_specs

ROOT = Path(__file__).parents[3]

NAME = "fine_fp8"
SPEC = {
    "format": NAME,
    "summary": "8-bit floats in blocks of 4x8.",
    "reference": "none",
    "vocabulary": 1,
    "element": {"type": "e4m3"},
    "scale": {"type": "e8m0"},
    "rowwise": {"block": [4, 8]},
    "columnwise": {"block": [4, 8]},
    "quantize": {"scale": "floor"},
    "matmul": {"input": "self", "gradient": "mxfp8_e5m2"},
}
# Signed momentum: every number of the tests' is exact.
RULE = """\
#pragma once

#include "runtime/optimizer/rule.hpp"

namespace narrowcast::inline NC_VARIANT::signed_momentum {

struct Rule {
  static constexpr const char* kName = "signed_momentum";
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames[] = {"momentum", nullptr};
  static constexpr const char* kOptionNames[] = {"lr", "beta", nullptr};
  struct Options {
    double lr, beta;
  };
  struct Constants {
    float lr, beta;
  };

  NC_EVERYWHERE static Constants at_step(const Options& o, int64_t) {
    return {narrowed(o.lr), narrowed(o.beta)};
  }

  template <class Arithmetic>
  NC_EVERYWHERE static float update(float p, float grad, float (&state)[kStates],
                                    const Constants& c, Arithmetic&) {
    state[0] = fused_multiply_add(c.beta, state[0], grad);
    return fused_multiply_add(-c.lr, state[0] > 0 ? 1.0f : state[0] < 0 ? -1.0f : 0.0f, p);
  }
};

}  // namespace narrowcast::inline NC_VARIANT::signed_momentum
"""
RULE_NAME = "signed_momentum"
QUICK = ("--baseline", "--gpu", "off")
CAST = (
    "import sys, torch, narrowcast as nc; q = nc.quantize(torch.ones(4, 8) * 15.75, sys.argv[1]); "
)
SHOW = CAST + "print(q.rowwise_scale_inv.tolist(), nc.format(sys.argv[1]).path)"


def write(folder, spec, name=None):
    path = folder / f"{name or spec['format']}.toml"
    path.write_text(drawn_specs.text(spec))
    return path


def write_rule(folder, name=RULE_NAME, text=RULE):
    """The path of a rule's header, which is made, and so is its folder."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.hpp"
    path.write_text(text.replace(RULE_NAME, name))
    return path


def run(*command, **environment):
    environment = {**os.environ, **environment}
    return subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)


def install(site):
    """Puts the package into a folder, as an installation has it. Skips where there is no build."""
    made = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))
    cmake = shutil.which("cmake")
    if cmake is None or not (made / "cmake_install.cmake").exists():
        pytest.skip(f"needs cmake, and a build in {made}")
    shutil.copytree(ROOT / "bindings/python", site, ignore=shutil.ignore_patterns("__pycache__"))
    installed = run(cmake, "--install", made, "--prefix", site, "--component", "python", "--strip")
    assert installed.returncode == 0, installed.stderr
    return site
