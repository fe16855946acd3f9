from collections.abc import Callable

def list_simd() -> list[str]: ...

class Collectives:
    simd: str
    can_stream: bool
    def __init__(
        self,
        name: str,
        rank: int,
        world_size: int,
        slot_bytes: int,
        timeout_s: float,
        spin_s: float,
        simd: str,
        find_dead: Callable[[], int],
        first_epoch: int,
    ) -> None: ...
    def all_reduce(self, x: int, num_elements: int, dtype: int, /) -> None: ...
    def all_reduce_residual_rmsnorm(
        self, x: int, residual: int, weight: int, rows: int, hidden_size: int, eps: float, dtype: int, /
    ) -> None: ...
    def all_gather(self, input: int, output: int, num_bytes: int, /) -> None: ...
    def set_thresholds(self, two_shot_min_bytes: int, stream_min_bytes: int, /) -> None: ...
    def close(self) -> None: ...
