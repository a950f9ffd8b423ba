"""The data sets that have a name here: where they are and how the papers cut them.

These are the public tasks of Jain & Wallace (2019), and of Serrano & Smith (2019):
yahoo, amazon, yelp, imdb10. Their splits are not all on the Hub: 20 Newsgroups has its
split by date here, and the IMDB test split is not thinned to a fifth. Lengths count
whitespace tokens and punctuation ends sentences; theirs are spaCy's tokens and
sentences. Yahoo, Amazon and Yelp are the sets of Zhang et al. (2015), which have no
validation split.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """Where a data set is and how a paper cuts it.

    Attributes:
        hub_id: on the Hub; with a folder instead, local files are cut in the same way.
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


STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
RECIPES: dict[str, Recipe] = {
    "sst": Recipe("SetFit/sst2", label_names=("neg", "pos"), longer_than=5),
    # GLUE's test labels are secret: its validation split is `test`. Do not tune on it.
    "sst2": Recipe(
        "stanfordnlp/sst2", text_column="sentence", splits={"test": "validation"}
    ),
    "imdb": Recipe(
        "stanfordnlp/imdb", validation_fraction=0.2, longer_than=6, shorter_than=400
    ),
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
