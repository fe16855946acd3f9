import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastverify.errors import ConfigError
from fastverify.tuning.cost_model import CostModel
from tests.tuning.machine import BASELINE, Machine

SHM = {"comm_backend": "shm"}
FUSED = {"fuse_rmsnorm": True}
REPLICATED = {"draft_placement": "replicated"}
ARGMAX = {"draft_token_exchange": "local_argmax"}


def chain(k: int) -> dict:
    return {"draft_shape": "chain", "top_k": 1, "num_draft_steps": k, "num_proposed_drafts": k}


def model(machine: Machine | None = None, changes: dict | None = None) -> CostModel:
    machine = machine or Machine()
    return CostModel(machine.measure(changes), machine.table(), noise=0.0)


@given(
    contention=st.floats(1, 5), row_ms=st.floats(0, 1), draft_ms=st.floats(0.1, 5), conditional=st.floats(0.05, 0.95)
)
@settings(max_examples=25, deadline=None)
def test_the_measured_settings_predict_what_was_measured(**parameters: float) -> None:
    machine = Machine(**parameters)
    measured = machine.measure()
    predicted = CostModel(measured, machine.table(), noise=0.0).predict({})
    assert predicted.speculative is not None
    for arm, prediction in (("plain", predicted.plain), ("speculative", predicted.speculative)):
        assert prediction.tok_s.low == pytest.approx(measured.arms[arm].tok_s)
        assert prediction.tok_s.high == pytest.approx(measured.arms[arm].tok_s)
        assert prediction.cycle_ms.mid == pytest.approx(measured.arms[arm].cycle_ms)
    assert predicted.speedup.mid == pytest.approx(1)
    assert predicted.priors == ()


@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        (SHM, 0.1),
        (FUSED, 0.05),
        (REPLICATED, 0.1),
        (ARGMAX, 0.05),
        (SHM | FUSED, 0.1),
        (SHM | REPLICATED, 0.15),
        (chain(1), 0.1),
        (chain(2), 0.05),
        (chain(5), 0.05),
        (chain(8), 0.1),
        (SHM | chain(5) | ARGMAX, 0.15),
        ({"draft_shape": "tree", "top_k": 3, "num_proposed_drafts": 7}, 0.15),
        ({"drafter": "none"}, 0.001),
    ],
    ids=str,
)
def test_prediction_meets_the_machine(changes: dict, tolerance: float) -> None:
    machine = Machine()
    truth = machine.measure(changes)
    predicted = model(machine).predict(changes)
    measured = truth.arms.get("speculative", truth.arms["plain"]).tok_s
    assert predicted.tok_s.mid == pytest.approx(measured, rel=tolerance)
    assert predicted.plain.tok_s.mid == pytest.approx(truth.arms["plain"].tok_s, rel=0.12)


@pytest.mark.parametrize(
    "changes",
    [SHM, REPLICATED, SHM | FUSED, SHM | REPLICATED, chain(5), chain(8), {"drafter": "ngram"}],
    ids=str,
)
def test_the_interval_holds_the_machine(changes: dict) -> None:
    machine = Machine()
    measured = machine.measure(changes).arms["speculative"].tok_s
    assert model(machine).predict(changes).tok_s.contains(measured)


def test_recalibration_on_the_new_backend_narrows_the_next_prediction() -> None:
    machine = Machine()
    target = SHM | chain(5) | REPLICATED
    before = model(machine).predict(target).tok_s
    after = model(machine, SHM).predict(target).tok_s
    assert (after.high - after.low) / after.mid < (before.high - before.low) / before.mid
    assert after.mid == pytest.approx(machine.measure(target).arms["speculative"].tok_s, rel=0.1)


@given(contention=st.floats(1, 5), draft_ms=st.floats(0.1, 3), k=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_combination_saves_at_most_what_its_parts_save(contention: float, draft_ms: float, k: int) -> None:
    machine = Machine(contention=contention, draft_ms=draft_ms)
    predict = model(machine).predict
    base_ms = predict({}).speculative.cycle_ms.mid

    def saving(changes: dict) -> float:
        return base_ms - predict(changes).speculative.cycle_ms.mid

    parts = [SHM, REPLICATED, chain(k)]
    combination = {name: value for part in parts for name, value in part.items()}
    assert saving(combination) <= sum(saving(part) for part in parts) + 1e-9


@given(shm_us=st.floats(1, 600), faster=st.floats(0.1, 1))
@settings(max_examples=40, deadline=None)
def test_a_faster_backend_never_predicts_slower(shm_us: float, faster: float) -> None:
    machine = Machine()
    records = [row.model_dump() for row in machine.table().rows]

    def tok_s(scale_us: float) -> float:
        rows = [row | ({"median_us": scale_us} if row["backend"] == "shm" else {}) for row in records]
        table = type(machine.table()).from_records(rows)
        return CostModel(machine.measure(), table).predict(SHM).tok_s.mid

    assert tok_s(shm_us * faster) >= tok_s(shm_us) - 1e-9


def test_both_arms_are_charged_for_the_all_reduce() -> None:
    predicted = model().predict(SHM)
    assert predicted.plain_speedup.mid > 3
    saved_ms = Machine().measure().arms["plain"].anatomy_ms["plain_all_reduce"] - (
        predicted.plain.phases_ms["plain_all_reduce"].mid
    )
    assert saved_ms == pytest.approx(17 * 0.66, rel=0.05), "2L + 1 calls of 660 us each, nearly all of it"


def test_message_size_follows_the_rows() -> None:
    records = [
        {"backend": "gloo", "num_bytes": size, "world_size": 2, "dtype": "float32", "fused": False, "median_us": size}
        for size in (1280, 81920)
    ]
    machine = Machine()
    table = type(machine.table()).from_records(records)
    cost_model = CostModel(machine.measure(), table)
    four_rows = cost_model.predict({}).speculative.phases_ms["verify_all_reduce"].mid
    eight_rows = cost_model.predict(chain(7)).speculative.phases_ms["verify_all_reduce"].mid
    assert eight_rows == pytest.approx(2 * four_rows)


def test_a_replicated_draft_has_no_collectives_but_more_compute() -> None:
    phases = model().predict(REPLICATED).speculative.phases_ms
    compute_ms = Machine().gloo_compute * (2 * 0.35 + 3 * 0.12)
    assert phases["draft"].low == pytest.approx(compute_ms), "two layer passes and three token choices"
    assert phases["draft"].high == pytest.approx(2 * compute_ms), "at most world_size times the compute"
    assert phases["extend"].mid < model().predict({}).speculative.phases_ms["extend"].mid


def test_marginal_rule_agrees_with_the_curve() -> None:
    cost_model = model(changes=SHM)
    rates = {k: cost_model.predict(chain(k)).tok_s.mid for k in range(1, 9)}
    for k in range(1, 8):
        assert cost_model.one_more_draft_pays(k) is (rates[k + 1] > rates[k])
    assert cost_model.one_more_draft_pays(1)
    assert not cost_model.one_more_draft_pays(7)


def test_no_table_means_a_wide_interval_and_says_so() -> None:
    machine = Machine()
    predicted = CostModel(machine.measure(), type(machine.table())([])).predict(SHM)
    assert {prior.name for prior in predicted.priors} == {"no_row", "compute_relief"}
    assert predicted.speedup.high > 2 * predicted.speedup.low


def test_a_new_depth_makes_the_old_number_of_drafts_meaningless() -> None:
    assert model().predict({"num_draft_steps": 5}).settings["num_proposed_drafts"] == "auto"
    assert model().predict({"num_draft_steps": 5}).tok_s == model().predict(chain(5)).tok_s


def test_both_arms_are_needed() -> None:
    machine = Machine()
    with pytest.raises(ConfigError, match="both arms"):
        CostModel(machine.measure({"drafter": "none", "num_proposed_drafts": 0}), machine.table())
    assert BASELINE["drafter"] == "eagle3"


def test_phases_that_were_counted_too_long_are_fitted_together_with_their_collectives() -> None:
    """A client saw half of the time that the server counted: half of everything, and the same prediction of a ratio."""
    machine = Machine()
    measurement = machine.measure()
    arms = {arm: one.model_copy(update={"tok_s": 2 * one.tok_s}) for arm, one in measurement.arms.items()}
    fast = CostModel(measurement.model_copy(update={"arms": arms}), machine.table(), noise=0.0)
    phases = fast.predict(REPLICATED).speculative.phases_ms
    assert phases["draft"].mid == pytest.approx(model().predict(REPLICATED).speculative.phases_ms["draft"].mid / 2)


def test_drafts_lost_at_the_end_scale_with_the_cycle() -> None:
    machine = Machine()
    measurement = machine.measure()
    arm = measurement.arms["speculative"]
    slower = arm.model_copy(update={"tok_s": 0.9 * arm.tok_s})
    lossy = measurement.model_copy(update={"arms": measurement.arms | {"speculative": slower}})
    cost_model = CostModel(lossy, machine.table(), noise=0.0)
    for changes in ({}, SHM, chain(5)):
        predicted = cost_model.predict(changes).speculative
        assert predicted.phases_ms["gap"].mid == pytest.approx(0.1 * predicted.cycle_ms.mid)
