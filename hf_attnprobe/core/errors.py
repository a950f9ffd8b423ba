"""The one error of this package: what was expected, what came, and what to do."""


class AttnProbeError(ValueError):
    """Something the caller can mend.

    The message is one line: what was expected, what came, what to do. The command line
    prints it without a traceback and ends with exit code 1.
    """


class NoSuchSplit(AttnProbeError):
    """The data set is there, but not the split; whoever can do without it may go on."""
