"""All-reduce kernels for NVIDIA GPUs, compiled at first use; one process with several virtual ranks so far."""
