"""Model cards for tests: a training record, a configuration and findings that are written by hand."""

import math

from huggingface_hub import ModelCard
from hypothesis import strategies as st

from hf_attnprobe.cards.metadata import AuditSummary, CardContent, Checkpoint, DatasetReference
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.verdicts import Finding


CONFIG = {
    "architectures": ["AttentionClassifierForSequenceClassification"],
    "model_type": "attention_classifier",
    "auto_map": {"AutoConfig": "x.Y"},
    "encoder": "bilstm",
    "encoder_size": 8,
    "attention": "additive",
    "vocab_size": 1000,
    "embedding_size": 16,
    "id2label": {0: "neg", 1: "pos"},
}


RECORD = {
    "procedure": "jain-wallace",
    "epochs": 8,
    "seed": 3,
    "word_vectors": "/home/somebody/secret/glove.txt",
    "start": "/home/somebody/secret/base",
    "dataset": "sst",
    "data": {"train": "aa", "test": "bb"},
    "n_texts": {"train": 20, "test": 7},
    "metrics": {"test_accuracy": 0.75, "test_f1": 0.5},
    "versions": {"torch": "2"},
}


def finding(**changes):
    values = {
        "rule": "importance",
        "answer": Answer.NO,
        "sentence": "Importance: no. τ 0.22 [0.20, 0.24], chance 0.",
        "value": 0.22,
        "ci95": (0.2, 0.24),
        "n": 40,
        "yardsticks": {"random": 0.24},
    }
    return Finding(**(values | changes))


def card(*findings, name="bilstm", record=RECORD, config=CONFIG, **changes):
    audits = ()
    if findings:
        audit = AuditSummary(DatasetReference.from_name("sst"), "test", 40, 0, "So? No.", findings)
        audits = (audit,)
    return CardContent(Checkpoint(name, config, record, 123), audits, **changes)


def reread(text, tmp_path):
    """What huggingface_hub reads in a README."""
    file = tmp_path / "README.md"
    file.write_text(text)
    return ModelCard.load(file)


def check_plain(value):
    """Nothing but what JSON knows, and no NaN."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value)
        [check_plain(inner) for inner in value.values()]
    elif isinstance(value, list):
        [check_plain(inner) for inner in value]
    else:
        assert value is None or type(value) in (str, int, float, bool)
        assert type(value) is not float or math.isfinite(value)


names = st.text(max_size=20)
