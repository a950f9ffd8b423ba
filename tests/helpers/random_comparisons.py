"""Hostile comparisons drawn by a seed: what the package says beside what is computed here.

Language models are run as plain Transformers, edits written into the softmax of their attention;
places follow from how a prompt is put together here. A case returns "right" or "refused" (in one
line); what is silently wrong is an AssertionError.
"""

import copy
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from hf_attnprobe import Answers, AttnProbeError, AuditOptions, audit, compare, compare_audits
from tests.helpers import tiny_language_models
from tests.helpers.manual_passes import edit_softmax


CLOSE = {"abs": 2e-4, "rel": 2e-4}
"""Of nats in float32."""
Draws = random.Random


def one_line(error: AttnProbeError) -> str:
    assert "\n" not in str(error) and len(str(error)) < 500, str(error)
    return "refused"


# --- Models and tokenizers ----------------------------------------------------------------------------


@cache
def tokenizer(kind: str) -> Any:
    return tiny_language_models.tokenizer(chat=kind == "chat", begins=kind == "begins")


SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}
LONG = {"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 6.0]}
LONG |= {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 30}
SMALL = {"n_embd": 32, "n_layer": 2, "n_head": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": SIZES,
    "Qwen3": SIZES,
    "Mistral": SIZES | {"sliding_window": 9},
    "Gemma2": SIZES | {"sliding_window": 9},
    "GPTNeoX": {**SIZES, "num_key_value_heads": None, "head_dim": None},
    "Olmo2": {**SIZES, "head_dim": None},
    "Phi3": {**SIZES, "head_dim": None, "rope_parameters": LONG, "original_max_position_embeddings": 30},
    "GPT2": SMALL,
    "Bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
}  # fmt: skip


@cache
def model(family: str, seed: int) -> Any:
    """A random decoder, eager, since what edits it edits its softmax."""
    words = tokenizer("plain")
    config = getattr(transformers, f"{family}Config")(
        **{name: value for name, value in FAMILIES[family].items() if value is not None},
        vocab_size=len(words), initializer_range=0.3, max_position_embeddings=512,
        bos_token_id=words.bos_token_id, eos_token_id=words.eos_token_id, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    kind = getattr(transformers, f"{family}{'LMHeadModel' if family == 'GPT2' else 'ForCausalLM'}")
    made = kind._from_config(config, attn_implementation="eager")
    return made.eval()


# --- Prompts put together here --------------------------------------------------------------------------


WORDS = ["Paris", "You", "helpful", "🐈", "naïve", "a", "user", "No", "這", "{question}", "3.5"]
WORDS += ["-"]
WORDS += ["Question", "Answer:", "<|end|>", "Ω", "it's", "(no)", "𝒳"]


@dataclass(frozen=True)
class Asked:
    """A row with what it must become: the prompt, and the characters of its units."""

    row: dict[str, Any]
    text: str
    units: list[tuple[int, int]]
    kind: str
    words: Any
    template: str | None = None


def phrase(draws: Draws, most: int = 4) -> str:
    return " ".join(draws.choices(WORDS, k=draws.randint(1, most)))


def in_chat(turns: Sequence[tuple[str, str]], words: Any) -> str:
    said = [{"role": role, "content": content} for role, content in turns]
    return str(words.apply_chat_template(said, tokenize=False, add_generation_prompt=True))


def of_passage(draws: Draws, kind: str) -> tuple[Any, str, list[tuple[int, int]]]:
    """What a row gives as context, its text, and the units in it, of characters."""
    if kind == "sentence":
        parts = [f"Cat {draws.choice('abcde')} sat on {k}." for k in range(draws.randint(2, 5))]
        text, gap = " ".join(parts), 1
    elif kind == "passage":
        parts = [phrase(draws) for _ in range(draws.randint(2, 4))]
        if draws.random() < 0.5:  # of a list, where an empty line divides nothing
            parts[0] += f"\n\n{phrase(draws)}"
            starts = [0, *accumulate(len(part) + 2 for part in parts)]
            units = [(a, a + len(part)) for a, part in zip(starts, parts, strict=False)]
            return parts, "\n\n".join(parts), units
        text, gap = "\n\n".join(parts), 2
    else:
        parts = draws.choices(WORDS, k=draws.randint(2, 7))
        text, gap = " ".join(parts), 1
    starts = [0, *accumulate(len(part) + gap for part in parts)][: len(parts)]
    return text, text, [*zip(starts, [*starts[1:], len(text)], strict=True)]


def asked(draws: Draws, *, answer: bool = True) -> Asked:
    """A row of any form, of any units."""
    words = tokenizer(draws.choice(["plain", "chat", "begins"]))
    kind = draws.choice(["sentence", "word", "word", "token", "passage", "turn"])
    question = phrase(draws)
    is_chat = words.chat_template is not None
    row: dict[str, Any] = {"answer": draws.choice(["Li", " Bob", "Oslo 🐈"])} if answer else {}
    if kind == "turn" and is_chat:
        turns = [
            (draws.choice(["user", "assistant"]), phrase(draws)) for _ in range(draws.randint(2, 4))
        ]
        turns.append(("user", question))
        row["turns"] = [{"role": role, "content": content} for role, content in turns]
        ends = [in_chat([("user", "")] * 0 + turns[:k], words) for k in range(1, len(turns))]
        tail = len("<|end|>\n<|assistant|>\n")
        units = [
            (len(e) - tail - len(c), len(e) - tail) for e, (_, c) in zip(ends, turns, strict=False)
        ]
        return Asked(row, in_chat(turns, words), units, kind, words)
    kind = "word" if kind == "turn" else kind
    given, text, units = of_passage(draws, kind)
    row["context"] = given
    template = None
    if draws.random() < 0.3:
        before = draws.choice(["", f"{phrase(draws)}\n", "{question} "])
        row["prompt"] = whole = f"{before}{text} Who?"
        row["answer"] = f" {row.get('answer', 'Li')}"
        begin = len(before)
        if isinstance(given, list):
            row["context"] = text
            units = of_text(text)
    else:
        row["question"] = question
        if draws.random() < 0.4:
            template = draws.choice(
                [
                    "{question}\n{context}\nSo:",
                    "{context} {question}",
                    "Read: {context}\n{question}",
                ]
            )
        used = template or (
            "{context}\n\n{question}" if is_chat else "{context}\n\nQuestion: {question}\nAnswer:"
        )
        before, behind = (part.replace("{question}", question) for part in used.split("{context}"))
        whole, begin = before + text + behind, len(before)
        if is_chat:
            start = len("<|user|>\n") - len(whole) + len(whole.lstrip())
            whole, begin = in_chat([("user", whole)], words), begin + start
    placed = [(begin + a, begin + b) for a, b in units]
    return Asked(row, whole, placed, kind, words, template)


def of_text(text: str) -> list[tuple[int, int]]:
    """The passages of one text, each up to where the next begins."""
    starts = [0, *(found.end() for found in re.finditer(r"\n\n", text))]
    return [*zip(starts, [*starts[1:], len(text)], strict=True)]


@dataclass(frozen=True)
class Tokens:
    """Ids of prompt and answer, and the places of each unit's tokens."""

    ids: list[int]
    units: list[list[int]]
    n_answer: int


def tokens_of(one: Asked, answer_ids: Sequence[int] | None = None) -> Tokens | None:
    """As a tokenizer cuts prompt and answer; None where the answer changes the prompt's tokens."""
    words, is_plain = one.words, "question" in one.row and one.words.chat_template is None
    has_begin = words.chat_template is not None and "prompt" not in one.row
    has_begin = has_begin or one.text.startswith(words.bos_token)
    found = words(one.text, return_offsets_mapping=True, add_special_tokens=not has_begin)
    ids, offsets = found["input_ids"], found["offset_mapping"]
    if answer_ids is None:
        said = one.row["answer"]
        said = f" {said}" if is_plain and not said[:1].isspace() else said
        whole = words(one.text + said, add_special_tokens=not has_begin)["input_ids"]
        if whole[: len(ids)] != ids:
            return None
        answer_ids = whole[len(ids) :]
    lasts = [a + max(len(one.text[a:b].rstrip()) - 1, 0) for a, b in offsets]
    spans = one.units
    if one.kind == "token":
        spans = []
        for (a, b), last in zip(offsets, lasts, strict=True):
            if a < b and one.units[0][0] <= last < one.units[-1][1]:
                joins = spans and a < spans[-1][1]
                spans[-1:] = (
                    [(spans[-1][0], max(b, spans[-1][1]))] if joins else [*spans[-1:], (a, b)]
                )
    units = [
        [
            k
            for k, ((a, b), last) in enumerate(zip(offsets, lasts, strict=True))
            if a < b and start <= last < end
        ]
        for start, end in spans
    ]
    return Tokens([*ids, *answer_ids], units, len(answer_ids))


# --- Plain passes -----------------------------------------------------------------------------------------


@torch.no_grad()
def log_prob(of: Any, ids: Sequence[int], n_answer: int, edit: Any = None) -> float:
    keep = edit or (lambda layer, weights: weights)
    with edit_softmax(keep, len(ids)):
        logits = of(torch.tensor([[*ids]]), use_cache=False).logits[0, -n_answer - 1 : -1]
    said = torch.tensor(ids[-n_answer:])[:, None]
    return float(logits.double().log_softmax(-1).gather(-1, said).sum())


@torch.no_grad()
def greedy(of: Any, ids: Sequence[int], n: int, *, a_line: bool, words: Any) -> list[int]:
    said: list[int] = []
    for _ in range(n):
        token = int(of(torch.tensor([[*ids, *said]]), use_cache=False).logits[0, -1].argmax())
        if token == words.eos_token_id or (
            a_line and "\n" in words.decode([*said, token]).lstrip()
        ):
            break
        said.append(token)
    return said


def check_numbers(report: Any, shown: Any, of: Any, given: Tokens, rows: str) -> None:
    """Deletion of every unit, the gain, attention, and every knockout."""
    ids, n_answer = given.ids, given.n_answer
    assert len(shown.tokens) == len(given.units), (shown.tokens, given.units)
    whole = log_prob(of, ids, n_answer)

    def without(gone: Sequence[int]) -> float:
        left = [token for place, token in enumerate(ids) if place not in gone]
        return whole - log_prob(of, left, n_answer)

    values = report.to_pandas().query(f"example_id == {shown.example_id}")
    gain = values[values.statistic == "contextual_gain"].value.iloc[0]
    assert gain == pytest.approx(without([k for unit in given.units for k in unit]), **CLOSE)
    if len(given.units) <= 16:
        for unit, told in zip(given.units, shown.scores["leave_one_out"], strict=True):
            assert told == pytest.approx(without(unit), **CLOSE)

    last, n_rows = len(ids) - 1, len(ids) - 1 - n_answer
    begins = {"behind": given.units[-1][-1] + 1, "answer": n_rows, "all": given.units[0][0]}
    start, totals = min(begins[rows], n_rows), []
    columns = [[key for key in unit if key or unit == [0]] for unit in given.units]

    def note(layer: int, weights: Tensor) -> Tensor:
        read = weights[:, n_rows:last]
        totals.append(torch.stack([read[..., keys].sum(-1) for keys in columns], -1).mean((0, 1)))
        return weights

    log_prob(of, ids, n_answer, note)
    expected = torch.stack(totals).mean(0)
    assert shown.scores["attention"] == pytest.approx(expected.tolist(), **CLOSE)
    for keys, told in zip(columns, shown.scores.get("knockout", ()), strict=False):

        def knock(layer: int, weights: Tensor, keys: Sequence[int] = keys) -> Tensor:
            weights[:, start:, keys] = 0
            return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)  # a row of nothing

        assert told == pytest.approx(whole - log_prob(of, ids, n_answer, knock), **CLOSE)


def language_model(draws: Draws, folder: Path) -> str:
    """An audit of a prompt, all its numbers beside plain passes."""
    one, of = asked(draws), model(draws.choice([*FAMILIES]), draws.randrange(3))
    rows = draws.choice(["behind", "behind", "answer", "all"])
    tests = (
        ["sources"] if isinstance(of, transformers.BloomForCausalLM) else ["sources", "knockout"]
    )
    given = tokens_of(one)
    data = Answers([one.row], units=one.kind, template=one.template)
    options = AuditOptions(rows=rows, shown_texts=2)
    try:
        report = audit((of, one.words), data, tests, options=options, progress=False)
    except AttnProbeError as error:
        return one_line(error)
    assert given is not None, "an answer that changes the prompt"
    check_numbers(report, report.examples[0], of, given, rows)
    assert "<html" in report.to_html()
    return "right"


# --- Survival and comparisons --------------------------------------------------------------------------------


def versions(draws: Draws, folder: Path) -> str:
    """Every version explains the first model's greedy answer."""
    one = asked(draws, answer=False)
    if "prompt" in one.row:
        del one.row["answer"]
    first = model("Llama", draws.randrange(3))
    other = copy.deepcopy(first)
    torch.manual_seed(draws.randrange(9))
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.2 * torch.randn_like(weight)
    data = Answers([one.row], units=one.kind, template=one.template, max_new_tokens=3)
    tests = ["sources", "knockout"]
    shared = {"output_dir": folder / "survival", "tokenizer": one.words, "progress": False}
    try:
        found = compare(first, [other], data, tests, **shared)
    except AttnProbeError as error:
        return one_line(error)
    prompt = tokens_of(one, [])
    is_plain = "question" in one.row and one.words.chat_template is None
    said = greedy(first, prompt.ids, 3, a_line=is_plain, words=one.words)
    given = tokens_of(one, said)
    for report, of in zip(found.reports, (first, other), strict=True):
        check_numbers(report, report.examples[0], of, given, "behind")
    assert found.n_shared == (1,)
    return "right"


def comparisons(draws: Draws, folder: Path) -> str:
    """Only texts of equal prompts, units and answers are pairs; a difference is that of the pairs."""
    words, of = tokenizer("plain"), model("Llama", 0)
    rows = [
        {"context": f"Cat {k} sat. Dog {phrase(draws)}. Owl is.", "question": phrase(draws)}
        for k in range(draws.randint(2, 4))
    ]
    other: dict[str, Any] = {"of": of, "rows": rows, "max_new_tokens": 3, "options": AuditOptions()}
    change = draws.choice([*CHANGED_AUDITS])
    other |= CHANGED_AUDITS[change](draws, rows)
    sides = [{"of": of, "rows": rows, "max_new_tokens": 3, "options": AuditOptions()}, other]
    reports = []
    for number, side in enumerate(sides):
        own = {k: side[k] for k in side.keys() - {"of", "rows", "options"}}
        data = Answers(side["rows"], **own)
        place = folder / str(number)
        try:
            given = {"options": side["options"], "output_dir": place, "progress": False}
            made = audit((side["of"], words), data, ["sources"], **given)
        except AttnProbeError as error:
            return one_line(error)
        reports.append(made)
    found = compare_audits([folder / "0", folder / "1"])
    texts = []
    for side, report in zip(sides, reports, strict=True):
        template = side.get("template") or "{context}\n\nQuestion: {question}\nAnswer:"
        known = {
            k: (template.format(**row), row["context"], side.get("units"), row.get("answer"))
            for k, row in enumerate(side["rows"])
        }
        texts.append({e.example_id: (known[e.example_id], e.predicted) for e in report.examples})
    ids = [
        k for k in texts[0] if sides[0]["rows"] == other["rows"] and texts[0][k] == texts[1].get(k)
    ]
    assert found.n_shared == (len(ids),), (change, found.n_shared, ids)
    gains = [
        r.to_pandas().query("statistic == 'contextual_gain'").set_index("example_id").value
        for r in reports
    ]
    if ids:
        gains = [gain.loc[ids] for gain in gains]
    for statistic in found.statistics:
        if statistic.statistic == "contextual_gain":
            expected = gains[1].mean() - gains[0].mean()
            assert statistic.differences[0].value == pytest.approx(expected, abs=1e-9)
            assert change not in ("rows", "units")
    return "right"


CHANGED_AUDITS: dict[str, Callable[[Draws, list], dict[str, Any]]] = {
    "nothing": lambda draws, rows: {},
    "tokens": lambda draws, rows: {"max_new_tokens": draws.choice([1, 2, 9])},
    "model": lambda draws, rows: {"of": model("Llama", draws.randint(1, 2))},
    "template": lambda draws, rows: {"template": "{question} {context}"},
    "rows": lambda draws, rows: {"options": AuditOptions(rows="all")},
    "units": lambda draws, rows: {"units": "word"},
    "fewer": lambda draws, rows: {"test_limit": 1},
    "others": lambda draws, rows: {"rows": [*rows[1:], rows[0] | {"question": "Other?"}]},
    "answer": lambda draws, rows: {"rows": [rows[0] | {"answer": "Li"}, *rows[1:]]},
}


# --- Folders ----------------------------------------------------------------------------------------------------


KINDS: dict[str, tuple[Callable[[Draws, Path], str], int]] = {
    "language model": (language_model, 18),
    "survive": (versions, 4),
    "comparisons": (comparisons, 6),
}
"""Each with its share of 28."""


def cases(n: int, seed: int) -> list[tuple[str, int]]:
    """The kind and the number of n cases."""
    each = [kind for kind, (_, share) in KINDS.items() for _ in range(round(share * n / 28))]
    return [(kind, seed * 100_000 + number) for number, kind in enumerate(each)]


def outcome(kind: str, number: int, folder: Path) -> str:
    """What became of a case."""
    return KINDS[kind][0](random.Random(f"{kind} {number}"), folder)
