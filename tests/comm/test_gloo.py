import pytest

from fastverify.comm.gloo import GlooBackend
from fastverify.comm.group import create_group
from fastverify.errors import UnsupportedError
from tests.contracts.all_reduce_contract import AllReduceContract


@pytest.mark.ranks
class TestGloo(AllReduceContract):
    factory = GlooBackend
    sizes = (1, 17, 1000, 5121)
    calls = {2: 300, 3: 60, 8: 20}
    names_the_late_rank = False  # gloo only knows sockets


def test_one_rank_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="single_rank_communicator"):
        GlooBackend(create_group(0, 1))
