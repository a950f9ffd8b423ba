"""Models of known truth: constructed by formula, and grafted into a tiny BERT.

    logit = gain · Σ_i a_i [(1 − c) v_i + c Σ_j v_j] + around · Σ_j v_j,  a = softmax(s)

Every word has a score s and a value v, a vector of one number per class. Where s is
large, what v says there, whether every state holds the sum of all (c) and whether there
is a path around attention are the knobs. White-box models have tested explanations
before: Hao 2020 (arXiv 2010.08606), Khakzar et al. 2023 (arXiv 2310.06514).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerBase

from hf_attnprobe.adapters import register_adapter, wrap
from hf_attnprobe.attention_model import AttentionModelBase, Batch, Observation, Site
from hf_attnprobe.data.tokenizer import SPECIAL_TOKENS, build_tokenizer
from hf_attnprobe.functional.divergence import small_side


N_FILLERS = 60
PER_CLASS = 4
"""Words of a role and a class."""
VOCABULARY = [a + b + c for a in "bdfgklmnpr" for b in "aeiou" for c in "kmst"]
"""Made-up words: the first are fillers, of those behind them each role has its own."""


@dataclass(frozen=True)
class Role:
    """Words of a text other than fillers.

    Attributes:
        share: of the attention, for each of them in a text of mean length; 0: the score
            is that of a filler.
        worth: how far one moves the margin of its class; against it where negative.
        n: how many are in a text.
        side: the class it speaks of: the text's label, or any, drawn by text. "one" is a
            single word in all texts. Of "left" and "right" neither says anything alone:
            together they say whether their own classes are equal.
    """

    share: float = 0.0
    worth: float = 1.0
    n: int = 1
    side: Literal["label", "any", "one", "left", "right"] = "label"

    @property
    def evidence(self) -> float:
        """What all of them in a text say for its label, if that is certain."""
        return 0.0 if self.side in ("any", "one") else self.n * self.worth


def share_of_fillers(roles: Sequence[Role], lengths: tuple[int, int]) -> float:
    """Attention of each word without a share of its own, in a text of mean length.

    Args:
        lengths: the fewest and the most words of a text.
    """
    sharing = [role for role in roles if role.share]
    n_rest = sum(lengths) / 2 - sum(role.n for role in sharing)
    return (1 - sum(role.share * role.n for role in sharing)) / n_rest


SEVERAL_CUES = (
    Role(share=0.6),
    Role(share=0.2, worth=0.6, side="any"),
    Role(share=0.08, worth=0.4, side="any"),
)
"""The strongest has most attention and decides."""


@dataclass(frozen=True)
class Knobs:
    """Parameters of a kind of constructed model and of its texts.

    Attributes:
        roles: words that are no fillers.
        logit: the margin of a text's label that goes through attention, in a text of
            mean length without noise; without roles the standard deviation of a word's.
        around: the margin that goes around attention.
        shared: c, from 0 (a state knows its word) to 1 (every state knows all).
        score_noise: standard deviation of the words' scores.
        value_noise: standard deviation of the fillers' worth.
        labels: the class of the roles, what the model says, or nothing but chance.
        n_classes: two or more.
        lengths: the fewest and the most words of a text.
    """

    roles: tuple[Role, ...] = (Role(share=0.85),)
    logit: float = 6.0
    around: float = 0.0
    shared: float = 0.0
    score_noise: float = 0.3
    value_noise: float = 0.03
    labels: Literal["key", "own", "chance"] = "key"
    n_classes: int = 2
    lengths: tuple[int, int] = (8, 14)

    @property
    def filler_share(self) -> float:
        """Attention of each word without a share of its own, in a text of mean length."""
        return share_of_fillers(self.roles, self.lengths)

    @property
    def gain(self) -> float:
        """Factor that gives the attention path the margin ``logit``."""
        if not self.roles:
            return self.logit
        attended = sum((r.share or self.filler_share) * r.evidence for r in self.roles)
        return self.logit / ((1 - self.shared) * attended + self.shared * self.total_evidence)

    @property
    def total_evidence(self) -> float:
        """Evidence of all words of a text for its label, with equal weights of 1."""
        return sum(role.evidence for role in self.roles)


class ConstructedModel(nn.Module):
    """Maps token ids to logits by the formula in this module's docstring.

    Args:
        scores: [words].
        values: [words, classes].
        halves: [words, 2]; a left and a right word say together the product of theirs.
        gain, shared, around: numbers, see :class:`Knobs`.
    """

    def __init__(
        self,
        scores: Tensor,
        values: Tensor,
        halves: Tensor,
        *,
        gain: float,
        shared: float,
        around: float,
    ) -> None:
        super().__init__()
        self.scores = nn.Parameter(scores, requires_grad=False)
        self.values = nn.Parameter(values, requires_grad=False)
        self.halves = nn.Parameter(halves, requires_grad=False)
        self.register_buffer("paths", torch.tensor([gain, shared, around]).double())

    def forward(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Logits [batch, classes]; mask bool [batch, keys]."""
        states, rest = self.read(input_ids, mask.double())
        return (attend(self.scores[input_ids], mask)[..., None] * states).sum(-2) + rest

    def read(self, input_ids: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """What attention averages, and what goes around it, both in logits.

        Args:
            present: by what each word's value is multiplied, 0 where there is no word;
                [..., batch, keys].

        Returns:
            [..., batch, keys, classes] and [..., batch, classes].
        """
        gain, shared, around = self.get_buffer("paths")
        values = self.values[input_ids] * present[..., None]
        halves = self.halves[input_ids] * present[..., None]
        together = (halves * halves.sum(-2, keepdim=True).flip(-1)).sum(-1)
        values = values + together[..., None] * _sides(values)
        total = values.sum(-2)
        states = (1 - shared) * values + shared * total[..., None, :]
        return gain * states, around * total


def attend(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the mask, [..., keys]; all 0 where the mask is empty."""
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return weights.nan_to_num(0.0)


def _sides(values: Tensor) -> Tensor:
    """−½ for the first class, ½ for the second."""
    sides = values.new_zeros(values.shape[-1])
    sides[0], sides[1] = -0.5, 0.5
    return sides


class ConstructedAdapter(AttentionModelBase):
    """One layer, one head, one query; everything in closed form, in float64.

    ``LinearReadout`` holds for attention that sums to 1: what goes around it is then
    part of every token's logits.

    Args:
        model: what is read.
    """

    def __init__(self, model: ConstructedModel) -> None:
        self.model: ConstructedModel = model.double().eval()
        n_words, n_classes = model.values.shape
        self.n_embeddings = n_words
        self.label_names = [f"class {k}" for k in range(n_classes)]

    def sites(self) -> list[Site]:
        return [Site()]

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        content = inputs["attention_mask"].bool() & ~inputs["special_tokens_mask"].bool()
        kept = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        return Batch(kept, content, content, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        """Keeps as state the scores, the averaged values and the bypassing values."""
        scores = self.model.scores[batch.inputs["input_ids"]]
        states, rest = self.model.read(batch.inputs["input_ids"], batch.mask.double())
        attention = attend(scores, batch.mask)
        probs = _probs(attention, states, rest)
        maps = (attention[:, None, None],)
        return Observation(self, batch, probs, maps, (scores, states, rest))

    def native_probs(self, batch: Batch) -> Tensor | None:
        return self.model(batch.inputs["input_ids"], batch.mask).softmax(-1)

    def visible(self, observation: Observation, layer: int) -> Tensor:
        return observation.batch.mask[:, None]

    def read_map(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        return values[:, 0]

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        _, states, rest = observation.state
        weights = attention[0][:, :, 0, 0].transpose(0, 1)
        return ((weights @ states).transpose(0, 1) + rest).softmax(-1)

    # Capabilities

    def token_logits(self, observation: Observation) -> Tensor:
        _, states, rest = observation.state
        return states + rest[:, None]

    def readout_bias(self) -> Tensor:
        return self.model.values.new_zeros(len(self.label_names))

    def gradient(self, observation: Observation, target: Tensor) -> Tensor:
        present = observation.batch.mask.double().requires_grad_()
        with torch.enable_grad():
            ids = observation.batch.inputs["input_ids"]
            states, rest = self.model.read(ids, present)
            probs = _probs(observation.attention[0][:, 0, 0], states, rest)
            (slope,) = torch.autograd.grad(small_side(probs, target).sum(), present)
        return slope * observation.batch.mask

    def attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """In closed form: p (z_target − Σ_k p_k z_k) with the states z."""
        _, states, _ = observation.state
        probs = observation.probs
        explained = target[:, None, None].expand(-1, states.shape[1], 1)
        mean = (states * probs[:, None]).sum(-1)
        above_mean = states.gather(-1, explained)[..., 0] - mean
        return [(probs.gather(-1, target[:, None]) * above_mean)[:, None, None]]

    def leave_one_out(self, observation: Observation) -> Tensor:
        n_texts, n_keys = observation.batch.mask.shape
        each = torch.eye(n_keys, dtype=torch.bool)[:, None].expand(-1, n_texts, -1)
        return self.erase_inputs(observation, each).transpose(0, 1)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        """See the protocol; there is no mask token, so words are always deleted."""
        batch, scores = observation.batch, observation.state[0]
        kept = batch.mask & ~(erased & batch.content_mask)
        states, rest = self.model.read(batch.inputs["input_ids"], kept.double())
        return _probs(attend(scores, kept), states, rest)


def _probs(attention: Tensor, states: Tensor, rest: Tensor) -> Tensor:
    """[..., batch, keys] and what it averages -> [..., batch, classes]."""
    return ((attention[..., None] * states).sum(-2) + rest).softmax(-1)


register_adapter(ConstructedModel, ConstructedAdapter)


@cache
def tokenizer() -> PreTrainedTokenizerBase:
    """The tokenizer of all constructed models."""
    return build_tokenizer([" ".join(VOCABULARY)])


@dataclass(frozen=True)
class Drawn:
    """One model of a kind, with its texts.

    Attributes:
        adapter: the model behind the protocol.
        texts: of words joined by spaces.
        labels: the number of each text's class.
        tokenizer: the model's; of constructed ones it has a token per word.
    """

    adapter: AttentionModelBase
    texts: Sequence[str]
    labels: Sequence[int]
    tokenizer: PreTrainedTokenizerBase = field(default_factory=tokenizer)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The texts in the form an audit takes."""
        pairs = zip(self.texts, self.labels, strict=True)
        return [{"text": text, "label": label} for text, label in pairs]


def draw(name: str, knobs: Knobs, *, seed: int, n_texts: int) -> Drawn:
    """A model of a kind, and texts for it.

    Fewer texts are the first of more, and the model is the same.

    Args:
        name: of the kind; two kinds of one seed are drawn apart.
        knobs: what the kind is.
        seed: of words and texts.
        n_texts: how many.
    """
    model = _model(knobs, np.random.default_rng([seed, crc32(name.encode()), 0]))
    adapter = ConstructedAdapter(model)
    draws = np.random.default_rng([seed, crc32(name.encode()), 1])
    pairs = [_text(knobs, draws) for _ in range(n_texts)]
    texts, labels = [text for text, _ in pairs], [label for _, label in pairs]
    if knobs.labels == "own":
        labels = _said(adapter, texts)
    return Drawn(adapter, texts, labels)


def _model(knobs: Knobs, draws: np.random.Generator) -> ConstructedModel:
    n_classes = knobs.n_classes
    n_words = len(VOCABULARY)
    scores = draws.normal(0, knobs.score_noise, n_words)
    values = draws.normal(0, knobs.value_noise / 2**0.5, (n_words, n_classes))
    halves = np.zeros((n_words, 2))
    for place, role in enumerate(knobs.roles):
        for k in range(n_classes):
            words = words_of(place, k, n_classes)
            values[words] = 0
            if role.share:
                scores[words] += np.log(role.share / knobs.filler_share)
            if role.side in ("left", "right"):
                halves[words, int(role.side == "right")] = role.worth * (2 * k - 1)
            else:
                values[words, k] = role.worth
    order = [*SPECIAL_TOKENS, *VOCABULARY]
    ids = tokenizer().convert_tokens_to_ids(order)
    places = np.empty(len(order), dtype=np.int64)
    places[ids] = np.arange(len(order))
    none = len(SPECIAL_TOKENS)

    def by_id(table: np.ndarray) -> Tensor:
        padded = np.concatenate([np.zeros((none, *table.shape[1:])), table])
        return torch.from_numpy(padded[places])

    around = knobs.around / knobs.total_evidence if knobs.around else 0.0
    return ConstructedModel(
        by_id(scores),
        by_id(values),
        by_id(halves),
        gain=knobs.gain,
        shared=knobs.shared,
        around=around,
    )


def words_of(place: int, k: int, n_classes: int) -> slice:
    """Positions in the vocabulary of the words of a role and a class."""
    start = N_FILLERS + (place * n_classes + k) * PER_CLASS
    return slice(start, start + PER_CLASS)


def _text(knobs: Knobs, draws: np.random.Generator) -> tuple[str, int]:
    """A text and its label."""
    n_classes = knobs.n_classes
    label = int(draws.integers(n_classes))
    left = int(draws.integers(2))
    sides = {"label": label, "one": 0, "left": left, "right": left ^ label ^ 1}
    words: list[int] = []
    for place, role in enumerate(knobs.roles):
        side = int(draws.integers(n_classes)) if role.side == "any" else sides[role.side]
        own = words_of(place, side, n_classes)
        last = own.start + 1 if role.side == "one" else own.stop
        words += draws.integers(own.start, last, role.n).tolist()
    low, high = knobs.lengths
    n_fillers = int(draws.integers(low, high + 1)) - len(words)
    words += draws.integers(0, N_FILLERS, max(n_fillers, 1)).tolist()
    if knobs.labels == "chance":
        label = int(draws.integers(n_classes))
    return " ".join(VOCABULARY[word] for word in draws.permutation(words)), label


def _said(adapter: ConstructedAdapter, texts: Sequence[str]) -> list[int]:
    """The classes that the model predicts."""
    inputs = tokenizer()(
        list(texts),
        padding=True,
        return_special_tokens_mask=True,
        return_tensors="pt",
    )
    batch = adapter.prepare(inputs, tuple(range(len(texts))))
    return adapter.observe(batch).probs.argmax(-1).tolist()


# --- The models of known truth: constructs by formula, and grafts in a tiny BERT -----------------

FLAG, CLASS, FIRST, READ = range(4)
"""Directions of the hidden states: is looked at, which class, first token, evidence."""
HIDDEN, N_HEADS, N_LAYERS = 32, 4, 2


@dataclass(frozen=True)
class Graft:
    """Heads of the last block whose weights are written by hand.

    Attributes:
        looks: the head that looks at the keys.
        writes: the head that writes their class; where it is another one, that one
            attends evenly and the first is an ornament.
        sharpness: how far a key's score is above the others'.
    """

    looks: int = 1
    writes: int = 1
    sharpness: float = 5.0


def with_graft(drawn: Drawn, graft: Graft, *, seed: int) -> Drawn:
    """The same texts for a Transformer with the graft; their first role gives its keys."""
    return replace(drawn, adapter=wrap(grafted(graft, seed=seed), level="token"))


@torch.no_grad()
def grafted(graft: Graft, *, seed: int) -> BertForSequenceClassification:
    """A classifier with the graft, in float64; the first role's words are its keys."""
    words = tokenizer()
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=HIDDEN,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=HIDDEN,
        max_position_embeddings=64,
        pad_token_id=words.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).double().eval()
    draws = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "LayerNorm" not in name:
            weight.copy_(0.02 * torch.randn(weight.shape, generator=draws).double())
    table = model.bert.embeddings.word_embeddings.weight
    table.copy_(0.3 * torch.randn(table.shape, generator=draws))
    table[:, [FLAG, CLASS, FIRST, READ]] = 0
    table[words.bos_token_id, FIRST] = 3
    for k, side in enumerate((-1, 1)):
        ids = words.convert_tokens_to_ids(VOCABULARY[words_of(0, k, 2)])
        table[ids, FLAG], table[ids, CLASS] = 3.0, 3.0 * side
    width = HIDDEN // N_HEADS
    attention = model.bert.encoder.layer[-1].attention
    looking, writing = graft.looks * width, graft.writes * width
    attention.self.query.weight[looking, FIRST] = graft.sharpness**0.5
    attention.self.key.weight[looking, FLAG] = graft.sharpness**0.5 / 4
    attention.self.value.weight[writing, CLASS] = 1.0
    attention.output.dense.weight[READ, writing] = 3.0
    model.bert.pooler.dense.weight[READ, READ] = 1.0
    model.classifier.weight[:, READ] = torch.tensor([-3.0, 3.0]).double()
    return model


# --- The kinds of constructed models, and which answer is true of each, and why ------------------
# A truth belongs to a rule: attention may name what matters and still not be needed. It
# follows from the formula of :mod:`calibration.constructs`, never from a
# test, and where the formula does not decide a question there is none.

WHOLE = "whole"
"""In place of a rule: the answer to whether attention explains the predictions."""
MOST_FOR_GRAFTS = 100
"""Texts."""


@dataclass(frozen=True)
class Truth:
    """The right answer, yes or no, and the reason in one sentence."""

    holds: bool
    why: str


@dataclass(frozen=True)
class Construct:
    """A kind of model.

    Attributes:
        says: what it is.
        knobs: how it is made.
        truths: by rule, or ``WHOLE``; a rule that is not there has no known answer.
        graft: the head that is written into a tiny BERT, in place of a model by formula;
            the answers are about all of its attention.
    """

    says: str
    knobs: Knobs
    truths: Mapping[str, Truth] = field(default_factory=dict)
    graft: Graft | None = None

    def draw(self, name: str, *, seed: int, n_texts: int) -> Drawn:
        """Draws a model of this kind, with texts for it."""
        drawn = draw(name, self.knobs, seed=seed, n_texts=n_texts)
        if self.graft is None:
            return drawn
        return with_graft(drawn, self.graft, seed=seed)

    def sizes(self, n_texts: Sequence[int]) -> list[int]:
        """Numbers of texts for which the verdict is asked.

        A Transformer costs ten times as much, so it is not asked on many.
        """
        return [n for n in n_texts if self.graft is None or n <= MOST_FOR_GRAFTS]


def _all(holds: bool, why: str, *rules: str) -> dict[str, Truth]:
    return {rule: Truth(holds, why) for rule in rules}


RIGHT = _all(True, "the label is the class whose key is in the text", "accuracy")
POINTS = RIGHT | {
    "importance": Truth(
        True, "attention is on the words that decide, and only they move the output"
    ),
    "assignment": Truth(True, "the key's weight on another word would leave the output undecided"),
    "erasure": Truth(True, "the words with most attention are the ones that the decision rests on"),
    "removal": Truth(True, "without the words with most attention nothing decides"),
    WHOLE: Truth(True, "attention is the only path, and lies on the words that decide"),
}
MISLEADS = RIGHT | {
    "importance": Truth(
        False, "the words with most attention say nothing, the key has a filler's weight"
    ),
    "erasure": Truth(False, "to erase what has most attention leaves the decision where it is"),
    "removal": Truth(False, "without the words with most attention the key still decides"),
    WHOLE: Truth(False, "attention is on words that are worth nothing"),
}
VOID = RIGHT | {
    "assignment": Truth(False, "any other attention gives the very same output"),
    "uniqueness": Truth(False, "all other attention gives the very same output"),
    WHOLE: Truth(False, "no attention at all would change the output"),
}
HALF = RIGHT | {
    "importance": POINTS["importance"],
    "assignment": Truth(True, "half of the evidence goes by where the weights are"),
    "removal": POINTS["removal"],
}
BY_CHANCE = (
    "scores and values were drawn apart: weights name what matters no better than any as sharp"
)
UNTRAINED = _all(False, BY_CHANCE, "importance", "erasure", "removal") | {
    WHOLE: Truth(False, "attention has learned nothing")
}
DECOY = (Role(), Role(share=0.84, worth=0.0, side="any"))

CONSTRUCTS: dict[str, Construct] = {
    "pointer": Construct(
        ".85 of the attention is on the key, the only path to the output",
        Knobs(),
        POINTS,
    ),
    "saturated pointer": Construct(
        "the same, its logit five times as large",
        Knobs(logit=30.0),
        POINTS,
    ),
    "soft pointer": Construct(
        ".55 of the attention is on the key, the only path",
        Knobs(roles=(Role(share=0.55),), logit=4.0),
        POINTS,
    ),
    "three classes": Construct("a pointer with three classes", Knobs(n_classes=3), POINTS),
    "five classes": Construct("a pointer with five classes", Knobs(n_classes=5), POINTS),
    "two equal keys": Construct(
        "two keys of one class share .85 of the attention; one of them is enough",
        Knobs(roles=(Role(share=0.425, n=2),)),
        POINTS,
    ),
    "two keys together": Construct(
        "two keys share .85 of the attention and decide only together",
        Knobs(roles=(Role(share=0.425, side="left"), Role(share=0.425, side="right"))),
        POINTS,
    ),
    "several cues": Construct(
        "three cues of any class; the strongest has most attention and decides",
        Knobs(roles=SEVERAL_CUES, score_noise=0.1),
        POINTS,
    ),
    "evidence against": Construct(
        ".55 of the attention is on a key, .3 on a word that speaks against it",
        Knobs(
            roles=(Role(share=0.55), Role(share=0.3, worth=-1.0)),
            logit=3.0,
            score_noise=0.1,
        ),
        POINTS,
    ),
    "half around, saturated": Construct(
        "half of the logit of 14 goes around attention, which is on the key",
        Knobs(logit=7.0, around=7.0),
        HALF,
    ),
    "half around": Construct(
        "half of the logit of 2 goes around attention, which is on the key",
        Knobs(logit=1.0, around=1.0),
        HALF,
    ),
    "decoy": Construct(
        ".84 of the attention is on a word worth nothing, the key's rest decides surely",
        Knobs(roles=DECOY, logit=2.5),
        MISLEADS,
    ),
    "decoy, unsure": Construct(
        "the same, the output unsure",
        Knobs(roles=DECOY, logit=0.65),
        MISLEADS,
    ),
    "long decoy": Construct(
        "six words worth nothing share .84 of the attention, the key's rest decides",
        Knobs(roles=(Role(), Role(share=0.14, worth=0.0, n=6, side="any")), logit=2.5),
        MISLEADS,
    ),
    "sink": Construct(
        "one word worth nothing, in every text, has .84 of the attention; unsure output",
        Knobs(roles=(Role(), Role(share=0.84, worth=0.0, side="one")), logit=0.65),
        # Without the sink its weight goes to all others: to leave it out does matter.
        {rule: MISLEADS[rule] for rule in ("accuracy", "erasure", "removal", WHOLE)},
    ),
    "ornament": Construct(
        "attention is on the key, but every state holds the same sum",
        Knobs(shared=1.0),
        VOID,
    ),
    "path of weight 0": Construct(
        "attention is on the key, but the output is read from the words around it",
        Knobs(logit=0.0, around=6.0),
        VOID,
    ),
    "even": Construct(
        "attention is even but for noise, the key's value decides",
        Knobs(roles=(Role(),), logit=3.0, score_noise=0.1),
        RIGHT
        | _all(
            False,
            "the key has a filler's weight, so that noise ranks the words",
            "importance",
            "erasure",
            "removal",
        )
        | _all(False, "the weights are nearly equal", "assignment")
        | _all(False, "attention says nothing of what the values decide", WHOLE),
    ),
    "untrained": Construct(
        "scores and values of all words drawn apart, sharp; the labels are chance",
        Knobs(roles=(), logit=4.0, score_noise=2.5, value_noise=1.0, labels="chance"),
        UNTRAINED | _all(False, "the labels have nothing to do with the text", "accuracy"),
    ),
    "untrained, own labels": Construct(
        "the same, the labels are what the model says",
        Knobs(roles=(), logit=4.0, score_noise=2.5, value_noise=1.0, labels="own"),
        UNTRAINED | _all(True, "the labels are what the model says", "accuracy"),
    ),
    "BERT, one head points": Construct(
        "a tiny BERT in which one head looks at the key and writes what it says",
        Knobs(),
        POINTS,
        graft=Graft(),
    ),
    "BERT, that head an ornament": Construct(
        "one head looks at the key, another one that attends evenly writes what it says",
        Knobs(),
        RIGHT
        | _all(
            False,
            "the head that looks writes nothing, the one that writes is even",
            "assignment",
            WHOLE,
        ),
        graft=Graft(writes=2),
    ),
}
"""By name, in the order of the tables."""
