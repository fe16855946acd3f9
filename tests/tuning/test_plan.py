import pytest

from fastverify.tuning.experiments import builtin_catalogue
from fastverify.tuning.plan import Plan, make_plan
from fastverify.tuning.plan_markdown import BAR_WIDTH, plan_markdown, text_bar
from tests.tuning.machine import Machine


@pytest.fixture
def plan() -> Plan:
    machine = Machine()
    measurement = machine.measure()
    return make_plan(measurement, machine.table(), builtin_catalogue(measurement.settings), noise=0.03)


def test_ranked_by_gain_times_probability_over_effort(plan: Plan) -> None:
    scores = [entry.score for entry in plan.experiments]
    assert scores == sorted(scores, reverse=True)
    first = plan.experiments[0]
    assert first.score == pytest.approx((first.predicted.speedup.mid - 1) * first.probability / first.effort_min)


def test_a_plan_is_read_back_as_it_was_written(plan: Plan) -> None:
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_the_text_says_everything(plan: Plan) -> None:
    text = plan_markdown(plan)
    assert plan.diagnosis.verdict.headline in text
    for entry in plan.experiments:
        assert f"`{entry.id}`" in text
    for finding in plan.diagnosis.findings:
        assert finding.rule in text
    for assumption in plan.assumptions:
        assert f"`{assumption.name}`" in text
        assert assumption.settles in text
    assert max(map(len, text.splitlines())) < 400


def test_the_bar_is_the_cycle(plan: Plan) -> None:
    cost = plan.diagnosis.speculative
    bar = text_bar(cost)
    assert len(bar) == BAR_WIDTH
    assert bar.count("A") == pytest.approx(BAR_WIDTH * cost.share("verify_all_reduce"), abs=1)


def test_a_backend_that_does_not_run_goes_to_the_end_with_its_reason() -> None:
    machine = Machine()
    measurement = machine.measure()
    row = machine.table().rows[0].model_copy(update={"backend": "nccl", "median_us": None, "reason": "no GPU"})
    table = type(machine.table())([*machine.table().rows, row])
    plan = make_plan(measurement, table, builtin_catalogue(measurement.settings, ["gloo", "nccl", "shm"]))
    assert plan.experiments[-1].id == "comm.nccl"
    assert "`comm.nccl`: nccl does not run here: no GPU" in plan_markdown(plan)
