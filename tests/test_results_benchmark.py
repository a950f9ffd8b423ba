"""All results again: the parts, and the tables that are made of their audits."""

import re
from pathlib import Path

import pytest

from hf_attnprobe import audit
from hf_attnprobe.reports.report import Report
from tests.helpers import tiny_models


ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/results.md").read_text(encoding="utf-8")
OLD = "<!-- table: sst -->\nwhat stood here\n<!-- end -->\nand text"


@pytest.fixture
def results(monkeypatch):
    """The modules of benchmarks/ that make the results."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results
    import results_tables

    return results, results_tables


@pytest.fixture(scope="module")
def audits(make_checkpoint, reviews_folder):
    """A folder with the audit of one model, named as a part would name it."""

    def make(folder):
        tests = ["scale", "erasure", "permutation"]
        place = folder / "audit-none-sst"
        given = {"output_dir": place, "progress": False}
        audit(make_checkpoint("none"), str(reviews_folder), tests, **given)

    return tiny_models.once("audits", make)


def test_every_model_of_a_table_is_audited_by_a_part(results):
    steps, tables = results
    names = [part.name for part in steps.parts()]
    assert len(set(names)) == len(names)
    shown = {*tables.SST, *tables.OTHERS}
    assert {f"audit-{model}" for model in shown} <= {*names}
    assert {*steps.CARDS} <= {*names}
    assert {place.parent.name for place in ROOT.glob("model_cards/*/README.md")} == {*steps.CARDS}


def test_every_table_of_the_page_is_known_and_has_rows(results):
    _, tables = results
    places = tables.PLACE.findall(PAGE)
    assert [name for _, name, _ in places] == list(tables.TABLES)
    of_models = re.findall(r"^\| ([a-z0-9-]+) \| \d+ \|", PAGE, flags=re.MULTILINE)
    assert of_models == [*tables.SST, *tables.OTHERS]


def test_a_table_says_what_the_audit_says_and_stays(results, audits):
    _, tables = results
    report = Report.load(audits / "audit-none-sst")
    page = tables.filled(OLD, audits)
    assert "what stood here" not in page and page.endswith("and text")
    (row,) = [line for line in page.splitlines() if line.startswith("| none-sst |")]
    assert f"**{report.score.value:.2f} [" in row and f"**{report.answer}**" in row
    assert tables.filled(page, audits) == page


def test_finished_parts_are_skipped_and_those_made_again_are_not(results, tmp_path):
    steps, _ = results
    made = []
    wanted = [steps.Part(name, 1.0, lambda n=name: made.append(n)) for name in ("a", "audit-a")]
    file = tmp_path / "minutes.json"
    steps.make_all(wanted[:1], file)
    steps.make_all(wanted, file)
    assert made == ["a", "audit-a"] and steps.minutes_taken(file).keys() == {"a", "audit-a"}
    said = list(steps.listed(wanted, {"a": 2.0}))
    assert said[0].split() == ["a", "2.0", "min", "done"] and "3.0 min" in said[-1]
