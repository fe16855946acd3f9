"""What a command ends with. Scripts rely on these numbers; README lists them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Process exit codes of every verb."""

    OK = 0
    FINDING = 1
    ENVIRONMENT = 2
    BAD_INPUT = 3
    OUTPUTS_DIFFER = 4
    INTERRUPTED = 130
