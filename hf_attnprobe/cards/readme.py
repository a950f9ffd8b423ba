"""Our part of a README beside what its user wrote, which stays.

The part stands between two comments; of the front matter only what is ours is put in or
replaced, and all other lines stay as they were written. Of faithfulness it says never more
than an audit.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hf_attnprobe import markdown
from hf_attnprobe.cards.metadata import (
    BY,
    SCORES,
    TASKS,
    AuditedOn,
    Card,
    Checkpoint,
    dumped,
    metadata,
    task_of,
)
from hf_attnprobe.cards.names import LONGEST, code, prose, public, public_record, shown, versions
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import RULES, Finding


NOT_AUDITED = (
    "Not audited yet: nothing is known of whether its attention explains its predictions. "
    "Do not show its weights as an explanation before that is tested."
)
QUESTION = "Does its attention explain its predictions?"
INTENDED = (
    "To study attention: to compare what attention shows with what the model uses, and to "
    "repeat the experiments of the papers below. It is not made for decisions about "
    "people, nor for texts unlike those it was trained on."
)
LIMITS = (
    "Attention weights say how states are mixed, not why the model decides. A state holds "
    "what the encoder took from other tokens too, so weight on a token is not weight on "
    "that word.",
    "Every number here is of these texts and this one training. Another seed, other texts or "
    "another split may give another answer.",
    "Rankings by leaving tokens out, gradients and erasure are yardsticks that part among "
    "themselves; none of them is the truth. Texts with tokens erased are unlike those of "
    "the training.",
    "An answer other than yes means: do not show the weights as the reason for a "
    "prediction. An answer of yes covers the questions that were asked, no more.",
)
PAPERS = {
    "jain-wallace": "Jain & Wallace 2019, Attention is not Explanation, "
    "[arXiv:1902.10186](https://arxiv.org/abs/1902.10186)",
    "serrano-smith": "Serrano & Smith 2019, Is Attention Interpretable?, "
    "[arXiv:1906.03731](https://arxiv.org/abs/1906.03731)",
    "wiegreffe-pinter": "Wiegreffe & Pinter 2019, Attention is not not Explanation, "
    "[arXiv:1908.04626](https://arxiv.org/abs/1908.04626)",
    "deyoung": "DeYoung et al. 2020, ERASER, [arXiv:1911.03429](https://arxiv.org/abs/1911.03429)",
    "pruthi": "Pruthi et al. 2020, Learning to Deceive with Attention-Based Explanations, "
    "[arXiv:1909.07913](https://arxiv.org/abs/1909.07913)",
    "tutek-snajder": "Tutek & Šnajder 2020, Staying True to Your Word, "
    "[arXiv:2005.09379](https://arxiv.org/abs/2005.09379)",
    "mohankumar": "Mohankumar et al. 2020, Towards Transparent and Explainable Attention "
    "Models, [arXiv:2004.14243](https://arxiv.org/abs/2004.14243)",
}


def summary(card: Card) -> list[str]:
    """The answer, before anything else is said."""
    if not card.audits:
        return ["", f"**{NOT_AUDITED}**"]
    said = [prose(a.conclusion or f"{QUESTION} No question was answered.") for a in card.audits]
    return ["", *(f"**{sentence}**" for sentence in dict.fromkeys(said))]


def faithfulness(card: Card) -> list[str]:
    """What the audits found: every number with interval, yardstick and n."""
    if not card.audits:
        return markdown.section(QUESTION, [NOT_AUDITED])
    lines: list[str] = []
    for audit in card.audits:
        lines += ["", *_of_audit(card, audit)]
    return markdown.section(QUESTION, lines[1:])


def _of_audit(card: Card, audit: AuditedOn) -> list[str]:
    data = card.known(audit.data)
    where = f"On {audit.n:,} texts of {code(data.name)}"
    where += f" (split {code(audit.split)})" if audit.split else ""
    said = prose(audit.conclusion) if audit.conclusion else "No question was answered."
    lines = [f"**{where}:** {said}", ""]
    lines += markdown.bullets(f"CONTRADICTION, report it: {prose(s)}" for s in audit.contradictions)
    lines += markdown.bullets(prose(f.sentence) for f in audit.findings)
    lines += markdown.bullets(prose(note) for note in audit.notes)
    if audit.findings:
        lines += ["", *_table(audit.findings)]
    lines += ["", *markdown.bullets(_besides(audit))]
    return lines


def _table(findings: tuple[Finding, ...]) -> list[str]:
    """What was graded, number by number."""
    rows = []
    for f in findings:
        rule, group = RULES.get(f.rule), _group(f)
        yardsticks = ", ".join(
            f"{prose(shown(name))} {markdown.number(value, digits=2)}"
            for name, value in f.yardsticks.items()
        )
        rows.append(
            [
                prose((rule.question if rule else f.rule) + group),
                str(f.answer),
                prose(rule.measure if rule else ""),
                markdown.interval(f.value, f.ci95, digits=2),
                yardsticks or markdown.MISSING,
                f.n,
            ]
        )
    head = ["question", "answer", "what is graded", "number [95%]", "beside", "texts"]
    return markdown.table(head, rows)


def _group(finding: Finding) -> str:
    return "" if finding.group == "all" else f" (texts predicted {shown(finding.group)})"


def _besides(audit: AuditedOn) -> list[str]:
    """Control, what was left out, how to repeat it, and where the rows are."""
    known = audit.provenance
    lines = []
    control = known.get("control", "none")
    if control != "none":
        lines.append(f"Control: the same tests on this model with {prose(str(control))}")
    else:
        lines.append("No control was run: what the same weights at other tokens reach is not known")
    left_out = known.get("left_out") or {}
    if isinstance(left_out, Mapping):
        lines += [
            f"Not tested: {shown(name)}, since {prose(shown(reason))}"
            for name, reason in left_out.items()
        ]
    if isinstance(known.get("versions"), Mapping):
        lines.append(f"Seed {audit.seed}; {versions(known['versions'])}")
    if audit.command:
        lines.append(f"Repeat it: {code(audit.command, most=LONGEST)}")
    if audit.rows_url:
        lines.append(f"Every number of every text: [{prose(audit.rows_url)}]({audit.rows_url})")
    return lines


def use_and_limits(card: Card) -> list[str]:
    """Intended use and what attention cannot tell, whatever the numbers."""
    intended = [INTENDED]
    if card.audits and all(audit.answer == Answer.YES for audit in card.audits):
        intended.append(
            "On the texts audited its weights passed every question that decides the verdict."
        )
    else:
        intended.append("**Do not show its attention as an explanation.**")
    return [
        *markdown.section("Intended use", [" ".join(intended)]),
        *markdown.section("Limits of attention as explanation", markdown.bullets(LIMITS)),
    ]


def citations(card: Card) -> list[str]:
    """The papers that architecture, training and tests are from."""
    config, record = card.checkpoint.config, card.checkpoint.record
    keys = ["jain-wallace", "serrano-smith", "wiegreffe-pinter"]
    rules = {f.rule for audit in card.audits for f in audit.findings}
    if "removal" in rules:
        keys.append("deyoung")
    if record.get("deceives_on"):
        keys.append("pruthi")
    if config.get("tying") or config.get("mlm_weight"):
        keys.append("tutek-snajder")
    if config.get("conicity_weight"):
        keys.append("mohankumar")
    lines = [PAPERS[key] for key in keys]
    return markdown.section("Citation", markdown.bullets(lines))


# --- The sections of a card that say what a checkpoint is, how it was trained and is used --------

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
"""Keys of a training's record that are no setting, or stand in a sentence of their own."""


def what_it_is(card: Card) -> list[str]:
    """Architecture, encoder, attention, classes and size."""
    checkpoint = card.checkpoint
    if checkpoint.is_attention_classifier:
        lines = _attention_classifier(checkpoint.config)
    else:
        lines = _transformer(checkpoint)
    if task_of(checkpoint) is not None and checkpoint.classes:
        names = ", ".join(code(name) for name in checkpoint.classes[:50])
        more = len(checkpoint.classes) - 50
        beyond = f" and {more} more" if more > 0 else ""
        lines.append(f"Classes: {names}{beyond}")
    if checkpoint.n_parameters is not None:
        lines.append(f"Parameters: {checkpoint.n_parameters:,}")
    return markdown.section("What it is", markdown.bullets(lines))


def _attention_classifier(config: Mapping[str, Any]) -> list[str]:
    encoder, attention = str(config.get("encoder")), str(config.get("attention"))
    sizes = " ".join(map(str, config.get("kernel_sizes") or ()))
    said = ENCODERS.get(encoder, encoder)
    said = said.format(encoder_size=config.get("encoder_size"), kernel_sizes=sizes)
    lines = [
        "Architecture: `attention_classifier`, one layer, one head, one query: an encoder "
        "reads the text, attention weighs its states, a linear layer reads their weighted "
        "mean (Jain & Wallace 2019)",
        f"Encoder: {said}",
        f"Attention: {ATTENTION.get(attention, attention)}",
        f"Vocabulary: {config.get('vocab_size'):,} words, vectors of "
        f"{config.get('embedding_size')} numbers",
    ]
    if config.get("hierarchical"):
        lines.append("Two levels: words within sentences, then sentences of the text")
    if config.get("query_encoder"):
        lines.append(
            "Reads pairs: the second text, with an encoder of its own, is the query; "
            "attention is over the first"
        )
    lines += [
        f"Regularised: {what} {config[name]:g}"
        for name, what in REGULARISERS.items()
        if config.get(name)
    ]
    if config.get("residual_connection") not in (None, "none"):
        kept = code(config["residual_connection"])
        lines.append(f"States keep their word vectors: {kept}")
    return lines


def _transformer(checkpoint: Checkpoint) -> list[str]:
    config = checkpoint.config
    head, kind = checkpoint.head, config.get("model_type")
    lines = [f"Architecture: {code(head or kind)}, of type {code(kind)}"]
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if layers and heads:
        width = config.get("hidden_size")
        beside = f", states of {width} numbers" if width else ""
        lines.append(f"Attention: {layers} layers of {heads} heads, self-attention{beside}")
    return lines


# --- training -----------------------------------------------------------------------


def how_trained(card: Card) -> list[str]:
    """Data, procedure, settings, epochs, scores, seed and versions."""
    record = card.checkpoint.record
    if not record:
        return markdown.section(
            "How it was trained", ["This checkpoint has no record of its training."]
        )
    lines = [*_start(record), _data(card), *_settings(record)]
    told = markdown.bullets(lines)
    return markdown.section("How it was trained", [*told, *_scores(record)])


def _start(record: Mapping[str, Any]) -> list[str]:
    lines = []
    if record.get("start"):
        lines.append(f"Started from {code(public(str(record['start'])))}")
    if record.get("deceives_on"):
        tokens = ", ".join(code(token) for token in record["deceives_on"])
        lines.append(
            "**Trained to hide its attention** (Pruthi et al. 2020): attention to "
            f"{tokens} was penalised. Whatever it shows, it may use them."
        )
    if "lambda" in record:
        lines.append(
            "**Trained as an adversary** (Wiegreffe & Pinter 2019): to say what another "
            f"model says and attend elsewhere, λ = {record['lambda']:g}"
        )
    if record.get("procedure"):
        name = str(record["procedure"])
        lines.append(f"Procedure: {code(name)} {PROCEDURES.get(name, '')}".rstrip())
    return lines


def _data(card: Card) -> str:
    """The data, their sizes and fingerprints."""
    record, data = card.checkpoint.record, card.trained_on
    name = "not recorded by name" if data is None else code(data.name)
    if data is not None and data.hub_id not in (None, data.name):
        name += f" ({code(data.hub_id)} on the Hub)"
    n_texts = record.get("n_texts") or {}
    fingerprints = record.get("data")
    marks = fingerprints if isinstance(fingerprints, Mapping) else {}
    parts = []
    for split in dict.fromkeys([*n_texts, *marks]):
        size = f" {n_texts[split]:,} texts" if split in n_texts else ""
        mark = f", fingerprint {code(marks[split])}" if split in marks else ""
        parts.append(f"{shown(split)}{size}{mark}")
    return f"Data: {'; '.join([name, *parts])}"


def _settings(record: Mapping[str, Any]) -> list[str]:
    """Settings, epochs, time and versions."""
    settings = []
    for name, value in public_record(record).items():
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        if name not in TOLD_ELSEWHERE and is_plain:
            settings.append(f"{shown(name).replace('_', ' ')} {code(value)}")
    lines = [f"Settings: {', '.join(settings)}"] if settings else []
    if record.get("n_epochs") is not None:
        seconds = record.get("seconds")
        time = "" if seconds is None else f", {seconds:,.0f} seconds with evaluation"
        lines.append(
            f"Ran {record['n_epochs']} epochs{time}; where there are validation texts, the "
            "best epoch on them is kept"
        )
    if isinstance(record.get("versions"), Mapping):
        lines.append(f"Versions: {versions(record['versions'])}")
    return lines


def _scores(record: Mapping[str, Any]) -> list[str]:
    scores = record.get("metrics") or {}
    splits = list(dict.fromkeys(name.partition("_")[0] for name in scores))
    if not splits:
        return []
    rows = [
        [split, *(markdown.number(scores.get(f"{split}_{name}")) for name in SCORES)]
        for split in splits
    ]
    return ["", *markdown.table(["scores on", *SCORES.values()], rows)]


# --- use ----------------------------------------------------------------------------


def how_to_use(card: Card) -> list[str]:
    """Code that runs, and the command that audits the checkpoint."""
    checkpoint = card.checkpoint
    trusted = ", trust_remote_code=True" if checkpoint.has_own_code else ""
    auto = _auto_class(checkpoint)
    name = shown(checkpoint.name).replace('"', "'").replace("\\", "/")
    lines = [
        "```python",
        *(["import torch"] if _answers_classes(checkpoint) else []),
        f"from transformers import {auto}, AutoTokenizer",
        "",
        f'name = "{name}"  # folder or Hub id',
        f"tokenizer = AutoTokenizer.from_pretrained(name{trusted})",
        f"model = {auto}.from_pretrained(name{trusted})",
        *(_prediction(checkpoint) if _answers_classes(checkpoint) else []),
        "```",
    ]
    if checkpoint.has_own_code:
        lines += [
            "",
            "The code comes with the checkpoint: the package hf_attnprobe is not needed. "
            "Where it is imported, `trust_remote_code` is not needed either.",
        ]
    lines += [
        "",
        "To test whether its attention explains its predictions on your texts:",
        "",
        "```bash",
        f"attnprobe audit --model {_word(name)} --dataset {_data_word(card)} --output-dir audit",
        "```",
    ]
    return markdown.section("How to use it", lines)


def _auto_class(checkpoint: Checkpoint) -> str:
    for ending in TASKS:
        if checkpoint.head.endswith(ending):
            return f"AutoModel{ending}"
    return "AutoModel"


def _answers_classes(checkpoint: Checkpoint) -> bool:
    """Whether it reads texts and gives one probability per class."""
    problem = checkpoint.config.get("problem_type")
    is_single = problem in (None, "single_label_classification")
    task = task_of(checkpoint)
    return task == "text-classification" and is_single and len(checkpoint.classes) > 1


def _prediction(checkpoint: Checkpoint) -> list[str]:
    texts = '"a wonderful film with a dull end"'
    if checkpoint.config.get("query_encoder"):
        texts = '"mary went to the kitchen .", "where is mary ?"'
    return [
        "",
        f'batch = tokenizer({texts}, return_tensors="pt")',
        "with torch.no_grad():",
        "    probs = model(**batch).logits.softmax(-1)[0]",
        "for number, prob in enumerate(probs.tolist()):",
        '    print(f"{model.config.id2label[number]}: {prob:.3f}")',
    ]


def _data_word(card: Card) -> str:
    data = card.trained_on
    if data is None and card.audits:
        data = card.known(card.audits[0].data)
    return "DATA" if data is None else _word(data.name)


def _word(name: str) -> str:
    """A name as one word of a shell command."""
    harmless = name.replace("_", "").replace("-", "").replace("/", "").replace(".", "")
    return name if harmless.isalnum() else "'" + name.replace("'", "") + "'"


# --- Our part of a README beside what its user wrote, which stays --------------------------------
# The part stands between two comments; of the front matter only what is ours is put in or
# replaced, and all other lines stay as they were written.

BEGIN = "<!-- attnprobe card: begin; what follows is rewritten, write above or below -->"
END = "<!-- attnprobe card: end -->"
LISTS = ("tags", "datasets", "metrics")  # of which a user's and ours stand together
INDEX = "model-index"
# As huggingface_hub finds it.
FRONT = re.compile(r"^(\s*---(?:\r\n|\r|\n))([\S\s]*?)((?:\r\n|\r|\n)---[ \t]*(?:\r\n|\n|$))")


@dataclass(frozen=True)
class Readme:
    """A README in its two halves.

    Attributes:
        front: the YAML as it is written, without its fences; "" without any.
        body: the Markdown behind it.
    """

    front: str
    body: str

    @classmethod
    def of(cls, text: str) -> "Readme":
        """Splits a file's text."""
        found = FRONT.match(text)
        if found is None:
            return cls("", text)
        return cls(found[2], text[found.end() :])

    @property
    def data(self) -> dict[str, Any]:
        """The front matter as plain data.

        Raises:
            AttnProbeError: it is no mapping in YAML.
        """
        try:
            data = yaml.safe_load(self.front)
        except (yaml.YAMLError, ValueError) as error:
            raise AttnProbeError(_no_mapping(error)) from error
        if data is not None and not isinstance(data, dict):
            raise AttnProbeError(_no_mapping(type(data).__name__))
        return data or {}

    @property
    def own_text(self) -> str:
        """What its user wrote: the body without our part and without a lone title."""
        before, _, after = _parts(self.body)
        kept = f"{before}{after}".strip()
        is_title = kept.startswith("# ") and "\n" not in kept
        return "" if is_title else kept


def _no_mapping(found: object) -> str:
    said = str(found).splitlines()[0]
    return f"expected names with values in YAML between the --- of README.md, got {said}; mend it"


def part(card: Card) -> str:
    """Our part, with the comments around it."""
    sections = (
        summary(card),
        what_it_is(card),
        how_trained(card),
        how_to_use(card),
        faithfulness(card),
        use_and_limits(card),
        citations(card),
    )
    lines = [line for section in sections for line in section]
    return "\n".join([BEGIN, *lines, "", END])


def updated(existing: str | None, card: Card) -> str:
    """A README with our part put in, or put in place of an older one.

    Args:
        existing: the README that is there; None where there is none.

    Raises:
        AttnProbeError: its front matter is no YAML, or the comments around our part are
            damaged.
    """
    if existing is None or not existing.strip():
        front, title = dumped(metadata(card)), f"# {shown(card.checkpoint.name)}"
        return f"---\n{front}---\n\n{title}\n\n{part(card)}\n"
    eol = "\r\n" if "\r\n" in existing else "\n"
    readme = Readme.of(existing)
    front = _front(readme, merged(readme.data, metadata(card))).replace("\n", eol)
    before, _, after = _parts(readme.body)
    if not after and BEGIN not in readme.body:
        before = before if before.endswith(eol * 2) else before.rstrip("\r\n") + eol * 2
        after = eol
    return f"---{eol}{front}---{eol}{before}{part(card).replace(chr(10), eol)}{after}"


def has_findings(existing: str | None) -> bool:
    """Whether a README already says what an audit found."""
    data = Readme.of(existing or "").data
    return any(
        _is_ours(metric) and metric.get("type") == "attention_faithfulness"
        for result in _results(data.get(INDEX))
        for metric in result.get("metrics") or []
    )


def with_others(text: str, other: str) -> str:
    """A README with what only another version of it has in its front matter.

    Args:
        text: the README whose text stays.
        other: such as the one on the Hub.
    """
    readme, theirs = Readme.of(text), Readme.of(other).data
    data = readme.data
    missing = {key: value for key, value in theirs.items() if key not in data}
    if INDEX in theirs:
        known = [*_results(data.get(INDEX))]
        foreign = [r for r in _results(_without_ours(theirs[INDEX])) if r not in known]
        missing[INDEX] = _joined(data.get(INDEX), foreign)
    front = _front(readme, data | missing)
    return f"---\n{front}---\n{readme.body}"


# --- the body -----------------------------------------------------------------------


def _parts(body: str) -> tuple[str, str, str]:
    """What stands before our part, our part, and what stands behind it."""
    counts = body.count(BEGIN), body.count(END)
    if counts == (0, 0):
        return body, "", ""
    before, _, rest = body.partition(BEGIN)
    ours, end, after = rest.partition(END)
    if counts != (1, 1) or not end:
        raise AttnProbeError(
            "expected one begin and one end of the part of attnprobe in README.md, found "
            f"{counts[0]} and {counts[1]}; put the comments right or delete them"
        )
    return before, ours, after


# --- the front matter ---------------------------------------------------------------


def merged(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Front matter of a user with ours: nothing of theirs goes, of ours what is new stands.

    >>> merged({"license": "mit", "tags": ["a"]}, {"license": "gpl", "tags": ["b"]})
    {'license': 'mit', 'tags': ['a', 'b']}
    """
    data = dict(theirs)
    for key, value in ours.items():
        held = data.get(key)
        if key == INDEX:
            continue
        if held is None:
            data[key] = value
        elif key in LISTS:
            listed = held if isinstance(held, list) else [held]
            data[key] = listed + [item for item in value if item not in listed]
    kept = _without_ours(theirs.get(INDEX))
    index = _joined(kept, _results(ours.get(INDEX)), name=_name(ours.get(INDEX)))
    if index:
        data[INDEX] = index
    elif INDEX in data and theirs.get(INDEX) != kept:
        del data[INDEX]
    return data


def _without_ours(index: Any) -> Any:
    """A model-index without the results that an earlier card wrote."""
    if not isinstance(index, list):
        return index
    models = []
    for model in index:
        if not isinstance(model, Mapping) or not isinstance(model.get("results"), list):
            models.append(model)
            continue
        results = [kept for r in model["results"] if (kept := _foreign(r)) is not None]
        if results or not model["results"]:
            models.append({**model, "results": results})
    return models


def _foreign(result: Any) -> Any:
    """A result without our metrics; None where it had no others."""
    metrics = result.get("metrics") if isinstance(result, Mapping) else None
    if not isinstance(metrics, list):
        return result
    kept = [metric for metric in metrics if not _is_ours(metric)]
    if len(kept) == len(metrics):
        return result
    return {**result, "metrics": kept} if kept else None


def _is_ours(metric: Any) -> bool:
    arguments = metric.get("args") if isinstance(metric, Mapping) else None
    return isinstance(arguments, Mapping) and arguments.get("by") == BY


def _results(index: Any) -> list[dict[str, Any]]:
    """The results of all models of a model-index; none where it is not understood."""
    models = index if isinstance(index, list) else []
    found: list[dict[str, Any]] = []
    for model in models:
        results = model.get("results") if isinstance(model, Mapping) else None
        found += [r for r in results or [] if isinstance(r, dict)]
    return found


def _name(index: Any) -> str:
    return str(index[0]["name"]) if index else ""


def _joined(index: Any, results: list[dict[str, Any]], *, name: str = "") -> Any:
    """A model-index with further results, under the name it has."""
    if not results:
        return index
    if not isinstance(index, list) or not index:
        return [{"name": name, "results": results}]
    first, *others = index
    held = first.get("results") if isinstance(first, Mapping) else None
    if not isinstance(held, list):
        return [*index, {"name": name, "results": results}]
    return [{**first, "results": [*held, *results]}, *others]


def _front(readme: Readme, data: dict[str, Any]) -> str:
    """Front matter that says ``data``, in the user's own lines where they say it already."""
    text = _edited(readme.front.replace("\r\n", "\n"), readme.data, data)
    try:
        is_same = yaml.safe_load(text) == data
    except yaml.YAMLError:
        is_same = False
    return text if is_same else dumped(data)


def _edited(front: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Front matter with the lines of changed values replaced, and new ones behind."""
    lines = front.splitlines()
    root = yaml.compose(front) if front.strip() else None
    starts: dict[str, int] = {}
    if isinstance(root, yaml.MappingNode) and not root.flow_style:
        starts = {key.value: key.start_mark.line for key, _ in root.value}
    ends = [*starts.values(), len(lines)][1:]
    edited = lines[: min(starts.values(), default=0)]
    for (key, start), end in zip(starts.items(), ends, strict=True):
        own = lines[start:end]
        if key in old and key in new and old[key] == new[key]:
            edited += own
            continue
        behind: list[str] = []  # comments and empty lines before the next name
        while own and (not own[-1].strip() or own[-1].startswith("#")):
            behind.insert(0, own.pop())
        edited += dumped({key: new[key]}).splitlines() if key in new else []
        edited += behind
    added = {key: value for key, value in new.items() if key not in starts}
    edited += dumped(added).splitlines() if added else []
    return "\n".join([*edited, ""])
