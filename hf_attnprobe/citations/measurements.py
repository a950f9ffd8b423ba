"""Measure the log-probability of each statement with and without the passages of its prompt.

Each statement is scored directly after the prompt, without the earlier statements of its answer. After
an earlier statement with the same fact, the model could copy the fact from there, and the passage
would look unused.

To remove a passage, all its tokens are deleted, including its number and its title, and later tokens
move up. The numbers of the other passages do not change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.citations.rows import CitationRow
from hf_attnprobe.citations.rule import StatementLogProbs
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.data.tokenizer import locate_sentences
from hf_attnprobe.inference.answers import (
    RenderedPrompt,
    Span,
    assign_units,
    check_length,
    render_prompt,
    tokenize_answer,
    tokenize_prompt,
)
from hf_attnprobe.inference.encoding import check_token_ids
from hf_attnprobe.protocol import AnswersFromPassage, EditableInputs


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

    @torch.no_grad()
    def measure(
        self, prompt: PassagePrompt, statement_ids: Sequence[int], row_number: int
    ) -> StatementMeasurement:
        """Measure the log-probability of a statement for all necessary sets of passages.

        Args:
            prompt: The prompt.
            statement_ids: Token ids of the statement.
            row_number: Number of the row, for error messages.

        Returns:
            Log-probabilities in nats, and the attention to the passages.
        """
        batch = self.adapter.prepare(_build_inputs(prompt, statement_ids), (row_number,))
        observation = self.adapter.observe(batch)
        n_columns = batch.content_mask.shape[1]
        device = batch.content_mask.device
        passage_of_column = torch.full((n_columns,), -1, device=device)
        passages = torch.tensor(prompt.passage_of_sentence, device=device)
        passage_of_column[: len(passages)] = passages
        n_passages = max(prompt.passage_of_sentence) + 1
        is_in_passage = passage_of_column == torch.arange(n_passages, device=device)[:, None]
        is_in_any = is_in_passage.any(0)
        # The first row deletes nothing, the second one deletes all passages.
        deleted = torch.stack(
            [
                torch.zeros_like(is_in_any),
                is_in_any,
                *is_in_passage,
                *(is_in_any & ~is_in_passage),
            ]
        )
        probs = self.adapter.require(EditableInputs).erase_inputs(observation, deleted[:, None])
        log_probs = self.adapter.require(AnswersFromPassage).compute_log_prob(observation, probs)
        full, prior, *singles = log_probs[:, 0].tolist()
        if not all(torch.isfinite(log_probs).flatten().tolist()):
            raise AttnProbeError(
                f"a log-probability of a statement in row {row_number} is infinite or NaN. Load the "
                "model in another dtype, or check its weights."
            )
        attention = observation.read(self._site)[0].double()
        sentence_attention = attention[: len(passages)]
        attended_sentence = int(sentence_attention.argmax())
        passage_attention = [float(attention[columns].sum()) for columns in is_in_passage]
        return StatementMeasurement(
            StatementLogProbs(
                full=full,
                prior=prior,
                without=tuple(singles[:n_passages]),
                alone=tuple(singles[n_passages:]),
                n_tokens=len(statement_ids),
            ),
            attention=tuple(passage_attention),
            attended_sentence=prompt.read_sentence(attended_sentence),
            attended_passage=prompt.passage_of_sentence[attended_sentence] + 1,
        )


def _build_inputs(prompt: PassagePrompt, statement_ids: Sequence[int]) -> Mapping[str, Tensor]:
    """Build the adapter's inputs for a prompt and a statement as its answer."""
    n_prompt, n_statement = len(prompt.ids), len(statement_ids)
    return {
        "input_ids": torch.tensor([[*prompt.ids, *statement_ids]]),
        "unit_ids": torch.tensor([[*prompt.sentence_ids, *([-1] * n_statement)]]),
        "labelled": torch.tensor([[0] * n_prompt + [1] * n_statement]),
    }
