"""An audit before its first test."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerate import PartialState

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.selection import (
    Choice,
)
from hf_attnprobe.auditing.subject import Subject
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.hardware.memory import one_line_without_memory
from hf_attnprobe.hardware.threads import suited_threads
from hf_attnprobe.inference.encoding import Tokenized


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class PreparedAudit:
    """An audit before its first test: everything is loaded, encoded and chosen.

    Attributes:
        control: what the control is, in words.
        besides: what the report's provenance says beside settings.
    """

    subject: Subject
    examples: "datasets.Dataset"
    data: Data
    options: AuditOptions
    choice: Choice
    identity: dict[str, Any]
    tokenized: Tokenized
    control: str
    besides: dict[str, Any]
    budget: int
    state: PartialState

    @contextlib.contextmanager
    def on_this_machine(self) -> Iterator[None]:
        """Threads as many as help, and one line where there is no memory."""
        with (
            suited_threads(self.subject.adapter.model),
            one_line_without_memory("the audit"),
        ):
            yield
