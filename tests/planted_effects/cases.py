"""Models, texts and heads in which the tests plant effects."""

from hf_attnprobe import Answers
from hf_attnprobe.protocol import Site
from tests.helpers import planted_models, tiny_language_models, tiny_models


def build_case(kind: str) -> tuple:
    """Build a model ("bert", "classifier" or "llama"), its tokenizer, texts and a site."""
    words = planted_models.build_planted_tokenizer()
    rows = planted_models.draw_planted_model(1, 24).rows
    if kind == "bert":
        return tiny_models.bert(words, num_labels=2), words, rows, Site(0, 1)
    if kind == "classifier":
        return tiny_models.classifier(words, read_out=6.0, query=4.0), words, rows, Site(0, 0)
    words = tiny_language_models.tokenizer(chat=False)
    data = Answers(tiny_language_models.ROWS * 4, units="sentence")
    return tiny_language_models.llama(words, tie_word_embeddings=True), words, data, Site(1, 0)
