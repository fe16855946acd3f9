"""The words for what a kernel is: class of work, collective operation, back end. Tables and answers use them."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class KernelClass(IntEnum):
    """What kind of work a kernel does; small numbers, so that a column of them can be compared at once."""

    OTHER = 0
    COLLECTIVE = 1
    GEMM = 2
    ATTENTION = 3
    NORM = 4
    MOE = 5
    SAMPLING = 6
    KV_CACHE = 7
    ROPE = 8
    ACTIVATION = 9
    QUANTIZATION = 10
    ELEMENTWISE = 11
    MEMORY = 12

    @property
    def label(self) -> str:
        """The word in answers."""
        return self.name.lower()


class CollectiveOp(StrEnum):
    """What a collective does; SIGNAL is communication time that is no collective of its own (a handshake)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND_RECV = "send_recv"
    SIGNAL = "signal"
    UNKNOWN = "unknown"


class Backend(StrEnum):
    """Whose kernel a collective is."""

    NCCL = "nccl"
    NCCL_SYMMETRIC = "nccl_symmetric"
    CUSTOM_ALL_REDUCE = "custom_all_reduce"
    CUSTOM_ALL_REDUCE_V2 = "custom_all_reduce_v2"
    SYMMETRIC_MEMORY = "symmetric_memory"
    FLASHINFER = "flashinfer"
    FLASHINFER_PCIE = "flashinfer_pcie"
    TENSORRT_LLM = "tensorrt_llm"
    MSCCLPP = "mscclpp"
    QUICK_REDUCE = "quick_reduce"
    AITER = "aiter"
    DEEP_EP = "deep_ep"
    PPLX = "pplx"
    NVSHMEM = "nvshmem"
    GLOO = "gloo"
    SHARED_MEMORY = "shared_memory"
    FASTVERIFY = "fastverify"
    UNKNOWN = "unknown"
