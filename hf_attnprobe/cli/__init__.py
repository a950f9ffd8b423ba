"""The ``attnprobe`` command.

Commands: demo, train, audit, evaluate-scores, retrain, study, compare, fit-map, detection-limit, cite,
report, card, datasets.

Each command calls one public function, and its flags are the function's arguments and options.
Results are printed to stdout; progress and log messages go to stderr. If a command fails, it prints
the reason in one line and exits with one of these codes:

    1    known error; the message states what was expected, what was received and how to fix it
    2    usage error
    3    a condition of ``--fail-on`` is met, or ``--fail-on-change`` found a new answer
    130  interrupted with Ctrl-C
    141  the program that reads stdout has ended, as in ``attnprobe audit … | head``; no message
    143  terminated by SIGTERM, which job schedulers send

Start reading at :func:`main`. ``commands.py`` has two functions per command, and ``flags.py``
converts option dataclasses to flags. Slow imports happen inside :func:`main`, so that Ctrl-C is
handled during the imports too.
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

from hf_attnprobe.core.errors import AttnProbeError, UsageError
from hf_attnprobe.core.terminal import escape_line, print_text


DISK_ERROR_ADVICE = {
    errno.ENOSPC: "free some disk space",
    errno.EDQUOT: "free some disk space",
    errno.EFBIG: "allow larger files",
    errno.EROFS: "choose a folder that you can write to",
    errno.EACCES: "choose a folder that you can write to",
    errno.EPERM: "choose a folder that you can write to",
    errno.ENOTDIR: "choose a folder",
    errno.EISDIR: "choose a file",
    errno.EIO: "check the disk",
    errno.ESTALE: "check the disk",
}
"""Advice for the user if a file cannot be written, by the error number of the operating system."""
FIRST_PROCESS_TIMEOUT = 30.0
"""Time that the other processes of a distributed run wait for the first process, in seconds.

If all processes fail with the same error, only the first one prints it, and the launcher stops the
others. After this time, another process prints its own error.
"""
USAGE_ERROR_EXIT_CODE = 2
"""Exit code if a flag or its value is wrong, as in ``argparse``."""
SIGNAL_EXIT_CODE_OFFSET = 128
"""Number that is added to a signal number to form an exit code.

Shells use the same number. For example, Ctrl-C sends SIGINT (2), so the exit code is 130.
"""
BROKEN_PIPE_EXIT_CODE = SIGNAL_EXIT_CODE_OFFSET + 13
"""Exit code if the program that reads the output has ended, as in ``attnprobe … | head``.

The number of the signal SIGPIPE is 13.
"""
SIGNAL_DESCRIPTIONS = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}
"""Maps each signal to the message that is printed when it stops a command."""


class CommandInterrupt(KeyboardInterrupt):
    """Exception that is raised in the main thread when a signal ends the command.

    A plain KeyboardInterrupt cannot be used: if it passes through ``exec``, which dataclasses call,
    Python kills its own process at exit and ignores the exit code.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Command and flags, without the program name; None takes them from ``sys.argv``.

    Example:
        >>> main(["datasets", "sst"])  # doctest: +SKIP
        0
    """
    words = sys.argv[1:] if argv is None else [*argv]
    advice = _choose_resume_advice(words)
    with _raise_on_signals(advice) as received:
        try:
            from hf_attnprobe.cli.commands import run_command

            return run_command(words)
        except BaseException as error:
            # A library may have turned the signal into an exception of its own.
            if received:
                return _print_interruption(received[0], advice)
            if isinstance(error, KeyboardInterrupt):
                return _print_interruption(signal.SIGINT, advice)
            return _print_error(error)


def _choose_resume_advice(words: Sequence[str]) -> str:
    """Return the advice on how to continue, to be printed if the command is interrupted."""
    if words[:1] in (["demo"], ["cite"]):
        return "run the same command again to start over"
    has_output_dir = any(word.startswith("--output-dir") for word in words)
    if words[:1] in (["audit"], ["evaluate-scores"], ["fit-map"]) and not has_output_dir:
        return "nothing was saved; use --output-dir so that the same command can resume"
    if words[:1] == ["fit-map"]:
        return (
            "run the same command again: it reuses generated answers and the audit of the certifying "
            "texts, but chooses the map again"
        )
    return "run the same command again to resume"


@contextlib.contextmanager
def _raise_on_signals(advice: str) -> Iterator[list[int]]:
    """Raise :class:`CommandInterrupt` on SIGINT or SIGTERM; a second signal ends the process.

    Args:
        advice: Advice that is printed with the second signal.

    Yields:
        List of the signal numbers received so far. If there was a signal, later signals are ignored
        after the context ends.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            if _is_first_process():
                line = f"attnprobe: {SIGNAL_DESCRIPTIONS[signal.Signals(number)]}; {advice}\n"
                os.write(2, line.encode())
            os._exit(SIGNAL_EXIT_CODE_OFFSET + number)
        received.append(number)
        raise CommandInterrupt

    default_handlers = (signal.SIG_DFL, signal.default_int_handler)
    previous_handlers = {}
    # Python lets only the main thread set signal handlers.
    if threading.current_thread() is threading.main_thread():
        previous_handlers = {
            number: signal.signal(number, stop)
            for number in SIGNAL_DESCRIPTIONS
            if signal.getsignal(number) in default_handlers
        }
    try:
        yield received
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, signal.SIG_IGN if received else handler)


def _print_interruption(number: int, advice: str) -> int:
    """Print why the command was interrupted, and return the exit code.

    If there are several processes, only the first one prints the message.
    """
    if _is_first_process():
        print_text(
            f"attnprobe: {SIGNAL_DESCRIPTIONS[signal.Signals(number)]}; {advice}",
            file=sys.stderr,
        )
    return SIGNAL_EXIT_CODE_OFFSET + number


def _is_first_process() -> bool:
    """Return whether this is the first process of a distributed run, or the only process."""
    return os.environ.get("RANK", "0") == "0"


def _print_error(error: BaseException) -> int:
    """Print the message of an expected error and return its exit code.

    An unexpected error is raised again.
    """
    if isinstance(error, AttnProbeError):
        _print_once(escape_line(str(error)))
        return USAGE_ERROR_EXIT_CODE if isinstance(error, UsageError) else 1
    if isinstance(error, BrokenPipeError):
        # Redirect stdout to nowhere. Otherwise, Python would write to it again at exit, fail and
        # print a traceback.
        with contextlib.suppress(AttributeError, OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_EXIT_CODE
    advice = DISK_ERROR_ADVICE.get(error.errno or 0) if isinstance(error, OSError) else None
    if advice is None:
        raise error
    _print_once(
        f"cannot write ({escape_line(str(error))}); {advice} and run the same command again; files "
        "that are already complete are kept"
    )
    return 1


def _print_once(message: str) -> None:
    """Print an error message to stderr, only once even if several processes have failed.

    The first process prints the message immediately, and the launcher then stops the others. The
    other processes wait, and print the message only if they have not been stopped.
    """
    if not _is_first_process():
        time.sleep(FIRST_PROCESS_TIMEOUT)
    print_text(f"attnprobe: {message}", file=sys.stderr)
