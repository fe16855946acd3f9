// All-reduce, residual and RMSNorm, see fused.cuh.

#include "fused.cuh"

#define FV_KERNEL(name, protocol, boxes)                                                          \
  extern "C" __global__ void FV_CLUSTER_DIMS __launch_bounds__(FV_MAX_THREADS, 1)                  \
      fastverify_fused_##name(const __grid_constant__ Call call) {                                \
    all_reduce_norm<protocol, boxes, StoreNorm>(call);                                            \
  }

FV_KERNEL(lines, LineProtocol, Inboxes)
FV_KERNEL(sentinel, SentinelProtocol, Inboxes)
FV_KERNEL(outbox_lines, LineProtocol, Outboxes)
