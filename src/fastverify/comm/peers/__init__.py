"""Adapters of the all-reduces of other libraries: NCCL, PyTorch symmetric memory, FlashInfer, vLLM and MSCCL++."""
