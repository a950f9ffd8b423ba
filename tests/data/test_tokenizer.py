import re
import string
import time
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split
from transformers import AutoTokenizer

from hf_attnprobe.data import recipes
from hf_attnprobe.data.recipes import split_sentences
from hf_attnprobe.data.tokenizer import (
    _CAPITALISED_SENTENCE_END,
    _CHINESE_SENTENCE_END,
    _LINE_BREAK,
    _SENTENCE_END,
    SPECIAL_TOKENS,
    build_tokenizer,
    locate_sentences,
)
from hf_attnprobe.inference.answers import _find_passages
from tests.helpers.error_messages import refuses


SST = Path(__file__).parents[2] / "../shared/data/sst/data"
TEXTS = ["The film was moving .", "the film was n't dull , the cast was", "A 21st century film"]
TOKENIZER = build_tokenizer(TEXTS)


def words(text, tokenizer=TOKENIZER):
    """What a text is cut into, whether the words are in the vocabulary or not."""
    backend = tokenizer.backend_tokenizer
    normal = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal)]


RULES = {
    "It's a great, great film.": "it's a great , great film .",
    'He said: "don\'t!"': 'he said : " don\'t ! "',
    "it 's -- do n't ... high-concept": "it 's -- do n't ... high-concept",
    "wait...what?? no--yes!": "wait ... what ?? no -- yes !",
    "'tis the 'best' film, rock 'n' roll": "'tis the ' best ' film , rock 'n' roll",
    "(Mr. Bean's J. R. co-writer/director)": "( mr. bean's j. r. co-writer/director )",
    "the U.S. and the u.n., i.e. all": "the u.s. and the u.n. , i.e. all",
    "the end.The start": "the end . the start",
    "in the 21st century, 12-year-olds of the '70s": "in the qqq century , qqq of the qqq",
    "$1,000.50 or 9% of k-19, 1/2.": "$ qqq or qqq % of qqq , qqq .",
    "a9.5b 1.5.a '9 lives'": "qqq qqq . a ' qqq lives '",
    "snake_case __x__": "snake _ case __ x __",
    "<br />`` Conan ''": "< br / > `` conan ''",
    "CAFÉ 中文 naïve\u2014yes\u2026": "café 中文 naïve \u2014 yes \u2026",
    "<sos> <pad>": "< sos > < pad >",
    " \t\n\u00a0": "",
}


# --- what is one token --------------------------------------------------------------------------------------------


def test_examples_of_every_rule():
    for text, expected in RULES.items():
        assert words(text) == expected.split()


def test_sst_comes_out_as_it_went_in():
    """Measured: .997, .999 and .996 of the sentences; what differs is mostly `no.` and rare abbreviations."""
    if not SST.is_dir():
        pytest.skip("the real SST is not on this machine (expected in ../shared/data/sst)")
    for split in ("train", "validation", "test"):
        texts = pyarrow.parquet.read_table(next(SST.glob(f"{split}-*.parquet")))["text"].to_pylist()
        expected = [
            [re.sub(r".*\d.*", "qqq", word) for word in text.lower().split(" ")] for text in texts
        ]
        same = sum(words(text) == tokens for text, tokens in zip(texts, expected, strict=True))
        assert same / len(texts) > 0.995


# Old scripts only: Python and the tokenizer need not know the same edition of Unicode.
OLD = st.characters(max_codepoint=0x1BFF, exclude_categories=["Cn"])
ANYTHING = st.text(
    st.one_of(OLD, st.sampled_from("\u2028\u2014\u2026\u4e2d\ufdd0\U0001f600")), max_size=40
)
DENSE = st.text(st.sampled_from("aB9.,-/'’ _!$m\u00e9"), max_size=25)


@settings(max_examples=100)
@given(text=st.one_of(ANYTHING, DENSE))
def test_folding_digits_changes_no_boundary(text):
    text = text.replace("\ufdd0", "")
    lower = normalizers.Lowercase().normalize_str(text)
    unfolded = [
        word for word, _ in TOKENIZER.backend_tokenizer.pre_tokenizer.pre_tokenize_str(lower)
    ]
    assert words(text) == ["qqq" if re.search(r"\d", word) else word for word in unfolded]


@settings(max_examples=100)
@given(text=st.one_of(ANYTHING, DENSE))
def test_no_digit_no_space_and_nothing_lost(text):
    tokens = words(text)
    assert not any(re.search(r"[\d \t\n]", token) for token in tokens)
    letters = "".join(c for c in text.lower() if c in string.ascii_lowercase)
    if not re.search(r"\d|\ufdd0", text) and text.isascii():
        assert "".join(c for c in "".join(tokens) if c in string.ascii_lowercase) == letters


@settings(max_examples=100)
@given(text=st.one_of(ANYTHING, DENSE))
def test_tokens_joined_by_spaces_are_cut_the_same_way_again(text):
    tokens = words(text)
    assert words(" ".join(tokens)) == tokens


@settings(max_examples=100)
@given(text=st.one_of(ANYTHING, DENSE))
def test_offsets_cover_whole_words(text):
    encoded = TOKENIZER(text, return_offsets_mapping=True, add_special_tokens=False)
    spans = encoded["offset_mapping"]
    assert all(start < end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(text)]
    between = [text[a:b] for a, b in zip(starts, ends, strict=True)]
    assert not any(re.search(r"[a-zA-Z0-9!$]", gap) for gap in between)


# --- ids and encodings --------------------------------------------------------------------------------------------


def test_vocabulary_is_ordered_by_document_frequency_then_alphabet():
    vocabulary = sorted(TOKENIZER.get_vocab(), key=TOKENIZER.get_vocab().get)
    # `the` is in 2 texts although it occurs three times.
    assert vocabulary[:7] == [*SPECIAL_TOKENS, "film", "the", "was"]
    assert vocabulary[7:] == sorted(vocabulary[7:]) and "qqq" in vocabulary


@settings(max_examples=30)
@given(texts=st.permutations(TEXTS))
def test_vocabulary_does_not_depend_on_the_order_of_the_texts(texts):
    assert build_tokenizer(iter(texts)).get_vocab() == TOKENIZER.get_vocab()


def test_special_tokens_have_the_ids_of_the_papers():
    ids = [getattr(TOKENIZER, f"{name}_token_id") for name in ("pad", "unk", "bos", "eos")]
    assert ids == [0, 1, 2, 3]
    assert TOKENIZER.model_input_names == ["input_ids", "attention_mask"]
    assert TOKENIZER.padding_side == "right"


def test_rare_words_and_words_beyond_the_bound_are_unknown():
    frequent = build_tokenizer(TEXTS, min_document_frequency=2)
    assert frequent.tokenize("the film was dull") == ["the", "film", "was", "<unk>"]
    small = build_tokenizer(TEXTS, max_vocab_size=6)
    assert len(small) == 6 and small.tokenize("the film was") == ["the", "film", "<unk>"]


def test_truncation_keeps_the_special_tokens():
    tokenizer = build_tokenizer(TEXTS, model_max_length=5)
    assert tokenizer("the the the the the", truncation=True)["input_ids"] == [2, 5, 5, 5, 3]


@pytest.fixture(scope="module", params=["built", "saved"])
def tokenizer(request, tmp_path_factory):
    if request.param == "built":
        return TOKENIZER
    folder = tmp_path_factory.mktemp("tokenizer")
    TOKENIZER.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_single_sentences_padding_and_masks(tokenizer):
    wanted = {"return_special_tokens_mask": True, "return_offsets_mapping": True}
    batch = tokenizer(["The film", "dull!"], padding=True, **wanted)
    dull = tokenizer.convert_tokens_to_ids("dull")
    assert sorted(batch) == ["attention_mask", "input_ids", "offset_mapping", "special_tokens_mask"]
    assert batch["input_ids"] == [[2, 5, 4, 3], [2, dull, 1, 3]]
    assert batch["special_tokens_mask"] == [[1, 0, 0, 1]] * 2
    assert batch["offset_mapping"][1] == [(0, 0), (0, 4), (4, 5), (0, 0)]
    assert batch.word_ids(0) == [None, 0, 1, None]
    assert tokenizer(["the", ""], padding=True)["attention_mask"] == [[1, 1, 1], [1, 1, 0]]


def test_pairs(tokenizer):
    pair = tokenizer(
        "the film", "was moving", return_token_type_ids=True, return_special_tokens_mask=True
    )
    assert pair.tokens() == ["<sos>", "the", "film", "<eos>", "was", "moving", "<eos>"]
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1, 1]
    assert pair["special_tokens_mask"] == [1, 0, 0, 1, 0, 0, 1]
    assert pair.sequence_ids(0) == [None, 0, 0, None, 1, 1, None]


def test_words_given_as_such(tokenizer):
    given_words = tokenizer(["The", "n't", "21st"], is_split_into_words=True)
    assert given_words.tokens() == ["<sos>", "the", "n't", "qqq", "<eos>"]
    assert given_words.word_ids() == [None, 0, 1, 2, None]


def test_a_literal_special_token_is_ordinary_text(tokenizer):
    assert not {0, 2, 3} & set(tokenizer("<sos> <pad><eos>", add_special_tokens=False)["input_ids"])
    tokens = ["<sos>", "the", "<unk>", "<unk>", "<unk>", "film", "<eos>"]
    assert tokenizer("the <eos> film").tokens() == tokens


def test_folded_tokens_keep_the_offsets_of_the_whole_word(tokenizer):
    text = "the 12-year-old 9 films of '70s"
    spans = tokenizer(text, return_offsets_mapping=True)["offset_mapping"][1:-1]
    assert [text[start:end] for start, end in spans] == text.split()


def test_decoding_gives_the_words_back(tokenizer):
    ids = tokenizer("the film was n't moving , the")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "the film was n't moving , the"


# --- what goes wrong ----------------------------------------------------------------------------------------------


def test_errors():
    for texts, options, expected in (
        ("one text", {}, "texts must be a list of strings, got a single string"),
        (["a", None], {}, r"texts\[1\] is of type NoneType"),
        ([], {}, "occurs in 1 or more texts"),
        ([" "], {}, "occurs in 1 or more texts"),
        (
            ["a", "b"],
            {"min_document_frequency": 2},
            "none of the 2 different words occurs in 2 or more texts",
        ),
        (["a"], {"min_document_frequency": 0}, "at least 1, got 0"),
        (
            ["a"],
            {"max_vocab_size": 4},
            r"must be greater than the number of special tokens \(4\), got 4",
        ),
        (
            TEXTS,
            {"sentences": True, "max_vocab_size": 5},
            r"must be greater than the number of special tokens \(5\), got 5",
        ),
    ):
        with refuses(expected):
            build_tokenizer(texts, **options)


# --- sentences ----------------------------------------------------------------------------------------------------


SENTENCES = build_tokenizer([*TEXTS, "<sep> is written here"], sentences=True)


def cut(text):
    """Words and separators, in the vocabulary or not."""
    return words(text, SENTENCES)


ENDS = {
    "One. Two! Three? Four… five": "one . <sep> two ! <sep> three ? <sep> four … <sep> five",
    "Wait... What?! No end": "wait ... <sep> what ? ! <sep> no end",
    '"Quite." (Really!) [So?] «Yes.» on': (
        '" quite . " <sep> ( really ! ) <sep> [ so ? ] <sep> « yes . » <sep> on'
    ),
    "the film was dull . so be it .": "the film was dull . <sep> so be it .",
    "Mr. Bean met DR. No and J. K. R. in the U.S. now": (
        "mr. bean met dr. no and j. k. r. in the u.s. now"
    ),
    "It's best. Isn't it. He's 3.5 m. tall": (
        "it's best . <sep> isn't it . <sep> he's qqq m. tall"
    ),
    "in 1999. '70s. x": "in qqq . <sep> qqq . <sep> x",
    "no.space.here": "no . space . here",
    "a<br /><br />b <BR> so.<br/>d": "a <sep> b <sep> so . <sep> d",
    "a\nb\r\n\r\n so. \n d\u2028e\tf": "a <sep> b <sep> so . <sep> d <sep> e f",
    "my own <sep> split. <sep> here<sep>there": "my own <sep> split . <sep> here <sep> there",
    "the end. ": "the end .",
    "<sos> <eos>": "< sos > < eos >",
    "": "",
}


@given(st.text(alphabet="aB.!?\"') \n\t\u2028\u3002<br>", max_size=60))
@settings(max_examples=300)
def test_sentences_end_where_a_search_from_every_character_finds_their_ends(text):
    """White space is searched only from its first character, which must not change any sentence."""
    plain_line_breaks = rf"\s*{_LINE_BREAK}(?:\s|{_LINE_BREAK})*"
    sentence_end = _CAPITALISED_SENTENCE_END if text != text.lower() else _SENTENCE_END
    plain = Split(
        Regex(f"{sentence_end}|{plain_line_breaks}|{_CHINESE_SENTENCE_END}"), "removed"
    ).pre_tokenize_str(text)
    expected = [span for piece, span in plain if piece.strip()]
    assert locate_sentences(text) == expected
    plain_end = r"""(?<=[.!?…])\s+|(?<=[.!?…]["'”’)\]])\s+|\s*\n\s*"""
    assert re.split(recipes._SENTENCE_END, text) == re.split(plain_end, text)


@pytest.mark.parametrize(
    "sentences",
    [
        ["This agreement is made between Norvik Ltd. and the Supplier.", "It ends in May."],
        ["Norvik Ltd. (the Buyer) pays.", "The Supplier is Acme Corp.", "The price is fixed."],
        ["Huawei Co. Ltd. was paid by Acme Inc. Chairman Bill Smith.", "He left!", "Why?"],
        ['He asked "Why?" and left.', "Well… maybe.", '"Yes," she said.', "(It rained.)"],
        ["Dr. Brandt eats z.B. Äpfel.", "Élan ended.", "3 remain."],
        ["the film was dull.", "so be it.", "acme ltd.", "and so on"],
        ["他走了。", "She left！", "然后呢？"],
    ],
)
def test_no_sentence_starts_with_a_lower_case_letter_in_a_text_with_capitals(sentences):
    text = " ".join(sentences)
    assert [text[start:end].strip() for start, end in locate_sentences(text)] == sentences


@pytest.mark.parametrize("white", [" ", "\n", " \n", "\t"])
@pytest.mark.parametrize("text", ["A b.{}C d.", "A b{}c d", "{}a", "a{}", "a{}!!!"])
def test_long_white_space_is_split_in_linear_time(white, text):
    """16,000 spaces took 3 seconds, and the time grew with the square of their number."""
    text = text.format(white * 50_000)
    tokenizer = build_tokenizer(["a b. c d."], sentences=True)
    start = time.process_time()
    locate_sentences(text)
    split_sentences(text)
    _find_passages(text)
    tokenizer(text)
    assert time.process_time() - start < 2


def test_where_sentences_end():
    for text, expected in ENDS.items():
        assert cut(text) == expected.split()


def test_the_separator_has_an_id_of_its_own():
    assert (SENTENCES.sep_token, SENTENCES.sep_token_id) == ("<sep>", 4)
    assert SENTENCES.convert_tokens_to_ids("<sep>") == 4
    assert TOKENIZER.sep_token is None and "<sep>" not in TOKENIZER.get_vocab()
    vocabulary = build_tokenizer(TEXTS, sentences=True).get_vocab()
    plain = {word: i for word, i in TOKENIZER.get_vocab().items() if i > 3}
    assert {word: i - 1 for word, i in vocabulary.items() if i > 4} == plain


def test_sentences_survive_saving_and_keep_their_offsets(tmp_path):
    SENTENCES.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "The film. Was 21st!<br /> the cast <sep> was"
    encoded = loaded(text, return_offsets_mapping=True)
    assert encoded["input_ids"] == SENTENCES(text)["input_ids"]
    assert encoded["input_ids"].count(4) == 3
    shown = [
        text[a:b]
        for token, (a, b) in zip(encoded.tokens(), encoded["offset_mapping"], strict=True)
        if token != "<sep>"
    ]
    assert shown == ["", "The", "film", ".", "Was", "21st", "!", "the", "cast", "was", ""]


@settings(max_examples=100)
@given(
    text=st.one_of(ANYTHING, DENSE, st.text(st.sampled_from("aB. !?\n\"'(.)<br/>"), max_size=30))
)
def test_separators_change_no_word(text):
    """Without the separators the words are those of the plain tokenizer on the text's lines, tags aside."""
    bare = re.sub(r"(?i)<br\s*/?>", "\n", text)
    assert [word for word in cut(bare) if word != "<sep>"] == words(bare)
    spans = SENTENCES(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
