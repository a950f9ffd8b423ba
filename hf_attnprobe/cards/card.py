"""What a card says of a checkpoint: the words stand in ``card.md``, what they say of it here.

The findings of an audit are blocks, printed as every report prints them. Our part of a README
stands between two comments beside what its user wrote, which stays. The front matter is
huggingface_hub's: of a list and of the results both stand there, of all else what the user says.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from huggingface_hub import CardData, DatasetCardData, EvalResult, ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from jinja2 import Environment

from hf_attnprobe.cards.metadata import (
    BY,
    METRIC,
    SCORES,
    TAGS,
    AuditedOn,
    Card,
    Checkpoint,
    DataName,
    code,
    metadata,
    prose,
    public,
    public_record,
    shown,
    task_of,
    versions,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.recipes import RECIPES
from hf_attnprobe.documents.blocks import (
    Block,
    Code,
    Link,
    Number,
    Table,
    Words,
)
from hf_attnprobe.documents.markdown import blocks
from hf_attnprobe.documents.templates import templates_of
from hf_attnprobe.statistics.verdicts import MAY
from hf_attnprobe.statistics.wording import words_of


NOT_AUDITED = (
    "Not audited yet: nothing is known of whether its attention explains its predictions. "
    "Do not show its weights as an explanation before that is tested."
)
QUESTION = "Does its attention explain its predictions?"
BLANK = "DATA"
"""Stands in a command for data that have no name which anybody could give."""
ENCODERS = {
    "bilstm": "a BiLSTM, {encoder_size} units in each direction",
    "bigru": "a BiGRU, {encoder_size} units in each direction",
    "cnn": "convolutions of {kernel_sizes} tokens, {encoder_size} channels",
    "mlp": "an MLP on each token alone, {encoder_size} units, so without context",
    "none": "none: the word vectors themselves, so without context",
}
ATTENTION = {
    "additive": "additive (Bahdanau et al. 2015)",
    "dot_product": "scaled dot product",
    "uniform": "uniform: every token has the same weight, nothing is learned",
    "guided": "guided: the weights are given from outside, nothing is learned",
}
REGULARISERS = {
    "embedding_dropout": "dropout on word vectors",
    "sentence_dropout": "dropout on sentence vectors",
    "logit_dropout": "dropout on logits",
    "tying": "weight of tying states to word vectors",
    "mlm_weight": "weight of predicting masked words",
    "conicity_weight": "weight of the penalty on conicity",
}
PROCEDURES = {
    "jain-wallace": "of Jain & Wallace 2019's released code",
    "serrano-smith": "of Serrano & Smith 2019's released code for IMDB",
}
TOLD_ELSEWHERE = (
    *(
        "architecture",
        "data",
        "dataset",
        "metrics",
        "n_texts",
        "n_epochs",
        "seconds",
    ),
    *("versions", "procedure", "start", "deceives_on"),
)
"""Keys of a training's record that are no setting, or stand in a sentence of their own."""


BEGIN = "<!-- attnprobe card: begin; what follows is rewritten, write above or below -->"
END = "<!-- attnprobe card: end -->"
LISTS = ("tags", "datasets", "metrics")
"""Fields of which a user's and ours stand together."""


def read_card(text: str) -> ModelCard:
    """The card in a README; its data are empty where it has no front matter.

    Raises:
        AttnProbeError: the front matter is no mapping that a card may have.
    """
    has_data = REGEX_YAML_BLOCK.match(text)
    try:
        return ModelCard(text if has_data else f"---\n{{}}\n---\n{text}")
    except (yaml.YAMLError, ValueError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise AttnProbeError(
            f"expected names with values in YAML between the --- of README.md, got {said}; mend it"
        ) from error


def with_part(existing: str, part: str, ours: CardData) -> str:
    """A README with our part put in, or put in place of an older one.

    Args:
        existing: the README that is there.
        part: ours, with the comments around it.
        ours: what belongs into the front matter.

    Raises:
        AttnProbeError: its front matter is no YAML, or the comments around our part are
            damaged.
    """
    eol = "\r\n" if "\r\n" in existing else "\n"
    card = read_card(existing)
    merge(card.data, ours)
    _set_results(card.data, [*_foreign(card.data), *_results(ours)])
    before, after = _around(card.text)
    if BEGIN not in card.text:
        if not before.endswith(eol * 2):
            before = before.rstrip("\r\n") + eol * 2
        after = eol
    card.text = f"{before}{part.replace(chr(10), eol)}{after}"
    return str(card)


def with_others(text: str, other: str) -> str:
    """A README with what only another version of it has in its front matter.

    Args:
        text: the README whose text stays.
        other: such as the one on the Hub.
    """
    card, theirs = read_card(text), read_card(other).data
    own = _results(card.data)
    merge(card.data, theirs)
    new = [result for result in _foreign(theirs) if result not in own]
    _set_results(card.data, [*new, *own])
    return str(card)


def merge(data: CardData, more: CardData) -> None:
    """Adds what ``more`` says to data: nothing goes that is there.

    >>> data = CardData(license="mit", tags=["a"])
    >>> merge(data, CardData(license="gpl", tags=["b"]))
    >>> data["license"], data["tags"]
    ('mit', ['a', 'b'])
    """
    for key, value in vars(more).items():
        held = data.get(key)
        if held is None:
            data[key] = value
        elif key in LISTS and value:
            data[key] = list(dict.fromkeys([*_listed(held), *_listed(value)]))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _results(data: CardData) -> list[EvalResult]:
    return list(data.get("eval_results", []))


def _set_results(data: CardData, results: list[EvalResult]) -> None:
    """Sets the results; without any the model's name stands nowhere."""
    data["eval_results"] = results or None
    if not results:
        data["model_name"] = None


def _foreign(data: CardData) -> list[EvalResult]:
    """The results that no card of ours wrote."""
    return [r for r in _results(data) if not _is_ours(r)]


def _is_ours(result: EvalResult) -> bool:
    return (result.metric_args or {}).get("by") == BY


def has_findings(existing: str | None) -> bool:
    """Whether a README already says what an audit found."""
    found = _results(read_card(existing or "").data)
    return any(_is_ours(r) and r.metric_type == METRIC for r in found)


def own_text(card: ModelCard) -> str:
    """What its user wrote: the text without our part and without a lone title."""
    kept = "".join(_around(card.text)).strip()
    is_title = kept.startswith("# ") and "\n" not in kept
    return "" if is_title else kept


def _around(body: str) -> tuple[str, str]:
    """What stands before our part, and what stands behind it."""
    before, _, rest = body.partition(BEGIN)
    _, end, after = rest.partition(END)
    counts = body.count(BEGIN), body.count(END)
    if counts != (0, 0) and (counts != (1, 1) or not end):
        raise AttnProbeError(
            "expected one begin and one end of the part of attnprobe in README.md, found "
            f"{counts[0]} and {counts[1]}; put the comments right or delete them"
        )
    return before, after


# --- our part ----------------------------------------------------------------------


def updated(existing: str | None, card: Card) -> str:
    """A README with our part put in, or put in place of an older one.

    Args:
        existing: the README that is there; None where there is none.
        card: what our part says.

    Raises:
        AttnProbeError: its front matter is no YAML, or the comments around our part are
            damaged.
    """
    title = f"\n# {shown(card.checkpoint.name)}\n"
    is_empty = existing is None or not existing.strip()
    held = title if is_empty else str(existing)
    return with_part(held, part(card), metadata(card))


def part(card: Card) -> str:
    """Our part, with the comments around it."""
    return f"{BEGIN}\n\n{card_text(card).strip()}\n\n{END}"


def card_text(card: Card) -> str:
    """The whole text, without the comments around it."""
    checkpoint = card.checkpoint
    config, record = checkpoint.config, checkpoint.record
    said = [audit.conclusion or f"{QUESTION} No question was answered." for audit in card.audits]
    encoder, attention = (
        str(config.get("encoder")),
        str(config.get("attention")),
    )
    sizes = " ".join(map(str, config.get("kernel_sizes") or ()))
    text = (
        templates()
        .get_template("card.md")
        .render(
            card=card,
            checkpoint=checkpoint,
            task=task_of(checkpoint),
            question=QUESTION,
            not_audited=NOT_AUDITED,
            conclusions=list(dict.fromkeys(said)),
            encoder=ENCODERS.get(encoder, code(encoder)).format(
                encoder_size=config.get("encoder_size"), kernel_sizes=sizes
            ),
            attention=ATTENTION.get(attention, code(attention)),
            regularised=[
                (what, f"{config[k]:g}") for k, what in REGULARISERS.items() if config.get(k)
            ],
            procedure=PROCEDURES.get(str(record.get("procedure"))),
            trained_on=_data(card),
            splits=list(_splits(record)),
            settings=list(_settings(record)),
            scores="\n\n".join(blocks([_scores(record)])),
            gives_classes=_gives_classes(checkpoint),
            auto_class=f"AutoModel{checkpoint.ending}",
            name=checkpoint.in_quotes,
            command=_command(card),
            is_of_papers=checkpoint.is_attention_classifier and _is_known(card),
            may=card.audits and MAY[max((of.answer for of in card.audits), key=[*MAY].index)],
            rules={finding.rule for audit in card.audits for finding in audit.findings},
            found=lambda audit: "\n\n".join(blocks(findings(card, audit))),
        )
    )
    return text.replace("<!--", "&lt;!--")  # no name ends our part


@cache
def templates() -> Environment:
    """The templates of this folder; whatever a user has named goes through a filter."""
    filters = {
        "code": code,
        "prose": prose,
        "public": public,
        "shown": shown,
        "versions": versions,
        "thousands": lambda n: f"{n:,}",
    }
    return templates_of("cards", filters)


# --- how it was trained and is used ---------------------------------------------------


def _data(card: Card) -> str:
    data = card.trained_on
    if data is None:
        return "not recorded by name"
    on_hub = "" if data.hub_id in (None, data.name) else f" ({code(data.hub_id)} on the Hub)"
    return f"{code(data.name)}{on_hub}"


def _splits(
    record: Mapping[str, Any],
) -> Iterator[tuple[str, int | None, str | None]]:
    """Each split, its number of texts and its fingerprint."""
    sizes, marks = record.get("n_texts") or {}, record.get("data")
    marks = marks if isinstance(marks, Mapping) else {}
    for split in dict.fromkeys([*sizes, *marks]):
        yield split, sizes.get(split), marks.get(split)


def _settings(record: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in public_record(record).items():
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if name not in TOLD_ELSEWHERE and is_plain:
            yield name, value


def _scores(record: Mapping[str, Any]) -> Table:
    scores = record.get("metrics") or {}
    splits = dict.fromkeys(name.partition("_")[0] for name in scores)
    names = {split: [scores.get(f"{split}_{name}") for name in SCORES] for split in splits}
    rows = [
        [split, *(None if score is None else Number(score) for score in own)]
        for split, own in names.items()
    ]
    return Table(["scores on", *SCORES.values()], rows)


def _gives_classes(checkpoint: Checkpoint) -> bool:
    """Whether it reads texts and gives one probability per class."""
    problem = checkpoint.config.get("problem_type")
    is_single = problem in (None, "single_label_classification")
    task = task_of(checkpoint)
    return task == "text-classification" and is_single and len(checkpoint.classes) > 1


def _is_known(card: Card) -> bool:
    """Whether it was trained on a data set of the papers."""
    return card.trained_on is not None and card.trained_on.name in RECIPES


def _command(card: Card) -> str:
    """A command that runs: that of an audit, or one with data that anybody can name."""
    for audit in card.audits:
        if audit.command:
            return f"{audit.command} --output-dir audit"
    data = card.trained_on
    if data is None and card.audits:
        data = card.known(card.audits[0].data)
    known = data is not None and (data.name in RECIPES or data.hub_id == data.name)
    named = data.name if known and data is not None else BLANK
    words = [
        "attnprobe",
        "audit",
        "--model",
        card.checkpoint.in_quotes,
        "--dataset",
        named,
        "--output-dir",
        "audit",
    ]
    return shlex.join(words)


# --- what an audit found --------------------------------------------------------------


def findings(card: Card, audit: AuditedOn) -> list[Block]:
    """Every answer with its number; never more than the audit says."""
    data = card.known(audit.data)
    split = (" (split ", Code(audit.split), ")") if audit.split else ()
    said = audit.conclusion or "No question was answered."
    sentences = [f"CONTRADICTION, report it: {s}" for s in audit.contradictions]
    sentences += [finding.sentence for finding in audit.findings]
    words = words_of(audit.provenance.get("prediction"))
    return [
        (
            f"On {words.counted(audit.n)} of ",
            Code(data.name),
            *split,
            f": {said}",
        ),
        [*sentences, *audit.notes],
        list(_besides(audit)),
    ]


def _besides(audit: AuditedOn) -> Iterator[Words]:
    """What was left out, how to repeat it, and where the rows are."""
    known = audit.provenance
    left_out = known.get("left_out") or {}
    if isinstance(left_out, Mapping):
        for name, reason in left_out.items():
            yield f"Not tested: {shown(name)}, since {shown(reason)}"
    if isinstance(known.get("versions"), Mapping):
        yield f"Seed {audit.seed}; {versions(known['versions'])}"
    if audit.command:
        yield ("Repeat it: ", Code(audit.command))
    else:
        yield "The data were an object in Python, so no command repeats it by itself"
    if audit.rows_url:
        yield (
            "Every number of every text: ",
            Link(audit.rows_url, audit.rows_url),
        )


# --- The card of a data set of rows: an audit's numbers, one per test, statistic and text --------


@dataclass(frozen=True)
class PublishedRows:
    """One audit in a data set of rows.

    Attributes:
        config: name of the configuration, and of its folder.
        data: what was audited on.
        split: of these data.
        n: texts.
        conclusion: the question with its graded answer; None without evidence.
        files: of the folder, by the split's name in the data set.
        beside: names of the other files in the folder.
    """

    config: str
    data: DataName
    split: str
    n: int
    conclusion: str | None
    files: dict[str, str]
    beside: tuple[str, ...] = ()


def rows_readme(
    repository: str,
    model: str,
    audits: Sequence[PublishedRows],
    license: str | None,
) -> str:
    """The README of the data set, with a configuration for each audit."""
    configs = [
        {
            "config_name": audit.config,
            "data_files": [
                {"split": split, "path": f"{audit.config}/{file}"}
                for split, file in audit.files.items()
            ],
        }
        for audit in audits
    ]
    front = DatasetCardData(
        license=license,
        tags=[*TAGS, "faithfulness"],
        configs=configs,
    )
    text = (
        templates()
        .get_template("rows.md")
        .render(
            repository=repository,
            model=model,
            audits=audits,
            with_texts=any("texts.json" in audit.beside for audit in audits),
        )
    )
    return f"---\n{front}\n---\n\n{text.strip()}\n"
