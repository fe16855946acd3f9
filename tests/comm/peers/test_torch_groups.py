import pytest
import torch
import torch.distributed as dist

from fastverify.comm.group import create_group
from fastverify.comm.peers.torch_groups import check_default_group, open_torch_group
from tests.comm.fake_gpus import fake_group
from tests.ranks import run_ranks


@pytest.mark.ranks
def test_libraries_share_a_default_group_that_was_not_there() -> None:
    run_ranks(check_groups, 2)


def check_groups(rank: int, world_size: int, rendezvous: str) -> None:
    group = create_group(rank, world_size, rendezvous)
    assert check_default_group(group, "it").ok
    first, second = open_torch_group(group, "one"), open_torch_group(group, "two")
    for torch_group in (first, second):
        x = torch.ones(4)
        dist.all_reduce(x, group=torch_group)
        assert x.tolist() == [2.0] * 4
        assert dist.get_rank(group=torch_group) == rank
    assert check_default_group(group, "it").ok
    other = check_default_group(fake_group(4), "it")
    assert "of 2 instead of rank 0 of 4" in other.reason
