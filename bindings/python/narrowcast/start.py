"""What goes wrong before the command begins."""

import itertools
import os
import sys


def end_command(error: Exception) -> None:
    """Ends the process with an error in one sentence if it is the command's. Python imports the
    package, and so the formats, before there is a main() that could catch anything; in any other
    program the error is an exception like others.
    """
    if _is_command():
        print(f"narrowcast: {error}", file=sys.stderr)
        sys.exit(1)


def _is_command() -> bool:
    """Whether this is `narrowcast ...`, or `python -m narrowcast ...` at its import."""
    program = sys.argv[0] if sys.argv else ""
    if program != "-m":
        return os.path.splitext(os.path.basename(program))[0] == "narrowcast"
    words = itertools.pairwise(sys.orig_argv)
    return any(one[:1] == "-" and one[-1:] == "m" and two == "narrowcast" for one, two in words)
