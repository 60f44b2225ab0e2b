"""python -m narrowcast"""

import sys

from narrowcast.command.cli import main

if __name__ == "__main__":
    sys.exit(main())
