"""The experiments of Jain & Wallace (2019) the way their authors' programs do them, in plain PyTorch: the yardstick.

Nothing here is slowed down on purpose and nothing is clever. Documents sorted by length in batches of 32, float32; the
LSTM runs on packed sequences; results are collected per document in NumPy. What is dear about the procedure stays
dear, because it is the procedure: every deletion encodes the whole batch again, every permutation runs the whole
decoder (scores included) again, the search differentiates through the context vectors, and τ is a loop over documents.

Kinder than the original in three places: of its three gradient variants only gradient × input is computed, only the
gradients graph is recorded, and the batch is built once, not once per deletion.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor


BATCH_SIZE = 32
N_PERMUTATIONS = 100
N_STARTS, N_STEPS = 5, 500
SEARCH_EPSILON, PENALTY = 0.01, 500.0
LOG_OFFSET = 1e-10


class Documents(NamedTuple):
    """A batch: ``<sos> words <eos>`` and padding [batch, keys], lengths with both, their rows in the data set."""

    tokens: Tensor
    lengths: Tensor
    rows: Sequence[int]

    @property
    def alive(self) -> Tensor:
        """Positions that hold a token, int [batch, keys]."""
        return (torch.arange(self.tokens.shape[1]) < self.lengths[:, None]).long()

    @property
    def words(self) -> Tensor:
        """Positions that may receive attention, bool [batch, keys]: neither start, nor end, nor padding."""
        place = torch.arange(self.tokens.shape[1])
        return (place > 0) & (place < self.lengths[:, None] - 1)


def batches(
    documents: Mapping[int, Sequence[int]], batch_size: int = BATCH_SIZE
) -> list[Documents]:
    """Documents (row in the data: ids) sorted by length and padded to the longest of their batch."""
    order = sorted(documents, key=lambda row: len(documents[row]))
    return [_pad(documents, order[i : i + batch_size]) for i in range(0, len(order), batch_size)]


def _pad(documents: Mapping[int, Sequence[int]], rows: Sequence[int]) -> Documents:
    tokens = [torch.tensor(documents[row]) for row in rows]
    lengths = torch.tensor([len(t) for t in tokens])
    return Documents(torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True), lengths, rows)


class Plain:
    """The procedures for one binary classifier; encoder, attention and decoder are the model's own modules."""

    def __init__(self, model, dtype: torch.dtype = torch.float32):
        self.model = copy.deepcopy(model).to(dtype).eval()
        self.base = self.model.attention_classifier

    def encode(self, documents: Documents) -> Tensor:
        """Encoder states [batch, keys, hidden]."""
        return self.base.encode(self.base.embeddings(documents.tokens), documents.alive)

    def attend(self, states: Tensor, words: Tensor) -> Tensor:
        """Attention [batch, keys]: scores, minus infinity outside the words, softmax."""
        return self.base.attention(states).masked_fill(~words, -torch.inf).softmax(-1)

    def decode(self, attention: Tensor, states: Tensor) -> Tensor:
        """Probability of the positive class from Σ_t a_t h_t; leading axes as they come."""
        return self.model.classifier(self.context(attention, states)).squeeze(-1).sigmoid()

    def context(self, attention: Tensor, states: Tensor) -> Tensor:
        """Σ_t a_t h_t as the authors' program has it: everything multiplied, then summed."""
        return (attention.unsqueeze(-1) * states).sum(-2)

    @torch.no_grad()
    def forward(self, documents: Documents) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder states, attention and probability."""
        states = self.encode(documents)
        attention = self.attend(states, documents.words)
        return states, attention, self.decode(attention, states)

    def gradient(self, documents: Documents) -> Tensor:
        """|∂p/∂x_t · x_t| with the attention held fixed, [batch, keys]; one backward pass through the whole model."""
        self.model.zero_grad()
        embedded = self.base.embeddings(documents.tokens)
        embedded.retain_grad()
        states = self.base.encode(embedded, documents.alive)
        attention = self.attend(states, documents.words).detach()
        self.decode(attention, states).sum().backward()
        return (embedded.grad * embedded.detach()).sum(-1).abs()

    @torch.no_grad()
    def leave_one_out(self, documents: Documents, prob: Tensor) -> Tensor:
        """|p(x without t) − p(x)|, [batch, keys]: deletes one column at a time and encodes everything again.

        Meaningless behind the end of a document, where the batch is longer than it.
        """
        change = torch.zeros(documents.tokens.shape)
        for t in range(1, documents.tokens.shape[1] - 1):
            shorter = torch.cat([documents.tokens[:, :t], documents.tokens[:, t + 1 :]], dim=1)
            rest = Documents(shorter, (documents.lengths - 1).clamp_min(1), documents.rows)
            states = self.encode(rest)
            # A document of one word has no attention left without it: its softmax is NaN, its context nothing.
            attention = self.attend(states, rest.words).nan_to_num(0)
            change[:, t] = (self.decode(attention, states) - prob).abs()
        return change

    @torch.no_grad()
    def permutation(
        self,
        documents: Documents,
        states: Tensor,
        prob: Tensor,
        draw: Callable | None = None,
    ) -> np.ndarray:
        """Median |Δp| over 100 permutations of the words' attention, [batch]; the decoder runs anew for each.

        Args:
            draw: documents -> index [batch, keys] for ``gather``; a fresh random one by default.
        """
        changes = np.zeros((len(prob), N_PERMUTATIONS))
        for k in range(N_PERMUTATIONS):
            attention = self.attend(states, documents.words)
            attention = attention.gather(-1, (draw or random_permutation)(documents))
            changes[:, k] = (self.decode(attention, states) - prob).abs().numpy()
        return np.median(changes, axis=1)

    def search(
        self,
        documents: Documents,
        states: Tensor,
        original: Tensor,
        prob: Tensor,
        noise: Tensor,
    ) -> Tensor:
        """Adversarial attention [batch, starts, keys]: Adam on logits, autograd through context vectors and decoder.

        Args:
            noise: standard normal [batch, starts, keys].
        """
        words, states, original = (
            documents.words.unsqueeze(1),
            states.unsqueeze(1),
            original.unsqueeze(1),
        )
        logits = (3 * noise - documents.lengths.log()[:, None, None]).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=0.01, amsgrad=True)
        self.model.requires_grad_(False)
        for _ in range(N_STEPS):
            attention = logits.masked_fill(~words, -torch.inf).softmax(-1)
            change = (self.decode(attention, states) - prob.unsqueeze(1)).abs()
            loss = (PENALTY * (change - SEARCH_EPSILON).relu() - jsd(attention, original)).sum()
            loss = loss - jsd(attention.unsqueeze(1), attention.unsqueeze(2)).sum() / N_STARTS**2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.model.requires_grad_(True)
        return logits.detach().masked_fill(~words, -torch.inf).softmax(-1)

    @torch.no_grad()
    def epsilon_max_jsd(
        self,
        found: Tensor,
        states: Tensor,
        original: Tensor,
        prob: Tensor,
        epsilon: float,
    ) -> np.ndarray:
        """The largest JSD among the candidates that keep the output within ε, and 0 for the attention itself; [batch]."""
        change = (self.decode(found, states.unsqueeze(1)) - prob.unsqueeze(1)).abs()
        divergence = jsd(found, original.unsqueeze(1)).masked_fill(change > epsilon, 0)
        return divergence.amax(1).numpy()


class CarefulLoop(Plain):
    """The same procedures as a careful programmer would write them.

    The read-out is linear and attention weights sum to 1, so the logit of a text is the weighted
    mean of its token logits. The token logits are computed once, and no context vector is needed.
    Here, ``states`` are token logits [batch, keys].
    """

    @torch.no_grad()
    def read_out(self, states: Tensor) -> Tensor:
        """Logit of each encoder state alone, [batch, keys, hidden] -> [batch, keys]."""
        return self.model.classifier(states).squeeze(-1)

    def decode(self, attention: Tensor, states: Tensor) -> Tensor:
        """Probability of the positive class from token logits."""
        return (attention * states).sum(-1).sigmoid()

    @torch.no_grad()
    def permute_at_once(
        self,
        documents: Documents,
        states: Tensor,
        attention: Tensor,
        prob: Tensor,
        orders: Tensor | None = None,
    ) -> np.ndarray:
        """Median |Δp| over 100 permutations of the words' attention, [batch], all in one step.

        Args:
            documents: The texts.
            states: Token logits [batch, keys].
            attention: Attention [batch, keys].
            prob: Probability of the positive class [batch].
            orders: Index for ``gather``, [permutations, batch, keys]; random by default.
        """
        if orders is None:
            noise = torch.rand(N_PERMUTATIONS, *attention.shape)
            # Words are at the positions 1 to n, so their random order is written from position 1.
            drawn = noise.masked_fill(~documents.words, torch.inf).argsort(-1)
            orders = drawn.roll(1, -1)
        shuffled = attention.expand(orders.shape).gather(-1, orders) * documents.words
        return np.median((self.decode(shuffled, states) - prob).abs().numpy(), axis=0)


def random_permutation(documents: Documents) -> Tensor:
    """A random permutation of each document's words, in a Python loop; everything else stays where it is."""
    n_batch, n_keys = documents.tokens.shape
    index = np.tile(np.arange(n_keys), (n_batch, 1))
    for row, length in enumerate(documents.lengths.tolist()):
        index[row, 1 : length - 1] = np.random.permutation(length - 2) + 1
    return torch.from_numpy(index)


def kl_divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL over the last axis, 1e-10 inside each logarithm."""
    return (p * ((p + LOG_OFFSET).log() - (q + LOG_OFFSET).log())).sum(-1)


def jsd(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence over the last axis, in nats."""
    mean = (p + q) / 2
    return (kl_divergence(p, mean) + kl_divergence(q, mean)) / 2


def all_kendall_tau(documents: Documents, triple: Sequence[np.ndarray]) -> np.ndarray:
    """τ-b and p of three pairs of rankings over each document's words, [batch, 3, 2], one document at a time."""
    first, second, third = triple
    found = np.zeros((len(first), 3, 2))
    for row, length in enumerate(documents.lengths.tolist()):
        words = slice(1, length - 1)
        for pair, (x, y) in enumerate(((first, second), (first, third), (second, third))):
            found[row, pair] = kendalltau(x[row, words], y[row, words])
    return found
