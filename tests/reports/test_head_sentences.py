"""Reports of every kind of head: their numbers again in pandas, and their words."""

import random
import re
from functools import partial

import numpy as np
import pytest
import torch
from transformers import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from hf_attnprobe import AttnProbeError, AuditOptions, audit
from hf_attnprobe.documents.markdown import render_markdown_blocks
from hf_attnprobe.documents.terminal_text import MAX_LINE_WIDTH
from hf_attnprobe.reports.head_tables import build_parts_section
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.statistics.summary import Statistic
from tests.helpers import recompute, tiny_models
from tests.reports.test_sentences import check


WORDS = ["the", "a", "film", "is", "very", "good", "bad", "not", "great", "dull", "plot", "who"]
WORDS += ["wrote", "it", "anna", "ben"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DELETION_TESTS = ["correlation", "permutation", "uniform_attention", "input_erasure", "scale"]
TESTS = [*DELETION_TESTS, "exchange", "erasure"]
NOT_OF_NUMBERS = TESTS[:-1]


def pair_tokenizer():
    return tiny_models.word_pieces(WORDS)


def sentences(n):
    generator = random.Random(0)
    lengths = [generator.randint(4, 7) for _ in range(n)]
    return [" ".join(generator.choices(WORDS, k=length)) for length in lengths]


TEXTS = sentences(32)
LABELS = [[j for j in range(3) if (k >> j) % 4 == 0] for k in range(len(TEXTS))]
NUMBERS = [(k * 7 % 32) / 3 for k in range(len(TEXTS))]


def question(text):
    answer = text.split()[1]
    answers = {"text": [answer], "answer_start": [text.index(" ") + 1]}
    return {"question": "who wrote it", "context": text, "answers": answers}


def masked(text):
    words = text.split()
    return {"text": " ".join([*words[:2], "[MASK]", *words[3:]]), "label": words[2]}


def tagged(text):
    return {"tokens": text.split(), "ner_tags": [len(w) % 3 for w in text.split()]}


def choices(k, text):
    others = [TEXTS[(k + step) % len(TEXTS)] for step in (1, 2, 3)]
    return {"text": text, "choices": others, "label": k % 3}


NAMED = {"id2label": {0: "toxic", 1: "rude", 2: "funny"}}
MULTI_LABEL = {"problem_type": "multi_label_classification", **NAMED}
REGRESSION = {"problem_type": "regression", "num_labels": 1}
LABELLED = [{"text": t, "label": y} for t, y in zip(TEXTS, LABELS, strict=True)]
NUMBERED = [{"text": t, "label": y} for t, y in zip(TEXTS, NUMBERS, strict=True)]
KINDS = {
    "labels": (BertForSequenceClassification, MULTI_LABEL, LABELLED),
    "number": (BertForSequenceClassification, REGRESSION, NUMBERED),
    "tags": (BertForTokenClassification, {"num_labels": 3}, [*map(tagged, TEXTS)]),
    "span": (BertForQuestionAnswering, {}, [*map(question, TEXTS)]),
    "choice": (BertForMultipleChoice, {}, [choices(k, text) for k, text in enumerate(TEXTS)]),
    "words": (BertForMaskedLM, {}, [*map(masked, TEXTS)]),
}


def model_of(kind):
    kind, settings, rows = KINDS[kind]
    n_words = len(WORDS) + len(SPECIAL)
    return tiny_models.bert(n_words, kind=kind, layers=1, width=8, spread=0.6, **settings), rows


def run(kind, folder, tests=None, **options):
    model, rows = model_of(kind)
    tests = tests or (NOT_OF_NUMBERS if kind == "number" else TESTS)
    options = AuditOptions(single_heads=False, **options)
    given = {"options": options, "output_dir": folder, "progress": False}
    return audit((model, pair_tokenizer()), rows, tests, **given)


class Reports(dict):
    """By kind its report and the folder of it, made when they are first asked for."""

    def __missing__(self, kind):
        folder = tiny_models.once(kind, partial(run, kind))
        return self.setdefault(kind, (read_audit(folder), folder))


@pytest.fixture(scope="module")
def reports():
    return Reports()


def finding(report, rule):
    (found,) = [f for f in report.findings if f.rule == rule]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_and_answer_follows_from_the_rows(reports, kind):
    check(*reports[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_exchanged_in_models_of_every_kind(reports, kind):
    """A text of every kind has donors, and importance is that of exchanged words."""
    report, folder = reports[kind]
    wide = recompute.pivot_site(recompute.read_rows(folder / "rows"), -1, -1)
    exchanged = wide["exchange_importance@attention"]
    assert exchanged.notna().sum() >= 30
    assert finding(report, "importance").value == pytest.approx(exchanged.mean())
    assert "when they are exchanged" in finding(report, "importance").sentence
    limit = np.inf if kind == "number" else 1
    assert wide["exchange_removal@best"].between(0, limit).all()
    assert (wide["exchange_removal@attention"] <= wide["exchange_removal@best"] + 1e-9).all()
    assert wide["same_word"].between(0, 1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_says_what_is_predicted_and_in_its_own_words(reports, kind):
    report, folder = reports[kind]
    text = re.sub(r"\s+", " ", report.to_text(verbose=True))
    assert report.predicts and report.predicts in text
    assert report.words.meaning in text
    assert report.words.meaning in (folder / "report.md").read_text()
    said = re.sub(r"\s+", " ", report.to_text() + " ".join(f.sentence for f in report.findings))
    said = said.replace("most frequent class", "")
    assert "predicted class" not in said and "{" not in said and "nan" not in said
    if kind == "number":
        assert not re.search("probability|total variation| of 1[ ,.]|0 to 1", said)
        assert "nothing can flip" in text and "standard deviations" in text
    elif kind != "choice":
        assert "mean over" in finding(report, "accuracy").sentence
        assert "means over" in report.words.meaning


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_screen_has_the_answer_and_the_same_numbers_on_few_lines(reports, kind):
    report, _ = reports[kind]
    lines = str(report).splitlines()
    assert max(map(len, lines)) <= MAX_LINE_WIDTH and len(lines) <= 45
    assert lines[2].startswith(f"{report.answer.capitalize()}. ")
    for found in report.findings:
        if found.role in ("score", "part"):
            number = f"{found.value:z.2f} [{found.ci95[0]:z.2f}, {found.ci95[1]:z.2f}]"
            (line,) = [line for line in lines if re.match(rf"\W*{found.rule} ", line)]
            assert number in line
    moved = finding(report, "effect").value
    in_words = f"{moved:.2f} standard deviations" if kind == "number" else f"{moved:.0%}"
    (line,) = [line for line in lines if re.match(r"\W*effect ", line)]
    assert re.search(rf"changes the output by (\d+%, or by )?{in_words}", line)
    share = finding(report, "path_share").value
    (line,) = [line for line in lines if re.match(r"\W*path share ", line)]
    assert f"{share:.0%} of the decision passes through attention" in line
    if kind == "number":
        assert f"R² {finding(report, 'accuracy').value:.2f} on" in str(report)


def test_accuracy_of_labels_is_that_of_the_models_own_forward(reports):
    model, rows = model_of("labels")
    tokenizer = pair_tokenizer()
    with torch.no_grad():
        said = [model(**tokenizer(r["text"], return_tensors="pt")).logits[0] > 0 for r in rows]
    true = np.array([[k in row["label"] for k in range(3)] for row in rows])
    met = np.stack(said) == true
    usual = np.maximum(true.mean(0), 1 - true.mean(0)).mean()
    found = finding(reports["labels"][0], "accuracy")
    assert found.value == pytest.approx(met.mean() - usual)
    assert f"correctly, all of them in {met.all(1).mean():.2f}" in found.sentence


def test_r_squared_is_that_of_the_models_own_forward(reports):
    model, rows = model_of("number")
    tokenizer = pair_tokenizer()
    with torch.no_grad():
        said = [model(**tokenizer(r["text"], return_tensors="pt")).logits.item() for r in rows]
    missed, spread = np.subtract(NUMBERS, said), np.var(NUMBERS)
    found = finding(reports["number"][0], "accuracy")
    assert found.value == pytest.approx(1 - np.mean(missed**2) / spread, rel=1e-4)
    assert f"off by {np.abs(missed).mean():.2f}" in found.sentence


@pytest.mark.parametrize("kind", ["labels", "span"])
def test_changes_by_part_average_to_the_change(reports, kind):
    report, folder = reports[kind]
    wide = recompute.pivot_site(recompute.read_rows(folder / "rows"), -1, -1)
    parts = wide.filter(regex="^uniform_tvd_of@")
    assert list(parts.columns.str.partition("@").get_level_values(2)) == (
        ["funny", "rude", "toxic"] if kind == "labels" else ["end", "start"]
    )
    np.testing.assert_allclose(parts.mean(axis=1), wide.uniform_tvd, atol=1e-6)
    means = wide.filter(regex="^median_tvd_of@").mean()
    lines = report.to_markdown().splitlines()
    for name, mean in means.items():
        (row,) = [line for line in lines if line.startswith(f"| {name.partition('@')[2]} |")]
        assert f"| {mean:.3f} [" in row


def test_a_threshold_gives_a_number_sides(tmp_path):
    middle = float(np.median(NUMBERS))
    report = run("number", tmp_path, ["uniform_attention"], threshold=middle)
    said = finding(report, "accuracy").sentence
    own = recompute.pivot_predictions(recompute.read_rows(tmp_path / "rows"))
    above = own.labelled_value > middle
    right = ((own.value > middle) == above).mean()
    assert f"threshold is right in {right:.2f} [" in said
    assert f"more frequent side is right in {max(above.mean(), 1 - above.mean()):.2f}." in said
    assert f"above {middle:g} or not" in report.to_text(verbose=True)


def test_changes_of_a_number_have_no_limit_and_no_divergence(tmp_path):
    report = run("number", tmp_path, [*DELETION_TESTS, "erasure"], threshold=5.0, scale=0.02)
    rows = recompute.read_rows(tmp_path / "rows")
    wide = recompute.pivot_site(rows, -1, -1)
    assert wide.median_tvd.max() > 1
    assert report.contradictions == ()
    of_single_weights = rows[rows.statistic.str.startswith("delta_js")].value
    assert len(of_single_weights) and of_single_weights.isna().all()
    assert "units of 0.02" in report.words.meaning
    spread = recompute.pivot_predictions(rows).value.std(ddof=0)
    moved = wide.median_tvd.mean() * 0.02 / spread
    assert finding(report, "effect").value == pytest.approx(moved, rel=1e-3)
    lost = wide["removal@attention"].mean()
    standard = f"loses {lost:.2f} standard deviations of the predictions,"
    assert standard in finding(report, "removal").sentence
    exchanged = run("number", tmp_path / "exchanged", TESTS, threshold=5.0, scale=0.02)
    wide = recompute.pivot_site(recompute.read_rows(tmp_path / "exchanged" / "rows"), -1, -1)
    changed = wide["exchange_removal@attention"].mean()
    standard = f"changes the output by {changed:.2f} standard deviations of the predictions,"
    assert standard in finding(exchanged, "removal").sentence
    said = report.to_text() + " ".join(f.sentence for f in report.findings)
    assert "of the labels" not in said and "units of" not in said
    assert "mean over the numbers" not in report.to_markdown()  # there is one


@pytest.mark.parametrize("kind", ["labels", "number", "choice"])
def test_a_model_of_one_head_has_a_report_of_every_kind(kind, tmp_path):
    model, rows = model_of(kind)
    options = AuditOptions(layers=[0], heads=[0], groups=False)
    given = {"options": options, "output_dir": tmp_path, "progress": False}
    report = audit((model, pair_tokenizer()), rows, ["permutation"], **given)
    text = (tmp_path / "report.md").read_text()
    assert report.predicts in text
    assert ("| toxic |" in text or "median_tvd_of@toxic" in text) == (kind == "labels")
    (line,) = [s for s in text.splitlines() if s.startswith("- median_tvd: ")]
    unit = "standard deviations of the labels" if kind == "number" else "of 1"
    assert line.endswith(f" {unit}.")


SPREAD = {"median": 0.5, "std": 0, "undefined": 0}


def test_no_more_than_twenty_parts_are_shown():
    names = [f"median_tvd_of@label {k}" for k in range(30)]
    many = [
        Statistic("permutation", name, -1, -1, "all", value=0.5, ci95=(0.4, 0.6), n=40, **SPREAD)
        for name in names
    ]
    rows = [
        line
        for line in render_markdown_blocks([build_parts_section(many)])[0].splitlines()
        if line.startswith("| label")
    ]
    assert len(rows) == 20
    assert (
        "summary.json has 10 more"
        in render_markdown_blocks([build_parts_section(many)])[0].splitlines()[-1]
    )


def test_a_single_logit_is_a_probability_only_of_labels_0_and_1():
    model, rows = model_of("number")
    model.config.problem_type = None
    pair = model, pair_tokenizer()
    with pytest.raises(AttnProbeError, match=r"0 or 1.*--predicts number"):
        audit(pair, rows, ["permutation"], progress=False)
    sides = [{"text": row["text"], "label": row["label"] > 5} for row in rows]
    for kind in (int, float):
        given = [row | {"label": kind(row["label"])} for row in sides]
        report = audit(pair, given, ["uniform_attention"], progress=False)
        assert any("log-odds of a probability" in note for note in report.notes)
        with torch.no_grad():
            logits = [model(**pair[1](r["text"], return_tensors="pt")).logits.item() for r in rows]
        right = np.mean([(x > 0) == r["label"] for x, r in zip(logits, sides, strict=True)])
        assert f"right in {right:.2f} [" in finding(report, "accuracy").sentence
