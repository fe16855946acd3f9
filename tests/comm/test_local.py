from fastverify.comm.group import create_group
from fastverify.comm.local import LocalBackend
from tests.contracts.all_reduce_contract import check_all_gather, check_fused_norms, check_sums


def test_one_rank_keeps_the_contract() -> None:
    backend = LocalBackend(create_group(0, 1))
    check_sums(backend, 0, 1, (1, 17, 1000))
    check_fused_norms(backend, 0, 1)
    check_all_gather(backend, 0, 1)
