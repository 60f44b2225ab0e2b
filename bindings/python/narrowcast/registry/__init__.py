"""Registry of the loaded formats: their facts, and the plugin files that they come from."""

from narrowcast.registry.loaded import (
    BUFFERS,
    SCALES,
    USAGES,
    Format,
    Outcome,
    UsageLayout,
    buffers_of,
    format,
    formats,
    load_all,
    load_plugin,
    shipped_plugins,
)
from narrowcast.registry.states import StateFormat, state_format, state_formats
