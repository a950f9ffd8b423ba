"""The public function :func:`cite`."""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.audited_model import is_language_model, load_audited_model
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.citations.measurements import (
    PassagePrompt,
    StatementMeter,
    encode_prompt,
)
from hf_attnprobe.citations.options import CiteOptions
from hf_attnprobe.citations.report import CitationReport, CitedAnswer, CitedStatement
from hf_attnprobe.citations.rows import CitationRow, read_rows
from hf_attnprobe.citations.rule import classify_statement
from hf_attnprobe.citations.statements import parse_answer
from hf_attnprobe.core.distributed import get_process_state, require_single_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import convert_model_name, public_function
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.inference.answers import (
    cut_after_first_line,
    decode_tokens,
    generate_answers,
)
from hf_attnprobe.storage.folders import reserve_folder
from hf_attnprobe.storage.provenance import get_versions


logger = logging.getLogger(__name__)

CITATIONS_FILE = "citations.json"
"""Name of the file with all results in the output folder."""
CITING_TEMPLATE = (
    "{context}\n\n{question} Cite the passages that you use by their numbers, such as [1]."
)
"""Default user turn if the model generates the answers, which then must contain markers."""


@public_function
def cite(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Any,
    output_dir: str | Path | None = None,
    *,
    options: CiteOptions = CiteOptions(),
    progress: bool = True,
) -> CitationReport:
    """Check whether a language model used the passages that its answers cite.

    Each answer is split into statements. For every statement and every passage, the function measures
    how likely the model writes the statement with all passages, without this passage, with this passage
    alone, and without any passage. The result is one of five classes: used, known anyway, unused,
    another source was used, or cannot say.

    Args:
        model: A language model (…ForCausalLM), its folder or its Hub id. It should be the model that
            wrote the answers, because the result describes this model.
        tokenizer: The model's tokenizer, a fast one; None if ``model`` is a folder or a Hub id.
        rows: Rows with the keys ``passages`` (a list of texts, or of mappings with ``title`` and
            ``text``), ``question``, and ``answer`` (a text with markers, such as "[1]" or "[2, 3]",
            that count the passages from 1). If a row has no answer, the model generates one. A path
            of a JSON or JSON Lines file with such rows is accepted too.
        output_dir: Folder for ``citations.json``, ``report.md`` and ``report.html``; None writes
            nothing.
        options: Options for prompts and generated answers.
        progress: Whether to display progress.

    Returns:
        The report; ``print(report)`` prints a table of all statements.

    Raises:
        AttnProbeError: If a row cannot be used (the message contains its number), or if the model is
            not a language model.

    Example:
        rows = [
            {
                "passages": ["The museum opened in 1921.", "Its director is Ann."],
                "question": "When did it open?",
                "answer": "It opened in 1921 [1].",
            }
        ]
        report = cite(model, tokenizer, rows)
    """
    require_single_process("cite")
    # Answers checks that the template contains the required placeholders.
    Answers([{}], template=options.template)
    citation_rows = read_rows(rows)
    if output_dir is None:
        return _cite(model, tokenizer, citation_rows, options, progress)
    with reserve_folder(output_dir, CITATIONS_FILE) as folder:
        report = _cite(model, tokenizer, citation_rows, options, progress)
        report.write(folder, CITATIONS_FILE)
    return report


def _cite(
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    rows: Sequence[CitationRow],
    options: CiteOptions,
    progress: bool,
) -> CitationReport:
    """Load the model, generate missing answers, and measure all statements."""
    subject = load_audited_model(
        convert_model_name(model),
        tokenizer,
        AuditOptions(dtype=options.dtype),
        get_process_state().device,
        unit="sentence",
    )
    if not is_language_model(subject.adapter.model):
        raise AttnProbeError(
            "expected a language model (…ForCausalLM), got "
            f"{type(subject.adapter.model).__name__}. Pass the model that wrote the answers."
        )
    # A language model never has a reader of images.
    assert isinstance(subject.tokenizer, PreTrainedTokenizerBase)
    if not subject.tokenizer.is_fast:
        raise AttnProbeError(
            f"prompts need a fast tokenizer, got {type(subject.tokenizer).__name__}. Load the fast "
            "tokenizer of the model, for example with AutoTokenizer."
        )
    if not isinstance(subject.adapter, LanguageModelAdapter):
        raise AttnProbeError(
            f"expected a LanguageModelAdapter, got {type(subject.adapter).__name__}. Pass the model itself "
            "instead of its adapter."
        )
    # A copy, because the adapter may belong to the user.
    adapter = copy.copy(subject.adapter)
    # Only the attention of the rows that predict a statement is displayed.
    adapter.rows = "answer"
    tokenizer = subject.tokenizer
    generated_numbers = {row.number for row in rows if row.answer is None}
    meter = StatementMeter(adapter, tokenizer)
    prompts = {}
    for row in rows:
        template = options.template
        if template is None and row.answer is None:
            template = CITING_TEMPLATE
        prompts[row.number] = encode_prompt(row, tokenizer, template)
        meter.check_prompt(prompts[row.number], row.name)
    rows, left_out = _add_generated_answers(adapter, tokenizer, rows, prompts, options, progress)
    statement_ids = {
        row.number: [
            meter.encode_statement(prompts[row.number], statement.text, row.name)
            for statement in row.answer.statements
        ]
        for row in rows
        if row.answer is not None
    }
    n_statements = sum(map(len, statement_ids.values()))
    n_measured = 0
    answers = []
    with ProgressBar("citations", progress) as bar:
        for row in rows:
            assert row.answer is not None
            measurements = meter.measure_answer(
                prompts[row.number], statement_ids[row.number], row.number
            )
            cited_statements = [
                CitedStatement(
                    statement.text,
                    statement.cited,
                    measurement,
                    classify_statement(measurement.log_probs),
                )
                for statement, measurement in zip(row.answer.statements, measurements, strict=True)
            ]
            n_measured += len(cited_statements)
            bar.update_count(n_measured, n_statements, "statements")
            answers.append(
                CitedAnswer(
                    row.number,
                    row.question,
                    row.answer,
                    row.number in generated_numbers,
                    tuple(passage.title or passage.text for passage in row.passages),
                    tuple(cited_statements),
                )
            )
    return CitationReport(
        model=subject.name,
        answers=tuple(answers),
        left_out=tuple(left_out),
        attention_name=meter.attention_name or "the only head",
        versions=get_versions(),
    )


def _add_generated_answers(
    adapter: Any,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[CitationRow],
    prompts: Mapping[int, PassagePrompt],
    options: CiteOptions,
    progress: bool,
) -> tuple[list[CitationRow], list[int]]:
    """Generate the missing answers by greedy decoding.

    Returns:
        The rows with answers, and the numbers of rows without a generated answer.
    """
    names = {row.name: prompts[row.number].ids for row in rows if row.answer is None}
    n_answered = 0
    with ProgressBar("answers", progress and bool(names)) as bar:

        def update_bar(batch_answers: Mapping[str, list[int]]) -> None:
            nonlocal n_answered
            n_answered += len(batch_answers)
            bar.update_count(n_answered, len(names), "answers")

        answer_ids = generate_answers(
            adapter.user_model, tokenizer, names, options.max_new_tokens, update_bar
        )
    answered_rows: list[CitationRow] = []
    left_out: list[int] = []
    for row in rows:
        if row.answer is not None:
            answered_rows.append(row)
            continue
        if row.name not in answer_ids:
            # A warning has named this row, whose logits are NaN or infinite.
            left_out.append(row.number)
            continue
        ids = answer_ids[row.name]
        if prompts[row.number].prompt.is_plain:
            ids = cut_after_first_line(tokenizer, ids)
        answer = parse_answer(decode_tokens(tokenizer, ids).strip())
        if answer.statements:
            answered_rows.append(replace(row, answer=answer))
        else:
            left_out.append(row.number)
            logger.warning("the model's answer to %s is empty, so the row is left out", row.name)
    if not answered_rows:
        raise AttnProbeError(
            "the model generated only empty answers. Add answers to the rows, or change the template."
        )
    return answered_rows, left_out
