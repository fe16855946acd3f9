"""Streams of virtual ranks must not share a connection to the GPU; CUDA reads this when it starts."""

import os

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
