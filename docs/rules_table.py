"""The tables of the documentation's page on verdicts, from the rules that the code reads.

``python docs/rules_table.py`` writes them.
"""

import re
from pathlib import Path

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.statistics.verdicts import ANSWERS, CLASSIFIERS, RULES, Asked, steps_of


PAGE = Path(__file__).with_name("verdicts.md")


def rules() -> list[str]:
    """A row for each rule."""
    rows = []
    for rule in RULES.values():
        partly = "–" if rule.partly == rule.yes else f"{rule.partly:.2f}"
        yes = "above 0" if rule.yes == 0 else f"{rule.yes:.2f}"
        rows.append([rule.name, rule.question, rule.measure, partly, yes, rule.source])
    head = ["rule", "question", "measure", "partly from", "yes from", "source"]
    return markdown.table(head, rows)


def steps(asked: Asked) -> list[str]:
    """A row for each step to a verdict, in their order."""
    rows = [[what, f"**{verdict}**", why] for what, verdict, why in steps_of(asked)]
    return markdown.table(["where", "the verdict is", "because"], rows)


def expected() -> str:
    """The page with the tables as they have to be."""
    page = PAGE.read_text()
    made_of = {
        "rules": rules(),
        "steps": steps(CLASSIFIERS),
        "steps of answers": steps(ANSWERS),
    }
    for name, made in made_of.items():
        place = re.compile(f"(<!-- {name} -->\\n).*?(<!-- /{name} -->)", re.DOTALL)
        table = "\n".join(["", *made, "", ""])
        page = place.sub(lambda m, table=table: m[1] + table + m[2], page)
    return page


if __name__ == "__main__":
    PAGE.write_text(expected())
