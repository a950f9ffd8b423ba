"""Trained classifiers whose use of a word is proved.

Source: Zhou et al. 2022, "Do Feature Attribution Methods Correctly Attribute Features?",
        Section 3 (labels are reassigned, a feature is planted).

Every text gets a new label by a fair coin, so that its own words say nothing of it. Two words
are planted at random places: the signal, one of two words, says the label; the void, one of
two others, is drawn by another coin. Of a text without its signal, a model either follows the
signal (it is right), says one class whatever it is (right in half), or the opposite (never):

    accuracy = share that follows + ½ · share that does not care  <=  (1 + share that follows) / 2

So an accuracy above ½ on held-out texts proves that the signal is used, in at least
2 · accuracy − 1 of them. The void cannot raise it. A model that knows one of the two words
alone would be right, too, and in half of the texts there would be nothing to leave out. So a
quarter of the texts that are learned from have no signal, where the label is a coin: there
such a model is wrong in half, and whether a text's class is sure without its signal is counted.

A model that hides is the same one, trained further with a cost on its attention to the signal
(Pruthi et al. 2020, see :mod:`hf_attnprobe.deception`). Its accuracy proves as much.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from calibration.constructs import WHOLE, Drawn, Truth
from hf_attnprobe.adapters import wrap
from hf_attnprobe.attention_model import (
    Batch,
    EditableInputs,
    Observation,
)
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.data.synthetic import rationale_examples
from hf_attnprobe.data.tokenizer import build_tokenizer
from hf_attnprobe.deception import DeceptionOptions
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.rankings import OF_GROUP, OF_SITE, OF_TEXT, is_possible, ranking
from hf_attnprobe.statistics.estimates import share_interval
from hf_attnprobe.texts import whole_attention


if TYPE_CHECKING:
    import datasets

SIGNAL, VOID = ("alpha", "omega"), ("north", "south")
"""The words of each class; the texts have none of them."""
N_TRAIN, N_VALIDATION = 2000, 200
"""Texts; those of the test are as many as the verdict is asked on."""
WITHOUT_SIGNAL = 0.25
"""Share of the texts of training and validation; those of the test have one."""
LENGTHS = (6, 12)
"""Fewest and most words of a text before two are planted."""
MOST_FOR_PRETRAINED = 60
"""Texts."""
SURE = 0.9
"""A class of this probability without the signal does not need it."""
MOST = 0.8
"""Share of texts of which a truth holds at least; our choice."""

Splits = Mapping[str, "datasets.Dataset"]


@dataclass(frozen=True)
class Proof:
    """What is known of one trained model, on its test texts.

    Attributes:
        construct, draw: which model.
        n, right: test texts, and those whose class it says.
        follows, follows_void: shares of texts whose predicted class changes with the
            other word of the signal, and of the void.
        sure_without: share of texts whose class has a probability above ``SURE`` without
            the signal.
        named, named_void: by ranking, the share of texts in which that word is first;
            "random" is chance.
    """

    construct: str
    draw: int
    n: int
    right: int
    follows: float
    follows_void: float
    sure_without: float
    named: dict[str, float]
    named_void: dict[str, float]

    @property
    def is_proved(self) -> bool:
        """Whether the signal is used: accuracy above one half, by its exact 95% interval."""
        low, _ = share_interval(np.array(self.right), np.array(self.n))
        return bool(low > 0.5)

    @property
    def points(self) -> float:
        """In at least this share of texts the signal is needed and has most attention."""
        return self.named["attention"] - self.sure_without

    @property
    def misses(self) -> float:
        """In at least this share of texts the signal is needed and has not."""
        return 1 - self.named["attention"] - self.sure_without


@dataclass(frozen=True)
class Trained:
    """A kind of trained model; as :class:`~calibration.constructs.Construct`.

    Attributes:
        says: what it is.
        architecture: a key of :data:`ARCHITECTURES`.
        hides: whether it is trained further to hide its attention to the signal.
        folder: where the models go; a finished one is loaded.
        start: the pretrained model, of the architecture that has one.

    What is true of its models follows from what each is proved to do, see :func:`truths_of`.
    """

    says: str
    architecture: str
    hides: bool = False
    folder: Path | None = None
    start: str | None = None

    def draw(self, name: str, *, seed: int, n_texts: int) -> Drawn:
        """Trains a model of this kind, with texts that it has not seen.

        Args:
            name: of the kind.
            seed: of texts and weights.
            n_texts: how many of the test.
        """
        assert self.folder is not None  # `calibrate` says where
        splits = planted_splits(seed, n_texts)
        learned = {name: splits[name] for name in ("train", "validation")}
        trained = self.folder / f"{self.architecture}-{seed}"
        ARCHITECTURES[self.architecture](trained, learned, seed, self.start)
        if self.hides:
            trained = hidden(trained, splits, seed)
        model = load_model(trained, task="text-classification").eval()
        test = splits["test"]
        return Drawn(
            wrap(model, level="token"), test["text"], test["label"], load_tokenizer(trained)
        )

    @property
    def needs_start(self) -> bool:
        """Whether a pretrained model has to be named."""
        return self.architecture == "pretrained"

    @property
    def lacks_start(self) -> bool:
        """Whether it was not."""
        return self.needs_start and self.start is None

    def sizes(self, n_texts: Sequence[int]) -> list[int]:
        """Numbers of texts for which the verdict is asked; of a pretrained model not many."""
        return [n for n in n_texts if not self.needs_start or n <= MOST_FOR_PRETRAINED]


# --- texts ---------------------------------------------------------------------------------------


def planted_splits(seed: int, n_test: int) -> "datasets.DatasetDict":
    """Texts with new labels and two planted words, as train, validation and test.

    Fewer test texts are the first of more.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    features = Features(text=Value("string"), label=ClassLabel(names=[*SIGNAL]))
    sizes = {"train": N_TRAIN, "validation": N_VALIDATION, "test": n_test}
    low, high = LENGTHS
    texts = rationale_examples(sum(sizes.values()), seed=seed, min_tokens=low, max_tokens=high)
    splits = {}
    for name, n in sizes.items():
        own = itertools.islice(texts, n)
        rows = [_planted(e["tokens"], seed, e["example_id"], name) for e in own]
        splits[name] = Dataset.from_list(rows, features=features)
    return DatasetDict(splits)


def _planted(words: Sequence[str], seed: int, number: int, split: str) -> dict[str, str | int]:
    """A text with void and, unless it is one of those without, signal; and its label."""
    draws = np.random.default_rng([seed, number])
    label, void = draws.integers(2, size=2).tolist()
    planted = [VOID[void], SIGNAL[label]]
    if split != "test" and draws.random() < WITHOUT_SIGNAL:
        planted.pop()
    text = list(words)
    for word in planted:
        text.insert(int(draws.integers(len(text) + 1)), word)
    return {"text": " ".join(text), "label": int(label)}


# --- models --------------------------------------------------------------------------------------


def _classifier(encoder: str) -> Callable[[Path, Splits, int, str | None], None]:
    """Trains an attention classifier, with Jain & Wallace's settings but for its widths."""

    def train(folder: Path, splits: Splits, seed: int, start: str | None) -> None:
        from hf_attnprobe.training.classifier import train_classifier
        from hf_attnprobe.training.options import TrainingOptions
        from hf_attnprobe.training.procedures import papers_config

        config = papers_config(encoder=encoder, embedding_size=64, encoder_size=32)
        options = TrainingOptions(seed=seed)
        train_classifier(
            config, **splits, output_dir=folder, options=options, resume=True, progress=False
        )

    return train


def _small_decoder(folder: Path, splits: Splits, seed: int, start: str | None) -> None:
    """Trains a decoder of two layers from the beginning, read at the last token."""
    from transformers import LlamaConfig, LlamaModel, set_seed

    begins = folder.with_name(f"{folder.name}-start")
    if not begins.exists():
        tokenizer = build_tokenizer(splits["train"]["text"])
        set_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        LlamaModel(config).save_pretrained(begins)
        tokenizer.save_pretrained(begins)
    _tuned(folder, splits, seed, str(begins), epochs=8, learning_rate=DECODERS_RATE)


def _pretrained(folder: Path, splits: Splits, seed: int, start: str | None) -> None:
    """Fine-tunes a pretrained Transformer, with the usual settings."""
    if start is None:
        raise AttnProbeError(
            "expected a pretrained model to fine-tune, got none; name one with --pretrained"
        )
    tokenizer = load_tokenizer(start)
    for word in (*SIGNAL, *VOID):
        token_ids(tokenizer, word)
    _tuned(folder, splits, seed, start)


def _tuned(folder: Path, splits: Splits, seed: int, start: str, **settings: float) -> None:
    from hf_attnprobe.training.fine_tuning import fine_tune
    from hf_attnprobe.training.options import TrainingOptions

    options = TrainingOptions(seed=seed, **settings)  # type: ignore[arg-type]
    fine_tune(start, **splits, output_dir=folder, options=options, resume=True, progress=False)


DECODERS_RATE = 1e-3
CLASSIFIERS = {"BiLSTM": "bilstm", "CNN": "cnn", "context-free": "none"}
"""The encoders of attention classifiers."""
ARCHITECTURES: dict[str, Callable[[Path, Splits, int, str | None], None]] = {
    **{name: _classifier(encoder) for name, encoder in CLASSIFIERS.items()},
    "decoder": _small_decoder,
    "pretrained": _pretrained,
}


def hidden(trained: Path, splits: Splits, seed: int) -> Path:
    """The folder of a model that was trained further to hide its attention to the signal."""
    from hf_attnprobe.deception.run import SUMMARY, deceive

    folder = trained.with_name(f"{trained.name}-hides")
    rate = DECODERS_RATE if trained.name.startswith("decoder") else None
    options = DeceptionOptions(seed=seed, layers="all", learning_rate=rate)
    if not (folder / SUMMARY).exists():
        deceive(trained, splits, SIGNAL, output_dir=folder, options=options, progress=False)
    return folder


# --- proofs --------------------------------------------------------------------------------------


@torch.no_grad()
def proof_of(name: str, draw: int, drawn: Drawn, batch: Batch, *, seed: int) -> Proof:
    """What a trained model does, and which rankings name the words that were planted.

    Args:
        name, draw: of the kind, and its number.
        drawn, batch: the model, and all its texts.
        seed: of the random ranking.
    """
    observation = drawn.adapter.observe(batch)
    said = observation.probs.argmax(-1)
    ids = batch.inputs["input_ids"]
    follows, named = {}, {}
    for words in (SIGNAL, VOID):
        exchanged, is_named = ids.clone(), torch.zeros_like(ids, dtype=torch.bool)
        for first, second in zip(
            *(token_ids(drawn.tokenizer, word) for word in words), strict=True
        ):
            exchanged = exchanged.where(ids != first, second).where(ids != second, first)
            is_named |= (ids == first) | (ids == second)
        other = replace(batch, inputs=dict(batch.inputs) | {"input_ids": exchanged})
        changed = drawn.adapter.observe(other).probs.argmax(-1) != said
        follows[words] = float(changed.double().mean())
        named[words] = is_named
    without = drawn.adapter.require(EditableInputs).erase_inputs(observation, named[SIGNAL][None])
    kept = without[0].gather(-1, said[:, None])[:, 0]
    rankings = all_rankings(observation, seed)
    shares = [
        {ranked: first_share(ranks, named[words], batch) for ranked, ranks in rankings.items()}
        for words in (SIGNAL, VOID)
    ]
    right = int((said.cpu() == torch.tensor(drawn.labels)).sum())
    sure = float((kept > SURE).double().mean())
    return Proof(name, draw, len(said), right, follows[SIGNAL], follows[VOID], sure, *shares)


def token_ids(tokenizer: PreTrainedTokenizerBase, word: str) -> tuple[int, int]:
    """The token of a word at the beginning of a text, and inside of it.

    Raises:
        AttnProbeError: it is cut into several.
    """
    cut = [tokenizer(form, add_special_tokens=False)["input_ids"] for form in (word, f" {word}")]
    if any(len(tokens) != 1 for tokens in cut):
        raise AttnProbeError(
            f"expected a model whose vocabulary has {', '.join((*SIGNAL, *VOID))} as tokens, this "
            f"one cuts {word}; choose another to fine-tune"
        )
    return cut[0][0], cut[1][0]


def all_rankings(observation: Observation, seed: int) -> dict[str, Tensor]:
    """Every ranking of the units by all of the model's attention, or without it."""
    site, _ = whole_attention(observation.model)
    names = [n for n in (*OF_SITE, *OF_GROUP, *OF_TEXT) if is_possible(observation, site, n)]
    return {name: ranking(observation, site, name, seed=seed) for name in names}


def first_share(ranks: Tensor, marked: Tensor, batch: Batch) -> float:
    """Share of texts in which the marked unit is first; of k that are equal it counts 1/k.

    Args:
        ranks: [batch, keys], higher for more important.
        marked: bool [batch, keys], one of each text.
    """
    ranks = ranks.double().masked_fill(~batch.content_mask, -torch.inf)
    first = ranks == ranks.amax(-1, keepdim=True)
    return float(((first & marked).sum(-1) / first.sum(-1)).mean())


def truths_of(proofs: Sequence[Proof]) -> dict[str, Truth]:
    """What follows for the models of one kind; nothing where one of them is not proved."""
    if not proofs or not all(proof.is_proved for proof in proofs):
        return {}
    truths = {"accuracy": Truth(True, "no model that ignores the signal can be as often right")}
    of_texts = f"in at least {MOST:.0%} of texts"
    if min(proof.points for proof in proofs) >= MOST:
        why = f"{of_texts} the signal is needed and has most attention"
        truths |= {rule: Truth(True, why) for rule in ("importance", "removal")}
    if min(proof.misses for proof in proofs) >= MOST:
        why = f"{of_texts} the signal is needed and another word has most attention"
        truths |= {rule: Truth(False, why) for rule in ("importance", "removal", WHOLE)}
    return truths


def _kinds() -> dict[str, Trained]:
    kinds = {}
    for name in ARCHITECTURES:
        kinds[name] = Trained("trained on texts in which the signal alone says the label", name)
        hides = "the same, trained further to hide its attention to the signal"
        kinds[f"{name}, hides"] = Trained(hides, name, hides=True)
    return kinds


TRAINED = _kinds()
"""The kinds of trained models by name."""
