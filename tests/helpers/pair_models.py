"""Classifiers of text pairs for tests, and the model of Jain & Wallace (2019) in NumPy."""

import numpy as np
import torch

from hf_attnprobe import AttentionClassifierConfig, AttentionClassifierForSequenceClassification
from tests.models.attention_classifier.test_modeling_attention_classifier import encoded


PAIRS = [
    ([5, 6, 7, 7, 9], [8, 9]),
    ([6], [5, 6, 7]),
    ([11, 12, 6, 5, 8, 13, 14], [4]),
    ([11, 12], [15, 9]),
]


def make(encoder="bilstm", attention="additive", num_labels=3, answers=None, **fields):
    """Create a classifier of pairs with large random weights."""
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
    """Create padded tokenizer output from pairs of lists of token ids."""
    rows, types = [], []
    for first, second in pairs:
        rows.append(torch.tensor([2, *first, 3, 2, *second, 3]))
        types.append(torch.tensor([0] * (len(first) + 2) + [1] * (len(second) + 2)))
    pad = torch.nn.utils.rnn.pad_sequence
    ids, type_ids = pad(rows, batch_first=True), pad(types, batch_first=True)
    padding = (0, (n_keys or ids.shape[1]) - ids.shape[1])
    ids, type_ids = (torch.nn.functional.pad(x, padding) for x in (ids, type_ids))
    return {"input_ids": ids, "token_type_ids": type_ids, "attention_mask": (ids != 0).long()}


class ManualPairClassifier:
    """Attention φ and read-out Dec in NumPy, from the weights of a model.

    The vectors of a text have the shape `[tokens, embedding]`, its states `[tokens, hidden]`.
    """

    def __init__(self, model):
        self.model, self.config = model, model.config
        self.weights = {name: p.detach().numpy() for name, p in model.named_parameters()}

    def encode(self, module, vectors):
        """Encode word vectors with torch's own layers."""
        encoder = self.model.get_submodule(f"{module}.encoder")
        return encoded(encoder, self.config.encoder, torch.from_numpy(vectors)).detach().numpy()

    def compute_query(self, second):
        """Compute the query vector q from the token ids of the second text."""
        vectors = self.weights["attention_classifier.query_reader.embeddings.weight"][
            [2, *second, 3]
        ]
        states = self.encode("attention_classifier.query_reader", vectors)
        if self.config.encoder == "bilstm":
            half = states.shape[1] // 2
            return np.concatenate([states[-1, :half], states[0, half:]])
        words = states[1:-1]
        return words.max(0) if self.config.encoder == "cnn" else words.mean(0)

    def compute_states(self, first, scale=None):
        """Compute the states of the first text, with its word vectors optionally scaled."""
        vectors = self.weights["attention_classifier.embeddings.weight"][[2, *first, 3]]
        if scale is not None:
            vectors = vectors * scale[:, None]
        return self.encode("attention_classifier", vectors)[1:-1]

    def compute_attention(self, states, q):
        """Compute the attention weights φ of the states."""
        prefix = "attention_classifier.attention"
        if self.config.attention == "additive":
            inner = states @ self.weights[f"{prefix}.projection.weight"].T
            inner = inner + self.weights[f"{prefix}.projection.bias"]
            inner = inner + self.weights[f"{prefix}.query_projection.weight"] @ q
            inner = inner + self.weights[f"{prefix}.query_projection.bias"]
            scores = np.tanh(inner) @ self.weights[f"{prefix}.query.weight"][0]
        elif self.config.attention == "dot_product":
            scores = states @ q / np.sqrt(len(q))
        else:
            scores = np.zeros(len(states))
        weights = np.exp(scores - scores.max(initial=-np.inf))
        return weights / weights.sum()

    def decode(self, context, q, candidates=None):
        """Compute the probabilities Dec of a context vector and a query."""
        w = {n: self.weights[f"classifier.{n}"] for n in ("context.weight", "query.weight")}
        b = self.weights["classifier.context.bias"] + self.weights["classifier.query.bias"]
        inner = np.tanh(w["context.weight"] @ context + w["query.weight"] @ q + b)
        logits = self.weights["classifier.output.weight"] @ inner
        logits = logits + self.weights["classifier.output.bias"]
        exponentials = np.exp(logits - logits.max())
        if candidates is not None:
            exponentials = exponentials * candidates
        return exponentials / exponentials.sum()

    def find_candidates(self, first):
        """Find the labels whose token occurs in the first text; None if all may be predicted."""
        answers = self.config.answer_token_ids
        if answers is None:
            return None
        is_present = np.array([answer in first for answer in answers])
        return is_present if is_present.any() else ~is_present

    def run(self, first, second, candidates=None):
        """Compute the probabilities and the attention of a pair."""
        q, states = self.compute_query(second), self.compute_states(first)
        if candidates is None:
            candidates = self.find_candidates(first)
        if not first:
            return self.decode(np.zeros(len(q)), q, candidates), states
        weights = self.compute_attention(states, q)
        return self.decode(weights @ states, q, candidates), weights
