"""The options of an audit, beside those of its tests."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import LARGEST_SEED, Options, option
from hf_attnprobe.faithfulness.options import ENTRY_POINT_GROUP, OPTIONS_BY_TEST


WeightChange = Literal["bfloat16", "float16", "int8", "int4", "pruned", "randomised", "untrained"]


@dataclass(frozen=True)
class AuditOptions(Options):
    """What an audit tests, and how it runs."""

    layers: Sequence[int] | None = option(None, "layers to test (default: all)", metavar="LAYER")
    heads: Sequence[int | Literal["all"]] | None = option(
        None,
        "heads to test in each layer (default: all; of a language model none by itself, but all "
        "attention as a whole)",
        metavar="HEAD",
    )
    groups: bool = option(True, "test layers and all attention as a whole too", daily=False)
    single_heads: bool = option(
        True,
        "test every head by itself",
    )
    head_sets: Sequence[str] | None = option(
        None,
        "sets of heads to test as a whole, each written as layer.head joined by +, such as "
        "5.0+5.3; shared: all sets of a language model's heads that share keys",
        metavar="SET",
        daily=False,
    )
    query: int | None = option(
        None,
        "test only this query position of each head (default: all of them)",
        daily=False,
    )
    target: str | int | None = option(
        None,
        "class, by name or number, whose decision is explained by the tests that can "
        "(default: the predicted one)",
        metavar="CLASS",
    )
    screen: int | None = option(
        None,
        "test only this many heads: those with the largest first-order effect on the "
        "other half of the texts",
        at_least=1,
        metavar="N",
    )
    time: str | None = option(
        None,
        "stop after this time, such as 90s, 10m or 2h, and report what is known: the answer "
        "first, then single heads, the most promising before others; continue any time",
        metavar="TIME",
    )
    prune: bool = option(
        True,
        "measure how accuracy falls as more and more heads are zero-ablated",
        daily=False,
    )
    thresholds: Sequence[str] = option(
        (),
        "thresholds of your own, such as faithfulness=.4,.7 (partly and yes from) or "
        "removal=.1; answers and sentences follow them",
        metavar="QUESTION=FROM",
        daily=False,
    )
    level: Literal["word", "token"] | None = option(
        None,
        "units that are explained and left out in Transformers (default: word, if the "
        "tokenizer tells which tokens form a word)",
        daily=False,
    )
    predicts: Literal["auto", "probability", "number"] = option(
        "auto",
        "what a single logit is: a probability's log-odds, or a number (default: by the "
        "model's problem_type; without one a probability)",
        daily=False,
    )
    threshold: float | None = option(
        None,
        "of a predicted number: it decides whether the number is above or not",
        metavar="NUMBER",
        daily=False,
    )
    scale: float | None = option(
        None,
        "of a predicted number: the unit of its changes (default: the standard "
        "deviation of the labels)",
        at_least=1e-12,
        metavar="NUMBER",
        daily=False,
    )
    limits: str | None = option(
        None,
        "folder of attnprobe detection-limit of this model: the page says the smallest "
        "effect that would have been seen",
        metavar="FOLDER",
        daily=False,
    )
    shown_texts: int = option(
        12,
        "texts shown with the scores of their tokens: where tests disagree most, wrong "
        "predictions, some of every class, others drawn; 0 for none",
        at_least=0,
        metavar="N",
        daily=False,
    )
    segment: Literal["text", "text_pair"] | None = option(
        None,
        "text of a pair whose tokens are explained, left out and erased, the other one "
        "is held (default: both)",
        daily=False,
    )
    rows: Literal["behind", "answer", "all"] = option(
        "behind",
        "of a language model: whose attention to the passage is edited, that of every row "
        "behind the passage, of those that predict the answer alone, or of all",
        daily=False,
    )
    truncate: bool = option(True, "cut texts that are longer than the model can read", daily=False)
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None = option(
        None,
        "number format to compute in (default: float64 for attention classifiers, that "
        "of the checkpoint for other models)",
        daily=False,
    )
    weights: WeightChange | None = option(
        None,
        "audit a twin: weights rounded, the smaller half of each matrix pruned, or what was "
        "learned taken away by shuffling (randomised) or a new start (untrained) (default: as "
        "they are saved)",
        daily=False,
    )
    batch_size: int = option(64, "largest number of texts per batch", at_least=1, daily=False)
    memory_budget: str | int = option(
        "2GB",
        "memory that a batch may take, such as 500MB",
        metavar="SIZE",
        daily=False,
    )
    share: str | None = option(
        None,
        "audit only the texts of one of N shares, for many processes or machines; attnprobe report "
        "joins their folders",
        metavar="K/N",
        daily=False,
    )
    seed: int = option(0, "seed of all random numbers", at_least=0, at_most=LARGEST_SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thresholds:
            from hf_attnprobe.statistics.verdicts import (
                with_thresholds,
            )  # pandas is slow to import

            with_thresholds(self.thresholds)
        if self.screen is not None and not self.single_heads:
            raise AttnProbeError(
                "expected single heads for --screen to choose from; leave it or "
                "--no-single-heads out"
            )


SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_time_limit(options: AuditOptions) -> float | None:
    """Seconds from the start to the report; None: as many as it takes.

    Raises:
        AttnProbeError: another form, or a screen beside it.
    """
    if options.time is None:
        return None
    if options.screen is not None:
        raise AttnProbeError(
            "expected --screen or --time, got both; leave --screen out, --time screens by itself"
        )
    return parse_duration(options.time)


def parse_duration(text: str) -> float:
    """The seconds of "90s", "10m", "2h", "1d" or a plain number of seconds.

    Raises:
        AttnProbeError: anything else, and less than a second.

    >>> seconds_of("10m"), seconds_of("1.5h"), seconds_of("90")
    (600.0, 5400.0, 90.0)
    """
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", text.strip().lower())
    seconds = float(found[1]) * SECONDS_PER_UNIT[found[2] or "s"] if found else 0.0
    if not 1 <= seconds < math.inf:
        raise AttnProbeError(
            f"expected a time of a second or more, such as 90s, 10m or 2h, got {text!r}"
        )
    return seconds


def limit_report_extras(options: AuditOptions) -> AuditOptions:
    """Returns the options of a report in haste: three texts are all that runs the model again."""
    return replace(options, prune=False, shown_texts=min(options.shown_texts, 3))


def parse_share(options: AuditOptions) -> tuple[int, int] | None:
    """The number of a share and of how many; None of all texts.

    Raises:
        AttnProbeError: another form than K/N with K from 0 to N − 1, or what chooses by all
            texts at once beside it.
    """
    if options.share is None:
        return None
    number, _, of = options.share.partition("/")
    if not (number.isdecimal() and of.isdecimal() and int(number) < int(of)):
        raise AttnProbeError(
            f"expected a share from 0/N to (N − 1)/N, such as 3/64, got {options.share!r}"
        )
    if options.screen or options.time:
        raise AttnProbeError(
            "expected neither --screen nor --time with --share: they choose by all texts, and a "
            "share has only its own; leave one out"
        )
    return int(number), int(of)


def get_share_folder(output_dir: str | Path, share: tuple[int, int]) -> Path:
    """Where a share goes."""
    return Path(output_dir) / f"share-{share[0]}-of-{share[1]}"


def load_test_options() -> Mapping[str, type[Options]]:
    """The classes of the options of all tests, those of installed packages too."""
    if not entry_points(group=ENTRY_POINT_GROUP):
        return OPTIONS_BY_TEST
    from hf_attnprobe.faithfulness.registry import (
        load_tests,
    )  # which takes seconds to import

    return {name: test.options for name, test in load_tests().items()}
