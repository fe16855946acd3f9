"""Texts in the formats of real servers and tools, with numbers of our own; the release of each format is named."""

# ruff: noqa: E501 - lines of logs are as long as they are
from fastverify.diagnosis.readers.document import Document, document_of

PCIE_GATE = (
    "is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly."
)
SGLANG_0_5_5 = f"""\
[2025-11-20 10:00:01] server_args=ServerArgs(model_path='/models/m', tokenizer_path='/models/m', tp_size=8, ep_size=1, \
speculative_algorithm='EAGLE3', speculative_draft_model_path='/models/head', speculative_num_steps=3, \
speculative_eagle_topk=1, speculative_num_draft_tokens=4, cuda_graph_max_bs=160, cuda_graph_bs=[1, 2, 4], \
disable_cuda_graph=False, log_requests_target=None)
[2025-11-20 10:00:09 TP0] sglang is using nccl==2.27.3
[2025-11-20 10:00:09 TP0] Custom allreduce {PCIE_GATE}
[2025-11-20 10:00:10 TP1] Custom allreduce {PCIE_GATE}
[2025-11-20 10:00:20 TP0] Capture cuda graph bs [1, 2, 4, 8]
[2025-11-20 10:00:30 TP0] max_total_num_tokens=90000, chunked_prefill_size=8192, max_running_requests=48, context_len=4096
[2025-11-20 10:01:00 TP0] Prefill batch. #new-seq: 1, #new-token: 28, token usage: 0.00, #running-req: 0, #queue-req: 0, 
[2025-11-20 10:01:01 TP0] Decode batch. #running-req: 1, #token: 108, token usage: 0.00, accept len: 2.17, \
accept rate: 0.54, cuda graph: True, gen throughput (token/s): 0.39, #queue-req: 0, 
[2025-11-20 10:01:02 TP0] Decode batch. #running-req: 1, #token: 186, token usage: 0.00, accept len: 1.95, \
accept rate: 0.49, cuda graph: True, gen throughput (token/s): 60.50, #queue-req: 0, 
[2025-11-20 10:01:03 TP0] Decode batch. #running-req: 1, #token: 258, token usage: 0.00, accept len: 2.00, \
accept rate: 0.50, cuda graph: False, gen throughput (token/s): 60.00, #queue-req: 0, 
[2025-11-20 10:01:04 TP0] Decode batch. #running-req: 1, #token: 340, token usage: 0.00, accept len: 2.05, \
accept rate: 0.51, cuda graph: True, gen throughput (token/s): 59.00, #queue-req: 0, 
[2025-11-20 10:01:05 TP0] Decode batch. #running-req: 2, #token: 340, token usage: 0.00, accept len: 2.10, \
accept rate: 0.52, cuda graph: True, gen throughput (token/s): 99.00, #queue-req: 0, 
"""
SGLANG_0_5_23_PLAIN = """\
[2026-11-20 10:00:01] server_args={'model_path': '/models/m', 'tp_size': 8, 'speculative_algorithm': None, \
'cuda_graph_max_bs_decode': 32, 'watermark': {'a': 1, 'b': 'x, y'}, 'max_running_requests': None}
[2026-11-20 10:01:01 TP0] Decode batch, #running-req: 1, #token: 200, token usage: 0.08, cuda graph: True, \
gen throughput (token/s): 12.00, #queue-req: 0
[2026-11-20 10:01:02 TP0] Decode batch, #running-req: 1, #token: 240, token usage: 0.08, cuda graph: True, \
gen throughput (token/s): 82.00, #queue-req: 0
[2026-11-20 10:01:02] INFO:     127.0.0.1:40052 - "POST /v1/chat/completions HTTP/1.1" 200 OK
"""
VLLM_0_33 = f"""\
(APIServer pid=1) INFO 11-20 08:00:00 [startup.py:90] vLLM API server version 0.33.0
(APIServer pid=1) INFO 11-20 08:00:00 [startup.py:96] non-default args: {{'model': '/m/kimi', 'tensor_parallel_size': 8, \
'max_num_seqs': 8, 'speculative_config': {{'method': 'eagle3', 'model': '/m/head', 'num_speculative_tokens': 3}}}}
(EngineCore pid=2) INFO 11-20 08:00:05 [core.py:139] Initializing a V1 LLM engine (v0.33.0) with config: \
model='/m/kimi', speculative_config=SpeculativeConfig(method='eagle3', model='/m/head', num_spec_tokens=3), \
tensor_parallel_size=8, compilation_config={{'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}}
(Worker_TP0 pid=3) INFO 11-20 08:00:09 [pynccl.py:148] vLLM is using nccl==2.28.9
(Worker_TP0 pid=3) WARNING 11-20 08:00:09 [custom_all_reduce.py:269] Custom allreduce {PCIE_GATE}
(Worker_TP0 pid=3) INFO 11-20 08:00:09 [cuda_communicator.py:354] Using ['FLASHINFER_PCIE_IPC', 'PYNCCL'] all-reduce \
backends (in dispatch order) for group 'tp:0' out of potential backends: ['FLASHINFER_PCIE_IPC', 'CUSTOM', 'PYNCCL'].
(Worker_TP0 pid=3) INFO 11-20 08:00:10 [ipc.py:150] Initialized FlashInfer PCIe IPC all-reduce for TP8, hidden_dim=7168.
(EngineCore pid=2) WARNING 11-20 08:00:11 [compilation.py:1466] CUDAGraphMode.FULL_AND_PIECEWISE is not supported with \
spec-decode for attention backend X (support: SINGLE); setting cudagraph_mode=PIECEWISE
(APIServer pid=1) INFO 11-20 08:01:10 [loggers.py:340] Engine 000: Avg prompt throughput: 10.0 tokens/s, Avg generation \
throughput: 31.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%
(APIServer pid=1) INFO 11-20 08:01:20 [loggers.py:340] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation \
throughput: 60.1 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%, Prefix cache hit rate: 0.0%
(APIServer pid=1) INFO 11-20 08:01:20 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.01, Accepted \
throughput: 30.00 tokens/s, Drafted throughput: 90.00 tokens/s, Accepted: 303 tokens, Drafted: 900 tokens, \
Per-position acceptance rate: 0.560, 0.300, 0.150, Avg Draft acceptance rate: 33.7%
"""
VLLM_0_6 = """\
INFO 10-16 19:05:40 api_server.py:912] vLLM API server version 0.6.3
INFO 10-16 19:05:40 api_server.py:913] args: Namespace(host=None, port=8000, model='/m/a', tensor_parallel_size=4, \
speculative_model='/m/small', num_speculative_tokens=3, config_format=<ConfigFormat.AUTO: 'auto'>)
INFO 10-16 19:05:47 metrics.py:349] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 50.0 tokens/s, \
Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 1.0%, CPU KV cache usage: 0.0%.
INFO 10-16 19:05:52 metrics.py:349] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 80.0 tokens/s, \
Running: 2 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 1.0%, CPU KV cache usage: 0.0%.
INFO 10-16 19:05:52 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, \
Number of speculative tokens: 3, Number of accepted tokens: 9000, Number of draft tokens: 15000, \
Number of emitted tokens: 11000.
"""
TOPOLOGY = """\
$ nvidia-smi topo -m
        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      PIX     SYS     SYS     NODE    0-31            0               N/A
GPU1    PIX      X      SYS     SYS     NODE    0-31            0               N/A
GPU2    SYS     SYS      X      NODE    SYS     32-63           1               N/A
GPU3    SYS     SYS     NODE     X      SYS     32-63           1               N/A
NIC0    NODE    NODE    SYS     SYS      X

$ nvidia-smi topo -p2p a
        GPU0    GPU1    GPU2    GPU3
 GPU0   X       NS      NS      NS
 GPU1   NS      X       NS      NS
 GPU2   NS      NS      X       NS
 GPU3   NS      NS      NS      X

$ nvidia-smi topo -p2p rw
        GPU0    GPU1    GPU2    GPU3
 GPU0   X       OK      OK      OK
 GPU1   OK      X       OK      OK
 GPU2   OK      OK      X       OK
 GPU3   OK      OK      OK      X
"""
# Recorded on 2 H200, driver 580.159.04: the header is underlined even in a pipe, and tabs end the lines.
H200_TOPOLOGY = (
    "$ nvidia-smi topo -m\n\t\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\t0-31\t0\t\tN/A\nGPU1\tNV18\t X \t0-31\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n"
    "$ nvidia-smi topo -p2p a\n \t\x1b[4mGPU0\tGPU1\t\x1b[0m\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\nLegend:\n"
)
H200_SMI = """\
| NVIDIA-SMI 580.159.04             Driver Version: 580.159.04     CUDA Version: 13.0     |
|   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |
| N/A   36C    P0             94W /  700W |       0MiB / 143771MiB |      0%      Default |
|   1  NVIDIA H200                    On  |   00000000:00:07.0 Off |                    0 |
| N/A   34C    P0            108W /  700W |       0MiB / 143771MiB |      0%      Default |
"""
H200_QUERY = """\
NVIDIA H200, 00000000:00:06.0, 580.159.04, 9.0, 5, 5, 16, 16, 0, 97.40, 700.00, 700.00, 0x0000000000000001, 435, Enabled, Disabled
NVIDIA H200, 00000000:00:07.0, 580.159.04, 9.0, 5, 5, 16, 16, 0, 111.33, 700.00, 700.00, 0x0000000000000001, 375, Enabled, Disabled
"""
LSPCI = """\
00:01.1 PCI bridge: Some Corporation Root Port (prog-if 00 [Normal decode])
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
00:02.1 PCI bridge: Some Corporation Root Port (prog-if 00 [Normal decode])
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
01:00.0 VGA compatible controller: NVIDIA Corporation Device 2bb1 (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1, Exit Latency L1 <4us
\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)
"""
COLLECT_ENV = """\
Collecting environment information...
PyTorch version: 2.11.0+cu130
CUDA runtime version: 13.0.88
GPU models and configuration:
GPU 0: NVIDIA RTX PRO 6000 Blackwell Server Edition
GPU 1: NVIDIA RTX PRO 6000 Blackwell Server Edition
Nvidia driver version: 580.126.09
CPU(s):                               64
NUMA node(s):                         2
[pip3] flashinfer-python==0.7.2
[pip3] nvidia-nccl-cu13==2.28.9
[conda] numpy                     2.3.5                    pypi_0    pypi
vLLM Version: 0.33.0
NCCL_P2P_LEVEL=SYS
OMP_NUM_THREADS=1
HF_TOKEN=hf_donotkeepthis
"""
CHECK_ENV = """\
Python: 3.12.3 (main)
CUDA available: True
GPU 0,1,2,3,4,5,6,7: NVIDIA H20-3e
GPU 0,1,2,3,4,5,6,7 Compute Capability: 9.0
CUDA Driver Version: 580.126.20
PyTorch: 2.11.0+cu130
sglang: 0.5.11
flashinfer_python: 0.6.8.post1
flashinfer_cubin: 0.6.8.post1
"""
SGLANG_BENCH = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 8
Successful requests:                     50
Output token throughput (tok/s):         183.80
Total token throughput (tok/s):          393.68
Concurrency:                             7.01
Accept length:                           2.14
---------------Time to First Token----------------
Mean TTFT (ms):                          100.00
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          40.00
---------------Inter-Token Latency----------------
Mean ITL (ms):                           85.00
Median ITL (ms):                         84.00
==================================================
"""
VLLM_BENCH = """\
============ Serving Benchmark Result ============
Successful requests:                     80
Failed requests:                         0
Maximum request concurrency:             1
Output token throughput (tok/s):         60.00
Mean TPOT (ms):                          16.50
---------------Speculative Decoding---------------
Acceptance rate (%):                     33.67
Acceptance length:                       2.01
Drafts:                                  300
Draft tokens:                            900
Per-position acceptance (%):
  Position 0:                            56.00
  Position 1:                            30.00
==================================================
"""


def document(text: str, source: str = "given.txt") -> Document:
    """The document that a file with this text gives."""
    return document_of(text, source)
