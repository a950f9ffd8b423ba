"""Prompts rendered and cut into units, answers generated, and both as tokens.

A unit is known by its characters in the rendered prompt, so that a chat template, special tokens
and the question are never part of one. Row t − 1 of a decoder predicts token t: an answer is
scored in one pass over prompt and answer, whether it was given or generated.
"""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_attnprobe.adapters.pretrained import (
    use_eval_mode,
    has_length_dependent_positions,
    unwrap_peft,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import get_relative_tolerance
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import in_halves, in_portions
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import find_sentences
from hf_attnprobe.inference.encoding import (
    Text,
    TextModel,
    TokenizedSplit,
    check_token_ids,
)
from hf_attnprobe.storage.answers import AnswerCache


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

CHAT_TURN_TEMPLATE = "{context}\n\n{question}"
"""What the user says, where the tokenizer has a chat template."""
PLAIN_PROMPT_TEMPLATE = "{context}\n\nQuestion: {question}\nAnswer:"
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


def render_prompt(row: Mapping[str, Any], data: Answers, tokenizer: PreTrainedTokenizerBase) -> Prompt:
    """The prompt of a row of :meth:`BatchFunction.examples`.

    Raises:
        AttnProbeError: turns without a chat template, a row that the template refuses, or a
            passage that the prompt does not have as it is, or has more than once.
    """
    name = f"text {row['example_id']}"
    passages = row.get("passages") or []
    if "prompt" in row:
        places = _locate_passages(passages, [row["prompt"]], name)
        return Prompt(row["prompt"], tuple(span for _, span in places))
    if "turns" in row:
        turns = [dict(turn) for turn in row["turns"]]
        said = [turn["content"] for turn in turns]
        places = _find_nonblank_texts(said[:-1]) if data.units == "turn" else _locate_passages(passages, said, name)
        return _render_conversation(turns, places, tokenizer, name)
    is_chat = tokenizer.chat_template is not None
    template = data.template or (CHAT_TURN_TEMPLATE if is_chat else PLAIN_PROMPT_TEMPLATE)
    around = [part.replace("{question}", row["question"]) for part in template.split("{context}")]
    text = row["text"].join(around)
    spans = _find_consecutive_passages(passages, text, len(around[0]))
    if is_chat:
        turn = {"role": "user", "content": text}
        places = [(0, span) for span in spans]
        return _render_conversation([turn], places, tokenizer, name)
    return Prompt(text, tuple(spans), is_plain=True)


TextSpan = tuple[int, Span]
"""The number of a text, and a span of it."""


def _find_nonblank_texts(texts: Sequence[str]) -> list[TextSpan]:
    """All of each text that says something, without white space around it."""
    bare = [re.search(r"\S(.*\S)?", text, re.DOTALL) for text in texts]
    return [(k, found.span()) for k, found in enumerate(bare) if found]


def _find_consecutive_passages(passages: Sequence[str], text: str, begin: int) -> list[Span]:
    """Where passages stand that have only white space between them."""
    spans = []
    for passage in passages:
        bare = passage.strip()
        start = text.index(bare, begin)
        begin = start + len(bare)
        spans.append((start, begin))
    return spans


def _locate_passages(passages: Sequence[str], texts: Sequence[str], name: str) -> list[TextSpan]:
    """Where passages stand that somebody wrote into prompts or turns, in their order.

    Nothing of ours marks them there: the text alone says the place, so that it has to stand
    there once.
    """
    places: list[TextSpan] = []
    for passage in passages:
        bare = passage.strip()
        again = re.compile(f"(?={re.escape(bare)})")  # finds those that overlap too
        found = [(k, at.start()) for k, text in enumerate(texts) for at in again.finditer(text)]
        if len(found) != 1:
            raise AttnProbeError(
                f"expected the passage of {name} once in its prompt, {bare[:60]!r} stands there "
                f"{len(found)} times; give it as the prompt has it, or a longer piece"
            )
        [(number, start)] = found
        places.append((number, (start, start + len(bare))))
    for (before, (_, behind)), (number, (start, _)) in pairwise(places):
        if (number, start) < (before, behind):
            raise AttnProbeError(f"expected the passages of {name} in their order; sort them")
    return places


def _render_conversation(
    turns: Sequence[dict[str, str]],
    places: Sequence[TextSpan],
    tokenizer: PreTrainedTokenizerBase,
    name: str,
) -> Prompt:
    """A conversation as the chat template writes it, up to where the answer begins.

    Private marks around the passages say where they come to stand.

    Args:
        places: of the passages in the turns.
    """
    plain = _apply_chat_template(turns, tokenizer, name)
    mark = next(c for c in map(chr, range(0xE000, 0xF900)) if c not in plain)
    marked = [dict(turn) for turn in turns]
    for number, (start, behind) in reversed(places):
        said = marked[number]["content"]
        bounded = f"{mark}{said[start:behind]}{mark}"
        marked[number]["content"] = said[:start] + bounded + said[behind:]
    parts = _apply_chat_template(marked, tokenizer, name).split(mark)
    if "".join(parts) != plain or len(parts) != 2 * len(places) + 1:
        raise AttnProbeError(
            f"expected a chat template that writes the passage of {name} as it is and once, "
            "this one does not; give whole prompts (prompt_column)"
        )
    ends = [*accumulate(map(len, parts))]
    spans = zip(ends[:-1:2], ends[1::2], strict=True)
    return Prompt(plain, tuple(spans), is_chat=True)


def _apply_chat_template(
    turns: Sequence[dict[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    name: str,
) -> str:
    if tokenizer.chat_template is None:
        raise AttnProbeError(
            "expected a tokenizer with a chat template to render turns, "
            f"{tokenizer.name_or_path or 'this one'} has none; give whole prompts (prompt_column)"
        )
    try:
        return str(
            tokenizer.apply_chat_template([*turns], tokenize=False, add_generation_prompt=True)
        )
    except Exception as error:  # of jinja, and whatever a template raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AttnProbeError(
            f"the chat template refuses {name}: {reason}; correct its turns, or give a whole "
            "prompt (prompt_column)"
        ) from error


# --- From a passage to its units -----------------------------------------------------------------

UNIT_SPLITTERS: dict[str, Callable[[str], list[Span]]] = {
    "sentence": find_sentences,
    "passage": lambda text: _find_spans(r"\S.*?(?=\s*\n\s*\n|\s*\Z)", text),
    "word": lambda text: _find_spans(r"\S+", text),
}
"""How a passage is cut, by the rule of :mod:`hf_attnprobe.data.tokenizer` into sentences, at
empty lines into passages; into tokens it is cut by the model's tokenizer."""


def _find_spans(pattern: str, text: str) -> list[Span]:
    return [found.span() for found in re.finditer(pattern, text, re.DOTALL)]


def find_units(prompt: Prompt, units: str, offsets: Sequence[Span], *, is_listed: bool) -> list[Span]:
    """The characters of every unit, in the order of the prompt.

    A unit goes on to where the next one of its passage begins, so that white space between
    them belongs to the first.

    Args:
        offsets: the characters of every token of the prompt.
        is_listed: whether passages were given one by one, and are not cut into passages; turns
            always are.
    """
    is_whole = units == "turn" or (is_listed and units == "passage")
    found: list[Span] = []
    for first, behind in prompt.passages:
        if units == "token":
            found += _find_token_units(prompt.text, first, behind, offsets)
        elif is_whole:
            found.append((first, behind))
        else:
            cut = UNIT_SPLITTERS[units](prompt.text[first:behind])
            starts = [first + start for start, _ in cut]
            found += pairwise([*starts, behind])
    return found


def _find_token_units(text: str, first: int, behind: int, offsets: Sequence[Span]) -> list[Span]:
    """The tokens of a passage; those that share a character, such as its bytes, are one unit."""
    spans: list[Span] = []
    for start, end in offsets:
        if start == end or not first <= _find_last_letter(text, start, end) < behind:
            continue
        before, last = spans[-1] if spans else (0, 0)
        if start < last:
            spans[-1] = before, max(end, last)
        else:
            spans.append((start, end))
    return spans


def _find_last_letter(text: str, start: int, end: int) -> int:
    """The place of a token's last letter; of white space alone the first."""
    return max(start + len(text[start:end].rstrip()) - 1, start)


def assign_units(text: str, units: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """The number of each token's unit, −1 for none: the one that its last letter is in."""
    of_character = [-1] * (len(text) + 1)
    for number, (start, end) in enumerate(units):
        of_character[start:end] = [number] * (end - start)
    return [of_character[_find_last_letter(text, a, b)] if a < b else -1 for a, b in offsets]


# --- Tokens of a prompt and of an answer behind it -----------------------------------------------


def _tokenize(
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


def tokenize_answer(
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
    together, _ = _tokenize(tokenizer, prompt.text + answer, prompt)
    n_prompt = len(prompt_ids)
    if together[:n_prompt] == [*prompt_ids] and len(together) > n_prompt:
        return together[n_prompt:]
    alone = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if _decode(tokenizer, [*prompt_ids, *alone]) != _decode(tokenizer, prompt_ids) + answer:
        raise AttnProbeError(
            f"expected an answer that continues the prompt of {name}, {answer[:60]!r} would "
            "change the prompt's last token; move the space between them to the answer"
        )
    return [*alone]


GENERATION_BATCH_SIZE = 8
"""Prompts of like length that are answered in one batch."""


class GeneratedAnswer(NamedTuple):
    """What a model says behind a prompt, up to the end's token.

    Attributes:
        tokens: of the answer.
        leads: of each step's likeliest token before the next one, in logits, [steps].
        rounding: what two runs of the model may differ by, in logits.
    """

    tokens: list[int]
    leads: Tensor
    rounding: float

    @property
    def is_sure(self) -> bool:
        """Whether rounding can decide no token."""
        return bool((self.leads > self.rounding).all())

    def agrees(self, other: "Said") -> bool:
        """Whether another run said the same."""
        if self.tokens != other.tokens:
            return False
        return bool(((self.leads - other.leads).abs() <= self.rounding).all())


def generate_answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, Sequence[int]],
    n: int,
    done: Callable[[Mapping[str, list[int]]], None] = lambda said: None,
) -> dict[str, list[int]]:
    """At most ``n`` tokens of what a model says behind each prompt by greedy decoding.

    Of the model's generation settings only the tokens that end an answer count. Prompts of like
    length are answered together, with padding in front. So that an answer is that of its prompt
    alone, it is generated again alone where rounding may decide a token, and all of a batch are
    where padding changes what is said behind its shortest prompt. In half precision rounding decides
    too much, so that each is generated alone, as it is where positions depend on the length.

    Args:
        prompts: token ids, by name.
        done: told the answers of each batch.

    Raises:
        AttnProbeError: logits that are no numbers, or memory for one prompt runs out.
    """
    ends = model.generation_config.eos_token_id
    ends = [
        tokenizer.eos_token_id,
        *(ends if isinstance(ends, list) else [ends]),
    ]
    ends = [end for end in ends if end is not None]
    settings = GenerationConfig(
        max_new_tokens=n,
        eos_token_id=ends or None,
        pad_token_id=tokenizer.pad_token_id or next(iter(ends), 0),
        return_dict_in_generate=True,
        output_logits=True,
    )

    def answers(names: Sequence[str]) -> list[GeneratedAnswer]:
        return _generate_batch(model, settings, {k: prompts[k] for k in names})

    def as_alone(names: Sequence[str]) -> list[list[int]]:
        together = answers(names)
        if len(names) > 1:
            is_same = answers(names[:1])[0].agrees(together[0])
            together = [
                said if is_same and said.is_sure else answers([name])[0]
                for name, said in zip(names, together, strict=True)
            ]
        return [said.tokens for said in together]

    is_half = torch.finfo(model.dtype).bits < 32
    by_length = has_length_dependent_positions(model.config)
    at_once = 1 if is_half or by_length else GENERATION_BATCH_SIZE
    shortest_first = sorted(prompts, key=lambda name: len(prompts[name]))
    found: dict[str, list[int]] = {}
    for batch in in_portions(shortest_first, at_once):
        for names, said in in_halves(batch, as_alone):
            new = dict(zip(names, said, strict=True))
            done(new)
            found |= new
    return found


@torch.no_grad()
def _generate_batch(
    model: Any,
    settings: GenerationConfig,
    prompts: Mapping[str, Sequence[int]],
) -> list[GeneratedAnswer]:
    """What a model says behind prompts that are one batch."""
    rows = [torch.tensor(ids, device=model.device) for ids in prompts.values()]
    in_front = partial(pad_sequence, batch_first=True, padding_side="left")
    padded = in_front(rows, padding_value=settings.pad_token_id)
    n_prompt = padded.shape[1]
    with use_eval_mode(model), _use_generation_settings(model, settings):
        output = model.generate(
            padded,
            attention_mask=in_front([*map(torch.ones_like, rows)]),
            generation_config=settings,
        )
    ends = settings.eos_token_id or []
    rounding = get_relative_tolerance(model.dtype)
    said = []
    for row, name in enumerate(prompts):
        tokens = output.sequences[row, n_prompt:].tolist()
        end = next((k for k, token in enumerate(tokens) if token in ends), None)
        n_decided = len(tokens) if end is None else end + 1
        likeliest = [step[row].topk(2).values for step in output.logits]
        first, second = torch.stack(likeliest[:n_decided]).T
        leads = first - second
        if leads.isnan().any():
            raise AttnProbeError(
                f"the model's logits behind the prompt of {name} are no numbers (NaN or infinite); "
                "load it in another dtype, or mend its weights"
            )
        largest = float(first.abs().max())
        said.append(GeneratedAnswer(tokens[:end], leads, rounding * largest))
    return said


@contextmanager
def _use_generation_settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Takes a checkpoint's settings away, which would fill the gaps of others, and gives them back."""
    models = [model, unwrap_peft(model)]
    before = [one.generation_config for one in models]
    for one in models:
        one.generation_config = settings
    try:
        yield
    finally:
        for one, own in zip(models, before, strict=True):
            one.generation_config = own


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode([*ids], clean_up_tokenization_spaces=False))


def _cut_after_first_line(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """The tokens up to the end of the first line that says something."""
    for n in range(1, len(ids) + 1):
        if "\n" in _decode(tokenizer, ids[:n]).lstrip():
            return [*ids[: n - 1]]
    return [*ids]


# --- From rows to texts --------------------------------------------------------------------------


SINGLE_UNIT_REASON = "are of one {} only, so that there is nothing to compare"


def prepare_prompts(
    examples: "datasets.Dataset",
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    model: Any,
    *,
    kept: "datasets.Dataset | None" = None,
    told: AnswerCache | None = None,
    shown: bool = False,
) -> "datasets.Dataset":
    """Every row as prompt, units and answer, in characters and in tokens.

    Texts of one unit have nothing to compare, and where nothing is generated there is nothing
    to explain: both are left out, and a line of the log says how many.

    Args:
        examples: of :meth:`BatchFunction.examples`.
        facts: about the model: what it embeds, how much it reads.
        model: what answers where no answer is given.
        kept: what this returned for another model, whose answers are taken in place of own ones.
        told: keeps what the model says, and is asked before it.
        shown: whether a bar says how far it is.

    Returns:
        Rows with ``example_id``, ``text`` (the prompt), ``label`` −1, ``answer``,
        ``units`` (first character and the one behind the last, of each),
        ``generated`` (whether a model said the answer), ``is_cut`` (whether it would have said
        more), ``expected`` (what a right one contains,
        None where that is not known), ``identity`` (52 bits of a hash of
        prompt, units and answers: equal texts are those of equal ids and identities), and
        lists of a number per token
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
    known = {} if kept is None else {row["example_id"]: row for row in kept if row["generated"]}
    asked = [_encode_prompt(example, data, tokenizer, facts) for example in examples.with_format(None)]
    own = {} if told is None else told.read()
    silent = {
        one.name: one.ids
        for one in asked
        if one.given is None and one.name not in own and one.example["example_id"] not in known
    }
    n_done = 0

    def done(new: Mapping[str, list[int]]) -> None:
        nonlocal n_done
        n_done += len(new)
        bar.count(n_done, len(silent), "prompts")
        if told is not None and process_state().is_main_process:
            told.add(new)

    with Bar("answers", shown) as bar:
        own |= generate_answers(model, tokenizer, silent, data.max_new_tokens, done)
    rows = []
    left_out: Counter[str] = Counter()
    for one in asked:
        again = known.get(one.example["example_id"])
        row = _build_row(one, tokenizer, facts, own.get(one.name), again)
        row["is_cut"] = row["generated"] and sum(row["labelled"]) == data.max_new_tokens
        if len(row["units"]) < 2:
            left_out[SINGLE_UNIT_REASON.format(data.units)] += 1
        elif not any(row["labelled"]):
            left_out["were answered by no token at all"] += 1
        else:
            rows.append(row)
    for reason, n in left_out.items():
        said = f"{n} of {len(examples)}"
        if not rows:
            raise AttnProbeError(
                f"expected prompts to explain, {said} {reason}; "
                'choose other units (units="token"), or give answers'
            )
        logger.warning("%s prompts %s; they are left out", said, reason)
    n_generated = sum(row["generated"] for row in rows)
    if 0 < n_generated < len(rows):
        logger.warning(
            "%d of %d prompts have no answer; the model's own is taken",
            n_generated,
            len(rows),
        )
    has_other = any(max(row["other_ids"]) >= 0 for row in rows)
    kept_columns = [name for name in rows[0] if has_other or name != "other_ids"]
    made = datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in kept_columns})
    made.info.description = examples.info.description
    return made


class EncodedPrompt(NamedTuple):
    """A row of the data as the model reads it.

    Attributes:
        example: the row.
        name: in words.
        prompt: rendered.
        ids: the prompt's tokens.
        units: the characters of each.
        unit_ids: of each token, -1 in none.
    """

    example: Mapping[str, Any]
    name: str
    prompt: Prompt
    ids: list[int]
    units: list[Span]
    unit_ids: list[int]

    @property
    def given(self) -> str | None:
        """The answer that the data gives."""
        return self.example.get("answer")


def _encode_prompt(
    example: Mapping[str, Any],
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
) -> EncodedPrompt:
    """A prompt in tokens, and their units."""
    name = f"text {example['example_id']}"
    prompt = render_prompt(example, data, tokenizer)
    ids, offsets = _tokenize(tokenizer, prompt.text, prompt)
    if not ids:
        raise AttnProbeError(f"expected a prompt with tokens, that of {name} has none; write one")
    check_token_ids([ids], facts)
    _check_length(len(ids), facts, tokenizer, name)
    is_listed = bool(example.get("listed"))
    units = find_units(prompt, data.units, offsets, is_listed=is_listed)
    unit_ids = assign_units(prompt.text, units, offsets)
    without = sorted({*range(len(units))} - {*unit_ids})
    if without:
        said = prompt.text[slice(*units[without[0]])]
        raise AttnProbeError(
            f"expected tokens of every {data.units} of {name}, {said[:60]!r} has none of its own; "
            "choose larger units"
        )
    return EncodedPrompt(example, name, prompt, ids, units, unit_ids)


def _build_row(
    asked: EncodedPrompt,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    own: list[int] | None,
    kept: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """One row of :func:`answered`.

    Args:
        own: tokens that the model says, where no answer is known.
        kept: the row of another model, whose answer is taken.
    """
    example, name, prompt, prompt_ids, units, unit_ids = asked
    given = asked.given
    if given is not None:
        ids = tokenize_answer(tokenizer, prompt, prompt_ids, given, name)
    elif own is not None:
        ids = _cut_after_first_line(tokenizer, own) if prompt.is_plain else own
    else:
        assert kept is not None
        ids = _reuse_answer(kept, tokenizer, prompt, prompt_ids, name)
    _check_length(len(prompt_ids) + len(ids), facts, tokenizer, name)
    check_token_ids([ids], facts)
    other_ids = [-1] * len(ids)
    if example.get("other") is not None:
        other = tokenize_answer(tokenizer, prompt, prompt_ids, example["other"], name)
        other_ids = _mark_first_difference(ids, other, name)
    nothing = [-1] * len(prompt_ids)
    said = _decode(tokenizer, ids)
    told = [prompt.text, units, said.strip(), example.get("other")]
    digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return {
        "example_id": example["example_id"],
        "text": prompt.text,
        "label": -1,
        "answer": said if given is None else given,
        "generated": given is None,
        "expected": example.get("expected"),
        "identity": int(digest[:13], 16),  # 52 bits, which rows hold exactly
        "units": [list(unit) for unit in units],
        "input_ids": [*prompt_ids, *ids],
        "unit_ids": [*unit_ids, *([-1] * len(ids))],
        "labelled": [0] * len(prompt_ids) + [1] * len(ids),
        "other_ids": [*nothing, *other_ids],
    }


def _reuse_answer(
    kept: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    prompt_ids: Sequence[int],
    name: str,
) -> list[int]:
    """Another model's answer, in its very tokens where the tokenizer is the same."""
    n_prompt = kept["labelled"].count(0)
    theirs, ids = kept["input_ids"][:n_prompt], kept["input_ids"][n_prompt:]
    if theirs == [*prompt_ids] and _decode(tokenizer, ids) == kept["answer"]:
        return ids
    return tokenize_answer(tokenizer, prompt, prompt_ids, kept["answer"], name)


def _mark_first_difference(ids: Sequence[int], other: Sequence[int], name: str) -> list[int]:
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


def _check_length(n: int, facts: TextModel, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    longest = facts.get_max_length(tokenizer)
    if longest is not None and n > longest:
        raise AttnProbeError(
            f"{name} has {n:,} tokens with its answer, the model reads {longest:,}; shorten its "
            "passage or leave it out"
        )


def restrict_answer(text: Text, span: str | Span, tokenizer: PreTrainedTokenizerBase) -> Text:
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
    ends = [len(_decode(tokenizer, said[: k + 1])) for k in range(len(said))]
    whole = _decode(tokenizer, said)
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


def encode_answers(examples: "datasets.Dataset") -> TokenizedSplit:
    """Returns rows of :func:`answered` as texts for the model."""
    per_token = ("input_ids", "unit_ids", "labelled", "other_ids")
    names = [name for name in per_token if name in examples.column_names]
    texts = []
    for row in examples.with_format(None):
        inputs = {name: row[name] for name in names}
        inputs["attention_mask"] = [1] * len(row["input_ids"])
        inputs["special_tokens_mask"] = [int(unit < 0) for unit in row["unit_ids"]]
        texts.append(Text(row["example_id"], -1, inputs, identity=row["identity"]))
    return TokenizedSplit(texts, n_empty=0, n_truncated=0)
