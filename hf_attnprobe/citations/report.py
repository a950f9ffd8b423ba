"""The result of ``cite``: a table of statements, the share of used citations, and coloured markers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from hf_attnprobe.citations.measurements import StatementMeasurement
from hf_attnprobe.citations.rule import (
    GAIN_MARGIN,
    MAX_UNKNOWN_LOG_PROB,
    MAX_WORDING_GAIN,
    MIN_GAIN,
    MIN_GAIN_SHARE,
    MIN_LOG_PROB_PER_TOKEN,
    MIN_WORDING_LOG_PROB,
    Classification,
    Use,
)
from hf_attnprobe.citations.statements import ParsedAnswer
from hf_attnprobe.core.formatting import format_count, format_interval
from hf_attnprobe.documents.blocks import (
    Block,
    DefinitionList,
    Document,
    FormattedNumber,
    InlineText,
    Label,
    Link,
    Note,
    Section,
    Strong,
    Table,
    UserText,
)
from hf_attnprobe.documents.formats import DocumentedResult
from hf_attnprobe.statistics.estimates import (
    Estimate,
    compute_share_interval,
    estimate_function_of_means,
)
from hf_attnprobe.statistics.verdicts import join_words


USES_BY_SHARE = {
    "used": Use.USED,
    "known": Use.KNOWN,
    "unused": Use.UNUSED,
    "other": Use.OTHER,
    "undecided": Use.UNDECIDED,
}
"""Maps the name of a share of citations, as in ``--fail-on "used<.8"``, to its class."""
TONE_OF_USE = {
    Use.USED: "good",
    Use.KNOWN: "neutral",
    Use.UNUSED: "bad",
    Use.OTHER: "bad",
    Use.UNDECIDED: "open",
}
"""Maps each class to the colour of its markers, see :class:`~hf_attnprobe.documents.blocks.Label`."""
MEANINGS = {
    Use.USED: (
        "The statement becomes much less likely without the passage, or the passage alone makes it "
        "as likely as all passages do."
    ),
    Use.KNOWN: "The model also writes the statement without any passage.",
    Use.UNUSED: "The passages do not explain why the model would write the statement.",
    Use.OTHER: "The statement depends on another passage, which the table names.",
    Use.UNDECIDED: (
        "The measurements are too close to a threshold, or the model may half know the statement."
    ),
}
"""Maps each class to its explanation in the report."""


@dataclass(frozen=True)
class CitedStatement:
    """A statement with the passages that it cites and the passages on which it depends.

    Attributes:
        text: The statement without markers.
        cited: Numbers of the cited passages, counted from 1.
        measurement: Log-probabilities and attention.
        classification: The class of each passage.
    """

    text: str
    cited: tuple[int, ...]
    measurement: StatementMeasurement
    classification: Classification

    def get_use(self, number: int) -> Use:
        """Return the class of a passage.

        A generated answer can cite a passage that does not exist. Such a passage is unused.

        Args:
            number: Number of the passage, counted from 1.
        """
        uses = self.classification.uses
        return uses[number - 1] if 1 <= number <= len(uses) else Use.UNUSED

    @property
    def reason(self) -> str:
        """Reason for the classes, as a sentence without a full stop."""
        n_passages = len(self.classification.uses)
        missing = [str(number) for number in self.cited if not 1 <= number <= n_passages]
        reason = self.classification.reason
        return f"{reason}; there is no passage {join_words(missing)}" if missing else reason


@dataclass(frozen=True)
class CitedAnswer:
    """An answer with its statements.

    Attributes:
        row: Number of its row, counted from 1.
        question: The question.
        answer: The answer with its markers.
        is_generated: Whether the model generated the answer.
        passage_names: Title of each passage, or its text if it has no title.
        statements: The statements.
    """

    row: int
    question: str
    answer: ParsedAnswer
    is_generated: bool
    passage_names: tuple[str, ...]
    statements: tuple[CitedStatement, ...]

    def count_citations(self) -> Counter[Use]:
        """Count the citations of each class."""
        return Counter(
            statement.get_use(number) for statement in self.statements for number in statement.cited
        )


@dataclass(frozen=True)
class CitationReport(DocumentedResult):
    """Result of :func:`hf_attnprobe.cite`. ``print(report)`` prints a table of all statements.

    Attributes:
        model: Name of the model.
        answers: The answers with their statements.
        left_out: Numbers of the rows without an answer, because the model generated an empty one or
            its logits were undefined.
        attention_name: Description of the attention that is displayed.
        versions: Versions of the libraries.
    """

    model: str
    answers: tuple[CitedAnswer, ...]
    left_out: tuple[int, ...]
    attention_name: str
    versions: Mapping[str, str]

    def count_citations(self) -> Counter[Use]:
        """Count the citations of each class in all answers."""
        counts: Counter[Use] = Counter()
        for answer in self.answers:
            counts += answer.count_citations()
        return counts

    def estimate_share(self, name: str) -> Estimate:
        """Estimate the share of citations with a class.

        The interval is over answers, because citations in the same answer depend on each other. If
        all or no citations have the class, the interval is exact for the number of answers.

        Args:
            name: A key of :data:`USES_BY_SHARE`. "undecided" is the share of all citations; all other
                shares leave out undecided citations.

        Returns:
            The share with a 95% interval. Its n is the number of answers with such citations.
        """
        use = USES_BY_SHARE[name]
        pairs = []
        for answer in self.answers:
            counts = answer.count_citations()
            n_counted = counts.total()
            if use is not Use.UNDECIDED:
                n_counted -= counts[Use.UNDECIDED]
            if n_counted:
                pairs.append((counts[use], n_counted))
        if not pairs:
            return Estimate(float("nan"), None, 0)
        hits, totals = np.array(pairs, dtype=np.float64).T
        share = float(hits.sum() / totals.sum())
        n = len(pairs)
        if share in (0.0, 1.0) or n == 1:
            low, high = compute_share_interval(np.array(share * n), np.array(n)).tolist()
            return Estimate(share, (low, high), n)
        estimate = estimate_function_of_means(
            [hits, totals], lambda means: means[..., 0] / means[..., 1]
        )
        if estimate.ci95 is None:
            return estimate
        low, high = estimate.ci95
        return Estimate(share, (max(low, 0.0), min(high, 1.0)), n)

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame with one row for every pair of statement and passage."""
        return pd.DataFrame(self._iterate_pairs())

    def _iterate_pairs(self) -> Iterator[dict[str, Any]]:
        """Yield the values of each pair of statement and passage."""
        for answer in self.answers:
            for index, statement in enumerate(answer.statements, 1):
                log_probs = statement.measurement.log_probs
                for number, use in enumerate(statement.classification.uses, 1):
                    yield {
                        "row": answer.row,
                        "statement": index,
                        "passage": number,
                        "is_cited": number in statement.cited,
                        "use": str(use),
                        "gain": log_probs.gain,
                        "necessity": log_probs.necessity[number - 1],
                        "sufficiency": log_probs.sufficiency[number - 1],
                        "attention": statement.measurement.attention[number - 1],
                    }

    # --- The report ---

    def build_document(self) -> Document:
        """Build the document that all output formats print."""
        return Document(
            f"Did {self.model} use the passages that its answers cite?",
            [*self._build_lead()],
            [
                Section("Statements", [self._build_table()], in_short_report=True),
                Section("Answers with coloured markers", [self._list_answers()]),
                Section("Measurements", [self._build_measurement_table()]),
                Section("What the classes mean", self._explain_classes()),
                Section("Limitations", [LIMITATIONS]),
            ],
            data=self._build_data(),
        )

    def _build_lead(self) -> Iterator[Block]:
        """Yield the first sentences: the share of used citations, and how attention compares."""
        counts = self.count_citations()
        n_citations = counts.total()
        if not n_citations:
            yield "The answers contain no markers, so there are no citations to check."
        else:
            share = self.estimate_share("used")
            n_decided = n_citations - counts[Use.UNDECIDED]
            if n_decided:
                interval = format_interval(share.value, share.ci95, digits=2)
                not_counted = f" Not counted: {counts[Use.UNDECIDED]} with the result cannot say."
                yield (
                    Strong(f"{counts[Use.USED]} of {n_decided} citations were used"),
                    f" (a share of {interval}, 95% interval over {share.n} answers)."
                    + not_counted * (n_decided < n_citations),
                )
            yield [f"{use}: {counts[use]} of {n_citations} citations" for use in Use if counts[use]]
        dependent = [
            statement
            for answer in self.answers
            for statement in answer.statements
            if statement.classification.used_sources
        ]
        uncited = [statement for statement in dependent if not statement.cited]
        if uncited:
            subject = (
                "1 statement depends" if len(uncited) == 1 else f"{len(uncited)} statements depend"
            )
            yield f"{subject} on a passage, but without a citation."
        if dependent:
            n_agreeing = sum(
                statement.measurement.attended_passage in statement.classification.used_sources
                for statement in dependent
            )
            yield (
                f"Attention ({self.attention_name}) ranks a used passage first in {n_agreeing} of "
                f"{format_count(len(dependent), 'statement')} with a used passage."
            )
        if self.left_out:
            rows = join_words([str(number) for number in self.left_out])
            noun = "Row" if len(self.left_out) == 1 else "Rows"
            verb = "was" if len(self.left_out) == 1 else "were"
            yield Note(
                f"{noun} {rows} {verb} left out, because the model generated an empty answer or its "
                "logits were undefined."
            )

    def _build_table(self) -> Table:
        """Build the table with the citations of each statement."""
        rows = [
            (
                str(answer.row),
                UserText(statement.text),
                _label_citations(statement),
                _format_numbers(statement.classification.used_sources),
                str(statement.measurement.attended_passage),
            )
            for answer in self.answers
            for statement in answer.statements
        ]
        head = ("row", "statement", "citations", "used passages", "most attention to passage")
        return Table(head, rows, sortable=False)

    def _build_measurement_table(self) -> Table:
        """Build the table with the measurements that determine the class of each statement."""
        rows = []
        for answer in self.answers:
            for statement in answer.statements:
                log_probs = statement.measurement.log_probs
                rows.append(
                    (
                        str(answer.row),
                        UserText(statement.text),
                        statement.reason,
                        FormattedNumber(log_probs.full / log_probs.n_tokens, digits=2),
                        FormattedNumber(log_probs.prior / log_probs.n_tokens, digits=2),
                        FormattedNumber(log_probs.gain, digits=1, sign="+"),
                        UserText(statement.measurement.attended_sentence),
                    )
                )
        head = (
            "row",
            "statement",
            "reason",
            "log-probability per token with all passages",
            "log-probability per token without any passage",
            "gain by all passages (nats)",
            "sentence with the most attention",
        )
        return Table(head, rows)

    def _list_answers(self) -> list[InlineText]:
        """List all answers with coloured markers."""
        return [
            (Strong(f"Row {answer.row}:"), " ", *_color_markers(answer)) for answer in self.answers
        ]

    def _explain_classes(self) -> list[Block]:
        """Explain the classes and their thresholds."""
        definitions: dict[str, Any] = {str(use): meaning for use, meaning in MEANINGS.items()}
        return [
            DefinitionList(definitions),
            Note(
                f"A statement depends on the passages if they raise its log-probability by at least "
                f"{MIN_GAIN:g} nats (cannot say within {GAIN_MARGIN:g} nats). A passage was used if "
                f"its necessity or its sufficiency is at least {MIN_GAIN_SHARE:.0%} of this gain. "
                f"If the gain is smaller, the unexpected spans decide: words for which the model would "
                f"write other words without passages. The statement was unused if the log-probability of "
                f"such a span is at most {MAX_UNKNOWN_LOG_PROB:g}, with and without passages. It was known "
                f"if each of these spans has more than {MIN_WORDING_LOG_PROB:g} without passages, and gains "
                f"less than {MAX_WORDING_GAIN:g} from them. The model would not write a statement with less "
                f"than {MIN_LOG_PROB_PER_TOKEN:g} per token with all passages."
            ),
        ]

    def _build_data(self) -> dict[str, Any]:
        """Build the results for programs."""
        shares = {}
        for name in USES_BY_SHARE:
            share = self.estimate_share(name)
            is_defined = bool(share.n)
            shares[name] = {
                "value": share.value if is_defined else None,
                "ci95": list(share.ci95) if share.ci95 else None,
                "n_answers": share.n,
            }
        return {
            "model": self.model,
            "versions": dict(self.versions),
            "n_citations": self.count_citations().total(),
            "counts": {str(use): count for use, count in self.count_citations().items()},
            "shares": shares,
            "left_out_rows": list(self.left_out),
            "answers": [_convert_answer(answer) for answer in self.answers],
        }


LIMITATIONS = [
    "The classes describe the model that was measured. If another model wrote the answers, they show "
    "what the measured model would have used.",
    "Each statement is scored without the earlier statements. A statement that can only be understood "
    "after them, such as one that begins with a pronoun, is less likely than in its answer.",
    "A fact that follows only from two passages together may need both of them, or neither may be "
    "needed because the model takes a shortcut.",
]
"""Sentences about the limits of the method."""


def _format_numbers(numbers: Sequence[int]) -> str:
    """Join passage numbers; "none" if there are none."""
    return join_words([*map(str, numbers)]) if numbers else "none"


def _label_citations(statement: CitedStatement) -> InlineText:
    """Return one coloured label for each citation of a statement."""
    if not statement.cited:
        return "no marker"
    parts: list[str | Link | Label] = []
    for number in statement.cited:
        parts += [" "] if parts else []
        parts.append(_make_label(f"[{number}]", statement.get_use(number)))
    return tuple(parts)


def _make_label(words: str, use: Use) -> Label:
    """Return a marker in the colour of its class."""
    return Label(words, str(use), TONE_OF_USE[use])


def _color_markers(answer: CitedAnswer) -> Iterator[str | Link | Label]:
    """Yield the parts of an answer: texts, and a coloured label for each number in a marker."""
    text = answer.answer.text
    position = 0
    for marker in answer.answer.markers:
        yield UserText(text[position : marker.start])
        statement = answer.statements[marker.statement]
        for number in marker.numbers:
            yield _make_label(f"[{number}]", statement.get_use(number))
        position = marker.end
    yield UserText(text[position:])


def _convert_answer(answer: CitedAnswer) -> dict[str, Any]:
    """Convert an answer to plain data for JSON."""
    return {
        "row": answer.row,
        "question": answer.question,
        "answer": answer.answer.text,
        "is_generated": answer.is_generated,
        "statements": [_convert_statement(statement) for statement in answer.statements],
    }


def _convert_statement(statement: CitedStatement) -> dict[str, Any]:
    """Convert a statement to plain data for JSON."""
    log_probs = statement.measurement.log_probs
    return {
        "text": statement.text,
        "cited": list(statement.cited),
        "used": list(statement.classification.used_sources),
        "reason": statement.reason,
        "n_tokens": log_probs.n_tokens,
        "log_prob": log_probs.full,
        "log_prob_without_passages": log_probs.prior,
        "gain": log_probs.gain,
        "unexpected_spans": [
            {"text": span.text, "log_prob_without_passages": span.prior, "gain": span.gain}
            for span in log_probs.unexpected_spans
        ],
        "attended_passage": statement.measurement.attended_passage,
        "attended_sentence": statement.measurement.attended_sentence,
        "passages": [
            {
                "passage": number,
                "use": str(statement.get_use(number)),
                "is_cited": number in statement.cited,
                "necessity": log_probs.necessity[number - 1],
                "sufficiency": log_probs.sufficiency[number - 1],
                "attention": statement.measurement.attention[number - 1],
            }
            for number in range(1, len(log_probs.without) + 1)
        ],
    }
