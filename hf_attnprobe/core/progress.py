"""Progress bars on stderr, and context managers that silence other libraries.

Start reading at :class:`ProgressBar`.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_attnprobe.core.terminal import escape_control_characters, escape_line, print_text


BAR_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
"""Format of tqdm's progress bar: name, percentage, bar, elapsed time, and the current activity."""
SECONDS_TO_FIRST_LINE = 8.0
"""Time until the first progress line in a log file, in seconds. Shorter runs print no such line."""
SECONDS_BETWEEN_LINES = 30.0
"""Time between two progress lines in a log file, in seconds."""


@dataclass
class ProgressBar:
    """A progress bar on stderr, which is open inside a ``with`` block.

    On a terminal and in a notebook, the bar is a line that is rewritten. If stderr is a file, a new line
    is printed at intervals. Only one bar is displayed at a time: a bar that is opened inside another
    one reports its progress to the outer bar, as progress within the current part of the outer bar.

    Attributes:
        name: Text in front of the bar.
        visible: Whether anything is displayed.
        n_parts: Number of parts into which the work is divided.
        part_name: Noun for a part, for example "model".
        clock: Function that returns the current time in seconds.
        part_weights: Expected relative duration of each part; empty if all take equally long.

    Example:
        with ProgressBar("training") as bar:
            bar.update(seconds_left=40.0, activity="epoch 1 of 8")
    """

    name: str
    visible: bool = True
    n_parts: int = 1
    part_name: str = "part"
    clock: Callable[[], float] = time.perf_counter
    part_weights: Sequence[float] = ()
    _open_bars: ClassVar[list["ProgressBar"]] = []
    _outer_bar: "ProgressBar | None" = field(default=None, init=False)
    _tqdm: Any = field(default=None, init=False)
    _share_done: float = field(default=0.0, init=False)
    _current_part: str = field(default="", init=False)
    _seconds_by_part: list[float] = field(default_factory=list, init=False)

    def __enter__(self) -> "ProgressBar":
        self._start = self._part_start = self._last_line = self.clock()
        if self.visible:
            self._outer_bar = self._open_bars[-1] if self._open_bars else None
            self._open_bars.append(self)
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if not self.visible:
            return
        self._open_bars.remove(self)
        if self._tqdm is not None:
            if error_type is None:
                self._tqdm.n = 1.0
                self._tqdm.set_postfix_str("", refresh=False)
            self._tqdm.close()
        elif self._last_line > self._start and error_type is None:
            duration = format_duration(self.clock() - self._start)
            print_text(f"{self.name}: done in {duration}", file=sys.stderr)

    def start_part(self, name: str) -> None:
        """Start the next part of the work; the current part is then finished.

        Args:
            name: Part name, for example a model folder.
        """
        now = self.clock()
        if self._current_part:
            self._seconds_by_part.append(now - self._part_start)
        self._current_part, self._part_start = name, now

    def update(self, seconds_left: float | None, activity: str = "") -> None:
        """Update the displayed progress, whose percentage never decreases.

        Args:
            seconds_left: Estimated seconds until the current part is finished; None if unknown.
            activity: Short description of the current activity, such as "epoch 1 of 8".
        """
        if not self.visible:
            return
        now = self.clock()
        if seconds_left is not None:
            # Each unstarted part is expected to take as long as the average of the other parts, in
            # proportion to its weight.
            expected_seconds = [*self._seconds_by_part, now - self._part_start + seconds_left]
            n_started = len(expected_seconds)
            weights = self.part_weights or [1.0] * max(self.n_parts, n_started)
            seconds_per_weight = sum(expected_seconds) / sum(weights[:n_started])
            seconds_left += sum(weights[n_started:]) * seconds_per_weight
        if self._current_part:
            part_number = f"{self.part_name} {len(self._seconds_by_part) + 1} of {self.n_parts}"
            activity = _join_nonempty(f"{part_number}: {self._current_part}", activity)
        if self._outer_bar is not None:
            self._outer_bar.update(seconds_left, activity)
            return
        elapsed = now - self._start
        # If the estimate of the time left grows, the displayed percentage stays the same.
        if seconds_left and elapsed > 0:
            self._share_done = max(self._share_done, elapsed / (elapsed + seconds_left))
        is_unknown = seconds_left is None or self._share_done == 1
        time_left = "" if is_unknown else f"{format_duration(seconds_left or 0.0)} left"
        self._draw(time_left, activity, now)

    def update_count(self, n_done: int, n_total: int, unit: str) -> None:
        """Display how many equally large work items are finished, such as "3 of 10 prompts".

        Args:
            n_done: Number of finished items, at least 1.
            n_total: Total number of items.
            unit: Plural noun for the items, for example "prompts".
        """
        elapsed = self.clock() - self._part_start
        seconds_left = elapsed / n_done * (n_total - n_done)
        if n_done == n_total and len(self._seconds_by_part) + 1 >= self.n_parts:
            self._share_done = 1.0
        self.update(seconds_left, f"{n_done} of {n_total} {unit}")

    def print_line(self, line: str) -> None:
        """Print a line above the bar."""
        if self.visible:
            print_line(line)

    def _draw(self, time_left: str, activity: str, now: float) -> None:
        """Draw the progress bar again.

        If stderr is a file, a bar cannot be redrawn. A new line is then printed from time to time.
        """
        if not can_rewrite_line():
            is_first = self._last_line == self._start
            interval = SECONDS_TO_FIRST_LINE if is_first else SECONDS_BETWEEN_LINES
            if now - self._last_line >= interval:
                self._last_line = now
                status = _join_nonempty(f"{self._share_done:.0%}", time_left, activity)
                print_text(f"{self.name}: {status}", file=sys.stderr)
            return
        if self._tqdm is None:
            from tqdm import tqdm

            self._tqdm = tqdm(
                total=1.0,
                desc=escape_line(self.name),
                bar_format=BAR_FORMAT,
                miniters=0,
                dynamic_ncols=True,
            )
        self._tqdm.set_description_str(escape_line(self.name), refresh=False)
        status = _join_nonempty(time_left, activity)
        self._tqdm.set_postfix_str(escape_line(status), refresh=False)
        self._tqdm.update(self._share_done - self._tqdm.n)


def _join_nonempty(*texts: str) -> str:
    """Join texts with commas, and leave out empty ones."""
    return ", ".join(filter(None, texts))


def print_line(line: str) -> None:
    """Print a line to stderr, above an open progress bar."""
    from tqdm import tqdm

    tqdm.write(escape_control_characters(line), file=sys.stderr)


def can_rewrite_line() -> bool:
    """Check whether stderr can replace a printed line, as a terminal and a notebook can."""
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel")
    return is_notebook or sys.stderr.isatty()


def format_duration(seconds: float) -> str:
    """Format a duration approximately, such as "about 2 min".

    Args:
        seconds: The duration.

    Returns:
        Seconds in steps of 5, or minutes from 100 seconds, or hours from 100 minutes, or days from 48
        hours.

    >>> format_duration(9.4), format_duration(140), format_duration(8000), format_duration(3.28e6)
    ('about 10 s', 'about 2 min', 'about 2.2 h', 'about 38 days')
    """
    if seconds < 100:
        return f"about {max(round(seconds / 5) * 5, 5)} s"
    if seconds < 100 * 60:
        return f"about {round(seconds / 60)} min"
    if seconds < 48 * 3600:
        return f"about {seconds / 3600:.1f} h"
    return f"about {seconds / (24 * 3600):.0f} days"


@contextmanager
def silence_libraries() -> Iterator[None]:
    """Switch off progress bars and warnings of other libraries inside a ``with`` block.

    These are the progress bars of Transformers and datasets, and the warnings of Transformers. The
    previous settings are restored at the end of the block. It can also be used as a decorator:
    ``@silence_libraries()``.
    """
    with _silence_transformers(), silence_datasets():
        yield


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Switch off progress bars and warnings of Transformers inside a ``with`` block."""
    import transformers

    log = transformers.logging
    had_bars = log.is_progress_bar_enabled()
    verbosity = log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if had_bars:
            log.enable_progress_bar()


@contextmanager
def silence_datasets() -> Iterator[None]:
    """Switch off the progress bars of the library datasets inside a ``with`` block."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
