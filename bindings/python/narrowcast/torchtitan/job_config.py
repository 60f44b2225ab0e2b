"""What a job of torchtitan 0.2 may say of narrowcast: `--job.custom_config_module
narrowcast.torchtitan.job_config` adds the section [narrowcast].
"""

from dataclasses import dataclass, field


@dataclass
class Narrowcast:
    """Options of nc.convert."""

    format: str = ""
    """A name of nc.formats()"""

    filter: list[str] = field(default_factory=list)
    """Patterns of names of modules; none: nc.convert's default"""

    parameters: list[str] = field(default_factory=list)
    """Patterns of names of parameters, besides"""

    products: str = "decoded"
    """Of linear layers: "decoded" or "scaled\""""


@dataclass
class JobConfig:
    """torchtitan merges this with its own."""

    narrowcast: Narrowcast = field(default_factory=Narrowcast)
