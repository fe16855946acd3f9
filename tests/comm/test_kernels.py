"""The Arm vector set, under an emulator where a cross compiler and qemu are installed (g++-aarch64-linux-gnu,
qemu-user-static). The x86 sets are compared through the built module in test_shm.py, and here on random bits.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc" / "cpu"
CHECK = Path(__file__).with_name("kernels_check.cpp")
FLAGS = {"avx2": ["-mavx2", "-mf16c"], "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl"]}
ON_X86 = platform.machine() == "x86_64"


def build(compiler: str, folder: Path, *, x86: bool) -> Path:
    """The check, with each vector set in an object of its own as CMakeLists.txt has it."""
    common = [compiler, "-std=c++17", "-O2", "-ffp-contract=off", f"-I{SOURCES}"]
    objects = []
    for name in ("plain", "avx2", "avx512", "neon"):
        objects.append(folder / f"{name}.o")
        flags = FLAGS.get(name, []) if x86 else []
        subprocess.run([*common, *flags, "-c", SOURCES / f"kernels_{name}.cpp", "-o", objects[-1]], check=True)
    subprocess.run([*common, "-static", CHECK, *objects, "-o", folder / "check"], check=True)
    return folder / "check"


@pytest.mark.skipif(not shutil.which("g++") or not ON_X86, reason="needs g++ on x86_64")
def test_x86_sets_sum_random_bits_like_the_plain_one(tmp_path: Path) -> None:
    program = build("g++", tmp_path, x86=True)
    answer = subprocess.run([program], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout
    assert all(line.endswith(": 0 differences") for line in answer.stdout.splitlines())


@pytest.mark.skipif(
    not shutil.which("aarch64-linux-gnu-g++") or not shutil.which("qemu-aarch64-static"),
    reason="needs g++-aarch64-linux-gnu and qemu-user-static",
)
def test_neon_sums_random_bits_like_the_plain_one(tmp_path: Path) -> None:
    program = build("aarch64-linux-gnu-g++", tmp_path, x86=False)
    answer = subprocess.run(["qemu-aarch64-static", program], capture_output=True, text=True)
    assert answer.stdout == "neon: 0 differences\n"
    assert answer.returncode == 0
