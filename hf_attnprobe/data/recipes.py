"""The data sets that have a name here: where they are and how the papers cut them.

These are the tasks of Jain & Wallace (2019), of Serrano & Smith (2019): yahoo, amazon,
yelp, imdb10, and those of ERASER (DeYoung et al. 2020). Not all of the papers' splits are
to be had. Lengths count whitespace tokens and punctuation ends sentences; theirs are
spaCy's tokens and sentences. What a set is, and what differs from the papers, is for
people to read in ``data/cards.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Recipe:
    """Where a data set is and how a paper cuts it.

    Attributes:
        hub_id: on the Hub; with a folder instead, local files are cut in the same way.
            "./…" where nothing is on the Hub: a folder in the working directory.
        config: configuration of the data set, where it has several.
        text_column: default: that of a known pair, else `text` or `sentence`; several
            are joined by a space.
        text_pair_column: the second text, which the tokenizer pairs with the first.
        label_column: default: `label`; without that column there are no labels. Several
            are one column of 0 and 1 per label.
        label_names: names of the classes, where the source has integers.
        first_label: the source's number of the first class.
        keep_labels: names of the classes to keep, renumbered in this order.
        splits: our name of a split -> the source's, where they differ.
        validation_fraction: share of `train` set apart where the source has no
            `validation`.
        balanced_validation: whether that share is taken of every class.
        longer_than, shorter_than: strict bounds on the number of whitespace tokens.
        max_sentences: of training and validation texts; longer ones are dropped as
            outliers.
        max_sentence_tokens: whitespace tokens in any sentence of these texts.
        layout: the module of ``data/layouts`` that reads the authors' own files, where a
            folder holds them.
        name: by which the data set is known here; "" for none.
    """

    hub_id: str
    config: str | None = None
    text_column: str | tuple[str, ...] | None = None
    text_pair_column: str | None = None
    label_column: str | tuple[str, ...] | None = None
    label_names: tuple[str, ...] | None = None
    first_label: int = 0
    keep_labels: tuple[str, ...] | None = None
    splits: Mapping[str, str] = field(default_factory=dict)
    validation_fraction: float | None = None
    balanced_validation: bool = False
    longer_than: int | None = None
    shorter_than: int | None = None
    max_sentences: int | None = None
    max_sentence_tokens: int | None = None
    layout: str | None = None
    name: str = ""

    @property
    def is_pairs(self) -> bool:
        """Whether its texts are known to come in pairs; unknown is False."""
        if self.layout == "eraser":
            return self.name != "eraser-movies"
        return self.text_pair_column is not None or self.layout in ("babi", "cnn")


# Alphabetical, as in the code of Jain & Wallace; the Hub's order is another.
INFERENCE = ("contradiction", "entailment", "neutral")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
_RECIPES: dict[str, Recipe] = {
    "sst": Recipe("SetFit/sst2", label_names=("neg", "pos"), longer_than=5),
    # GLUE's test labels are secret: its validation split is `test`. Do not tune on it.
    "sst2": Recipe("stanfordnlp/sst2", text_column="sentence", splits={"test": "validation"}),
    "imdb": Recipe("stanfordnlp/imdb", validation_fraction=0.2, longer_than=6, shorter_than=400),
    "agnews": Recipe("fancyzhx/ag_news", validation_fraction=0.15),
    "agnews-binary": Recipe(
        "fancyzhx/ag_news", keep_labels=("World", "Business"), validation_fraction=0.15
    ),
    "20news": Recipe(
        "SetFit/20_newsgroups",
        label_column="label_text",
        keep_labels=("rec.sport.baseball", "rec.sport.hockey"),
        validation_fraction=0.2,
        longer_than=6,
        shorter_than=500,
    ),
    "yahoo": Recipe(
        "community-datasets/yahoo_answers_topics",
        text_column=("question_title", "question_content", "best_answer"),
        label_column="topic",
        validation_fraction=0.1,
        balanced_validation=True,
        max_sentences=50,
        max_sentence_tokens=350,
    ),
    "amazon": Recipe(
        "yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes",
        text_column=("review_title", "review_text"),
        label_column="class_index",
        label_names=STARS,
        first_label=1,
        validation_fraction=0.1,
        balanced_validation=True,
        max_sentences=15,
        max_sentence_tokens=130,
    ),
    "yelp": Recipe(
        "Yelp/yelp_review_full",
        validation_fraction=0.1,
        balanced_validation=True,
        max_sentences=43,
        max_sentence_tokens=200,
    ),
    "qqp": Recipe(
        "nyu-mll/glue",
        config="qqp",
        text_column="question1",
        text_pair_column="question2",
        splits={"test": "validation"},  # as for sst2
    ),
    "snli": Recipe(
        "stanfordnlp/snli",
        text_column="premise",
        text_pair_column="hypothesis",
        keep_labels=INFERENCE,
        layout="nli",
    ),
    "multinli": Recipe(
        "nyu-mll/multi_nli",
        text_column="premise",
        text_pair_column="hypothesis",
        keep_labels=INFERENCE,
        splits={"validation": "validation_mismatched", "test": "validation_matched"},
        layout="nli",
    ),
    "adr": Recipe(
        "./adr",
        label_names=("no reaction", "adverse reaction"),
        validation_fraction=0.15,
        longer_than=5,
        shorter_than=100,
        layout="tables",
    ),
    "diabetes": Recipe(
        "./diabetes",
        label_names=("no diabetes", "diabetes"),
        longer_than=6,
        shorter_than=4000,
        layout="mimic",
    ),
    "anemia": Recipe(
        "./anemia",
        label_names=("chronic", "acute"),
        validation_fraction=0.15,
        shorter_than=4000,
        layout="mimic",
    ),
    "cnn": Recipe("./cnn", layout="cnn"),
    # No Hub id of the reviews of Diao et al. (2014) could be verified: a folder in the
    # working directory with columns `text` and `label`, ratings from 1 to 10. The
    # authors' validation split is used if it is there.
    "imdb10": Recipe(
        "./imdb10",
        label_names=tuple(str(rating) for rating in range(1, 11)),
        first_label=1,
        validation_fraction=0.1,
        balanced_validation=True,
    ),
}
for _task in ("babi1", "babi2", "babi3"):
    _RECIPES[_task] = Recipe(f"./{_task}", validation_fraction=0.15, layout="babi")
for _task in (
    "movies",
    "boolq",
    "multirc",
    "fever",
    "evidence-inference",
    "esnli",
    "cose",
):
    _RECIPES[f"eraser-{_task}"] = Recipe(f"./eraser-{_task}", layout="eraser")
RECIPES = {name: replace(recipe, name=name) for name, recipe in _RECIPES.items()}
