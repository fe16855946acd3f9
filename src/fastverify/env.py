"""Every environment variable that fastverify reads. They are for debugging and building, never for results.

`fastverify env-vars` prints this table; a test holds that no other module reads os.environ for a FASTVERIFY_ name.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from fastverify.errors import ConfigError


@dataclass(frozen=True)
class EnvVar:
    """One variable: its name, what it does, and its default as text."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    EnvVar("FASTVERIFY_LOG", "log level of the command line and of every rank: debug, info, warning, error", "warning"),
    EnvVar("FASTVERIFY_COMM_TIMEOUT_S", "seconds a rank waits for the others in one collective", "60"),
    EnvVar("FASTVERIFY_PLUGIN_BACKEND", "all-reduce of the SGLang and vLLM plug-ins: auto or a backend's name", "auto"),
    EnvVar("FASTVERIFY_SIMD", "vector code of the CPU kernels: auto, avx512, avx2, neon, plain", "auto"),
    EnvVar(
        "FASTVERIFY_CACHE_DIR", "folder of compiled GPU kernels and measured all-reduce tables", "~/.cache/fastverify"
    ),
)
# What the time limits of gloo and NCCL can hold, in milliseconds of 32 bits.
_LONGEST_S = 2_000_000.0
_BY_NAME = {variable.name: variable for variable in VARIABLES}


def read(name: str) -> str:
    """Value of a variable of the table, or its default."""
    return os.environ.get(name, _BY_NAME[name].default)


def cache_folder() -> Path:
    """Where compiled kernels and measured tables are kept."""
    folder = Path(read("FASTVERIFY_CACHE_DIR"))
    try:
        return folder.expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{folder} needs a home folder, and there is none. Set FASTVERIFY_CACHE_DIR.") from error


def read_positive_float(name: str) -> float:
    """Value as a number above zero. Raises ConfigError otherwise."""
    text = read(name)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _LONGEST_S:
        raise ConfigError(
            f"{name} must be a number above 0 and at most {_LONGEST_S:g}, got {text!r}. "
            f"Unset it to use {_BY_NAME[name].default}."
        )
    return value


def check_unknown() -> None:
    """Raise ConfigError for a FASTVERIFY_ variable that is not in the table, such as a misspelt one."""
    for name in sorted(os.environ):
        if name.startswith("FASTVERIFY_") and name not in _BY_NAME:
            raise ConfigError(f"{name} is not a variable of fastverify. Known: {', '.join(sorted(_BY_NAME))}.")
