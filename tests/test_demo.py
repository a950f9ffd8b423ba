import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset

import zoo
from hf_attnprobe import build_tokenizer
from hf_attnprobe.demonstration import (
    DemoOptions,
    _rationale_mask,
    demo,
    rationale_line,
    rationale_scores,
    rationale_sentences,
)
from hf_attnprobe.faithfulness.registry import readings
from hf_attnprobe.statistics.checks import contradictions
from hf_attnprobe.statistics.grades import Answer


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """What a short demo gives, and its folder."""
    folder = tmp_path_factory.mktemp("demo")
    options = DemoOptions(encoder="mlp", n_examples=300, epochs=1)
    return *demo(folder, progress=False, options=options), folder


def test_demo_ends_in_a_verdict(small):
    report, found, metrics, folder = small
    assert report.n == 50 and "50 texts, seed" in " ".join(report.to_text().split())
    line = rationale_line(found)
    assert "\n" not in line and f"chance {found.chance:.0%} (50 texts)" in line
    assert (folder / "audit" / "report.md").exists() and 0 <= metrics["test_accuracy"] <= 1
    assert found.n == 50 and 0 < found.chance < 0.5
    assert any("deciding word first" in line for line in rationale_sentences(found))


def form_of(line):
    """A row of a verdict with answers and numbers made alike, up to its interval."""
    line = re.sub(r"-?\d+\.\d+", "#", line.partition(" [")[0])
    line = re.sub(" +", " ", line)
    words = "|".join(sorted(map(str, Answer), key=len, reverse=True))
    return re.sub(rf" +\b({words})\b +", " … ", line)


def test_the_quickstart_shows_what_the_demo_ends_in(small):
    """The same lines in the same order, numbers apart."""
    page = (Path(__file__).parents[1] / "docs" / "quickstart.md").read_text()
    shown = re.search("`attnprobe demo` ends in:\n\n```\n(.*?)```", page, re.DOTALL)[1]
    forms = []
    for text in (shown, str(small[0])):
        heading, verdict, _, attention, table, *_, legend = text.strip().split("\n\n")
        assert heading == "Does this attention explain the predictions?"
        assert "5 of 5 questions asked" in " ".join(verdict.split())
        questions = [line for line in table.splitlines() if "?" in line]
        forms.append([attention, *map(form_of, questions), *legend.splitlines()])
    assert forms[0] == forms[1] and len(forms[0]) == 9


def way_to_best(report):
    """What erasure found of every text, and how far attention goes from chance to the best, by hand."""
    rows = report.to_pandas()
    rows = rows[rows.test == "erasure"]
    wide = rows.pivot(index="example_id", columns="statistic", values="value")
    chance, own = (wide[f"fraction_to_flip@{name}"] for name in ("random", "attention"))
    best = wide["minimal_fraction"]
    return wide, (chance - own) / (chance - best).where(chance > best)


def test_the_way_from_chance_to_best_is_of_one_population(small):
    report, *_ = small
    wide, way = way_to_best(report)
    assert way.notna().sum() > 20 and way.max() < 1 + 1e-9
    pd.testing.assert_series_equal(wide["way_to_best@attention"], way, check_names=False)
    assert contradictions(report.to_pandas(), readings()) == []


@pytest.mark.slow
def test_the_demos_way_from_chance_to_best(tmp_path):
    """REVIEW A1, its table: three medians over three sets of texts gave 102%; per text it is .74 ± .03."""
    report, _, _ = demo(tmp_path, progress=False)
    wide, way = way_to_best(report)
    n_texts = wide[["minimal_fraction", "way_to_best@attention"]].notna().sum()
    assert n_texts.tolist() == [n_texts.iloc[0]] * 2 and n_texts.iloc[0] > 470
    best = wide["minimal_fraction"]
    own, never = {}, {}
    for name in ("attention", "random"):
        never[name] = wide[f"never_flips@{name}"]
        flips = 1 - never[name]  # of the draws
        own[name] = (wide[f"fraction_to_flip@{name}"] - never[name]) / flips.where(flips > 0)
    medians = {name: values.median() for name, values in own.items()}
    room = medians["random"] - best.median()
    assert (medians["random"] - medians["attention"]) / room > 1  # what was printed
    assert way.mean() == pytest.approx(0.74, abs=0.03) and way.max() < 1 + 1e-9
    assert never["attention"].mean() == pytest.approx(103 / 487, abs=0.03)
    assert contradictions(report.to_pandas(), readings()) == []
    (compared,) = (
        c for c in report.comparisons if (c.statistic, c.second) == ("fraction_to_flip", "gradient")
    )  # REVIEW A2: it was -.071 on 384 texts, p .001
    assert compared.value == pytest.approx(0.018, abs=0.01)
    assert compared.n == n_texts.iloc[0] and compared.adjusted_p_value > 0.05


def test_rationale_positions_are_word_numbers():
    content = torch.tensor([[False, True, True, True, False], [False, True, False, True, False]])
    assert _rationale_mask(content, [[0, 2], [1]]).tolist() == [
        [False, True, False, True, False],
        [False, False, False, True, False],
    ]


@pytest.mark.parametrize("attended", ["cue", "other"])
def test_a_model_that_attends_to_the_rationale_is_told_from_one_that_does_not(tmp_path, attended):
    """The attention of a context-free model is set by hand: all on the word "wonderful", or all on "film"."""
    text = "the film was wonderful"
    tokenizer = build_tokenizer([text])
    model = zoo.classifier(tokenizer, embedding_size=4, encoder="none", attention="dot_product")
    word = tokenizer.convert_tokens_to_ids("wonderful" if attended == "cue" else "film")
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()[word] = 100.0
        model.attention_classifier.attention.query.weight.fill_(1.0)
    examples = Dataset.from_dict(
        {"example_id": [0], "text": [text], "label": [1], "rationale": [[3]]}
    )
    found = rationale_scores(model, tokenizer, examples)
    assert found.top_in_rationale["attention"] == (attended == "cue") and found.chance == 0.25
