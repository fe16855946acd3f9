"""What a rank process is told at its start. Imported by both sides, before torch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class RankSpec:
    """One rank's start. `*_fd` are inherited pipe ends; `rendezvous` is where the ranks meet."""

    rank: int
    rendezvous: str
    config: dict[str, Any]
    owner_fd: int
    lifeline_fd: int
    leader_fd: int | None
    follower_fds: tuple[int, ...]

    @property
    def fds(self) -> tuple[int, ...]:
        """Every pipe end that the process inherits."""
        leader = () if self.leader_fd is None else (self.leader_fd,)
        return (self.owner_fd, self.lifeline_fd, *leader, *self.follower_fds)

    def to_json(self) -> str:
        """Command-line form."""
        return json.dumps(asdict(self))
