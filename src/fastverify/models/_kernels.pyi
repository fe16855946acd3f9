def list_simd() -> list[str]: ...

class Kernels:
    simd: str
    def __init__(self, simd: str) -> None: ...
    def rms_norm(self, x: int, weight: int, eps: float, num_rows: int, size: int, out: int, /) -> None: ...
    def compute_angles(
        self,
        positions: int,
        num_positions: int,
        frequencies: int,
        num_frequencies: int,
        scale: float,
        cos: int,
        sin: int,
        /,
    ) -> None: ...
    def rotate(
        self, x: int, row_stride: int, cos: int, sin: int, num_rows: int, num_heads: int, head_dim: int, /
    ) -> None: ...
    def arg_max(
        self, logits: int, num_rows: int, row_stride: int, num_columns: int, first_id: int, best: int, /
    ) -> None: ...
    def choose_best(self, best: int, num_ranks: int, num_rows: int, ids: int, /) -> None: ...
    def look_up(
        self, table: int, first_id: int, num_ids: int, row_size: int, ids: int, count: int, out: int, /
    ) -> None: ...

class PackedLinear:
    is_bfloat16: bool
    num_bytes: int
    def __init__(
        self, simd: str, weight: int, bias: int, num_outputs: int, num_inputs: int, is_gated: bool
    ) -> None: ...
    def run(self, x: int, num_rows: int, out: int, /) -> None: ...

class CachedAttention:
    def __init__(
        self,
        simd: str,
        keys: int,
        values: int,
        sizes: tuple[int, int, int, int],
        segments: list[tuple[int, int, int, int, int]],
    ) -> None: ...
    def attend(
        self,
        layer: int,
        num_heads: int,
        q: int,
        q_stride: int,
        k: int,
        k_stride: int,
        v: int,
        v_stride: int,
        out: int,
        /,
    ) -> None: ...
