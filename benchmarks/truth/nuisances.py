"""What faithfulness should not depend on: one thing varied over its whole range, at given p.

In a share p of the texts attention points at what decides, in the others at a decoy. At equal p
the truth is the same, so whatever moves faithfulness is an error of the measure: its
cross-sensitivity to that nuisance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.truth.kinds import Kind, Role, mixture
from benchmarks.truth.model import Formula


SHARES_RIGHT = (0.0, 0.25, 0.5, 0.75, 1.0)
LOGIT = 6.0


@dataclass(frozen=True)
class Nuisance:
    """Something that is varied.

    Attributes:
        says: what it is.
        levels: over its whole range.
        changed: the kind at a level.
        because: why faithfulness moves with it, where it does.
    """

    says: str
    levels: Sequence[Any]
    changed: Callable[[Kind, Any], Kind]
    because: str = ""

    def kind(self, p: float, level: Any) -> Kind:
        """Models whose attention is right in a share p of texts, at a level."""
        base = replace(mixture(p), labels="own", logit=LOGIT)
        return self.changed(base, level)


def _sharp(kind: Kind, share: float) -> Kind:
    decoy = (Role(), Role(share=share, worth=0.0))
    return replace(kind, roles=(Role(share=share),), otherwise=decoy)


def _around(kind: Kind, share: float) -> Kind:
    return replace(kind, logit=LOGIT * (1 - share), around=LOGIT * share)


def _keys(kind: Kind, n: int) -> Kind:
    """Each of n keys is enough."""
    decoy = (Role(n=n), Role(share=0.84 / n, worth=0.0, n=n))
    return replace(kind, roles=(Role(share=0.85 / n, n=n),), otherwise=decoy)


def _locks(kind: Kind, n: int) -> Kind:
    """n keys say something only together."""
    decoy = (Role(n=n, does="lock"), Role(share=0.84 / n, worth=0.0, n=n))
    keys = (Role(share=0.85 / n, n=n, does="lock"),)
    return replace(kind, roles=keys, otherwise=decoy, formula=Formula(n_locks=n))


NUISANCES: Mapping[str, Nuisance] = {
    "other words": Nuisance(
        "what an ordinary word says, for a class by lot, beside a key's 1",
        (0.0, 0.25, 0.5, 0.75, 1.0),
        lambda kind, dose: replace(kind, others=dose),
        because="ordinary words then matter too, but have little attention, so the true answer itself changes",
    ),
    "sharpness": Nuisance(
        "share of the attention on the attended word",
        (0.3, 0.5, 0.7, 0.85, 0.99),
        _sharp,
        because="mass depends on the weight of the deciding word, which is smaller if attention is spread out",
    ),
    "gain": Nuisance(
        "margin of the label's logit, p of .6 to saturation",
        (0.4, 1.5, 3.0, 6.0, 15.0, 40.0),
        lambda kind, logit: replace(kind, logit=logit),
    ),
    "around": Nuisance(
        "share of the logit that goes around attention",
        (0.0, 0.25, 0.5, 0.75, 0.9),
        _around,
        because="if the decision bypasses attention, erasing weights cannot remove nine tenths of the "
        "margin, so erasure, one of four parts, is 0",
    ),
    "length": Nuisance(
        "words of a text",
        (3, 8, 20, 60, 150),
        lambda kind, n: replace(kind, lengths=(n, n)),
        because="in a text of three words, a decoy ranks before two other words, which is further below a random ordering",
    ),
    "classes": Nuisance(
        "number of classes", (2, 3, 5, 10), lambda kind, n: replace(kind, n_classes=n)
    ),
    "balance": Nuisance(
        "share of one of two classes",
        (0.5, 0.65, 0.8, 0.95),
        lambda kind, share: replace(kind, balance=share),
    ),
    "place": Nuisance(
        "where the key is",
        ("any", "third", "last"),
        lambda kind, place: replace(kind, place=place),
    ),
    "label noise": Nuisance(
        "share of the labels drawn by lot",
        (0.0, 0.1, 0.2, 0.4),
        lambda kind, share: replace(kind, noise=share),
    ),
    "keys, each enough": Nuisance(
        "number of keys of one class",
        (1, 2, 3, 4),
        _keys,
        because="as many decoys as deciding words rank first, which is further below a random ordering",
    ),
    "keys together": Nuisance(
        "number of keys that decide only together",
        (1, 2, 3, 4),
        _locks,
        because="as many decoys as deciding words rank first, which is further below a random ordering",
    ),
    "context": Nuisance(
        "how much of a state comes from its neighbours",
        (0.0, 0.25, 0.5, 0.75, 1.0),
        lambda kind, share: replace(kind, formula=Formula(context=share)),
        because="beyond one half, a state contains more about its neighbours than about its own word, "
        "so the true answer itself changes",
    ),
}
"""By name, in the order of the tables."""
