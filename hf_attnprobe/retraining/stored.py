"""A retraining's folder: what it belongs to, and the report in it."""

import dataclasses
from pathlib import Path
from typing import Any

from hf_attnprobe.data.examples import dataset_fingerprint
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.retraining.base import SPLITS, Base, Splits, Trained, shared_settings
from hf_attnprobe.retraining.pages.page import retraining_page
from hf_attnprobe.retraining.report import RetrainingReport, from_json, to_markdown
from hf_attnprobe.retraining.result import TrainedModel, to_json
from hf_attnprobe.storage.folders import write_atomically, write_json
from hf_attnprobe.storage.provenance import SUMMARY, read_summary
from hf_attnprobe.storage.rows import read_rows


KIND = "retraining"  # of run, in the name of the file that marks its folder


def identity_of(base: Base, splits: Splits, seed: int) -> dict[str, Any]:
    """What has to be the same for a folder to be continued."""
    return {
        "model_fingerprint": model_fingerprint(base.model),
        "data_fingerprint": {name: dataset_fingerprint(splits[name]) for name in SPLITS},
        "seed": seed,
        "settings": shared_settings(base.settings),
    }


def as_row(trained: Trained, folder: Path) -> TrainedModel:
    """A trained model as the report in ``folder`` lists it."""
    name = str(trained.folder.relative_to(folder))
    return TrainedModel(name, trained.seconds, trained.n_epochs, dict(trained.metrics))


def write_report(report: RetrainingReport, folder: Path) -> None:
    """Writes the report as JSON, as Markdown and as a page."""
    write_json(folder / SUMMARY, to_json(report))
    write_atomically(folder / "report.md", to_markdown(report))
    write_atomically(folder / "report.html", retraining_page(report))


def read_retraining(folder: str | Path) -> RetrainingReport:
    """The report of a retraining's folder, with its rows."""
    report = read_summary(folder, from_json, kind="a retraining", verb="attnprobe retrain")
    return dataclasses.replace(report, rows=read_rows(Path(folder) / "rows"))
