"""Options for whole audits; every test has further options."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import MAX_SEED, Options, option
from hf_attnprobe.faithfulness.options import ENTRY_POINT_GROUP, FAITHFULNESS_OPTIONS


WeightChange = Literal["bfloat16", "float16", "int8", "int4", "pruned", "randomised", "untrained"]
"""Name of a change to a model's weights before the audit, such as rounding them to int8."""
SECONDS_BY_SUFFIX = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Maps the suffix of a duration such as "10m" to its length in seconds."""
MAX_PARTIAL_EXAMPLES = 3
"""Maximum number of example texts in the report of a partial audit.

A partial audit has a time limit (``--time``) or covers only a share of the texts (``--share``).
"""


@dataclass(frozen=True)
class AuditOptions(Options):
    """Audit options, such as the heads to test, the batch size and a time limit.

    The help text of each field describes it.
    """

    layers: Sequence[int] | None = option(None, "layers to test (default: all)", metavar="LAYER")
    heads: Sequence[int | Literal["all"]] | None = option(
        None,
        "heads to test in each layer (default: all; for a language model, only the mean over all "
        "heads is tested)",
        metavar="HEAD",
    )
    groups: bool = option(
        True, "also test each layer and all heads together, as a mean of their heads", basic=False
    )
    single_heads: bool = option(True, "test every head by itself")
    head_sets: Sequence[str] | None = option(
        None,
        "sets of heads to test together, each written as layer.head joined by +, such as 5.0+5.3; "
        "'shared' stands for all sets of heads that share keys (language models)",
        metavar="SET",
        basic=False,
    )
    query: int | None = option(
        None, "test only this query position of each head (default: all of them)", basic=False
    )
    target: str | int | None = option(
        None,
        "class to explain, by name or number, for tests that explain a class (default: the "
        "predicted class)",
        metavar="CLASS",
    )
    screen: int | None = option(
        None,
        "test only this many single heads, those with the largest estimated effects. The heads for "
        "one half of the texts are selected on the other half",
        at_least=1,
        metavar="N",
    )
    time: str | None = option(
        None,
        "stop after this time, such as 90s, 10m or 2h, and report the results so far. The verdict "
        "comes first, then the ten single heads with the largest estimated effects, then more texts "
        "and heads. Run the command again to continue",
        metavar="TIME",
    )
    prune: bool = option(
        True,
        "find pairs of heads that depend on each other, by removing two heads together",
        basic=False,
    )
    thresholds: Sequence[str] = option(
        (),
        "your own thresholds, such as faithfulness=.4,.7 (for partly and yes) or removal=.1; the "
        "answers and sentences of the report use them",
        metavar="QUESTION=FROM",
        basic=False,
    )
    level: Literal["word", "token"] | None = option(
        None,
        "units that are explained and deleted in Transformers (default: word, if the tokenizer "
        "reports which tokens form a word)",
        basic=False,
    )
    region_size: int | None = option(
        None,
        "largest number of rows and columns of patches in a region of an image, which is explained "
        "and left out as a whole (default: every patch on its own)",
        basic=False,
    )
    predicts: Literal["auto", "probability", "number"] = option(
        "auto",
        "meaning of a single logit: the log-odds of a probability, or a number (default: according "
        "to the model's problem_type; a probability if it is not set)",
        basic=False,
    )
    threshold: float | None = option(
        None,
        "threshold that turns a predicted number into a decision (above the threshold or not)",
        metavar="NUMBER",
        basic=False,
    )
    scale: float | None = option(
        None,
        "unit for changes in a predicted number (default: the standard deviation of the labels)",
        at_least=1e-12,
        metavar="NUMBER",
        basic=False,
    )
    limits: str | None = option(
        None,
        "output folder of attnprobe detection-limit for this model; the report then states the "
        "smallest effect that would have been detected",
        metavar="FOLDER",
        basic=False,
    )
    map: str | None = option(
        None,
        "attention map of this model, from attnprobe fit-map: its file, or the folder or Hub id of the "
        "model next to which it is stored. The report compares it with attention",
        metavar="FOLDER",
        basic=False,
    )
    shown_texts: int = option(
        12,
        "number of example texts in the report (0 for none), with scores of their tokens. They "
        "include the texts in which attention and leave-one-out agree most and least, a wrong "
        "prediction, and random texts",
        at_least=0,
        metavar="N",
        basic=False,
    )
    segment: Literal["text", "text_pair"] | None = option(
        None,
        "text of a pair that is explained and edited; the other text stays unchanged (default: "
        "both texts)",
        basic=False,
    )
    rows: Literal["behind", "answer", "all"] = option(
        "behind",
        "query rows of a language model whose attention to the passage is edited: all rows after "
        "the passage, only the rows that predict the answer, or all rows",
        basic=False,
    )
    truncate: bool = option(True, "cut texts that are longer than the model can read", basic=False)
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None = option(
        None,
        "number format of the computation (default: float64 for attention classifiers, the "
        "checkpoint's format for other models)",
        basic=False,
    )
    weights: WeightChange | None = option(
        None,
        "change the weights before the audit: 'pruned' sets the smaller half of each matrix to "
        "zero, 'randomised' shuffles the weights, 'untrained' draws new ones, and the other values "
        "round them (default: the saved weights)",
        basic=False,
    )
    batch_size: int = option(64, "maximum number of texts per batch", at_least=1, basic=False)
    memory_budget: str | int = option(
        "2GB", "memory that a batch may take, such as 500MB", metavar="SIZE", basic=False
    )
    share: str | None = option(
        None,
        "audit only share K of N of the texts, to divide the work among processes or machines; "
        "attnprobe report joins their output folders",
        metavar="K/N",
        basic=False,
    )
    seed: int = option(0, "seed for all random numbers", at_least=0, at_most=MAX_SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.thresholds:
            # This import is slow, because it loads pandas, so it runs only if needed.
            from hf_attnprobe.statistics.verdicts import apply_thresholds

            apply_thresholds(self.thresholds)
        if self.screen is not None and not self.single_heads:
            raise AttnProbeError(
                "--screen selects single heads, but --no-single-heads excludes them. Leave out one of "
                "these options."
            )


def parse_time_limit(options: AuditOptions) -> float | None:
    """Parse the time limit for an audit.

    Args:
        options: Audit options.

    Returns:
        Seconds from the start of the audit to its report; None for no limit.

    Raises:
        AttnProbeError: If the time is invalid, or if ``screen`` is set too.
    """
    if options.time is None:
        return None
    if options.screen is not None:
        raise AttnProbeError(
            "--screen and --time cannot be combined, because --time itself tests the heads with the "
            "largest estimated effects first. Leave out --screen."
        )
    return parse_duration(options.time)


def parse_duration(text: str) -> float:
    """Parse a duration such as "90s", "10m", "2h", "1d" or a plain number of seconds.

    Args:
        text: The duration.

    Returns:
        The duration in seconds, at least 1.

    Raises:
        AttnProbeError: If the text is not a duration, or if it is shorter than one second.

    >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("90")
    (600.0, 5400.0, 90.0)
    """
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", text.strip().lower())
    seconds = float(match[1]) * SECONDS_BY_SUFFIX[match[2] or "s"] if match else 0.0
    if not 1 <= seconds < math.inf:
        raise AttnProbeError(
            f"expected a duration of at least one second, such as 90s, 10m or 2h, got {text!r}"
        )
    return seconds


def limit_report_extras(options: AuditOptions) -> AuditOptions:
    """Leave out the parts of a report that take a long time, for a partial audit.

    Args:
        options: Audit options.

    Returns:
        The options without pairs of heads and with at most :data:`MAX_PARTIAL_EXAMPLES` examples.
    """
    n_examples = min(options.shown_texts, MAX_PARTIAL_EXAMPLES)
    return replace(options, prune=False, shown_texts=n_examples)


def parse_share(options: AuditOptions) -> tuple[int, int] | None:
    """Parse the option ``share``, such as "3/64" for part 3 of 64 parts of the texts.

    The parts are numbered from 0. Several machines can divide an audit if each one audits another
    part.

    Args:
        options: Audit options.

    Returns:
        Index of the part and number of parts; None to audit all texts.

    Raises:
        AttnProbeError: If the share is not K/N with K from 0 to N − 1, or if an option is set that
            needs all texts.
    """
    if options.share is None:
        return None
    index, _, n_shares = options.share.partition("/")
    is_valid = index.isdecimal() and n_shares.isdecimal() and int(index) < int(n_shares)
    if not is_valid:
        raise AttnProbeError(
            f"expected --share K/N with K from 0 to N − 1, such as 3/64, got {options.share!r}"
        )
    if options.screen or options.time:
        raise AttnProbeError(
            "--share cannot be combined with --screen or --time, because --screen and --time need all "
            "texts. Leave out --share, or leave out --screen and --time."
        )
    return int(index), int(n_shares)


def get_share_folder(output_dir: str | Path, share: tuple[int, int]) -> Path:
    """Return the folder for the results of one share, which is one of several parts of the texts.

    Args:
        output_dir: The audit's output folder.
        share: Index of the part and number of parts, such as (3, 64).

    Returns:
        A folder such as ``output_dir/share-3-of-64``.
    """
    return Path(output_dir) / f"share-{share[0]}-of-{share[1]}"


def load_test_options() -> Mapping[str, type[Options]]:
    """Return all tests' option classes by test name, including tests from other packages."""
    if not entry_points(group=ENTRY_POINT_GROUP):
        return FAITHFULNESS_OPTIONS
    # The registry takes seconds to import, so it is loaded only for tests of other packages.
    from hf_attnprobe.faithfulness.registry import load_tests

    return {name: test.options for name, test in load_tests().items()}
