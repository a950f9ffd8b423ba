"""Passages with questions: how prompts are rendered, cut into units, answered and tokenised."""

import json
import re
import shutil
from dataclasses import replace
from functools import wraps
from itertools import product
from types import SimpleNamespace

import hypothesis
import pandas as pd
import pytest
import torch
import transformers
from hypothesis import strategies as st
from scipy.stats import beta

from hf_attnprobe import Answers, AuditOptions, Report, audit, build_tokenizer
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.adapters.language_model.kv_cache_passes import PromptRunner
from hf_attnprobe.audits.pipeline import estimate_audit
from hf_attnprobe.core import progress
from hf_attnprobe.inference import answers
from hf_attnprobe.inference.answers import UNIT_SPLITTERS, encode_answers, generate_answers
from hf_attnprobe.plots.highlighted_text import HighlightedText
from hf_attnprobe.protocol import ALL
from hf_attnprobe.reports.result import convert_report_to_json
from hf_attnprobe.reports.verdict import warn_about_precision
from hf_attnprobe.statistics.rows import UNIT_STATISTICS
from hf_attnprobe.storage.folders import lock_folder
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.compare_rows import assert_same_rows
from tests.helpers.error_messages import refused
from tests.helpers.tiny_language_models import PASSAGE, ROWS, units
from tests.helpers.tiny_language_models import prompts as made
from tests.helpers.transformer_families import tiny_language_model


@pytest.fixture(scope="module")
def chat():
    return tiny_language_models.tokenizer()


@pytest.fixture(scope="module")
def plain():
    return tiny_language_models.tokenizer(chat=False)


@pytest.fixture(scope="module")
def model(chat):
    return tiny_language_models.llama(chat)


# --- prompts --------------------------------------------------------------------------------------


def test_a_question_is_asked_in_a_turn_of_the_chat_template(chat, model):
    row = made(ROWS, chat, model)[0]
    asked = f"{PASSAGE}\n\nWhere does Bob live?"
    turn = [{"role": "user", "content": asked}]
    assert row["text"] == chat.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert row["answer"] == "Oslo" and not row["generated"]


def test_without_a_chat_template_it_is_asked_in_plain_words(plain, model):
    row = made(ROWS, plain, model)[0]
    assert row["text"] == f"{PASSAGE}\n\nQuestion: Where does Bob live?\nAnswer:"
    assert plain.decode(row["input_ids"]) == row["text"] + " Oslo"


def test_a_template_of_ones_own(chat, plain, model):
    template = "{question} Read this: {context} {braces} Now answer."
    for tokenizer in (chat, plain):
        row = made(ROWS, tokenizer, model, template=template)[0]
        assert f"Where does Bob live? Read this: {PASSAGE} {{braces}} Now" in row["text"]
        assert len(row["units"]) == 4
    refused("{context} exactly once", Answers, ROWS, template="{question}")


def test_a_prompt_is_used_as_it_is(chat, model):
    prompt = f"<|begin|>Ü {PASSAGE} Bob lives in"
    row = made([{"prompt": prompt, "context": PASSAGE, "answer": " Oslo"}], chat, model)[0]
    assert row["text"] == prompt and chat.decode(row["input_ids"]) == f"{prompt} Oslo"
    assert row["input_ids"].count(chat.bos_token_id) == 1
    assert units(row)[1] == "Bob lives in Oslo."


def test_a_token_that_begins_a_text_is_put_in_front_once(model):
    begins = tiny_language_models.tokenizer(chat=False, begins=True)
    rows = [
        {"prompt": f"{start}{PASSAGE} Bob", "context": PASSAGE, "answer": " sings"}
        for start in ("", "<|begin|>")
    ]
    first, second = made(rows, begins, model)
    assert first["input_ids"] == second["input_ids"] and first["unit_ids"] == second["unit_ids"]
    assert first["input_ids"].count(begins.bos_token_id) == 1


def test_turns_are_rendered_and_may_be_the_units(chat, model):
    turns = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": " Bob lives in Oslo. "},
        {"role": "assistant", "content": "Good."},
        {"role": "user", "content": "Where does Bob live?"},
    ]
    row = made([{"messages": turns, "answer": "Oslo"}], chat, model, units="turn")[0]
    assert units(row) == ["Be short.", "Bob lives in Oslo.", "Good."]
    rows = [{"turns": turns, "context": "lives in Oslo. ", "answer": "Oslo"}]
    passage = made(rows, chat, model, units="word")
    assert units(passage[0]) == ["lives", "in", "Oslo."]


# --- units ----------------------------------------------------------------------------------------


SENTENCES = [
    "Ann lives in Rome.",
    "Bob lives in Oslo.",
    "Tickets cost nine euros.",
    "Dr. Li sings!",
]


@pytest.mark.parametrize(("kind", "expected"), [("sentence", SENTENCES), ("word", PASSAGE.split())])
def test_units_are_cut_by_characters(kind, expected, chat, model):
    row = made(ROWS[:1], chat, model, units=kind)[0]
    assert units(row) == expected
    for number, unit in enumerate(expected):  # all of its tokens, and no others
        ids = [
            token for token, k in zip(row["input_ids"], row["unit_ids"], strict=True) if k == number
        ]
        assert chat.decode(ids).strip() == unit


def test_every_token_of_a_passage_may_be_a_unit(chat, model):
    row = made(ROWS[:1], chat, model, units="token")[0]
    numbers = [k for k in row["unit_ids"] if k >= 0]
    assert numbers == [*range(len(row["units"]))]
    assert "".join(row["text"][start:end] for start, end in row["units"]) == PASSAGE


def test_passages_are_items_of_a_list_or_divided_by_empty_lines(chat, model):
    def cut(context, kind):
        rows = [{"context": context, "question": "Who?", "answer": "Bob"}]
        return units(made(rows, chat, model, units=kind)[0])

    items = ["Ann. Li.", "Bob\nsings."]
    assert cut(items, "passage") == cut("Ann. Li.\n \nBob\nsings.", "passage") == items
    assert cut(items, "sentence") == ["Ann.", "Li.", "Bob", "sings."]


@hypothesis.given(st.text(alphabet="ab \n\t\x0b\u2028", max_size=40))
def test_passages_end_at_blank_lines(text):
    """The same as by a regular expression, whose time grows with the square of the white space."""
    pattern = re.compile(r"\S.*?(?=\s*\n\s*\n|\s*\Z)", re.DOTALL)
    assert answers._find_passages(text) == [match.span() for match in pattern.finditer(text)]


def test_units_hold_no_token_of_template_question_or_answer(chat, model):
    for row in made(ROWS, chat, model):
        outside = [
            token for token, unit in zip(row["input_ids"], row["unit_ids"], strict=True) if unit < 0
        ]
        before = row["text"].split(row["text"][slice(*row["units"][0])])[0]
        behind = row["text"][row["units"][-1][1] :]
        assert chat.decode(outside) == before + behind + row["answer"]


@pytest.mark.parametrize("units", UNIT_SPLITTERS)
def test_long_white_space_and_long_words_are_cut_at_once(units):
    """Time that grows with the square of the length would be hours here."""
    space, word = " " * 200_000, "X" * 200_000
    text = f"One.{space}Two. {word}. Three."
    expected = {"sentence": 4, "passage": 1, "word": 4}[units]
    assert len(UNIT_SPLITTERS[units](text)) == expected


def test_characters_of_several_bytes_and_of_chinese(chat, model):
    context = "Äpfel 🍎 sind rot. 这是书。那是笔！"
    rows = [{"context": context, "question": "?", "answer": "rot"}]
    assert units(made(rows, chat, model)[0]) == ["Äpfel 🍎 sind rot.", "这是书。", "那是笔！"]
    tokens = made(rows, chat, model, units="token")[0]
    assert "".join(tokens["text"][start:end] for start, end in tokens["units"]) == context


# --- answers --------------------------------------------------------------------------------------


def test_an_answer_leaves_the_tokens_of_its_prompt(chat, plain, model):
    for tokenizer in (chat, plain):
        for row in made(ROWS, tokenizer, model):
            n = row["labelled"].index(1)
            special = tokenizer(row["text"], add_special_tokens=False)["input_ids"]
            assert row["input_ids"][:n] == special and set(row["labelled"][n:]) == {1}
            assert {*row["unit_ids"][n:]} == {-1}


def test_an_answer_whose_tokens_would_grow_into_the_prompt_is_put_behind_it(chat, model):
    prompt = f"{PASSAGE} "  # the answer's first token would swallow the space
    row = made([{"prompt": prompt, "context": PASSAGE, "answer": "lives"}], chat, model)[0]
    n = row["labelled"].index(1)
    assert row["input_ids"][:n] == chat(prompt)["input_ids"]
    assert chat.decode(row["input_ids"][n:]) == "lives"


def test_without_an_answer_the_models_own_is_taken(chat, model):
    rows = [{key: row[key] for key in ("context", "question")} for row in ROWS]
    torch.manual_seed(1)
    model.generation_config.do_sample = True  # what the model's settings say does not count
    try:
        found = made(rows, chat, model, max_new_tokens=5)
    finally:
        model.generation_config.do_sample = False
    for row in found:
        n = row["labelled"].index(1)
        said = model(torch.tensor([row["input_ids"]])).logits[0].argmax(-1)
        assert row["generated"] and row["input_ids"][n:] == said[n - 1 : -1].tolist()
        assert len(row["input_ids"]) - n <= 5 and row["answer"] == chat.decode(row["input_ids"][n:])


def said_alone(model, ids, n):
    """Greedy decoding of one prompt, without the end's token."""
    asking = torch.tensor([ids])
    mask = torch.ones_like(asking)
    said = model.generate(asking, attention_mask=mask, max_new_tokens=n, do_sample=False)
    tokens = said[0, len(ids) :].tolist()
    return tokens[: tokens.index(1)] if 1 in tokens else tokens


ENDS = SimpleNamespace(eos_token_id=1, pad_token_id=None)


def answers_of(model, monkeypatch, n_prompts=11, n=12, tokenizer=ENDS):
    """Answers to prompts of unequal length, those to each alone, and how many ran at once."""
    draws = torch.Generator().manual_seed(0)
    lengths = [5 + 3 * (k % 7) for k in range(n_prompts)]
    prompts = {
        str(k): torch.randint(2, 60, (length,), generator=draws).tolist()
        for k, length in enumerate(lengths)
    }
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 1
    alone = {name: said_alone(model, ids, n) for name, ids in prompts.items()}
    generate, at_once = model.generate, []

    def counted(ids, **given):
        at_once.append(len(ids))
        return generate(ids, **given)

    monkeypatch.setattr(model, "generate", counted)
    return generate_answers(model, tokenizer, prompts, n), alone, at_once


DECODERS = {
    "LlamaForCausalLM": "llama",
    "GPT2LMHeadModel": "gpt2",  # learned positions
    "MistralForCausalLM": "mistral",  # a window shorter than a prompt
    "BloomForCausalLM": "bloom",  # positions by distance
}


@pytest.mark.parametrize("name", DECODERS)
def test_prompts_that_are_answered_together_are_answered_as_alone(name, monkeypatch):
    model = tiny_language_model(name, DECODERS[name])
    together, alone, at_once = answers_of(model, monkeypatch)
    # Only answers that rounding could change are generated again, none as a check of its batch.
    assert together == alone and at_once[0] == 8 and at_once.count(1) < len(alone) - 2


@pytest.mark.parametrize("end_token_id", [1, None])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_a_padding_token_without_an_embedding(name, end_token_id, monkeypatch):
    """A padding token that was added to the tokenizer alone, as is usual with Llama."""
    model = tiny_language_model(name, DECODERS[name])
    n_embeddings = model.get_input_embeddings().num_embeddings
    tokenizer = SimpleNamespace(eos_token_id=end_token_id, pad_token_id=n_embeddings)
    together, alone, at_once = answers_of(model, monkeypatch, tokenizer=tokenizer)
    assert together == alone and at_once[0] == 8


def test_where_padding_is_read_or_rounding_decides_each_is_answered_alone(monkeypatch):
    model = tiny_language_model("LlamaForCausalLM", "llama")
    forward = model.forward

    @wraps(forward)
    def reads_padding(*given, attention_mask=None, **others):
        return forward(*given, **others)

    monkeypatch.setattr(model, "forward", reads_padding)
    together, alone, at_once = answers_of(model, monkeypatch)
    assert together == alone and at_once == [8, *[1] * 8, 3, 1, 1, 1]


def test_rounding_decides_between_equal_tokens(monkeypatch):
    model = tiny_language_model("LlamaForCausalLM", "llama")
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    together, alone, at_once = answers_of(model, monkeypatch)
    assert together == alone and at_once.count(1) == len(alone)


def test_in_half_precision_each_is_answered_alone(monkeypatch):
    model = tiny_language_model("LlamaForCausalLM", "llama").bfloat16()
    together, alone, at_once = answers_of(model, monkeypatch)
    assert together == alone and {*at_once} == {1}


def test_a_plain_prompts_answer_is_its_line(plain, model):
    asked = [{key: ROWS[0][key] for key in ("context", "question")}]
    row = made(asked, plain, model, max_new_tokens=64)[0]
    assert "\n" not in row["answer"].strip()


def test_another_answer_is_marked_where_it_parts(chat, model):
    rows = [row | {"other": other} for row, other in zip(ROWS, ("Rome", None), strict=True)]
    first, second = made(rows, chat, model)
    place = next(k for k, token in enumerate(first["other_ids"]) if token >= 0)
    assert first["labelled"][place] and first["input_ids"][place] != first["other_ids"][place]
    assert chat.decode([first["other_ids"][place]]) in "Rome" and {*second["other_ids"]} == {-1}
    assert "other_ids" not in made(ROWS, chat, model).column_names


def test_texts_have_a_number_per_token_and_no_label(chat, model):
    tokenized = encode_answers(made(ROWS, chat, model))
    for text in tokenized.texts:
        assert text.label == -1
        assert {len(values) for values in text.inputs.values()} == {text.n_tokens}
        assert text.inputs["special_tokens_mask"] == [int(k < 0) for k in text.inputs["unit_ids"]]
        assert text.n_content == sum(k >= 0 for k in text.inputs["unit_ids"])


# --- data -----------------------------------------------------------------------------------------


def test_columns_are_found_by_their_usual_names_or_named(tmp_path):
    rows = [{"passage": PASSAGE, "query": "Who?", "answers": {"text": ["Bob", "Rob"]}, "more": 1}]
    (tmp_path / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read = Answers(str(tmp_path / "qa.jsonl")).load_examples()[0]
    assert (read["text"], read["question"], read["answer"]) == (PASSAGE, "Who?", "Bob")
    renamed = [{"a": "Ann. Bob.", "b": "Who?", "c": "Bob", "question": "What?"}]
    named = Answers(renamed, context_column="a", question_column="b", answer_column="c")
    expected = {"text": "Ann. Bob.", "passages": ["Ann. Bob."], "question": "Who?", "answer": "Bob"}
    assert named.load_examples()[0] == read | expected


def test_a_limit_keeps_the_same_rows_and_their_ids():
    rows = [{"context": f"One. {k}.", "question": "?"} for k in range(20)]
    read = Answers(rows).load_examples(limit=3)
    assert len(read) == 3
    assert all(row["text"] == f"One. {row['example_id']}." for row in read)


LONG = "A word. " * 300
BAD = {
    "no question": (
        [{"context": "A. B."}],
        "expected one column with questions, prompts or conversations",
    ),
    "two that ask": ([ROWS[0] | {"prompt": "x"}], "got question and prompt"),
    "no passage": ([{"question": "?"}], "found no column with passages"),
    "empty passage": ([ROWS[0] | {"context": " "}], "column 'context' must contain a passage"),
    "empty prompt": ([{"context": "A.", "prompt": ""}], "column 'prompt' must contain a text"),
    "empty question": ([ROWS[0] | {"question": None}], "row 0 has an empty cell"),
    "a number": ([ROWS[0] | {"question": 3}], "row 0 has a cell of type int"),
    "turns in words": ([{"context": "A.", "turns": "Hi"}], "turns with 'role' and 'content'"),
    "not there": ([{"prompt": "Ann sings.", "context": "Bob sings."}], "occurs 0 times"),
    "twice": (
        [{"prompt": "Ann. Ann.", "context": "Ann."}],
        "the passage of text 0 must occur once",
    ),
    "other order": (
        [{"prompt": "A dog. A cat.", "context": ["cat", "dog"]}],
        "not in the same order as in the prompt",
    ),
    "one unit": ([ROWS[0] | {"context": "Bob lives in Oslo."}], "consist of a single sentence"),
    "the same answer": ([ROWS[0] | {"other": "Oslo"}], "the two answers of text 0 must differ"),
    "too long": ([ROWS[0] | {"context": LONG}], "the model reads at most 512"),
    "a cat": (
        [{"context": "A.", "turns": [{"role": "cat", "content": "A."}]}],
        "the chat template refuses text 0 with the error: roles are system",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_refused_in_one_line(name, chat, model):
    rows, message = BAD[name]
    refused(message, made, rows, chat, model)


def test_columns_and_units_that_are_not_there_are_refused(chat, model):
    refused("no column 'text'", made, ROWS, chat, model, context_column="text")
    refused("needs a column with conversations", made, ROWS, chat, model, units="turn")


def test_turns_need_a_chat_template(plain, model):
    turns = [{"role": "user", "content": PASSAGE}]
    rows = [{"context": PASSAGE, "turns": turns}]
    refused("conversations need a tokenizer with a chat template", made, rows, plain, model)


def test_an_answer_that_continues_no_prompt_is_refused(model):
    """A tokenizer that writes a space before every text cannot put a letter behind a letter."""
    spaced = tiny_language_models.tokenizer(chat=False)
    spaced.backend_tokenizer.pre_tokenizer = (
        transformers.convert_slow_tokenizer.pre_tokenizers.ByteLevel(add_prefix_space=True)
    )
    rows = [{"prompt": f"{PASSAGE} Os", "context": PASSAGE, "answer": "lo"}]
    refused("would change the last token of the prompt of text 0", made, rows, spaced, model)


def test_another_models_vocabulary_is_refused(chat, model):
    few = tiny_language_models.llama(chat, vocab_size=50)
    refused("the model only has embeddings for ids below 50", made, ROWS, chat, few)


def test_logits_that_are_no_numbers_are_refused(chat):
    broken = tiny_language_models.llama(chat)
    with torch.no_grad():
        broken.lm_head.weight[:] = torch.nan
    rows = [{key: ROWS[0][key] for key in ("context", "question")}]
    refused("are NaN or infinite. Check the model's weights", made, rows, chat, broken)


def test_a_model_that_says_nothing_is_refused(chat):
    silent = tiny_language_models.llama(chat)
    silent.generation_config.eos_token_id = [*range(len(chat))]
    rows = [{key: row[key] for key in ("context", "question")} for row in ROWS]
    refused("2 of 2 have an empty answer", made, rows, chat, silent)


def test_texts_of_one_unit_are_left_out_and_said(chat, model, caplog):
    rows = [*ROWS, ROWS[0] | {"context": "Bob lives in Oslo."}]
    assert len(made(rows, chat, model)) == 2
    assert "1 of 3 prompts consist of a single sentence" in caplog.text


def test_nothing_is_trained_on_answers():
    refused("a classifier cannot be trained on Answers", Answers(ROWS).load_splits)


def test_a_wrong_use_is_one_line(chat, model, tmp_path):
    classifier, said = (
        tiny_models.bert(chat),
        "can be used only with a language model",
    )
    refused(said, audit, classifier, Answers(ROWS), tokenizer=chat)
    texts = [{"text": "Bob sings.", "label": 1}]
    refused(
        "expected one column with questions, prompts or conversations",
        audit,
        model,
        texts,
        tokenizer=chat,
    )
    tiny_models.saved(tmp_path, classifier, chat)
    refused(said, audit, str(tmp_path), Answers(ROWS))
    options = AuditOptions(rows="all")
    said = "rows='all' can be used only with a language model"
    refused(said, audit, str(tmp_path), texts, options=options)


# --- audits ---------------------------------------------------------------------------------------

FEW = {"tests": ["correlation"], "options": AuditOptions(single_heads=False), "progress": False}


@pytest.fixture(scope="module")
def folder(chat, model):
    """A tiny language model with its tokenizer, and questions; do not write into it."""

    def make(folder):
        tiny_models.saved(folder / "model", model, chat)
        rows = [{"context": row["context"], "question": row["question"]} for row in ROWS]
        (folder / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))

    return tiny_models.once("llama", make)


def audited(folder, name, **asked):
    """The audit of the model's own answers, of at most 4 tokens."""

    def make(out):
        data = Answers(str(folder / "qa.jsonl"), max_new_tokens=4)
        audit(str(folder / "model"), data, output_dir=out, **asked)

    return Report.load(tiny_models.once(name, make))


@pytest.fixture(scope="module")
def report(folder):
    return audited(folder, "answers", **FEW)


def test_a_language_model_is_audited_by_its_name_its_object_or_its_pipeline(
    report, folder, chat, model
):
    data = Answers(str(folder / "qa.jsonl"), max_new_tokens=4)
    pipeline = transformers.pipeline("text-generation", model=model, tokenizer=chat)
    for given in ((model, chat), pipeline):
        assert audit(given, data, **FEW).statistics == report.statistics
    assert report.provenance["units"] == "sentences of the prompt"
    assert report.provenance["answers"]["units"] == "sentence"


def test_a_shown_text_is_the_prompt_with_its_units(report, chat, model):
    shown = next(text for text in report.examples if text.example_id == 0)
    assert [*shown.tokens] == SENTENCES
    turn = [{"role": "user", "content": f"{PASSAGE}\n\nWhere does Bob live?"}]
    prompt = chat.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert shown.around[0] + PASSAGE + shown.around[-1] == prompt and not any(shown.around[1:-1])
    assert [unit["text"] for unit in shown.units] == [*shown.tokens]
    assert [unit["attention"] for unit in shown.units] == [*shown.scores["attention"]]


def test_units_of_a_tokenizer_of_words_are_shown_apart():
    """It has no token for white space; its decoder puts a blank between any two words."""
    words = build_tokenizer(["amber anchor barley basil candle cedar"])
    context = "amber anchor\n\nbarley basil"
    rows = [{"context": context, "question": "amber", "answer": "anchor", "expected": "Anchor"}]
    data = Answers(rows, units="passage", template="{context}\n\n{question}")
    shown = audit((tiny_language_models.llama(words), words), data, **FEW).examples[0]
    assert shown.label == "Anchor" and shown.correct
    assert shown.tokens == ("amber anchor", "barley basil") and not shown.glued
    assert [*map(str.strip, shown.around)] == ["", "", "amber"]


def test_the_page_shows_prompt_units_and_answer(report):
    page = report.to_html()
    assert "knockout" in page and "&lt;|assistant|&gt;" in page and "The answer depends on" in page
    assert "of it on these sentences" in page and "of it on these" in report.to_markdown()
    assert "weighs sentences of the prompt" in report.to_text(verbose=True)


def test_the_command_finds_columns_and_is_repeatable(cli, folder, report):
    command = ["audit", "--model", folder / "model", "--dataset", folder / "qa.jsonl"]
    command += ["--tests", "correlation", "--no-single-heads", "--max-new-tokens", "4", "--json"]
    found = json.loads(cli(*command).out)
    assert found["statistics"] == json.loads(
        json.dumps(convert_report_to_json(report)["statistics"])
    )
    assert found["provenance"]["asked_for"]["max_new_tokens"] == 4


def test_an_audit_goes_on_with_the_same_answers(folder, tmp_path, report, monkeypatch):
    """None is said again, but what was being written when a run was killed."""
    asked, own = [], answers.generate_answers

    def counted(model, tokenizer, prompts, *others):
        asked.append([*prompts])
        return own(model, tokenizer, prompts, *others)

    monkeypatch.setattr(answers, "generate_answers", counted)
    data = Answers(str(folder / "qa.jsonl"), max_new_tokens=4)
    first = audit(str(folder / "model"), data, output_dir=tmp_path, **FEW)
    [file] = tmp_path.glob(".answers-*.jsonl")
    for _ in range(2):
        again = audit(str(folder / "model"), data, output_dir=tmp_path, **FEW)
        assert first.examples == again.examples == report.examples
        assert first.statistics == again.statistics == report.statistics
        file.write_bytes(file.read_bytes()[:-3])
    audit(str(folder / "model"), data, output_dir=tmp_path, **FEW)
    assert [*map(len, asked)] == [2, 0, 1, 1]
    other = Answers(str(folder / "qa.jsonl"), max_new_tokens=5)
    again = {"output_dir": tmp_path, **FEW}
    refused(
        "(max_new_tokens 4 instead of max_new_tokens 5)",
        audit,
        str(folder / "model"),
        other,
        **again,
    )
    assert len(asked) == 4 and file.exists()


def set_end_tokens(model_folder, end_tokens):
    """Set the end tokens in the model's generation_config.json."""
    config = transformers.GenerationConfig.from_pretrained(model_folder)
    config.eos_token_id = end_tokens
    config.save_pretrained(model_folder)


def test_other_end_tokens_are_another_audit(folder, tmp_path, copy_of):
    """Answers end at them, so neither rows nor cached answers of the former end tokens are used."""
    root = copy_of(folder)
    command = (str(root / "model"), Answers(str(root / "qa.jsonl"), max_new_tokens=4))
    out = tmp_path / "out"
    first = audit(*command, output_dir=out, **FEW)
    [cache_file] = out.glob(".answers-*.jsonl")
    _, first_answer, _ = json.loads(cache_file.read_text().split("\n")[1])
    set_end_tokens(root / "model", [first_answer[1]])
    refused("end_tokens", audit, *command, output_dir=out, **FEW)
    # Without rows, only the hidden file with the answers is left of the first audit.
    shutil.copytree(
        out, tmp_path / "hidden", ignore=lambda folder, names: {*names} - {cache_file.name}
    )
    again = audit(*command, output_dir=tmp_path / "hidden", **FEW)
    fresh = audit(*command, **FEW)
    # The noise of a unit may be NaN, which equals nothing, so the examples are compared as text.
    assert repr(again.examples) == repr(fresh.examples) != repr(first.examples)
    assert again.to_pandas().equals(fresh.to_pandas())
    assert not again.to_pandas().equals(first.to_pandas())


def test_end_tokens_of_answers_in_the_data_are_no_setting(folder, tmp_path, copy_of):
    """The model generates nothing, so the same audit continues after the end tokens were changed."""
    root = copy_of(folder)
    rows = [
        {**json.loads(line), "answer": "Bob."}
        for line in (root / "qa.jsonl").read_text().splitlines()
    ]
    (root / "qa.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = (str(root / "model"), Answers(str(root / "qa.jsonl")))
    out = tmp_path / "out"
    first = audit(*command, output_dir=out, **FEW)
    set_end_tokens(root / "model", [5, 6, 7])
    assert audit(*command, output_dir=out, **FEW).statistics == first.statistics


def test_a_folder_is_checked_and_locked_before_anything_is_generated(folder, tmp_path, monkeypatch):
    """A folder of others, a link that leads out of it, and a folder that another run uses."""

    def refuse_to_generate(*arguments):
        raise AssertionError("generated before the folder was checked")

    command = (str(folder / "model"), Answers(str(folder / "qa.jsonl"), max_new_tokens=4))
    reference = tmp_path / "reference"
    audit(*command, output_dir=reference, **FEW)
    [cache_file] = reference.glob(".answers-*.jsonl")
    monkeypatch.setattr(answers, "generate_answers", refuse_to_generate)

    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").touch()
    refused("contains other files", audit, *command, output_dir=tmp_path / "thesis", **FEW)
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["thesis.tex"]

    (tmp_path / "precious").write_text("all of it")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / cache_file.name).symlink_to(tmp_path / "precious")
    refused("leads out of the output folder", audit, *command, output_dir=linked, **FEW)
    assert (tmp_path / "precious").read_text() == "all of it"

    (tmp_path / "used").mkdir()
    (tmp_path / "used" / cache_file.name).write_text("answers of the other run\n")
    with lock_folder(tmp_path / "used"):
        refused("another run", audit, *command, output_dir=tmp_path / "used", **FEW)
        assert (tmp_path / "used" / cache_file.name).exists()


def make_undefined(model, token):
    """Let a language model return NaN for every prompt that contains a token."""

    def fill_with_nan(module, arguments, embeddings):
        is_token = (arguments[0] == token)[..., None]
        return torch.where(is_token, torch.nan, embeddings)

    model.get_input_embeddings().register_forward_hook(fill_with_nan)
    return model


UNDEFINED = [*product(["sources", "head_ablation"], [None, " Bob."], [1, 8])]
"""Tests, answers in the data, and numbers of prompts that are processed together."""
UNDEFINED_EVERY_DAY = (("sources", None, 1), ("head_ablation", " Bob.", 8))


@pytest.mark.parametrize(
    ("test", "answer", "room"),
    [
        case if case in UNDEFINED_EVERY_DAY else pytest.param(*case, marks=pytest.mark.slow)
        for case in UNDEFINED
    ],
)
def test_a_prompt_with_undefined_logits_is_named_and_left_out(
    test, answer, room, chat, tmp_path, monkeypatch, caplog
):
    """The rows of the other prompts are those of an audit without this prompt."""
    monkeypatch.setattr(LanguageModelAdapter, "n_parallel_batches", room)
    rows = [
        {"context": row["context"], "question": row["question"], "example_id": 10 + number}
        for number, row in enumerate(ROWS * 2)
    ]
    if answer is not None:
        rows = [{**row, "answer": answer} for row in rows]
    rows[1]["context"] = "Zyx came. " + rows[1]["context"]
    other_tokens = {*chat(" ".join(row["context"] for row in ROWS))["input_ids"]}
    token = next(t for t in chat("Zyx")["input_ids"] if t not in other_tokens)
    model = make_undefined(tiny_language_models.llama(chat), token)
    options = AuditOptions(groups=False) if test == "head_ablation" else AuditOptions()
    given = {"tests": [test], "options": options, "progress": False, "tokenizer": chat}
    folder = tmp_path if room == 1 else None
    report = audit(model, Answers(rows, max_new_tokens=3), output_dir=folder, **given)
    assert "logits for text 11 are NaN or infinite, so this prompt is left out" in caplog.text
    assert report.n == 3
    expected = audit(model, Answers([rows[0], *rows[2:]], max_new_tokens=3), **given)
    assert_same_rows(report.to_pandas(), expected.to_pandas(), tolerance=1e-5)
    if test == "sources":
        data = Answers(rows, max_new_tokens=3)
        assert estimate_audit(model, data, [test], options=options, tokenizer=chat).total > 0
    undefined = Answers([rows[1]], max_new_tokens=3)
    refused("NaN or infinite. Check the model's weights", audit, model, undefined, **given)


@pytest.mark.parametrize("room", [8, 3])
def test_prompts_side_by_side_say_what_each_says_alone(chat, model, monkeypatch, room):
    """Also where there is memory for a few of them only."""
    rows = [{**row, "context": row["context"] + " Four." * k} for k in range(3) for row in ROWS]
    expected = audit((model, chat), Answers(rows), progress=False).to_pandas()
    as_one, most = PromptRunner._run_joined, []

    def run(self, passes):
        prompts = {id(one.state) for one in passes}
        if len(prompts) > room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        most.append(len(prompts))
        return as_one(self, passes)

    monkeypatch.setattr(PromptRunner, "_run_joined", run)
    monkeypatch.setattr(LanguageModelAdapter, "n_parallel_batches", 8)
    found = audit((model, chat), Answers(rows), progress=False).to_pandas()
    pd.testing.assert_frame_equal(found, expected, check_exact=False, rtol=1e-4, atol=1e-6)
    assert max(most) == min(room, len(rows))


# --- what is asked by default ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def usual(folder):
    """The audit of which nothing was said."""
    return audited(folder, "answers-by-default", progress=False)


def test_by_default_all_attention_is_asked_as_a_whole(usual):
    assert usual.provenance["tests"] == ["permutation", "sources", "knockout"]
    assert usual.rows.select_test_columns().sites == {(ALL, ALL)}
    assert "left_out" not in usual.provenance
    assert {s.statistic for s in usual.statistics}.isdisjoint(UNIT_STATISTICS)
    assert usual.provenance["options"]["permutation"]["n_permutations"] == 20


def test_heads_are_tested_by_name(folder):
    data = Answers(str(folder / "qa.jsonl"), max_new_tokens=4)
    few = {"tests": ["permutation"], "progress": False}
    every = audit(str(folder / "model"), data, options=AuditOptions(heads=["all"]), **few)
    layer = audit(str(folder / "model"), data, options=AuditOptions(layers=[1]), **few)
    heads = {(layer, head) for layer in range(2) for head in range(4)}
    assert every.rows.select_test_columns().sites == heads | {(ALL, ALL), (0, ALL), (1, ALL)}
    assert layer.rows.select_test_columns().sites == {(1, head) for head in range(4)} | {(1, ALL)}
    said = "Choose another test, or test single heads with --heads all"
    refused(said, audit, str(folder / "model"), data, ["head_roles"], progress=False)


def test_prompts_are_shown_from_the_rows_as_from_the_model(usual, report):
    """No prompt is run again to be shown; what its rows say is what a new pass says."""
    by_id = {text.example_id: text for text in usual.examples}
    assert by_id.keys() == {text.example_id for text in report.examples}
    for explained in report.examples:
        of_rows = by_id[explained.example_id]
        assert (
            of_rows.importance_summary == explained.importance_summary
            and "depends on" in of_rows.importance_summary
        )
        assert of_rows.matters == explained.matters
        for name, values in explained.scores.items():
            assert of_rows.scores[name] == pytest.approx(values, abs=1e-5)
        assert of_rows.numbers == pytest.approx(explained.numbers, abs=1e-5)
        assert (of_rows.tokens, of_rows.around) == (explained.tokens, explained.around)


def test_a_table_has_a_row_for_every_sentence(usual):
    table = usual.sentences()
    assert table.text.tolist() == [unit for text in usual.examples for unit in text.tokens]
    first = usual.examples[0]
    own = table[table.example_id == 0]
    assert own.leave_one_out.tolist() == [*first.scores["leave_one_out"]]
    assert own.unit.tolist() == [*range(1, len(own) + 1)]
    assert table.matters.sum() == sum(len(text.matters) for text in usual.examples)
    printed = str(first)
    asked, answered = printed.splitlines()[:2]
    assert asked.endswith("?") and asked.removeprefix("question: ") in first.around[-1]
    assert answered == f"answered: {first.predicted}"
    assert first.importance_summary in printed and all(unit in printed for unit in first.tokens)


@pytest.mark.parametrize(
    ("losses", "weights", "matters", "said"),
    [
        ((0.1, 4.2, 0.0), (0.5, 0.2, 0.1), (1,), "The answer depends on sentence 2 (66.7 times less likely without it); attention ranks sentence 1 first."),
        ((0.1, 0.5, 0.0), (0.1, 0.2, 0.1), (1,), "The answer depends slightly on sentence 2 (1.6 times less likely without it); attention ranks it first."),
        ((0.1, 0.4, 0.0), (0.1, 0.2, 0.1), (1,), "The answer rests on no single sentence (without sentence 2, it is 1.5 times less likely); attention ranks it first."),
        ((0.1, 0.2, 0.0), (0.5, 0.2, 0.1), (), "No single sentence supports the answer more than noise; attention ranks sentence 1 first."),
        ((-1.0, -0.2, -2.0), (0.5, 0.2, 0.1), None, "No single sentence supports the answer more than noise; attention ranks sentence 1 first. Without sentence 3, the answer would be 7.4 times more likely."),
    ],
)  # fmt: skip
def test_one_sentence_says_what_the_answer_rests_on(losses, weights, matters, said):
    known = {"unit": "sentence", "matters": matters, "is_greedy": False}
    scores = {"attention": weights, "leave_one_out": losses}
    text = HighlightedText(0, ("A.", "B.", "C."), "b", None, None, None, scores, **known)
    assert text.importance_summary == f"{said} The model itself would give another answer."
    assert replace(text, unit="").importance_summary == ""


@pytest.mark.parametrize(
    ("weights", "map_scores", "clause"),
    [
        ((0.5, 0.2, 0.1), (0.1, 0.8, 0.1), "attention ranks sentence 1 first, and the fitted map ranks sentence 2 first."),
        ((0.1, 0.6, 0.1), (0.1, 0.1, 0.8), "attention ranks it first, and the fitted map ranks sentence 3 first."),
        ((0.1, 0.6, 0.1), (0.1, 0.8, 0.1), "attention and the fitted map rank it first."),
    ],
)  # fmt: skip
def test_the_sentence_about_a_map_names_its_unit(weights, map_scores, clause):
    scores = {"attention": weights, "map": map_scores, "leave_one_out": (0.1, 4.2, 0.0)}
    options = {"unit": "sentence", "matters": (1,)}
    text = HighlightedText(0, ("A.", "B.", "C."), "b", None, None, None, scores, **options)
    assert text.importance_summary.endswith(f"(66.7 times less likely without it); {clause}")


MANY_SENTENCES = " ".join(f"Room {k} is {'red' if k % 2 else 'blue'}." for k in range(1, 20))


def test_of_many_units_only_the_foremost_are_deleted(chat, model):
    """Those of most attention and of most loss by knockout; the page says so."""
    rows = [{"context": MANY_SENTENCES, "question": "Which room is red?", "answer": "Room 1"}]
    report = audit((model, chat), Answers(rows), progress=False)
    shown = report.examples[0].scores
    deleted = [k for k, loss in enumerate(shown["leave_one_out"]) if loss != 0]
    by_attention = sorted(range(19), key=lambda k: -shown["attention"][k])[:5]
    others = [k for k in range(19) if k not in by_attention]
    by_knockout = sorted(others, key=lambda k: -shown["knockout"][k])[:11]
    assert sorted(deleted) == sorted(by_attention + by_knockout)
    assert str(report.examples[0]).count("          –") == 19 - len(deleted)
    assert all(loss != 0 for loss in shown["knockout"])
    assert "1 of 1 prompts have more than 16 units" in " ".join(report.notes)


def test_prompts_are_counted_while_they_are_answered_and_what_they_can_tell_is_said(
    folder, chat, model, capsys, monkeypatch
):
    monkeypatch.setattr(progress, "SECONDS_TO_FIRST_LINE", 0.0)
    data = Answers(str(folder / "qa.jsonl"), max_new_tokens=2)
    audit((model, chat), data, ["sources"])
    said = capsys.readouterr().err
    assert "2 of 2 prompts" in said
    assert "fewer than 10 prompts cannot answer any question" in said


def test_what_twenty_prompts_can_tell():
    low, high = beta.ppf([0.025, 0.975], [10, 11], [11, 10])  # Clopper and Pearson, 10 of 20
    assert (
        f"20 prompts measure a proportion to within ±{(high - low) / 2:.2f} or better"
        in warn_about_precision(20, True)
    )
