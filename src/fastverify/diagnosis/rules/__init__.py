"""Rules: each looks at numbers and returns findings with threshold, source, confidence and what comes next.

`measured.py` judges one pair of arms, whatever measured it; every other file judges a report: several arms, a launch, a
log, a machine. Names start with R-; docs/diagnosis.md lists them.
"""

from fastverify.diagnosis.rules.measured import RULES, Facts, apply_rules
from fastverify.diagnosis.rules.report_rules import REPORT_RULES, apply_report_rules

__all__ = ["REPORT_RULES", "RULES", "Facts", "apply_report_rules", "apply_rules"]
