import pytest

from fastverify.trace.spans import PassKind, parse_scope, parse_span


@pytest.mark.parametrize(
    ("name", "kind", "batch", "rows", "phase"),
    [
        ("execute_context_0(0)_generation_1(4)", PassKind.VERIFY, 1, 4, ""),
        ("execute_context_0(0)_generation_4(4)", PassKind.PLAIN, 4, 4, ""),
        ("execute_context_2(14721)_generation_0(0)", PassKind.PREFILL, 2, 14721, ""),
        ("execute_context_3(48)_generation_1(1)", PassKind.MIXED, 4, 49, ""),
        ("execute_context_1(888_788544)_generation_0(0)", PassKind.PREFILL, 1, 888, ""),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
            PassKind.PLAIN, 32, 32, "",
        ),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)",
            PassKind.MIXED, 46, 8192, "",
        ),
        ("execute_new_2_cached_0", PassKind.PREFILL, 2, None, ""),
        ("execute_new_2_cached_3", PassKind.MIXED, 5, None, ""),
        ("step[TARGET_VERIFY bs=4]", PassKind.VERIFY, 4, None, ""),
        ("step[DECODE bs=32]", PassKind.PLAIN, 32, 32, ""),
        ("step[DECODE bs=32 g_sq=96]", PassKind.VERIFY, 32, 96, ""),
        ("step[EXTEND bs=1 toks=128]", PassKind.PREFILL, 1, 128, ""),
        ("step[MIXED bs=4 toks=90]", PassKind.MIXED, 4, 90, ""),
        ("step[DRAFT_EXTEND_V2 bs=4]", PassKind.DRAFT, 4, None, "draft_extend"),
        ("draft step[DECODE bs=32]", PassKind.DRAFT, 32, 32, "draft"),
        ("draft", PassKind.DRAFT, None, None, "draft"),
        ("draft_extend", PassKind.DRAFT, None, None, "draft_extend"),
        ("_draft_extend_for_prefill", PassKind.DRAFT, None, None, "draft_extend"),
        ("prefill[bs=3 tok=700 ctx=[1,2,3]]", PassKind.PREFILL, 3, 700, ""),
        ("decode[bs=117/128 tok=117 d=0.1]", PassKind.PLAIN, 117, 117, ""),
        ("decode[bs=117/128 tok=468 d=0.1 spec=3]", PassKind.VERIFY, 117, 468, ""),
        ("[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 8 gen reqs", PassKind.PLAIN, 8, None, ""),
        ("[Executor] _forward_step 7: 2 ctx reqs, 90 ctx tokens, 8 gen reqs", PassKind.MIXED, 10, 98, ""),
        ("fastverify.verify", PassKind.VERIFY, None, None, ""),
        ("fastverify.extend", PassKind.DRAFT, None, None, "draft_extend"),
        ("ProfilerStep#12", PassKind.OTHER, None, None, ""),
    ],
)  # fmt: skip
def test_names_of_passes(name: str, kind: PassKind, batch: int | None, rows: int | None, phase: str) -> None:
    meaning = parse_span(name)
    assert meaning is not None
    assert (meaning.kind, meaning.batch, meaning.rows, meaning.phase) == (kind, batch, rows, phase)


@pytest.mark.parametrize(
    "name",
    [
        "execute_context_0(0)_generation_0(0)",
        "step[IDLE bs=0]",
        "scheduler.run_batch",
        "nccl:_all_gather_base",
        "fastverify.accept",
        "drafty",
        "DistributedDataParallel.forward",
        "[Executor] _forward_step 9: 0 ctx reqs, 0 ctx tokens, 0 gen reqs",
    ],
)
def test_names_of_no_pass(name: str) -> None:
    assert parse_span(name) is None


def test_scopes_of_vllm() -> None:
    assert parse_scope("gpu_model_runner: draft") == "draft"
    assert parse_scope("draft") is None
