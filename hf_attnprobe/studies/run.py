"""Runs every step of a study once and writes one report."""

import runpy
from collections.abc import Callable
from pathlib import Path

from hf_attnprobe.distributed import check_one_process
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.plain_data import plain
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.storage.folders import alone_in, write_atomically, write_json
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.studies.plan import STATE, StudyOptions
from hf_attnprobe.studies.ready import READY
from hf_attnprobe.studies.report import StudyReport, report_of
from hf_attnprobe.studies.steps import Steps


def planned(file: str | Path, folder: Path, options: StudyOptions) -> Steps:
    """The steps of a study, checked; nothing is run.

    Args:
        file: a name of :data:`READY`, or a Python file with a function ``study``, whose code runs.

    Raises:
        AttnProbeError: no such study, or a step with options that there are not.
    """
    known = READY.get(str(file))
    if known is None and not Path(file).is_file():
        raise AttnProbeError(f"expected a file or one of {', '.join(READY)}, got {file}")
    made: Callable[[Steps], None] = known or runpy.run_path(str(file))["study"]
    paper = str(file) if "20" in (made.__doc__ or "") and known else None
    steps = Steps(Path(file).stem, folder, options, (made.__doc__ or "").strip(), paper)
    made(steps)
    return steps


@quiet_libraries()
def study(
    file: str | Path, *, output_dir: str | Path, options: StudyOptions = StudyOptions()
) -> StudyReport:
    """Runs the steps of a study that are not done, and puts their results into one report.

    Args:
        file: see :func:`planned`.
        output_dir: folder for the steps and the report; the same one to go on.
        options: data sets in place of the study's, seed, and whether the run is quick.

    Raises:
        AttnProbeError: a study that cannot be used, before anything runs; errors of a step name it.
    """
    check_one_process("a study")
    steps = planned(file, Path(output_dir), options)
    with alone_in(output_dir, STATE) as folder:
        report = report_of(steps, folder, steps.run(), quick=options.quick)
        write_json(folder / SUMMARY, plain(report))
        write_atomically(folder / "report.md", report.to_markdown())
        write_atomically(folder / "report.html", report.to_html())
    return report
