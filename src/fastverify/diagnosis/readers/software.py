"""Environment dumps of other tools: torch's and vLLM's collect_env, SGLang's check_env, and the nvidia-smi table.

All print `name: value` lines and package lists, so one reader serves them: versions, driver, GPUs, NUMA nodes, power
and load, and the variables that steer collectives. Read on dumps of torch 2.4 to 2.11, vLLM 0.7 to 0.33, SGLang 0.5.
"""

from __future__ import annotations

import re

from fastverify.diagnosis.readers.document import Document
from fastverify.diagnosis.readers.reading import Reading, ReadingBuilder, whole

KIND = "environment dump"
MARKERS = (
    "PyTorch version",
    "CUDA Driver Version",
    "Driver Version:",
    "vLLM Version",
    "flashinfer_python",
    "[pip3] torch",
    "Nvidia driver version",
    "NVRM version",
)
# Name of the dump -> name of the package; distributions keep the name that `pip` gives them.
_VERSIONS = {
    "PyTorch version": "torch",
    "PyTorch": "torch",
    "vLLM Version": "vllm",
    "sglang": "sglang",
    "sgl_kernel": "sgl-kernel",
    "sglang-kernel": "sgl-kernel",
    "flashinfer_python": "flashinfer-python",
    "flashinfer_cubin": "flashinfer-cubin",
    "flashinfer_jit_cache": "flashinfer-jit-cache",
    "triton": "triton",
    "transformers": "transformers",
    "CUDA runtime version": "cuda",
}
_PACKAGES = re.compile(
    r"\[(?:pip3|conda)\] (torch|vllm|sglang|sgl[-_]kernel|flashinfer[-_]\w{1,20}|nvidia-nccl-cu\d{2}|nvidia[-_]nvshmem"
    r"[-_]cu\d{2}|triton|transformers|numpy|cuda-python)(?:==|\s{1,40})(\d[\w.+]{0,40})"
)
_ENV = re.compile(
    r"\s{0,8}(?:export )?((?:NCCL|VLLM|SGLANG|CUDA|OMP|PYTORCH|TORCH|FLASHINFER|MSCCLPP|NVSHMEM|UCX)_\w{1,80})"
    r"=(.{0,400})"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_GPU = re.compile(r"GPU (\d{1,3}(?:,\d{1,3}){0,63}): (NVIDIA [\w .()/-]{1,60}|[A-Z][\w .()/-]{1,60})")
_CAPABILITY = re.compile(r"GPU [\d,]{1,200} Compute Capability: (\d{1,2}\.\d)")
_DRIVER = re.compile(r"(?:Nvidia driver version|CUDA Driver Version|Driver Version)\s{0,20}: ?(\d{3}\.[\d.]{1,12})")
_POWER = re.compile(r"(\d{1,5})W {0,4}/ {0,6}(\d{1,5})W")
_LOAD = re.compile(r"\|\s{1,10}(\d{1,3})%\s{1,10}(?:Default|E\. Process|Prohibited)")
_NUMA = re.compile(r"NUMA node\(s\):\s{1,40}(\d{1,4})")
_CORES = re.compile(r"^CPU\(s\):\s{1,60}(\d{1,5})$")
MAX_GPUS = 256


def read_software(document: Document) -> Reading | None:
    """Versions, GPUs and variables of a dump."""
    if not any(marker in document.text for marker in MARKERS):
        return None
    builder = ReadingBuilder(KIND, document.source)
    gpus: dict[int, tuple[str, int]] = {}
    for line, text in document.lines:
        _add_versions(builder, line, text)
        if found := _GPU.search(text):
            indices = [index for index in map(int, found[1].split(",")) if index < MAX_GPUS]
            gpus |= {index: (found[2].strip(), line) for index in indices}
        _add_machine(builder, line, text)
    if gpus:
        name, line = gpus[min(gpus)]
        builder.add("hardware.gpu", name.partition(" (UUID")[0], line)
        builder.add("hardware.num_gpus", len(gpus), line)
    return builder.build()


def read_variables(document: Document) -> Reading | None:
    """Variables that steer collectives, one a line, as scripts export them and dumps list them."""
    builder = ReadingBuilder("environment variables", document.source)
    for line, text in document.lines:
        found = _ENV.fullmatch(text)
        # A line that goes on belongs to a launch command, which has its own reader.
        if found and not _SECRET.search(found[1]) and not text.rstrip().endswith("\\") and " --" not in text:
            value = found[2].strip().strip("'\"")
            builder.add(f"launch.env.{found[1]}", value, line, once=True)
            if found[1] == "OMP_NUM_THREADS":
                builder.add("hardware.omp_num_threads", whole(value), line, once=True)
    return builder.build() if builder.evidence else None


def _add_versions(builder: ReadingBuilder, line: int, text: str) -> None:
    name, found, value = text.partition(": ")
    package = _VERSIONS.get(name.strip())
    if found and package and re.fullmatch(r"\d[\w.+-]{0,40}", value.strip().split(" ")[0]):
        builder.add(f"hardware.packages.{package}", value.strip().split(" ")[0], line, once=True)
        if package in ("vllm", "sglang"):
            builder.add("server_version", value.strip().split(" ")[0], line, once=True)
    if listed := _PACKAGES.search(text):
        package = listed[1].replace("_", "-")
        package = "nccl" if package.startswith("nvidia-nccl") else package
        builder.add(f"hardware.packages.{package}", listed[2], line, once=True)


def _add_machine(builder: ReadingBuilder, line: int, text: str) -> None:
    if found := _CAPABILITY.search(text):
        builder.add("hardware.compute_capability", found[1], line, once=True)
    if found := _DRIVER.search(text):
        builder.add("hardware.driver_version", found[1], line, once=True)
    if "NVRM version" in text:
        builder.add(
            "hardware.driver_flavour", "open" if "Open Kernel Module" in text else "proprietary", line, once=True
        )
    if found := _NUMA.search(text):
        builder.add("hardware.num_numa_nodes", int(found[1]), line, once=True)
    if found := _CORES.search(text.strip()):
        builder.add("hardware.num_cores", int(found[1]), line, once=True)
    if (found := _POWER.search(text)) and int(found[2]) > 0:
        builder.add("hardware.gpu_power_share", int(found[1]) / int(found[2]), line, unit="share")
        if load := _LOAD.search(text):
            builder.add("hardware.gpu_utilization", min(int(load[1]), 100) / 100, line, unit="share")
