"""The JSON schema of an audit's report, from the classes that it is written from.

``python docs/report_schema.py`` writes docs/report.schema.json anew.
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from hf_attnprobe.core.serialization import written_as
from hf_attnprobe.reports.result import SCHEMA_VERSION
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import RULES, Finding


FILE = Path(__file__).with_name("report.schema.json")
TEXT, COUNT, TRUE_OR_FALSE = ({"type": kind} for kind in ("string", "integer", "boolean"))
NUMBER = {"type": ["number", "null"], "description": "null where it is not defined"}
GRADES = {"enum": [str(answer) for answer in Answer]}
TEXTS = {"type": "array", "items": TEXT}


def schema_of(kind: object) -> dict:
    """The schema of what ``plain`` makes of a value of this type."""
    if dataclasses.is_dataclass(kind):
        return object_of(kind)
    if kind is Answer:
        return GRADES
    simple = {str: TEXT, int: COUNT, float: NUMBER, bool: TRUE_OR_FALSE}
    if kind in simple:
        return simple[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        several = [i for i in inner if i is not types.NoneType]
        options = [schema_of(i) for i in several]
        return (
            {"anyOf": [*options, {"type": "null"}]}
            if len(several) < len(inner)
            else {"anyOf": options}
        )
    if origin is tuple and inner[-1] is not Ellipsis:
        n, item = len(inner), schema_of(inner[0])
        return {"type": "array", "items": item, "minItems": n, "maxItems": n}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(inner[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    raise TypeError(f"no schema for {kind}")


def object_of(kind: type) -> dict:
    """One of a dataclass; all of its fields are there, and no others."""
    hints = get_type_hints(kind)
    names = {written_as(field): field.name for field in dataclasses.fields(kind)}
    return {
        "type": "object",
        "description": kind.__doc__.strip().splitlines()[0],
        "properties": {written: schema_of(hints[name]) for written, name in names.items()},
        "required": list(names),
        "additionalProperties": False,
    }


def expected() -> dict:
    """The whole schema."""
    list_of = {
        name: {"type": "array", "items": {"$ref": f"#/$defs/{kind}"}}
        for name, kind in (
            ("findings", "finding"),
            ("statistics", "statistic"),
            ("comparisons", "comparison"),
        )
    }
    finding, number = object_of(Finding), object_of(Estimate)
    finding["properties"]["rule"] = {"enum": list(RULES)}
    short = {name: finding["properties"][name] for name in ("rule", "answer", "sentence")}
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "model": {**TEXT, "description": "folder, Hub id, or class of the model"},
        "dataset": {**TEXT, "description": "name and split of the texts"},
        "n": {"type": "integer", "minimum": 1, "description": "texts"},
        "seed": COUNT,
        "predicts": {**TEXT, "description": "what is predicted, in words"},
        "answer": {**GRADES, "description": "does attention explain the predictions?"},
        "score": {
            "type": ["object", "null"],
            "description": "faithfulness, 0 a random order and 1 the best; null where not asked",
            "properties": {
                **number["properties"],
                "parts": {"type": "object", "additionalProperties": number},
            },
            "required": [*number["required"], "parts"],
            "additionalProperties": False,
        },
        "verdict": {
            "type": "object",
            "properties": {
                "question": TEXT,
                "answer": GRADES,
                "sentence": {"type": ["string", "null"]},
                "why": {**TEXT, "description": "the reason, where it is not the score alone"},
                "findings": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": short,
                        "required": list(short),
                    },
                },
            },
            "required": [
                "question",
                "answer",
                "sentence",
                "why",
                "findings",
            ],
        },
        "accuracy": {
            "type": ["object", "null"],
            "description": "null without labels",
            "properties": {"answer": GRADES, "n": COUNT},
            "required": ["answer", "n"],
        },
        **list_of,
        "contradictions": {
            **TEXTS,
            "description": "mistakes of the program; report them",
        },
        "notes": TEXTS,
        "provenance": {
            "type": "object",
            "properties": {
                "model_fingerprint": TEXT,
                "data_fingerprint": TEXT,
                "tests": TEXTS,
                "classes": TEXTS,
                "versions": {"type": "object", "additionalProperties": TEXT},
                "asked_for": {"type": "object"},
                "left_out": {"type": "object", "additionalProperties": TEXT},
            },
            "required": ["model_fingerprint", "data_fingerprint", "tests", "versions"],
        },
        "left_out": {
            **TEXTS,
            "description": "within a page: lists of which report.json has more",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Report of an audit of attention, by hf_attnprobe",
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name != "left_out"],
        "$defs": {
            "finding": finding,
            "statistic": object_of(Statistic),
            "comparison": object_of(Comparison),
        },
    }


def written() -> str:
    """The file's text."""
    return json.dumps(expected(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(written())
