"""How far is the latency model from what was measured and published?

Prints every row of published_all_reduce.json beside the model, and the median error of each table. Tables that
calibrate gave the model a constant and prove little; tables that judge did not. A kernel of other people has a launch
and a barrier of its own: its smallest message is fitted and not counted. With --record the rows of a record of
`fastverify bench all-reduce --json` are judged too, with --links the facts come from `fastverify bench links --json`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from fastverify.comm.cuda.launch import Protocol
from fastverify.comm.cuda.link_report import LinkReport
from fastverify.comm.latency_model import Scheme, best_protocol, predict_latency_us
from fastverify.comm.link_facts import (
    H200_HOST,
    H200_NVLINK,
    OWN_MEMORY_FLAG_US,
    LinkFacts,
    facts_from_report,
    pcie_facts,
)

PUBLISHED = Path(__file__).with_name("published_all_reduce.json")
# Backend of a record -> what it may do.
SCHEMES = {
    "push": ("push",),
    "push_two_shot": ("push_two_shot",),
    "host": ("host_inbox", "host_outbox"),
    "host_two_shot": ("host_two_shot",),
}
# Two ranks on one GPU: no link for push, one link for two ranks through host memory.
ONE_GPU = replace(
    H200_HOST,
    flag_us=OWN_MEMORY_FLAG_US,
    peer_gb_per_s=1e6,
    handle_gb_per_s=H200_NVLINK.handle_gb_per_s / 2,
    host_write_gb_per_s=H200_HOST.host_write_gb_per_s / 2,
    host_read_gb_per_s=H200_HOST.host_read_gb_per_s / 2,
)


@dataclass(frozen=True)
class JudgedRow:
    """One size of one table. `fitted` rows gave the floor and have no error."""

    num_bytes: int
    measured_us: float
    modelled_us: float
    fitted: bool

    @property
    def error(self) -> float:
        """Relative, positive where the model is too slow."""
        return self.modelled_us / self.measured_us - 1


def judge(table: dict[str, Any]) -> list[JudgedRow]:
    """Every row of a table beside the model."""
    link, rows = link_of(table), sorted((int(size), us) for size, us in table["us"].items())
    smallest_bytes, smallest_us = rows[0]
    is_fitted = table["floor"] == "fitted"
    if is_fitted:
        link = replace(link, launch_us=link.launch_us + smallest_us - predict(table, smallest_bytes, link))
    return [JudgedRow(size, us, predict(table, size, link), is_fitted and size == smallest_bytes) for size, us in rows]


def link_of(table: dict[str, Any]) -> LinkFacts:
    """The preset that a table names, with the facts that it sets itself."""
    presets = {"one-gpu": ONE_GPU, "h200-nvlink": H200_NVLINK, "h200-host": H200_HOST}
    if table["link"] == "pcie":
        facts = pcie_facts(
            table["generation"],
            table["world_size"],
            island_size=table.get("island_size", 0),
            collapses=table.get("collapses", False),
        )
    else:
        facts = presets[table["link"]]
    if links := table.get("links"):
        facts = facts_from_report(LinkReport.from_dict(json.loads(links.read_text())), facts)
    return replace(facts, **table.get("facts", {}))


def predict(table: dict[str, Any], num_bytes: int, link: LinkFacts) -> float:
    """The model's answer for one size."""
    schemes, world_size = SCHEMES.get(table["scheme"], (table["scheme"],)), table["world_size"]
    if table["protocol"] == "best":
        return min(best_protocol(Scheme(scheme), world_size, num_bytes, link)[1] for scheme in schemes)
    return predict_latency_us(Scheme(schemes[0]), Protocol[table["protocol"]], world_size, num_bytes, link)


def median_error(rows: list[JudgedRow]) -> float:
    """Of the rows that were not fitted, without sign."""
    return median(abs(row.error) for row in rows if not row.fitted)


def tables_of_record(path: Path, links: Path | None) -> list[dict[str, Any]]:
    """One table per backend of ours and per way to call it, from `fastverify bench all-reduce --json`."""
    tables: dict[str, dict[str, Any]] = {}
    for row in json.loads(path.read_text())["rows"]:
        if row["backend"] not in SCHEMES or row["fused"] or row["mode"] != "graph" or row["median_us"] is None:
            continue
        name = f"{row['backend']}, {row['world_size']} ranks"
        table = {
            "name": name,
            "source": path.name,
            "role": "judges",
            "scheme": row["backend"],
            "protocol": "best",
            "world_size": row["world_size"],
            "link": "h200-host" if row["backend"].startswith("host") else "h200-nvlink",
            "links": links,
            "floor": "model",
            "us": {},
        }
        tables.setdefault(name, table)["us"][str(row["num_bytes"])] = row["median_us"]
    return list(tables.values())


def print_table(table: dict[str, Any]) -> list[JudgedRow]:
    """Each row, and the median error."""
    rows = judge(table)
    print(f"\n{table['name']} ({table['role']}; {table['source']}): median error {median_error(rows):.0%}")
    for row in rows:
        verdict = "fitted" if row.fitted else f"{row.error:+.0%}"
        print(f"{row.num_bytes:>9} B  measured {row.measured_us:7.1f}  model {row.modelled_us:7.1f}  {verdict}")
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="judge this output of `fastverify bench all-reduce --json` instead")
    parser.add_argument("--links", type=Path, help="with --record: facts from `fastverify bench links --json`")
    arguments = parser.parse_args()
    if arguments.record:
        tables = tables_of_record(arguments.record, arguments.links)
    else:
        tables = json.loads(PUBLISHED.read_text())["tables"]
    by_role: dict[str, list[JudgedRow]] = {}
    for table in tables:
        by_role.setdefault(table["role"], []).extend(print_table(table))
    for role, rows in by_role.items():
        worst = max(abs(row.error) for row in rows if not row.fitted)
        print(f"\ntables that {role.removesuffix('s')}: median error {median_error(rows):.0%}, worst {worst:.0%}")


if __name__ == "__main__":
    main()
