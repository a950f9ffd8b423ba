"""The sections of a card that say what a checkpoint is, how it was trained and is used."""

from collections.abc import Mapping
from typing import Any

from hf_attnprobe import markdown
from hf_attnprobe.cards.contents import SCORES, TASKS, Card, Checkpoint, task_of
from hf_attnprobe.cards.names import code, public, public_record, shown, versions


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
