"""Where the numbers come from, and how to get them again."""

from collections.abc import Mapping

from hf_attnprobe.auditing.result import AuditResult
from hf_attnprobe.page.elements import details, section, table
from hf_attnprobe.page.html import Child, Html, tag
from hf_attnprobe.storage.asked import is_repeatable, repeating
from hf_attnprobe.storage.provenance import in_words


OF_PYTHON = (
    "Model or data were objects in Python, so no command repeats this by itself; with "
    "their names in place of the words in quotes it would be:"
)

INSTALLED = "hf_attnprobe is installed from a clone of it by "
ROWS = (
    " there. The audit's folder, in which report.html is written, holds the numbers: a "
    "row for each text and statistic in rows/ (the control's in control/rows/), the means in summary.json."
)


def origin(report: AuditResult) -> Html:
    """The command, versions, fingerprints, and every setting."""
    said = report.provenance
    line = repeating("audit", said)
    note = None if is_repeatable(said) else OF_PYTHON
    rows: list[list[Child]] = [[name, in_words(value)] for name, value in _flat(said)]
    return section(
        "How to repeat it, and where the numbers come from",
        tag("p", note) if note else None,
        tag("pre", tag("code", line), tabindex="0"),
        tag(
            "p",
            "The same command gives the same numbers with the same versions and "
            f"fingerprints: model {said.get('model_fingerprint', 'unknown')}, data "
            f"{said.get('data_fingerprint', 'unknown')}, "
            f"{in_words(said.get('versions', {}))}.",
        ),
        tag("p", INSTALLED, tag("code", "pip install ."), ROWS),
        details(
            "every setting",
            table(["setting", "value"], rows, sortable=False),
        ),
        id="origin",
    )


def _flat(provenance: Mapping) -> list[tuple[str, object]]:
    """Settings by name; those of tests each in a line of its own."""
    pairs: list[tuple[str, object]] = []
    for name, value in provenance.items():
        if name == "options":
            pairs += [(f"{name} of {test}", inner) for test, inner in value.items()]
        else:
            pairs.append((name, value))
    return pairs
