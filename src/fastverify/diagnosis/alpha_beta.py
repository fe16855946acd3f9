"""Time of a collective between measured sizes: linear in bytes, flat below the smallest, the last slope above.

That is the alpha-beta model with a slope per piece. One place for the benchmark's table and the published priors.
"""

from __future__ import annotations

from collections.abc import Sequence


def interpolate_us(points: Sequence[tuple[int, float]], num_bytes: float) -> float:
    """`points` are (bytes, microseconds), ascending and at least one."""
    if num_bytes <= points[0][0] or len(points) == 1:
        return points[0][1]
    index = next((i for i in range(1, len(points) - 1) if num_bytes <= points[i][0]), len(points) - 1)
    (size_a, us_a), (size_b, us_b) = points[index - 1], points[index]
    return max(us_a + (us_b - us_a) * (num_bytes - size_a) / (size_b - size_a), 0.0)
