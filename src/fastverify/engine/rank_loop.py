"""The loop of a rank: take commands, step, report. Every rank runs the same one; only rank 0 reports tokens.

Knows the pipes but not who made them. While idle everyone waits on a pipe, so an idle engine uses no CPU.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch

from fastverify.comm.communicator import create_communicator
from fastverify.comm.group import close_group, create_group
from fastverify.engine.commands import (
    AskStats,
    Cancel,
    Close,
    Command,
    CommandStream,
    FollowerStream,
    LeaderStream,
    ProfileReply,
    Ready,
    StartProfile,
    StatsReply,
    StopProfile,
    Submit,
)
from fastverify.engine.config import EngineConfig
from fastverify.engine.core import EngineCore
from fastverify.engine.load import describe, load_core
from fastverify.engine.outbox import Outbox
from fastverify.engine.profiler import RankProfiler
from fastverify.engine.rank_spec import RankSpec
from fastverify.errors import ConfigError


def run_rank(spec: RankSpec, owner: Connection) -> None:
    """Everything from joining the group to leaving it."""
    config = EngineConfig(**spec.config)
    torch.set_num_threads(config.num_threads)
    group = create_group(spec.rank, config.tp_size, spec.rendezvous)
    communicator = create_communicator(group, config.comm_backend, fuse_rmsnorm=config.fuse_rmsnorm)
    try:
        core = load_core(config, communicator)
        owner.send(Ready(describe(config, communicator)))
        RankLoop(spec.rank, core, _command_stream(spec, owner), owner).run()
    finally:
        communicator.close()
        close_group(group)


def _command_stream(spec: RankSpec, owner: Connection) -> CommandStream:
    if spec.leader_fd is None:
        return LeaderStream(owner, [Connection(fd) for fd in spec.follower_fds])
    return FollowerStream(Connection(spec.leader_fd))


class RankLoop:
    """Steps `core` until a Close command."""

    def __init__(self, rank: int, core: EngineCore, stream: CommandStream, owner: Connection) -> None:
        self._rank = rank
        self._core = core
        self._stream = stream
        self._owner = owner
        self._outbox = Outbox(owner)
        self._profiler = RankProfiler(rank, core.clock)
        self._is_closed = False

    def run(self) -> None:
        """Raises EOFError when the sender of commands is gone."""
        core, step = self._core, 0
        while True:
            is_idle = core.is_idle
            commands = self._stream.take(step, is_idle=is_idle, must_meet=not core.last_step_met)
            if is_idle:
                core.clock.restart()
            for command in commands:
                self._apply(command)
            if self._is_closed:
                return
            events = core.step()
            if self._rank == 0:
                self._outbox.add(events)
            step += 1

    def _apply(self, command: Command) -> None:
        match command:
            case Submit(request):
                self._core.submit(request)
            case Cancel(request_id):
                self._core.cancel(request_id)
            case AskStats(ticket):
                if self._rank == 0:
                    self._owner.send(StatsReply(ticket, self._core.stats()))
            case StartProfile(ticket):
                self._profiler.start()
                self._owner.send(ProfileReply(ticket, None))
            case StopProfile(ticket, folder):
                self._owner.send(self._stop_profile(ticket, folder))
            case Close():
                self._is_closed = True

    def _stop_profile(self, ticket: int, folder: str) -> ProfileReply:
        """A folder that cannot be written is the asker's trouble; requests go on."""
        try:
            return ProfileReply(ticket, self._profiler.stop(folder))
        except ConfigError as error:
            return ProfileReply(ticket, None, str(error))
