"""python -m narrowcast"""

import sys

from narrowcast.cli import main

if __name__ == "__main__":
    sys.exit(main())
