import pytest

from fastverify.servers.measurement import ServerMeasurement
from fastverify.tuning import gates
from fastverify.tuning.gates import SelfNoise
from fastverify.tuning.interval import Interval
from tests.tuning.machine import Machine

QUIET = SelfNoise(tok_s=0.02, accept_length=0.0, diverged_share=0.0)
PROSE = tuple(range(100, 164))


def measured(outputs: dict | None = None, *, arm: str = "speculative", **changes: object) -> ServerMeasurement:
    """A measurement whose `arm` gave these outputs; the other arm's are all alike."""
    measurement = Machine().measure()
    same = {f"p{i}": PROSE for i in range(8)}
    arms = {
        name: one.model_copy(update={"output_token_ids": same} | ({} if name != arm else changes))
        for name, one in measurement.arms.items()
    }
    arms[arm] = arms[arm].model_copy(update={"output_token_ids": same | (outputs or {})})
    return measurement.model_copy(update={"arms": arms})


def differing(count: int, position: int = 40) -> dict:
    changed = (*PROSE[:position], 7, *PROSE[position + 1 :])
    return {f"p{i}": changed for i in range(count)}


@pytest.mark.parametrize(
    ("count", "noise_share", "risk", "answer"),
    [
        (0, 0.0, "guarded", "passed"),
        (1, 0.0, "safe", "could not tell"),
        (1, 0.0, "guarded", "failed"),
        (1, 0.125, "guarded", "passed"),
        (2, 0.125, "safe", "could not tell"),
        (4, 0.0, "safe", "failed"),
        (8, 1.0, "safe", "passed"),
    ],
)
@pytest.mark.parametrize("arm", ["plain", "speculative"])
def test_divergence_is_held_against_the_baselines_own(
    count: int, noise_share: float, risk: str, answer: str, arm: str
) -> None:
    noise = QUIET.model_copy(update={"diverged_share": noise_share})
    result = gates.check_outputs(measured(differing(count), arm=arm), measured(), noise, risk)
    assert result.answer == answer
    if count:
        assert f"{arm}: {count} of 8 outputs differ, first at token 40" in result.detail


def test_answers_that_change_from_repeat_to_repeat_are_a_race() -> None:
    unstable = measured(unstable_prompt_ids=("p3",))
    result = gates.check_outputs(unstable, measured(), QUIET, "safe")
    assert result.answer == "failed"
    assert "p3" in result.detail
    assert gates.check_outputs(unstable, unstable, QUIET, "safe").answer == "passed", "the baseline does it as well"


def test_no_token_ids_is_could_not_tell() -> None:
    silent = measured({f"p{i}": () for i in range(8)})
    assert gates.check_outputs(silent, measured(), QUIET, "safe").answer == "could not tell"
    assert gates.check_outputs(silent, measured(), QUIET, "guarded").answer == "failed"


@pytest.mark.parametrize(
    ("accept_length", "expected", "answer"),
    [
        (2.6, Interval.exact(2.61), "passed"),
        (2.4, Interval.exact(2.61), "failed"),
        (2.4, Interval(low=2.3, mid=2.61, high=2.8), "passed"),
        (1.0, None, "could not tell"),
        (3.5, Interval.exact(2.61), "passed"),
    ],
)
def test_a_fallen_acceptance_length_fails(accept_length: float, expected: Interval | None, answer: str) -> None:
    assert gates.check_acceptance(measured(accept_length=accept_length), expected, QUIET).answer == answer


def test_own_noise_of_the_acceptance_length_widens_its_gate() -> None:
    noisy = QUIET.model_copy(update={"accept_length": 0.1})
    assert gates.check_acceptance(measured(accept_length=2.4), Interval.exact(2.61), noisy).answer == "passed"


def test_loops_are_degenerate_unless_the_baseline_loops_too() -> None:
    loop = {f"p{i}": (5, 6) * 32 for i in range(8)}
    looping = measured(loop)
    both = looping.model_copy(update={"arms": {arm: looping.arms["speculative"] for arm in looping.arms}})
    assert gates.check_degenerate(both, measured()).answer == "failed"
    assert gates.check_degenerate(both, both).answer == "could not tell"
    assert gates.check_degenerate(measured(), measured()).answer == "passed"


def test_self_noise_is_what_two_launches_differ_by() -> None:
    first, second = measured(), measured(differing(2), tok_s=measured().arms["speculative"].tok_s * 1.05)
    noise = gates.self_noise(first, second)
    assert noise.tok_s == pytest.approx(1 - 1 / 1.05)
    assert noise.diverged_share == 0.25
    assert gates.self_noise(first, first).tok_s == gates.NOISE_FLOOR


def test_a_wrong_sum_fails_and_an_unmeasured_backend_cannot_be_told() -> None:
    table = Machine().table()
    assert gates.check_collective("shm", table).answer == "passed"
    assert gates.check_collective("nccl", table).answer == "could not tell"
    wrong = type(table)([table.rows[0].model_copy(update={"correct": False})])
    assert gates.check_collective(table.rows[0].backend, wrong).answer == "failed"


def test_a_restless_machine_is_seen_within_one_launch() -> None:
    calm, restless = measured(tok_s_samples=(100.0,) * 4), measured(arm="plain", tok_s_samples=(45.0, 91.0, 91.0, 71.0))
    assert gates.launch_noise(calm) == 0.0
    assert gates.launch_noise(restless) == pytest.approx(1.253 * 1.483 * 10 / 81 / 2)
    assert gates.launch_noise(measured(arm="plain", tok_s_samples=(45.0, 91.0))) == 0.0, "two rates have no spread"


def test_a_restless_baseline_does_not_make_every_setting_restless() -> None:
    restless = SelfNoise(tok_s=0.4, accept_length=0.0, diverged_share=0.0)
    assert gates.tok_s_noise(restless, of_baseline=True) == 0.4
    assert gates.tok_s_noise(restless, of_baseline=False) == gates.USUAL_LAUNCH_NOISE
    calm = restless.model_copy(update={"tok_s": 0.02})
    assert gates.tok_s_noise(calm, of_baseline=False) == 0.02
