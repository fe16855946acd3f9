"""A report's answer and plan as one HTML page without network: no script, no font, no image from elsewhere."""

from __future__ import annotations

from html import escape

from fastverify.diagnosis.answer import Answer
from fastverify.diagnosis.cycle_cost import PHASE_TITLES
from fastverify.tuning.server_plan import ServerExperiment, ServerPlan
from fastverify.tuning.server_plan_text import summary_lines

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1c2330;background:#fff}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #d9dee7;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}code{background:#f2f4f8;padding:.1rem .3rem}
.bar{background:#e8ebf1;height:1rem;min-width:12rem}.bar>div{background:#2563a8;height:1rem}
.high{border-left:4px solid #b3261e}.medium{border-left:4px solid #b7791f}.low{border-left:4px solid #8792a5}
.finding{padding:.4rem .8rem;margin:.6rem 0;background:#f7f8fb}.muted{color:#5a6577}
@media(prefers-color-scheme:dark){body{background:#14181f;color:#e4e8ef}.finding,code{background:#1e242e}
th,td{border-color:#333c4a}.bar{background:#2a323e}.bar>div{background:#6ba5e0}.muted{color:#9aa6b8}}
"""


def answer_page(answer: Answer, plan: ServerPlan | None) -> str:
    """The whole page. All text of a report is escaped."""
    first, *rest = summary_lines(answer, plan)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(first[:80])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(first)}</h1><ul>{''.join(f'<li>{escape(line)}</li>' for line in rest)}</ul>",
        _waterfall(answer),
        _findings(answer),
    ]
    if answer.projection is not None:
        parts.append(f"<h2>What if</h2><p>{escape(answer.projection.text)}</p>")
    if plan is not None:
        parts.append(_experiments(plan))
    parts.append(_unknowns(answer))
    return "\n".join(parts) + "\n"


def _waterfall(answer: Answer) -> str:
    arm = next((arm for arm in answer.arms if arm.phases_ms and arm.cycle_ms), None)
    if arm is None or arm.cycle_ms is None:
        return ""
    rows, start = [], 0.0
    for name, ms in arm.phases_ms.items():
        width = ms / arm.cycle_ms * 100
        bar = f"<div class=bar><div style='margin-left:{start:.1f}%;width:{width:.1f}%'></div></div>"
        title = escape(PHASE_TITLES.get(name, name))
        rows.append(
            f"<tr><td>{title}</td><td class=n>{ms:.2f} ms</td><td class=n>{width:.0f} %</td><td>{bar}</td></tr>"
        )
        start += width
    return f"<h2>Where a cycle of {escape(arm.arm)} goes ({arm.cycle_ms:.1f} ms)</h2><table>{''.join(rows)}</table>"


def _findings(answer: Answer) -> str:
    blocks = [
        f"<div class='finding {finding.confidence}'><b>{escape(finding.rule)}</b> {escape(finding.title)}<br>"
        f"{escape(finding.next)}<br><span class=muted>{finding.confidence} confidence; threshold "
        f"{finding.threshold:g}: {escape(finding.threshold_source)}{escape(_arms(finding.arms))}</span></div>"
        for finding in answer.findings
    ]
    return "<h2>Findings</h2>" + ("".join(blocks) or "<p>No rule fired.</p>")


def _arms(names: tuple[str, ...]) -> str:
    return f"; {', '.join(names)}" if names else ""


def _experiments(plan: ServerPlan) -> str:
    settings = [entry for entry in plan.possible if entry.kind == "setting"]
    head = "<tr><th>#<th>experiment<th>speculative tok/s<th>plain tok/s<th>over plain<th>risk<th>effort</tr>"
    rows = "".join(_row(rank, entry) for rank, entry in enumerate(settings, start=1))
    refused = "".join(
        f"<li><code>{escape(e.id)}</code> {escape(e.refusal)}</li>" for e in plan.experiments if e.refusal is not None
    )
    return (
        "<h2>Experiments</h2><p class=muted>Each prediction is for the experiment alone; gains do not add up, and both "
        f"arms are predicted.</p><table>{head}{rows}</table><h2>Not possible here</h2><ul>{refused}</ul>"
    )


def _row(rank: int, entry: ServerExperiment) -> str:
    effect = entry.predicted
    cells = "<td class=n>?<td class=n>?<td class=n>?"
    if effect is not None:
        over = effect.tok_s.mid / effect.plain_tok_s.mid
        cells = (
            f"<td class=n>{effect.tok_s.mid:.0f} ({effect.tok_s.low:.0f} to {effect.tok_s.high:.0f})"
            f"<td class=n>{effect.plain_tok_s.mid:.0f}<td class=n>{over:.2f}"
        )
    return (
        f"<tr><td class=n>{rank}<td><b>{escape(entry.title)}</b><br><code>{escape(entry.id)}</code> {escape(entry.why)}"
        f"{cells}<td>{entry.risk}<td class=n>{entry.effort_min:.0f} min</tr>"
    )


def _unknowns(answer: Answer) -> str:
    items = "".join(
        f"<li><code>{escape(u.name)}</code> decides {escape(u.decides)}: {escape(u.needs)}</li>" for u in answer.unknown
    )
    return f"<h2>Could not tell</h2><ul>{items}</ul>" if items else ""
