"""What a report says about its own evidence: checks with their answers, how it was measured, what it does not show.

"Could not tell" is an answer and stays visible. Everything is read from the campaign; nothing is measured here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from fastverify.servers.measurement import ServerMeasurement
from fastverify.tuning.campaign import Campaign, Trial
from fastverify.tuning.gates import Answer, diverged_share
from fastverify.tuning.report_types import Check, Fact
from fastverify.tuning.trial import TuneOptions
from fastverify.units import BYTES_PER_MB

GATE_NAMES = {
    "collective": "all-reduce sums are right",
    "outputs": "greedy outputs equal those of the baseline",
    "acceptance": "acceptance length did not fall",
    "degenerate": "outputs do not repeat themselves",
}
_ENGAGED: dict[bool | None, Answer] = {True: "passed", False: "failed", None: "could not tell"}
BYTES_PER_GB = 1024 * BYTES_PER_MB


def checks(campaign: Campaign, winner: Trial, after: ServerMeasurement) -> list[Check]:
    """The winner's gates, every kept change's engagement, lossless decoding, confirmation."""
    gates = winner.result.gates if winner.result else ()
    found = [Check(name=GATE_NAMES[gate.gate], answer=gate.answer, detail=gate.detail) for gate in gates]
    found.append(_lossless(after))
    if winner.start.purpose == "experiment":
        found += [_engagement(trial) for trial in kept_trials(campaign)]
    if campaign.confirmation is not None:
        answer: Answer = "passed" if campaign.confirmation.confirmed else "failed"
        found.append(Check(name="winner launched again", answer=answer, detail=campaign.confirmation.detail))
    return found


def kept_trials(campaign: Campaign) -> list[Trial]:
    """Experiments whose settings are part of the winner's, in the order they were kept."""
    return [trial for trial in campaign.of_purpose("experiment") if trial.result is not None and trial.result.kept]


def _lossless(measurement: ServerMeasurement) -> Check:
    """Speculative output against plain output of the same launch."""
    name = "speculative output equals plain output"
    if "speculative" not in measurement.arms:
        return Check(name=name, answer="could not tell", detail="these settings do not speculate")
    plain, speculative = measurement.arms["plain"], measurement.arms["speculative"]
    share = diverged_share(plain, speculative)
    if share is None:
        return Check(name=name, answer="could not tell", detail="the server reports no token ids")
    num_prompts = len(plain.output_token_ids)
    same = round((1 - share) * num_prompts)
    detail = f"{same} of {num_prompts} greedy outputs are the same, {measurement.num_tokens} tokens each"
    if share == 0:
        return Check(name=name, answer="passed", detail=detail)
    return Check(
        name=name, answer="could not tell", detail=f"{detail}; without logits a tie cannot be told from an error"
    )


def _engagement(trial: Trial) -> Check:
    proof = trial.result.proof if trial.result else None
    answer = _ENGAGED[proof.engaged if proof else None]
    return Check(name=f"{trial.experiment_id} took effect", answer=answer, detail=proof.text if proof else "no proof")


def method(campaign: Campaign) -> list[Fact]:
    """Machine, versions, samples and noise."""
    document, options = campaign.document, campaign.document.options
    measured = [trial for trial in campaign.trials if trial.measurement is not None]
    samples = f"{options.num_prompts} prompts x {options.num_tokens} tokens x {_times(options)} per arm and launch"
    facts = [
        *_machine(campaign),
        Fact(name="server", value=f"{document.server}; {_at_a_time(options.concurrency).lower()}"),
        Fact(name="samples", value=f"{samples}; both arms interleaved; rates are medians of decode tokens per second"),
        Fact(
            name="launches",
            value=f"{len(measured)} measured of {len(campaign.trials)}, {campaign.spent_s:.0f} s in all",
        ),
    ]
    noise = campaign.noise
    if noise is not None:
        same = "outputs alike" if noise.diverged_share == 0 else f"{100 * noise.diverged_share:.0f} % of outputs differ"
        facts.append(
            Fact(name="noise", value=f"{100 * noise.tok_s:.1f} % between two launches of the baseline, {same}")
        )
    return facts


def _machine(campaign: Campaign) -> Iterator[Fact]:
    """The machine that the campaign recorded; the one that writes the report may be another."""
    text = campaign.ledger.document("machine")
    if text is None:
        yield Fact(name="machine", value="not recorded by this campaign")
        return
    machine = json.loads(text)
    memory = f"{machine['memory_bytes'] / BYTES_PER_GB:.0f} GB"
    nodes = machine["num_numa_nodes"]
    cores = f"{machine['num_usable_cores']} usable cores on {nodes} NUMA node{'s' if nodes > 1 else ''}"
    yield Fact(
        name="machine", value=f"{machine['cpu']} ({machine['architecture']}), {cores}, {memory}, {machine['system']}"
    )
    versions = {"Python": machine["python"], **machine["versions"]}
    yield Fact(name="versions", value=", ".join(f"{name} {version}" for name, version in versions.items()))


def limits(campaign: Campaign) -> list[str]:
    """What was not shown; assumptions of the predictions are the plan's."""
    options, plan = campaign.document.options, campaign.plan
    found = [
        f"{_at_a_time(options.concurrency)}: other batch sizes have other break-even points.",
        f"{options.num_prompts} prompts{_domains(campaign)}: another workload has another acceptance length.",
        "Experiments were tried one after the other on top of the best settings so far; not every combination was run.",
    ]
    if plan is not None:
        unknown = [f"{item.name} of the {item.arm} arm" for item in plan.diagnosis.evidence if not item.is_known]
        found += [f"The server did not tell: {', '.join(unknown)}."] if unknown else []
    if campaign.confirmation is None and kept_trials(campaign):
        found.append("The winner was not launched again against the baseline.")
    return found


def _at_a_time(concurrency: int) -> str:
    return "One request at a time" if concurrency == 1 else f"{concurrency} requests at a time"


def _times(options: TuneOptions) -> str:
    repeats = "1 repeat" if options.repeats == 1 else f"{options.repeats} repeats"
    return f"{repeats} or more, for at least {options.min_load_s:g} s," if options.min_load_s else repeats


def _domains(campaign: Campaign) -> str:
    domains: Iterable[str] = dict.fromkeys(prompt.domain for prompt in campaign.document.prompts if prompt.domain)
    text = ", ".join(domains)
    return f" ({text})" if text else ""
