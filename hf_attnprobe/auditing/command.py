"""The command that repeats an audit: what was asked for, as data and as a line.

An audit records what it was asked beyond the defaults. Secrets are never recorded.
"""

import dataclasses
import os
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.cards.names import IN_MEMORY
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.faithfulness.registry import DEFAULT, tests
from hf_attnprobe.options import Options, as_text


WITHOUT_EFFECT = {"batch_size", "memory_budget"}
"""Options that change no number."""
OBJECT = "an object in Python"


def asked_for(
    model: Any,
    data: Data,
    tests: Mapping[str, Options],
    options: AuditOptions,
) -> dict[str, Any]:
    """What an audit was asked beyond the defaults, as plain data by the name of its flag.

    A model or data set that is an object is recorded as being one.
    """
    return {
        "model": _named(model),
        "dataset": _named(data.dataset),
        **_changed(data, leave_out={"dataset", "train_limit"}),
        **_changed(options, leave_out=WITHOUT_EFFECT),
        **_tests_asked(tests, in_haste=options.in_haste),
    }


def _named(thing: Any) -> str:
    return os.fspath(thing) if isinstance(thing, str | os.PathLike) else OBJECT


def _changed(
    options: Options, usual: Options | None = None, *, leave_out: Collection[str] = ()
) -> dict[str, Any]:
    """Fields that are not the usual ones, which are the defaults; no secret ones."""
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        expected = field.default if usual is None else getattr(usual, field.name)
        if field.repr and field.name not in leave_out and value != expected:
            changed[field.name] = _plain(value)
    return changed


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _tests_asked(asked: Mapping[str, Options], *, in_haste: bool) -> dict[str, Any]:
    """By name of the test its options beyond those of a test of which nothing is said."""
    said = {
        name: {} if name == DEFAULT else _changed(given, tests()[name].usual(in_haste=in_haste))
        for name, given in asked.items()
    }
    return {} if said == {DEFAULT: {}} else {"tests": said}


def repeating(provenance: Mapping[str, Any]) -> str:
    """The line for a shell that repeats an audit, by its report's provenance."""
    asked = dict(provenance["asked_for"])
    said = asked.pop("tests", {})
    flags = [*_flags(asked), *(["--tests", *said] if said else [])]
    values = [
        f"{test}.{name}={as_text(value)}"
        for test, options in said.items()
        for name, value in options.items()
    ]
    return shlex.join(["attnprobe", "audit", *flags, *(["--set", *values] if values else [])])


def _flags(asked: Mapping[str, Any]) -> list[str]:
    """Values by name as flags; true and false as the flag alone."""
    flags: list[str] = []
    for name, value in asked.items():
        flag = name.replace("_", "-")
        if value is True:
            flags.append(f"--{flag}")
        elif value is False:
            flags.append(f"--no-{flag}")
        elif value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            flags += [f"--{flag}", *map(str, values)]
    return flags


def is_repeatable(provenance: Mapping[str, Any]) -> bool:
    """Whether model and data have names that a command can be given."""
    asked = provenance["asked_for"]
    return not {asked["model"], asked["dataset"]} & {OBJECT, IN_MEMORY}
