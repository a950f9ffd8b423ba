"""The function and the command, compared with a loop over plain Transformers."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnprobe import CiteOptions, cite, wrap
from hf_attnprobe.citations import api, measurements, rule
from hf_attnprobe.citations.report import USES_BY_SHARE, CitationReport, CitedAnswer, CitedStatement
from hf_attnprobe.citations.rule import Classification, Use
from hf_attnprobe.citations.statements import parse_answer
from tests.helpers import tiny_language_models, tiny_models
from tests.helpers.error_messages import refused


ROWS = [
    {
        "passages": [
            "Ann lives in Rome.",
            {"title": "Bob", "text": "Bob lives in Oslo. He sings!"},
        ],
        "question": "Where does Bob live?",
        "answer": "Bob lives in Oslo [2]. Ann lives in Rome. [1, 2]",
    },
    {
        "passages": ["Tickets cost nine euros."],
        "question": "How much?",
        "answer": "Nine euros [1].",
    },
]


@pytest.fixture(scope="module", params=[True, False], ids=["chat", "plain"])
def tokenizer(request):
    return tiny_language_models.tokenizer(chat=request.param)


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_language_models.llama(tokenizer)


def test_rows_without_a_generated_answer_are_left_out(model, tokenizer, monkeypatch, caplog):
    """An empty answer is named, and a prompt with undefined logits has no answer at all."""
    ids = tokenizer("Bob lives in Oslo [2].", add_special_tokens=False)["input_ids"]
    answers = {"row 1": ids, "row 2": []}
    monkeypatch.setattr(api, "generate_answers", lambda *_: answers)
    rows = [{**ROWS[number % 2], "answer": None} for number in range(3)]
    report = cite(model, tokenizer, rows, progress=False)
    assert len(report.answers) == 1
    assert "answer to row 2 is empty, so the row is left out" in caplog.text


def render_by_hand(tokenizer, passages, question):
    """Write the prompt with the remaining passages, which keep their numbers."""
    context = "".join(f"{passage}\n\n" for passage in passages)
    if tokenizer.chat_template is None:
        return f"{context}Question: {question}\nAnswer:"
    turn = [{"role": "user", "content": f"{context}{question}"}]
    return tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)


def compute_log_prob_by_hand(model, tokenizer, prompt, statement):
    """Sum the log-probabilities of the statement's tokens in one forward pass."""
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    space = " " if tokenizer.chat_template is None else ""
    ids = tokenizer(prompt + space + statement, add_special_tokens=False)["input_ids"]
    assert ids[: len(prompt_ids)] == prompt_ids
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    positions = torch.arange(len(prompt_ids), len(ids))
    return float(logits.log_softmax(-1)[positions - 1, torch.tensor(ids)[positions]].sum())


def test_log_probabilities_are_those_of_shortened_prompts(model, tokenizer):
    report = cite(model, tokenizer, ROWS, progress=False)
    bodies = ["[1] Ann lives in Rome.", "[2] Bob\nBob lives in Oslo. He sings!"]
    for statement in report.answers[0].statements:

        def compute(*passages, text=statement.text):
            prompt = render_by_hand(tokenizer, passages, ROWS[0]["question"])
            return compute_log_prob_by_hand(model, tokenizer, prompt, text)

        log_probs = statement.measurement.log_probs
        first, second = compute(bodies[0]), compute(bodies[1])
        assert log_probs.full == pytest.approx(compute(*bodies), abs=1e-3)
        assert log_probs.prior == pytest.approx(compute(), abs=1e-3)
        assert log_probs.without == pytest.approx((second, first), abs=1e-3)
        assert log_probs.alone == pytest.approx((first, second), abs=1e-3)


def test_unexpected_spans_are_words_that_greedy_decoding_would_not_write(model, tokenizer):
    """The reference generates one token after each token of the statement, without passages."""
    statement = cite(model, tokenizer, ROWS, progress=False).answers[0].statements[0]
    prompt = render_by_hand(tokenizer, [], ROWS[0]["question"])
    space = " " if tokenizer.chat_template is None else ""
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = tokenizer(prompt + space + statement.text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    spans, is_span_open = [], False
    for position in range(len(prompt_ids), len(ids)):
        text = tokenizer.decode(ids[position])
        distribution = logits[position - 1]
        is_unexpected = int(distribution.argmax()) != ids[position] and any(map(str.isalnum, text))
        if is_unexpected and not is_span_open:
            spans.append(["", 0.0])
        if is_unexpected:
            spans[-1][0] += text
            spans[-1][1] += float(distribution[ids[position]])
        is_span_open = is_unexpected
    unexpected_spans = statement.measurement.log_probs.unexpected_spans
    assert [span.text for span in unexpected_spans] == [text.strip() for text, _ in spans]
    assert [span.prior for span in unexpected_spans] == pytest.approx(
        [log_prob for _, log_prob in spans], abs=1e-3
    )
    assert spans


def test_attention_is_the_mean_over_heads_and_rows(model, tokenizer):
    """The statement has no other statement before it, so a plain pass gives the same attention."""
    (answer,) = cite(model, tokenizer, ROWS[1:], progress=False).answers
    body, statement = "[1] Tickets cost nine euros.", answer.statements[0]
    prompt = render_by_hand(tokenizer, [body], ROWS[1]["question"])
    space = " " if tokenizer.chat_template is None else ""
    encoded = tokenizer(
        prompt + space + statement.text, add_special_tokens=False, return_offsets_mapping=True
    )
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(torch.tensor([encoded["input_ids"]]), output_attentions=True).attentions
    start, end = prompt.index(body), prompt.index(body) + len(body) + 2
    # The first token of a plain prompt is the attention sink.
    keys = [
        k for k, (a, b) in enumerate(encoded["offset_mapping"]) if a >= start and b <= end and k
    ]
    n_statement = statement.measurement.log_probs.n_tokens
    mean = torch.stack(weights).mean((0, 1, 2))[-n_statement - 1 : -1][:, keys].sum(-1).mean()
    assert statement.measurement.attention[0] == pytest.approx(float(mean), abs=1e-4)


def test_the_command_writes_the_report_and_fails_on_a_condition(model, tokenizer, tmp_path, cli):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    data = tmp_path / "answers.jsonl"
    data.write_text("\n".join(map(json.dumps, ROWS)))
    out = tmp_path / "out"
    words = ("cite", "--model", tmp_path / "model", "--dataset", data)
    run = cli(*words, "--output-dir", out, "--fail-on", "used<.8", "undecided>1")
    assert run.code == 3 and "used is 0.000, which is below the limit 0.8" in run.err, run.err
    assert "[2] (unused)" in run.out and str(out / "report.html") in run.out
    page = (out / "report.html").read_text()
    assert '<mark class="label bad" title="unused">[2]</mark>' in page
    results = json.loads((out / "citations.json").read_text())
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    loaded_tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    report = cite(saved, loaded_tokenizer, ROWS, progress=False)
    gains = [
        statement["gain"] for answer in results["answers"] for statement in answer["statements"]
    ]
    assert gains == pytest.approx([*report.to_frame().groupby(["row", "statement"]).gain.first()])
    rendered = cli("report", out, "--output", tmp_path / "copy.html")
    assert rendered.code == 0 and (tmp_path / "copy.html").read_text() == page


def test_missing_answers_are_generated_from_the_prompt(model, tokenizer):
    row = {"passages": ["Ann lives in Rome."], "question": "Where?"}
    options = CiteOptions(template="{context} Q: {question} A:", max_new_tokens=12)
    (answer,) = cite(model, tokenizer, [row], options=options, progress=False).answers
    prompt = "[1] Ann lives in Rome. Q: Where? A:"
    if tokenizer.chat_template is not None:
        turn = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    output = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=1)
    text = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()
    assert answer.is_generated
    assert text.startswith(answer.answer.text)
    assert answer.answer.text == text or tokenizer.chat_template is None


def test_other_models_and_long_prompts_are_refused(model, tokenizer):
    classifier = tiny_models.bert(tokenizer, layers=1, width=8)
    refused("expected a language model", cite, classifier, tokenizer, ROWS, progress=False)
    long_row = {**ROWS[0], "passages": ["Ann lives in Rome. " * 300]}
    del long_row["answer"]
    refused("row 2 has", cite, model, tokenizer, [ROWS[1], long_row], progress=False)
    options = CiteOptions(template="{question}")
    refused("template must contain", cite, model, tokenizer, ROWS, options=options)


def test_the_adapter_of_the_user_is_not_changed(model, tokenizer):
    adapter = wrap(model)
    report = cite(adapter, tokenizer, ROWS, progress=False)
    assert adapter.rows == "behind"
    assert report.to_json() == cite(model, tokenizer, ROWS, progress=False).to_json()


# --- the report ---------------------------------------------------------------------------------


def make_report(*answers):
    """Make a report from answers, each a list of the classes of its citations."""
    cited_answers = []
    for row, uses in enumerate(answers, 1):
        numbers = tuple(range(1, len(uses) + 1))
        parsed = parse_answer("Ann left " + "".join(f"[{number}]" for number in numbers) + ".")
        log_probs = rule.StatementLogProbs(
            -1.0, -20.0, (-20.0,) * len(uses), (-1.0,) * len(uses), 3
        )
        measurement = measurements.StatementMeasurement(log_probs, (0.1,) * len(uses), "Ann.", 1)
        statement = CitedStatement(
            "Ann left.", numbers, measurement, Classification(tuple(uses), "a reason")
        )
        names = ("Ann left.",) * len(uses)
        cited_answers.append(CitedAnswer(row, "Who?", parsed, False, names, (statement,)))
    return CitationReport("tiny", tuple(cited_answers), (), "the only head", {})


def test_shares_leave_out_undecided_citations():
    report = make_report([Use.USED, Use.OTHER, Use.UNDECIDED], [Use.USED], [Use.KNOWN])
    assert report.estimate_share("used").value == 2 / 4
    assert report.estimate_share("known").value == 1 / 4
    assert report.estimate_share("undecided").value == 1 / 5
    low, high = report.estimate_share("used").ci95
    assert 0 <= low < 0.5 < high <= 1


def test_the_interval_counts_answers_and_not_citations():
    """Ten answers with ten equal citations each are worth about as much as ten citations."""
    many = make_report(*([[Use.USED] * 10] * 5 + [[Use.OTHER] * 10] * 5)).estimate_share("used")
    few = make_report(*([[Use.USED]] * 5 + [[Use.OTHER]] * 5)).estimate_share("used")
    assert many.value == few.value == 0.5
    assert many.ci95 == pytest.approx(few.ci95)
    all_used = make_report(*[[Use.USED] * 10] * 10).estimate_share("used")
    # Exact interval: no miss in ten answers excludes shares below 0.025 ** (1 / 10).
    assert all_used.ci95 == pytest.approx((0.025 ** (1 / 10), 1.0))


def test_answers_without_markers_have_no_share():
    report = make_report([])
    assert math.isnan(report.estimate_share("used").value)
    assert "no markers" in str(report)
    data = json.loads(report.to_json())
    assert all(data["shares"][name]["value"] is None for name in USES_BY_SHARE)


def test_every_format_names_the_class_of_a_marker():
    report = make_report([Use.USED, Use.OTHER])
    assert "[1] (used)" in report.to_text()
    assert r"\[2\] (another source was used)" in report.to_markdown()
    assert '<mark class="label good" title="used">[1]</mark>' in report.to_html()
