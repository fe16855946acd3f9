"""The benchmark of all-reduces: CPU ranks (cpu.py), and GPUs in lanes of one environment each (gpu_run.py)."""
