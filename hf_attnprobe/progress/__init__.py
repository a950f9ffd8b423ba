"""How far long work is, on one line of stderr, and no bars of the libraries below."""

from hf_attnprobe.progress.bar import Bar, in_words
from hf_attnprobe.progress.quiet import quiet_libraries


__all__ = ["Bar", "in_words", "quiet_libraries"]
