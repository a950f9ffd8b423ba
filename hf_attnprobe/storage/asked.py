"""The options of a verb that differ from the defaults, as data and as the command that repeats
it.

Secrets are never recorded.
"""

import dataclasses
import os
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from hf_attnprobe.data.arguments import Data
from hf_attnprobe.options import DEFAULT, Options, as_text


WITHOUT_EFFECT = ("batch_size", "memory_budget")
"""Options of an audit that change no number."""
OBJECT = "an object in Python"


def asked_for(
    model: Any,
    data: Data,
    options: Options,
    tests: Mapping[str, Options],
    usual: Mapping[str, Options],
    *,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """The options of a verb that differ from the defaults, by the name of their flag.

    A model or data set that is an object is recorded as being one.

    Args:
        model: a :class:`~hf_attnprobe.options.SavedModel`, a name, or an object.
        tests: the tests that were asked for, with their options.
        usual: the options of tests of which nothing is said, by name of the test.
        leave_out: arguments that mean nothing to the verb, or change no number.
    """
    said = {
        name: {} if name == DEFAULT else _changed(given, usual[name])
        for name, given in tests.items()
    }
    is_saved = isinstance(model, Options)
    return {
        **(_changed(model) if is_saved else {"model": named(model)}),
        "dataset": named(data.dataset),
        **_changed(data, leave_out=("dataset", *leave_out)),
        **_changed(options, leave_out=leave_out),
        **({} if said in ({}, {DEFAULT: {}}) else {"tests": said}),
    }


def named(thing: Any) -> str:
    """A path or a name; of an object that it is one."""
    return os.fspath(thing) if isinstance(thing, str | os.PathLike) else OBJECT


def _changed(
    options: Options,
    usual: Options | None = None,
    *,
    leave_out: Collection[str] = (),
) -> dict[str, Any]:
    """Fields that are not the usual ones, which are the defaults; no secret ones."""
    changed = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        expected = (
            field.default if usual is None else getattr(usual, field.name)
        )
        if field.repr and field.name not in leave_out and value != expected:
            changed[field.name] = _plain(value)
    return changed


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return list(value) if isinstance(value, list | tuple) else value


def repeating(verb: str, provenance: Mapping[str, Any], **changed: Any) -> str:
    """Returns the line for a shell that repeats a verb, by its report's provenance.

    Args:
        changed: arguments with other values than they had.
    """
    asked = {**provenance["asked_for"], **changed}
    said = asked.pop("tests", {})
    words = [
        "attnprobe",
        verb,
        *_flags(asked),
        *(["--tests", *said] if said else []),
    ]
    values = [
        f"{test}.{name}={as_text(value)}"
        for test, options in said.items()
        for name, value in options.items()
    ]
    return shlex.join([*words, *(["--set", *values] if values else [])])


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
    return OBJECT not in (asked["model"], asked["dataset"], asked.get("scores"))
