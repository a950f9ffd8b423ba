"""The command that repeats an audit: what was asked for, as data and as a line.

An audit records what it was asked beyond the defaults. Secrets are never recorded.
"""

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.registry import DEFAULT, options_of_tests, tests
from hf_attnprobe.options import Options


WITHOUT_EFFECT = {"batch_size", "memory_budget"}
"""Options that change no number."""
OBJECT = "an object in Python"


def asked_for(
    model: Any,
    data: Data,
    given: Sequence[str | Options] | str | Options | None,
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
        **_tests_asked(given, in_haste=options.in_haste),
    }


def _named(thing: Any) -> str:
    return os.fspath(thing) if isinstance(thing, str | os.PathLike) else OBJECT


def _changed(options: Options, leave_out: set[str]) -> dict[str, Any]:
    """Fields that are not the defaults; no secret ones."""
    return {
        field.name: _plain(getattr(options, field.name))
        for field in dataclasses.fields(options)
        if field.repr
        and field.name not in leave_out
        and getattr(options, field.name) != field.default
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _tests_asked(
    given: Sequence[str | Options] | str | Options | None, *, in_haste: bool
) -> dict[str, Any]:
    """Names of the tests, and their options beyond the defaults."""
    chosen, by_default = options_of_tests(given, in_haste=in_haste)
    if not chosen:  # only those that suit the model
        return {}
    asked: dict[str, Any] = {"tests": [*chosen, *([DEFAULT] if by_default else [])]}
    for name, options in chosen.items():
        hasty = tests()[name].in_haste
        if hasty is not None and in_haste:  # where the default is not what runs
            others = _changed(hasty, leave_out=set())
            asked |= {field: _plain(getattr(options, field)) for field in others}
        asked |= _changed(options, leave_out=set())
    return asked


def repeating(provenance: Mapping[str, Any], model: str, dataset: DatasetName, n: int) -> str:
    """The line for a shell that repeats an audit.

    Args:
        provenance: of a report; of older versions it does not say all that was asked.
        model: what the report calls the model.
        dataset: what it calls the texts.
        n: texts, the empty ones among them.
    """
    asked = provenance.get("asked_for")
    if asked is None:
        asked = {"model": model, "dataset": dataset.name, "split": dataset.split}
        asked |= {"test_limit": n} | _recorded(provenance)
    return shlex.join(["attnprobe", "audit", *_flags(asked)])


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


def _recorded(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What older reports say of what was asked; not the columns of the data."""
    known = {field.name: field for field in dataclasses.fields(AuditOptions)}
    found = {
        **provenance,
        **provenance.get("sites", {}),
        **provenance.get("origin", {}),
    }
    asked: dict[str, Any] = {"tests": provenance.get("tests")}
    for name, field in known.items():
        value = found.get(name)
        unchanged = value in (None, "default", [], field.default)
        if name in ("control", *WITHOUT_EFFECT) or unchanged:
            continue
        if name == "screen" and isinstance(value, list | tuple):
            value = value[0]  # it stands with what it depends on
        asked[name] = value
    for name, values in provenance.get("options", {}).items():
        if name in provenance.get("tests", []) and name in tests():
            default = dataclasses.asdict(tests()[name].options())
            asked |= {
                key: value for key, value in values.items() if _plain(default.get(key)) != value
            }
    return asked


def is_repeatable(provenance: Mapping[str, Any]) -> bool:
    """Whether model and data have names that a command can be given."""
    asked = provenance.get("asked_for", {})
    return OBJECT not in (asked.get("model"), asked.get("dataset"))
