"""The document for an audit's report: first screen, example texts, questions, heads, settings.

Start reading at :func:`build_audit_document`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.core.serialization import read_package_yaml
from hf_attnprobe.documents.blocks import (
    AnswerBlock,
    Block,
    Code,
    CodeBlock,
    Collapsible,
    DefinitionList,
    Document,
    ExampleTexts,
    InlineText,
    Note,
    Section,
    Strong,
    Table,
    UserText,
    build_glossary,
)
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.plots.chart import Chart
from hf_attnprobe.plots.highlighted_text import REASON_ORDER, HighlightedText
from hf_attnprobe.protocol import AnswersFromPassage
from hf_attnprobe.reports.charts import build_audit_charts
from hf_attnprobe.reports.first_screen import (
    build_first_screen,
    build_number_line,
    build_rankings_table,
    find_model_statistic,
)
from hf_attnprobe.reports.head_tables import (
    EFFECT_MAP_KEY,
    HEAD_TABLE_NOTE,
    PATH_SHARE_MAP_KEY,
    build_head_maps,
    build_head_table,
    build_parts_section,
    describe_head_pairs,
    describe_important_heads,
    has_several_heads,
    list_heads,
    list_tested_heads,
)
from hf_attnprobe.reports.next_step import get_verb
from hf_attnprobe.reports.number_tables import (
    build_numbers_section,
    build_user_scores_blocks,
)
from hf_attnprobe.reports.result import AuditResult, convert_report_to_json
from hf_attnprobe.reports.verdict import (
    advise_on_display,
    describe_zero_ablation_limit,
    explain_open_answer,
    format_sentence,
    get_min_texts,
)
from hf_attnprobe.statistics.calibration_table import (
    describe_nearest_kinds,
    load_calibration_table,
)
from hf_attnprobe.statistics.estimates import MIN_DISPLAYED_TEXTS
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.heads import ALL_ATTENTION_SITE, LayerHead
from hf_attnprobe.statistics.questions import ALL_QUESTIONS
from hf_attnprobe.statistics.summary import find_model_site
from hf_attnprobe.statistics.verdicts import (
    ANSWER_SET,
    RULES,
    Finding,
    choose_question_set,
    index_by_rule,
)
from hf_attnprobe.statistics.wording import (
    TOKEN_UNITS,
    Wording,
    form_plural,
    format_distinct_count,
)
from hf_attnprobe.storage.provenance import (
    flatten_settings,
    format_all_commands,
    format_settings,
    is_repeatable,
)


GLOSSARY: Mapping[str, str] = read_package_yaml(
    Path(__file__).with_name("glossary.yaml"), Mapping[str, str]
)
"""Maps each technical term in reports to its explanation."""

DISPLAY_SECTION_TITLE = "Advice on showing attention to users"
"""Title of the section with the details of the advice in the answer box."""

MAX_EMBEDDED_STATISTICS = 60
"""Maximum number of statistics that an HTML report embeds as JSON.

A report with more statistics embeds none of them, so that its file stays small.
"""

N_VISIBLE_TEXTS = 3
"""Number of example texts that a page displays at first. Readers click to see the others."""

MAX_LISTED_CLASSES = 6
"""Maximum number of classes that a report lists by name. If there are more, it only counts them."""


def build_audit_document(report: AuditResult) -> Document:
    """Build the document that all output formats of an audit's report print.

    Args:
        report: the audit's result. Without its rows, the document has neither charts nor intervals
            for single heads.
    """
    words, displayed_texts = report.words, select_displayed_texts(report.examples)
    attention = describe_attention_site(report) or "unknown"
    text_blocks: list[Block] = []
    if displayed_texts:
        text_blocks = [
            ExampleTexts(displayed_texts[:N_VISIBLE_TEXTS]),
            Note(f"Attention: {attention}"),
        ]
    title = f"Does attention explain {report.model}?"
    display_details = [" ".join(advise_on_display(report.findings, words))]
    if report.evaluates_scores:
        title = f"Do these scores explain {report.model}?"
        # The details are about attention. The answer at the top contains the advice on the scores.
        display_details = []
    open_sections = [
        Section(
            _format_texts_title(displayed_texts, words), text_blocks, id="texts", in_notebook=True
        ),
        Section(
            DISPLAY_SECTION_TITLE,
            display_details,
        ),
        Section(
            "User-provided scores",
            build_user_scores_blocks(report),
            id="user-scores",
            in_short_report=True,
        ),
        Section(
            "Other rankings of the same texts",
            [build_rankings_table(report)],
            id="rankings",
        ),
        build_heads_section(report),
        build_parts_section(report.statistics),
    ]
    collapsed_sections = [
        build_questions_section(report),
        Section(
            f"More {words.texts}",
            [ExampleTexts(displayed_texts[N_VISIBLE_TEXTS:])],
            id="more-texts",
        ),
        build_subject_section(report),
        build_limitations_section(report),
        build_provenance_section(report),
        build_numbers_section(report),
    ]
    meanings = build_glossary([*open_sections, *collapsed_sections], GLOSSARY)
    return Document(
        title,
        build_first_screen(report),
        [
            *open_sections,
            *(replace(section, is_collapsed=True) for section in [*collapsed_sections, meanings]),
        ],
        data=select_page_data(report),
        heading=report.question,
    )


def _format_texts_title(displayed_texts: Sequence[HighlightedText], words: Wording) -> str:
    """Return the heading above the example texts, such as "Three texts"."""
    # The index of a title is the number of texts. With 0 texts, the title is the plural.
    texts, singular = words.texts, words.text_noun
    titles = (texts, f"one {singular}", f"two {texts}", f"three {texts}")
    n_visible = min(len(displayed_texts), N_VISIBLE_TEXTS)
    return titles[n_visible].capitalize()


def select_page_data(report: AuditResult) -> dict[str, Any]:
    """Return the results as JSON data that is small enough to embed in a page.

    If there are many statistics, the lists "statistics" and "comparisons" are emptied, and the
    entry "left_out" contains their names. The file ``summary.json`` always has the full lists.

    Args:
        report: the audit's result.
    """
    data = convert_report_to_json(report)
    if len(report.statistics) <= MAX_EMBEDDED_STATISTICS:
        return data
    omitted_names = ["statistics", "comparisons"]
    data |= {name: [] for name in omitted_names}
    return {**data, "left_out": omitted_names}


def describe_prediction_type(report: AuditResult) -> list[str]:
    """Describe what the model predicts, and which changes of the prediction the report measures.

    Args:
        report: the audit's result.

    Returns:
        A list with one note; empty if the type of prediction is unknown.
    """
    words = report.words
    if not words.predicts:
        return []
    return [f"Predicts {words.predicts}. {words.meaning}".rstrip()]


def describe_units(report: AuditResult) -> list[str]:
    """Describe unusual texts and units, such as text pairs, or sentences in the role of tokens.

    Args:
        report: the audit's result.

    Returns:
        A list of notes; empty for the usual case, single texts that consist of tokens.
    """
    notes = []
    columns = report.provenance.get("text_columns", "")
    if report.instance is not None:
        notes.append(
            f"The column {columns} contains {form_plural(report.input_name)}. The model attends to "
            f"their {form_plural(report.instance)}."
        )
    elif columns not in ("", "text", "sentence"):
        notes.append(f"Columns that contain the texts: {columns}.")
    if report.provenance.get("attended") == "text":
        notes.append(
            "This model attends to the first text of each pair. The second text is its query, which "
            "is neither explained, left out nor erased."
        )
    segment = report.provenance.get("segment")
    if segment is not None:
        explained, fixed = ("first", "second") if segment == "text" else ("second", "first")
        notes.append(
            f"Importance, leave-one-out and erasure concern the {explained} text of each pair. The "
            f"{fixed} text stays unchanged. Edits of attention concern both texts."
        )
    units = report.provenance.get("units")
    if units == TOKEN_UNITS:
        notes.append("The units of this report are the tokens of the model's tokenizer.")
        level_note = report.provenance.get("level_note")
        if level_note is not None:
            # This sentence is about words and tokens, so no noun in it is replaced.
            notes.append(UserText(f"{level_note[0].upper()}{level_note[1:]}."))
    elif units is not None:
        notes.append(
            f"This model's attention weighs {units}. They take the role of tokens in this report."
        )
    return notes


def describe_targets(report: AuditResult) -> list[str]:
    """Name the tests that explain a fixed class instead of the predicted class.

    The option ``target`` of a test sets this class.

    Args:
        report: the audit's result.

    Returns:
        A note for each class.
    """
    tests_by_target: dict[str, list[str]] = {}
    for test, options in report.provenance.get("options", {}).items():
        if options.get("target") is not None:
            tests_by_target.setdefault(str(options["target"]), []).append(test)
    return [
        f"{', '.join(tests)}: these tests explain the decision for or against the class {target}. "
        f'In their results, "the predicted class" is the side of the text ({target}, or all other classes '
        "together), and a decision flips if the text changes sides."
        for target, tests in tests_by_target.items()
    ]


def describe_attention_site(report: AuditResult) -> str:
    """Describe the displayed attention and how much of it is on tokens that are not displayed.

    Args:
        report: the audit's result.

    Returns:
        A description such as "mean over heads; 12% of it is on special tokens, which are not
        displayed". It is empty if the attention is unknown.
    """
    description = report.provenance.get("attention")
    if not description:
        return ""
    sink = find_model_statistic(report, "sink_share")
    passage = find_model_statistic(report, "passage_share")
    if sink and passage:
        return (
            f"{description}; {passage.mean:.0%} of it is on the passage, which is displayed, "
            f"{sink.mean:.0%} on the sink"
        )
    special = find_model_statistic(report, "special_attention")
    if special is None or special.mean < 0.005:
        return description
    fixed_text = " and the fixed text" if report.provenance.get("segment") else ""
    return (
        f"{description}; {special.mean:.0%} of it is on special tokens{fixed_text}, "
        "which are not displayed"
    )


# --- the audited model and texts --------------------------------------------------------------


def build_subject_section(report: AuditResult) -> Section:
    """Build the section about the audited model, texts and attention.

    Args:
        report: the audit's result.
    """
    provenance = report.provenance
    has_displayed_texts = bool(select_displayed_texts(report.examples))
    definitions: dict[str, InlineText | list[InlineText] | None] = {
        "model": Code(report.model),
        "texts": (
            f"{format_distinct_count(report.n, report.n_distinct)} of ",
            Code(str(report.dataset)),
            _describe_skipped_texts(provenance),
        ),
        "predicts": " ".join(describe_prediction_type(report)).removeprefix("Predicts ") or None,
        "classes": describe_classes(report),
        "attention": None if has_displayed_texts else describe_attention_site(report) or None,
        "attention tested": _describe_tested_attention(report),
        "error rate": _describe_calibration(report),
        "seed": str(report.seed),
    }
    notes = [*describe_units(report), *describe_targets(report), *report.notes]
    return Section("What was audited", [DefinitionList(definitions), notes], id="audited")


def _describe_skipped_texts(provenance: Mapping) -> str:
    """Return a note in brackets about truncated or skipped texts, such as " (3 empty ones skipped)"."""
    notes = []
    if provenance.get("truncated"):
        notes.append(f"{provenance['truncated']} truncated to the model's maximum length")
    if provenance.get("skipped_empty"):
        notes.append(f"{provenance['skipped_empty']} empty ones skipped")
    return f" ({', '.join(notes)})" if notes else ""


def _describe_calibration(report: AuditResult) -> str | None:
    """Describe how often reports gave a wrong answer for models with a known correct answer.

    These error rates were measured for classifiers and with the default thresholds. The result is
    None for language models, and if other thresholds were set.
    """
    question_set = choose_question_set(index_by_rule(report.findings))
    # The calibration table has no scores for the question "uniqueness".
    findings = [f for f in report.findings if f.is_about_attention and f.rule != "uniqueness"]
    # A finding stores its thresholds only if they are not the default ones.
    has_user_thresholds = any(f.partly is not None for f in report.findings)
    is_language_model = question_set is ANSWER_SET
    if is_language_model or has_user_thresholds or not findings:
        return None
    sentence = load_calibration_table().sentence
    # With fewer texts than an answer requires, the scores are too uncertain for a comparison.
    if min(finding.n for finding in findings) < question_set.min_texts:
        return sentence
    numbers = {f.rule: f.value for f in findings if not math.isnan(f.value)}
    return f"{sentence} {describe_nearest_kinds(numbers)}"


def _describe_tested_attention(report: AuditResult) -> str:
    """Describe which attention was tested: all heads together, single heads, or both.

    If some heads were left out after a quick estimate of their effect (screening), this is stated.
    """
    sites = {s.site for s in report.statistics}
    n_heads = len(list_heads(report.statistics))
    n_tested = len(list_tested_heads(report.statistics))
    single_heads = f"{n_tested} heads one by one" if n_tested != 1 else "one head"
    if n_tested < n_heads:
        single_heads = (
            f"{n_tested} of {n_heads} heads one by one; all {n_heads} were screened with a quick "
            "estimate"
        )
    if ALL_ATTENTION_SITE not in sites:
        return single_heads
    all_heads = "all heads together, to which the answers refer"
    return f"{all_heads}; {single_heads}" if n_tested else all_heads


def describe_classes(report: AuditResult) -> str | None:
    """List the classes, each with the number of texts for which the model predicts it.

    Args:
        report: the audit's result.

    Returns:
        The list as text, or only the number of classes if there are many. None if the classes are
        unknown.
    """
    classes = [str(name) for name in report.provenance.get("classes", [])]
    if not classes:
        return None
    if len(classes) > MAX_LISTED_CLASSES:
        return f"{len(classes)} classes"
    n_predicted = {}
    for name in classes:
        # Some statistics have no value for some texts, so the largest count is used.
        text_counts = [s.n for s in report.statistics if s.group == name]
        n_predicted[name] = max(text_counts, default=0)
    if not any(n_predicted.values()):
        return ", ".join(classes)
    return ", ".join(
        f"{name} (predicted for {markdown.format_count(n, 'text')})"
        for name, n in n_predicted.items()
    )


# --- the questions ----------------------------------------------------------------------------


def build_question_block(finding: Finding, words: Wording, *notes: str | None) -> AnswerBlock:
    """Build the block with the answer to one question, its explanation and its grading.

    If there are too few texts, the explanation states this and contains no number.

    Args:
        finding: the answer to the question, with its number.
        words: wording for this prediction type.
        notes: further sentences below the explanation; None is skipped.
    """
    rule = finding.rule_with_thresholds
    explanation = finding.explanation
    reference_numbers = _list_reference_numbers(finding)
    if 0 < finding.n < MIN_DISPLAYED_TEXTS:
        explanation = format_sentence(explain_open_answer(finding, words))
        reference_numbers = []
    elif finding.n < get_min_texts(words) and finding.answer == Answer.CANNOT_SAY:
        # The interval alone may look certain.
        explanation += f" {format_sentence(explain_open_answer(finding, words))}"
    return AnswerBlock(
        f"{rule.name}: {rule.question}",
        str(finding.answer),
        explanation,
        [
            Note(words.fill(rule.procedure)),
            *notes,
            build_number_line(finding),
            Collapsible(
                "reference values and grading",
                [reference_numbers, *_describe_rule(finding, words)],
            ),
        ],
    )


def _list_reference_numbers(finding: Finding) -> list[InlineText]:
    """List the numbers with which a finding can be compared, such as "accuracy: 0.91".

    In the stored results, these numbers are called yardsticks.
    """
    descriptions = RULES[finding.rule].yardsticks
    items: list[InlineText] = []
    for name, value in finding.yardsticks.items():
        description = descriptions.get(name, name.replace("_", " "))
        items.append(f"{description}: {markdown.format_number(value, digits=2)}")
    return items


def _describe_rule(finding: Finding, words: Wording) -> list[str]:
    """Return sentences on how a question is measured and graded, and on the rule's source."""
    rule = finding.rule_with_thresholds
    return [
        f"Measured: {rule.measure}.",
        f'Graded: {rule.threshold_text}; "cannot say" if a threshold lies in the 95% interval, or '
        f"with fewer than {get_min_texts(words)} {words.texts}.",
        f"Source: {rule.source}.",
    ]


ATTENTION_QUESTIONS_NOTE = (
    "These questions are about the model and its attention, with which the scores are compared. The "
    "answer about the scores is at the top of this report."
)
"""Sentences above the questions in a report about user-provided scores."""


def build_questions_section(report: AuditResult) -> Section:
    """Build the section that contains a block for each question, followed by its charts.

    Charts that belong to no question come last. The questions are about attention even if the audit
    evaluates user-provided scores.

    Args:
        report: the audit's result.
    """
    charts = build_site_charts(report)
    blocks: list[Block] = []
    if report.evaluates_scores and report.findings:
        blocks.append(ATTENTION_QUESTIONS_NOTE)
    displayed_keys: set[str] = set()
    for finding in report.findings:
        question = ALL_QUESTIONS.get(finding.rule)
        chart_keys = () if question is None else question.charts
        blocks.append(build_question_block(finding, report.words))
        blocks += [chart for chart in charts if chart.key in chart_keys]
        displayed_keys.update(chart_keys)
    blocks += [chart for chart in charts if chart.key not in displayed_keys]
    return Section("The questions, one by one", blocks, id="questions")


def build_site_charts(report: AuditResult, site: LayerHead | None = None) -> tuple[Chart, ...]:
    """Build the charts for one head, or for all heads together.

    Args:
        report: the audit's result.
        site: layer and head; by default, the attention as a whole.
    """
    rows = report.distinct_rows
    if site is None and len(rows):
        site = find_model_site(rows)
    if site is None:
        return ()
    return build_audit_charts(
        rows,
        report.provenance.get("classes", ()),
        site=site,
        words=report.words,
    )


# --- heads ------------------------------------------------------------------------------------


def build_heads_section(report: AuditResult) -> Section | None:
    """Build the section about single heads and groups of heads.

    Args:
        report: the audit's result.

    Returns:
        The section; None if only one site was tested.
    """
    sites = {s.site for s in report.statistics}
    if sites == {ALL_ATTENTION_SITE} or not has_several_heads(report.statistics):
        return None
    summary = describe_important_heads(report)
    maps = build_head_maps(report.head_evaluations, report.rules)
    # Next to a map of path shares, the effect of shuffling is only a supporting number.
    has_path_shares = any(head_map.key == PATH_SHARE_MAP_KEY for head_map in maps)
    supporting_maps = [
        head_map for head_map in maps if has_path_shares and head_map.key == EFFECT_MAP_KEY
    ]
    return Section(
        "Which heads matter",
        [
            Strong(summary) if summary else None,
            describe_head_pairs(report.head_pairs),
            *(head_map for head_map in maps if head_map not in supporting_maps),
            Collapsible(
                "All numbers of heads and groups of heads",
                [*supporting_maps, HEAD_TABLE_NOTE, build_head_table(report)],
            ),
        ],
        id="heads",
    )


# --- limitations and provenance -----------------------------------------------------------------


def select_displayed_texts(examples: Sequence[HighlightedText]) -> list[HighlightedText]:
    """Select the texts that have a reason to be displayed, sorted by reason.

    Args:
        examples: all example texts of an audit.
    """
    chosen_texts = [text for text in examples if text.why]
    # A reason that REASON_ORDER does not contain gets the last position.
    return sorted(chosen_texts, key=lambda text: (*REASON_ORDER, text.why).index(text.why))


LIMITATIONS = (
    "All results are means over these texts. For a single text the opposite may be true.",
    "The model was trained once. Another seed may lead to different attention.",
    "Confidence intervals cover the choice of texts. They do not extend to other types of texts.",
    "The model was trained neither with edited attention nor on texts with missing tokens.",
    "A yes means that a test found no disagreement of this size. It does not prove that people "
    "draw the right conclusions from a heat map.",
)
"""Limitations that the report of every audit lists."""


def build_limitations_section(report: AuditResult) -> Section:
    """Build the section about unanswered questions, tests that did not run, and limitations.

    Args:
        report: the audit's result.
    """
    findings = index_by_rule(report.findings)
    unanswered = [
        f"{RULES[rule].name}: {RULES[rule].question} No test of this audit answers this."
        for rule in choose_question_set(findings).questions
        if rule not in findings
    ]
    skipped = report.provenance.get("left_out", {})
    mentioned_tests = {*report.provenance.get("tests", []), *skipped}
    explains_answers = report.words.kind == "answer"
    other_tests = [
        name
        for name, test in load_tests().items()
        if name not in mentioned_tests
        and (explains_answers or AnswersFromPassage not in test.needs)
    ]
    not_run = [f"{_describe_test(name)} was skipped: {reason}" for name, reason in skipped.items()]
    not_run += [f"not requested: {_describe_test(name)}" for name in other_tests]
    zero_ablation_limit = describe_zero_ablation_limit(report.statistics)
    unknown_share = report.provenance.get("unknown_tokens")
    unknown_note = ""
    if unknown_share:
        unknown_note = f"{unknown_share:.1%} of the tokens are unknown to the model's tokenizer."
    limitations = [*LIMITATIONS, unknown_note, zero_ablation_limit or ""]
    return Section(
        "What was not tested, and limitations",
        [
            [*unanswered, *not_run],
            Section(
                "Limitations",
                [[*filter(None, limitations)]],
                id="what-tests-cannot-tell",
            ),
        ],
        id="limits",
    )


def _describe_test(name: str) -> str:
    """Return a test's name, with its summary in brackets if the test is installed."""
    test = load_tests().get(name)
    return f"{name} ({test.summary})" if test is not None and test.summary else name


NOT_REPEATABLE_NOTE = (
    "The model or the data were Python objects, so no command repeats this audit. If you saved them "
    "and put their paths in place of the words in quotes, the command would be:"
)
"""Note above the command of an audit whose model or data were Python objects instead of paths."""

STORED_NUMBERS_NOTE = (
    "The numbers are stored next to report.html in the audit's folder: rows/ contains one row for "
    "each text and statistic, and summary.json contains the means."
)
"""Sentence about the files in which an audit stores its numbers."""

REPEATABLE_TEMPLATE = (
    "The same command gives the same numbers with the same versions and fingerprints: {versions}."
)
"""Sentence about repeating an audit. ``{versions}`` is a list of versions and fingerprints."""

REPEATABLE_WITHIN_TIME_TEMPLATE = (
    "With --time, the same command may reach more or fewer texts. Each text that it reaches gets "
    "the same numbers with the same versions and fingerprints: {versions}."
)
"""Sentences about repeating an audit that had a time limit (``--time``).

``{versions}`` is a list of versions and fingerprints.
"""


def build_provenance_section(report: AuditResult) -> Section:
    """Build the section with the audit's command, versions, fingerprints and settings.

    Args:
        report: the audit's result.
    """
    provenance = report.provenance
    fingerprints = {
        "model": provenance.get("model_fingerprint"),
        "data": provenance.get("data_fingerprint"),
        **provenance.get("versions", {}),
    }
    recorded_fingerprints = {name: value for name, value in fingerprints.items() if value}
    command = get_verb(provenance)
    had_time_limit = "stopping" in provenance
    template = REPEATABLE_WITHIN_TIME_TEMPLATE if had_time_limit else REPEATABLE_TEMPLATE
    versions = format_settings(recorded_fingerprints) or "none are recorded"
    installation = (
        "To install hf_attnprobe from a clone of its repository, run ",
        Code("pip install ."),
        f" there. {STORED_NUMBERS_NOTE}",
    )
    # Values are printed as they are stored, also if the units of the report are not words.
    settings = [(name, UserText(value)) for name, value in flatten_settings(provenance)]
    return Section(
        "How to repeat this audit",
        [
            None if is_repeatable(provenance) else NOT_REPEATABLE_NOTE,
            CodeBlock("\n".join(format_all_commands(command, provenance))),
            template.format(versions=versions),
            installation,
            Collapsible(
                "All settings",
                [Table(["setting", "value"], settings, sortable=False)],
            ),
        ],
        id="origin",
    )
