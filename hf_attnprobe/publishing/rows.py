"""An audit's folder as files of a data set, without folders of this machine."""

import io
import re
from collections.abc import Sequence

import pandas as pd

from hf_attnprobe.auditing.verdict import conclusion_sentence
from hf_attnprobe.cards.names import anonymous, public
from hf_attnprobe.cards.rows import PublishedRows, rows_readme
from hf_attnprobe.publishing.audits import ReadAudit
from hf_attnprobe.statistics.summary import mean_of_draws
from hf_attnprobe.storage.rows import read_draws


BESIDE = ("summary.json", "texts.json", "report.html", "report.md")
SPLITS = ("model", "control")
"""Folders of rows below an audit's, by the name of their split."""


def rows_files(
    audits: Sequence[ReadAudit], repository: str, model: str, license: str | None
) -> dict[str, bytes]:
    """The files of a data set of rows, by path.

    Args:
        repository: the data set's id.
        model: the model's id, which stands where a report names a folder.
    """
    files: dict[str, bytes] = {}
    published = []
    for config, audit in zip(_configs(audits), audits, strict=True):
        own = _own_files(audit, model)
        files |= {f"{config}/{name}": content for name, content in own.items()}
        published.append(
            PublishedRows(
                config=config,
                data=audit.data,
                split=audit.report.dataset.split,
                n=audit.report.n,
                conclusion=conclusion_sentence(audit.report.findings),
                files={s: f"{s}.parquet" for s in SPLITS if f"{s}.parquet" in own},
                beside=tuple(name for name in BESIDE if name in own),
            )
        )
    readme = rows_readme(repository, model, published, license)
    return files | {"README.md": readme.encode()}


def _configs(audits: Sequence[ReadAudit]) -> list[str]:
    """A name for each audit: data and split; numbered where they are not different."""
    names: list[str] = []
    for audit in audits:
        words = f"{public(audit.data.name).replace('/', '-')}-{audit.report.dataset.split}"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.") or "audit"
        number = 2
        free = name
        while free in names:
            free, number = f"{name}-{number}", number + 1
        names.append(free)
    return names


def _own_files(audit: ReadAudit, model: str) -> dict[str, bytes]:
    """Rows as Parquet and the reports, as they may be seen by anybody."""
    files = {}
    for split in SPLITS:
        rows = audit.report.rows if split == "model" else _control(audit)
        if len(rows):
            files[f"{split}.parquet"] = _parquet(rows)
    names = audit.public_names(model)
    for name in BESIDE:
        file = audit.folder / name
        if file.is_file():
            files[name] = anonymous(file.read_text(encoding="utf-8"), names).encode()
    return files


def _control(audit: ReadAudit) -> pd.DataFrame:
    """The control's rows of the audited texts, each the mean over its draws.

    All splits of a data set have the same columns, so no draw can be numbered.
    """
    rows = mean_of_draws(read_draws(audit.folder))
    ids = audit.report.example_ids
    return rows[rows.example_id.isin(ids)] if ids else rows


def _parquet(rows: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    rows.reset_index(drop=True).to_parquet(buffer, index=False)
    return buffer.getvalue()
