"""Marks tests by what they use: `ranks` start processes, `compile` have torch.compile make graphs,
`slow` take more than about five seconds: those of programs/, those that start another Python, which
imports torch, and others that say so.

NARROWCAST_QUICK=1 leaves tests without such marks, for a format of each kind of gather.
"""

import inspect
import os
from types import CodeType, FunctionType

import narrowcast as nc
import ranks
from models import one_of_each

QUICK = os.environ.get("NARROWCAST_QUICK") == "1"
QUICK_FORMATS = one_of_each(lambda f: f.gather)


def mark(item):
    """Adds the marks of a test."""
    function = getattr(item.function, "task", item.function)  # of ranks.on, which marks it
    names = _mentioned(function)
    if "ranks" in names and function.__globals__.get("ranks") is ranks:
        item.add_marker("ranks")
    if "compile" in names:
        item.add_marker("compile")
    if item.path.parent.name == "programs" or "executable" in names:
        item.add_marker("slow")


def _mentioned(test):
    """The names in a test and in those functions of its file that it mentions."""
    names, left = set(), _codes(test, test)
    while left:
        code = left.pop()
        left += [one for one in code.co_consts if isinstance(one, CodeType)]
        for name in set(code.co_names) - names:
            names.add(name)
            left += _codes(test.__globals__.get(name), test)
    return names


def _codes(value, test):
    """The code of a function of the test's file, or of the functions in a dictionary."""
    values = value.values() if isinstance(value, dict) else [value]
    functions = [inspect.unwrap(one) for one in values if isinstance(one, FunctionType)]
    return [one.__code__ for one in functions if one.__globals__ is test.__globals__]


def quick(items):
    """Of the tests those of a quick run."""
    items = [one for one in items if not any(map(one.get_closest_marker, MARKS))]
    tried = {one.function for one in items if _format_of(one) in QUICK_FORMATS}
    kept = []
    for item in items:
        if _format_of(item) in (None, *QUICK_FORMATS):
            kept.append(item)
        elif item.function not in tried:  # a format that quick runs have not, once
            tried.add(item.function)
            kept.append(item)
    return kept


MARKS = ("ranks", "compile", "slow")


def _format_of(item):
    """The format that a test is for, or None."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = nc.formats()
    return next((one for one in values if isinstance(one, str) and one in names), None)
