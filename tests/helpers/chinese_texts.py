"""Chinese texts without spaces, and a model for them whose only head with an effect is known.

The model is the BERT of `planted_heads`, whose tokens get Chinese names. A Unigram tokenizer splits
texts at spaces and then into these tokens, as the tokenizer of XLM-R does. The only head with an
effect attends to the token that decides the class, so attention explains the predictions.
"""

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.helpers import planted_heads


KEYS = ("失望", "精彩")
"""Tokens that decide the class: "disappointing" and "wonderful"."""
FILLERS = [
    "电影",
    "导演",
    "故事",
    "演员",
    "音乐",
    "剧情",
    "服务",
    "早上",
    "朋友",
    "城市",
    "今天",
    "我们",
    "一起",
    "这部",
    "新片",
    "画面",
    "街道",
    "下午",
    "孩子",
    "作品",
    "观众",
    "台词",
    "镜头",
    "票价",
]
"""Tokens without effect, as many as there are fillers in `planted_heads`."""


def make_chinese_rows(n_texts, seed=0):
    """Return texts of 7 to 10 tokens without spaces."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(n_texts):
        fillers = generator.choice(FILLERS, int(generator.integers(6, 10)), replace=False)
        tokens = generator.permutation([KEYS[index % 2], *fillers])
        rows.append({"text": "".join(tokens), "label": index % 2})
    return rows


def build_chinese_model():
    """Return the model, and its tokenizer."""
    return planted_heads.build_planted_bert(planted_heads.WORKING), _build_unigram_tokenizer()


def _build_unigram_tokenizer():
    """Return a Unigram tokenizer with the token ids of the planted model."""
    planted_tokenizer = planted_heads.build_tokenizer_for_heads()
    chinese = dict(zip(planted_heads.FILLERS, FILLERS, strict=True))
    chinese |= dict(zip(planted_heads.KEYS, KEYS, strict=True))
    ids = sorted(planted_tokenizer.get_vocab().items(), key=lambda item: item[1])
    vocabulary = [(chinese.get(token, token), -4.0) for token, _ in ids]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=planted_tokenizer.unk_token_id))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    cls, sep = planted_tokenizer.cls_token, planted_tokenizer.sep_token
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        special_tokens=[
            (token, planted_tokenizer.convert_tokens_to_ids(token)) for token in (cls, sep)
        ],
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    special_tokens = {name: getattr(planted_tokenizer, name) for name in names}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special_tokens)
