"""What the named data sets are, for people: task, sizes, licence, files, rules.

Licences are noted as their sources state them; it is for the user to keep them.
"""

from dataclasses import dataclass


JAIN_WALLACE = "Jain & Wallace 2019, Table 1"
SOURCE = "its source"
WORDS = "lengths count white-space words, the paper's are spaCy's tokens"


@dataclass(frozen=True)
class Card:
    """One data set in words.

    Attributes:
        task: what is predicted from what.
        n_classes: number of classes; None where it depends on the files.
        sizes: texts in train, validation and test; None where it is not stated.
        sizes_from: who states them.
        licence: as its source states it.
        bring: the files to bring, and where they come from; none where the Hub has it.
        rules: how it is cut, and what differs from the papers.
    """

    task: str
    n_classes: int | None
    sizes: tuple[int | None, int | None, int | None]
    sizes_from: str
    licence: str
    bring: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def _stars(sizes: tuple[int | None, int | None, int | None], bounds: str) -> Card:
    return Card(
        "stars of a review",
        5,
        sizes,
        "Zhang et al. 2015",
        "terms of the site the reviews are from",
        rules=(
            "validation is a tenth of every class of train",
            f"training and validation texts of more than {bounds} are left out; "
            "punctuation ends a sentence, the paper's are spaCy's",
        ),
    )


def _babi(task: int, facts: str) -> Card:
    stem = {1: "single-supporting-fact", 2: "two-supporting-facts"}.get(
        task, "three-supporting-facts"
    )
    return Card(
        f"where somebody or something is, from a story ({facts} needed)",
        6,
        (10000, None, 1000),
        JAIN_WALLACE,
        "CC BY 3.0, by the card of facebook/babi_qa on the Hub",
        (
            f"qa{task}_{stem}_train.txt and qa{task}_{stem}_test.txt of the archive "
            "tasks_1-20_v1-2 (Weston et al. 2015), folder en-10k: in the folder itself, "
            "in en-10k or in tasks_1-20_v1-2/en-10k (then en, with 1,000 questions)",
            "or train, validation and test as Parquet, in the folder itself, in "
            f"qa{task}_10k or in qa{task}, with the columns sentences (list of string), "
            "supporting_facts (places in it from 0), question and label (named classes)",
        ),
        (
            "text: the story's sentences before the question, joined by ' . '; "
            "text_pair: the question; label: the answer",
            "rationale: the words of the supporting sentences",
            "validation, where the files have none: 15% of train, by question as in the "
            "paper, so that stories are shared; Parquet with its own keeps it",
            "classes are the answers that occur; the paper's are all words",
        ),
    )


def _eraser(
    folder: str,
    task: str,
    n_classes: int,
    sizes: tuple[int | None, int | None, int | None],
    rows: str,
    sizes_from: str = "DeYoung et al. 2020",
) -> Card:
    return Card(
        task,
        n_classes,
        sizes,
        sizes_from,
        "that of its source, see the archive's README",
        (
            "train.jsonl, val.jsonl, test.jsonl and the documents (folder docs or "
            f"docs.jsonl) of ERASER's {folder}.tar.gz "
            f"(www.eraserbenchmark.com/zipped/{folder}.tar.gz): in the folder itself or "
            f"in {folder}",
        ),
        (
            rows,
            "rationale: all tokens that an evidence covers, of all groups; a token that "
            "holds other white space than the space is made one word",
        ),
    )


_NLI_ROWS = (
    "pairs without agreement ('-' in the files, -1 on the Hub) are left out",
    "classes in alphabetical order as in the paper's code: contradiction, entailment, neutral",
)
_MIMIC = "PhysioNet Credentialed Health Data License: your own access to MIMIC-III"
_NOTES_RULE = (
    "names that MIMIC took out become DE; tokens are not spaCy's, and repeated marks are "
    "one token by the tokenizer's own rule"
)

CARDS = {
    "sst": Card(
        "sentiment of a sentence",
        2,
        (6355, None, 1725),
        JAIN_WALLACE,
        "none stated by its source",
        rules=(f"more than 5 words; {WORDS}",),
    ),
    "sst2": Card(
        "sentiment of a sentence or phrase (GLUE)",
        2,
        (67349, 872, 1821),
        SOURCE,
        "none stated by its source",
        rules=(
            "labels of the test split are secret: test is its validation split, do not tune on it",
        ),
    ),
    "imdb": Card(
        "sentiment of a film review",
        2,
        (25000, None, 4356),
        JAIN_WALLACE,
        "none stated by its source",
        rules=(
            f"7 to 399 words; {WORDS}",
            "validation is a fifth of train, drawn otherwise than in the paper",
            "test is not thinned to a fifth as in the paper",
        ),
    ),
    "adr": Card(
        "whether a tweet mentions an adverse drug reaction",
        2,
        (16385, None, 4123),
        JAIN_WALLACE,
        "terms of Twitter: bring tweets you may use",
        (
            "adr_dataset.csv with the columns text, label (0, 1) and exp_split (train, "
            "dev, test), as in preprocess/Tweets of github.com/successar/"
            "AttentionExplanation",
            "or one .tsv file, or train.tsv and test.tsv, whose first line is "
            "text<TAB>label, labels 0 or 1",
        ),
        (
            f"6 to 99 words; {WORDS}",
            "one .tsv file: a fifth of every class is the test split, drawn otherwise "
            "than in the paper",
            "validation, where the files have none: 15% of train",
        ),
    ),
    "20news": Card(
        "baseball (0) or hockey (1) of a newsgroup post",
        2,
        (1426, None, 334),
        JAIN_WALLACE,
        "none stated by its source",
        rules=(
            f"7 to 499 words; {WORDS}",
            "the split is by date, the paper's is 80/20 at random; validation is a fifth of train",
            "a folder needs the columns text and label_text, with rec.sport.baseball "
            "and rec.sport.hockey among its values",
        ),
    ),
    "agnews": Card(
        "topic of a news text",
        4,
        (120000, None, 7600),
        "Zhang et al. 2015",
        "for non-commercial use, by its source",
        rules=("validation is 15% of train",),
    ),
    "agnews-binary": Card(
        "World (0) or Business (1) of a news text",
        2,
        (60000, None, 3800),
        JAIN_WALLACE,
        "for non-commercial use, by its source",
        rules=(
            "validation is 15% of train, drawn otherwise than in the paper",
            "the paper's code drops the shortest and the longest texts of each split; "
            "here they stay",
        ),
    ),
    "diabetes": Card(
        "diabetes (ICD-9 250.00) from a discharge note",
        2,
        (7734, None, 1614),
        JAIN_WALLACE,
        _MIMIC,
        (
            "NOTEEVENTS.csv and DIAGNOSES_ICD.csv of MIMIC-III 1.4 (may be .gz), with "
            "train_50_hadm_ids.csv, dev_50_hadm_ids.csv and test_50_hadm_ids.csv of "
            "CAML (mimicdata/mimic3 of github.com/jamesmullenbach/caml-mimic)",
            "or CAML's train_50.csv, dev_50.csv and test_50.csv (columns TEXT and LABELS)",
            "or the paper's mimic_diabetes_dataset.csv (text, label, exp_split)",
        ),
        (f"7 to 3999 words; {WORDS}", _NOTES_RULE),
    ),
    "anemia": Card(
        "chronic (285.2) or acute (285.1) anemia from a discharge note",
        2,
        (5098, None, 1262),
        JAIN_WALLACE,
        _MIMIC,
        (
            "NOTEEVENTS.csv and DIAGNOSES_ICD.csv of MIMIC-III 1.4 (may be .gz)",
            "or CAML's train_full.csv, dev_full.csv and test_full.csv (columns TEXT and LABELS)",
            "or a …_dataset.csv of the paper's notebook (text, label, exp_split)",
        ),
        (
            f"fewer than 4000 words; {WORDS}",
            "admissions with both or neither are left out; a fifth of either class is "
            "the test split and 15% of train validation, drawn otherwise than in the "
            "paper",
            _NOTES_RULE,
        ),
    ),
    "cnn": Card(
        "which entity a cloze question about a news article leaves out",
        None,
        (380298, None, 3198),
        JAIN_WALLACE,
        "articles belong to CNN: bring your own copy",
        (
            "questions/training, questions/validation and questions/test with the "
            ".question files of the anonymised CNN archive of Hermann et al. (2015), in "
            "the folder itself or in cnn",
            "or train.txt, dev.txt and test.txt that Chen et al. (2016) made of them "
            "(question, answer, article and names in lines)",
        ),
        (
            "text: the article; text_pair: the question; label: an @entity",
            "classes are the entities of all articles, by number; all files are read into memory",
        ),
    ),
    "babi1": _babi(1, "one sentence is"),
    "babi2": _babi(2, "two sentences are"),
    "babi3": _babi(3, "three sentences are"),
    "snli": Card(
        "entailment between premise and hypothesis",
        3,
        (549367, None, 9824),
        JAIN_WALLACE,
        "CC BY-SA 4.0, by its card on the Hub",
        (
            "or snli_1.0_train.jsonl, snli_1.0_dev.jsonl and snli_1.0_test.jsonl of "
            "nlp.stanford.edu/projects/snli/snli_1.0.zip, in the folder itself or in "
            "snli_1.0",
        ),
        _NLI_ROWS,
    ),
    "multinli": Card(
        "entailment between premise and hypothesis",
        3,
        (392702, 9832, 9815),
        SOURCE,
        "several, one per genre, by its card on the Hub",
        (
            "or multinli_1.0_train.jsonl, multinli_1.0_dev_matched.jsonl and "
            "multinli_1.0_dev_mismatched.jsonl of MultiNLI 1.0, in the folder itself or "
            "in multinli_1.0",
        ),
        (
            "labels of the test splits are secret: test is validation_matched, "
            "validation is validation_mismatched",
            *_NLI_ROWS,
        ),
    ),
    "qqp": Card(
        "whether two questions ask the same (GLUE)",
        2,
        (363846, 40430, 390965),
        SOURCE,
        "terms of Quora, by its card on the Hub",
        rules=(
            "text: question1; text_pair: question2",
            "labels of the test split are secret: test is its validation split, do not tune on it",
        ),
    ),
    "yelp": _stars((650000, None, 50000), "43 sentences, or 200 words in one,"),
    "amazon": _stars((3000000, None, 650000), "15 sentences, or 130 words in one,"),
    "yahoo": Card(
        "topic of a question with its best answer",
        10,
        (1400000, None, 60000),
        "Zhang et al. 2015",
        "terms of Yahoo's Webscope programme",
        rules=(
            "title, question and answer are joined by a space",
            "validation is a tenth of every class of train",
            "training and validation texts of more than 50 sentences, or 350 words in "
            "one, are left out; punctuation ends a sentence, the paper's are spaCy's",
            "Serrano & Smith test on 5,000 texts per class, the Hub has 6,000",
        ),
    ),
    "imdb10": Card(
        "rating of a film, 1 to 10",
        10,
        (None, None, None),
        "no source found",
        "none stated by its source",
        (
            "files that datasets.load_dataset reads with the columns text and label, "
            "ratings from 1 to 10 (the reviews of Diao et al. 2014; no Hub id of them "
            "could be verified), in splits train, test and perhaps validation",
        ),
        ("validation, where the files have none: a tenth of every class of train",),
    ),
    "eraser-movies": _eraser(
        "movies",
        "sentiment of a film review, with rationales",
        2,
        (1600, 200, 199),
        "text: the review",
        "the Hub's card of movie_rationales",
    ),
    "eraser-boolq": _eraser(
        "boolq",
        "yes or no to a question about an article, with rationales",
        2,
        (None, None, None),
        "text: the article; text_pair: the question",
    ),
    "eraser-multirc": _eraser(
        "multirc",
        "whether an answer to a question about a passage is right, with rationales",
        2,
        (24029, 3214, 4848),
        "text: the passage; text_pair: 'question || answer'",
        "TensorFlow Datasets, eraser_multi_rc",
    ),
    "eraser-fever": _eraser(
        "fever",
        "whether a document supports or refutes a claim, with rationales",
        2,
        (None, None, None),
        "text: the document, or several behind one another; text_pair: the claim",
    ),
    "eraser-evidence-inference": _eraser(
        "evidence_inference",
        "whether a treatment changed an outcome, with rationales",
        3,
        (None, None, None),
        "text: the article; text_pair: the prompt",
    ),
    "eraser-esnli": _eraser(
        "esnli",
        "entailment between premise and hypothesis, with rationales in both",
        3,
        (None, None, None),
        "text: the premise; text_pair: the hypothesis, with rationale_pair",
    ),
    "eraser-cose": _eraser(
        "cose",
        "answer to a question among five, with rationales",
        5,
        (None, None, None),
        "text: the question; choices: the five answers (A to E); label: the letter",
    ),
}
