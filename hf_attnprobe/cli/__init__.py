"""attnprobe demo | train | audit | plan | work | retrain | compare | deceive | study | calibrate | report | card | datasets

Every verb is a public function; every flag is one of its arguments or options. Results go
to stdout, progress and log to stderr. A known error is one line and exit code 1, a usage
error exit code 2, an answer that ``audit --fail-on`` names exit code 3.
"""

import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from hf_attnprobe.cli import verbs
from hf_attnprobe.cli.flags import CommandParser
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import check_path
from hf_attnprobe.progress import say
from hf_attnprobe.storage.folders import check_usable
from hf_attnprobe.terminal import one_line, show


OF_THE_DISK = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose a place that can be written to",
    errno.EACCES: "choose a place that can be written to",
    errno.EPERM: "choose a place that can be written to",
    errno.ENOTDIR: "choose a folder",
    errno.EISDIR: "choose a file",
    errno.EIO: "look after the disk",
    errno.ESTALE: "look after the disk",
}
"""What to do where the system refuses, by its number."""
WAIT_FOR_FIRST = 30.0
"""Seconds in which a launcher ends the other processes once the first has failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    command = None
    try:
        arguments = vars(build_parser().parse_args(argv))
        command = arguments.pop("command")
        check_places(arguments)
        with _log_on_stderr():
            return COMMANDS[command](arguments) or 0
    except AttnProbeError as error:
        _say_once(one_line(str(error)))
        return 1
    except OSError as error:
        advice = OF_THE_DISK.get(error.errno or 0)
        if advice is None:
            raise
        _say_once(
            f"cannot write ({one_line(str(error))}); what was written stays: {advice} and "
            "run the same command again"
        )
        return 1
    except KeyboardInterrupt:
        again = "start over" if command in ("demo", "deceive") else "continue"
        _say_once(f"interrupted; run the same command again to {again}")
        return 130


def check_places(arguments: Mapping[str, Any]) -> None:
    """Checks what can be checked of paths before anything is imported that takes seconds.

    Raises:
        AttnProbeError: a path where nothing is, or a folder that cannot be written to.
    """
    models = [arguments.get("model"), *arguments.get("models", ())]
    for model in filter(None, models):
        check_path("model", model)
    if "dataset" in arguments:
        from hf_attnprobe.data.sources import recipe_of

        recipe_of(arguments["dataset"])
    output_dir = arguments.get("output_dir")
    if output_dir is not None and "://" not in output_dir:
        check_usable(output_dir)


def _say_once(message: str) -> None:
    """Prints a last line on stderr; of several processes with the same error, one does.

    The others wait: where the first process failed too, its launcher ends them meanwhile.
    """
    if os.environ.get("RANK", "0") != "0":
        time.sleep(WAIT_FOR_FIRST)
    show(f"attnprobe: {message}", file=sys.stderr)


def build_parser() -> CommandParser:
    """All commands and flags."""
    parser = CommandParser(
        prog="attnprobe",
        description="Does this model's attention explain its predictions?",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('hf_attnprobe')}"
    )
    commands = parser.add_subparsers(dest="command", required=True, prog="attnprobe")

    def add(name: str, said: str) -> CommandParser:
        return commands.add_parser(name, help=said)

    verbs.add_demo(add("demo", "train and audit on generated data whose deciding words are known"))
    verbs.add_train(add("train", "train an attention classifier"))
    verbs.add_audit(add("audit", "run faithfulness tests on a model"))
    verbs.add_plan(add("plan", "cut an audit into partitions, for many processes and machines"))
    verbs.add_work(add("work", "compute partitions of a plan until none is left"))
    verbs.add_retrain(add("retrain", "run the tests that train models (Wiegreffe & Pinter 2019)"))
    verbs.add_study(add("study", "run a study file or a paper's tables, with one report"))
    verbs.add_compare(add("compare", "put checkpoints beside one another, regularised or not"))
    verbs.add_deceive(add("deceive", "train a model to hide its attention to some tokens"))
    verbs.add_calibrate(
        add("calibrate", "count the verdict's wrong answers where the truth is known")
    )
    verbs.add_report(add("report", "render the report of an audit"))
    verbs.add_card(add("card", "write a checkpoint's model card, and publish both on the Hub"))
    verbs.add_datasets(add("datasets", "list the data sets that have a name, and what to bring"))
    return parser


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Shows the log of this package, and not those of the libraries below it."""
    log = logging.getLogger("hf_attnprobe")
    log.setLevel(logging.INFO)
    handler = _BesideBar()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _BesideBar(logging.Handler):
    """Writes to stderr, above a bar that is open."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


COMMANDS: dict[str, Callable[[dict[str, Any]], int | None]] = {
    "demo": verbs.run_demo,
    "train": verbs.run_train,
    "audit": verbs.run_audit,
    "plan": verbs.run_plan,
    "work": verbs.run_work,
    "retrain": verbs.run_retrain,
    "study": verbs.run_study,
    "compare": verbs.run_compare,
    "deceive": verbs.run_deceive,
    "calibrate": verbs.run_calibrate,
    "report": verbs.run_report,
    "card": verbs.run_card,
    "datasets": verbs.run_datasets,
}
