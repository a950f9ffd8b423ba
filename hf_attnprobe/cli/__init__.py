"""attnprobe demo | train | audit | retrain | compare | deceive | study | report | datasets

Every verb is a public function; every flag is one of its arguments or options. Results go
to stdout, progress and log to stderr. A known error is one line and exit code 1, a usage
error exit code 2.
"""

import argparse
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from hf_attnprobe.cli import audits, catalogue, studies, trainings
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.evaluate_module import install_metric


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    command = None
    try:
        arguments = vars(build_parser().parse_args(argv))
        command = arguments.pop("command")
        install_metric()
        with _log_on_stderr():
            COMMANDS[command](arguments)
        return 0
    except AttnProbeError as error:
        print(f"attnprobe: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        again = "start over" if command in ("demo", "deceive") else "continue"
        print(
            f"attnprobe: interrupted; run the same command again to {again}",
            file=sys.stderr,
        )
        return 130


def build_parser() -> argparse.ArgumentParser:
    """All commands and flags."""
    parser = argparse.ArgumentParser(
        prog="attnprobe",
        description="Does this model's attention explain its predictions?",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('hf_attnprobe')}"
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name: str, said: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=said)

    trainings.add_demo(
        add("demo", "train and audit on generated data whose deciding words are known")
    )
    trainings.add_train(add("train", "train an attention classifier"))
    audits.add_audit(add("audit", "run faithfulness tests on a model"))
    trainings.add_retrain(
        add("retrain", "run the tests that train models (Wiegreffe & Pinter 2019)")
    )
    studies.add_study(
        add("study", "run a study file or a paper's tables, with one report")
    )
    audits.add_compare(
        add("compare", "put checkpoints beside one another, regularised or not")
    )
    trainings.add_deceive(
        add("deceive", "train a model to hide its attention to some tokens")
    )
    audits.add_report(add("report", "render the report of an audit"))
    catalogue.add_datasets(
        add("datasets", "list the data sets that have a name, and what to bring")
    )
    return parser


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of this package, and not those of the libraries below it."""
    _silence_libraries()
    log = logging.getLogger("hf_attnprobe")
    log.setLevel(logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _silence_libraries() -> None:
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    try:
        import datasets
    except ImportError:
        return
    datasets.disable_progress_bars()


COMMANDS = {
    "demo": trainings.run_demo,
    "train": trainings.run_train,
    "audit": audits.run_audit,
    "retrain": trainings.run_retrain,
    "study": studies.run_study,
    "compare": audits.run_compare,
    "deceive": trainings.run_deceive,
    "report": audits.run_report,
    "datasets": catalogue.run_datasets,
}
