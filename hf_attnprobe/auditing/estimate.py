"""Estimates what an audit takes: runs a first round and extrapolates its seconds."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AnswersFromPassage
from hf_attnprobe.auditing.clock import Clock, Step, place_of
from hf_attnprobe.auditing.options import AuditOptions, share_of
from hf_attnprobe.auditing.prepare import prepare_audit
from hf_attnprobe.auditing.selection import sites_by_test
from hf_attnprobe.auditing.session import begun
from hf_attnprobe.auditing.subject import Model
from hf_attnprobe.auditing.sweep import first_round
from hf_attnprobe.options import Asked, public_function
from hf_attnprobe.progress import in_words
from hf_attnprobe.statistics.rows import PREDICTION
from hf_attnprobe.storage.rows import NO_SITE, finished_ids


LONG = 1800.0
"""Seconds of an audit from which on shorter ways are named."""


@dataclass(frozen=True)
class AuditEstimate:
    """What is left of an audit, judged by its first round.

    Attributes:
        n_texts: texts of the audit.
        n_runs: one test at one head, or group of heads, on one text is a run.
        seconds: by test, by the wall clock, on this machine as busy as it is now.
        kept: the folder that has the rows of the first round; None: none.
    """

    n_texts: int
    n_runs: int
    seconds: dict[str, float]
    kept: str | None

    @property
    def total(self) -> float:
        """Seconds of all tests."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Everything by name; the seconds with their total."""
        return asdict(self) | {"total": self.total}

    def to_text(self) -> str:
        """Some lines for a terminal."""
        width = max(map(len, self.seconds))
        dearest = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        lines = [
            f"{in_words(self.total)} for {len(self.seconds)} tests on {self.n_texts:,} texts: "
            f"{self.n_runs:,} runs are left (one test at one head, or group of heads, on one text)",
            *(
                f"  {test:{width}}  {in_words(seconds)}"
                for test, seconds in dearest
            ),
        ]
        if self.total >= LONG:
            lines.append(
                "shorter: --time 10m reports what is known by then; --no-single-heads tests layers "
                "and all attention only; leave the dearest test out with --tests"
            )
        kept = "nothing was kept"
        if self.kept is not None:
            kept = f"what it ran is kept in {self.kept}: without --estimate the same command goes on"
        lines.append(
            "measured on a few texts, at up to two heads and one group of heads for each test, at "
            f"this machine's present load; loading and the report are not counted; {kept}"
        )
        return "\n".join(lines)


@public_function
def estimate_audit(
    model: Model,
    dataset: Any,
    tests: Asked | None = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> AuditEstimate:
    """Estimates what :func:`audit` with these arguments takes.

    It begins the audit: it runs each test at a few sites on a few texts. These rows are kept where
    there is a folder, but for a language model, whose rows depend on the other prompts too. What
    the folder holds already is not counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    clock = Clock()
    share = share_of(options)
    job = prepare_audit(
        model,
        dataset,
        tests,
        options,
        tokenizer,
        share=share,
        is_first_round=True,
    )
    is_classifier = job.subject.adapter.lacks(AnswersFromPassage) is not None
    is_kept = output_dir is not None and is_classifier
    with begun(job, output_dir if is_kept else None, clock) as (sweep, _):
        choice = job.choice
        heads = choice.heads[: options.screen]
        where = sites_by_test(
            [*sweep.options], sweep.adapter, heads, choice.groups
        )
        first_round(sweep, {**where, PREDICTION: [NO_SITE]})
        held = finished_ids(sweep.folder)
        tokens = sum(text.n_tokens for text in sweep.texts) / len(sweep.texts)
        seconds, n_runs = dict.fromkeys(where, 0.0), 0
        for test, sites in where.items():
            for k, site in enumerate(sites):
                n_left = job.n_texts - len(
                    held.get((test, site.layer, site.head), ())
                )
                n_runs += n_left
                seconds[test] += clock.expects(
                    [Step(test, place_of(k, site), n_left * tokens)]
                )
        return AuditEstimate(
            job.n_texts, n_runs, seconds, str(output_dir) if is_kept else None
        )
