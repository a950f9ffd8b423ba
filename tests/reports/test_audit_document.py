"""The page of an audit, its machine-readable twin, and the command that shows results again."""

import csv
import dataclasses
import io
import json
import re
import shlex
import time
from pathlib import Path

import jsonschema
import numpy as np
import pandas as pd
import pytest

import report_schema
from hf_attnprobe.audits.options import AuditOptions, load_test_options
from hf_attnprobe.audits.setup import describe_audit_request as asked_for
from hf_attnprobe.cli.commands import build_parser
from hf_attnprobe.cli.flags import parse_test_selection as asked_by_flags
from hf_attnprobe.core.options import SavedModel
from hf_attnprobe.data.specs import Data
from hf_attnprobe.documents import html as pages
from hf_attnprobe.documents.html import ANSWER_SYMBOLS
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.registry import load_readings, resolve_faithfulness_tests
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.reports.audit_document import build_provenance_section
from hf_attnprobe.reports.head_tables import EDIT_COLUMN_TITLES, describe_important_heads
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.reports.result import convert_report_to_json
from hf_attnprobe.reports.verdict import (
    DISPLAY_ADVICE,
    DISPLAY_CAUTIONS,
    MAIN_QUESTION,
    advise_on_display,
    format_conclusion,
)
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.heads import EFFECT_STATISTIC
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import summarize
from hf_attnprobe.statistics.verdicts import RULES, Finding
from hf_attnprobe.storage.provenance import OBJECT_NAME, format_repeat_command
from tests.helpers import tiny_models
from tests.helpers.page_reader import Reader
from tests.helpers.synthetic_rows import make_head_rows


EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def classifier(audited):
    return audited("classifier")


@pytest.fixture(scope="module")
def transformer(audited):
    return audited("heads")


def pages_of(folder):
    report = read_audit(folder)
    page = report.to_html()
    return report, page, Reader(page)


@pytest.fixture(params=["classifier", "transformer"], scope="module")
def shown(request):
    """A report, its page, and what a reader sees of it."""
    return pages_of(request.getfixturevalue(request.param))


def test_every_finding_is_there_once_with_its_question_and_answer(shown):
    report, _, read = shown
    assert len(report.findings) >= 3
    for finding in report.findings:
        assert read.apart.count(finding.explanation) == 1
        rule = RULES[finding.rule]
        assert f"{rule.name}: {rule.question}" in read.apart
        assert rule.source in read.apart
    assert "Does attention explain these predictions?" in read.apart
    assert f'class="answer {str(report.answer).replace(" ", "-")}"' in shown[1]
    assert " ".join(advise_on_display(report.findings)) in read.apart


def test_one_minute_first_then_folded(shown):
    """The first screen, three texts and whether they may be shown; all else on demand."""
    _, page, _ = shown
    first = page[page.index("<main") : page.index('<details class="more"')]
    seen = re.sub(r"<details.*?</details>", "", first, flags=re.S)
    heads = re.findall(r"<h2>(.*?)</h2>", seen)
    assert heads[:2] == ["Three texts", "Advice on showing attention to users"]
    assert seen.count("<article") == 3
    assert len(re.sub("<[^>]+>", " ", seen).split()) < 900


def test_every_number_over_all_texts_is_there(shown):
    report, page, read = shown
    several = len({(s.layer, s.head) for s in report.statistics}) > 1
    seen = set(re.findall(r"-?\d+\.\d+(?:e-?\d+)?", read.apart))
    checked = 0
    for s in report.statistics:
        own = not several or (s.layer, s.head) == (-1, -1)
        is_in_sites = (
            s.statistic in (EFFECT_STATISTIC, *EDIT_COLUMN_TITLES) and s.statistic != "median_tvd"
        )
        if s.n and s.group == "all" and (own or is_in_sites):
            assert f"{s.mean:z.{3 if own else 2}f}" in seen, s
            checked += 1
    assert checked > 20
    if not several:  # in its own row, with interval and n
        for s in [s for s in report.statistics if s.group == "all" and s.n][:10]:
            low, high = s.ci95
            cells = f"<td>{s.mean:z.3f} [{low:z.3f}, {high:z.3f}]</td>"
            row = re.search(
                rf'<tr><th scope="row">{re.escape(s.statistic)}</th><td class="t">all</td>(.*?)</tr>',
                page,
            )
            assert row and row[1].startswith(cells)


def test_the_page_is_small_the_same_every_time_and_knows_no_clock(shown):
    report, page, read = shown
    assert len(page.encode()) < 300_000
    assert report.to_html() == page
    assert str(time.localtime().tm_year) not in read.apart
    assert all(name not in ("img", "iframe", "form") for name, _ in read.elements)
    assert not [a for _, a in read.elements if a.get("src") or a.get("href", "#")[:1] not in "#d"]
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = "texts advice-on-showing-attention-to-users questions audited numbers limits glossary origin"
    assert set(wanted.split()) <= set(ids)
    links = {a["href"][1:] for name, a in read.elements if name == "a" and "href" in a}
    named = " ".join(a.get("aria-labelledby", "") for _, a in read.elements).split()
    assert {*links, *named} <= set(ids)


def test_heads_are_beside_groups(sketched, transformer):
    _, _, read = pages_of(transformer)
    assert "Which heads matter" in read.apart
    assert "all heads together, to which the answers refer; 4 heads one by one" in read.apart
    table = read.apart.partition("All numbers of heads and groups of heads")[2]
    for place in ("all attention", "layer 0", "layer 1", "0.0", "0.1", "1.0", "1.1"):
        assert place in table
    assert "simultaneous" in table


# --- in a browser --------------------------------------------------------------------


EVERYTHING = f"{EVIL} 😀 \u202e[U+0000] " + "word " * 5000


@pytest.mark.parametrize("kind", tiny_models.daily(["classifier", "transformer"], ["transformer"]))
def test_pages_in_a_browser(kind, open_page, request, tmp_path):
    """Silent, alone, no wider than a telephone, a shaded word near its top, nothing serious for axe-core."""
    folder = request.getfixturevalue(kind)
    opened = open_page(folder / "report.html", dark=kind == "transformer", width=400, axe=True)
    assert opened.findings() == []
    assert opened.messages == [] and len(opened.requests) == 1
    assert not opened.is_wider_than_the_screen()
    shaded = opened.page.locator("article.text .tokens [title]").first
    assert shaded.bounding_box()["y"] <= 900


def test_a_long_text_is_whole_and_turns_nothing_around(classifier, open_page, tmp_path):
    report = read_audit(classifier)
    tokens = tuple(EVERYTHING.split())
    scores = {"attention": tuple(1 / len(tokens) for _ in tokens)}
    text = HighlightedText(7, tokens, "a\u202eb", 0.5, "a\u202eb", True, scores, why="\u202e")
    finding = dataclasses.replace(report.findings[0], sentence="a\u202eb")
    spoilt = dataclasses.replace(
        report,
        model="/a/long/path" * 20 + "\u202e",
        dataset=dataclasses.replace(report.dataset, name="\u202edata"),
        examples=(text,),
        findings=(finding, *report.findings[1:]),
        notes=("\u202enote",),
    )
    file = tmp_path / "report.html"
    file.write_text(spoilt.to_html(), encoding="utf-8")
    opened = open_page(file, width=400)
    assert opened.messages == [] and len(opened.requests) == 1
    assert not opened.is_wider_than_the_screen()
    assert opened.page.evaluate("window.alerted") is None
    said = opened.page.evaluate(
        "[...document.querySelectorAll('main, title')].map(e => e.textContent).join()"
    )
    assert "\u202e" not in said and said.count("[U+202E]") >= 6
    attention = opened.page.locator("article.text .ranking").first
    shown = attention.locator(".tokens").all_text_contents()  # the first are seen, others folded
    assert " ".join(shown).count("word") == 5000
    assert EVIL in said and "😀" in said


# --- the machine-readable twin -------------------------------------------------------


def test_the_schema_is_that_of_the_classes():
    assert report_schema.FILE.read_text() == report_schema.render_schema()
    jsonschema.Draft202012Validator.check_schema(report_schema.build_schema())


def test_reports_of_both_kinds_keep_the_schema(shown):
    report, _, read = shown
    check = jsonschema.Draft202012Validator(json.loads(report_schema.FILE.read_text()))
    whole = json.loads(json.dumps(convert_report_to_json(report), allow_nan=False))
    check.validate(whole)
    embedded = json.loads(read.data)
    check.validate(embedded)
    assert embedded["findings"] == whole["findings"]
    assert [s for s in embedded["statistics"] if s not in whole["statistics"]] == []
    for wrong in (
        {"answer": "perhaps"},
        {"n_texts": 0},
        {"statistics": [{}]},
        {"schema_version": "0"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            check.validate(whole | wrong)


# --- what would change the verdict ----------------------------------------------------


VERDICTS = [  # faithfulness, path share
    (Answer.YES, Answer.YES, "yes", "Yes, but with a note"),
    (Answer.PARTLY, Answer.YES, "partly", "Only with a warning"),
    (Answer.NO, Answer.YES, "no", "No."),
    (Answer.YES, Answer.NO, "no", "No."),
    (Answer.CANNOT_SAY, Answer.YES, "cannot say", "Not yet"),
]


@pytest.mark.parametrize(("score", "path", "answer", "start"), VERDICTS)
def test_every_form_says_the_verdict(sketched, classifier, score, path, answer, start):
    """What every form is made of: the sentences and the JSON; and two of the forms."""
    said = {"accuracy": Answer.YES, "faithfulness": score, "path_share": path}
    said["mass"] = Answer.PARTLY
    found = tuple(Finding(k, a, "s. t.", 0.5, (0.4, 0.6), 100) for k, a in said.items())
    report = dataclasses.replace(read_audit(classifier), findings=found)
    assert format_conclusion(found).startswith(f"{MAIN_QUESTION} {answer.capitalize()}. ")
    assert "faithfulness 0.50 [0.40, 0.60]" in format_conclusion(found)
    assert advise_on_display(found)[0].startswith(start)
    told = convert_report_to_json(report)
    assert told["verdict"]["answer"] == told["answer"] == answer
    assert (told["score"]["value"], told["score"]["ci95"]) == (0.5, [0.4, 0.6])
    assert told["score"]["parts"]["mass"]["value"] == 0.5
    assert " ".join(str(report).split()).startswith(f"{MAIN_QUESTION} {answer.capitalize()}. ")
    page = report.to_html()
    assert f'class="answer {answer.replace(" ", "-")}"' in page


def test_every_answer_has_a_symbol_and_a_tone():
    """A comparison and a card show its sentence without what an audit's page has below it."""
    assert set(ANSWER_SYMBOLS) == {str(a) for a in Answer}
    assert len(set(ANSWER_SYMBOLS.values())) == len(ANSWER_SYMBOLS)
    style = (Path(pages.__file__).parent / "page.css").read_text()
    for answer in Answer:
        assert answer == Answer.CANNOT_SAY or f".answer.{answer.replace(' ', '-')}" in style
        assert not re.search(
            "below|above|section", f"{DISPLAY_ADVICE[answer]} {DISPLAY_CAUTIONS[answer]}"
        )


# --- the command that repeats it --------------------------------------------------------


@pytest.mark.slow
def test_the_command_repeats_the_audit(
    sketched, cli, classifier, checkpoint, reviews_folder, tmp_path
):
    page = Reader(read_audit(classifier).to_html()).apart
    repeated = page.partition("How to repeat this audit")[2]
    line = re.search(r"attnprobe audit --model .*?(?= The same command)", repeated)[0]
    asked = shlex.split(line)[1:]
    assert cli(*asked, "--output-dir", tmp_path / "again").code == 0
    again, before = read_audit(tmp_path / "again"), read_audit(classifier)
    for found, expected in (
        (again.statistics, before.statistics),
        (again.findings, before.findings),
    ):
        found, expected = (pd.json_normalize(map(dataclasses.asdict, x)) for x in (found, expected))
        # Numbers to the rounding of rows (float32): kernels need not sum in one order.
        pd.testing.assert_frame_equal(found, expected, rtol=1e-6, atol=1e-7)
    assert again.provenance["asked_for"] == before.provenance["asked_for"]


def test_an_audit_with_a_time_promises_no_equal_numbers(sketched, classifier):
    """Which texts it reaches depends on the machine; each of them has the same numbers."""
    report = read_audit(classifier)
    assert "The same command gives the same numbers" in Reader(report.to_html()).apart
    said = {"stopping": {"limits": {"seconds": 60.0}}}
    text = str(
        build_provenance_section(
            dataclasses.replace(report, provenance={**report.provenance, **said})
        )
    )
    assert "gives the same numbers" not in text
    assert "Each text that it reaches gets the same numbers" in text


def test_heads_are_counted_once(classifier):
    """Heads that were judged and heads that any test reached are two counts."""
    report = read_audit(classifier)
    one = next(s for s in report.statistics if s.statistic == "median_tvd" and s.group == "all")
    screened = [
        dataclasses.replace(one, test="screen", statistic="first_order_uniform", head=k)
        for k in range(3)
    ]
    two = pd.concat([make_head_rows((0, k), 0.3, 0.5) for k in range(2)])
    told = dataclasses.replace(report, statistics=(*screened, one), rows=Rows.coerce(two))
    assert describe_important_heads(told).endswith(" Only 2 of 3 heads were tested one by one.")


def test_only_what_differs_from_the_defaults_is_recorded_and_no_secret():
    model = SavedModel("org/m", revision="v1", token="hf_secret")
    options = AuditOptions(layers=[1], groups=False, batch_size=3)
    tests = {"permutation": Permutation(n_permutations=7)}
    asked = asked_for(model, Data("sst", test_limit=9), tests, options)
    assert asked == {
        "model": "org/m",
        "revision": "v1",
        "dataset": "sst",
        "test_limit": 9,
        "layers": [1],
        "groups": False,
        "tests": {"permutation": {"n_permutations": 7}},
    }
    line = shlex.split(format_repeat_command("audit", {"asked_for": asked}))
    read = vars(build_parser().parse_args(line[1:]))
    given = {name: read[name] for name in asked} | {
        "tests": asked_by_flags(read, load_test_options)
    }
    assert given == asked
    plain = asked_for("m", Data("sst"), resolve_faithfulness_tests(None), AuditOptions())
    assert plain == {"model": "m", "dataset": "sst"}
    in_memory = asked_for(object(), Data([]), resolve_faithfulness_tests("default"), AuditOptions())
    assert in_memory == {"model": OBJECT_NAME, "dataset": OBJECT_NAME}


# --- the command report -----------------------------------------------------------------


def test_every_form_of_an_audit(cli, classifier, tmp_path):
    for ending in ("html", "md", "json", "csv"):
        file = tmp_path / f"report.{ending}"
        done = cli("report", classifier, "--output", file)
        assert (done.code, done.out) == (0, f"report in {file}\n"), done.err
        assert file.stat().st_size > 500
    report = read_audit(classifier)
    done = cli("report", classifier)
    assert (done.code, done.out, done.err) == (0, f"{report}\n", "")
    assert (tmp_path / "report.md").read_text() == (classifier / "report.md").read_text()
    assert json.loads((tmp_path / "report.json").read_text()) == convert_report_to_json(report)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "report.csv").read_text())))
    assert len(lines) == len(report.statistics)
    assert float(lines[0]["mean"]) == pytest.approx(report.statistics[0].mean)
    page = (classifier / "report.html").read_text()  # as the audit has written it
    assert page == (tmp_path / "report.html").read_text() == report.to_html()


@pytest.mark.slow
def test_a_quarter_of_a_million_rows(transformer):
    """Made-up rows of 12 layers of 12 heads; under 5 s and 5 MB."""
    n_texts, names = 130, ["median_tvd", "uniform_tvd", "zero_tvd", "mean_tvd"]
    names += ["attention_leave_one_out_tau", "attention_gradient_tau"]
    names += [f"made_up_{k}" for k in range(6)]
    sites = [(-1, -1), *((layer, -1) for layer in range(12))]
    sites += [(layer, head) for layer in range(12) for head in range(12)]
    keys = [names, range(n_texts), range(len(sites))]
    rows = pd.MultiIndex.from_product(keys, names=["statistic", "example_id", "site"])
    rows = rows.to_frame(index=False)
    layers, heads = np.array(sites, dtype=np.int32).T
    rows["layer"], rows["head"] = layers[rows.site], heads[rows.site]
    rows["value"] = np.random.default_rng(0).random(len(rows)) / 4
    rows = rows.drop(columns="site").assign(test="permutation")
    report = read_audit(transformer)
    own = report.to_pandas()[report.to_pandas().test == "prediction"]
    rows = pd.concat([rows, own], ignore_index=True)
    assert len(rows) > 240_000
    known = load_readings() | {
        "permutation": {**load_readings()["permutation"], **dict.fromkeys(names, "")}
    }
    statistics = summarize(rows, report.provenance["classes"], known)
    large = dataclasses.replace(report, rows=Rows.coerce(rows), statistics=statistics)
    start = time.perf_counter()
    page = large.to_html()
    assert time.perf_counter() - start < 5 and len(page.encode()) < 5_000_000


def test_the_fragment_has_the_verdict_and_is_short(classifier):
    report = read_audit(classifier)
    fragment = report._repr_html_()
    read = Reader(fragment)
    assert len(fragment) < 60_000 and not any(name == "script" for name, _ in read.elements)
    assert str(report.answer) in read.apart
    for finding in report.findings:
        assert finding.rule in read.apart or not finding.is_about_attention
