"""Models of pairs of texts for tests, and Jain & Wallace's (2019) written out in NumPy, one text at a time."""

import numpy as np
import torch

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


def batch_of(pairs=PAIRS, n_keys=None):
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


class ByHand:
    """Enc, φ and Dec in NumPy, from the weights of a model.

    Shapes: a text's vectors [tokens, embedding], its states [tokens, hidden].
    """

    def __init__(self, model):
        self.config = model.config
        self.w = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def encoder(self, at, vectors):
        return getattr(self, f"_{self.config.encoder}")(f"{at}.encoder", vectors)

    def _none(self, at, vectors):
        return vectors

    def _mlp(self, at, vectors):
        w, b = (self.w[f"{at}.linear.{name}"] for name in ("weight", "bias"))
        return np.tanh(vectors @ w.T + b)

    def _cnn(self, at, vectors):
        states = []
        for k, size in enumerate(self.config.kernel_sizes):
            w, b = (self.w[f"{at}.convolutions.{k}.{n}"] for n in ("weight", "bias"))
            padded = np.pad(vectors, ((size // 2, size // 2), (0, 0)))
            windows = [padded[t : t + size] for t in range(len(vectors))]
            states.append([np.einsum("fed,de->f", w, window) + b for window in windows])
        return np.maximum(np.concatenate(states, axis=1), 0)

    def _bilstm(self, at, vectors):
        forward = self._lstm(f"{at}.lstm", "l0", vectors)
        backward = self._lstm(f"{at}.lstm", "l0_reverse", vectors[::-1])[::-1]
        return np.concatenate([forward, backward], axis=1)

    def _lstm(self, at, suffix, vectors):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, more = (self.w[f"{at}.{name}_{suffix}"] for name in names)
        hidden = cell = np.zeros(u.shape[1])
        states = []
        for x in vectors:
            i, f, g, o = np.split(w @ x + b + u @ hidden + more, 4)
            sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            hidden = sigmoid(o) * np.tanh(cell)
            states.append(hidden)
        return np.array(states)

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
