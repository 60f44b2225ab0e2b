"""Specs of formats drawn at random, one file each, into a folder.

python tests/fuzz/draw_formats.py FOLDER [--count 28] [--seed 1]
"""

import argparse
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "support"))

import drawn_specs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="which is made where it is not there")
    parser.add_argument("--count", type=int, default=28, help="default: %(default)s")
    parser.add_argument(
        "--seed", type=int, default=1, help="for other formats; default: %(default)s"
    )
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for spec in drawn_specs.defined_specs(args.count, random.Random(args.seed)):
        (args.folder / f"{spec['format']}.toml").write_text(drawn_specs.text(spec))


if __name__ == "__main__":
    main()
