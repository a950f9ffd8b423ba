"""Nouns of reports: words and texts, and the units and inputs that replace them."""

import pytest

from hf_attnprobe.statistics.wording import (
    Wording,
    find_unit_names,
    form_plural,
    rename_units,
)


@pytest.mark.parametrize(
    ("singular", "plural"),
    [
        ("word", "words"),
        ("patch", "patches"),
        ("box", "boxes"),
        ("gas", "gases"),
        ("category", "categories"),
        ("day", "days"),
        ("passage", "passages"),
        ("residue", "residues"),
    ],
)
def test_plurals(singular, plural):
    assert form_plural(singular) == plural
    assert rename_units("A word, two words", singular) in (
        f"A {singular}, two {plural}",
        f"An {singular}, two {plural}",
    )


@pytest.mark.parametrize("unit", ["word", "token", "sentence", "passage"])
def test_wordings_know_the_noun_for_one_unit(unit):
    assert Wording(units=form_plural(unit)).unit_noun == unit


def test_wordings_know_the_noun_for_one_text():
    assert Wording().text_noun == "text" and Wording(texts="prompts").text_noun == "prompt"


def test_options_paths_and_special_tokens_are_not_renamed():
    renamed = rename_units(
        "A word of a text in /data/text/x with --text-column is a token, not a special token. "
        "Use --level word.",
        "item",
    )
    assert renamed == (
        "An item of a bag in /data/text/x with --text-column is an item, not a special token. "
        "Use --level word."
    )


@pytest.mark.parametrize(
    ("provenance", "names"),
    [
        ({}, None),
        ({"units": "sentences"}, None),
        ({"units": "tokens of the prompt"}, None),
        ({"units": "tokens"}, ("token", "text")),
        ({"instance": "visit"}, ("visit", "bag")),
        ({"instance": "patch", "input": "image"}, ("patch", "image")),
    ],
)
def test_the_names_of_units_and_inputs_are_read_from_the_provenance(provenance, names):
    assert find_unit_names(provenance) == names
