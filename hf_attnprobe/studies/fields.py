"""The fields of a study file and their types; tables; errors that name the file."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hf_attnprobe import faithfulness
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import describe, fits, in_short
from hf_attnprobe.retraining import registry
from hf_attnprobe.studies.plan import Column, Table


TABLE_FIELDS = {"title": str, "columns": list, "lengths": list[int]}
COLUMN_FIELDS = {
    "name": str,
    "step": str,
    "statistic": str,
    "score": str,
    "difference": bool,
    "threshold": float,
    "means": str,
}

WITH_STATISTICS = ("audit", "retrain", "transfer")
WITH_SCORES = ("retrain", "transfer", "deceive")
"""Verbs whose results have numbers per text, and scores of all texts."""


def statistics() -> set[str]:
    """The statistics that a column can show, without the part after an @."""
    names = {"accuracy", "probability"}  # of the predictions
    for readings in (faithfulness.readings(), registry.READINGS):
        names = names.union(*readings.values())
    return names


def refuse(file: str, message: str, step: str | None = None) -> NoReturn:
    """An error that says where."""
    where = file if step is None else f"{file}, step {step}"
    raise AttnProbeError(f"{where}: {message}")


def check_fields(
    file: str,
    content: Any,
    fields: Mapping[str, Any],
    what: str,
    *,
    needed: Sequence[str] = (),
    step: str | None = None,
) -> None:
    """Checks that ``content`` maps the names of ``fields`` to values of their types.

    Args:
        file: name of the file, for errors.
        content: a part of it.
        fields: types by name.
        what: the part, for errors.
        needed: names that must be there.
        step: name of the step that the part is in, for errors.

    Raises:
        AttnProbeError: for other names, missing ones, and values of other types.
    """
    if not isinstance(content, dict):
        refuse(
            file,
            f"expected {what} to be names with values, got {in_short(content)}",
            step,
        )
    unknown = [str(name) for name in content if name not in fields]
    missing = [name for name in needed if name not in content]
    if unknown or missing:
        got = f"got {unknown[0]!r}" if unknown else f"{missing[0]} is missing"
        refuse(file, f"expected {what} to have {', '.join(fields)}; {got}", step)
    words = {dict: "names with values", list: "a list"}
    for name, value in content.items():
        if not fits(value, fields[name]):
            expected = words.get(fields[name]) or describe(fields[name])
            refuse(file, f"expected {expected} for {name}, got {in_short(value)}", step)


def read_table(file: str, table: Any, steps: Mapping[str, str]) -> Table:
    """Reads a table, whose columns show results of ``steps``, given with their verbs.

    Raises:
        AttnProbeError: for what cannot be shown.
    """
    check_fields(file, table, TABLE_FIELDS, "a table", needed=("title", "columns"))
    columns = tuple(_read_column(file, column, steps) for column in table["columns"])
    if not columns:
        refuse(file, f"table {table['title']!r}: expected at least one column")
    lengths = tuple(table.get("lengths", ()))
    if lengths and any(column.statistic is None for column in columns):
        refuse(
            file,
            f"table {table['title']!r}: expected statistics where lengths divide the "
            "texts, got a score",
        )
    with_lengths = ("audit", "retrain")
    unmeasured = [c.step for c in columns if lengths and steps[c.step] not in with_lengths]
    if unmeasured:
        refuse(
            file,
            f"table {table['title']!r}: expected {' or '.join(with_lengths)} where lengths "
            f"divide the texts, "
            f"{unmeasured[0]} is {steps[unmeasured[0]]}",
        )
    return Table(table["title"], columns, lengths)


def _read_column(file: str, content: Any, steps: Mapping[str, str]) -> Column:
    check_fields(file, content, COLUMN_FIELDS, "a column", needed=("name", "step"))
    column = Column(**content)
    problem = _problem_of(column, steps)
    if problem is not None:
        refuse(file, f"column {column.name!r}: {problem}")
    return column


def _problem_of(column: Column, steps: Mapping[str, str]) -> str | None:
    """What is wrong with a column, in words; None if nothing is."""
    if column.step not in steps:
        return f"expected a step of {', '.join(steps)}, got {column.step!r}"
    if (column.statistic is None) == (column.score is None):
        return "expected either a statistic or a score"
    verbs = WITH_STATISTICS if column.score is None else WITH_SCORES
    if steps[column.step] not in verbs:
        what = "statistics" if column.score is None else "scores"
        return (
            f"expected a step with {what} ({', '.join(verbs)}), {column.step} is "
            f"{steps[column.step]}"
        )
    if column.score is not None and column.score.count("/") != 2:
        return f"expected a score as test/model/metric, got {column.score!r}"
    if column.statistic is not None:
        for name in column.statistic.split("/"):
            if name.split("@")[0] not in statistics():
                return f"unknown statistic {name!r}"
    if (column.threshold is None) != (column.means is None):
        return "expected threshold and means together"
    return None
