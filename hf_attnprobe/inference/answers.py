"""Prompts rendered and cut into units, answers generated, and both as tokens.

A unit is known by its characters in the rendered prompt, so that a chat template, special tokens
and the question are never part of one. Row t − 1 of a decoder predicts token t: an answer is
scored in one pass over prompt and answer, whether it was given or generated.
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import evaluating
from hf_attnprobe.data.answers import Answers
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.tokenizer import sentences
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text, TextModel, Tokenized, check_ids
from hf_attnprobe.progress import Bar


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

OF_A_TURN = "{context}\n\n{question}"
"""What the user says, where the tokenizer has a chat template."""
OF_A_PROMPT = "{context}\n\nQuestion: {question}\nAnswer:"
"""The prompt where it has none; the answer begins with a space and ends with its line."""

Span = tuple[int, int]
"""First character, and the one behind the last."""


@dataclass(frozen=True)
class Prompt:
    """A rendered prompt.

    Attributes:
        text: as the tokenizer reads it.
        passages: where each passage, or turn, stands in it.
        is_chat: whether a chat template rendered it, which writes special tokens itself.
        is_plain: whether it is one of ours, whose answer is what stands in its line.
    """

    text: str
    passages: tuple[Span, ...]
    is_chat: bool = False
    is_plain: bool = False


# --- From a row to its prompt --------------------------------------------------------------------


def rendered(row: Mapping[str, Any], data: Answers, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """The prompt of a row of :meth:`Answers.examples`.

    Raises:
        AttnProbeError: turns without a chat template, a row that the template refuses, or a
            passage that the prompt does not have as it is, or has more than once.
    """
    name = f"text {row['example_id']}"
    passages = row.get("passages") or []
    if "prompt" in row:
        return Prompt(row["prompt"], _found(passages, row["prompt"], name, once=True))
    if "turns" in row:
        turns = row["turns"]
        text = _in_turns(turns, tokenizer, name)
        if data.units != "turn":
            return Prompt(text, _found(passages, text, name, once=True), is_chat=True)
        before = [turn["content"] for turn in turns[:-1]]
        return Prompt(text, _found(before, text, name), is_chat=True)
    is_chat = tokenizer.chat_template is not None
    template = data.template or (OF_A_TURN if is_chat else OF_A_PROMPT)
    around = [part.replace("{question}", row["question"]) for part in template.split("{context}")]
    text = row["text"].join(around)
    if is_chat:
        text = _in_turns([{"role": "user", "content": text}], tokenizer, name)
    return Prompt(text, _found(passages, text, name), is_chat, is_plain=not is_chat)


def _in_turns(
    turns: Sequence[Mapping[str, str]], tokenizer: PreTrainedTokenizerBase, name: str
) -> str:
    """A conversation as the chat template writes it, up to where the answer begins."""
    if tokenizer.chat_template is None:
        raise AttnProbeError(
            "expected a tokenizer with a chat template to render turns, "
            f"{tokenizer.name_or_path or 'this one'} has none; give whole prompts (prompt_column)"
        )
    try:
        return str(
            tokenizer.apply_chat_template(
                [dict(turn) for turn in turns], tokenize=False, add_generation_prompt=True
            )
        )
    except Exception as error:  # of jinja, and whatever a template raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AttnProbeError(
            f"the chat template refuses {name}: {reason}; correct its turns, or give a whole "
            "prompt (prompt_column)"
        ) from error


def _found(
    passages: Sequence[str], text: str, name: str, *, once: bool = False
) -> tuple[Span, ...]:
    """Where the passages stand in a prompt, one behind the other.

    Args:
        once: whether a passage that stands there several times is refused.
    """
    found: list[Span] = []
    behind = 0
    for passage in passages:
        bare = passage.strip()  # templates strip too
        start = text.find(bare, behind)
        if start < 0:
            raise AttnProbeError(
                f"expected the passage of {name} in its prompt as it is, {bare[:60]!r} is not "
                "there; give it as the prompt has it"
            )
        behind = start + len(bare)
        if once and text.find(bare, behind) >= 0:
            raise AttnProbeError(
                f"expected the passage of {name} once in its prompt, {bare[:60]!r} stands there "
                "several times; give a longer piece"
            )
        found.append((start, behind))
    return tuple(found)


# --- From a passage to its units -----------------------------------------------------------------

CUTS: dict[str, Callable[[str], list[Span]]] = {
    "sentence": sentences,
    "passage": lambda text: _matches(r"\S.*?(?=\s*\n\s*\n|\s*\Z)", text),
    "word": lambda text: _matches(r"\S+", text),
    "turn": lambda text: _matches(r"\S.*", text),
}
"""How a passage is cut, by the rule of :mod:`hf_attnprobe.data.tokenizer` into sentences, at
empty lines into passages; into tokens it is cut by the model's tokenizer."""


def _matches(pattern: str, text: str) -> list[Span]:
    return [found.span() for found in re.finditer(pattern, text, re.DOTALL)]


def units_of(prompt: Prompt, units: str, offsets: Sequence[Span]) -> list[Span]:
    """The characters of every unit, in the order of the prompt.

    A unit goes on to where the next one of its passage begins, so that white space between
    them belongs to the first.

    Args:
        offsets: the characters of every token of the prompt.
    """
    found: list[Span] = []
    for first, behind in prompt.passages:
        if units == "token":
            spans = [
                (start, end)
                for start, end in offsets
                if first <= _letter(prompt.text, start, end) < behind and start < end
            ]
            spans = [*dict.fromkeys(spans)]  # bytes of one character are one unit
        else:
            cut = CUTS[units](prompt.text[first:behind])
            starts = [first + start for start, _ in cut]
            spans = [*pairwise([*starts, behind])]
        found += spans
    return found


def _letter(text: str, start: int, end: int) -> int:
    """The place of a token's last letter; of white space alone the first."""
    return max(start + len(text[start:end].rstrip()) - 1, start)


def units_of_tokens(text: str, units: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """The number of each token's unit, −1 for none: the one that its last letter is in."""
    of_character = [-1] * (len(text) + 1)
    for number, (start, end) in enumerate(units):
        of_character[start:end] = [number] * (end - start)
    return [of_character[_letter(text, a, b)] if a < b else -1 for a, b in offsets]


# --- Tokens of a prompt and of an answer behind it -----------------------------------------------


def _tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, prompt: Prompt
) -> tuple[list[int], list[Span]]:
    """Token ids of a text that begins with the prompt, and the characters of each.

    Special tokens are put in front, but where the prompt has them; none behind it.
    """
    bos = tokenizer.bos_token
    is_begun = prompt.is_chat or bool(bos and text.startswith(bos))
    encoded = tokenizer(
        text,
        add_special_tokens=not is_begun,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    ids, special = [*encoded["input_ids"]], encoded["special_tokens_mask"]
    n_kept = len(ids)
    while n_kept and special[n_kept - 1]:
        n_kept -= 1
    return ids[:n_kept], [tuple(span) for span in encoded["offset_mapping"][:n_kept]]


def continued(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    prompt_ids: Sequence[int],
    answer: str,
    name: str,
) -> list[int]:
    """The tokens of an answer behind a prompt, whose own tokens stay as they are.

    Raises:
        AttnProbeError: the two are no longer the same text then.
    """
    if prompt.is_plain and not answer[:1].isspace():
        answer = f" {answer}"
    together, _ = _tokens(tokenizer, prompt.text + answer, prompt)
    n_prompt = len(prompt_ids)
    if together[:n_prompt] == [*prompt_ids] and len(together) > n_prompt:
        return together[n_prompt:]
    alone = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if _said(tokenizer, [*prompt_ids, *alone]) != _said(tokenizer, prompt_ids) + answer:
        raise AttnProbeError(
            f"expected an answer that continues the prompt of {name}, {answer[:60]!r} would "
            "change the prompt's last token; move the space between them to the answer"
        )
    return [*alone]


@torch.no_grad()
def generated(
    model: Any, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], n: int, name: str
) -> list[int]:
    """At most ``n`` tokens of what a model says by greedy decoding, without the end's token.

    What the model's generation settings say of sampling, beams and penalties does not count.

    Raises:
        AttnProbeError: logits that are no numbers.
    """
    ids = torch.tensor([[*prompt_ids]], device=model.device)
    with evaluating(model):
        said = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            do_sample=False,
            num_beams=1,
            temperature=None,
            top_p=None,
            top_k=None,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            pad_token_id=tokenizer.pad_token_id or tokenizer.eos_token_id or 0,
            return_dict_in_generate=True,
            output_logits=True,
        )
    if any(not logits.isfinite().any() or logits.isnan().any() for logits in said.logits):
        raise AttnProbeError(
            f"the model's logits behind the prompt of {name} are no numbers (NaN or infinite); "
            "load it in another dtype, or mend its weights"
        )
    ends = model.generation_config.eos_token_id
    ends = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])}
    tokens = said.sequences[0, len(prompt_ids) :].tolist()
    return tokens[: next((k for k, token in enumerate(tokens) if token in ends), None)]


def _said(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode([*ids], clean_up_tokenization_spaces=False))


def _first_line(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """The tokens up to the end of the first line that says something."""
    for n in range(1, len(ids) + 1):
        if "\n" in _said(tokenizer, ids[:n]).lstrip():
            return [*ids[: n - 1]]
    return [*ids]


# --- From rows to texts --------------------------------------------------------------------------


def answered(
    examples: "datasets.Dataset",
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    model: Any,
    *,
    shown: bool = False,
) -> "datasets.Dataset":
    """Every row as prompt, units and answer, in characters and in tokens.

    Texts of one unit have nothing to compare, and where nothing is generated there is nothing
    to explain: both are left out, and a line of the log says how many.

    Args:
        examples: of :meth:`Answers.examples`.
        facts: about the model: what it embeds, how much it reads.
        model: what answers where no answer is given.
        shown: whether a bar says how far it is.

    Returns:
        Rows with ``example_id``, ``text`` (the prompt), ``label`` −1, ``answer``,
        ``units`` (first character and the one behind the last, of each),
        ``generated`` (whether the model said the answer), and lists of a number per token
        of prompt and answer: ``input_ids``, ``unit_ids``, ``labelled`` and, where there is
        another answer in some row, ``other_ids``.

    Raises:
        AttnProbeError: a tokenizer that does not tell where its tokens are, a prompt that is
            not rendered, an answer that does not continue it, more tokens than the model
            reads, ids that it does not embed, or no text left.
    """
    import datasets

    if not tokenizer.is_fast:
        raise AttnProbeError(
            "expected a fast tokenizer, which tells where its tokens are in a prompt, got "
            f"{type(tokenizer).__name__}; load the model with its fast tokenizer"
        )
    rows, n_single, n_silent = [], 0, 0
    with Bar("answers", shown) as bar:
        for number, example in enumerate(examples.with_format(None), 1):
            row = _row(example, data, tokenizer, facts, model)
            n_single += len(row["units"]) < 2
            n_silent += not any(row["labelled"])
            if len(row["units"]) > 1 and any(row["labelled"]):
                rows.append(row)
            bar.count(number, len(examples), "prompts")
    for n, reason in (
        (n_single, f"are of one {data.units} only, so that there is nothing to compare"),
        (n_silent, "were answered by no token at all"),
    ):
        if n and rows:
            logger.warning("%d of %d texts %s; they are left out", n, len(examples), reason)
        if n and not rows:
            raise AttnProbeError(
                f"expected texts to explain, {n} of {len(examples)} {reason}; "
                'choose other units (units="token"), or give answers'
            )
    has_other = any(max(row["other_ids"]) >= 0 for row in rows)
    kept_columns = [name for name in rows[0] if has_other or name != "other_ids"]
    made = datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in kept_columns})
    made.info.description = examples.info.description
    return made


def _row(
    example: Mapping[str, Any],
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    model: Any,
) -> dict[str, Any]:
    """One row of :func:`answered`."""
    name = f"text {example['example_id']}"
    prompt = rendered(example, data, tokenizer)
    prompt_ids, offsets = _tokens(tokenizer, prompt.text, prompt)
    _check_prompt(prompt_ids, facts, tokenizer, name)
    units = units_of(prompt, data.units, offsets)
    unit_ids = units_of_tokens(prompt.text, units, offsets)
    without = sorted({*range(len(units))} - {*unit_ids})
    if without:
        said = prompt.text[slice(*units[without[0]])]
        raise AttnProbeError(
            f"expected tokens of every {data.units} of {name}, {said[:60]!r} has none of its own; "
            "choose larger units"
        )
    given = example.get("answer")
    if given is not None:
        ids = continued(tokenizer, prompt, prompt_ids, given, name)
    else:
        ids = generated(model, tokenizer, prompt_ids, data.max_new_tokens, name)
        ids = _first_line(tokenizer, ids) if prompt.is_plain else ids
    _check_length(len(prompt_ids) + len(ids), facts, tokenizer, name)
    check_ids([ids], facts)
    other_ids = [-1] * len(ids)
    if example.get("other") is not None:
        other = continued(tokenizer, prompt, prompt_ids, example["other"], name)
        other_ids = _where_they_part(ids, other, name)
    nothing = [-1] * len(prompt_ids)
    return {
        "example_id": example["example_id"],
        "text": prompt.text,
        "label": -1,
        "answer": given if given is not None else _said(tokenizer, ids),
        "generated": given is None,
        "units": [list(unit) for unit in units],
        "input_ids": [*prompt_ids, *ids],
        "unit_ids": [*unit_ids, *([-1] * len(ids))],
        "labelled": [0] * len(prompt_ids) + [1] * len(ids),
        "other_ids": [*nothing, *other_ids],
    }


def _where_they_part(ids: Sequence[int], other: Sequence[int], name: str) -> list[int]:
    """The other answer's token at the first place where it differs, −1 elsewhere."""
    marked = [-1] * len(ids)
    for place, (token, another) in enumerate(zip(ids, other, strict=False)):
        if token != another:
            marked[place] = another
            return marked
    raise AttnProbeError(
        f"expected another answer that differs from the answer of {name}, one begins with the "
        "other; correct it"
    )


def _check_prompt(
    ids: Sequence[int], facts: TextModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    if not ids:
        raise AttnProbeError(f"expected a prompt with tokens, that of {name} has none; write one")
    check_ids([[*ids]], facts)
    _check_length(len(ids), facts, tokenizer, name)


def _check_length(n: int, facts: TextModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    longest = facts.max_length(tokenizer)
    if longest is not None and n > longest:
        raise AttnProbeError(
            f"{name} has {n:,} tokens with its answer, the model reads {longest:,}; shorten its "
            "passage or leave it out"
        )


def of_span(text: Text, span: str | Span, tokenizer: PreTrainedTokenizerBase) -> Text:
    """The text with a part of its answer as the answer; what stands behind the part is left out.

    No token sees a later one, so the part is as likely as within the whole answer.

    Args:
        text: of :func:`encode_answers`.
        span: a part of the answer as it is written, or its first character and the one behind.

    Raises:
        AttnProbeError: the answer has no such part.
    """
    labelled = list(text.inputs["labelled"])
    n_prompt = labelled.count(0)
    said = text.inputs["input_ids"][n_prompt:]
    ends = [len(_said(tokenizer, said[: k + 1])) for k in range(len(said))]
    whole = _said(tokenizer, said)
    if isinstance(span, str):
        first = whole.find(span)
        behind = first + len(span)
    else:
        first, behind = span
    inside = [k for k, (a, b) in enumerate(pairwise([0, *ends])) if a < behind and b > first]
    if not 0 <= first < behind or not inside:
        raise AttnProbeError(
            f"expected a part of the answer {whole.strip()[:60]!r}, got {span!r}; give it as it is "
            "written there, or its characters"
        )
    begin = n_prompt + inside[0]
    n_kept = n_prompt + inside[-1] + 1
    inputs = {name: list(values[:n_kept]) for name, values in text.inputs.items()}
    inputs["labelled"] = [int(k >= begin) for k in range(n_kept)]
    return replace(text, inputs=inputs)


def encode_answers(examples: "datasets.Dataset") -> Tokenized:
    """Returns rows of :func:`answered` as texts for the model."""
    per_token = ("input_ids", "unit_ids", "labelled", "other_ids")
    names = [name for name in per_token if name in examples.column_names]
    columns = {name: column_of(examples, name) for name in names}
    texts = []
    for row, example_id in enumerate(column_of(examples, "example_id")):
        of_row = {name: columns[name][row] for name in names}
        n_tokens = len(of_row["input_ids"])
        of_row["attention_mask"] = [1] * n_tokens
        is_special = [int(unit < 0) for unit in of_row["unit_ids"]]
        of_row["special_tokens_mask"] = is_special
        texts.append(Text(example_id, -1, of_row))
    return Tokenized(texts, n_empty=0, n_cut=0)
