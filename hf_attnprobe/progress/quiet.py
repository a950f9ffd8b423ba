"""The libraries below show no bars and no hints of their own while a verb works."""

from collections.abc import Iterator
from contextlib import contextmanager

import transformers


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Bars of Transformers, the Hub and datasets are off, and Transformers' warnings too.

    Afterwards everything is as it was. Also a decorator: ``@quiet_libraries()``.
    """
    with _quiet_transformers(), _quiet_datasets():
        yield


@contextmanager
def _quiet_transformers() -> Iterator[None]:
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
def _quiet_datasets() -> Iterator[None]:
    try:
        import datasets
    except ImportError:  # then it shows nothing
        yield
        return
    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
