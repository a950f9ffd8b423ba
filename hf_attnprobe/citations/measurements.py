"""Measure the log-probability of each statement with and without the passages of its prompt.

Each statement is scored directly after the prompt, without the earlier statements of its answer. After
an earlier statement with the same fact, the model could copy the fact from there, and the passage
would look unused.

To remove a passage, all its tokens are deleted, including its number and its title, and later tokens
move up. The numbers of the other passages do not change. Each shortened prompt runs once for all
statements of an answer, see :mod:`~hf_attnprobe.adapters.language_model.continuations`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.language_model.continuations import score_continuations
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.citations.rows import CitationRow
from hf_attnprobe.citations.rule import StatementLogProbs, UnexpectedSpan
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import locate_sentences
from hf_attnprobe.inference.answers import (
    RenderedPrompt,
    Span,
    assign_units,
    check_length,
    decode_tokens,
    render_prompt,
    tokenize_answer,
    tokenize_prompt,
)
from hf_attnprobe.inference.encoding import check_token_ids
from hf_attnprobe.protocol import Observation


@dataclass(frozen=True)
class PassagePrompt:
    """The prompt of a row as tokens, with the passage and the sentence of each token.

    Attributes:
        prompt: The rendered prompt.
        ids: Token ids.
        sentences: Start and end of each sentence of the passages, in characters of the prompt.
        sentence_ids: Sentence index of each token; -1 outside the passages.
        passage_of_sentence: Passage index of each sentence, counted from 0.
    """

    prompt: RenderedPrompt
    ids: list[int]
    sentences: list[Span]
    sentence_ids: list[int]
    passage_of_sentence: list[int]

    def select_passages(self, passages: Collection[int]) -> list[int]:
        """Return the token ids of the prompt with only some of its passages.

        Args:
            passages: Indices of the remaining passages, counted from 0.
        """
        return [
            token
            for token, sentence in zip(self.ids, self.sentence_ids, strict=True)
            if sentence < 0 or self.passage_of_sentence[sentence] in passages
        ]

    def read_sentence(self, index: int) -> str:
        """Return the text of a sentence."""
        start, end = self.sentences[index]
        return self.prompt.text[start:end].strip()


@dataclass(frozen=True)
class StatementMeasurement:
    """Measurements of one statement.

    Attributes:
        log_probs: Log-probabilities with and without passages.
        attention: Share of the attention on each passage, as a mean over all heads and over the rows
            that predict the statement.
        attended_sentence: The sentence of the passages with the most attention.
        attended_passage: Number of its passage, counted from 1.
    """

    log_probs: StatementLogProbs
    attention: tuple[float, ...]
    attended_sentence: str
    attended_passage: int


def encode_prompt(
    row: CitationRow, tokenizer: PreTrainedTokenizerBase, template: str | None
) -> PassagePrompt:
    """Render and tokenize the prompt of a row, with numbered passages.

    Args:
        row: The row.
        tokenizer: The model's tokenizer.
        template: Text with {context} and {question}; None for the default of
            :class:`~hf_attnprobe.data.specs.Answers`.

    Returns:
        The prompt.

    Raises:
        AttnProbeError: If the chat template changes a passage.
    """
    passages = [f"[{k}] {passage.body}" for k, passage in enumerate(row.passages, 1)]
    example = {
        "example_id": row.number,
        "text": "\n\n".join(passages),
        "passages": passages,
        "question": row.question,
    }
    prompt = render_prompt(example, Answers([{}], template=template), tokenizer)
    ids, offsets = tokenize_prompt(tokenizer, prompt.text, prompt)
    sentences, passage_of_sentence = _locate_passage_sentences(prompt)
    sentence_ids = assign_units(prompt.text, sentences, offsets)
    return PassagePrompt(prompt, ids, sentences, sentence_ids, passage_of_sentence)


def _locate_passage_sentences(prompt: RenderedPrompt) -> tuple[list[Span], list[int]]:
    """Locate the sentences of all passages, so that together they also cover all blank lines.

    If a passage is deleted, the blank line after it must be deleted too. Therefore, the last sentence
    of each passage extends to the next passage, or to the next text.

    Returns:
        Start and end of each sentence, and the index of its passage.
    """
    _, end_of_last = prompt.passages[-1]
    rest = prompt.text[end_of_last:]
    start_of_rest = end_of_last + len(rest) - len(rest.lstrip())
    passage_starts = [start for start, _ in prompt.passages]
    spans: list[Span] = []
    passage_of_sentence: list[int] = []
    for index, (start, next_start) in enumerate(pairwise([*passage_starts, start_of_rest])):
        _, end = prompt.passages[index]
        sentence_starts = [
            start + sentence_start for sentence_start, _ in locate_sentences(prompt.text[start:end])
        ]
        # The first sentence begins with the number of the passage.
        sentence_starts[0] = start
        new_spans = list(pairwise([*sentence_starts, next_start]))
        spans += new_spans
        passage_of_sentence += [index] * len(new_spans)
    return spans, passage_of_sentence


class StatementMeter:
    """Measures statements with one language model.

    Args:
        adapter: Adapter of the language model.
        tokenizer: The model's tokenizer.
    """

    def __init__(self, adapter: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self.adapter, self.tokenizer = adapter, tokenizer
        self._site, self.attention_name = choose_model_attention(adapter)

    def check_prompt(self, prompt: PassagePrompt, name: str) -> None:
        """Raise an error if a prompt is too long, or if the model does not embed a token.

        Args:
            prompt: The prompt.
            name: Name of its row.
        """
        check_token_ids([prompt.ids], self.adapter)
        check_length(len(prompt.ids), self.adapter, self.tokenizer, name)

    def encode_statement(self, prompt: PassagePrompt, statement: str, name: str) -> list[int]:
        """Tokenize a statement as the answer to a prompt, and check its tokens.

        Args:
            prompt: The prompt.
            statement: The statement without markers.
            name: Name of its row.

        Raises:
            AttnProbeError: If prompt and statement are too long for the model, or if the model does
                not embed a token.
        """
        ids = tokenize_answer(self.tokenizer, prompt.prompt, prompt.ids, statement, name)
        check_token_ids([ids], self.adapter)
        check_length(len(prompt.ids) + len(ids), self.adapter, self.tokenizer, name)
        return ids

    def measure_answer(
        self, prompt: PassagePrompt, statements: Sequence[Sequence[int]], row_number: int
    ) -> list[StatementMeasurement]:
        """Measure each statement of an answer with all passages, without some of them, and without any.

        Args:
            prompt: The prompt.
            statements: Token ids of each statement, at least one statement.
            row_number: Number of the row, for error messages.

        Returns:
            Log-probabilities in nats, and the attention to the passages, for each statement.
        """
        observations = self._observe_statements(prompt, statements, row_number)
        n_passages = max(prompt.passage_of_sentence) + 1
        everything = tuple(range(n_passages))
        passage_sets = [
            everything,
            (),
            *(tuple(k for k in everything if k != removed) for removed in everything),
            *((k,) for k in everything),
        ]
        # With one or two passages, some of these sets are the same.
        different_sets = list(dict.fromkeys(passage_sets))
        prompts = [prompt.select_passages(passages) for passages in different_sets]
        all_scores = score_continuations(self.adapter, observations[0], prompts, statements)
        measurements = []
        for ids, scores, observation in zip(statements, all_scores, observations, strict=True):
            sums = dict(zip(different_sets, scores.log_probs.sum(-1).tolist(), strict=True))
            if not scores.log_probs.isfinite().all():
                raise AttnProbeError(
                    f"a log-probability of a statement in row {row_number} is infinite or NaN. Load "
                    "the model in another dtype, or check its weights."
                )
            full, prior, *singles = [sums[passages] for passages in passage_sets]
            log_probs = StatementLogProbs(
                full=full,
                prior=prior,
                without=tuple(singles[:n_passages]),
                alone=tuple(singles[n_passages:]),
                n_tokens=len(ids),
                unexpected_spans=self._find_unexpected_spans(
                    ids,
                    full=scores.log_probs[different_sets.index(everything)],
                    prior=scores.log_probs[different_sets.index(())],
                    is_first_choice=scores.is_first_choice[different_sets.index(())],
                ),
            )
            measurements.append(self._add_attention(log_probs, prompt, observation))
        return measurements

    def _find_unexpected_spans(
        self, ids: Sequence[int], *, full: Tensor, prior: Tensor, is_first_choice: Tensor
    ) -> tuple[UnexpectedSpan, ...]:
        """Find the spans of a statement that the model would not write without passages.

        Args:
            ids: Token ids of the statement.
            full: Log-probability of each token with all passages, `[tokens]`.
            prior: Log-probability of each token without any passage, `[tokens]`.
            is_first_choice: Whether greedy decoding without passages writes each token, bool
                `[tokens]`.
        """
        is_unexpected = [
            not is_first and not _is_punctuation(decode_tokens(self.tokenizer, [token]))
            for token, is_first in zip(ids, is_first_choice.tolist(), strict=True)
        ]
        unexpected_spans = []
        for is_span, group in groupby(range(len(ids)), key=lambda k: is_unexpected[k]):
            if not is_span:
                continue
            positions = list(group)
            tokens = slice(positions[0], positions[-1] + 1)
            text = decode_tokens(self.tokenizer, ids[tokens]).strip()
            prior_sum, full_sum = float(prior[tokens].sum()), float(full[tokens].sum())
            unexpected_spans.append(UnexpectedSpan(text, prior_sum, full_sum - prior_sum))
        return tuple(unexpected_spans)

    def _observe_statements(
        self, prompt: PassagePrompt, statements: Sequence[Sequence[int]], row_number: int
    ) -> list[Observation]:
        """Run the model on the complete prompt with each statement, and record the attention.

        The prompt itself runs only with the first statement.
        """
        first, *others = [_build_inputs(prompt, ids) for ids in statements]
        observation = self.adapter.observe(self.adapter.prepare(first, (row_number,)))
        observations = [observation]
        for inputs, ids in zip(others, statements[1:], strict=True):
            candidates = torch.tensor(ids, device=observation.probs.device)[None, :, None]
            batch = self.adapter.prepare({**inputs, "candidate_ids": candidates}, (row_number,))
            observations.append(
                self.adapter.observe_with_keys(batch, observation.state.keys_values)
            )
        return observations

    def _add_attention(
        self, log_probs: StatementLogProbs, prompt: PassagePrompt, observation: Observation
    ) -> StatementMeasurement:
        """Add the attention to the passages to the log-probabilities of a statement."""
        attention = observation.read(self._site)[0].double()
        sentence_attention = attention[: len(prompt.sentences)]
        attended_sentence = int(sentence_attention.argmax())
        passage_attention = [0.0] * len(log_probs.without)
        for passage, value in zip(
            prompt.passage_of_sentence, sentence_attention.tolist(), strict=True
        ):
            passage_attention[passage] += value
        return StatementMeasurement(
            log_probs,
            attention=tuple(passage_attention),
            attended_sentence=prompt.read_sentence(attended_sentence),
            attended_passage=prompt.passage_of_sentence[attended_sentence] + 1,
        )


def _is_punctuation(text: str) -> bool:
    """Check whether the text of a token has no letter, no digit, and no part of a character."""
    # The replacement character U+FFFD represents a part of a character.
    return not any(char.isalnum() or char == "\ufffd" for char in text)


def _build_inputs(prompt: PassagePrompt, statement_ids: Sequence[int]) -> dict[str, Tensor]:
    """Build the adapter's inputs for a prompt and a statement as its answer."""
    n_prompt, n_statement = len(prompt.ids), len(statement_ids)
    return {
        "input_ids": torch.tensor([[*prompt.ids, *statement_ids]]),
        "unit_ids": torch.tensor([[*prompt.sentence_ids, *([-1] * n_statement)]]),
        "labelled": torch.tensor([[0] * n_prompt + [1] * n_statement]),
    }
