"""Controls of language models: other passages under the same questions, and audits with them."""

import pytest

import speakers
from hf_attnprobe import AttnProbeError, AuditOptions, audit
from hf_attnprobe.auditing.control import conflicting, foreign
from hf_attnprobe.data.answers import Answers
from hf_attnprobe.faithfulness.options import Sources
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.storage.rows import draw_folder, read_rows


def text(example_id, question, units, answer):
    """A prompt of a token 1, units, a question, and the answer; a token 2 between units."""
    ids, unit_ids = [1], [-1]
    for number, unit in enumerate(units):
        ids += [*unit, 2]
        unit_ids += [number] * len(unit) + [-1]
    ids, unit_ids = [*ids[:-1], *question, *answer], unit_ids[:-1]
    n_behind = len(question) + len(answer)
    inputs = {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "special_tokens_mask": [int(u < 0) for u in unit_ids] + [1] * n_behind,
        "unit_ids": unit_ids + [-1] * n_behind,
        "labelled": [0] * (len(ids) - len(answer)) + [1] * len(answer),
    }
    return Text(example_id, -1, inputs)


TEXTS = [
    text(4, [50], [[10, 11], [12]], [60]),
    text(7, [51, 52], [[20], [21], [22]], [61, 62]),
    text(9, [53], [[10, 11], [12]], [63]),  # the passage of the first
]


def test_a_foreign_text_is_the_own_question_over_another_passage():
    for seed in range(5):
        found = foreign(TEXTS, seed)
        first, second = found[4].inputs, found[7].inputs
        assert first["input_ids"] == [1, 20, 2, 21, 2, 22, 50, 60]
        assert first["unit_ids"] == [-1, 0, -1, 1, -1, 2, -1, -1]
        assert first["labelled"] == [0] * 7 + [1]
        assert second["input_ids"] == [1, 10, 11, 2, 12, 51, 52, 61, 62]
        assert second["labelled"] == [0] * 7 + [1, 1]
        assert {len(values) for values in second.values()} == {9}
        assert found[9].inputs["input_ids"][1:6] == [20, 2, 21, 2, 22]
        assert {k: t.example_id for k, t in found.items()} == {4: 4, 7: 7, 9: 9}


def test_a_long_passage_is_not_taken_where_a_shorter_one_fits():
    long = text(1, [50], [[30] * 40], [60])
    short = text(2, [50] * 45, [[31]], [61])  # with the long passage it would be the longest
    other = text(3, [50], [[32], [33]], [62])
    for seed in range(5):
        assert foreign([long, short, other], seed)[2].inputs["input_ids"][1:4] == [32, 2, 33]


def test_there_is_no_foreign_passage_where_all_are_the_same():
    assert foreign(TEXTS[::2], 0) == {}
    assert foreign(TEXTS[:1], 0) == {}


@pytest.fixture(scope="module")
def speaker():
    tokenizer = speakers.tokenizer(chat=False)
    return speakers.llama(tokenizer), tokenizer


ROWS = [
    {"context": f"{name} lives in {city}. {other} sings. Tickets cost {n} euros.",
     "question": f"Where does {name} live?", "answer": city}
    for name, city, other, n in [
        ("Ann", "Rome", "Bob", 9), ("Bob", "Oslo", "Li", 5), ("Li", "Kiew", "Ann", 2)
    ]
]  # fmt: skip


def test_in_a_conflict_the_passage_has_another_answer(speaker):
    from hf_attnprobe.adapters import wrap
    from hf_attnprobe.inference.answers import answered
    from hf_attnprobe.inference.choices import encode

    model, tokenizer = speaker
    adapter = wrap(model)
    data = Answers(ROWS)
    examples = answered(data.examples(), data, tokenizer, adapter, model)
    texts = encode(tokenizer, examples, adapter).texts
    found = conflicting(texts, tokenizer, 0)
    answers = {row["answer"] for row in ROWS}
    for whole, row in zip(texts, ROWS, strict=True):
        changed = found[whole.example_id].inputs
        said = tokenizer.decode(changed["input_ids"])
        (other,) = [a for a in answers if f"lives in {a}" in said]
        assert other != row["answer"]
        expected = tokenizer.decode(whole.inputs["input_ids"])
        expected = expected.replace(f"lives in {row['answer']}", f"lives in {other}")
        assert said == expected
        n = sum(whole.inputs["labelled"])
        assert changed["input_ids"][-n:] == whole.inputs["input_ids"][-n:]
        assert sorted(set(changed["unit_ids"])) == sorted(set(whole.inputs["unit_ids"]))
        assert {len(values) for values in changed.values()} == {len(changed["input_ids"])}


@pytest.mark.parametrize("control", ["auto", "conflict"])
def test_an_audit_asks_the_questions_of_language_models(speaker, control, tmp_path):
    model, tokenizer = speaker
    report = audit(
        model,
        Answers(ROWS),
        [Sources(exact_units=0), "knockout", "permutation", "head_roles"],
        tokenizer=tokenizer,
        options=AuditOptions(control=control, batch_size=1),
        output_dir=tmp_path,
        progress=False,
    )
    rules = {finding.rule for finding in report.findings}
    assert {"passage", "source", "exchange", "mediated"} <= rules and "accuracy" not in rules
    tests = set(read_rows(draw_folder(tmp_path, 0)).test)
    assert "sources" in tests and "knockout" not in tests
    said = str(report)
    assert "passage" in said.lower() and "guessing" not in said


def test_other_models_have_no_passage_to_exchange(checkpoint, reviews_folder):
    with pytest.raises(AttnProbeError, match="expected a model with AnswersFromPassage"):
        audit(checkpoint, reviews_folder, ["permutation"], options=AuditOptions(control="foreign"))
