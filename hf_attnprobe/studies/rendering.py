"""The public function ``render_report``: a folder of results as Markdown."""

from pathlib import Path

from hf_attnprobe.auditing import report
from hf_attnprobe.auditing.run import read_audit
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.retraining import report as retraining_report
from hf_attnprobe.retraining.stored import KIND, read_retraining
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.studies.state import STATE


def render_report(folder: str | Path, output: str | Path | None = None) -> str:
    """The report of an audit, a retraining or a study as Markdown.

    Audits and retrainings are rendered again from their rows and summary.

    Args:
        folder: the output folder of ``audit``, ``retrain`` or ``study``.
        output: a file ending in .md to write the report to; None writes nothing.

    Returns:
        The Markdown text.

    Raises:
        AttnProbeError: a folder without results, or a file that cannot be written.
    """
    if output is not None and Path(output).suffix != ".md":
        raise AttnProbeError(f"expected an output file ending in .md, got {output}")
    text = _render(Path(folder))
    if output is not None:
        try:
            write_atomically(Path(output), text)
        except OSError as error:
            raise AttnProbeError(
                f"cannot write {output} ({error}); choose another --output"
            ) from error
    return text


def _render(folder: Path) -> str:
    if (folder / f"{KIND}.json").is_file():
        return retraining_report.to_markdown(read_retraining(folder))
    if (folder / STATE).is_file():
        return _report_of_study(folder)
    return report.to_markdown(read_audit(folder))


def _report_of_study(folder: Path) -> str:
    try:
        return (folder / "report.md").read_text()
    except OSError as error:
        raise AttnProbeError(
            f"expected a finished study in {folder}; run it again to finish it"
        ) from error
