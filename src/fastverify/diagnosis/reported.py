"""What a person can tell about a slow server, as types: numbers per arm, model, machine, launch and log.

Every field may be missing; None means "was not told", never "no". The facts file, the readers of logs and dumps, and
the rules share these types. Rates are output tokens per second as a benchmark prints them: over the whole batch, unless
`rates` says otherwise. Knows no rule and no server's spelling; names follow docs/glossary.md.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

# The outer bounds are far beyond any machine; they keep arithmetic on a report finite.
Positive = Annotated[float, Field(ge=1e-9, le=1e12)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
NotNegative = Annotated[float, Field(ge=0, le=1e12)]
AcceptLength = Annotated[float, Field(ge=1, le=1e5)]
Fabric = Literal["nvlink", "nvlink-partial", "pcie-gen3", "pcie-gen4", "pcie-gen5", "pcie", "network", "host-memory"]
Shape = Literal["chain", "tree"]


class _Facts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ArmFacts(_Facts):
    """One configuration that was measured. In `arms`, what an entry lacks is taken from the top of the file.

    A top with a speculative rate is an arm itself, and then lends only its settings and its plain rate.
    """

    label: str | None = None
    plain_tok_s: Positive | None = None
    speculative_tok_s: Positive | None = None
    rates: Literal["total", "per_request"] | None = None
    """Whether tok/s count the whole batch (default) or one request of it."""
    accept_length: AcceptLength | None = None
    """Tokens per verify pass, bonus token included."""
    accept_rate: Share | None = None
    accept_rate_per_position: tuple[Share, ...] | None = None
    """Share of passes in which draft i was correct, first draft first."""
    method: str | None = None
    shape: Shape | None = None
    draft_model: str | None = None
    num_draft_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    top_k: Count | None = None
    num_verify_tokens: Annotated[int, Field(ge=2, le=10**6)] | None = None
    """Rows per request of a verify pass: proposed drafts and the current token."""
    batch: Count | None = None
    context: Annotated[int, Field(ge=0)] | None = None
    tp: Count | None = None
    ep: Count | None = None
    verify_ms: Positive | None = None
    verify_compute_ms: NotNegative | None = None
    verify_all_reduce_ms: NotNegative | None = None
    all_reduces_per_verify: Count | None = None
    draft_ms: NotNegative | None = None
    extend_ms: NotNegative | None = None
    accept_ms: NotNegative | None = None
    host_ms: NotNegative | None = None
    plain_all_reduce_ms: NotNegative | None = None
    itl_ms: Positive | None = None
    """Between two streamed chunks: with speculation the length of a cycle."""
    tpot_ms: Positive | None = None
    """Per output token of one request, the first excluded."""
    workload: str | None = None
    """What the prompts were: random, chat, code, math, or the name of a data set."""
    bigram_ratio: Share | None = None
    """Distinct bigrams over all bigrams of the outputs."""
    all_reduce_backend: str | None = None
    """What carried the all-reduces: nccl, custom, pcie-ipc, flashinfer, mscclpp, symm-mem, ..."""
    all_reduce_us: dict[Count, Positive] | None = None
    """Measured time of one all-reduce by message bytes, for this arm's backend."""
    draft_collectives_per_cycle: NotNegative | None = None
    draft_collective_ms: NotNegative | None = None
    is_reference: bool = False
    """Measured by somebody else, on a machine said to be the same."""


class ModelFacts(_Facts):
    """Sizes of the target model."""

    name: str | None = None
    num_layers: Count | None = None
    hidden_size: Count | None = None
    num_experts: Annotated[int, Field(ge=0)] | None = None
    """0 for a dense model."""
    num_experts_per_token: Annotated[int, Field(ge=0)] | None = None
    vocab_size: Count | None = None
    num_draft_layers: Count | None = None
    activation_bytes: Annotated[int, Field(ge=1, le=4)] | None = None
    """Bytes of one activation, 2 for bfloat16."""
    quantization: str | None = None


class MachineFacts(_Facts):
    """The host, as dumps show it."""

    gpu: str | None = None
    num_gpus: Count | None = None
    compute_capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")] | None = None
    num_numa_nodes: Count | None = None
    num_hosts: Count | None = None
    driver_version: str | None = None
    driver_flavour: str | None = None
    packages: dict[str, str] = {}
    """Versions by package name: torch, nccl, flashinfer-python, flashinfer-cubin, cuda, vllm, sglang, ..."""
    nvlink_all_pairs: bool | None = None
    p2p_read: bool | None = None
    p2p_write: bool | None = None
    p2p_atomics: bool | None = None
    """Over every pair of GPUs."""
    worst_link: str | None = None
    """The farthest pair of `nvidia-smi topo -m`: NV18, PIX, PXB, PHB, NODE or SYS."""
    acs_redirect_bridges: Annotated[int, Field(ge=0)] | None = None
    """PCIe bridges whose ACS control redirects requests or completions."""
    iommu: Literal["off", "passthrough", "translated"] | None = None
    pcie_width: Count | None = None
    pcie_max_width: Count | None = None
    pcie_gen: Count | None = None
    pcie_max_gen: Count | None = None
    link_under_load: bool | None = None
    """Whether width and generation were read while the GPUs worked; idle links go to sleep."""
    gpu_utilization: tuple[Share, ...] | None = None
    gpu_power_share: tuple[NotNegative, ...] | None = None
    """Power over its limit, per GPU."""
    num_cores: Count | None = None
    omp_num_threads: Count | None = None
    container: str | None = None


class LaunchFacts(_Facts):
    """How the server was started and what it says it made of it. Flags without `--`, as the server spells them."""

    flags: dict[str, str | int | float | bool] = {}
    resolved: dict[str, str | int | float | bool | None] = {}
    env: dict[str, str] = {}


class LogFacts(_Facts):
    """What the server's log told."""

    custom_all_reduce_disabled: str | None = None
    """The reason in the server's words."""
    all_reduce_backends: tuple[str, ...] | None = None
    """What may run, in dispatch order, in the server's spelling."""
    engaged: tuple[str, ...] = ()
    """Lines that prove that something took effect, such as "Initialized FlashInfer PCIe IPC all-reduce"."""
    cuda_graph: bool | None = None
    """Whether the decode lines say that graphs were replayed."""
    cuda_graph_share: Share | None = None
    cuda_graph_mode_requested: str | None = None
    cuda_graph_mode: str | None = None
    cuda_graph_max_batch: Count | None = None
    max_running_requests: Count | None = None
    errors: tuple[str, ...] = ()
    """Lines of errors and warnings that a known bug may match."""


class BenchFacts(_Facts):
    """All-reduces of this machine alone, in a graph: microseconds by backend and message bytes."""

    world_size: Count | None = None
    us: dict[str, dict[Count, Positive]] = {}
    fused_us: dict[str, dict[Count, Positive]] = {}
    """With the residual and the RMSNorm that follow, in one kernel or in several."""


class Projection(_Facts):
    """A what-if: phases with new lengths, and what somebody claims would come out."""

    verify_ms: Positive | None = None
    verify_all_reduce_ms: NotNegative | None = None
    draft_ms: NotNegative | None = None
    accept_length: AcceptLength | None = None
    claimed_tok_s: Positive | None = None


class ReportedFacts(ArmFacts):
    """A whole report: the fields of its main arm, further arms, and everything around them."""

    server: str | None = None
    server_version: str | None = None
    model: str | ModelFacts | None = None
    hardware: str | MachineFacts | None = None
    fabric: Fabric | None = None
    num_numa_nodes: Count | None = None
    launch: LaunchFacts = LaunchFacts()
    log: LogFacts = LogFacts()
    bench: BenchFacts = BenchFacts()
    projection: Projection | None = None
    arms: tuple[ArmFacts, ...] = ()
