"""The programs on pages, and how they are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def programs(path):
    """The texts of a page's blocks of Python."""
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def run_on_ranks(path, text, ranks, **environment):
    """Writes a program to a file and has torchrun run it."""
    path.write_text(text)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr
