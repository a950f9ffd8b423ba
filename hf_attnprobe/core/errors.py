"""The exceptions of this package."""


class AttnProbeError(ValueError):
    """An error that the user can fix, such as a wrong option, a missing file or a damaged folder.

    Its message is one line that contains what was expected, what was received, and how to fix it. The
    command line prints the message without a traceback and exits with code 1.
    """


class MissingSplitError(AttnProbeError):
    """A data set exists but does not have the requested split."""
