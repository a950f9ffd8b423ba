"""Scores that somebody else gave, from files and objects, judged beside attention and chance."""

import json
import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from hf_attnprobe import Answers, AttnProbeError, AuditOptions, evaluate_scores, load_examples
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.audits.user_scores import UserScores, attach_scores, read_scores
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.reports.ci_gate import list_failures, parse_conditions
from hf_attnprobe.reports.report import read_audit
from hf_attnprobe.reports.result import convert_report_to_json
from hf_attnprobe.statistics.estimates import Estimate
from tests.faithfulness import test_plausibility
from tests.helpers import planted_models, planted_retrieval, tiny_language_models, tiny_models
from tests.helpers.error_messages import refused, refuses


pieces = test_plausibility.pieces
ALONE = AuditOptions()


@pytest.fixture(scope="module")
def drawn():
    return planted_models.draw_planted_model(3, 60)


def probs_of(drawn, ids):
    """Probabilities of the model itself, [copies, classes]."""
    tokenizer = drawn.tokenizer
    ends = torch.tensor([tokenizer.bos_token_id, tokenizer.eos_token_id])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs["special_tokens_mask"] = torch.isin(ids, ends).long()
    batch = drawn.adapter.prepare(inputs, tuple(range(len(ids))))
    return drawn.adapter.observe(batch).probs


def left_out(drawn):
    """What the predicted class loses without each word, a text and a word at a time."""
    scores = {}
    for k, text in enumerate(drawn.texts):
        ids = torch.tensor([drawn.tokenizer(text)["input_ids"]])
        whole = probs_of(drawn, ids)
        shorter = [torch.cat([ids[:, :n], ids[:, n + 1 :]], 1) for n in range(1, ids.shape[1] - 1)]
        said = int(whole.argmax())
        scores[k] = [float(whole[0, said] - probs_of(drawn, one)[0, said]) for one in shorter]
    return scores


def noise(drawn, seed=0):
    generator = np.random.default_rng(seed)
    return {k: generator.random(len(text.split())).tolist() for k, text in enumerate(drawn.texts)}


def judged(drawn, scores, tests=None, **settings):
    settings = {"options": ALONE, "progress": False} | settings
    return evaluate_scores(
        drawn.adapter, drawn.rows, scores, tests, tokenizer=drawn.tokenizer, **settings
    )


def beside(report, statistic, second, method="permutation"):
    (found,) = [
        c
        for c in report.comparisons
        if (c.statistic, c.first, c.second, c.method) == (statistic, "given", second, method)
        and c.test in ("shapley", "erasure")
    ]
    return found


# --- planted evidence -------------------------------------------------------------------------


def test_what_is_planted_is_best_and_better_than_attention(drawn):
    report = judged(drawn, drawn.planted)
    for other in ("given_moved", "attention", "random"):
        found = beside(report, "shapley_agreement", other)
        assert found.value > 0 and found.adjusted_p_value < 0.01
        assert beside(report, "fraction_to_flip", other).value < 0
    means = {s.statistic: s.mean for s in report.statistics if s.test == "shapley"}
    best = max(v for name, v in means.items() if name.startswith("shapley_agreement@"))
    assert means["shapley_agreement@given"] >= best - 0.02
    text = report.to_markdown()
    assert "user-provided scores" in text and " better" in text and "given_moved" in text
    # The faithfulness of the scores, which are known to be right, comes first.
    rankings = convert_report_to_json(report)["rankings"]
    given, moved = rankings["given"], rankings["given_moved"]
    assert given["ci95"][0] > max(moved["ci95"][1], rankings["attention"]["ci95"][1], 0.5)
    assert moved["ci95"][0] < 0.1
    interval = Estimate(**given).interval_text
    words = " ".join(str(report).split())
    assert words.startswith(
        f"Do these scores explain the predictions? Yes. Your scores: {interval}"
    )
    assert re.search(r", above attention \(0\.\d\d \[.*?\]\) and chance \(", words)
    # The test of the path share did not run, which matters for attention only.
    assert report.answer == "yes" and report.attention_answer == "cannot say"
    assert report.score.value == rankings["given"]["value"]
    assert list_failures(report, parse_conditions(["faithfulness<.5", "no"])) == []
    verdict = convert_report_to_json(report)["verdict"]
    assert verdict["question"] == "Do these scores explain the predictions?"
    assert "uniform_attention" not in report.to_text()
    assert "These questions are about the model and its attention" in text


def test_noise_is_judged_at_chance(drawn):
    report = judged(drawn, noise(drawn))
    for statistic in ("shapley_agreement", "fraction_to_flip"):
        found = beside(report, statistic, "given_moved")
        assert found.ci95[0] < 0 < found.ci95[1] and found.adjusted_p_value > 0.05
    assert "] cannot say" in report.to_markdown()
    assert report.answer == "no"
    assert "and not clearly different from chance" in " ".join(str(report).split())


def test_all_heads_of_a_transformer_are_the_attention_beside_it(drawn):
    model = wrap(tiny_models.bert(drawn.tokenizer, spread=0.5))
    texts = replace(drawn, adapter=model, texts=drawn.texts[:30], labels=drawn.labels[:30])
    report = judged(texts, left_out(texts), {"shapley": {"exact_units": 6, "longer": "phrases"}})
    assert {(s.layer, s.head) for s in report.statistics if s.test == "shapley"} == {(-1, -1)}
    assert beside(report, "shapley_agreement", "given_moved").ci95[0] > 0
    assert "mean_attention" in {c.second for c in report.comparisons}
    # The model was not trained.
    assert "The model is not shown to be better than guessing" in report.to_markdown()
    options = AuditOptions(heads=["all"], shown_texts=0)
    tests = {"shapley": {"exact_units": 6, "longer": "phrases"}}
    named = replace(texts, texts=texts.texts[:3], labels=texts.labels[:3])
    report = judged(named, left_out(named), tests, options=options)
    assert {(s.layer, s.head) for s in report.statistics} > {(-1, -1), (0, 0), (1, 1)}


# --- words of several pieces ------------------------------------------------------------------


SAID = "The plot, was hopeless"  # [CLS] the plot , was hope ##less [SEP]
WORDS = [(0, 3), (4, 8), (8, 9), (10, 13), (14, 22)]


def at_words(pieces, scores):
    """The scores of the words of a Transformer, in order."""
    adapter = wrap(tiny_models.bert(pieces, spread=0.5))
    texts = tokenize(pieces, load_examples([{"text": SAID, "label": 0}], "test"), adapter).texts
    (text,) = attach_scores(texts, {0: scores}, adapter, pieces, {0: SAID})
    batch = collate(adapter, [text], pieces.pad_token_id)
    return batch.scores[batch.content_mask].tolist()


def test_pieces_of_a_word_are_added_up(pieces):
    every = UserScores([9, 1, 2, 3, 4, 5, 6, 9])
    tokens = ["[CLS]", "The", "plot", ",", "was", "hope", "less", "[SEP]"]
    expected = [1.0, 2.0, 3.0, 4.0, 11.0]
    assert at_words(pieces, every) == at_words(pieces, replace(every, tokens=tokens)) == expected
    assert at_words(pieces, UserScores([1, 2, 3, 4, 5, 6])) == expected
    words = UserScores([1, 2, 3, 4, 11], tokens=["the", "plot", ",", "was", "hopeless"])
    assert at_words(pieces, words) == at_words(pieces, UserScores(words.values, WORDS)) == expected
    split = UserScores([1, 2, 3, 4, 5, 6], [*WORDS[:4], (14, 18), (18, 22)])
    assert at_words(pieces, split) == expected
    both = UserScores([1, 2.5, 4, 11], [WORDS[0], (3, 9), *WORDS[3:]])
    assert at_words(pieces, both) == [1.0, 2.5, 2.5, 4.0, 11.0]
    with pytest.raises(AttnProbeError, match=r"token 'hope##less', got 'hopeful'"):
        at_words(pieces, replace(words, tokens=[*words.tokens[:-1], "hopeful"]))
    refused(
        "expected 5 or 6 or 8 scores (one per unit or one per token), got 4",
        at_words,
        pieces,
        UserScores([1, 2, 3, 4]),
    )


# --- files ------------------------------------------------------------------------------------


def long_rows(drawn, scores, **columns):
    rows = [
        {"id": k, "unit": place, "score": value}
        for k, values in scores.items()
        for place, value in enumerate(values)
    ]
    return pd.DataFrame(rows).assign(**columns)


def spans_of(text):
    start, found = 0, []
    for word in text.split():
        start = text.index(word, start)
        found.append((start, start + len(word)))
        start += len(word)
    return found


def given(report):
    rows = report.to_pandas()
    rows = rows[rows.statistic == "shapley_agreement@given"]
    return rows.set_index("example_id").value.sort_index()


FAST = {"shapley": {"exact_units": 5, "longer": "phrases"}}


def test_every_form_of_a_file_is_the_same_ranking(drawn, tmp_path):
    drawn = replace(drawn, texts=drawn.texts[:8], labels=drawn.labels[:8])
    scores = noise(drawn)
    expected = given(judged(drawn, scores, FAST))
    shuffled = long_rows(drawn, scores).sample(frac=1, random_state=0)
    shuffled.to_parquet(tmp_path / "units.parquet")
    lists = pd.DataFrame({"id": [*scores], "score": [*scores.values()]})
    lists["token"] = [text.split() for text in drawn.texts]
    lists.to_json(tmp_path / "lists.jsonl", orient="records", lines=True)
    whole = {k: [0.0, *values, 0.0] for k, values in scores.items()}
    with_special = len(drawn.tokenizer(drawn.texts[0])["input_ids"]) > len(scores[0])
    spans = [
        {"id": k, "start": start, "end": end, "score": value}
        for k, text in enumerate(drawn.texts)
        for (start, end), value in zip(spans_of(text), scores[k], strict=True)
    ]
    pd.DataFrame(spans).to_parquet(tmp_path / "spans.parquet")
    forms = ["units.parquet", "lists.jsonl", "spans.parquet"]
    for form in [*(tmp_path / name for name in forms), *([whole] if with_special else [])]:
        pd.testing.assert_series_equal(given(judged(drawn, form, FAST)), expected)


def test_spans_inside_a_unit_are_added_up_and_those_around_it_are_its_own(drawn):
    drawn = replace(drawn, texts=drawn.texts[:4], labels=drawn.labels[:4])
    scores = noise(drawn)
    halves = {}
    for k, text in enumerate(drawn.texts):
        spans, values = [], []
        for (start, end), value in zip(spans_of(text), scores[k], strict=True):
            spans += [(start, start + 1), (start + 1, end)]
            values += [0.25 * value, 0.75 * value]
        halves[k] = UserScores(values, spans)
    pd.testing.assert_series_equal(
        given(judged(drawn, halves, FAST)), given(judged(drawn, scores, FAST))
    )


def test_the_folder_is_of_these_scores(drawn, tmp_path, cli):
    judged(drawn, drawn.planted, ["erasure"], output_dir=tmp_path)
    again = read_audit(tmp_path)
    assert "user-provided scores" in again.to_markdown()
    words = " ".join(str(again).split())
    assert "was not measured. It needs the tests scale, erasure and exchange" in words
    assert "Run the audit again with --tests erasure scale exchange." in words
    assert "--scores" not in again.to_text() and "attnprobe evaluate-scores" in again.to_markdown()
    refused(
        "different settings: scores fingerprint",
        judged,
        drawn,
        noise(drawn),
        ["erasure"],
        output_dir=tmp_path,
    )


def test_the_command_judges_a_file(checkpoint, reviews, reviews_folder, tmp_path, cli):
    texts = reviews["test"]
    rows = [
        {"id": k, "score": [float(len(word)) for word in text.split()]}
        for k, text in zip(texts["example_id"], texts["text"], strict=True)
    ]
    file = tmp_path / "scores.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    words = [
        "evaluate-scores",
        "--model",
        checkpoint,
        "--dataset",
        reviews_folder,
        "--scores",
        file,
    ]
    flags = ["--test-limit", "5", "--tests", "erasure", "--json"]
    done = cli(*words, *flags)
    assert done.code == 0, done.err
    said = json.loads(done.out)
    assert said["provenance"]["asked_for"]["scores"] == str(file)
    assert {c["first"] for c in said["comparisons"]} >= {"given"}
    done = cli(*words, *flags, "--fail-on", "cannot-say", "faithfulness<.5")
    assert done.code == 3, done.err
    assert "the answer is cannot say; faithfulness was not measured" in done.err
    done = cli(*words, *flags, "--fail-on", "path_share<.1")
    assert done.code == 2 and "The scores are accuracy, faithfulness, importance," in done.err


# --- what does not fit ------------------------------------------------------------------------


def longer(k, values, text):
    return UserScores([*values, 1.0, 1.0, 1.0])


def not_a_number(k, values, text):
    return UserScores([*values[:-1], float("nan")])


def other_tokens(k, values, text):
    return UserScores(values, tokens=[*text.split()[:-1], "other"])


def cut_spans(k, values, text):
    (start, end), *_ = spans_of(text)
    return UserScores([1.0], [(start + 1, end + 2)])


def no_span(k, values, text):
    return UserScores([1.0], [spans_of(text)[0]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (longer, r"scores of text 7: expected \d+.* scores \(one per .*, got \d+$"),
        (not_a_number, r"scores of text 7: expected finite numbers, got nan at position \d+$"),
        (other_tokens, r"scores of text 7: expected the token '\w+', got 'other'$"),
        (
            cut_spans,
            r"scores of text 7: the span from 1 to \d+ covers only a part of the unit '\w+'",
        ),
        (
            no_span,
            r"scores of text 7: expected a span for every unit, got none for '\w+' \(characters",
        ),
        (lambda *_: None, "1 of 60 texts have no scores, such as text 7. "),
    ],
)
def test_what_does_not_fit_is_said_in_a_line_with_the_text(drawn, change, message):
    scores = noise(drawn)
    changed = change(7, scores.pop(7), drawn.texts[7])
    given = scores if changed is None else {**scores, 7: changed}
    with refuses(message):
        judged(drawn, given)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("scores.txt", "id,score", r"expected a score file \(\.csv"),
        ("scores.jsonl", "{", "cannot read the scores"),
        ("scores.jsonl", "null", "but starts with 'n'"),
        ("scores.parquet", "no", "cannot read the scores"),
        ("scores.csv", "id,value\n0,1", "expected the columns 'id' and 'score'"),
        (
            "scores.jsonl",
            '{"id": 4, "unit": 1, "score": 1}',
            "text 4: expected the numbers 0, 1, 2, … in the column 'unit'",
        ),
        ("scores.jsonl", '{"id": 4, "unit": [0, 1.5], "score": [1, 2]}', "a whole number"),
        ("scores.jsonl", '{"id": "a", "score": [1]}', "row 0 .* id: expected a whole number"),
        ("scores.jsonl", '{"id": 0.5, "score": [1]}', "row 0 .* id: expected a whole number"),
        ("scores.jsonl", '{"id": 4, "score": "a"}', "row 0 .* score: expected a number or"),
        ("scores.jsonl", '{"id": 4, "score": 1}', "59 of 60 texts have no scores"),
        (
            "scores.jsonl",
            '{"id": 4, "score": [1, 2], "token": ["a"]}',
            "expected 2 values in the column 'token', one for each score, got 1",
        ),
        ("scores.jsonl", '{"id": 4, "score": 1, "start": "a", "end": 2}', "expected a whole num"),
        (
            "scores.jsonl",
            '{"id": 4, "score": 1, "start": null, "end": 2}\n'
            '{"id": 4, "score": 1, "start": 3, "end": 4}',
            "text 4: expected 2 values in the column 'start', one for each score, got 1",
        ),
        ("scores.jsonl", "", "is empty"),
        ("scores.jsonl", '{"id": 4, "score": [], "start": [0, 1]}', "text 4: expected numbers"),
    ],
)
def test_a_file_that_is_none_is_said(drawn, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(AttnProbeError, match=message):
        judged(drawn, tmp_path / name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({5: [1.0, 2.0j]}, "expected a list of numbers"),
        ({5: torch.tensor([1.0, 2.0j])}, "expected a list of numbers"),
        ({0.5: [1.0]}, "expected a whole number as the text id of scores"),
        ({"a": [1.0]}, "expected a whole number as the text id of scores"),
        ({5: 3.0}, "expected one score per token"),
        ({5: "abc"}, "expected a list of numbers"),
        ({5: [None, None]}, "expected a list of numbers"),
        ({5: [[1.0], [1.0, 2.0]]}, "nested lists of different lengths"),
        ([np.ones((4, 2))], "text 5: expected one score per token, got an array of 4 × 2 scores"),
        (7, "expected a score file"),
        ([[1.0], [2.0]], "expected scores for 1 text, but got scores for 2"),
    ],
    ids=str,
)
def test_objects_that_hold_no_scores_are_refused(given, message):
    with refuses(message):
        read_scores(given, [5])


def test_scores_are_read_by_id_or_in_order_and_in_any_precision():
    values, arrays = [0.5, -1.0], (np.array([0.5, -1]), torch.tensor([0.5, -1]).bfloat16())
    for given in ({5: values}, {"5": values}, [values], *({5: array} for array in arrays)):
        assert [*read_scores(given, [5])[5].values] == values


def test_tokens_and_spans_are_as_many_as_scores():
    for spans, tokens, said in (
        (None, ["a", "b", "c"], "expected 2 tokens, one for each score"),
        (None, [], "expected 2 tokens, one for each score"),
        ([(0, 1)], None, "expected 2 spans, one for each score"),
    ):
        with refuses(said):
            UserScores([1, 2], spans, tokens)


# --- libraries --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "tokens"),
    [
        ("word_attributions", "raw_input_ids"),
        ("attributions", "elements"),
        ("source_attributions", "source"),
        ("values", "data"),
    ],
)
def test_objects_are_read_by_what_they_hold(scores, tokens):
    one = SimpleNamespace(**{scores: torch.tensor([[0.5], [2.0]]), tokens: ["a", "b"]})
    found = read_scores([one], [4])[4]
    assert found.values == [0.5, 2.0] and found.tokens == ["a", "b"]


def test_shap_comes_back_as_it_went(drawn):
    shap = pytest.importorskip("shap")
    texts = [*drawn.texts[:3]]
    some = replace(drawn, texts=texts, labels=drawn.labels[:3])

    def predict(strings):
        found = []
        for string in strings:
            ids = torch.tensor([drawn.tokenizer(str(string))["input_ids"]])
            found.append(probs_of(drawn, ids)[0, 1].item())
        return np.array(found)

    explainer = shap.Explainer(predict, shap.maskers.Text(drawn.tokenizer), seed=0)
    explanation = explainer(texts, max_evals=200, silent=True)
    found = read_scores(explanation, [0, 1, 2])
    np.testing.assert_allclose(found[1].values, explanation.values[1])
    report = judged(some, explanation, {**FAST, "erasure": {}}, options=replace(ALONE, target=1))
    assert not given(report).isna().all()


def test_captum_comes_back_as_it_went(drawn):
    pytest.importorskip("captum")
    from captum.attr import FeatureAblation
    from captum.attr import visualization as shown

    some = replace(drawn, texts=drawn.texts[:3], labels=drawn.labels[:3])
    records = []
    for text in some.texts:
        ids = torch.tensor([drawn.tokenizer(text)["input_ids"]])

        scores = FeatureAblation(partial(probs_of, drawn)).attribute(ids, target=0)[0]
        tokens = drawn.tokenizer.convert_ids_to_tokens(ids[0])
        records.append(shown.VisualizationDataRecord(scores, 0, 0, 0, 0, 0, tokens, 0))
    found = read_scores(records, [0, 1, 2])
    assert len(found[2].values) == len(found[2].tokens)
    report = judged(some, records, FAST, options=replace(ALONE, target=0))
    assert not given(report).isna().all()


# --- language models ------------------------------------------------------------------------------


def answered_by(scores, **settings):
    words = tiny_language_models.tokenizer(chat=False)
    data = Answers(tiny_language_models.ROWS, units="sentence")
    settings = {"options": ALONE, "progress": False} | settings
    return evaluate_scores(
        tiny_language_models.llama(words), data, scores, tokenizer=words, **settings
    )


def of_texts(report, statistic):
    rows = report.to_pandas()
    return rows[rows.statistic == statistic].groupby("example_id").value.first()


def test_the_effects_of_deletion_are_judged_best_of_a_language_model():
    """Each unit's effect is asked for by a score of 1 there, and all are then given."""
    n_units = {0: 4, 1: 3}
    effects = {k: [] for k in n_units}
    for place in range(4):
        hot = {k: [float(place % n == unit) for unit in range(n)] for k, n in n_units.items()}
        drops = of_texts(answered_by(hot), "drop@given")
        for k, n in n_units.items():
            if place < n:
                effects[k].append(drops[k])
    report = answered_by(effects)
    for k in (0, 1):
        assert of_texts(report, "drop@given")[k] == pytest.approx(max(effects[k]))
    pd.testing.assert_series_equal(of_texts(report, "drop@given"), of_texts(report, "drop@best"))
    assert set(of_texts(report, "source_found@given")) == {1.0}
    assert any(
        (c.test, c.first, c.second) == ("sources", "given", "attention") for c in report.comparisons
    )


def test_the_faithfulness_of_scores_is_stated_for_a_language_model():
    """The scores are 1 for the word that answers the question, by construction of the prompts."""
    words = planted_retrieval.build_tokenizer()
    rows = planted_retrieval.draw_prompts(12)
    scores = [
        [float(word.startswith(f"k{row['question'][1:]}v")) for word in row["context"].split()]
        for row in rows
    ]
    data = Answers(rows, units="word", template=planted_retrieval.TEMPLATE, max_new_tokens=1)
    model = planted_retrieval.build_model(words)
    report = evaluate_scores(model, data, scores, tokenizer=words, progress=False)
    rankings = convert_report_to_json(report)["rankings"]
    assert rankings["given"]["value"] > 0.9 > rankings["attention"]["value"]
    assert report.answer == "yes"
    assert str(report).startswith("Do these scores explain the predictions?\n\nYes. Your scores: ")
    assert of_texts(report, "source_found@given").eq(1).all()


def test_scores_of_a_language_models_tokens_are_added_up_by_unit():
    words = tiny_language_models.tokenizer(chat=False)
    data = Answers(tiny_language_models.ROWS, units="sentence")
    job = prepare_audit(
        AuditRequest(tiny_language_models.llama(words), data, ["sources"], ALONE, words)
    )
    numbers = np.random.default_rng(0)
    by_token = {t.example_id: numbers.random(t.n_tokens).tolist() for t in job.tokenized.texts}
    by_unit, inside = {}, {}
    for text in job.tokenized.texts:
        units = np.array(text.inputs["unit_ids"])
        inside[text.example_id] = np.array(by_token[text.example_id])[units >= 0].tolist()
        tokens = np.array(by_token[text.example_id])
        by_unit[text.example_id] = [tokens[units == k].sum() for k in range(units.max() + 1)]
    one, *others = (of_texts(answered_by(s), "drop@given") for s in (by_token, by_unit, inside))
    for other in others:
        pd.testing.assert_series_equal(one, other)


def test_scores_of_quoted_words_are_those_of_their_units(tmp_path):
    """ContextCite's table in its order, a reader's clicks, and citations of a part of a sentence."""
    sentences = tiny_language_models.ROWS[1]["context"].split(". ")
    passages = [tiny_language_models.PASSAGE, *sentences]
    by_unit = answered_by({0: [2.0] * 4, 1: [0.0, -1.0, 3.0]})
    table = pd.DataFrame({"Score": [3.0, 0.0, -1.0], "Source": [sentences[k] for k in (2, 0, 1)]})
    whole = pd.DataFrame({"Score": [2.0], "Source": [passages[0]]})
    file = tmp_path / "cited.jsonl"
    cited = [
        {"id": 0, "score": [2.0], "source": [passages[0]]},
        {"id": 1, "score": [3.0, -1.0], "source": ["is most", sentences[1]]},
    ]
    file.write_text("\n".join(map(json.dumps, cited)))
    for scores in ([whole, table], [whole.style, table.style.format(precision=3)], file):
        report = answered_by(scores)
        for statistic in ("drop@given", "source_found@given"):
            found, expected = (of_texts(one, statistic) for one in (report, by_unit))
            pd.testing.assert_series_equal(found, expected)
    printed = report.to_text()
    assert "user-provided scores" in printed and "sources:" in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_scores_that_do_not_fit_a_passage_are_said_in_a_line():
    for scores, says in (
        ({0: [1.0, 2.0], 1: [1.0] * 3}, "scores of text 0: expected 4 or .*, got 2"),
        ({0: [1.0] * 4, 1: [1.0, float("nan"), 2.0]}, "scores of text 1: expected finite numbers"),
        (
            {0: [1.0] * 4, 7: [1.0] * 3},
            "1 of 2 texts have no scores, such as text 1",
        ),
        ({k: UserScores([1.0], [(0, 1)]) for k in (0, 1)}, "Provide one score per unit"),
        (
            {k: UserScores([1.0], sources=["Nobody."]) for k in (0, 1)},
            "scores of text 0: the quotation 'Nobody.' does not occur in the passage",
        ),
        (
            {k: UserScores([1.0], sources=[" "]) for k in (0, 1)},
            "the quotation '' does not occur in the passage",
        ),
    ):
        with pytest.raises(AttnProbeError, match=says):
            answered_by(scores)
