"""The table of kernel names: which collective, of which back end, or which kind of computing. First matching row wins.

A row's pattern is searched in the whole name, template arguments included, so it must name something that only this
kernel has: never a bare "reduce", "gather", "dispatch" or "combine" (ATen, cuBLAS and attention kernels carry those).
`(?P<op>)`, `(?P<algorithm>)` and `(?P<protocol>)` in a pattern fill what the row leaves open. Source of a row: `seen`
is a name in a profiler file that the tests read, `code` one in public source of that project, `report` a public issue.
"""

from __future__ import annotations

from typing import NamedTuple

from fastverify.trace.kind_names import Backend, CollectiveOp, KernelClass

AR, AG, RS = CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER
A2A, SIGNAL, UNKNOWN = CollectiveOp.ALL_TO_ALL, CollectiveOp.SIGNAL, CollectiveOp.UNKNOWN


class CollectiveRow(NamedTuple):
    """One family of collective kernels; an empty string is filled from the pattern's groups."""

    pattern: str
    backend: Backend
    op: CollectiveOp
    algorithm: str
    protocol: str
    fused: bool
    source: str


class ComputeRow(NamedTuple):
    """One family of computing kernels."""

    pattern: str
    kernel_class: KernelClass
    source: str


_NCCL_HOW = r"_(?P<algorithm>RING|TREE|NVLS_TREE|NVLS|COLLNET_DIRECT|COLLNET_CHAIN|PAT)_(?P<protocol>LL128|LL|SIMPLE)"
_OUR_PROTOCOL = r"\w*?(?:_(?P<protocol>lines|sentinel|flags))?\b"

COLLECTIVES = [
    # NCCL and RCCL. The name's protocol may differ from the one that ran: NCCL serves several with one kernel.
    CollectiveRow(
        r"(?i:ncclSymk?(?:Dev)?Kernel)_(?P<op>[A-Za-z]+?)_(?P<algorithm>[A-Za-z]+(?:_R|_AGx[A-Za-z]+)?)(?:_|\(|$)",
        Backend.NCCL_SYMMETRIC, UNKNOWN, "", "", False, "code: nccl src/device/symmetric/generate.py"),
    CollectiveRow(
        r"(?i:ncclSymk?)", Backend.NCCL_SYMMETRIC, UNKNOWN, "", "", False, "code: nccl src/device/symmetric"),
    CollectiveRow(
        r"(?i:(?:nccl|rccl)(?:dev)?(?:generic)?kernel)(?:_(?P<op>[A-Za-z]+)(?i:\w*?" + _NCCL_HOW + r")?)?",
        Backend.NCCL, UNKNOWN, "", "", False,
        "seen: H200, B200, A100, V100; code: nccl src/device/generate.py; report: roctracer 101 (no operation named)"),
    CollectiveRow(
        r"^(?i:nccl|rccl)", Backend.NCCL, UNKNOWN, "", "", False, "report: HolisticTraceAnalysis 360"),
    # Custom all-reduce of vLLM and SGLang: v1, and SGLang's v2 by push and pull.
    CollectiveRow(
        r"cross_device_reduce_1stage", Backend.CUSTOM_ALL_REDUCE, AR, "one-shot", "", False, "seen: vLLM H200"),
    CollectiveRow(
        r"cross_device_reduce_2stage", Backend.CUSTOM_ALL_REDUCE, AR, "two-shot", "", False,
        "code: vllm csrc/custom_all_reduce.cuh"),
    CollectiveRow(
        r"all_reduce_1shot_(?P<protocol>push|pull)_kernel", Backend.CUSTOM_ALL_REDUCE_V2, AR, "one-shot", "", False,
        "code: sglang jit csrc/distributed/custom_all_reduce.cuh"),
    CollectiveRow(
        r"all_reduce_2shot_(?P<protocol>push|pull)_kernel", Backend.CUSTOM_ALL_REDUCE_V2, AR, "two-shot", "", False,
        "code: sglang jit csrc/distributed/custom_all_reduce.cuh"),
    CollectiveRow(
        r"all_reduce_push_res_kernel", Backend.CUSTOM_ALL_REDUCE_V2, AR, "one-shot", "push", True,
        "code: sglang jit csrc"),
    # FlashInfer and TensorRT-LLM: fused with the norm, PCIe by IPC, and the lamport family. Fused rows come first.
    CollectiveRow(
        r"(?:moe_?finalize|moe_?reduce)_all_?reduce(?:\w*?_(?P<algorithm>oneshot|twoshot))?",
        Backend.FLASHINFER, AR, "", "", True, "code: flashinfer trtllm_moe_allreduce_fusion.cuh, sglang jit"),
    CollectiveRow(
        r"allreduce_fusion_kernel_(?P<algorithm>oneshot|twoshot)_(?P<protocol>lamport|sync)",
        Backend.FLASHINFER, AR, "", "", True, "code: flashinfer trtllm_allreduce_fusion.cuh"),
    CollectiveRow(
        r"oneshotAllreduceFusionKernel", Backend.FLASHINFER, AR, "one-shot", "multicast", True,
        "code: flashinfer trtllm_mnnvl_allreduce.cuh"),
    CollectiveRow(
        r"twoshotAllreduceKernel", Backend.FLASHINFER, AR, "two-shot", "multicast", False,
        "code: flashinfer trtllm_mnnvl_allreduce.cuh"),
    CollectiveRow(
        r"(?:push_oneshot_param|ipc_tp2_remote_push)_kernel", Backend.FLASHINFER_PCIE, AR, "one-shot", "push", False,
        "code: flashinfer pcie_ipc headers"),
    CollectiveRow(
        r"ipc_(?:topo_)?rsag8?_(?P<protocol>push|ring_push|block)_param_kernel", Backend.FLASHINFER_PCIE, AR,
        "two-shot", "", False, "code: flashinfer pcie_ipc headers"),
    CollectiveRow(
        r"kernel_pcie_ipc_ce_\w+|\bce_(?:publish|wait)_flag_kernel", Backend.FLASHINFER_PCIE, SIGNAL, "copy-engine",
        "", False, "code: flashinfer pcie_ipc headers; the copies themselves are memcpy rows"),
    CollectiveRow(
        r"\bce_add_kernel", Backend.FLASHINFER_PCIE, AR, "copy-engine", "", False,
        "code: flashinfer pcie_ipc headers"),
    CollectiveRow(
        r"mnnvl_lamport_(?P<op>all_gather|reduce_scatter)", Backend.FLASHINFER, UNKNOWN, "one-shot", "lamport", False,
        "code: vllm csrc"),
    CollectiveRow(
        r"(?:one_?shot|lamport)_?all_?reduce_?(?:one_?shot)?\w*(?:rms|norm|fusion)\w*",
        Backend.TENSORRT_LLM, AR, "one-shot", "", True, "code: TensorRT-LLM customAllReduceKernels.cu"),
    CollectiveRow(
        r"all_reduce_(?P<algorithm>one_shot|two_shot)(?:_push)?_ke", Backend.TENSORRT_LLM, AR, "", "", False,
        "report: a trace of TensorRT-LLM"),
    CollectiveRow(
        r"userbuffers_fp16_sum_inplace_gpu_(?P<protocol>mc|rr|null)\w*", Backend.TENSORRT_LLM, AR, "two-shot", "",
        False, "code: TensorRT-LLM userbuffers"),
    CollectiveRow(
        r"\buserbuffers_\w+", Backend.TENSORRT_LLM, UNKNOWN, "", "", False, "code: TensorRT-LLM userbuffers"),
    # PyTorch symmetric memory.
    CollectiveRow(
        r"multimem_(?P<algorithm>one_shot)_all_reduce_kernel", Backend.SYMMETRIC_MEMORY, AR, "", "multimem", False,
        "code: torch csrc symmetric memory"),
    CollectiveRow(
        r"multimem_all_reduce_kernel", Backend.SYMMETRIC_MEMORY, AR, "two-shot", "multimem", False, "seen: vLLM B200"),
    CollectiveRow(
        r"multimem_all_gather_kernel", Backend.SYMMETRIC_MEMORY, AG, "one-shot", "multimem", False,
        "code: torch csrc symmetric memory"),
    CollectiveRow(
        r"\b(?P<algorithm>one_shot|two_shot)_all_reduce(?:_\w+)?_kernel", Backend.SYMMETRIC_MEMORY, AR, "", "", False,
        "code: torch csrc symmetric memory"),
    # MSCCL++, AMD's quick reduce and aiter, and ours.
    CollectiveRow(
        r"(?i:mscclpp)[\w:]*::all_?gather|\ballgather\w*[Pp]acket", Backend.MSCCLPP, AG, "", "", False,
        "code: mscclpp collectives"),
    CollectiveRow(
        r"(?i:mscclpp)|\ballreduce(?:Nvls)?\w*Packet|\ballreduceRsAg\w*|\ballreduceAllPairs|\ballreduceNvls\w*",
        Backend.MSCCLPP, AR, "", "", False, "code: mscclpp collectives"),
    CollectiveRow(
        r"allreduce_prototype_(?P<algorithm>oneshot|twoshot)|qr_all_reduce", Backend.QUICK_REDUCE, AR, "", "", False,
        "code: vllm csrc/quickreduce"),
    CollectiveRow(
        r"aiter.*all_?reduce_fusion|aiter.*all_?reduce_?\w*(?:rms|norm)", Backend.AITER, AR, "one-shot", "", True,
        "code: aiter csrc/include/custom_all_reduce.cuh"),
    CollectiveRow(
        r"reduce_scatter_cross_device_store", Backend.AITER, AR, "two-shot", "", False,
        "code: aiter custom_all_reduce.cuh: first step of an all-reduce whose second is a local norm"),
    CollectiveRow(
        r"aiter.*(?:cross_device_reduce|all_?reduce)", Backend.AITER, AR, "", "", False,
        "code: aiter csrc/include/custom_all_reduce.cuh"),
    CollectiveRow(
        r"\bfastverify_fused" + _OUR_PROTOCOL, Backend.FASTVERIFY, AR, "one-shot", "", True,
        "code: comm/cuda/kernels.py"),
    CollectiveRow(
        r"\bfastverify_all_reduce" + _OUR_PROTOCOL, Backend.FASTVERIFY, AR, "one-shot", "", False,
        "code: comm/cuda/kernels.py"),
    CollectiveRow(
        r"\bfastverify_(?P<algorithm>two_shot|islands)" + _OUR_PROTOCOL, Backend.FASTVERIFY, AR, "", "", False,
        "code: comm/cuda/kernels.py"),
    CollectiveRow(
        r"\bfastverify_(?:all_)?gather" + _OUR_PROTOCOL, Backend.FASTVERIFY, AG, "one-shot", "", False,
        "code: comm/cuda/kernels.py"),
    # Expert parallelism.
    CollectiveRow(
        r"(?:deep_ep|dpsk::ep|ep)::(?P<algorithm>internode_ll|internode|intranode)::"
        r"(?:cached_)?(?:notify_(?:dispatch|combine)|get_dispatch_layout|clean_low_latency_buffer|barrier)",
        Backend.DEEP_EP, SIGNAL, "", "", False, "code: DeepEP csrc/kernels; report: a published training trace"),
    CollectiveRow(
        r"(?:deep_ep|dpsk::ep|ep)::(?P<algorithm>internode_ll|internode|intranode)::(?:dispatch|combine)",
        Backend.DEEP_EP, A2A, "", "", False, "code: DeepEP csrc/kernels; report: a published training trace"),
    CollectiveRow(
        r"(?:deep_ep|dpsk::ep)::\w+", Backend.DEEP_EP, SIGNAL, "", "", False, "code: DeepEP csrc/kernels"),
    CollectiveRow(
        r"moeA2A(?:Dispatch|Combine)Kernel|moe_?all_?to_?all\w*(?:dispatch|combine)", Backend.TENSORRT_LLM, A2A, "",
        "", False, "code: TensorRT-LLM moeAlltoAll kernels"),
    CollectiveRow(
        r"pplx\w*::\w*|\ba2a_(?:dispatch|combine)_(?:send|recv)", Backend.PPLX, A2A, "", "", False,
        "code: pplx-kernels"),
    CollectiveRow(
        r"(?i:nvshmemi?)\w*(?:barrier|quiet|sync|signal)", Backend.NVSHMEM, SIGNAL, "", "", False, "code: NVSHMEM"),
    CollectiveRow(r"(?i:nvshmem)", Backend.NVSHMEM, UNKNOWN, "", "", False, "code: NVSHMEM"),
    # CPU back ends: names of operators, not of kernels.
    CollectiveRow(
        r"^_C\w*::shm_(?P<op>all_?reduce|all_?gather|send_tensor_list|recv_tensor_list)", Backend.SHARED_MEMORY,
        UNKNOWN, "", "", False, "seen: vLLM on CPU"),
    CollectiveRow(r"^gloo:(?P<op>\w+)", Backend.GLOO, UNKNOWN, "", "", False, "code: torch ProcessGroupGloo.cpp"),
    CollectiveRow(
        r"^fastverify::all_reduce_residual_rmsnorm$", Backend.FASTVERIFY, AR, "", "", True, "code: comm/profiled.py"),
    CollectiveRow(
        r"^fastverify::(?P<op>all_reduce|all_gather)$", Backend.FASTVERIFY, UNKNOWN, "", "", False,
        "code: comm/profiled.py"),
    # Anything that says it is a collective and is none of the above: counted as communication, back end unknown.
    CollectiveRow(
        r"(?i:\ball_?reduce_?(?:kernel|\w*shot)|_all_reduce_kernel|allreduce_?kernel)", Backend.UNKNOWN, AR, "", "",
        False, "Arbitrary: words that only a collective has"),
    CollectiveRow(
        r"(?i:all_?gather_?\w*kernel)", Backend.UNKNOWN, AG, "", "", False,
        "Arbitrary: words that only a collective has"),
    CollectiveRow(
        r"(?i:all_?to_?all_?\w*kernel)", Backend.UNKNOWN, A2A, "", "", False,
        "Arbitrary: words that only a collective has"),
]  # fmt: skip

COMPUTE = [
    ComputeRow(
        r"__amd_rocclr_(?:copy|fill)Buffer|^MEMORY_COPY_|^Memcpy |^Memset |^mem(?:cpy|set)\d+_post$",
        KernelClass.MEMORY, "seen: MI300, H200 (copies of graphs run as kernels); kineto"),
    ComputeRow(
        r"(?i:flash_?attn|flash_fwd|fmha|attention|mla_(?:decode|fwd)|flashmla|paged_kv|flash::|batch(?:decode|prefill)with"
        r"|_fwd_grouped_kernel_stage\d|^_fwd_kernel|num_kv_splits|merge_state|persistent_attention)",
        KernelClass.ATTENTION, "seen: vLLM, SGLang on H200, B200, MI300"),
    ComputeRow(
        r"(?i:reshape_and_cache|concat_and_cache|store_kv|set_kv_buffer|kv_indices|slot_mapping|block_table|page_indices)",
        KernelClass.KV_CACHE, "seen: vLLM, SGLang"),
    ComputeRow(
        r"(?i:\bmoe|moe_|topk_softmax|grouped_topk|routing|bitmatrix|_topk_forward|expert|swiglu.*mxe|bmm_mxe|bmm_bf.*mxe"
        r"|_matmul_ogs|finalize_matmul_scatter|ck_moe|fmoe)", KernelClass.MOE, "seen: vLLM B200, H200"),
    ComputeRow(
        r"(?i:rejection|_sample_kernel|sampl(?:e|ing)|argmax|arg_?max|topk|top_p|gumbel|multinomial|verifytree|build_tree"
        r"|softmaxforward|softmax_warp|penalt|radix_?sort|rocprim.*sort|bonus_token)",
        KernelClass.SAMPLING, "seen: vLLM, SGLang"),
    ComputeRow(
        r"(?i:rms_?norm|layer_?norm|group_?norm|batch_?norm|cudnn::bn_)", KernelClass.NORM, "seen: vLLM, SGLang"),
    ComputeRow(
        r"(?i:gemm|gemv|nvjet|cutlass.*kernel|^Cijk_|matmul|xmma|cublas|splitk|wmma|\bbmm|dot_kernel|deep_gemm|marlin"
        r"|sm\d+_fp8|conv(?:olution)?[_<2d])", KernelClass.GEMM, "seen: all files"),
    ComputeRow(r"(?i:rotary|rope)", KernelClass.ROPE, "seen: vLLM, SGLang"),
    ComputeRow(r"(?i:act_and_mul|silu|gelu|relu|swiglu)", KernelClass.ACTIVATION, "seen: vLLM, SGLang"),
    ComputeRow(r"(?i:quant)", KernelClass.QUANTIZATION, "seen: vLLM B200"),
    ComputeRow(
        r"(?i:elementwise|triton_|at::native|fill_?(?:functor|kernel)|copy|cat_?array|index|scatter|gather|embedding|reduce_kernel|\bcub::|permute|rocprim)",
        KernelClass.ELEMENTWISE, "seen: all files"),
]  # fmt: skip
