import pytest

from fastverify.engine.config import EngineConfig
from fastverify.servers.server import Setting
from fastverify.tuning.cost_model import CostModel
from fastverify.tuning.engagement import prove
from fastverify.tuning.experiments import builtin_catalogue
from fastverify.tuning.knobs import Knobs, merge_settings
from fastverify.tuning.selection import candidates, is_simpler
from tests.tuning.machine import BASELINE, Machine

IDS = [
    *("comm.shm", "comm.fused_norm", "draft.replicated", "draft.local_argmax", "draft.tree"),
    *(f"draft.k{num_drafts}" for num_drafts in (1, 2, 4, 5, 6, 7, 8)),
    *("drafter.ngram", "drafter.none"),
]


def entry(name: str, settings: dict | None = None):
    return next(one for one in builtin_catalogue({**BASELINE, **(settings or {})}) if one.id == name)


def test_the_catalogue_has_every_knob_and_leaves_out_what_is_so_already() -> None:
    assert sorted(one.id for one in builtin_catalogue(BASELINE)) == sorted(IDS)
    tuned = {**BASELINE, "comm_backend": "shm", "fuse_rmsnorm": True, "num_draft_steps": 5, "num_proposed_drafts": 5}
    ids = {one.id for one in builtin_catalogue(tuned)}
    assert not ids & {"comm.shm", "comm.fused_norm", "draft.k5"}
    assert "draft.k3" in ids


@pytest.mark.parametrize("name", IDS)
def test_the_engine_accepts_every_experiment(name: str) -> None:
    settings = merge_settings(BASELINE, entry(name).changes)
    config = EngineConfig(**settings)
    knobs = Knobs.from_settings(settings)
    assert knobs.num_proposed_drafts == config.num_proposed_drafts, "the model resolves defaults as the engine does"


def test_conflicts_and_groups_name_experiments_that_exist() -> None:
    for one in builtin_catalogue(BASELINE):
        assert set(one.conflicts) <= set(IDS)
        assert one.id not in one.conflicts


@pytest.mark.parametrize("name", [name for name in IDS if name != "drafter.none"])
def test_a_setting_that_took_effect_is_proven(name: str) -> None:
    experiment = entry(name)
    measurement = Machine().measure(dict(experiment.changes))
    assert prove(measurement, experiment.changes, experiment.counted).engaged is True


@pytest.mark.parametrize("name", ["comm.fused_norm", "draft.replicated", "draft.local_argmax", "draft.k2", "draft.k5"])
def test_a_setting_that_is_reported_but_not_counted_is_not_engaged(name: str) -> None:
    experiment = entry(name)
    ignored = Machine().measure()
    claimed = ignored.model_copy(update={"settings": {**ignored.settings, **experiment.changes}})
    proof = prove(claimed, experiment.changes, experiment.counted)
    assert proof.engaged is False, proof.text


@pytest.mark.parametrize("name", IDS)
def test_a_setting_that_is_not_resolved_is_not_engaged(name: str) -> None:
    experiment = entry(name)
    assert prove(Machine().measure(), experiment.changes, experiment.counted).engaged is False


def test_a_server_that_reports_and_counts_nothing_cannot_be_told() -> None:
    silent = Machine().measure().model_copy(update={"settings": {}})
    assert prove(silent, {"comm_backend": "shm"}, None).engaged is None


def ranked(kept: list[str], changes: dict | None = None, pending: list[str] | None = None):
    machine = Machine()
    model = CostModel(machine.measure(changes), machine.table(), noise=0.02)
    experiments = [one for one in builtin_catalogue(BASELINE) if pending is None or one.id in pending]
    return candidates(experiments, kept, model, machine.table())


def test_the_best_prediction_comes_first_and_speculation_off_last() -> None:
    order = [one.experiment.id for one in ranked([])]
    assert order[0] == "comm.shm"
    assert order.index("draft.replicated") < order.index("draft.k2")
    assert order[-1] == "drafter.none"


def test_what_cannot_win_waits_and_says_why() -> None:
    after_shm = {one.experiment.id: one.against for one in ranked(["comm.shm"], {"comm_backend": "shm"})}
    assert "are these already" in after_shm["comm.shm"]
    assert "no gain beyond the noise of 2.0 %" in after_shm["drafter.none"]
    assert after_shm["draft.replicated"] is None
    after_ngram = {one.experiment.id: one.against for one in ranked(["drafter.ngram"], {"drafter": "ngram"})}
    assert after_ngram["draft.k4"] == "means nothing after drafter.ngram was kept"


@pytest.mark.parametrize(
    ("candidate", "current", "simpler"),
    [
        ({"num_draft_steps": 2}, {}, True),
        ({"num_draft_steps": 4}, {}, False),
        ({"comm_backend": "shm"}, {}, False),
        ({}, {"comm_backend": "shm"}, True),
        ({"drafter": "none"}, {}, True),
        ({"draft_shape": "tree", "top_k": 3, "num_proposed_drafts": 2}, {}, False),
        ({}, {}, False),
    ],
)
def test_simpler_settings(candidate: dict[str, Setting], current: dict[str, Setting], simpler: bool) -> None:
    settings = [merge_settings(BASELINE, changes) for changes in (candidate, current)]
    assert is_simpler(*settings, BASELINE) is simpler
