"""Render model cards, and update the generated part in an existing README.

This module fills in the template ``card.md``. The generated part of a README lies between two
comments; everything else in the README belongs to the user and is kept. The front matter has the
format of huggingface_hub. In lists such as tags and results, the user's and the generated entries
are combined. For all other fields, the user's value has priority.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import yaml
from huggingface_hub import CardData, DatasetCardData, EvalResult, ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from jinja2 import Environment

from hf_attnprobe.cards.metadata import (
    CARD_TAGS,
    FAITHFULNESS_METRIC,
    RESULT_AUTHOR,
    SCORE_NAMES,
    AuditSummary,
    CardContent,
    Checkpoint,
    DatasetReference,
    build_eval_results,
    build_metadata,
    clean_text,
    escape_prose,
    format_code,
    format_versions,
    strip_local_folders,
    strip_record_folders,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.documents.blocks import (
    Block,
    Code,
    FormattedNumber,
    InlineText,
    Link,
    Table,
    map_texts,
)
from hf_attnprobe.documents.markdown import render_markdown_blocks
from hf_attnprobe.documents.templates import load_templates
from hf_attnprobe.statistics.verdicts import DISPLAY_ADVICE
from hf_attnprobe.statistics.wording import (
    Wording,
    build_wording,
    find_unit_names,
    rename_audited_units,
)


NOT_AUDITED = (
    "Not audited yet: it is unknown whether its attention explains its predictions. Do not show its "
    "attention weights as an explanation before this has been tested."
)
"""Text in the model card of a model that was not audited."""
AUDIT_HEADING = "Does its attention explain its predictions?"
"""Heading above the audit results in a model card."""
DATASET_PLACEHOLDER = "DATA"
"""Placeholder for a data set that is not public, in the example command of a model card."""
ENCODER_PHRASES = {
    "bilstm": "a BiLSTM with {encoder_size} units in each direction",
    "bigru": "a BiGRU with {encoder_size} units in each direction",
    "cnn": "convolutions over {kernel_sizes} tokens with {encoder_size} channels",
    "mlp": "an MLP with {encoder_size} units on each token, without context",
    "none": "none (the word vectors are used directly, without context)",
}
"""Maps each value of ``encoder`` in a model configuration to its description in a model card.

Fields in braces are replaced by the values of the configuration.
"""
ATTENTION_PHRASES = {
    "additive": "additive (Bahdanau et al. 2015)",
    "gated": "gated (Ilse et al. 2018)",
    "dot_product": "scaled dot product",
    "uniform": "uniform (all tokens have the same weight; nothing is learned)",
    "guided": "guided (the weights are an input; nothing is learned)",
}
"""Maps each value of ``attention`` in a model configuration to its description in a model card."""
REGULARISER_PHRASES = {
    "embedding_dropout": "dropout on word vectors",
    "sentence_dropout": "dropout on sentence vectors",
    "logit_dropout": "dropout on logits",
    "tying": "weight of the loss that ties states to word vectors",
    "mlm_weight": "weight of the masked language modelling loss",
    "conicity_weight": "weight of the penalty on conicity",
}
"""Maps each regularisation setting in a model configuration to its description in a model card."""
PROCEDURE_PHRASES = {
    "jain-wallace": "(the released code of Jain & Wallace 2019)",
    "serrano-smith": "(the released code of Serrano & Smith 2019 for IMDB)",
}
"""Maps each training procedure in a training record to its description in a model card."""
NON_SETTING_KEYS = (
    "architecture",
    "data",
    "dataset",
    "metrics",
    "n_texts",
    "n_epochs",
    "seconds",
    "versions",
    "procedure",
    "start",
    "deceives_on",
)
"""Keys in a training record that the model card does not list as training settings.

They are results, or the card describes them in other sections.
"""


BEGIN_COMMENT = "<!-- attnprobe card: begin. This part is generated; write above or below it. -->"
"""Comment at the beginning of the generated part of a README."""
END_COMMENT = "<!-- attnprobe card: end -->"
"""Comment at the end of the generated part of a README."""
MERGED_FIELDS = ("tags", "datasets", "metrics")
"""Front matter fields with lists to which generated entries are appended.

For example, a README with the tag "a" keeps this tag and gets the generated tags after it.
"""


def read_card(text: str) -> ModelCard:
    """Parse a README into a model card, which consists of front matter (YAML) and text.

    Args:
        text: the README's content, with or without front matter.

    Returns:
        The card.

    Raises:
        AttnProbeError: if the front matter is not a mapping in YAML, or is not valid for a card.
    """
    has_front_matter = REGEX_YAML_BLOCK.match(text)
    if not has_front_matter:
        # The class ModelCard requires front matter, so an empty mapping is added.
        empty_front_matter = "---\n{}\n---\n"
        text = empty_front_matter + text
    try:
        return ModelCard(text)
    except (yaml.YAMLError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise AttnProbeError(
            f"the front matter of README.md is not valid YAML: {reason}. Correct the text between "
            "the two lines ---."
        ) from error


def insert_part(readme: str, part: str, metadata: CardData) -> str:
    """Insert a generated part into a README, or replace the part from an earlier run.

    Comments mark the beginning and the end of the part. All other text is kept.

    Args:
        readme: the existing README.
        part: the generated part, including the comments around it.
        metadata: the generated front matter.

    Returns:
        The updated README.

    Raises:
        AttnProbeError: if the front matter is not valid, or the comments around the generated part
            are damaged.
    """
    line_end = "\r\n" if "\r\n" in readme else "\n"
    card = read_card(readme)
    merge_metadata(card.data, metadata)
    _set_results(card.data, [*_list_user_results(card.data), *_get_results(metadata)])
    text_before, text_after = _split_around_part(card.text)
    if BEGIN_COMMENT not in card.text:
        # A new part follows the existing text after an empty line.
        if not text_before.endswith(line_end * 2):
            text_before = text_before.rstrip("\r\n") + line_end * 2
        text_after = line_end
    part = part.replace("\n", line_end)
    card.text = f"{text_before}{part}{text_after}"
    return str(card)


def merge_remote_metadata(text: str, remote_text: str) -> str:
    """Add missing front matter fields to a README from another version of it.

    The other version is, for example, the README on the Hub.

    Args:
        text: the README; its text and its existing values are kept.
        remote_text: the other version.

    Returns:
        The README with the merged front matter.

    Raises:
        AttnProbeError: if a front matter is not valid.
    """
    card = read_card(text)
    remote_data = read_card(remote_text).data
    results = _get_results(card.data)
    merge_metadata(card.data, remote_data)
    new_results = [result for result in _list_user_results(remote_data) if result not in results]
    _set_results(card.data, [*new_results, *results])
    return str(card)


def merge_metadata(data: CardData, additions: CardData) -> None:
    """Add fields to a front matter in place, without changing existing values.

    Args:
        data: the front matter to change.
        additions: fields to add. For the fields in ``MERGED_FIELDS``, new entries are appended to
            existing lists.

    >>> data = CardData(license="mit", tags=["a"])
    >>> merge_metadata(data, CardData(license="gpl", tags=["b"]))
    >>> data["license"], data["tags"]
    ('mit', ['a', 'b'])
    """
    for key, value in vars(additions).items():
        existing_value = data.get(key)
        if existing_value is None:
            data[key] = value
        elif key in MERGED_FIELDS and value:
            entries = [*_make_list(existing_value), *_make_list(value)]
            # The keys of a dictionary contain each entry once, in the same order.
            data[key] = list(dict.fromkeys(entries))


def _make_list(value: Any) -> list[Any]:
    """Return a list unchanged, and wrap any other value in a list."""
    return value if isinstance(value, list) else [value]


def _get_results(data: CardData) -> list[EvalResult]:
    """Return the evaluation results in a front matter."""
    return list(data.get("eval_results", []))


def _set_results(data: CardData, results: list[EvalResult]) -> None:
    """Set the results in a front matter, or remove them and the model name if there are none."""
    data["eval_results"] = results or None
    if not results:
        data["model_name"] = None


def _list_user_results(data: CardData) -> list[EvalResult]:
    """Return the results in a front matter that the user wrote."""
    return [result for result in _get_results(data) if not _is_generated(result)]


def _is_generated(result: EvalResult) -> bool:
    """Return whether a result was generated by this package, rather than written by the user."""
    return (result.metric_args or {}).get("by") == RESULT_AUTHOR


def has_findings(readme: str | None) -> bool:
    """Return whether the front matter of a README contains audit results from this package."""
    results = _get_results(read_card(readme or "").data)
    return any(
        _is_generated(result) and result.metric_type == FAITHFULNESS_METRIC for result in results
    )


def list_removed_audits(readme: str | None, card: CardContent) -> list[str]:
    """List the data sets of audits that an existing README contains, but a new card does not.

    Args:
        readme: the existing README; None if there is none.
        card: content of the new card.

    Returns:
        Data sets with their split, such as "sst (test)", each once.
    """
    earlier_audits = _name_audits(_get_results(read_card(readme or "").data))
    new_audits = _name_audits(build_eval_results(card))
    return [name for name in earlier_audits if name not in new_audits]


def _name_audits(results: Iterable[EvalResult]) -> list[str]:
    """Return the data sets of generated audit results, such as "sst (test)", each once."""
    names = [
        result.dataset_name + (f" ({result.dataset_split})" if result.dataset_split else "")
        for result in results
        if _is_generated(result) and result.metric_type == FAITHFULNESS_METRIC
    ]
    # The keys of a dictionary contain each data set once, in the same order.
    return list(dict.fromkeys(names))


def extract_user_text(card: ModelCard) -> str:
    """Return the text of a card without the part that this package generates.

    The result is empty if the remaining text consists of a title only.
    """
    text = "".join(_split_around_part(card.text)).strip()
    is_title = text.startswith("# ") and "\n" not in text
    return "" if is_title else text


def _split_around_part(text: str) -> tuple[str, str]:
    """Return the text of a README before and after the generated part.

    If there is no generated part, the whole text is before it.

    Raises:
        AttnProbeError: if the comments around the part are incomplete or in the wrong order.
    """
    text_before, _, remainder = text.partition(BEGIN_COMMENT)
    _, end_comment, text_after = remainder.partition(END_COMMENT)
    n_begin, n_end = text.count(BEGIN_COMMENT), text.count(END_COMMENT)
    has_no_part = n_begin == 0 and n_end == 0
    # The variable end_comment is empty if no end follows the beginning.
    has_one_part = n_begin == 1 and n_end == 1 and end_comment
    if not has_no_part and not has_one_part:
        raise AttnProbeError(
            "README.md must contain one comment 'attnprobe card: begin' and then one comment "
            f"'attnprobe card: end', got {n_begin} and {n_end}. Correct or delete the comments."
        )
    return text_before, text_after


# --- The generated part --------------------------------------------------------------------------


def update_readme(readme: str | None, card: CardContent) -> str:
    """Insert a model card into a README, or replace the model card from an earlier run.

    Args:
        readme: the existing README; None if there is none.
        card: the card's content.

    Returns:
        The updated README.

    Raises:
        AttnProbeError: if the front matter is not valid, or the comments around the generated part
            are damaged.
    """
    if readme is None or not readme.strip():
        readme = f"\n# {clean_text(card.checkpoint.name)}\n"
    return insert_part(readme, render_part(card), build_metadata(card))


def render_part(card: CardContent) -> str:
    """Render the generated part of a README, including the comments around it."""
    return f"{BEGIN_COMMENT}\n\n{render_card(card).strip()}\n\n{END_COMMENT}"


def render_card(card: CardContent) -> str:
    """Render a card's text, without front matter and comments.

    Args:
        card: the card's content.

    Returns:
        The text in Markdown.
    """
    checkpoint = card.checkpoint
    config, record = checkpoint.config, checkpoint.record
    conclusions = [
        audit.conclusion or f"{AUDIT_HEADING} No question was answered." for audit in card.audits
    ]
    encoder, attention = str(config.get("encoder")), str(config.get("attention"))
    encoder_phrase = ENCODER_PHRASES.get(encoder, format_code(encoder)).format(
        encoder_size=config.get("encoder_size"),
        kernel_sizes=" ".join(map(str, config.get("kernel_sizes") or ())),
    )
    regularisers = [
        (phrase, f"{config[name]:g}")
        for name, phrase in REGULARISER_PHRASES.items()
        if config.get(name)
    ]
    text = (
        load_card_templates()
        .get_template("card.md")
        .render(
            card=card,
            checkpoint=checkpoint,
            question=AUDIT_HEADING,
            not_audited=NOT_AUDITED,
            conclusions=list(dict.fromkeys(conclusions)),
            encoder=encoder_phrase,
            attention=ATTENTION_PHRASES.get(attention, format_code(attention)),
            regularisers=regularisers,
            procedure=PROCEDURE_PHRASES.get(str(record.get("procedure"))),
            training_data=_describe_training_data(card),
            splits=list(_iterate_splits(record)),
            settings=list(_iterate_settings(record)),
            scores="\n\n".join(render_markdown_blocks([_tabulate_scores(record)])),
            predicts_classes=_predicts_classes(checkpoint),
            auto_class=f"AutoModel{checkpoint.class_suffix}",
            name=checkpoint.quotable_name,
            command=_build_command(card),
            is_of_papers=checkpoint.is_attention_classifier and _is_paper_dataset(card),
            display_advice=_choose_display_advice(card),
            rename_units=_choose_renaming(card),
            rules={finding.rule for audit in card.audits for finding in audit.findings},
            render_findings=lambda audit: "\n\n".join(
                render_markdown_blocks(build_findings(card, audit))
            ),
        )
    )
    # No name in the text can look like the comment that ends the generated part.
    return text.replace("<!--", "&lt;!--")


def _choose_renaming(card: CardContent) -> Callable[[str], str]:
    """Return a function that renames words and texts in sentences about the model of a card.

    The new names are those of the audits. If the model was not audited, or if its audits have
    different units, such as words and tokens, the sentences are about words, or about the instances
    of bags if the model reads bags.
    """
    names = {find_unit_names(audit.provenance) for audit in card.audits}
    if len(names) == 1:
        provenance = card.audits[0].provenance
    else:
        provenance = {"instance": "instance"} if card.checkpoint.reads_bags else {}
    return partial(rename_audited_units, provenance=provenance)


def _choose_display_advice(card: CardContent) -> str | None:
    """Return advice on whether to show attention to users, based on the worst answer of all audits.

    The result is None if there are no audits.
    """
    if not card.audits:
        return None
    answers_from_best_to_worst = list(DISPLAY_ADVICE)
    answers = [audit.answer for audit in card.audits]
    worst_answer = max(answers, key=answers_from_best_to_worst.index)
    return DISPLAY_ADVICE[worst_answer]


@cache
def load_card_templates() -> Environment:
    """Load the templates of model cards, with filters that format counts and clean names."""
    filters = {
        "code": format_code,
        "escape_prose": escape_prose,
        "strip_local_folders": strip_local_folders,
        "clean": clean_text,
        "format_versions": format_versions,
        "thousands": lambda number: f"{number:,}",
        "count": format_count,
    }
    return load_templates("cards", filters)


# --- A model's training, and a command that audits it --------------------------------------------


def _describe_training_data(card: CardContent) -> str:
    """Return the name of the training data as Markdown, such as "`sst` (`SetFit/sst2` on the Hub)".

    The Hub id is left out if it equals the name.
    """
    data = card.trained_on
    if data is None:
        return "not recorded"
    has_other_id = data.hub_id not in (None, data.name)
    hub_id = f" ({format_code(data.hub_id)} on the Hub)" if has_other_id else ""
    return f"{format_code(data.name)}{hub_id}"


def _iterate_splits(
    record: Mapping[str, Any],
) -> Iterator[tuple[str, int | None, str | None]]:
    """Yield the name, the number of texts and the fingerprint of each data split.

    Args:
        record: record of a training. If it lacks a number or a fingerprint, None is yielded for it.
    """
    sizes = record.get("n_texts") or {}
    fingerprints = record.get("data")
    fingerprints = fingerprints if isinstance(fingerprints, Mapping) else {}
    # A dictionary contains each split once, in the same order.
    for split in dict.fromkeys([*sizes, *fingerprints]):
        yield split, sizes.get(split), fingerprints.get(split)


def _iterate_settings(record: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the names and values of the training settings that the card lists."""
    for name, value in strip_record_folders(record).items():
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if name not in NON_SETTING_KEYS and is_plain:
            yield name, value


def _tabulate_scores(record: Mapping[str, Any]) -> Table:
    """Return a table with the scores that were measured after training, one row per data split."""
    scores = record.get("metrics") or {}
    # A name such as "test_f1" consists of the split and the metric.
    splits = dict.fromkeys(name.partition("_")[0] for name in scores)
    rows = []
    for split in splits:
        values = [scores.get(f"{split}_{metric}") for metric in SCORE_NAMES]
        cells = [None if value is None else FormattedNumber(value) for value in values]
        rows.append([split, *cells])
    return Table(["split", *SCORE_NAMES.values()], rows)


def _predicts_classes(checkpoint: Checkpoint) -> bool:
    """Check whether a model predicts exactly one class for each text."""
    problem = checkpoint.config.get("problem_type")
    is_single_label = problem in (None, "single_label_classification")
    is_classifier = checkpoint.class_suffix == "ForSequenceClassification"
    return is_classifier and is_single_label and len(checkpoint.classes) > 1


def _is_paper_dataset(card: CardContent) -> bool:
    """Return whether a model was trained on a registered data set."""
    return card.trained_on is not None and card.trained_on.name in RECIPES


def _build_command(card: CardContent) -> str:
    """Return a command that audits the model.

    If the card contains an audit with a known command, this command is returned. Otherwise, the
    command contains the data set of the training, or a placeholder if this data set is not public.
    """
    for audit in card.audits:
        if audit.command:
            return f"{audit.command} --output-dir audit"
    data = card.trained_on
    if data is None and card.audits:
        data = card.add_hub_id(card.audits[0].data)
    dataset = DATASET_PLACEHOLDER
    if data is not None:
        is_public = data.name in RECIPES or data.hub_id == data.name
        if is_public:
            dataset = data.name
    words = [
        "attnprobe",
        "audit",
        "--model",
        card.checkpoint.quotable_name,
        "--dataset",
        dataset,
        "--output-dir",
        "audit",
    ]
    return shlex.join(words)


# --- Audit results -------------------------------------------------------------------------------


def build_findings(card: CardContent, audit: AuditSummary) -> list[Block]:
    """Build the section of the model card with the results of an audit.

    Args:
        card: the card's content.
        audit: one of the card's audits.

    Returns:
        Blocks with the conclusion, a sentence per finding, and notes.
    """
    data = card.add_hub_id(audit.data)
    split = (" (split ", Code(audit.split), ")") if audit.split else ()
    conclusion = audit.conclusion or "No question was answered."
    sentences = [
        f"CONTRADICTION, please report it: {sentence}" for sentence in audit.contradictions
    ]
    sentences += [finding.sentence for finding in audit.findings]
    wording = build_wording(audit.provenance.get("prediction"))
    blocks: list[Block] = [
        (
            f"Audit of {wording.format_text_count(audit.n_texts, audit.n_distinct)} from ",
            Code(data.name),
            *split,
            f"{describe_answered_texts(audit, wording)}: {conclusion}",
        ),
        [*sentences, *audit.notes],
        list(_iterate_notes(audit)),
    ]
    if find_unit_names(audit.provenance) is None:
        return blocks
    return map_texts(blocks, partial(rename_audited_units, provenance=audit.provenance))


def describe_answered_texts(audit: AuditSummary, wording: Wording) -> str:
    """Describe on how many texts an answer is based, such as "; the answer is based on 30 texts".

    The description is empty if the answer is based on all different texts of the audit, or if it is
    unknown.

    Args:
        audit: the audit.
        wording: wording for this prediction type.
    """
    n_different = audit.n_texts if audit.n_distinct is None else audit.n_distinct
    if not audit.n_answered or audit.n_answered == n_different:
        return ""
    return f"; the answer is based on {wording.format_text_count(audit.n_answered)}"


def _iterate_notes(audit: AuditSummary) -> Iterator[InlineText]:
    """Yield notes on skipped tests, package versions, the command and the published rows."""
    provenance = audit.provenance
    skipped_tests = provenance.get("left_out") or {}
    if isinstance(skipped_tests, Mapping):
        for name, reason in skipped_tests.items():
            yield f"Not tested: {clean_text(name)}, since {clean_text(reason)}"
    if isinstance(provenance.get("versions"), Mapping):
        yield f"Seed {audit.seed}; {format_versions(provenance['versions'])}"
    if audit.command:
        yield ("Command: ", Code(audit.command))
    else:
        yield "The model or the data set was an object in Python, so no command can repeat this audit"
    if audit.rows_url:
        yield (
            "Values of all texts: ",
            Link(audit.rows_url, audit.rows_url),
        )


# --- The README for published rows, which are the values that audits measured for each text ------


@dataclass(frozen=True)
class PublishedRows:
    """One audit's rows (values per text) in a published data set.

    Attributes:
        config: name of the data set's configuration, and of the folder with the audit's files.
        data: the audited data set.
        split: the audited split.
        n_texts: number of audited texts, including copies of the same text.
        n_distinct: number of different texts.
        n_answered: number of different texts on which the answer is based.
        conclusion: the main question with its answer as one sentence; None without evidence.
        files: Parquet file names by split of the published data set.
        other_files: names of the other files in the folder.
        provenance: the audit's settings, which name its units and inputs.
    """

    config: str
    data: DatasetReference
    split: str
    n_texts: int
    n_distinct: int
    n_answered: int
    conclusion: str | None
    files: dict[str, str]
    other_files: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def rename_units(self, sentences: str) -> str:
        """Replace words and texts in sentences by the names of the audit's units and inputs.

        Args:
            sentences: prose about the audit.
        """
        return rename_audited_units(sentences, self.provenance)

    @property
    def has_copies(self) -> bool:
        """Whether a text occurs several times in the audited data."""
        return self.n_distinct < self.n_texts

    @property
    def is_based_on_fewer(self) -> bool:
        """Whether the answer is based on fewer texts than were audited."""
        return 0 < self.n_answered < self.n_distinct


def render_rows_readme(
    repository: str,
    model: str,
    audits: Sequence[PublishedRows],
    license_name: str | None,
) -> str:
    """Render the README for a published data set with audit rows.

    Args:
        repository: the data set's Hub id.
        model: the audited model's name.
        audits: the audits; each becomes a configuration of the data set.
        license_name: the data set's license; None to state no license.

    Returns:
        The README with front matter.
    """
    configs = []
    for audit in audits:
        data_files = [
            {"split": split, "path": f"{audit.config}/{file}"}
            for split, file in audit.files.items()
        ]
        configs.append({"config_name": audit.config, "data_files": data_files})
    metadata = DatasetCardData(
        license=license_name,
        tags=[*CARD_TAGS, "faithfulness"],
        configs=configs,
    )
    text = (
        load_card_templates()
        .get_template("rows.md")
        .render(
            repository=repository,
            model=model,
            audits=audits,
            has_texts=any("texts.json" in audit.other_files for audit in audits),
        )
    )
    return f"---\n{metadata}\n---\n\n{text.strip()}\n"
