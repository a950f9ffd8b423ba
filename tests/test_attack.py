"""Silent wrongs that an attack from outside found, each against plain Transformers or by hand."""

import copy
import json
from functools import cache
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GenerationConfig,
    MptConfig,
    MptForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
)

import speakers
from hf_attnprobe import (
    Answers,
    AuditOptions,
    Data,
    audit,
    compare_audits,
    judge,
    survive,
)
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.auditing.given import GivenScores, read_scores
from hf_attnprobe.charts.shown_text import ShownText
from hf_attnprobe.storage.rows import read_part
from refusals import refused
from speakers import units


PASSAGE = "Ann lives in Rome. Bob lives in Oslo. Tickets cost nine euros. Dr. Li sings!"
ROW = {"context": PASSAGE, "question": "Who sings?", "answer": "Li"}
FEW = {"tests": ["sources"], "progress": False}


@cache
def chat():
    return speakers.tokenizer()


@cache
def plain():
    return speakers.tokenizer(chat=False)


@cache
def llama(seed=0):
    return speakers.llama(plain(), seed=seed)


def made(rows, tokenizer, model=None, **options):
    """Rows as prompt, units, answer and tokens."""
    return speakers.prompts(rows, tokenizer, model or llama(), **options)


@torch.no_grad()
def log_prob(model, ids, n_answer):
    """Of the last tokens, by one plain pass of a model that has read nothing before."""
    logits = copy.deepcopy(model)(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    return float(sum(logits[k, ids[k + 1]] for k in range(len(ids) - 1 - n_answer, len(ids) - 1)))


# --- A prompt that begins with its passage (2.1) --------------------------------------------------


@pytest.mark.parametrize("kind", ["word", "token", "sentence"])
def test_every_unit_of_a_prompt_that_begins_with_its_passage_has_its_own_numbers(kind):
    rows = [{"prompt": f"{PASSAGE} Who sings?", "context": PASSAGE, "answer": " Li"}]
    report = audit((llama(), plain()), Answers(rows, units=kind), **FEW)
    (shown,) = report.examples
    (row,) = made(rows, plain(), units=kind)
    assert list(shown.tokens) == [unit or "…" for unit in units(row)]
    ids, unit_ids = row["input_ids"], row["unit_ids"]
    n_answer = sum(row["labelled"])
    whole = log_prob(llama(), ids, n_answer)

    def without(gone):
        left = [token for token, unit in zip(ids, unit_ids, strict=True) if unit not in gone]
        return whole - log_prob(llama(), left, n_answer)

    every = range(len(row["units"]))
    told = shown.scores["leave_one_out"]
    for k in every:
        if told[k]:  # of many units only the foremost are deleted
            assert told[k] == pytest.approx(without({k}), abs=1e-4)
    gain = report.to_pandas().query("statistic == 'contextual_gain'").value.iloc[0]
    assert gain == pytest.approx(without({*every}), abs=1e-4)
    assert "<html" in report.to_html()


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
    with pytest.raises(ValueError, match="expected numbers of the 2 tokens of text 3"):
        ShownText(3, ("a", "b"), "x", None, None, None, **wrong)


# --- Texts are pairs where prompt, units and answer are the same (2.2, 2.10) -----------------------


QUESTIONS = [{key: row[key] for key in ("context", "question")} for row in [ROW] * 3]
QUESTIONS = [row | {"question": f"Who sings {k}?"} for k, row in enumerate(QUESTIONS)]


@torch.no_grad()
def greedy(model, ids, n):
    """By argmax, a token at a time, up to the end's token or the line's."""
    said = []
    for _ in range(n):
        said.append(int(model(torch.tensor([[*ids, *said]])).logits[0, -1].argmax()))
    return said


def test_every_version_explains_the_answers_of_the_model(tmp_path):
    data = Answers(QUESTIONS, max_new_tokens=4)
    other = llama(seed=5)
    found = survive(
        llama(), ["int4", other], data, ["sources"], output_dir=tmp_path, tokenizer=plain(),
        progress=False,
    )  # fmt: skip
    assert found.n_shared == (3, 3)
    rows = made(QUESTIONS, plain(), max_new_tokens=4)
    last = found.reports[2].to_pandas().query("statistic == 'contextual_gain'")
    for row, gain in zip(rows, last.value, strict=True):
        n_answer = sum(row["labelled"])
        left = [t for t, unit in zip(row["input_ids"], row["unit_ids"], strict=True) if unit < 0]
        expected = log_prob(other, row["input_ids"], n_answer) - log_prob(other, left, n_answer)
        assert gain == pytest.approx(expected, abs=1e-4)
    own = made(QUESTIONS, plain(), other, max_new_tokens=4)
    assert [row["answer"] for row in own] != [row["answer"] for row in rows]


def audits(tmp_path, *several):
    """Folders of audits, each of (model, data, options)."""
    for number, (model, data, options) in enumerate(several):
        audit((model, plain()), data, **FEW, options=options, output_dir=tmp_path / str(number))
    return [tmp_path / str(number) for number in range(len(several))]


PLAIN = AuditOptions()


@pytest.mark.parametrize(
    ("data", "model", "n_shared"),
    [
        (Answers(QUESTIONS, max_new_tokens=4), llama, 3),
        (Answers(QUESTIONS, max_new_tokens=2), llama, 0),
        (Answers(QUESTIONS, max_new_tokens=4), lambda: llama(5), 0),
        (Answers(QUESTIONS, max_new_tokens=4, template="{context} {question}"), llama, 0),
    ],
)
def test_only_equal_prompts_with_equal_answers_are_pairs(data, model, n_shared, tmp_path):
    first = (llama(), Answers(QUESTIONS, max_new_tokens=4), PLAIN)
    found = compare_audits(audits(tmp_path, first, (model(), data, PLAIN)))
    assert found.n_shared == (n_shared,)
    assert all(d.paired == (n_shared > 0) for s in found.statistics for d in s.differences if d)
    assert n_shared or any("no text is a pair" in caution for caution in found.cautions)


def test_other_rows_explain_something_else(tmp_path):
    several = [
        (llama(), Answers([ROW] * 2), AuditOptions(rows=rows)) for rows in ("behind", "answer")
    ]
    found = compare_audits(audits(tmp_path, *several))
    assert any("do not explain the same thing (other rows)" in c for c in found.cautions)
    assert not found.statistics


def test_an_audit_does_not_go_on_with_another_answer(tmp_path, monkeypatch):
    data = Answers(QUESTIONS[:2], max_new_tokens=4)
    audit((llama(), plain()), data, **FEW, output_dir=tmp_path)
    from hf_attnprobe.inference import answers

    def another(model, tokenizer, prompts, n, count):
        return {name: greedy(model, ids, n)[::-1] for name, ids in prompts.items()}

    monkeypatch.setattr(answers, "generated", another)
    again = FEW | {"tests": ["sources", "knockout"], "output_dir": tmp_path}
    refused("the answer of text 0 as they were", audit, (llama(), plain()), data, **again)


# --- Positions that depend on the length (2.3), checks after an audit ------------------------------

N_ROW = len(
    speakers.tokenizer(chat=False)(f"{PASSAGE}\n\nQuestion: Who sings?\nAnswer: Li").input_ids
)


def phi(original):
    """With other positions in texts of more than ``original`` tokens."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0, 3.0, 2.0, 6.0],
        "original_max_position_embeddings": original,
    }
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=len(plain()),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=512,
        original_max_position_embeddings=original,
        rope_parameters=rope,
        initializer_range=0.3,
        pad_token_id=None,
    )
    return Phi3ForCausalLM(config).eval()


def check_deletions(model, rows):
    report = audit((model, plain()), Answers(rows), **FEW)
    for shown, row in zip(report.examples, made(rows, plain(), model), strict=True):
        n_answer, ids = sum(row["labelled"]), row["input_ids"]
        whole = log_prob(model, ids, n_answer)
        for k, told in enumerate(shown.scores["leave_one_out"]):
            left = [t for t, unit in zip(ids, row["unit_ids"], strict=True) if unit != k]
            assert told == pytest.approx(whole - log_prob(model, left, n_answer), abs=1e-4)


@pytest.mark.parametrize("shorter", [3, 8, 15])
def test_a_deletion_that_shortens_a_prompt_below_a_threshold(shorter):
    rows = [ROW | {"context": f"{PASSAGE}{' No.' * k}"} for k in range(3)]
    check_deletions(phi(N_ROW - shorter), rows)


def test_dynamic_positions_are_as_if_no_longer_text_was_read():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    check_deletions(speakers.llama(plain(), rope_parameters=rope), [ROW, ROW])


@pytest.mark.parametrize("name", ["erase_inputs", "replay_masked"])
def test_changes_that_are_not_the_models_own_are_found_after_the_audit(name, monkeypatch):
    real = getattr(LanguageModelAdapter, name)
    calls = []

    def slightly_wrong(self, *given, **options):
        calls.append(name)
        return real(self, *given, **options).flip(-1)

    monkeypatch.setattr(LanguageModelAdapter, name, slightly_wrong)
    refused("as the model itself computes it", audit, (llama(), plain()), Answers([ROW] * 2), **FEW)
    assert calls


@pytest.mark.parametrize("kind", ["behind", "answer", "all"])
def test_a_deletion_and_a_knockout_are_the_models_own(kind):
    adapter = wrap(llama(), rows=kind)
    (row,) = made([ROW], plain())
    names = ("input_ids", "unit_ids", "labelled")
    batch = adapter.prepare({name: torch.tensor([row[name]]) for name in names}, (0,))
    found = adapter.away_from_own_model(adapter.observe(batch), 1)
    assert found.keys() == {"deletion", "knockout"} and max(found.values()) < 1e-5


# --- Places (2.4, 2.6, F3) -------------------------------------------------------------------------


CITIES = ["Paris", "London", "Rome"]


def where(row, text):
    """Whether a unit's characters stand behind a text of the prompt, by number."""
    return [start > row["text"].index(text) for start, _ in row["units"]]


@pytest.mark.parametrize("tokenizer", [plain, chat])
def test_a_passage_that_the_question_names_too_is_found_in_its_place(tokenizer):
    question = "Which is the capital: Paris, London or Rome?"
    rows = [{"context": CITIES, "question": question, "answer": "Paris"}]
    template = "{question}\n\n{context}\nAnswer:"
    (row,) = made(rows, tokenizer(), units="passage", template=template)
    assert units(row) == CITIES and all(where(row, "or Rome?"))


def test_a_turn_whose_words_the_template_says_too_is_found_in_its_place():
    tokenizer = speakers.tokenizer()
    tokenizer.chat_template = "You are a helpful cat.\n" + speakers.CHAT
    turns = [("user", "You"), ("assistant", "cat"), ("user", "Who?")]
    rows = [{"turns": [{"role": r, "content": c} for r, c in turns], "answer": "Li"}]
    (row,) = made(rows, tokenizer, units="turn")
    assert units(row) == ["You", "cat"] and all(where(row, "cat."))


def test_a_template_that_changes_or_repeats_a_passage_is_refused():
    tokenizer = speakers.tokenizer()
    for content in ("turn.content | upper", "turn.content ~ turn.content", "turn.content[1:]"):
        tokenizer.chat_template = "{% for turn in messages %}{{ " + content + " }}{% endfor %}"
        if "upper" in content:
            assert len(made([ROW], tokenizer)[0]["units"]) == 4
            continue
        asked = "{context} {question}"
        refused("writes the passage of text 0 as it is", made, [ROW], tokenizer, template=asked)


def test_passages_of_a_prompt_are_each_there_once_and_in_their_order():
    prompt = "The dog. The cat. banana. Who?"
    for passages, message in (
        (["cat", "dog"], "in their order"),
        ("ana", "stands there 2 times"),
    ):
        rows = [{"prompt": prompt, "context": passages, "answer": " a"}]
        refused(message, made, rows, plain(), units="token")


def test_an_item_of_a_list_is_one_passage():
    listed = {"context": ["A cat.\n\nIt ate.", "A dog.", "A bird."], "question": "?", "answer": "a"}
    divided = listed | {"context": "A cat.\n\nIt ate."}
    for tokenizer in (plain(), chat()):
        first, second = (
            made([listed], tokenizer, units="passage")[0],
            made([divided], tokenizer, units="passage")[0],
        )
        assert units(first) == listed["context"]
        assert units(second) == ["A cat.", "It ate."]


@pytest.mark.parametrize("text", ["A 🐈 sat 這 here.", "🐈🐈 🐈 Ω", "a  𝒳𝒴 b"])
def test_bytes_of_a_character_are_one_unit(text):
    rows = [{"context": text, "question": "?", "answer": "a"}]
    (row,) = made(rows, plain(), units="token")
    spans = row["units"]
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    assert (spans[0][0], spans[-1][1]) == (0, len(text))
    assert {*row["unit_ids"]} == {-1, *range(len(spans))}


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
    expected = greedy(llama(), row["input_ids"][:n_prompt], 6)
    expected = expected[: expected.index(end)] if end in expected else expected
    assert row["input_ids"][n_prompt:] == expected
    assert model.generation_config is before


def test_a_line_says_how_many_texts_have_no_answer(caplog):
    made([ROW, ROW | {"answer": None}], plain(), max_new_tokens=3)
    assert "1 of 2 texts have no answer; the model's own is taken" in caplog.text


# --- Versions (2.7) ----------------------------------------------------------------------------------


def test_none_is_no_version(tmp_path):
    refused("got None among them", survive, llama(), [None], Answers([ROW]), output_dir=tmp_path)


# --- Scores of others (2.8, F7) -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: [1.0, 2.0j]}, "expected a list of numbers"),
        ({0: torch.tensor([1.0, 2.0j])}, "expected a list of numbers"),
        ({0.5: [1.0]}, "expected whole numbers as id"),
        ({"a": [1.0]}, "expected whole numbers as id"),
        ({0: 3.0}, "expected a score for each token"),
        ({0: "abc"}, "expected a list of numbers"),
        ({0: [[1.0], [1.0, 2.0]]}, "lists of several lengths"),
        (7, "expected scores as a file"),
        ([[1.0], [2.0]], "expected scores of 1 texts"),
    ],
)
def test_scores_that_are_none_are_refused(given, message):
    refused(message, read_scores, given, [0])


@pytest.mark.parametrize(
    "row",
    [
        {"score": [1, 2], "token": ["a"]},
        {"score": [1, 2], "start": [0, None], "end": [1, 2]},
        {"score": [1, 2], "start": ["x", 1], "end": [1, 2]},
        {"score": [1, 2], "unit": [0, 1.5]},
    ],
)
def test_files_of_scores_that_are_none_are_refused(row, tmp_path):
    file = tmp_path / "scores.jsonl"
    file.write_text(json.dumps({"id": 0} | row))
    refused("scores", read_scores, file, [0])


def test_tokens_and_spans_are_as_many_as_scores():
    refused("a token for each of 2", GivenScores, [1, 2], None, ["a", "b", "c"])
    refused("a token for each of 2", GivenScores, [1, 2], None, [])
    refused("a span for each of 2", GivenScores, [1, 2], [(0, 1)])


def test_no_scores_are_no_audit(checkpoint, reviews_folder):
    data = Data(str(reviews_folder), test_limit=4)
    refused("expected scores to judge, got None", judge, checkpoint, data, None)


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([(0, 10**6)], "none over another"),
        ([(-3, 5)], "none over another"),
        ([(5, 5)], "none over another"),
        ([(0, 3), (0, 3)], "none over another"),
    ],
)
def test_spans_are_of_the_text_and_each_there_once(
    spans, message, checkpoint, reviews, reviews_folder
):
    data = Data(str(reviews_folder), test_limit=1)
    given = {k: GivenScores([1.0] * len(spans), spans) for k in reviews["test"]["example_id"]}
    refused(message, judge, checkpoint, data, given, ["erasure"], progress=False)


# --- Rows (F7) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: [*x, 0.0], lambda x: []])
def test_lists_of_other_lengths_are_refused(change, tmp_path):
    audit((llama(), plain()), Answers([ROW] * 3), **FEW, output_dir=tmp_path)
    part = next((tmp_path / "rows").iterdir())
    table = pq.read_table(part)
    name = "source_place"
    lists = table[name].to_pylist()
    (row,) = [k for k, cell in enumerate(lists) if cell][:1]
    lists[row] = change(lists[row])
    column = pa.array(lists, table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, column), part)
    refused("cannot read the rows in", read_part, part)


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
    assert "takes position_ids" in report.provenance["left_out"]["knockout"]
    assert np.isfinite(report.examples[0].scores["leave_one_out"]).all()
