"""Fields of a study file by name and kind, and its tables; what is wrong is refused with the name of the file."""

from collections.abc import Collection, Mapping, Sequence
from typing import NoReturn

from hf_attnprobe import faithfulness
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import describe, fits
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
STATISTICS = {
    name
    for readings in (faithfulness.readings(), registry.READINGS)
    for names in readings.values()
    for name in names
} | {"accuracy"}


def refuse(file: str, message: str, step: str | None = None) -> NoReturn:
    """An error that says where."""
    where = file if step is None else f"{file}, step {step}"
    raise AttnProbeError(f"{where}: {message}")


def check_fields(
    file: str,
    content,
    fields: Mapping,
    what: str,
    *,
    needed: Sequence[str] = (),
    step: str | None = None,
) -> None:
    """``content`` has to be a mapping with the ``fields`` of their kinds and no others."""
    if not isinstance(content, dict):
        refuse(file, f"expected {what} to be names with values, got {content!r}", step)
    unknown = [str(name) for name in content if name not in fields]
    missing = [name for name in needed if name not in content]
    if unknown or missing:
        got = f"got {unknown[0]!r}" if unknown else f"{missing[0]} is missing"
        refuse(file, f"expected {what} to have {', '.join(fields)}; {got}", step)
    for name, value in content.items():
        if not fits(value, fields[name]):
            kinds = {dict: "names with values", list: "a list"}
            wanted = kinds.get(fields[name]) or describe(fields[name])
            refuse(file, f"expected {wanted} for {name}, got {value!r}", step)


def read_table(file: str, table, steps: Collection[str]) -> Table:
    """A table of the file, whose columns are about ``steps``."""
    check_fields(file, table, TABLE_FIELDS, "a table", needed=("title", "columns"))
    columns = tuple(_read_column(file, column, steps) for column in table["columns"])
    if table.get("lengths") and any(c.statistic is None for c in columns):
        refuse(
            file,
            f"table {table['title']!r}: expected statistics where lengths divide the texts, got a score",
        )
    return Table(table["title"], columns, tuple(table.get("lengths", ())))


def _read_column(file: str, column, steps: Collection[str]) -> Column:
    check_fields(file, column, COLUMN_FIELDS, "a column", needed=("name", "step"))
    found = Column(**column)
    where = f"column {found.name!r}"
    if found.step not in steps:
        refuse(
            file, f"{where}: expected a step of {', '.join(steps)}, got {found.step!r}"
        )
    if (found.statistic is None) == (found.score is None):
        refuse(file, f"{where}: expected either a statistic or a score")
    if found.score is not None and found.score.count("/") != 2:
        refuse(
            file, f"{where}: expected a score as test/model/metric, got {found.score!r}"
        )
    unknown = [
        name
        for name in (found.statistic or "accuracy").split("/")
        if name.split("@")[0] not in STATISTICS
    ]
    if unknown:
        refuse(file, f"{where}: unknown statistic {unknown[0]!r}")
    if (found.threshold is None) != (found.means is None):
        refuse(file, f"{where}: expected threshold and means together")
    return found
