"""The only unit conversions and the only formatting of quantities.

Names carry their unit as a suffix: `_ns`, `_us`, `_ms`, `_s`, `_bytes`. A KB is 1024 bytes, as in NCCL-tests.
"""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
US_PER_MS = 1_000.0
MS_PER_S = 1_000.0
BYTES_PER_KB = 1024
BYTES_PER_MB = 1024 * 1024
# What a benchmark accepts as one message of one rank; servers send a few MB.
MAX_MESSAGE_BYTES = 1024 * BYTES_PER_MB
# One element of a message between ranks, by dtype.
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SIZES = {"MB": BYTES_PER_MB, "M": BYTES_PER_MB, "KB": BYTES_PER_KB, "K": BYTES_PER_KB, "B": 1}


def ns_to_ms(ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return ns / NS_PER_MS


def ns_to_us(ns: float) -> float:
    """Nanoseconds to microseconds."""
    return ns / NS_PER_US


def s_to_ms(s: float) -> float:
    """Seconds to milliseconds."""
    return s * MS_PER_S


def format_bytes(num_bytes: int) -> str:
    """`57344 -> "56 KB"`: whole units where exact, one decimal otherwise."""
    for unit, size in (("MB", BYTES_PER_MB), ("KB", BYTES_PER_KB)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}"
    return f"{num_bytes} B"


def parse_bytes(text: str) -> int:
    """`"56KB"`, `"1 MB"`, `"4096"` to bytes. Raises ValueError with the rule for anything else."""
    cleaned = text.strip().upper().replace(" ", "")
    unit = next((unit for unit in _SIZES if cleaned.endswith(unit)), "")
    try:
        num_bytes = float(cleaned.removesuffix(unit)) * _SIZES.get(unit, 1)
    except ValueError:
        num_bytes = -1.0
    if not 1 <= num_bytes < 2**63 or num_bytes != int(num_bytes):
        raise ValueError(f"a size is a whole number of bytes, KB or MB such as 4096, 56KB or 1MB, got {text!r}.")
    return int(num_bytes)


def format_ms(ms: float) -> str:
    """Milliseconds with three significant figures, in the unit a reader expects."""
    if ms >= 1000:
        return f"{ms / MS_PER_S:.2f} s"
    if ms >= 0.1:
        return f"{ms:.3g} ms"
    return f"{ms * US_PER_MS:.3g} us"
