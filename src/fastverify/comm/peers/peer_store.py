"""A namespace of a group's store for one library, and a wait that names the ranks which do not come.

Libraries meet through a store of their own and hang, or name nobody, when a rank stays away; so every rank says that it
is there first.
"""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from fastverify.comm.group import Group
from fastverify.comm.processes import PeerProcesses
from fastverify.errors import CommTimeoutError, UnsupportedError


def meet_in_store(group: Group, purpose: str) -> tuple[Store, str]:
    """A fresh namespace for the n-th call of every rank with this purpose, and a name that all ranks agree on.

    Raises: CommTimeoutError naming the ranks that did not come within the group's timeout.
    """
    if group.store is None:
        raise UnsupportedError(f"{purpose} needs a group of 2 or more ranks, got {group.world_size}.")
    generation = group.store.add(f"{purpose}/{group.rank}", 1)
    store = PrefixStore(f"{purpose}/{generation}", group.store)
    keys = [f"here/{rank}" for rank in range(group.world_size)]
    store.set(keys[group.rank], "1")
    try:
        store.wait(keys, timedelta(seconds=group.timeout_s))
    except RuntimeError as error:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        with closing(PeerProcesses(group.process_ids)) as peers:
            why = peers.explain_failure()
        raise CommTimeoutError(
            f"every rank must come to set up {purpose} within {group.timeout_s:g} s, rank(s) {missing} of "
            f"{group.world_size} did not: {why}."
        ) from error
    return store, f"{group.name}-{purpose}-{generation}"
