"""The models of known truth: constructs by formula, and grafts in a tiny BERT."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from transformers import BertConfig, BertForSequenceClassification

from hf_attnprobe.adapters import wrap
from hf_attnprobe.calibration.constructed import (
    VOCABULARY,
    Drawn,
    Knobs,
    Role,
    draw,
    tokenizer,
    words_of,
)


FLAG, CLASS, FIRST, READ = range(4)
"""Directions of the hidden states: is looked at, which class, first token, evidence."""
HIDDEN, N_HEADS, N_LAYERS = 32, 4, 2


@dataclass(frozen=True)
class Graft:
    """Which heads of the last block are written by hand.

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
    """The same texts, for a Transformer with the graft; their first role is its keys."""
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
# follows from the formula of :mod:`hf_attnprobe.calibration.constructed`, never from a
# test, and where the formula does not decide a question there is none.

WHOLE = "whole"
"""In place of a rule: the answer to whether attention explains the predictions."""
MOST_FOR_GRAFTS = 100
"""Texts."""


@dataclass(frozen=True)
class Truth:
    """Whether yes or no is the right answer, and the reason in one sentence."""

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
        """A model of this kind, and texts for it."""
        drawn = draw(name, self.knobs, seed=seed, n_texts=n_texts)
        if self.graft is None:
            return drawn
        return with_graft(drawn, self.graft, seed=seed)

    def sizes(self, n_texts: Sequence[int]) -> list[int]:
        """The numbers of texts that the verdict is asked for on.

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
    "erasure": Truth(True, "the words of most attention are the ones that the decision rests on"),
    "removal": Truth(True, "without the words of most attention nothing decides"),
    WHOLE: Truth(True, "attention is the only path, and lies on the words that decide"),
}
MISLEADS = RIGHT | {
    "importance": Truth(
        False, "the words of most attention say nothing, the key has a filler's weight"
    ),
    "erasure": Truth(False, "to erase what has most attention leaves the decision where it is"),
    "removal": Truth(False, "without the words of most attention the key still decides"),
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
        Knobs(
            roles=(
                Role(share=0.6),
                Role(share=0.2, worth=0.6, side="any"),
                Role(share=0.08, worth=0.4, side="any"),
            ),
            score_noise=0.1,
        ),
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
