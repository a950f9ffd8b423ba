"""What is printed: texts, class names and file names cannot steer the terminal.

lines.py  control characters made visible, and the one place that prints
"""

from hf_attnprobe.terminal.lines import one_line, show, visible


__all__ = ["one_line", "show", "visible"]
