"""Streams of virtual ranks must not share a connection to the GPU; CUDA reads this when it starts."""

import os
from importlib.util import find_spec

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# Property tests need no GPU; a machine that has one may lack what they need.
collect_ignore = [] if find_spec("hypothesis") else ["test_launch.py", "test_protocol.py"]
