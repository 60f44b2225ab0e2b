"""The files that plugins are loaded from, and who may write them: a plugin is code, and runs with
the rights of the process that loads it.
"""

import os
import stat
import warnings
from pathlib import Path

from narrowcast._C import PluginError

_ANYBODY = "can be written to by every user of this machine"


def find(path: Path) -> list[Path]:
    """The plugin file of this path, or those of the folder. PluginError if the folder has none, or
    if a file, or a folder of which every file is taken, can be written to by all users;
    RuntimeWarning if the folder of a file lets all users put another in its place.
    """
    try:
        files = _plugins_in(path) if path.is_dir() else None
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise PluginError(f"plugin '{path}': {error.strerror}") from None
    if files is None:
        _check_file(path)
        return [path]
    if not files:
        raise PluginError(f"{path} is a folder without plugins (*.so)")
    # The sticky bit, as of /tmp, does not help: it keeps files in place, and lets others add some.
    if _mode(path) & stat.S_IWOTH:
        raise PluginError(
            f"the folder {path} {_ANYBODY}, who may add a plugin, which is code that would run in "
            f"this process: chmod o-w {path}, or name the plugin's file"
        )
    for file in files:
        _check_file(file)
    return files


def _plugins_in(folder: Path) -> list[Path]:
    """OSError for a folder that may not be looked into, which Path.glob takes for an empty one."""
    with os.scandir(folder) as entries:
        return sorted(folder / entry.name for entry in entries if entry.name.endswith(".so"))


def _check_file(path: Path) -> None:
    path = Path(os.path.realpath(path))  # of a link, the file that will be loaded
    mode, folder_mode = _mode(path), _mode(path.parent)
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise PluginError(
            f"plugin '{path}' {_ANYBODY}, and is code that would run in this process: look where "
            f"it comes from, then chmod o-w {path}"
        )
    if folder_mode & stat.S_IWOTH and not folder_mode & stat.S_ISVTX:
        warnings.warn(
            f"the folder {path.parent} {_ANYBODY}, who may put other code in the place of the "
            f"plugin {path.name}: chmod o-w {path.parent}",
            RuntimeWarning,
            stacklevel=4,  # the caller of nc.load
        )


def _mode(path: Path) -> int:
    """0 of what is not there, or cannot be looked at: the loader then says why."""
    try:
        return path.stat().st_mode
    except OSError:
        return 0
