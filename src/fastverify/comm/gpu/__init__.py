"""GPUs: which all-reduce serves which message, found by measuring every backend that runs on this machine."""
