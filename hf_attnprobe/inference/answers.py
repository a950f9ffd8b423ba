"""Renders and tokenizes prompts and answers for language models, and generates missing answers.

A data row is rendered as a prompt, the prompt is divided into units such as sentences, and the
model generates an answer if the data has none. Units are located by their characters in the
rendered prompt, so that a chat template, special tokens and the question never belong to a unit.
A decoder predicts token t at position t − 1, so a single forward pass over prompt and answer
scores the answer.
"""

import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase

from hf_attnprobe.adapters.deletion import choose_padding_id
from hf_attnprobe.adapters.pretrained import (
    has_length_dependent_positions,
    unwrap_peft,
    use_eval_mode,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import get_relative_tolerance
from hf_attnprobe.checkpoints.chat_templates import render_chat_template
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import run_with_halving, split_into_chunks
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import locate_sentences
from hf_attnprobe.inference.answer_cache import AnswerCache
from hf_attnprobe.inference.encoding import (
    Text,
    TextModel,
    TokenizedSplit,
    check_token_ids,
    hash_content,
)


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

CHAT_TURN_TEMPLATE = "{context}\n\n{question}"
"""Default message of the user for a tokenizer with a chat template.

The placeholders are replaced with the passages and the question.
"""
PLAIN_PROMPT_TEMPLATE = "{context}\n\nQuestion: {question}\nAnswer:"
"""Default prompt for a tokenizer without a chat template.

The placeholders are replaced with the passages and the question. A generated answer begins with a
space and ends at the first line break.
"""
GENERATION_BATCH_SIZE = 8
"""Maximum number of prompts that a language model answers in one batch."""
SINGLE_UNIT_REASON = "consist of a single {}, so that there is nothing to compare"
"""Reason for leaving out prompts, in warnings such as "3 of 10 prompts consist of a single sentence".

The placeholder is replaced with the unit's name, such as "sentence".
"""

Span = tuple[int, int]
"""Start and end position of a substring, in characters; the end is exclusive."""
TextSpan = tuple[int, Span]
"""Pair (index, span): the index of a string in a list, and a span within this string."""


@dataclass(frozen=True)
class RenderedPrompt:
    """A rendered prompt and the positions of its passages.

    Attributes:
        text: The prompt as the tokenizer reads it.
        passages: Spans of the passages in ``text``; in a conversation, spans of its turns.
        is_chat: Whether a chat template rendered the prompt, including its special tokens.
        is_plain: Whether the prompt was rendered from context and question without a chat template,
            so that its answer is a single line.
    """

    text: str
    passages: tuple[Span, ...]
    is_chat: bool = False
    is_plain: bool = False


# --- From a row of the data to its prompt --------------------------------------------------------


def render_prompt(
    row: Mapping[str, Any], data: Answers, tokenizer: PreTrainedTokenizerBase
) -> RenderedPrompt:
    """Render the prompt for a data row.

    Args:
        row: A row from :meth:`Answers.load_examples`, which contains a whole prompt, the turns of a
            conversation, or a context with a question.
        data: The data specification.
        tokenizer: The model's tokenizer, with its chat template.

    Returns:
        The prompt and the positions of its passages.

    Raises:
        AttnProbeError: If turns are rendered without a chat template, if the template refuses the
            row, or if a passage does not occur exactly once in the prompt.
    """
    name = f"text {row['example_id']}"
    passages = row.get("passages") or []
    if "prompt" in row:
        locations = _locate_passages(passages, [row["prompt"]], name)
        return RenderedPrompt(row["prompt"], tuple(span for _, span in locations))
    if "turns" in row:
        turns = [dict(turn) for turn in row["turns"]]
        contents = [turn["content"] for turn in turns]
        if data.units == "turn":
            locations = _find_nonblank_texts(contents[:-1])
        else:
            locations = _locate_passages(passages, contents, name)
        return _render_conversation(turns, locations, tokenizer, name)
    is_chat = tokenizer.chat_template is not None
    template = data.template or (CHAT_TURN_TEMPLATE if is_chat else PLAIN_PROMPT_TEMPLATE)
    around_context = [
        part.replace("{question}", row["question"]) for part in template.split("{context}")
    ]
    text = row["text"].join(around_context)
    spans = _find_consecutive_passages(passages, text, len(around_context[0]))
    if is_chat:
        turn = {"role": "user", "content": text}
        return _render_conversation([turn], [(0, span) for span in spans], tokenizer, name)
    return RenderedPrompt(text, tuple(spans), is_plain=True)


def _find_nonblank_texts(texts: Sequence[str]) -> list[TextSpan]:
    """Find the texts that are not blank, and where their content starts and ends.

    For example, [" ab", " "] gives [(0, (1, 3))].

    Returns:
        For every nonblank text, its index in ``texts``, and the start and end of its content.
    """
    matches = [re.search(r"\S(.*\S)?", text, re.DOTALL) for text in texts]
    return [(index, match.span()) for index, match in enumerate(matches) if match]


def _find_consecutive_passages(passages: Sequence[str], text: str, start: int) -> list[Span]:
    """Find where each of several consecutive passages starts and ends in a text.

    Args:
        passages: The passages in text order.
        text: The text.
        start: Position in the text at which the search begins.

    Returns:
        Start and end of each passage in characters, without surrounding white space.
    """
    spans = []
    for passage in passages:
        stripped_passage = passage.strip()
        passage_start = text.index(stripped_passage, start)
        start = passage_start + len(stripped_passage)
        spans.append((passage_start, start))
    return spans


def _locate_passages(passages: Sequence[str], texts: Sequence[str], name: str) -> list[TextSpan]:
    """Find passages in a prompt, or in turns, that the user has written.

    A passage can be found only by its words, so it must occur exactly once.

    Args:
        passages: The passages in text order.
        texts: The prompt, or the turns' contents.
        name: Row name, for error messages.

    Returns:
        The text index and span for every passage.

    Raises:
        AttnProbeError: If a passage does not occur exactly once, or if the order is wrong.
    """
    locations: list[TextSpan] = []
    for passage in passages:
        stripped_passage = passage.strip()
        # A lookahead finds overlapping occurrences too.
        pattern = re.compile(f"(?={re.escape(stripped_passage)})")
        occurrences = [
            (index, match.start())
            for index, text in enumerate(texts)
            for match in pattern.finditer(text)
        ]
        if len(occurrences) != 1:
            raise AttnProbeError(
                f"the passage of {name} must occur once in its prompt, but "
                f"{passage.strip()[:60]!r} occurs {len(occurrences)} times. Copy it exactly "
                "from the prompt, or use a longer passage."
            )
        [(index, start)] = occurrences
        locations.append((index, (start, start + len(stripped_passage))))
    for (index, (_, end)), (next_index, (next_start, _)) in pairwise(locations):
        if (next_index, next_start) < (index, end):
            raise AttnProbeError(
                f"the passages of {name} are not in the same order as in the prompt. Sort "
                "the list of passages."
            )
    return locations


def _render_conversation(
    turns: Sequence[dict[str, str]],
    passages: Sequence[TextSpan],
    tokenizer: PreTrainedTokenizerBase,
    name: str,
) -> RenderedPrompt:
    """Render a conversation with the chat template, up to the start of the answer.

    The conversation is rendered a second time with a private-use Unicode character before and after
    every passage. These marks show the passages' positions.

    Args:
        turns: Role and content of every turn.
        passages: Turn index and span of every passage within the turns' contents.
        tokenizer: The model's tokenizer, with its chat template.
        name: Row name, for error messages.

    Returns:
        The prompt.

    Raises:
        AttnProbeError: If the template changes, repeats or drops a passage.
    """
    text = _apply_chat_template(turns, tokenizer, name)
    mark = next(char for char in map(chr, range(0xE000, 0xF900)) if char not in text)
    marked_turns = [dict(turn) for turn in turns]
    # Marks are inserted from the last passage on, so that earlier positions stay valid.
    for index, (start, end) in reversed(passages):
        content = marked_turns[index]["content"]
        marked_passage = f"{mark}{content[start:end]}{mark}"
        marked_turns[index]["content"] = content[:start] + marked_passage + content[end:]
    parts = _apply_chat_template(marked_turns, tokenizer, name).split(mark)
    if "".join(parts) != text or len(parts) != 2 * len(passages) + 1:
        raise AttnProbeError(
            f"the chat template changes, repeats or drops the passage of {name}. Provide complete "
            "prompts, and name their column with --prompt-column."
        )
    ends = [*accumulate(map(len, parts))]
    spans = zip(ends[:-1:2], ends[1::2], strict=True)
    return RenderedPrompt(text, tuple(spans), is_chat=True)


def _apply_chat_template(
    turns: Sequence[dict[str, str]], tokenizer: PreTrainedTokenizerBase, row_name: str
) -> str:
    """Convert the turns of a conversation to a prompt, with the tokenizer's chat template.

    Args:
        turns: Role and content of every turn.
        tokenizer: The model's tokenizer.
        row_name: Row of the data, such as "row 3", for error messages about the template.

    Raises:
        AttnProbeError: If the tokenizer has no chat template, or the template fails.
    """
    if tokenizer.chat_template is None:
        raise AttnProbeError(
            "conversations need a tokenizer with a chat template, but "
            f"{tokenizer.name_or_path or 'this tokenizer'} has none. Provide complete prompts, and "
            "name their column with --prompt-column."
        )
    return render_chat_template(tokenizer, turns, row_name)


# --- From a passage to its units -----------------------------------------------------------------

UNIT_SPLITTERS: dict[str, Callable[[str], list[Span]]] = {
    "sentence": locate_sentences,
    "passage": lambda text: _find_passages(text),
    "word": lambda text: [match.span() for match in re.finditer(r"\S+", text)],
}
"""Maps the name of a unit to the function that finds these units in a passage.

A passage ends at a blank line, and a word ends at white space. The unit "token" is missing here,
because it needs the tokenizer of the model.
"""


def _find_passages(text: str) -> list[Span]:
    """Find the passages of a text, which are separated by blank lines.

    Returns:
        Start and end of each passage in characters, without surrounding white space.
    """
    spans: list[Span] = []
    is_continued = False
    line_start = 0
    for line in text.split("\n"):
        content = line.strip()
        if content:
            start = line_start + line.index(content)
            end = start + len(content)
            if is_continued:
                spans[-1] = spans[-1][0], end
            else:
                spans.append((start, end))
        is_continued = bool(content)
        line_start += len(line) + 1
    return spans


def find_units(
    prompt: RenderedPrompt, units: str, offsets: Sequence[Span], *, is_listed: bool
) -> list[Span]:
    """Find the units in a prompt, such as the sentences of its passages.

    A unit extends to the start of the next unit in its passage, so that white space between two
    units belongs to the first unit.

    Args:
        prompt: The prompt.
        units: Unit name: "sentence", "passage", "word", "token" or "turn".
        offsets: Start and end of every token in the prompt, in characters.
        is_listed: Whether the data lists the passages one by one, so that they are not split at
            blank lines.

    Returns:
        Start and end of every unit in the prompt, in prompt order.
    """
    is_whole_passage = units == "turn" or (is_listed and units == "passage")
    spans: list[Span] = []
    for start, end in prompt.passages:
        if units == "token":
            spans += _find_token_units(prompt.text, start, end, offsets)
        elif is_whole_passage:
            spans.append((start, end))
        else:
            unit_spans = UNIT_SPLITTERS[units](prompt.text[start:end])
            unit_starts = [start + unit_start for unit_start, _ in unit_spans]
            # Each unit ends where the next one starts, and the last one ends with the passage.
            spans += pairwise([*unit_starts, end])
    return spans


def _find_token_units(text: str, start: int, end: int, offsets: Sequence[Span]) -> list[Span]:
    """Find the start and end of every token in a passage, so that each token is a unit.

    Tokens that encode parts of the same character, such as an emoji, are merged to one unit.

    Args:
        text: The prompt.
        start: Start of the passage in the prompt, in characters.
        end: End of the passage, exclusive.
        offsets: Start and end of every token in the prompt, in characters.

    Returns:
        Start and end of every unit in the prompt.
    """
    spans: list[Span] = []
    for token_start, token_end in offsets:
        # A token belongs to the passage if its last nonblank character does.
        is_empty = token_start == token_end
        if is_empty or not start <= _find_last_letter(text, token_start, token_end) < end:
            continue
        previous_start, previous_end = spans[-1] if spans else (0, 0)
        # Two tokens overlap if they encode parts of the same character.
        if token_start < previous_end:
            spans[-1] = previous_start, max(token_end, previous_end)
        else:
            spans.append((token_start, token_end))
    return spans


def _find_last_letter(text: str, start: int, end: int) -> int:
    """Return the position of a token's last nonblank character.

    The result is the token's start if all its characters are blank.
    """
    return max(start + len(text[start:end].rstrip()) - 1, start)


def assign_units(text: str, units: Sequence[Span], offsets: Sequence[Span]) -> list[int]:
    """Assign every token to the unit that contains its last nonblank character.

    Args:
        text: The prompt.
        units: Start and end of every unit, in characters.
        offsets: Start and end of every token, in characters.

    Returns:
        Unit index for each token; −1 for tokens outside all units.
    """
    # The additional element belongs to the position after the last character.
    unit_of_character = [-1] * (len(text) + 1)
    for index, (start, end) in enumerate(units):
        unit_of_character[start:end] = [index] * (end - start)
    return [
        unit_of_character[_find_last_letter(text, start, end)] if start < end else -1
        for start, end in offsets
    ]


# --- From a prompt and its answer to their tokens ----------------------------------------


def tokenize_prompt(
    tokenizer: PreTrainedTokenizerBase, text: str, prompt: RenderedPrompt
) -> tuple[list[int], list[Span]]:
    """Tokenize a prompt, or a prompt with its answer.

    Special tokens are added at the start, unless the prompt already contains them, and never at
    the end.

    Args:
        tokenizer: The model's tokenizer.
        text: The text to tokenize.
        prompt: The prompt with which the text begins.

    Returns:
        The token ids, and the start and end of every token in characters.
    """
    bos_token = tokenizer.bos_token
    has_special_tokens = prompt.is_chat or bool(bos_token and text.startswith(bos_token))
    encoded = tokenizer(
        text,
        add_special_tokens=not has_special_tokens,
        return_offsets_mapping=True,
        return_special_tokens_mask=True,
        verbose=False,
    )
    ids, is_special = [*encoded["input_ids"]], encoded["special_tokens_mask"]
    # Drop the special tokens at the end.
    n_tokens = len(ids)
    while n_tokens and is_special[n_tokens - 1]:
        n_tokens -= 1
    return ids[:n_tokens], [tuple(span) for span in encoded["offset_mapping"][:n_tokens]]


def tokenize_answer(
    tokenizer: PreTrainedTokenizerBase,
    prompt: RenderedPrompt,
    prompt_ids: Sequence[int],
    answer: str,
    name: str,
) -> list[int]:
    """Tokenize an answer that follows a prompt, without changing the tokens of the prompt.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The prompt.
        prompt_ids: Token ids for the prompt.
        answer: The answer.
        name: Row name, for error messages.

    Returns:
        Token ids for the answer.

    Raises:
        AttnProbeError: If the answer's tokens would change the text of the prompt.
    """
    if prompt.is_plain and not answer[:1].isspace():
        answer = f" {answer}"
    joint_ids, _ = tokenize_prompt(tokenizer, prompt.text + answer, prompt)
    n_prompt = len(prompt_ids)
    if joint_ids[:n_prompt] == list(prompt_ids) and len(joint_ids) > n_prompt:
        return joint_ids[n_prompt:]
    answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
    joint_text = decode_tokens(tokenizer, [*prompt_ids, *answer_ids])
    if joint_text != decode_tokens(tokenizer, prompt_ids) + answer:
        raise AttnProbeError(
            f"the answer {answer[:60]!r} would change the last token of the prompt of "
            f"{name}. If the prompt ends with a space, move this space to the start of the "
            "answer."
        )
    return list(answer_ids)


def decode_tokens(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Decode token ids to a string without corrections to its spaces."""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def cut_after_first_line(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Cut off an answer after its first nonblank line.

    Args:
        tokenizer: The model's tokenizer.
        ids: Token ids of the answer.

    Returns:
        The token ids before the line break.
    """
    # Tokens are decoded together, because one token may not be a complete character.
    for n_tokens in range(1, len(ids) + 1):
        if "\n" in decode_tokens(tokenizer, ids[:n_tokens]).lstrip():
            return [*ids[: n_tokens - 1]]
    return list(ids)


# --- Generation ----------------------------------------------------------------------------------


class GeneratedAnswer(NamedTuple):
    """An answer that a model has generated by greedy decoding.

    Attributes:
        tokens: Token ids for the answer, without the end token.
        margins: Difference between the two largest logits at each generated token, `[steps]`.
        rounding: Largest difference in a logit that rounding can cause between two runs.
    """

    tokens: list[int]
    margins: Tensor
    rounding: float

    @property
    def is_defined(self) -> bool:
        """Whether all logits are numbers."""
        return not bool(self.margins.isnan().any())

    @property
    def is_certain(self) -> bool:
        """Whether rounding cannot change any token of the answer."""
        return bool((self.margins > self.rounding).all())

    def matches(self, other: "GeneratedAnswer") -> bool:
        """Return whether another run gave the same tokens with the same margins."""
        if self.tokens != other.tokens:
            return False
        return bool(((self.margins - other.margins).abs() <= self.rounding).all())


def list_end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """List the ids of all tokens that end a generated answer.

    Args:
        model: The language model. Its generation settings may contain one or several end tokens.
        tokenizer: The model's tokenizer, which may have an end token too.

    Returns:
        Token ids without duplicates, beginning with the tokenizer's; empty if there are none.
    """
    generation_config = getattr(model, "generation_config", None)
    model_end_tokens = getattr(generation_config, "eos_token_id", None)
    if not isinstance(model_end_tokens, list):
        model_end_tokens = [model_end_tokens]
    candidates = (tokenizer.eos_token_id, *model_end_tokens)
    return list(dict.fromkeys(int(token) for token in candidates if token is not None))


def generate_answers(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, Sequence[int]],
    max_new_tokens: int,
    on_batch_end: Callable[[Mapping[str, list[int]]], None] = lambda answers: None,
) -> dict[str, list[int]]:
    """Generate an answer to each prompt by greedy decoding.

    A prompt has no answer if logits after it are NaN or infinite.

    The model's own generation settings are ignored, except for the end tokens. Prompts of similar
    length are answered in one batch with padding on the left. An answer must not depend on other
    prompts in its batch:

    - If rounding could change a token in an answer, its prompt is answered again alone.
    - If padding changes the answer to the shortest prompt, all prompts in the batch are answered
      again alone. A single forward pass over this prompt and its answer, without padding, shows
      whether greedy decoding would generate the same tokens.
    - In half precision, or if the model's positional encoding depends on the text length, every
      prompt is answered alone from the start.

    Args:
        model: The language model.
        tokenizer: The model's tokenizer.
        prompts: Token ids for the prompts, by name.
        max_new_tokens: Maximum answer length in tokens.
        on_batch_end: Function that is called with the answers of every batch.

    Returns:
        Token ids for the answers, by prompt name.

    Raises:
        AttnProbeError: If a single prompt does not fit into memory.
    """
    end_tokens = list_end_tokens(model, tokenizer)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=end_tokens or None,
        pad_token_id=choose_padding_id(
            [tokenizer.pad_token_id, *end_tokens], model.get_input_embeddings().num_embeddings
        ),
        return_dict_in_generate=True,
        output_logits=True,
    )

    def generate(names: Sequence[str]) -> list[GeneratedAnswer]:
        return _generate_batch(model, settings, [prompts[name] for name in names])

    def generate_independently(names: Sequence[str]) -> list[GeneratedAnswer]:
        answers = generate(names)
        if len(names) > 1:
            shortest_alone = _decode_without_padding(model, settings, prompts[names[0]], answers[0])
            is_padding_harmless = shortest_alone.matches(answers[0])
            answers = [
                answer if is_padding_harmless and answer.is_certain else generate([name])[0]
                for name, answer in zip(names, answers, strict=True)
            ]
        return answers

    is_half_precision = torch.finfo(model.dtype).bits < 32
    is_batched = not (is_half_precision or has_length_dependent_positions(model.config))
    batch_size = GENERATION_BATCH_SIZE if is_batched else 1
    names_by_length = sorted(prompts, key=lambda name: len(prompts[name]))
    all_answers: dict[str, list[int]] = {}
    for batch_names in split_into_chunks(names_by_length, batch_size):
        for names, answers in run_with_halving(batch_names, generate_independently):
            answers_by_name = {
                name: answer.tokens
                for name, answer in zip(names, answers, strict=True)
                if answer.is_defined
            }
            on_batch_end(answers_by_name)
            all_answers |= answers_by_name
    return all_answers


@torch.no_grad()
def _generate_batch(
    model: Any, settings: GenerationConfig, prompts: Sequence[Sequence[int]]
) -> list[GeneratedAnswer]:
    """Generate answers to several prompts, given as token ids, in one batch."""
    rows = [torch.tensor(ids, device=model.device) for ids in prompts]
    pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
    input_ids = pad_left(rows, padding_value=settings.pad_token_id)
    n_prompt = input_ids.shape[1]
    with use_eval_mode(model), _use_generation_settings(model, settings):
        output = model.generate(
            input_ids,
            attention_mask=pad_left([*map(torch.ones_like, rows)]),
            generation_config=settings,
        )
    answers = []
    for row in range(len(prompts)):
        tokens = output.sequences[row, n_prompt:].tolist()
        top_logits = torch.stack([step[row].topk(2).values for step in output.logits])
        answers.append(_read_answer(model, settings, tokens, top_logits))
    return answers


def _read_answer(
    model: Any, settings: GenerationConfig, tokens: Sequence[int], top_logits: Tensor
) -> GeneratedAnswer:
    """Cut off an answer at its end token, and compute how certain its tokens are.

    Args:
        model: The language model.
        settings: Generation settings with the end tokens.
        tokens: The likeliest token id at each step, also after the end token.
        top_logits: The two largest logits at each step, `[steps, 2]`.
    """
    end_tokens = settings.eos_token_id or []
    end_positions = [k for k, token in enumerate(tokens) if token in end_tokens]
    end = end_positions[0] if end_positions else None
    n_steps = len(tokens) if end is None else end + 1
    first, second = top_logits[:n_steps].T
    rounding = get_relative_tolerance(model.dtype) * float(first.abs().max())
    return GeneratedAnswer([*tokens[:end]], first - second, rounding)


@torch.no_grad()
def _decode_without_padding(
    model: Any, settings: GenerationConfig, prompt: Sequence[int], answer: GeneratedAnswer
) -> GeneratedAnswer:
    """Read an answer to a prompt from one forward pass over the prompt and a known answer.

    If the result is the known answer, then greedy decoding generates it: every token is the
    likeliest one after the tokens before it. One pass costs much less than generating token by
    token.

    Args:
        model: The language model.
        settings: Generation settings with the end tokens.
        prompt: Token ids of the prompt.
        answer: The known answer.
    """
    n_steps = len(answer.margins)
    ids = torch.tensor([[*prompt, *answer.tokens]], device=model.device)
    ids = ids[:, : len(prompt) + n_steps - 1]
    arguments: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "use_cache": False}
    if "logits_to_keep" in inspect.signature(unwrap_peft(model).forward).parameters:
        # Logits for all tokens of a long prompt would take much memory.
        arguments["logits_to_keep"] = n_steps
    with use_eval_mode(model):
        logits = model(input_ids=ids, **arguments).logits
    top = logits[0, -n_steps:].topk(2)
    return _read_answer(model, settings, top.indices[:, 0].tolist(), top.values)


@contextmanager
def _use_generation_settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    """Replace the model's generation settings inside a ``with`` block.

    Otherwise, Transformers would use the model's settings for all fields that are not set.
    """
    # A model with PEFT adapters contains another model with its own settings.
    models = [model, unwrap_peft(model)]
    original_settings = [wrapped.generation_config for wrapped in models]
    for wrapped in models:
        wrapped.generation_config = settings
    try:
        yield
    finally:
        for wrapped, original in zip(models, original_settings, strict=True):
            wrapped.generation_config = original


# --- From data rows to encoded prompts ------------------------------------------------


class EncodedPrompt(NamedTuple):
    """A data row with its prompt as tokens.

    Attributes:
        example: The data row.
        name: Row name, such as "text 3".
        prompt: The rendered prompt.
        ids: Token ids for the prompt.
        units: Span for every unit in the prompt.
        unit_ids: Unit index for each token; −1 for tokens outside all units.
    """

    example: Mapping[str, Any]
    name: str
    prompt: RenderedPrompt
    ids: list[int]
    units: list[Span]
    unit_ids: list[int]

    @property
    def data_answer(self) -> str | None:
        """Answer from the data; None if the model has to generate the answer."""
        return self.example.get("answer")


def prepare_prompts(
    examples: "datasets.Dataset",
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    model: Any,
    *,
    reference_examples: "datasets.Dataset | None" = None,
    cache_file: Path | None = None,
    show_progress: bool = False,
) -> "datasets.Dataset":
    """Prepare prompts, units and answers for all rows, as text and as tokens.

    Missing answers are generated. Prompts with a single unit have nothing to compare, and an empty
    answer has nothing to explain. Such prompts are left out, and a warning with their number is
    logged.

    Args:
        examples: Rows from :meth:`Answers.load_examples`.
        data: The data specification.
        tokenizer: The model's tokenizer.
        facts: The model's embedding count and maximum length.
        model: The language model that generates answers.
        reference_examples: This function's result for another model. Its generated answers are
            used, so that this model generates none for the same texts. None in an ordinary audit.
        cache_file: File that caches generated answers, so that they are not generated again; None
            for no cache.
        show_progress: Whether to display how many prompts have been answered.

    Returns:
        A data set with one row for each prompt and these columns:

        - ``example_id``, ``text`` (the prompt) and ``label`` (always −1);
        - ``answer``, and ``generated`` (whether a model generated it);
        - ``is_cut`` (whether generation stopped at the maximum length);
        - ``expected`` (a string that a correct answer must contain, or None);
        - ``units`` (start and end of every unit in characters);
        - ``identity`` (a 52-bit hash of prompt, units and answers; two texts are the same if their
          ids and their identities agree);
        - lists with one number for each token in prompt and answer: ``input_ids``, ``unit_ids``,
          ``labelled`` (1 for tokens in the answer) and, if any row has a rival answer,
          ``other_ids``.

    Raises:
        AttnProbeError: If the tokenizer does not return offsets, if a prompt is too long or cannot
            be rendered, if an answer does not continue its prompt, if the model does not embed a
            token id, or if no prompt remains.
    """
    import datasets

    if not tokenizer.is_fast:
        raise AttnProbeError(
            f"prompts need a fast tokenizer, got {type(tokenizer).__name__}. Load the fast "
            "tokenizer of the model, for example with AutoTokenizer."
        )
    reference_rows: dict[int, Mapping[str, Any]] = {}
    if reference_examples is not None:
        reference_rows = {row["example_id"]: row for row in reference_examples if row["generated"]}
    prompts = [
        _encode_prompt(example, data, tokenizer, facts) for example in examples.with_format(None)
    ]
    unanswered = {
        prompt.name: prompt.ids
        for prompt in prompts
        if prompt.data_answer is None and prompt.example["example_id"] not in reference_rows
    }
    generated_ids = _generate_with_cache(
        model, tokenizer, unanswered, data.max_new_tokens, cache_file, show_progress
    )
    _report_undefined_prompts([name for name in unanswered if name not in generated_ids], prompts)
    rows = []
    n_left_out: Counter[str] = Counter()
    for prompt in prompts:
        if prompt.name in unanswered and prompt.name not in generated_ids:
            continue
        reference_row = reference_rows.get(prompt.example["example_id"])
        row = _build_row(prompt, tokenizer, facts, generated_ids.get(prompt.name), reference_row)
        row["is_cut"] = row["generated"] and sum(row["labelled"]) == data.max_new_tokens
        if len(row["units"]) < 2:
            n_left_out[SINGLE_UNIT_REASON.format(data.units)] += 1
        elif not any(row["labelled"]):
            n_left_out["have an empty answer"] += 1
        else:
            rows.append(row)
    _report_left_out_prompts(n_left_out, len(examples), has_prompts=bool(rows))
    n_generated = sum(row["generated"] for row in rows)
    if 0 < n_generated < len(rows):
        logger.warning(
            "%d of %d prompts have no answer in the data, so their generated answers are used",
            n_generated,
            len(rows),
        )
    has_rival_answers = any(max(row["other_ids"]) >= 0 for row in rows)
    columns = [name for name in rows[0] if has_rival_answers or name != "other_ids"]
    prepared = datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in columns})
    prepared.info.description = examples.info.description
    return prepared


def _generate_with_cache(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Mapping[str, list[int]],
    max_new_tokens: int,
    cache_file: Path | None,
    show_progress: bool,
) -> dict[str, list[int]]:
    """Generate all answers that are not in the cache, and add them to the cache.

    Args:
        model: The language model.
        tokenizer: The model's tokenizer.
        prompts: Token ids for the prompts, by name.
        max_new_tokens: Maximum answer length in tokens.
        cache_file: File with cached answers; None for no cache.
        show_progress: Whether to display how many prompts have been answered.

    Returns:
        Token ids for the answers, by prompt name.
    """
    cache = AnswerCache(cache_file, prompts)
    answers = cache.read()
    pending_prompts = {name: ids for name, ids in prompts.items() if name not in answers}
    n_answered = 0

    def save_batch(batch_answers: Mapping[str, list[int]]) -> None:
        nonlocal n_answered
        n_answered += len(batch_answers)
        # A prompt with undefined logits has no answer.
        if n_answered:
            bar.update_count(n_answered, len(pending_prompts), "prompts")
        if get_process_state().is_main_process:
            cache.add(batch_answers)

    with ProgressBar("answers", show_progress) as bar:
        return answers | generate_answers(
            model, tokenizer, pending_prompts, max_new_tokens, save_batch
        )


def _report_undefined_prompts(names: Sequence[str], prompts: Sequence[EncodedPrompt]) -> None:
    """Log a warning that names the prompts for which the model's logits are NaN or infinite.

    Args:
        names: Names of these prompts, which are left out.
        prompts: All prompts.

    Raises:
        AttnProbeError: If no other prompt remains.
    """
    for name in names:
        logger.warning("the logits for %s are NaN or infinite, so this prompt is left out", name)
    if names and len(names) == len(prompts):
        raise AttnProbeError(
            "the logits after every prompt are NaN or infinite. Check the model's weights, or load "
            "the model in another dtype."
        )


def _report_left_out_prompts(
    n_left_out: Mapping[str, int], n_prompts: int, *, has_prompts: bool
) -> None:
    """Log a warning about the prompts that cannot be explained and are left out.

    If no prompt remains, AttnProbeError is raised instead.

    Args:
        n_left_out: Number of left-out prompts by reason, such as "have an empty answer".
        n_prompts: Number of all prompts.
        has_prompts: Whether any prompt remains.
    """
    for reason, n_affected in n_left_out.items():
        # Without any prompt, the first reason is reported as an error.
        if not has_prompts:
            raise AttnProbeError(
                f"no prompt can be explained: {n_affected} of {n_prompts} {reason}. Choose "
                'smaller units, such as units="token", or provide answers.'
            )
        logger.warning("%d of %d prompts %s; they are left out", n_affected, n_prompts, reason)


def _encode_prompt(
    example: Mapping[str, Any],
    data: Answers,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
) -> EncodedPrompt:
    """Make the prompt for a row of the data: its text, its token ids, and the unit of every token.

    Args:
        example: The row.
        data: The data set, with the type of units, such as sentences.
        tokenizer: The model's tokenizer.
        facts: The model's properties, such as its maximum length.
    """
    name = f"text {example['example_id']}"
    prompt = render_prompt(example, data, tokenizer)
    ids, offsets = tokenize_prompt(tokenizer, prompt.text, prompt)
    if not ids:
        raise AttnProbeError(f"the prompt of {name} is empty. Add text, or leave out the row.")
    check_token_ids([ids], facts)
    check_length(len(ids), facts, tokenizer, name)
    is_listed = bool(example.get("listed"))
    units = find_units(prompt, data.units, offsets, is_listed=is_listed)
    unit_ids = assign_units(prompt.text, units, offsets)
    # Small units, such as words, may share a token, so that one of them has none.
    units_without_tokens = sorted({*range(len(units))} - set(unit_ids))
    if units_without_tokens:
        unit_text = prompt.text[slice(*units[units_without_tokens[0]])]
        raise AttnProbeError(
            f"every {data.units} in {name} needs a token of its own, but {unit_text[:60]!r} "
            "has none. Choose larger units."
        )
    return EncodedPrompt(example, name, prompt, ids, units, unit_ids)


def _build_row(
    encoded: EncodedPrompt,
    tokenizer: PreTrainedTokenizerBase,
    facts: TextModel,
    generated_ids: list[int] | None,
    reference_row: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Build one output row of :func:`prepare_prompts`.

    Args:
        encoded: The prompt as tokens.
        tokenizer: The model's tokenizer.
        facts: The model's embedding count and maximum length.
        generated_ids: Token ids for the model's generated answer; None if the data or a reference
            row provides the answer.
        reference_row: Another model's row, whose generated answer is used; or None.

    Returns:
        Values by column name.
    """
    example, name, prompt, prompt_ids, units, unit_ids = encoded
    data_answer = encoded.data_answer
    if data_answer is not None:
        ids = tokenize_answer(tokenizer, prompt, prompt_ids, data_answer, name)
    elif generated_ids is not None:
        ids = generated_ids
        if prompt.is_plain:
            ids = cut_after_first_line(tokenizer, generated_ids)
    else:
        assert reference_row is not None
        ids = _reuse_answer(reference_row, tokenizer, prompt, prompt_ids, name)
    check_length(len(prompt_ids) + len(ids), facts, tokenizer, name)
    check_token_ids([ids], facts)
    rival_ids = [-1] * len(ids)
    if example.get("other") is not None:
        rival_answer = tokenize_answer(tokenizer, prompt, prompt_ids, example["other"], name)
        rival_ids = _mark_first_difference(ids, rival_answer, name)
    answer_text = decode_tokens(tokenizer, ids)
    hashed_content = [prompt.text, units, answer_text.strip(), example.get("other")]
    return {
        "example_id": example["example_id"],
        "text": prompt.text,
        "label": -1,
        "answer": answer_text if data_answer is None else data_answer,
        "generated": data_answer is None,
        "expected": example.get("expected"),
        "identity": hash_content(hashed_content),
        "units": [list(unit) for unit in units],
        "input_ids": [*prompt_ids, *ids],
        "unit_ids": [*unit_ids, *([-1] * len(ids))],
        "labelled": [0] * len(prompt_ids) + [1] * len(ids),
        "other_ids": [*([-1] * len(prompt_ids)), *rival_ids],
    }


def _reuse_answer(
    reference_row: Mapping[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    prompt: RenderedPrompt,
    prompt_ids: Sequence[int],
    name: str,
) -> list[int]:
    """Return this model's token ids for an answer that another model has generated.

    The other model's token ids are used if both tokenizers split the prompt and the answer in the
    same way. Otherwise, the answer is tokenized again.

    Args:
        reference_row: The other model's prompt and answer.
        tokenizer: This model's tokenizer.
        prompt: This model's prompt.
        prompt_ids: Token ids of this model's prompt.
        name: Row name, for error messages.
    """
    # The mask "labelled" is 0 for the tokens of the prompt and 1 for those of the answer.
    n_prompt = reference_row["labelled"].count(0)
    reference_prompt_ids = reference_row["input_ids"][:n_prompt]
    answer_ids = reference_row["input_ids"][n_prompt:]
    has_same_prompt = reference_prompt_ids == list(prompt_ids)
    if has_same_prompt and decode_tokens(tokenizer, answer_ids) == reference_row["answer"]:
        return answer_ids
    return tokenize_answer(tokenizer, prompt, prompt_ids, reference_row["answer"], name)


def _mark_first_difference(ids: Sequence[int], rival_ids: Sequence[int], name: str) -> list[int]:
    """Mark the first token at which another possible answer (the rival) differs from the answer.

    For example, the answer [5, 7, 9] and the rival answer [5, 8, 9] give [−1, 8, −1].

    Args:
        ids: Token ids of the answer.
        rival_ids: Token ids of the rival answer.
        name: Row name, for the error message.

    Returns:
        One number per token of the answer: the rival answer's token id at the first difference, −1
        at all other positions.

    Raises:
        AttnProbeError: If one answer begins with the other.
    """
    marked_ids = [-1] * len(ids)
    for position, (token, rival_token) in enumerate(zip(ids, rival_ids, strict=False)):
        if token != rival_token:
            marked_ids[position] = rival_token
            return marked_ids
    raise AttnProbeError(
        f"the two answers of {name} must differ at some token, but one of them is the "
        "beginning of the other. Change one of the answers."
    )


def check_length(
    n_tokens: int, facts: TextModel, tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """Raise AttnProbeError if a prompt, with or without its answer, is too long for the model."""
    max_length = facts.get_max_length(tokenizer)
    if max_length is not None and n_tokens > max_length:
        raise AttnProbeError(
            f"{name} has {n_tokens:,} tokens in total, but the model reads at most "
            f"{max_length:,}. Shorten its passage, or leave out the row."
        )


def restrict_answer(text: Text, span: str | Span, tokenizer: PreTrainedTokenizerBase) -> Text:
    """Restrict the explained answer to a part, such as its decisive word.

    All tokens after this part are removed. A decoder's token does not see later tokens, so the part
    has the same probability as within the whole answer.

    Args:
        text: A text from :func:`encode_answers`.
        span: The part as a string, or its start and end within the answer in characters.
        tokenizer: The model's tokenizer.

    Returns:
        The text with the part as its answer.

    Raises:
        AttnProbeError: If the answer does not contain the part.
    """
    labelled = list(text.inputs["labelled"])
    n_prompt = labelled.count(0)
    answer_ids = text.inputs["input_ids"][n_prompt:]
    answer = decode_tokens(tokenizer, answer_ids)
    token_ends = [
        len(decode_tokens(tokenizer, answer_ids[: k + 1])) for k in range(len(answer_ids))
    ]
    if isinstance(span, str):
        start = answer.find(span)
        end = start + len(span)
    else:
        start, end = span
    overlapping_tokens = [
        k
        for k, (token_start, token_end) in enumerate(pairwise([0, *token_ends]))
        if token_start < end and token_end > start
    ]
    if not 0 <= start < end or not overlapping_tokens:
        raise AttnProbeError(
            f"the answer {answer.strip()[:60]!r} does not contain the span {span!r}. Copy "
            "the span from the answer, or pass its start and end in characters."
        )
    first_token = n_prompt + overlapping_tokens[0]
    n_tokens = n_prompt + overlapping_tokens[-1] + 1
    inputs = {name: list(values[:n_tokens]) for name, values in text.inputs.items()}
    inputs["labelled"] = [int(k >= first_token) for k in range(n_tokens)]
    return replace(text, inputs=inputs)


def encode_answers(examples: "datasets.Dataset") -> TokenizedSplit:
    """Convert prepared prompts to texts for the model.

    Args:
        examples: Rows from :func:`prepare_prompts`.

    Returns:
        One text for each row.
    """
    token_columns = ("input_ids", "unit_ids", "labelled", "other_ids")
    columns = [name for name in token_columns if name in examples.column_names]
    texts = []
    for row in examples.with_format(None):
        inputs = {name: row[name] for name in columns}
        inputs["attention_mask"] = [1] * len(row["input_ids"])
        inputs["special_tokens_mask"] = [int(unit < 0) for unit in row["unit_ids"]]
        # The label is −1, because an answer is not a class.
        texts.append(Text(row["example_id"], -1, inputs, identity=row["identity"]))
    return TokenizedSplit(texts, n_empty=0, n_truncated=0)
