"""Premise and hypothesis as SNLI and MultiNLI give them out, in JSON lines.

Pairs without agreement, whose label is "-", are left out, as everywhere.
"""

from pathlib import Path

from hf_attnprobe.data.layouts.files import Contents, Row, find, json_lines, require


# MultiNLI's test labels are secret; the splits are named as on the Hub.
FILES = {
    "snli": {
        "train": "snli_1.0_train.jsonl",
        "validation": "snli_1.0_dev.jsonl",
        "test": "snli_1.0_test.jsonl",
    },
    "multinli": {
        "train": "multinli_1.0_train.jsonl",
        "validation_matched": "multinli_1.0_dev_matched.jsonl",
        "validation_mismatched": "multinli_1.0_dev_mismatched.jsonl",
    },
}


def read_nli(folder: Path, name: str) -> Contents | None:
    """Rows of `premise`, `hypothesis` and `label`; None without such files."""
    files = FILES[name]
    place = find(folder, list(files.values()), ("", f"{name}_1.0"))
    if place is None:
        return None
    paths = {split: require(place, files[split], name) for split in files}
    return Contents({split: _pairs(paths[split]) for split in paths})


def _pairs(path: Path) -> list[Row]:
    return [
        {
            "premise": row["sentence1"],
            "hypothesis": row["sentence2"],
            "label": row["gold_label"],
        }
        for row in json_lines(path, ("sentence1", "sentence2", "gold_label"))
        if row["gold_label"] != "-"
    ]
