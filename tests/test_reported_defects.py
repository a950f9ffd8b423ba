"""Silent wrongs that an attack from outside found, each against plain Transformers or by hand."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GenerationConfig,
    MptConfig,
    MptForCausalLM,
    Phi3ForCausalLM,
)

from hf_attnprobe import (
    Answers,
    AuditOptions,
    Data,
    audit,
    compare,
    compare_audits,
    evaluate_scores,
)
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.user_scores import UserScores
from hf_attnprobe.plots.highlighted_text import HighlightedText
from tests.helpers import random_comparisons, tiny_language_models
from tests.helpers.error_messages import refused
from tests.helpers.random_comparisons import greedy, log_prob


PASSAGE = "Ann lives in Rome. Bob lives in Oslo. Tickets cost nine euros. Dr. Li sings!"
ROW = {"context": PASSAGE, "question": "Who sings?", "answer": "Li"}
FEW = {"tests": ["sources"], "progress": False}


@cache
def chat():
    return tiny_language_models.tokenizer()


@cache
def plain():
    return tiny_language_models.tokenizer(chat=False)


@cache
def llama(seed=0):
    return tiny_language_models.llama(plain(), seed=seed)


def made(rows, tokenizer, model=None, **options):
    """Rows as prompt, units, answer and tokens."""
    return tiny_language_models.prompts(rows, tokenizer, model or llama(), **options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"scores": {"attention": (0.5,)}},
        {"scores": {}, "glued": (2,)},
        {"scores": {}, "around": ("", "")},
        {"scores": {}, "segments": (0,)},
        {"scores": {}, "matters": (-1,)},
    ],
)
def test_a_shown_text_has_a_number_for_each_token(wrong):
    with pytest.raises(
        ValueError, match=r"each ranking of text 3 must have one score per token, which makes 2"
    ):
        HighlightedText(3, ("a", "b"), "x", None, None, None, **wrong)


# --- Texts are pairs where prompt, units and answer are the same (2.2, 2.10) -----------------------


QUESTIONS = [{key: row[key] for key in ("context", "question")} for row in [ROW] * 3]
QUESTIONS = [row | {"question": f"Who sings {k}?"} for k, row in enumerate(QUESTIONS)]


def said_by(model, ids, n):
    return greedy(model, ids, n, a_line=False, words=plain())


def test_other_rows_explain_something_else(tmp_path):
    for rows in ("behind", "answer"):
        given = {"options": AuditOptions(rows=rows), "output_dir": tmp_path / rows}
        audit((llama(), plain()), Answers([ROW] * 2), **FEW, **given)
    found = compare_audits([tmp_path / "behind", tmp_path / "answer"])
    assert any("do not explain the same quantity (different rows)" in c for c in found.cautions)
    assert not found.statistics


def test_an_audit_does_not_go_on_with_another_answer(tmp_path, monkeypatch):
    data = Answers(QUESTIONS[:2], max_new_tokens=4)
    audit((llama(), plain()), data, **FEW, output_dir=tmp_path)
    next(tmp_path.glob(".answers-*")).unlink()
    from hf_attnprobe.inference import answers

    def another(model, tokenizer, prompts, n, count):
        return {k: said_by(model, ids, n)[::-1] for k, ids in prompts.items()}

    monkeypatch.setattr(answers, "generate_answers", another)
    again = FEW | {"tests": ["sources", "knockout"], "output_dir": tmp_path}
    refused(
        "the prompt or the answer of text 0 has changed", audit, (llama(), plain()), data, **again
    )


# --- Positions that depend on the length (2.3), checks after an audit ------------------------------

N_ROW = len(
    tiny_language_models.tokenizer(chat=False)(
        f"{PASSAGE}\n\nQuestion: Who sings?\nAnswer: Li"
    ).input_ids
)


def phi(original):
    """With other positions in texts of more than ``original`` tokens."""
    rope = random_comparisons.LONG | {"original_max_position_embeddings": original}
    fields = {"rope_parameters": rope, "original_max_position_embeddings": original}
    return tiny_language_models.llama(
        plain(), kind=Phi3ForCausalLM, num_key_value_heads=None, **fields
    )


def check_deletions(model, rows):
    report = audit((model, plain()), Answers(rows), **FEW)
    for shown, row in zip(report.examples, made(rows, plain(), model), strict=True):
        n_answer, ids = sum(row["labelled"]), row["input_ids"]
        whole = log_prob(copy.deepcopy(model), ids, n_answer)  # which has read nothing before
        for k, told in enumerate(shown.scores["leave_one_out"]):
            left = [t for t, unit in zip(ids, row["unit_ids"], strict=True) if unit != k]
            assert told == pytest.approx(
                whole - log_prob(copy.deepcopy(model), left, n_answer), abs=1e-4
            )


@pytest.mark.parametrize("shorter", [3, 8, 15])
def test_a_deletion_that_shortens_a_prompt_below_a_threshold(shorter):
    rows = [ROW | {"context": f"{PASSAGE}{' No.' * k}"} for k in range(3)]
    check_deletions(phi(N_ROW - shorter), rows)


def test_dynamic_positions_are_as_if_no_longer_text_was_read():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    check_deletions(tiny_language_models.llama(plain(), rope_parameters=rope), [ROW, ROW])


@pytest.mark.parametrize("name", ["erase_inputs", "replay_masked"])
def test_changes_that_are_not_the_models_own_are_found_after_the_audit(name, monkeypatch):
    real = getattr(LanguageModelAdapter, name)
    calls = []

    def slightly_wrong(self, *given, **options):
        calls.append(name)
        return real(self, *given, **options).flip(-1)

    monkeypatch.setattr(LanguageModelAdapter, name, slightly_wrong)
    refused(
        "the edited prompts of this model are incorrect",
        audit,
        (llama(), plain()),
        Answers([ROW] * 2),
        **FEW,
    )
    assert calls


# --- Places (2.4, 2.6, F3) -------------------------------------------------------------------------


def test_a_template_that_changes_or_repeats_a_passage_is_refused():
    tokenizer = tiny_language_models.tokenizer()
    for content in ("turn.content | upper", "turn.content ~ turn.content", "turn.content[1:]"):
        tokenizer.chat_template = "{% for turn in messages %}{{ " + content + " }}{% endfor %}"
        if "upper" in content:
            assert len(made([ROW], tokenizer)[0]["units"]) == 4
            continue
        asked = "{context} {question}"
        refused(
            "changes, repeats or drops the passage of text 0",
            made,
            [ROW],
            tokenizer,
            template=asked,
        )


# --- Answers (2.5, F9) ------------------------------------------------------------------------------


SETTINGS = [
    {"suppress_tokens": [*range(5, 60)]},
    {"begin_suppress_tokens": [*range(5, 200)]},
    {"bad_words_ids": [[k] for k in range(5, 200)]},
    {"sequence_bias": [[[7], 50.0]]},
    {"guidance_scale": 3.0},
    {"encoder_repetition_penalty": 9.0},
    {"exponential_decay_length_penalty": (1, 50.0)},
    {"max_time": 1e-9},
    {"forced_eos_token_id": 7},
    {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "num_beams": 3},
    {"do_sample": True, "temperature": 9.0},
    {"stop_strings": ["a", "e"]},
    {"token_healing": True},
    {"dola_layers": "high"},
    {"num_return_sequences": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: next(iter(s)))
def test_no_setting_of_the_checkpoint_changes_the_greedy_answer(settings):
    model = copy.deepcopy(llama())
    end = model.generation_config.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    before = model.generation_config
    prompt = {"prompt": f"{PASSAGE} Who sings?", "context": PASSAGE}
    (row,) = made([prompt], plain(), model, max_new_tokens=6)
    n_prompt = row["labelled"].count(0)
    assert row["input_ids"][n_prompt:] == said_by(llama(), row["input_ids"][:n_prompt], 6)
    assert model.generation_config is before


def test_a_line_says_how_many_prompts_have_no_answer(caplog):
    made([ROW, ROW | {"answer": None}], plain(), max_new_tokens=3)
    assert "1 of 2 prompts have no answer in the data" in caplog.text


# --- Versions (2.7) ----------------------------------------------------------------------------------


def test_none_is_no_version(tmp_path):
    refused(
        "as versions, got None",
        compare,
        llama(),
        [None],
        Answers([ROW]),
        output_dir=tmp_path,
    )


# --- Scores of others (2.8, F7) -----------------------------------------------------------------------


def test_no_scores_are_no_audit(checkpoint, reviews_folder):
    data = Data(str(reviews_folder), test_limit=4)
    refused("expected scores, got None", evaluate_scores, checkpoint, data, None)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 10**6)], "that do not overlap"),
        ([(-3, 5)], "that do not overlap"),
        ([(5, 5)], "that do not overlap"),
        ([(0, 3), (0, 3)], "that do not overlap"),
    ],
)
def test_spans_are_of_the_text_and_each_there_once(
    spans, message, checkpoint, reviews, reviews_folder
):
    data = Data(str(reviews_folder), test_limit=1)
    given = {k: UserScores([1.0] * len(spans), spans) for k in reviews["test"]["example_id"]}
    refused(message, evaluate_scores, checkpoint, data, given, ["erasure"], progress=False)


# --- Models without positions to be kept (F2) -----------------------------------------------------------


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_a_model_without_position_ids_leaves_the_knockout_out(name):
    torch.manual_seed(0)
    size = len(plain())
    if name == "bloom":
        config = BloomConfig(vocab_size=size, hidden_size=32, n_layer=2, n_head=4)
        model = BloomForCausalLM(config).eval()
    else:
        model = MptForCausalLM(MptConfig(vocab_size=size, d_model=32, n_layers=2, n_heads=4)).eval()
    report = audit((model, plain()), Answers([ROW] * 2), progress=False)
    assert "sources" in report.provenance["tests"]
    assert "accepts position_ids" in report.provenance["left_out"]["knockout"]
    assert np.isfinite(report.examples[0].scores["leave_one_out"]).all()
