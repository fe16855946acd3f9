"""A rank process: joins its group, loads its part of the models, and steps until the owner says so or is gone.

Started as `python -m fastverify.engine.rank_process` with the numbers of its pipes, so the owner's own main module is
never imported here. A thread watches a pipe that only the owner holds open: when the owner is gone, even killed, the
rank ends. Whatever goes wrong is reported to the owner with its traceback.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

from fastverify import env
from fastverify.engine.rank_spec import RankSpec

# Signals to the whole process group are the owner's to handle: it may finish requests first, then it ends its ranks.
for _number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(_number, signal.SIG_IGN)

# Arbitrary: time for a clean end after the owner is gone, before the rank is ended hard.
_ORPHAN_GRACE_S = 2.0


def main() -> None:
    """Entry point; `sys.argv[1]` is a RankSpec."""
    spec = RankSpec(**json.loads(sys.argv[1]))
    logging.basicConfig(
        level=env.read("FASTVERIFY_LOG").upper(), format=f"%(levelname)s rank {spec.rank} %(name)s: %(message)s"
    )
    threading.Thread(target=_end_with_owner, args=(spec.lifeline_fd,), daemon=True).start()
    with Connection(spec.owner_fd) as owner:
        exit_code = _run_reported(spec, owner)
    sys.exit(exit_code)


def _run_reported(spec: RankSpec, owner: Connection) -> int:
    """Run the rank; exit code 0 for a normal end and for an owner that is gone."""
    # Imported here so that signals are ignored and the lifeline is watched before torch takes its seconds.
    from fastverify.engine.commands import Failed
    from fastverify.engine.rank_loop import run_rank
    from fastverify.errors import CommTimeoutError, FastverifyError

    try:
        run_rank(spec, owner)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0
    except Exception as error:  # noqa: BLE001 - the boundary of the process: everything is reported and ends it
        is_ours = isinstance(error, FastverifyError) and not isinstance(error, CommTimeoutError)
        is_consequence = not is_ours and (isinstance(error, CommTimeoutError) or "gloo" in str(error))
        error_type = type(error).__name__ if is_ours else None
        owner.send(Failed(str(error), traceback.format_exc(), error_type, is_consequence))
        return 1
    return 0


def _end_with_owner(lifeline_fd: int) -> None:
    """Wait until the owner's end of the pipe closes, then end this process."""
    os.read(lifeline_fd, 1)
    time.sleep(_ORPHAN_GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    main()
