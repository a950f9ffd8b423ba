"""Kinds of models whose truth follows from their formula: does attention explain what they say?

The truth is yes, no, or in part: where something is said for either answer, or attention points
at what decides in a share p of the texts. It never comes from a test of the package. Every text
is drawn anew; fewer texts are the first of more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks.truth.model import ConstructedModel, Formula, attend
from hf_attnprobe.protocol import Batch


@dataclass(frozen=True)
class Role:
    """Words of a text other than the ordinary ones.

    Attributes:
        share: of the attention, for each of them; 0: as an ordinary word.
        worth: how much it says for its class; against it where negative.
        around: the same around attention; None: as much as through it.
        n: how many are in a text, or between which numbers; they share what n times ``share`` is.
        side: its class is the text's label, another one, or any.
        does: what the formula does with it besides, see :mod:`benchmarks.truth.model`.
    """

    share: float = 0.0
    worth: float = 1.0
    around: float | None = None
    n: int | tuple[int, int] = 1
    side: Literal["label", "other", "any"] = "label"
    does: Literal["nothing", "mark", "turn", "lock", "summary"] = "nothing"


Truth = Literal["yes", "no", "partly"]
KEY = Role(share=0.85)
DECOY = (Role(), Role(share=0.84, worth=0.0))
"""The key is an ordinary word to attention, which lies on one that says nothing."""


@dataclass(frozen=True)
class Kind:
    """A kind of constructed models, and of texts for them.

    Attributes:
        says: what it is.
        truth: the answer to whether attention explains the predictions.
        why: in one sentence.
        roles: the words that are not ordinary.
        otherwise, right: those of the other texts; ``roles`` are in the share ``right``.
        looked: share of the attention for the word that the formula looks at.
        logit, around: the margin of a text's label that its words give through attention, and
            around it, where nothing disturbs them.
        others: how much an ordinary word says, for a class by lot.
        graded: ordinary words say more and less, and draw attention as much.
        score_noise, value_noise: standard deviations of every word's score and worth.
        labels: the class of the roles, what the model says, or chance.
        noise: share of the labels that are drawn by lot.
        balance: share of the texts whose label is not the first class.
        place: where the first role is.
        by_default: texts without ``roles`` are of the first class.
        sparse: words without a share have a weight of exactly 0.
        logit_otherwise: ``logit`` in the texts whose words are ``otherwise``; None: the same.
        logit_odd: ``logit`` in every second text; None: the same.
    """

    says: str
    truth: Truth
    why: str
    roles: tuple[Role, ...] = (KEY,)
    otherwise: tuple[Role, ...] = ()
    right: float = 1.0
    formula: Formula = Formula()
    looked: float = 0.85
    logit: float = 6.0
    around: float = 0.0
    others: float = 0.0
    graded: bool = False
    score_noise: float = 0.3
    value_noise: float = 0.03
    labels: Literal["key", "own", "chance"] = "key"
    noise: float = 0.0
    balance: float | None = None
    place: Literal["any", "first", "third", "last", "inside"] = "any"
    by_default: bool = False
    sparse: bool = False
    logit_otherwise: float | None = None
    logit_odd: float | None = None
    n_classes: int = 2
    lengths: tuple[int, int] = (8, 14)

    @property
    def max_texts(self) -> int:
        """Number of texts that are enough; with many classes, tables of values become large."""
        return 60 if self.n_classes >= 100 else 10**9

    def draw(self, name: str, *, seed: int, n_texts: int) -> tuple[ConstructedModel, Batch]:
        """A model of this kind, and all its texts as a batch.

        Args:
            name: of the kind; two kinds of one seed are drawn apart.
        """
        key = crc32(name.encode())
        draws = np.random.default_rng([seed, key])
        drawn = [_text(self, number, draws) for number in range(n_texts)]
        columns = _padded([text for text, _ in drawn])
        labels = torch.tensor([label for _, label in drawn])
        formula = replace(self.formula, default=self.logit / 2 if self.by_default else 0.0)
        model = ConstructedModel(formula, self.n_classes)
        batch = model.prepare(_weighted(self, columns), tuple(range(n_texts)), labels)
        if self.labels == "own":
            labels = model.observe(batch).probs.argmax(-1)
        if self.labels == "chance":
            labels = torch.from_numpy(draws.integers(self.n_classes, size=n_texts))
        lots = np.random.default_rng([seed, key, 1])
        is_noisy = torch.from_numpy(lots.random(n_texts) < self.noise)
        noise = torch.from_numpy(lots.integers(self.n_classes, size=n_texts))
        return model, replace(batch, labels=labels.where(~is_noisy, noise))


# --- a text: a table with a row per word -----------------------------------------------------

Word = dict[str, float | np.ndarray]


def _text(kind: Kind, number: int, draws: np.random.Generator) -> tuple[Mapping[str, Tensor], int]:
    """The columns of a text, and its label."""
    is_right = _is_right(number, kind.right)
    roles = kind.roles if is_right else kind.otherwise
    label = _label(kind, is_right, draws)
    words = [word for role in roles for word in _words(role, kind, label, draws)]
    length = int(draws.integers(kind.lengths[0], kind.lengths[1] + 1))
    n_others = max(length - len(words), 1)
    words += [_ordinary(kind, draws) for _ in range(n_others)]
    words = [words[k] for k in _order(kind, len(words), draws)]
    columns = {name: np.array([word[name] for word in words]) for name in words[0]}
    logit = kind.logit if is_right or kind.logit_otherwise is None else kind.logit_otherwise
    logit = kind.logit_odd if kind.logit_odd is not None and number % 2 else logit
    columns["logit"] = np.full(len(words), logit)
    return {name: torch.from_numpy(column) for name, column in columns.items()}, label


def _is_right(number: int, share: float) -> bool:
    """Whether a text is one of the share; of any number of texts as many as can be."""
    before, after = (math.floor(k * share + 1e-9) for k in (number, number + 1))
    return after > before


def _label(kind: Kind, is_right: bool, draws: np.random.Generator) -> int:
    if kind.by_default:
        return int(is_right)
    if kind.balance is None:
        return int(draws.integers(kind.n_classes))
    return int(draws.random() < kind.balance) * int(draws.integers(1, kind.n_classes))


def _words(role: Role, kind: Kind, label: int, draws: np.random.Generator) -> list[Word]:
    """The words of a role."""
    low, high = (role.n, role.n) if isinstance(role.n, int) else role.n
    n = int(draws.integers(low, high + 1))
    others = {"label": 0, "other": draws.integers(1, kind.n_classes), "any": draws.integers(100)}
    said = np.eye(kind.n_classes)[(label + int(others[role.side])) % kind.n_classes]
    around = role.worth if role.around is None else role.around
    own = {"share": role.share * low / n, "said": role.worth * said, "rest": around * said}
    if role.does != "nothing":
        own[role.does] = 1.0
    return [_void(kind, draws) | own for _ in range(n)]


def _ordinary(kind: Kind, draws: np.random.Generator) -> Word:
    """A word that says ``others`` for a class by lot, and noise."""
    size = draws.exponential() if kind.graded else 1.0
    said = kind.others * size * np.eye(kind.n_classes)[draws.integers(kind.n_classes)]
    noise = draws.normal(0, kind.value_noise / 2**0.5, kind.n_classes)
    return _void(kind, draws) | {"by_lot": said + noise, "size": size}


def _void(kind: Kind, draws: np.random.Generator) -> Word:
    """A word that says nothing."""
    flags = dict.fromkeys(("share", "mark", "turn", "lock", "summary"), 0.0)
    sayings = dict.fromkeys(("said", "rest", "by_lot"), np.zeros(kind.n_classes))
    return {"noise": draws.normal(0, kind.score_noise), "size": 1.0, **flags, **sayings}


def _order(kind: Kind, n: int, draws: np.random.Generator) -> Sequence[int]:
    """The words in their places; the first role's first word is number 0."""
    order = [int(k) for k in draws.permutation(n) if k]
    places = {"any": n, "inside": n - 1, "first": 1}
    fixed = {"third": 2, "last": n - 1}
    place = fixed[kind.place] if kind.place in fixed else draws.integers(places[kind.place])
    order.insert(int(place), 0)
    return order


def _padded(texts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Texts as one table, [texts, words, ...], with the mask of its words."""
    columns = {
        name: pad_sequence([text[name] for text in texts], batch_first=True) for name in texts[0]
    }
    return columns | {"mask": columns["size"] > 0}


def _weighted(kind: Kind, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Scores that give each word its share, values that give each text its margins."""
    share, mask = columns["share"], columns["mask"]
    sizes = columns["size"].masked_fill(~mask | (share > 0), 0)
    free = sizes.sum(-1, keepdim=True)
    left = 1 - share.sum(-1, keepdim=True)
    score = torch.where(share > 0, share * free / left, sizes).clamp_min(1e-9).log()
    if kind.sparse:
        score = share.log()
    is_looking = kind.formula.looks != "nowhere"
    lead = kind.looked / (1 - kind.looked) * (free - 1)
    pull = lead.clamp_min(1e-9).log() if is_looking else torch.zeros_like(free)
    words = {name: columns[name] for name in ("mark", "turn", "lock", "summary", "rest")}
    words |= {"mask": mask, "score": score + columns["noise"], "pull": pull.expand_as(score)}
    words["value"] = columns["said"]
    through, around = _margins(kind, words)
    logit = columns["logit"][:, :1, None]
    words["value"] = _scaled(logit, through) * (columns["said"] + columns["by_lot"])
    words["rest"] = _scaled(kind.around, around) * columns["rest"]
    return words


def _margins(kind: Kind, words: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What the words of roles say, through attention and around it: margin of what they say most.

    Shape: each [texts, 1, 1].
    """
    mask = words["mask"]
    states, rest = kind.formula.read(words, mask.double())
    attention = attend(kind.formula.scores(words, mask), mask)
    through = (attention[..., None] * states).sum(1)
    sides = through.topk(2).values, rest.topk(2).values
    return tuple((side[:, :1] - side[:, 1:])[..., None] for side in sides)


def _scaled(wanted: float | Tensor, margin: Tensor) -> Tensor:
    """The factor that makes a margin the wanted one; where none is said the wanted one itself."""
    wanted = torch.as_tensor(wanted, dtype=margin.dtype)
    return torch.where(margin > 0, wanted / margin, wanted)


# --- the kinds -------------------------------------------------------------------------------

PATH = "attention is the only path, and lies on the words that decide"
VOID = "attention is on words that say nothing, and another decides"
IDLE = "any other attention would give the very same output"
BOTH_HALF = "attention decides by where it lies, and another word than the attended one as well"


def _yes(says: str, roles: tuple[Role, ...] = (KEY,), why: str = PATH, **knobs) -> Kind:
    return Kind(says, "yes", why, roles, **knobs)


def _no(says: str, roles: tuple[Role, ...] = (KEY,), why: str = VOID, **knobs) -> Kind:
    return Kind(says, "no", why, roles, **knobs)


def _partly(says: str, roles: tuple[Role, ...] = (KEY,), why: str = BOTH_HALF, **knobs) -> Kind:
    return Kind(says, "partly", why, roles, **knobs)


def mixture(p: float) -> Kind:
    """Attention points at what decides in a share p of the texts, at a decoy in the others."""
    truth: Truth = "yes" if p >= 0.75 else "partly" if p >= 0.5 else "no"
    says = f".85 of the attention is on the key in {p:.0%} of texts, on a decoy in the others"
    return Kind(says, truth, f"right in {p:.0%} of texts", (KEY,), DECOY, right=p)


MIXTURES = {f"right in {10 * p}%": mixture(p / 10) for p in range(11)}
KINDS: dict[str, Kind] = {
    "pointer": _yes(".85 of the attention is on the key"),
    "hard pointer": _yes(".99 of the attention is on the key", (Role(share=0.99),)),
    "saturated pointer": _yes("a pointer with five times the logit", logit=30.0),
    "soft pointer": _yes(".55 of the attention is on the key", (Role(share=0.55),), logit=4.0),
    "five classes": _yes("a pointer with five classes", n_classes=5),
    "two equal keys": _yes("two keys share .85; one of them is enough", (Role(share=0.425, n=2),)),
    "two keys together": _yes(
        "two keys share .85 and decide only together",
        (Role(share=0.425, n=2, does="lock"),),
        formula=Formula(n_locks=2),
    ),
    "several cues": _yes(
        "three cues for random classes; the strongest one has most attention and decides",
        (
            Role(share=0.6),
            Role(share=0.2, worth=0.6, side="any"),
            Role(share=0.08, worth=0.4, side="any"),
        ),
        score_noise=0.1,
    ),
    "evidence against": _yes(
        ".55 of the attention is on a key, .3 on a word that points to another class",
        (Role(share=0.55), Role(share=0.3, worth=-1.0)),
        logit=3.0,
        score_noise=0.1,
    ),
    "half around": _yes(
        "attention is on the key, but half of the logit of 2 bypasses attention",
        why="attention is on the one word that decides, by either path",
        logit=1.0,
        around=1.0,
    ),
    "retrieval": _yes(
        "every word points to a class; attention is on the word that has the label's class",
        others=1.0,
    ),
    "retrieval, 5 classes": _yes("the same with five classes", others=1.0, n_classes=5),
    "retrieval, hard": _yes("the same with .97 on the word", (Role(share=0.97),), others=1.0),
    "last word": _yes(
        "every word points to a class; .85 of the attention is always on the last word",
        (Role(),),
        others=1.0,
        place="last",
        formula=Formula(looks="last"),
    ),
    "repeated key": _yes("the key occurs one to six times", (Role(share=0.85, n=(1, 6)),)),
    "negation": _yes(
        "in half of the texts a 'not' with .35 of the attention reverses the class of the key",
        (Role(share=0.5), Role(share=0.35, worth=0.0, does="turn")),
        otherwise=(KEY,),
        right=0.5,
        labels="own",
    ),
    "graded": _yes(
        "every word points to a random class with random strength, and has attention in proportion to it",
        (),
        why="the only path: the more attention a word has, the more it gives the output",
        labels="own",
        others=1.0,
        graded=True,
    ),
    "sharp by lot": _yes(
        "scores and values of all words are drawn independently, and attention is sharp",
        (),
        why="the only path, and as good as all weight is on one word",
        labels="own",
        others=1.0,
        score_noise=4.0,
    ),
    "by default, 50%": _yes(
        "the second class if there is a key, and otherwise the first class",
        why="attention is on the key where there is one, and on nothing where nothing decides",
        right=0.5,
        by_default=True,
    ),
    "by default, 5%": _yes(
        "the same, with keys in 5% of the texts",
        why="attention is on the key where there is one, and on nothing where nothing decides",
        right=0.05,
        by_default=True,
    ),
    "decoy": _no(".84 of the attention is on an uninformative word, but the key decides", DECOY),
    "decoy, unsure": _no("the same, with an uncertain output", DECOY, logit=0.65),
    "long decoy": _no(
        "six uninformative words share .84 of the attention, but the key decides",
        (Role(), Role(share=0.14, worth=0.0, n=6)),
    ),
    "sink": _no(
        "the first word is uninformative and has .84 of the attention",
        (Role(share=0.84, worth=0.0), Role()),
        logit=0.65,
        place="first",
    ),
    "even": _no(
        "attention is uniform except for noise, and the value of the key decides",
        (Role(),),
        why="the key has an ordinary word's weight: noise ranks the words",
        score_noise=0.1,
    ),
    "uniform": _no(
        "attention is exactly uniform",
        (Role(),),
        why="all words have the same weight",
        score_noise=0.0,
    ),
    "wrong key": _no(
        ".85 of the attention is on a key of the wrong class, but another key that bypasses attention decides",
        (Role(share=0.85, side="other", around=0.0), Role(worth=0.0, around=1.0)),
        why="attention is on the word that speaks against what is said",
        logit=3.0,
        around=6.0,
    ),
    "ornament": _no(
        "attention is on the key, but every state contains the same sum",
        why=IDLE,
        formula=Formula(shared=1.0),
    ),
    "path of weight 0": _no(
        "attention is on the key, but the output is read from the words around it",
        why=IDLE,
        logit=0.0,
        around=6.0,
    ),
    "constant values": _no(
        "the same, and every state points equally to the first class",
        why=IDLE,
        logit=0.0,
        around=6.0,
        formula=Formula(default=1.0),
    ),
    "behind a mark": _partly(
        "every word points to a class; attention is on the word after a mark, which decides",
        (Role(worth=0.0, does="mark"),),
        why="the mark decides what is read, and has no attention",
        labels="own",
        others=1.0,
        place="inside",
        formula=Formula(looks="behind a mark"),
    ),
    "mark itself lit": _partly(
        "the same, but attention is on the mark, whose state contains the next word",
        (Role(share=0.85, worth=0.0),),
        why="the next word is what is said, and has no attention",
        labels="own",
        others=1.0,
        place="inside",
        formula=Formula(reads=1),
    ),
    "neighbour's state": _partly(
        "attention is on the word after the key, whose state contains the key",
        (Role(does="mark"),),
        why="the state is the right one, the word is not",
        place="inside",
        formula=Formula(looks="behind a mark", reads=-1),
    ),
    "backup key": _partly(
        "two keys; without the first one, all attention moves to the second one",
        (Role(n=2, does="mark"),),
        why="the attended key decides, and without it the other does",
        formula=Formula(looks="first mark"),
    ),
    "one of ten": _partly(
        "ten of 60 to 90 words share .9 of the attention, and one of them is the key",
        (Role(share=0.09), Role(share=0.09, worth=0.0, n=9)),
        why="the key is among the first ten, and nine tenths of the map lie on other words",
        lengths=(60, 90),
    ),
    "sink and key": _partly(
        "an uninformative word has .6 of the attention, and the key .3",
        (Role(share=0.6, worth=0.0), Role(share=0.3)),
        why="a third of the map is on the key, which alone decides",
    ),
}
"""By name, in the order of the tables; beside them :data:`MIXTURES` and those that follow."""


# --- kinds that mislead deletion ------------------------------------------------------------------

READ_THROUGH = "the attended word says nothing, its state only collects what the key says"
VOTE = "every vote has the same weight, and no other word matters"


def _summary(n: int, *, key: float = 0.0) -> tuple[Role, ...]:
    """Words that collect what all words say, and a key; the first collecting word comes last."""
    return (Role(share=(0.85 - key) / n, worth=0.0, n=n, does="summary"), Role(share=key))


def _votes(n: int) -> tuple[Role, ...]:
    """An odd number of words that vote for a class by lot, with equal weights."""
    return tuple(Role(share=0.85 / n, side="any") for _ in range(n))


def _copies(n: int) -> tuple[Role, ...]:
    return (Role(n=n, does="mark"),)


def _halves(says: str, truth: Truth, right: float, *, wrong: float, odd: float | None, **knobs):
    why = f"right in {right:.0%} of texts, whichever are sure"
    return Kind(
        says, truth, why, (KEY,), DECOY, right=right, logit_otherwise=wrong, logit_odd=odd, **knobs
    )


MISLEADING: dict[str, Kind] = {
    **{
        f"{name} summary stop{'s' if n > 1 else ''}": _no(
            f"{n} full stop(s) with .85 of the attention collect what the words say, and the key decides",
            _summary(n),
            why=READ_THROUGH,
            place="last",
        )
        for n, name in ((1, "one"), (2, "two"), (3, "three"), (5, "five"))
    },
    "summary stop and key": _partly(
        "a full stop with .6 of the attention collects what the words say, the key has .25",
        _summary(1, key=0.25),
        why="part of the map is on the key, and most of it on a word that says nothing",
        place="last",
    ),
    **{
        f"pointer, {n} classes": _yes("a pointer with many classes", n_classes=n, lengths=(9, 14))
        for n in (3, 10, 100, 400, 1000)
    },
    **{
        f"decoy, {n} classes": _no("a decoy with many classes", DECOY, n_classes=n, lengths=(9, 14))
        for n in (10, 100, 400)
    },
    "idle, 100 classes": _no(
        "an ornament with many classes",
        why=IDLE,
        formula=Formula(shared=1.0),
        n_classes=100,
        lengths=(9, 14),
    ),
    **{
        f"{name} votes": _yes(
            f"{n} words vote for a class by lot", _votes(n), why=VOTE, labels="own"
        )
        for n, name in ((3, "three"), (5, "five"), (7, "seven"))
    },
    "five votes, one lit": _partly(
        "five words vote for a class by lot, and one of them has .6 of the attention",
        (Role(share=0.6, side="any"), *(Role(share=0.07, side="any", worth=8.0),) * 4),
        why="the lit vote is one of five that count the same",
        labels="own",
    ),
    **{
        f"{name} copies, one lit": _partly(
            f"{n} copies of the key; attention moves to the next one if the first one is deleted",
            _copies(n),
            why="the attended copy decides, and without it another copy does",
            formula=Formula(looks="first mark"),
        )
        for n, name in ((3, "three"), (4, "four"), (6, "six"))
    },
    "parity of place": _yes(
        "the class of the key is turned at every second place",
        why="only the key matters, but deleting any word before it turns it",
        labels="own",
        formula=Formula(turns=2),
    ),
    "parity from the end": _yes(
        "the class of the key is turned at every second place from the end",
        why="only the key matters, but deleting any word behind it turns it",
        labels="own",
        formula=Formula(turns=-2),
    ),
    "place modulo three": _yes(
        "the class of the key is shifted by its place, with three classes",
        why="only the key matters, but deleting any word before it turns it",
        labels="own",
        formula=Formula(turns=3),
        n_classes=3,
    ),
    "parity, decoy": _no(
        "the same as parity of place, but attention is on a decoy",
        DECOY,
        labels="own",
        formula=Formula(turns=2),
    ),
    "exact zeros": _yes(
        "all attention is on the key, and all other weights are 0", (Role(share=1.0),), sparse=True
    ),
    "exact zeros, two keys": _yes(
        "two keys share all attention, and decide together",
        (Role(share=0.5, n=2, does="lock"),),
        formula=Formula(n_locks=2),
        sparse=True,
    ),
    "exact zeros, three cues": _yes(
        "three cues for random classes have all attention",
        (
            Role(share=0.6),
            Role(share=0.25, worth=0.6, side="any"),
            Role(share=0.15, worth=0.4, side="any"),
        ),
        sparse=True,
    ),
    "exact zeros, decoy": _no(
        "two words share all attention, and the key's state is in the smaller part",
        (Role(share=0.95, worth=0.0), Role(share=0.05)),
        sparse=True,
    ),
    "exact zeros, idle": _no(
        "all attention is on the key, but every state contains the same sum",
        (Role(share=1.0),),
        why=IDLE,
        formula=Formula(shared=1.0),
        sparse=True,
    ),
    **{
        f"{share:.0%} through attention": _yes(
            f"attention is on the key, and {share:.0%} of the logit passes through it",
            why="attention is on the one word that decides, by either path",
            logit=6.0 * share,
            around=6.0 * (1 - share),
        )
        for share in (0.3, 0.4, 0.6, 0.8)
    },
    **{
        f"{share:.0%} through attention": _no(
            f"attention is on the key, and {share:.0%} of the logit passes through it",
            why=IDLE,
            logit=6.0 * share,
            around=6.0 * (1 - share),
        )
        for share in (0.02, 0.05)
    },
    "sure where right": _halves(
        "right in half of the texts, with a margin of 20 nats; .2 nats in the others",
        "partly",
        0.5,
        wrong=0.2,
        odd=None,
        logit=20.0,
    ),
    "sure where wrong": _halves(
        "right in half of the texts, with a margin of .2 nats; 20 nats in the others",
        "partly",
        0.5,
        wrong=20.0,
        odd=None,
        logit=0.2,
    ),
    "all right, half sure": _halves(
        "right in all texts, every second one with 20 nats and the others with .2",
        "yes",
        1.0,
        wrong=20.0,
        odd=0.2,
        logit=20.0,
    ),
    "all wrong, half sure": _halves(
        "on a decoy in all texts, every second one with 20 nats and the others with .2",
        "no",
        0.0,
        wrong=20.0,
        odd=0.2,
        logit=20.0,
    ),
    "two locks, one lit": _partly(
        "two words decide only together; one has .85 of the attention and states the class",
        (Role(share=0.85, does="lock"), Role(worth=0.0, does="lock")),
        why="half of what decides has the weight of an ordinary word",
        formula=Formula(n_locks=2),
    ),
    "three locks, one lit": _partly(
        "three words decide only together; one has .85 of the attention and states the class",
        (Role(share=0.85, does="lock"), Role(worth=0.0, n=2, does="lock")),
        why="two thirds of what decides have the weight of an ordinary word",
        formula=Formula(n_locks=3),
    ),
    "turned by a dark word": _partly(
        "in half of the texts a 'not' without attention reverses the class of the lit key",
        (Role(share=0.85), Role(worth=0.0, does="turn")),
        why="in half of the texts one of two deciding words has no attention",
        otherwise=(KEY,),
        right=0.5,
        labels="own",
    ),
}
"""Kinds whose truth is known and for which deleting words misleads, or a number of classes does."""
CONSTRUCTED = KINDS | MISLEADING
"""All kinds with a true answer, by name."""
EVERY_KIND = CONSTRUCTED | MIXTURES
"""All kinds with a true answer and the mixtures, by name."""
