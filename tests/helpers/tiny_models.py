"""Tiny models, checkpoints and finished audits: each is made here, and what is slow to make is made once.

``once`` keeps what it made in a folder that all processes of a run share, and later runs of the same code too.
"""

import functools
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
)

import hf_attnprobe
from hf_attnprobe.adapters import wrap
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


PACKAGE = Path(hf_attnprobe.__file__).parent
CACHE = Path(tempfile.gettempdir()) / "attnprobe-zoo"
A_DAY = 24 * 60 * 60


def bert(
    vocabulary: Any = 60,
    *,
    kind: Any = BertForSequenceClassification,
    layers: int = 2,
    heads: int = 2,
    width: int = 16,
    spread: float = 0.4,
    seed: int = 0,
    **fields: Any,
) -> Any:
    """A BERT with random weights, in eval mode.

    Args:
        vocabulary: how many tokens there are, or a tokenizer.
        kind: its class, which says what it predicts.
        layers: how many layers it has.
        heads: how many heads a layer has.
        width: of its states and of its feed-forward layers.
        spread: standard deviation of its weights; with 0.4 attention is far from uniform.
        seed: of its weights.
        fields: further fields of its configuration.
    """
    sizes = {
        "vocab_size": n_tokens(vocabulary),
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": width,
        "max_position_embeddings": 64,
        "initializer_range": spread,
    }
    torch.manual_seed(seed)
    return kind(BertConfig(**sizes | fields)).eval()


def n_tokens(vocabulary: Any) -> int:
    """Of a number of tokens or a tokenizer."""
    return vocabulary if isinstance(vocabulary, int) else len(vocabulary)


HEADS: dict[str, dict[str, Any]] = {
    "classes": {"num_labels": 3},
    "labels": {
        "id2label": {0: "toxic", 1: "rude", 2: "funny"},
        "problem_type": "multi_label_classification",
    },
    "number": {"num_labels": 1, "problem_type": "regression"},
    "tags": {"kind": BertForTokenClassification, "id2label": {0: "O", 1: "PER"}},
    "span": {"kind": BertForQuestionAnswering},
    "choice": {"kind": BertForMultipleChoice},
    "words": {"kind": BertForMaskedLM},
}
"""What makes a BERT of each kind of prediction."""


def classifier(
    vocabulary: Any = 12, *, read_out: float = 1.0, query: float = 1.0, seed: int = 0, **fields: Any
) -> AttentionClassifierForSequenceClassification:
    """An attention classifier with random weights, in eval mode.

    Args:
        vocabulary: how many tokens there are, or a tokenizer.
        read_out: what the weights of its last layer are multiplied by, so that its output reacts to attention.
        query: what the query of its attention is multiplied by, so that attention is far from uniform.
        seed: of its weights.
        fields: further fields of its configuration.
    """
    sizes = {"vocab_size": n_tokens(vocabulary), "embedding_size": 10, "encoder_size": 8}
    torch.manual_seed(seed)
    config = AttentionClassifierConfig(**sizes | fields)
    model = AttentionClassifierForSequenceClassification(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "classifier.weight":
                parameter *= read_out
            if name.endswith("attention.query.weight"):
                parameter *= query
    return model


def word_pieces(words: Iterable[str], **options: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of BERT's kind, of one text or a pair, that knows these words and pieces ("##ness")."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {token: n for n, token in enumerate([*special, *words])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {f"{name[1:-1].lower()}_token": name for name in special}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names, **options)


def encoded(
    rows: Sequence[Sequence[int]], *, special: Sequence[int] = (2, 3), extra: int = 0
) -> dict[str, torch.Tensor]:
    """Texts of token ids as a tokenizer gives them, padded by 0 to the longest and by ``extra`` more."""
    longest = max(map(len, rows)) + extra
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "special_tokens_mask": torch.isin(ids, torch.tensor([0, *special])).long(),
    }


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def five_texts() -> list[list[int]]:
    """Random token ids between 1 and 2, of six tokens, six, three, a single one and six."""
    torch.manual_seed(1)
    ids = torch.randint(5, 60, (5, 8)).tolist()
    return [[1, *row[1 : n + 1], 2] for row, n in zip(ids, (6, 6, 3, 1, 6), strict=True)]


def seen(
    model: Any,
    ids: torch.Tensor | Sequence[Sequence[int]],
    example_ids: Sequence[int] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Adapter and observation of texts of token ids [texts, keys], where 0 is padding."""
    adapter, ids = wrap(model, **options), torch.as_tensor(ids)
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    numbers = range(len(ids)) if example_ids is None else example_ids
    return adapter, adapter.observe(adapter.prepare(inputs, tuple(numbers)))


def saved(folder: Path, model: Any, tokenizer: Any) -> Path:
    """The folder, in which a model and its tokenizer are written now."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def daily(kinds: Iterable[Any], few: Container[Any]) -> list[Any]:
    """Parameters of a test: kinds of ``few`` are run every day, all others with ``-m slow``.

    A kind that is a tuple belongs to what it names first, such as its encoder.
    """
    slow = [pytest.mark.slow]
    return [
        pytest.param(
            kind, marks=[] if (kind[0] if isinstance(kind, tuple) else kind) in few else slow
        )
        for kind in kinds
    ]


OF_A_CLASSIFIER = ("scale", "correlation", "permutation", "adversarial", "erasure", "input_erasure")
OF_HEADS = ("scale", "correlation", "permutation", "uniform_attention", "head_ablation")
"""What the finished audits of the zoo ask; see the fixture ``audited``."""
ENCODERS = ("bilstm", "bigru", "cnn", "mlp", "none")
FEW_ENCODERS = ENCODERS[:3]
"""Of every kind one: read from both sides, read in sentences, and read at once."""


# --- what is made once --------------------------------------------------------------------------------------------


def once(name: str, make: Callable[[Path], object], *told: object) -> Path:
    """The folder that ``make`` filled, now or in another process or run; do not write into it.

    Args:
        name: of the folder.
        make: fills the folder that it is given, from what is told and the package's code alone.
        told: what the content depends on besides, such as options and other folders of the zoo.
    """
    key = hashlib.sha256(repr((name, told)).encode()).hexdigest()[:16]
    place = _of_this_code() / key
    with FileLock(f"{place}.lock"):
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            make(place / name)
            (place / "made").write_text(_content(place / name))
    _taken.add(place / name)
    return place / name


_taken: set[Path] = set()


def written_into() -> list[Path]:
    """Folders of which ``once`` was asked in this process that are not as they were made; they are deleted."""
    still_there = [f for f in _taken if (f.parent / "made").exists()]  # another process asks, too
    changed = [f for f in still_there if _content(f) != (f.parent / "made").read_text()]
    for folder in changed:
        shutil.rmtree(folder.parent)
    return changed


def _content(folder: Path) -> str:
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return "\n".join(f"{f.relative_to(folder)} {f.stat().st_mtime_ns}" for f in files)


@functools.cache
def _of_this_code() -> Path:
    """The part of the cache that was made by the code as it stands; that of code of yesterday is deleted."""
    code = hashlib.sha256()
    for file in sorted([*PACKAGE.rglob("*.*"), *Path(__file__).parent.glob("*.py")]):
        if file.is_file() and "__pycache__" not in file.parts:
            code.update(str(file.relative_to(PACKAGE.parent)).encode() + file.read_bytes())
    place = CACHE / code.hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    place.touch()
    for other in CACHE.iterdir():
        if other.stat().st_mtime < time.time() - A_DAY:
            shutil.rmtree(other, ignore_errors=True)
    return place
