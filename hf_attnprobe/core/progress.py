"""While a verb works: one bar on stderr, and none of the libraries below.

The bar says what is done, what is left, and how long that takes.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hf_attnprobe.core.terminal import one_line, show, visible


BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}{postfix}"
SECONDS_BETWEEN_LINES = 30.0  # in a file, where no bar can move
SECONDS_TO_FIRST_LINE = 8.0


@dataclass
class Bar:
    """How far some work is, shown on stderr while the bar is open.

        with Bar("training") as bar:
            bar.move(left=40.0, doing="epoch 1 of 8")

    On a terminal and in a notebook a line that moves; in a file a plain line now and
    then. There is one at a time: a bar that is opened inside another has no line of its
    own, and what it says is said of the part that the outer one is at.

    Attributes:
        name: stands before it.
        shown: whether there is anything to see.
        n_parts: how many parts the work has, of about one size.
        of: what a part is called.
        clock: seconds.
    """

    name: str
    shown: bool = True
    n_parts: int = 1
    of: str = "part"
    clock: Callable[[], float] = time.perf_counter
    _open: ClassVar[list["Bar"]] = []
    _outer: "Bar | None" = field(default=None, init=False)
    _line: Any = field(default=None, init=False)
    _share: float = field(default=0.0, init=False)
    _part: str = field(default="", init=False)
    _seconds: list[float] = field(default_factory=list, init=False)

    def __enter__(self) -> "Bar":
        self._begun = self._part_begun = self._told = self.clock()
        if self.shown:
            self._outer = self._open[-1] if self._open else None
            self._open.append(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self.shown:
            return
        self._open.remove(self)
        if self._line is not None:
            if kind is None:
                self._line.n = 1.0
                self._line.set_postfix_str("", refresh=False)
            self._line.close()
        elif self._told > self._begun and kind is None:
            taken = in_words(self.clock() - self._begun)
            show(f"{self.name}: done in {taken}", file=sys.stderr)

    def part(self, name: str) -> None:
        """The next part begins, and what was open of the last one is done."""
        now = self.clock()
        if self._part:
            self._seconds.append(now - self._part_begun)
        self._part, self._part_begun = name, now

    def move(self, left: float | None, doing: str = "") -> None:
        """Shows what is done, never less than before.

        Args:
            left: seconds, of the part; None where nobody knows.
            doing: at the moment.
        """
        if not self.shown:
            return
        now = self.clock()
        if left is not None:
            # Parts that did not begin take as long as the others on average.
            known = [*self._seconds, now - self._part_begun + left]
            n_to_come = max(self.n_parts - len(known), 0)
            left += n_to_come * sum(known) / len(known)
        if self._part:
            number = f"{self.of} {len(self._seconds) + 1} of {self.n_parts}"
            doing = ", ".join(filter(None, [f"{number}: {self._part}", doing]))
        if self._outer is not None:
            self._outer.move(left, doing)
            return
        spent = now - self._begun
        if left and spent > 0:
            self._share = max(self._share, spent / (spent + left))
        self._draw("" if left is None else f"{in_words(left)} left", doing, now)

    def count(self, n_done: int, n: int, of: str) -> None:
        """Shows how many of equal pieces are done.

        Args:
            of: what they are called.
        """
        spent = self.clock() - self._begun
        self.move(spent / n_done * (n - n_done), f"{n_done} of {n} {of}")

    def say(self, line: str) -> None:
        """Writes a line of its own, above the bar."""
        if self.shown:
            say(line)

    def _draw(self, left: str, doing: str, now: float) -> None:
        if not is_live():
            is_first = self._told == self._begun
            wait = SECONDS_TO_FIRST_LINE if is_first else SECONDS_BETWEEN_LINES
            if now - self._told >= wait:
                self._told = now
                said = ", ".join(filter(None, [f"{self._share:.0%}", left, doing]))
                show(f"{self.name}: {said}", file=sys.stderr)
            return
        if self._line is None:
            from tqdm import tqdm

            self._line = tqdm(
                total=1.0,
                desc=one_line(self.name),
                bar_format=BAR,
                miniters=0,
                dynamic_ncols=True,
            )
        self._line.set_description_str(one_line(self.name), refresh=False)
        said = ", ".join(filter(None, [left, doing]))
        self._line.set_postfix_str(one_line(said), refresh=False)
        self._line.update(self._share - self._line.n)


def say(line: str) -> None:
    """Writes a line to stderr, above a bar that is open."""
    from tqdm import tqdm

    tqdm.write(visible(line), file=sys.stderr)


def is_live() -> bool:
    """Whether a line on stderr can be written anew: on a terminal, and in a notebook."""
    in_notebook = type(sys.stderr).__module__.startswith("ipykernel")
    return in_notebook or sys.stderr.isatty()


def in_words(seconds: float) -> str:
    """A duration as one says it.

    >>> in_words(9.4), in_words(140), in_words(8000)
    ('about 10 s', 'about 2 min', 'about 2.2 h')
    """
    if seconds < 100:
        return f"about {max(round(seconds / 5) * 5, 5)} s"
    if seconds < 100 * 60:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Bars of Transformers, the Hub and datasets are off, and Transformers' warnings too.

    Afterwards everything is as it was. Also a decorator: ``@quiet_libraries()``.
    """
    with _quiet_transformers(), quiet_datasets():
        yield


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    import transformers

    log = transformers.logging
    had_bars, verbosity = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if had_bars:
            log.enable_progress_bar()


@contextmanager
def quiet_datasets() -> Iterator[None]:
    """Bars of datasets are off; as :func:`quiet_libraries`."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
