"""What an audit will take, before it runs."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.auditing.estimates.calibration import (
    calibrate,
    work_of,
    work_of_control,
)
from hf_attnprobe.auditing.estimates.estimate import Estimate
from hf_attnprobe.auditing.estimates.sums import estimate
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import PreparedAudit, prepare_audit, sweep_of
from hf_attnprobe.auditing.progress import Pace
from hf_attnprobe.auditing.rehearsal import rehearse
from hf_attnprobe.auditing.run import (
    provenance_of,
    report_of,
    rows_of,
    write_report,
)
from hf_attnprobe.auditing.subject import Model
from hf_attnprobe.auditing.sweep import (
    Sweep,
    Work,
)
from hf_attnprobe.options import Options
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.storage.folders import (
    check_claim,
)


@quiet_libraries()
def estimate_audit(
    model: Model,
    dataset: Any,
    tests: "Sequence[str | Options] | str | Options | None" = None,
    *,
    options: AuditOptions = AuditOptions(),
    output_dir: str | Path | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """What :func:`audit` with these arguments will take; nothing is written.

    It prepares the audit, runs each test at a few sites on a few texts, and makes the
    report once from these rows. What an output folder holds already is not counted.

    Args:
        model, dataset, tests, options, output_dir, tokenizer: those of :func:`audit`.
        clock: seconds; by default those that pass, ``time.process_time`` for those that
            the processor works.

    Returns:
        Work, time, memory and disk space of what is left. Time was .7 to 1.4 times what
        five jobs took (benchmarks/README.md), if the machine stays as busy as it is.

    Raises:
        AttnProbeError: whatever would stop the audit before its first rows.
    """
    begun = clock()
    job = prepare_audit(model, dataset, tests, options, tokenizer)
    pace = Pace(shown=False, clock=clock)
    with tempfile.TemporaryDirectory() as elsewhere, job.on_this_machine():
        where = Path(elsewhere if output_dir is None else output_dir)
        sweep = sweep_of(job, where, pace)
        rehearse(
            sweep.adapter,
            sweep.texts,
            sweep.options,
            job.choice.sites,
            tokenizer=job.subject.tokenizer,
            rationales=job.choice.rationales,
        )
        if output_dir is not None:
            check_claim(where, job.identity)
        prepared = clock() - begun
        plan = _plan(job, sweep, options)
        found = calibrate(sweep, [*plan["audit"], *plan["control"]])

        def report_on(folder: Path, n_texts: int) -> None:
            tried = replace(sweep, folder=folder / "rows", texts=sweep.texts[:n_texts])
            provenance = provenance_of(job.identity, tried, {}, job.besides)
            others = rows_of(tried) if plan["control"] else None
            without = replace(options, prune=False)
            report = report_of(job, tried, provenance, others, without)
            write_report(report, folder)

        return estimate(sweep, plan, found, report_on, prepared, Path(elsewhere))


def _plan(job: "PreparedAudit", sweep: Sweep, options: AuditOptions) -> dict[str, list[Work]]:
    """The batches that are left, of the model and of its control."""
    left = work_of_control(sweep, job.subject.controls, job.choice, options)
    return {"audit": work_of(sweep, job.choice, options), "control": left}
