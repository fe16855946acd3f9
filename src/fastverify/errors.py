"""Every exception that fastverify raises on purpose.

FastverifyError
├── ConfigError          a setting, flag, file or request that breaks a rule (also a ValueError)
├── ShapeError           tensors whose shapes do not fit together (also a ValueError)
├── UnsupportedError     this hardware, dtype or world size cannot do what was asked
├── EnvironmentMissingError  a package, compiler or device that is not here
├── CommTimeoutError     a rank did not arrive at a collective in time
├── WorkerDiedError      a rank process ended; carries its traceback
├── TraceFormatError     a profiler file that cannot be read
├── ServerError          a server answered with an error or not at all
│   ├── ServerStartError it never became healthy; carries the tail of its log
│   ├── ServerCrashError it ended while it was in use; carries its exit code and the tail of its log
│   └── ServerHangError  it is alive but did not answer in time; carries the tail of its log
└── LedgerError          the ledger file is damaged, of another version, or in use

A message says the rule, what came, and what to do. The command line prints it without a traceback.
"""


class FastverifyError(Exception):
    """Base of all errors below; `exit_code` is what the command line ends with."""

    exit_code = 2


class ConfigError(FastverifyError, ValueError):
    """A setting, flag, file or request that breaks a rule."""

    exit_code = 3


class ShapeError(FastverifyError, ValueError):
    """Tensors whose shapes do not fit together."""

    exit_code = 3


class UnsupportedError(FastverifyError):
    """This hardware, dtype or world size cannot do what was asked."""


class EnvironmentMissingError(FastverifyError):
    """A package, compiler or device that is needed is not here."""


class CommTimeoutError(FastverifyError):
    """A rank did not arrive at a collective in time; the message names it."""


class WorkerDiedError(FastverifyError):
    """A rank process ended; the message carries its traceback or exit code."""


class TraceFormatError(FastverifyError):
    """A profiler file that cannot be read."""

    exit_code = 3


class ServerError(FastverifyError):
    """A server answered with an error or not at all."""


class ServerStartError(ServerError):
    """A server never became healthy; the message carries the tail of its log."""


class ServerCrashError(ServerError):
    """A server ended while it was in use; the message carries its exit code and the tail of its log."""


class ServerHangError(ServerError):
    """A server is alive but did not answer in time; the message carries the tail of its log."""


class LedgerError(FastverifyError):
    """The ledger file is damaged, of another schema version, or in use by another campaign."""
