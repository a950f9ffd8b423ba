"""The exceptions of this package."""


class AttnProbeError(ValueError):
    """An error that the user can fix, such as a wrong option, a missing file or a damaged folder.

    The message is a single line: it names the expected and the received value, and a way to fix the
    error. The command line prints the message without a traceback and exits with code 1.
    """


class UsageError(AttnProbeError):
    """The value of a command-line flag is wrong. The command line exits with code 2."""


class UndefinedLogitsError(AttnProbeError):
    """The logits of a language model for one prompt are NaN or infinite."""


class MissingSplitError(AttnProbeError):
    """A data set exists but does not have the requested split."""
