"""The one error of narrowcast's own."""

from narrowcast._C import PluginError

PluginError.__module__ = "narrowcast"
PluginError.__doc__ = (
    "A plugin that cannot be loaded: missing, cut short, of another version, or no plugin at all."
)
