"""The demo's model and text, for benchmarks that train on them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from gpt import GPT, VOCABULARY
from text import read, windows

__all__ = ["GPT", "VOCABULARY", "read", "windows"]
