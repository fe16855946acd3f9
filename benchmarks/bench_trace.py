"""How fast and how lean is reading a profiler file, against HTA and against only parsing it with orjson?

fastverify does all of it: unpack, read, cut into passes, break down. HTA 0.5.0 loads the file and makes its three
breakdowns; orjson unpacks and parses with the garbage collector off and analyses nothing. Each run is a process of its
own, contenders in turn; seconds do not count imports, peak memory does. The minimum counts: other load only adds.
Peers live in an environment of their own:
    python -m venv ENV && ENV/bin/pip install HolisticTraceAnalysis==0.5.0 'pandas<3' orjson isal
    python benchmarks/bench_trace.py FILE.json.gz --peers ENV/bin/python --repeat-file 20
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fastverify.records import write_record

MEASURE = """
import json, sys, time
from pathlib import Path
def peak_mb():  # not ru_maxrss: that one outlives exec, so it would be the parent's
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
path = sys.argv[1]
{imports}
base_mb, begin, begin_cpu = peak_mb(), time.perf_counter(), time.process_time()
{work}
spent = dict(seconds=time.perf_counter() - begin, cpu_seconds=time.process_time() - begin_cpu)
print(json.dumps(dict(**spent, base_mb=base_mb, peak_mb=peak_mb())))
"""
TASKS = {
    "fastverify": (
        "from fastverify.trace.reader import read_trace\nfrom fastverify.trace.breakdown import profile_of",
        "profile_of(read_trace(path))",
    ),
    "hta": (
        "import logging, warnings\nlogging.disable(logging.CRITICAL); warnings.simplefilter('ignore')\n"
        "from hta.trace_analysis import TraceAnalysis",
        "hta = TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)\n"
        "hta.get_comm_comp_overlap(visualize=False); hta.get_temporal_breakdown(visualize=False)\n"
        "hta.get_gpu_kernel_breakdown(visualize=False)",
    ),
    "orjson": (
        "import gc, orjson\nfrom isal import igzip\ngc.disable()",
        "orjson.loads(igzip.open(path).read())",
    ),
}
CLOCKS_AND_IDS = re.compile(rb'("ts": |"correlation": |"External id": |"id": )(\d+)')
SHIFT_US, SHIFT_ID = 10_000_000, 10_000_000


@dataclass(frozen=True)
class Sample:
    """One run of one contender. On a busy machine the processor time says more than the clock."""

    seconds: float
    cpu_seconds: float
    base_mb: float
    peak_mb: float


def repeat_trace(path: Path, times: int, out: Path) -> int:
    """The file's events again and again, later and with other ids: real content, artificial length. Bytes of JSON."""
    text = gzip.decompress(path.read_bytes())
    begin = text.index(b'"traceEvents": [') + len(b'"traceEvents": [')
    end = text.rindex(b"]")
    size = 0
    with gzip.open(out, "wb", compresslevel=1) as file:
        size += file.write(text[:begin])
        for turn in range(times):
            size += file.write(b"," if turn else b"")
            size += file.write(CLOCKS_AND_IDS.sub(lambda found, turn=turn: shifted(found, turn), text[begin:end]))
        size += file.write(text[end:])
    return size


def shifted(found: re.Match[bytes], turn: int) -> bytes:
    step = SHIFT_US if found[1] == b'"ts": ' else SHIFT_ID
    return found[1] + str(int(found[2]) + turn * step).encode()


def measure(python: str, task: str, path: Path) -> Sample:
    imports, work = TASKS[task]
    command = [python, "-c", MEASURE.format(imports=imports, work=work), str(path.resolve())]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return Sample(**json.loads(answer.stdout.strip().rsplit("\n", 1)[-1]))


def compare(path: Path, peers: str | None, repeats: int) -> dict[str, list[Sample]]:
    """Every contender `repeats` times, in turn."""
    pythons = {"fastverify": sys.executable} | ({"hta": peers, "orjson": peers} if peers else {})
    samples: dict[str, list[Sample]] = {task: [] for task in pythons}
    for _ in range(repeats):
        for task, python in pythons.items():
            samples[task].append(measure(python, task, path))
    return samples


def print_file(label: str, num_bytes: int, samples: dict[str, list[Sample]]) -> None:
    """The minimum of each contender, and how many times ours that is."""
    print(f"\n{label}: {num_bytes / 1e6:.1f} MB of JSON")
    ours = smallest(samples["fastverify"])
    for task, runs in samples.items():
        least = smallest(runs)
        ratio = (
            f"{least.seconds / ours.seconds:.1f}x the time, {least.cpu_seconds / ours.cpu_seconds:.1f}x processor time"
        )
        memory = f"{least.peak_mb:.0f} MB peak, {least.base_mb:.0f} MB of it imports"
        print(f"  {task:<11} {least.seconds:8.3f} s, {least.cpu_seconds:.3f} s of processor, {memory} | {ratio}")


def smallest(runs: list[Sample]) -> Sample:
    return Sample(*(min(values) for values in zip(*(vars(run).values() for run in runs), strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="profiler files, .json.gz")
    parser.add_argument("--peers", help="Python of an environment with HTA, orjson and isal")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--repeat-file", type=int, default=0, metavar="N", help="also the largest file N-fold")
    parser.add_argument("--large-repeats", type=int, default=5, help="runs on the N-fold file")
    parser.add_argument("--record", type=Path, help="where to write the record")
    options = parser.parse_args()
    jobs = {path.name: (path, len(gzip.decompress(path.read_bytes())), options.repeats) for path in options.files}
    with tempfile.TemporaryDirectory() as folder:
        if options.repeat_file:
            largest = max(jobs.values(), key=lambda job: job[1])[0]
            out = Path(folder) / "repeated.json.gz"
            size = repeat_trace(largest, options.repeat_file, out)
            jobs[f"{options.repeat_file} x {largest.name}"] = (out, size, options.large_repeats)
        results = {}
        for label, (path, num_bytes, repeats) in jobs.items():
            samples = compare(path, options.peers, repeats)
            print_file(label, num_bytes, samples)
            results[label] = {
                "json_bytes": num_bytes,
                **{task: [vars(run) for run in runs] for task, runs in samples.items()},
            }
    if options.record:
        settings = {"repeats": options.repeats, "large_repeats": options.large_repeats, "peers": "HTA 0.5.0, orjson"}
        write_record(options.record, question=str(__doc__).splitlines()[0], settings=settings, results=results)


if __name__ == "__main__":
    main()
