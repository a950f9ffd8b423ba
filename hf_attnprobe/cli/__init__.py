"""attnprobe demo | train | audit | judge | retrain | compare | survive | deceive | study | spike | report | card | datasets

Every verb is a public function; every flag is one of its arguments or options. Results go
to stdout, progress and log to stderr. A command that does not end well says why in one line:

    1    a known error: what was expected, what came, what to do
    2    a usage error
    3    an answer that ``audit --fail-on`` names, or that ``survive`` or ``report --fail-on-change`` finds
    130  Ctrl-C
    141  nobody reads what is printed, as behind ``| head``; the one end without a line
    143  SIGTERM, which schedulers send

All that takes time to import is imported by :func:`main`, so that Ctrl-C meets it there.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.terminal import one_line, show


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
BY_SIGNAL = 128
"""What a shell adds to the number of a signal to make an exit code."""
BROKEN_PIPE = BY_SIGNAL + 13
STOPPING = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}


class Stopped(KeyboardInterrupt):
    """A signal ends the command.

    Where a plain KeyboardInterrupt has passed ``exec``, as that of dataclasses, Python
    kills its own process at the end, whatever the exit code.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    words = sys.argv[1:] if argv is None else [*argv]
    advice = _advice(words)
    with _signals_stop(advice) as received:
        try:
            from hf_attnprobe.cli.verbs import run

            return run(words)
        except BaseException as error:
            if received:  # whatever a library made of it
                return _say_stopped(received[0], advice)
            if isinstance(error, KeyboardInterrupt):
                return _say_stopped(signal.SIGINT, advice)
            return _say_error(error)


def _advice(words: Sequence[str]) -> str:
    """Returns what to do where a command was stopped."""
    if words[:1] in (["demo"], ["deceive"]):
        return "run the same command again to start over"
    keeps = any(word.startswith("--output-dir") for word in words)
    if words[:1] in (["audit"], ["judge"]) and not keeps:
        return "nothing was kept; with --output-dir the same command goes on"
    return "run the same command again to continue from what was kept"


@contextlib.contextmanager
def _signals_stop(advice: str) -> Iterator[list[int]]:
    """Signals that end a command raise :class:`Stopped`; a second one ends it at once.

    Args:
        advice: what the second one says.

    Yields:
        The numbers of the signals that came. Once one has, they stay as they are set here.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            if _is_first():
                line = f"attnprobe: {STOPPING[signal.Signals(number)]}; {advice}\n"
                os.write(2, line.encode())
            os._exit(BY_SIGNAL + number)
        received.append(number)
        raise Stopped

    usual = (signal.SIG_DFL, signal.default_int_handler)
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other can
        before = {n: signal.signal(n, stop) for n in STOPPING if signal.getsignal(n) in usual}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if received else handler)


def _say_stopped(number: int, advice: str) -> int:
    """Of several processes the first says it; the exit code."""
    if _is_first():
        show(
            f"attnprobe: {STOPPING[signal.Signals(number)]}; {advice}",
            file=sys.stderr,
        )
    return BY_SIGNAL + number


def _is_first() -> bool:
    """Whether this is the first of a launcher's processes, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def _say_error(error: BaseException) -> int:
    """The exit code of an error that is known; others are raised again."""
    if isinstance(error, AttnProbeError):
        _say_once(one_line(str(error)))
        return 1
    if isinstance(error, BrokenPipeError):
        with contextlib.suppress(AttributeError, OSError):  # Python's last flush fails too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    advice = OF_THE_DISK.get(error.errno or 0) if isinstance(error, OSError) else None
    if advice is None:
        raise error
    _say_once(
        f"cannot write ({one_line(str(error))}); what was written stays: {advice} and "
        "run the same command again"
    )
    return 1


def _say_once(message: str) -> None:
    """Prints a last line on stderr; of several processes with the same error, one does.

    The others wait: where the first process failed too, its launcher ends them meanwhile.
    """
    if not _is_first():
        time.sleep(WAIT_FOR_FIRST)
    show(f"attnprobe: {message}", file=sys.stderr)
