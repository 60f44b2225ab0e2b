"""Makes the built package and the command `narrowcast` known to the running virtual environment.

Usage: python tools/link_package.py FOLDER, where FOLDER holds the package `narrowcast`.
"""

import sys
import sysconfig
from pathlib import Path

COMMAND = "#!{python}\nimport sys\n\nfrom narrowcast.__main__ import main\n\nsys.exit(main())\n"


def write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def main() -> None:
    if sys.prefix == sys.base_prefix:
        sys.exit("link_package.py: run it with the Python of a virtual environment")
    write(Path(sysconfig.get_path("purelib"), "narrowcast.pth"), sys.argv[1] + "\n")
    command = Path(sysconfig.get_path("scripts"), "narrowcast")
    write(command, COMMAND.format(python=sys.executable))
    command.chmod(0o755)


if __name__ == "__main__":
    main()
