"""Models of pairs of texts for tests, and Jain & Wallace's (2019) written out in NumPy, one text at a time."""

import numpy as np
import torch
from tests.models.attention_classifier.test_modeling_attention_classifier import encoded

from hf_attnprobe import AttentionClassifierConfig, AttentionClassifierForSequenceClassification


PAIRS = [
    ([5, 6, 7, 7, 9], [8, 9]),
    ([6], [5, 6, 7]),
    ([11, 12, 6, 5, 8, 13, 14], [4]),
    ([11, 12], [15, 9]),
]


def make(encoder="bilstm", attention="additive", num_labels=3, answers=None, **fields):
    """A classifier of pairs with random weights, larger than a fresh model's."""
    torch.manual_seed(1)
    config = AttentionClassifierConfig(
        vocab_size=20,
        embedding_size=10,
        encoder=encoder,
        encoder_size=8,
        kernel_sizes=(3, 5),
        attention=attention,
        num_labels=num_labels,
        query_encoder=True,
        answer_token_ids=answers,
        **fields,
    )
    model = AttentionClassifierForSequenceClassification(config).eval().double()
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter *= 3
        for parameter in model.attention_classifier.attention.parameters():
            parameter *= 3
    return model


def make_batch(pairs=PAIRS, n_keys=None):
    """Pairs of lists of ids as the tokenizer writes them, padded."""
    rows, types = [], []
    for first, second in pairs:
        rows.append(torch.tensor([2, *first, 3, 2, *second, 3]))
        types.append(torch.tensor([0] * (len(first) + 2) + [1] * (len(second) + 2)))
    pad = torch.nn.utils.rnn.pad_sequence
    ids, kinds = pad(rows, batch_first=True), pad(types, batch_first=True)
    more = (0, (n_keys or ids.shape[1]) - ids.shape[1])
    ids, kinds = (torch.nn.functional.pad(x, more) for x in (ids, kinds))
    return {"input_ids": ids, "token_type_ids": kinds, "attention_mask": (ids != 0).long()}


class ManualPairClassifier:
    """φ and Dec in NumPy, from the weights of a model.

    Shapes: a text's vectors [tokens, embedding], its states [tokens, hidden].
    """

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.w = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def encoder(self, at, vectors):
        """By torch's own layers, see ``encoded``."""
        own = self.model.get_submodule(f"{at}.encoder")
        return encoded(own, self.config.encoder, torch.from_numpy(vectors)).detach().numpy()

    def question(self, second):
        """q of the ids of a second text."""
        vectors = self.w["attention_classifier.query_reader.embeddings.weight"][[2, *second, 3]]
        states = self.encoder("attention_classifier.query_reader", vectors)
        if self.config.encoder == "bilstm":
            half = states.shape[1] // 2
            return np.concatenate([states[-1, :half], states[0, half:]])
        words = states[1:-1]
        return words.max(0) if self.config.encoder == "cnn" else words.mean(0)

    def states(self, first, scale=None):
        vectors = self.w["attention_classifier.embeddings.weight"][[2, *first, 3]]
        if scale is not None:
            vectors = vectors * scale[:, None]
        return self.encoder("attention_classifier", vectors)[1:-1]

    def attention(self, states, q):
        at = "attention_classifier.attention"
        if self.config.attention == "additive":
            inner = states @ self.w[f"{at}.projection.weight"].T
            inner = inner + self.w[f"{at}.projection.bias"]
            inner = inner + self.w[f"{at}.query_projection.weight"] @ q
            inner = inner + self.w[f"{at}.query_projection.bias"]
            scores = np.tanh(inner) @ self.w[f"{at}.query.weight"][0]
        elif self.config.attention == "dot_product":
            scores = states @ q / np.sqrt(len(q))
        else:
            scores = np.zeros(len(states))
        weights = np.exp(scores - scores.max(initial=-np.inf))
        return weights / weights.sum()

    def decode(self, context, q, candidates=None):
        w = {n: self.w[f"classifier.{n}"] for n in ("context.weight", "query.weight")}
        b = self.w["classifier.context.bias"] + self.w["classifier.query.bias"]
        inner = np.tanh(w["context.weight"] @ context + w["query.weight"] @ q + b)
        logits = self.w["classifier.output.weight"] @ inner
        logits = logits + self.w["classifier.output.bias"]
        shares = np.exp(logits - logits.max())
        if candidates is not None:
            shares = shares * candidates
        return shares / shares.sum()

    def candidates(self, first):
        answers = self.config.answer_token_ids
        if answers is None:
            return None
        found = np.array([answer in first for answer in answers])
        return found if found.any() else ~found

    def run(self, first, second, candidates=None):
        """Probabilities and attention of a pair."""
        q, states = self.question(second), self.states(first)
        if candidates is None:
            candidates = self.candidates(first)
        if not first:
            return self.decode(np.zeros(len(q)), q, candidates), states
        weights = self.attention(states, q)
        return self.decode(weights @ states, q, candidates), weights
