"""Names of real kernels against the table: every row is hit, and what merely sounds like a collective is none."""

from __future__ import annotations

import pytest

from fastverify.trace.kind_table import COLLECTIVES
from fastverify.trace.kinds import Backend, CollectiveOp, KernelClass, classify, op_of

AR, AG, RS = CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_GATHER, CollectiveOp.REDUCE_SCATTER
A2A, SIGNAL, UNKNOWN = CollectiveOp.ALL_TO_ALL, CollectiveOp.SIGNAL, CollectiveOp.UNKNOWN
FUSED = True

# (name, back end, operation, algorithm, protocol[, FUSED])
NAMES = [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, AR, "RING", "LL"),
    ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, AR, "TREE", "LL"),
    ("ncclDevKernel_AllReduce_Sum_f32_NVLS_SIMPLE(X)", Backend.NCCL, AR, "NVLS", "SIMPLE"),
    ("ncclDevKernel_AllReduce_Sum_f32_NVLS_TREE_SIMPLE(X)", Backend.NCCL, AR, "NVLS_TREE", "SIMPLE"),
    ("ncclDevKernel_AllReduce_Sum_f32_COLLNET_DIRECT_SIMPLE(X)", Backend.NCCL, AR, "COLLNET_DIRECT", "SIMPLE"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, AG, "RING", "LL"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL128(X)", Backend.NCCL, RS, "RING", "LL128"),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, CollectiveOp.SEND_RECV, "", ""),
    ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", Backend.NCCL, AR, "RING", "LL"),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(X)", Backend.NCCL, CollectiveOp.SEND_RECV, "RING", "SIMPLE"),
    ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(X)", Backend.NCCL, CollectiveOp.BROADCAST, "RING", "LL"),
    ("nccldevkernel_allreduce_sum_f32_ring_ll", Backend.NCCL, AR, "RING", "LL"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, UNKNOWN, "", ""),
    ("void rcclGenericKernel<4, false>(ncclDevKernelArgsStorage<4096ul>)", Backend.NCCL, UNKNOWN, "", ""),
    ("ncclSomethingNew(int)", Backend.NCCL, UNKNOWN, "", ""),
    ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(X)", Backend.NCCL_SYMMETRIC, AR, "AGxLLMC_R", ""),
    ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(X)", Backend.NCCL_SYMMETRIC, AR, "RSxLDMC_AGxSTMC", ""),
    ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32(X)", Backend.NCCL_SYMMETRIC, AR, "AGxLL_R", ""),
    ("ncclSymkDevKernel_AllGather_STMC(X)", Backend.NCCL_SYMMETRIC, AG, "STMC", ""),
    ("ncclSymkInit(X)", Backend.NCCL_SYMMETRIC, UNKNOWN, "", ""),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)", Backend.CUSTOM_ALL_REDUCE, AR,
     "one-shot", ""),
    ("void sglang::cross_device_reduce_2stage<half, 8>(X)", Backend.CUSTOM_ALL_REDUCE, AR, "two-shot", ""),
    ("void all_reduce_1shot_push_kernel<bf16, 8>(X)", Backend.CUSTOM_ALL_REDUCE_V2, AR, "one-shot", "push"),
    ("void all_reduce_2shot_pull_kernel<bf16, 8>(X)", Backend.CUSTOM_ALL_REDUCE_V2, AR, "two-shot", "pull"),
    ("void all_reduce_push_res_kernel<bf16>(X)", Backend.CUSTOM_ALL_REDUCE_V2, AR, "one-shot", "push", FUSED),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(P)1, bf16, 8>(X)",
     Backend.FLASHINFER, AR, "one-shot", "lamport", FUSED),
    ("void allreduce_fusion_kernel_twoshot_sync<(P)1, half, 8>(X)", Backend.FLASHINFER, AR, "two-shot", "sync", FUSED),
    ("void moefinalize_allreduce_fusion_kernel_oneshot_lamport<half, 8>(X)", Backend.FLASHINFER, AR, "one-shot", "",
     FUSED),
    ("void moe_finalize_all_reduce_kernel<half>(X)", Backend.FLASHINFER, AR, "", "", FUSED),
    ("void oneshotAllreduceFusionKernel<8, bf16>(X)", Backend.FLASHINFER, AR, "one-shot", "multicast", FUSED),
    ("void twoshotAllreduceKernel<8, bf16>(X)", Backend.FLASHINFER, AR, "two-shot", "multicast"),
    ("void push_oneshot_param_kernel<bf16, 8>(X)", Backend.FLASHINFER_PCIE, AR, "one-shot", "push"),
    ("void ipc_tp2_remote_push_kernel<bf16>(X)", Backend.FLASHINFER_PCIE, AR, "one-shot", "push"),
    ("void ipc_rsag_ring_push_param_kernel<bf16>(X)", Backend.FLASHINFER_PCIE, AR, "two-shot", "ring_push"),
    ("void ipc_topo_rsag8_block_param_kernel<bf16>(X)", Backend.FLASHINFER_PCIE, AR, "two-shot", "block"),
    ("kernel_pcie_ipc_ce_sm120_binary_wait_clear", Backend.FLASHINFER_PCIE, SIGNAL, "copy-engine", ""),
    ("ce_publish_flag_kernel(X)", Backend.FLASHINFER_PCIE, SIGNAL, "copy-engine", ""),
    ("void ce_add_kernel<bf16>(X)", Backend.FLASHINFER_PCIE, AR, "copy-engine", ""),
    ("void vllm::mnnvl_lamport_all_gather<bf16>(X)", Backend.FLASHINFER, AG, "one-shot", "lamport"),
    ("void vllm::mnnvl_lamport_reduce_scatter_kernel<bf16>(X)", Backend.FLASHINFER, RS, "one-shot", "lamport"),
    ("void one_shot_all_reduce_norm_kernel<half, 8>(X)", Backend.TENSORRT_LLM, AR, "one-shot", "", FUSED),
    ("all_reduce_one_shot_push_kernel(X)", Backend.TENSORRT_LLM, AR, "one-shot", ""),
    ("userbuffers_fp16_sum_inplace_gpu_mc(X)", Backend.TENSORRT_LLM, AR, "two-shot", "mc"),
    ("userbuffers_pushsend(X)", Backend.TENSORRT_LLM, UNKNOWN, "", ""),
    ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(X)",
     Backend.SYMMETRIC_MEMORY, AR, "one-shot", "multimem"),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
     Backend.SYMMETRIC_MEMORY, AR, "two-shot", "multimem"),
    ("void multimem_all_gather_kernel<16>(X)", Backend.SYMMETRIC_MEMORY, AG, "one-shot", "multimem"),
    ("void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(X)", Backend.SYMMETRIC_MEMORY, AR, "one-shot", ""),
    ("void two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(X)", Backend.SYMMETRIC_MEMORY, AR, "two-shot", ""),
    ("void mscclpp::collective::allreduceRsAg<half>(X)", Backend.MSCCLPP, AR, "", ""),
    ("void allreduceNvlsPacket<half>(X)", Backend.MSCCLPP, AR, "", ""),
    ("void mscclpp::collective::allgather_kernel(X)", Backend.MSCCLPP, AG, "", ""),
    ("void quickreduce::allreduce_prototype_twoshot<X>(Y)", Backend.QUICK_REDUCE, AR, "two-shot", ""),
    ("_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEv", Backend.AITER, AR, "two-shot", ""),
    ("void aiter::allreduce_fusion_kernel_1stage<bf16, 8>(X)", Backend.AITER, AR, "one-shot", "", FUSED),
    ("void aiter::allreduce_something<bf16>(X)", Backend.AITER, AR, "", ""),
    ("fastverify_all_reduce_lines", Backend.FASTVERIFY, AR, "one-shot", "lines"),
    ("fastverify_fused_sentinel", Backend.FASTVERIFY, AR, "one-shot", "sentinel", FUSED),
    ("fastverify_two_shot_flags", Backend.FASTVERIFY, AR, "two-shot", "flags"),
    ("fastverify_islands_lines", Backend.FASTVERIFY, AR, "islands", "lines"),
    ("fastverify_gather_sentinel", Backend.FASTVERIFY, AG, "one-shot", "sentinel"),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(X)", Backend.DEEP_EP, A2A, "internode_ll", ""),
    ("void dpsk::ep::internode::combine<false, 4>(X)", Backend.DEEP_EP, A2A, "internode", ""),
    ("void deep_ep::intranode::notify_dispatch<8>(X)", Backend.DEEP_EP, SIGNAL, "intranode", ""),
    ("void deep_ep::intranode::cached_notify_combine<8>(X)", Backend.DEEP_EP, SIGNAL, "intranode", ""),
    ("void deep_ep::layout::get_it<8>(X)", Backend.DEEP_EP, SIGNAL, "", ""),
    ("void tensorrt_llm::moeA2ADispatchKernel<8>(X)", Backend.TENSORRT_LLM, A2A, "", ""),
    ("void a2a_dispatch_send<8>(X)", Backend.PPLX, A2A, "", ""),
    ("nvshmemi_barrier_all_kernel(X)", Backend.NVSHMEM, SIGNAL, "", ""),
    ("nvshmemx_put_kernel(X)", Backend.NVSHMEM, UNKNOWN, "", ""),
    ("_C::shm_allreduce", Backend.SHARED_MEMORY, AR, "", ""),
    ("_C::shm_all_gather", Backend.SHARED_MEMORY, AG, "", ""),
    ("gloo:all_reduce", Backend.GLOO, AR, "", ""),
    ("fastverify::all_reduce", Backend.FASTVERIFY, AR, "", ""),
    ("void someone_else_all_reduce_kernel<half>(X)", Backend.UNKNOWN, AR, "", ""),
    ("void custom_allgather_kernel<half>(X)", Backend.UNKNOWN, AG, "", ""),
    ("void my_alltoall_kernel<half>(X)", Backend.UNKNOWN, A2A, "", ""),
]  # fmt: skip

COMPUTING = [
    ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", KernelClass.GEMM),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(X)", KernelClass.GEMM),
    ("void splitKreduce_kernel<32, 16, int, float>(X)", KernelClass.GEMM),
    ("ampere_sgemm_32x128_tn", KernelClass.GEMM),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV", KernelClass.GEMM),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(X)", KernelClass.ELEMENTWISE),
    ("void at::native::_scatter_gather_elementwise_kernel<128, 8>(X)", KernelClass.ELEMENTWISE),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>(X)", KernelClass.ELEMENTWISE),
    ("_gather_rows_kernel", KernelClass.ELEMENTWISE),
    ("void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<8>>>>(X)", KernelClass.ATTENTION),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
     "flash::CollectiveMainloopFwdSm90<2>>>>(X)", KernelClass.ATTENTION),
    ("void paged_attention_ll4mi_reduce_kernel<X>(Y)", KernelClass.ATTENTION),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausal", KernelClass.ATTENTION),
    ("kernel_unified_attention_2d", KernelClass.ATTENTION),
    ("void vllm::moe::moe_sum_reduce_kernel<half>(X)", KernelClass.MOE),
    ("fused_moe_kernel", KernelClass.MOE),
    ("fused_moe_combine_dispatch", KernelClass.MOE),
    ("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(X)", KernelClass.NORM),
    ("triton_red_fused_fused_add_rms_norm_0", KernelClass.NORM),
    ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(X)", KernelClass.NORM),
    ("rejection_greedy_sample_kernel", KernelClass.SAMPLING),
    ("void VerifyTreeGreedy<int, long>(X)", KernelClass.SAMPLING),
    ("void topk_with_k2_reduce<half>(X)", KernelClass.SAMPLING),
    ("void vllm::reshape_and_cache_flash_kernel<half>(X)", KernelClass.KV_CACHE),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(X)", KernelClass.ROPE),
    ("void vllm::act_and_mul_kernel<c10::BFloat16>(X)", KernelClass.ACTIVATION),
    ("__amd_rocclr_copyBufferAligned", KernelClass.MEMORY),
    ("Memcpy HtoD (Pinned -> Device)", KernelClass.MEMORY),
    ("some_kernel_of_tomorrow", KernelClass.OTHER),
]  # fmt: skip


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row[0][:60])
def test_collective(row: tuple) -> None:
    name, backend, op, algorithm, protocol, *fused = row
    kind = classify(name)
    assert (kind.kernel_class, kind.backend, kind.op) == (KernelClass.COLLECTIVE, backend, op)
    assert (kind.algorithm, kind.protocol.upper()) == (algorithm, protocol.upper())
    assert kind.is_fused == bool(fused)
    assert kind.is_collective == (op is not SIGNAL)


@pytest.mark.parametrize(("name", "kernel_class"), COMPUTING, ids=lambda value: str(value)[:60])
def test_computing_is_no_collective(name: str, kernel_class: KernelClass) -> None:
    kind = classify(name)
    assert (kind.kernel_class, kind.backend, kind.is_communication) == (kernel_class, None, False)


def test_every_row_of_the_table_has_a_name_here_and_a_source() -> None:
    hit = {classify(row[0]).source for row in NAMES}
    assert {row.source for row in COLLECTIVES} == hit
    assert len({row.pattern for row in COLLECTIVES}) == len(COLLECTIVES)


@pytest.mark.parametrize(
    ("word", "op"),
    [
        ("_allgather_base", AG),
        ("all_to_allv", A2A),
        ("AllReduce", AR),
        ("reduce_scatter_tensor_coalesced", RS),
        ("wait", UNKNOWN),
    ],
)
def test_words_of_programs(word: str, op: CollectiveOp) -> None:
    assert op_of(word) is op
