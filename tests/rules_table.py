"""The table of rules in the documentation, from the rules that the code reads."""

import re
from pathlib import Path

from hf_attnprobe import markdown
from hf_attnprobe.statistics.verdicts import RULES


PAGE = Path(__file__).parent.parent / "docs" / "verdicts.md"
PLACE = re.compile("(<!-- rules -->\n).*?(<!-- /rules -->)", re.DOTALL)


def expected() -> str:
    """The page with the table as it has to be."""
    rows = []
    for rule in RULES.values():
        partly = "–" if rule.partly == rule.yes else f"{rule.partly:.2f}"
        yes = "above 0" if rule.yes == 0 else f"{rule.yes:.2f}"
        rows.append([rule.name, rule.question, rule.measure, partly, yes, rule.source])
    head = ["rule", "question", "measure", "partly from", "yes from", "source"]
    table = "\n".join(["", *markdown.table(head, rows), "", ""])
    return PLACE.sub(lambda m: m[1] + table + m[2], PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(expected())
