"""Write the JSON schema of an audit's report from the classes that the report is serialised from.

Usage: python docs/report_schema.py, which writes docs/report.schema.json.
"""

import dataclasses
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Union, get_args, get_origin, get_type_hints

from hf_attnprobe.core.serialization import get_plain_name
from hf_attnprobe.reports.result import SCHEMA_VERSION
from hf_attnprobe.statistics.differences import Comparison
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.grades import Answer
from hf_attnprobe.statistics.position_bias import PositionBias
from hf_attnprobe.statistics.summary import Statistic
from hf_attnprobe.statistics.verdicts import RULES, Finding


FILE = Path(__file__).with_name("report.schema.json")
TEXT, COUNT, TRUE_OR_FALSE = ({"type": kind} for kind in ("string", "integer", "boolean"))
NUMBER = {"type": ["number", "null"], "description": "null if it is undefined"}
GRADES = {"enum": [str(answer) for answer in Answer]}
TEXTS = {"type": "array", "items": TEXT}


def build_type_schema(hint: object) -> dict:
    """Return the schema of a serialised value with this type hint."""
    if dataclasses.is_dataclass(hint):
        return build_object_schema(hint)
    if hint is Answer:
        return GRADES
    simple = {str: TEXT, int: COUNT, float: NUMBER, bool: TRUE_OR_FALSE}
    if hint in simple:
        return simple[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        options = [build_type_schema(item) for item in inner if item is not types.NoneType]
        if types.NoneType in inner:
            options.append({"type": "null"})
        return {"anyOf": options}
    if origin is tuple and inner[-1] is not Ellipsis:
        n, item = len(inner), build_type_schema(inner[0])
        return {"type": "array", "items": item, "minItems": n, "maxItems": n}
    if origin in (tuple, list):
        return {"type": "array", "items": build_type_schema(inner[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": build_type_schema(inner[1])}
    raise TypeError(
        f"cannot describe the type {hint} in a JSON schema; add it to build_type_schema"
    )


def build_object_schema(dataclass: type) -> dict:
    """Return the schema of a serialised dataclass; all of its fields are required, and no others are allowed."""
    hints = get_type_hints(dataclass)
    names = {get_plain_name(field): field.name for field in dataclasses.fields(dataclass)}
    return {
        "type": "object",
        "description": dataclass.__doc__.strip().splitlines()[0],
        "properties": {key: build_type_schema(hints[name]) for key, name in names.items()},
        "required": list(names),
        "additionalProperties": False,
    }


def build_schema() -> dict:
    """Return the schema of a complete report."""
    list_of = {
        name: {"type": "array", "items": {"$ref": f"#/$defs/{kind}"}}
        for name, kind in (
            ("findings", "finding"),
            ("statistics", "statistic"),
            ("comparisons", "comparison"),
        )
    }
    finding, number = build_object_schema(Finding), build_object_schema(Estimate)
    finding["properties"]["rule"] = {"enum": list(RULES)}
    short = {name: finding["properties"][name] for name in ("rule", "answer", "sentence")}
    properties = {
        "schema_version": {"const": SCHEMA_VERSION},
        "model": {**TEXT, "description": "folder, Hub id, or class of the model"},
        "dataset": {**TEXT, "description": "name and split of the texts"},
        "n": {
            **COUNT,
            "minimum": 0,
            "description": "different texts on which the answer is based; 0 without an answer",
        },
        "n_texts": {
            **COUNT,
            "minimum": 1,
            "description": "audited texts, including copies of the same text",
        },
        "n_different_texts": {**COUNT, "minimum": 1, "description": "different audited texts"},
        "seed": COUNT,
        "predicts": {**TEXT, "description": "description of what the model predicts"},
        "answer": {
            **GRADES,
            "description": "does attention explain the predictions? (for evaluate-scores: do the scores "
            "explain them?)",
        },
        "score": {
            "type": ["object", "null"],
            "description": "faithfulness of attention (for evaluate-scores: of the scores): 0 for a random "
            "order, 1 for the best; null if not measured. "
            "For fewer than ten different texts, its value is null",
            "properties": {
                **number["properties"],
                "parts": {"type": "object", "additionalProperties": number},
                "averaged_parts": {**TEXTS, "description": "the parts whose mean is the value"},
            },
            "required": [*number["required"], "parts", "averaged_parts"],
            "additionalProperties": False,
        },
        "verdict": {
            "type": "object",
            "properties": {
                "question": TEXT,
                "answer": GRADES,
                "sentence": {"type": ["string", "null"]},
                "why": {**TEXT, "description": "the reason, if it is not the score alone"},
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
        "rankings": {
            "type": "object",
            "description": "faithfulness of attention and of all rankings that were compared with it, "
            "by name; empty if there are fewer than ten different texts",
            "additionalProperties": number,
        },
        "position_bias": {
            "type": ["object", "null"],
            "description": "a position or length of units that attention prefers although it does not "
            "explain the predictions; null if there is none, or if it was not measured",
            "properties": build_object_schema(PositionBias)["properties"],
            "required": build_object_schema(PositionBias)["required"],
            "additionalProperties": False,
        },
        **list_of,
        "contradictions": {
            **TEXTS,
            "description": "inconsistencies found by self-checks; please report them",
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
            "description": "lists that a page shortens; report.json contains them completely",
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
            "statistic": build_object_schema(Statistic),
            "comparison": build_object_schema(Comparison),
        },
    }


def render_schema() -> str:
    """Return the text of the schema file."""
    return json.dumps(build_schema(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(render_schema())
