"""An audit shared out: each process takes the texts of one share, and a report joins the folders.

A share is an audit of its own, with its own folder, lock and rows, and goes on when it is run again.
The same texts have the same numbers whoever runs them, since all randomness is by seed and id.

    for k in 0 1 2 3; do attnprobe audit … --share $k/4 --output-dir job & done
    attnprobe report job/share-*
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_attnprobe.audit_reports.report import Report, read_audit, report_from
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import public_function
from hf_attnprobe.plain_data import read_json
from hf_attnprobe.statistics.rows import PREDICTION, Rows
from hf_attnprobe.storage.folders import differing
from hf_attnprobe.storage.rows import parts_in, read_part, rows_of_parts


SUMMED = ("truncated", "skipped_empty")
"""Counts in the provenance, of the texts of a share alone."""


def is_share(folder: Path) -> bool:
    """Whether a folder holds a share of an audit."""
    return (
        folder.name.startswith("share-") and (folder / "audit.json").is_file()
    )


@public_function
def joined_report(folders: Sequence[str | Path]) -> Report:
    """The report of some shares of one audit, or of all.

    Raises:
        AttnProbeError: a folder without a finished share, or shares of different audits.
    """
    places = [Path(folder) for folder in folders]
    shares = [read_audit(place) for place in places]
    _check_one_audit(places)
    first = shares[0]
    provenance = _joined(shares)
    wanted = {*provenance["tests"], PREDICTION}
    return report_from(
        _rows([place / "rows" for place in places], wanted),
        model=first.model,
        dataset=first.dataset,
        n=sum(share.n for share in shares),
        seed=first.seed,
        provenance=provenance,
        notes=_progress(shares),
    )


def _rows(folders: Sequence[Path], tests: set[str]) -> Rows:
    rows = rows_of_parts(
        read_part(part) for folder in folders for part in parts_in(folder)
    )
    return rows.select(lambda test, *_: test in tests)


def _check_one_audit(places: Sequence[Path]) -> None:
    marks = [
        read_json(place / "audit.json", dict[str, Any], "run the share again")
        for place in places
    ]
    for mark in marks:
        mark.pop("scores_fingerprint", None)  # of a share's own texts
    for place, mark in zip(places, marks, strict=True):
        wrong = differing(mark, marks[0])
        if wrong:
            raise AttnProbeError(
                f"expected shares of one audit, {place} differs from {places[0]} in "
                f"{', '.join(wrong)}; join those of one audit"
            )


def _joined(shares: Sequence[Report]) -> dict[str, Any]:
    """The provenance of all; what is counted in a share is added up."""
    known = [share.provenance for share in shares]
    total = {name: sum(one[name] for one in known) for name in SUMMED}
    n = sum(share.n for share in shares)
    unknown = (
        sum(share.n * share.provenance["unknown_tokens"] for share in shares)
        / n
    )
    asked = {k: v for k, v in known[0]["asked_for"].items() if k != "share"}
    said = [one["share"] for one in known]
    return {
        **known[0],
        **total,
        "unknown_tokens": unknown,
        "asked_for": asked,
        "share": said,
    }


def _progress(shares: Sequence[Report]) -> list[str]:
    """How much of the audit this is."""
    held = Counter(tuple(share.provenance["share"]) for share in shares)
    of = {n for _, n in held}
    if len(of) > 1 or max(held.values()) > 1:
        raise AttnProbeError("expected every share once, and all of as many")
    (n,) = of
    if len(held) == n:
        return []
    return [
        f"Progress: {len(held)} of {n} shares. They are by a hash of ids, so these texts are a "
        "random part of all, and the intervals are of that part."
    ]
