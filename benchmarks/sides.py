"""The two sides of the comparison: every part of an audit, over all texts, as a method of the same name.

Results come by text, so that they can be compared whatever batches the sides make.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import plain
import torch
from torch import Tensor

from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.runner import make_memory_estimator, plan_batches, run_batch
from hf_attnprobe.faithfulness.adversarial import adversarial
from hf_attnprobe.faithfulness.correlation import correlation
from hf_attnprobe.faithfulness.options import Adversarial, Correlation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.functional.rank import dense_rank
from hf_attnprobe.functional.search import make_linear_distance, search_adversarial_attention
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import Batch, Observation, Site
from hf_attnprobe.statistics.summary import PREDICTION_TEST


TESTS = ("correlation", "permutation", "adversarial")
EPSILONS = (0.01, 0.05)
N_PERMUTATIONS, BUDGET, SITE = 100, 2 * 10**9, Site()

Rows = dict[int, np.ndarray]
"""By text, what was computed of it: [...] or [..., words]."""


@dataclass
class Known:
    """An observation whose importances are given: what is left of ``correlation`` is rank correlation."""

    batch: Batch
    ranks: Tensor  # [3, batch, keys]: attention, gradient, leave-one-out

    @property
    def probs(self) -> Tensor:
        """Even, so that rounding is that of numbers around one half."""
        return torch.full((len(self.ranks[0]), 2), 0.5).to(self.ranks)

    def with_target(self, target: str | int | None) -> "Known":
        return self

    def get_target_classes(self, target: int | None) -> Tensor:
        return self.probs.argmax(-1)

    def read(self, site: Site) -> Tensor:
        return self.ranks[0]

    def compute_gradient_importance(self, target: int | None = None) -> Tensor:
        return self.ranks[1]

    def compute_leave_one_out_importance(self, target: int | None = None) -> Tensor:
        return self.ranks[2]


class PlainSide:
    """Every part as the papers' programs do it, over all documents."""

    def __init__(self, model, documents: Mapping[int, Sequence[int]], noise: Rows):
        self.plain, self.careful, self.batches = (
            plain.Plain(model),
            plain.CarefulLoop(model),
            plain.batches(documents),
        )
        self.noise = [_padded(noise, batch.rows, batch.tokens.shape[1]) for batch in self.batches]
        self.forward()

    def forward(self) -> None:
        self.known = [self.plain.forward(batch) for batch in self.batches]

    def probability(self) -> Rows:
        return _by_text(self.batches, [prob.numpy() for _, _, prob in self.known])

    def attention(self) -> Rows:
        return self._rows([attention for _, attention, _ in self.known])

    def gradient(self) -> Rows:
        return self._rows([self.plain.gradient(batch) for batch in self.batches])

    def leave_one_out(self) -> Rows:
        pairs = zip(self.batches, self.known, strict=True)
        return self._rows([self.plain.leave_one_out(batch, prob) for batch, (_, _, prob) in pairs])

    def permutation(self, orders: Rows | None = None) -> Rows:
        draws = [None if orders is None else _replayed(orders) for _ in self.batches]
        triples = zip(self.batches, self.known, draws, strict=True)
        found = [
            self.plain.permutation(batch, states, prob, draw)
            for batch, (states, _, prob), draw in triples
        ]
        return _by_text(self.batches, found)

    def search(self) -> Rows:
        triples = zip(self.batches, self.known, self.noise, strict=True)
        self.found = [self.plain.search(batch, *known, noise) for batch, known, noise in triples]
        return self._rows(self.found)

    def search_in_double(self, n_batches: int = 2) -> Rows:
        """The same search in float64 on batches from the middle: where rounding cannot make trajectories part."""
        double, middle = (
            plain.Plain(self.plain.model, torch.float64),
            len(self.batches) // 2,
        )
        batches = self.batches[middle : middle + n_batches]
        noise = [noise.double() for noise in self.noise[middle : middle + n_batches]]
        pairs = list(zip(batches, noise, strict=True))
        found = [double.search(batch, *double.forward(batch), noise) for batch, noise in pairs]
        return _by_text(
            batches,
            [_words(x, batch.lengths) for x, batch in zip(found, batches, strict=True)],
        )

    def careful_permutation(self, orders: Rows | None = None) -> Rows:
        """The permutations by the careful loop."""
        found = []
        for batch, (states, attention, prob) in zip(self.batches, self.known, strict=True):
            index = None if orders is None else _stacked_orders(orders, batch)
            logits = self.careful.read_out(states)
            found.append(self.careful.permute_at_once(batch, logits, attention, prob, index))
        return _by_text(self.batches, found)

    def careful_search(self) -> Rows:
        """The same search by the careful loop."""
        triples = zip(self.batches, self.known, self.noise, strict=True)
        found = [
            self.careful.search(batch, self.careful.read_out(states), attention, prob, noise)
            for batch, (states, attention, prob), noise in triples
        ]
        return self._rows(found)

    def epsilon_max_jsd(self) -> dict[float, Rows]:
        """From the latest search."""
        pairs = list(zip(self.found, self.known, strict=True))
        return {
            epsilon: _by_text(
                self.batches,
                [self.plain.epsilon_max_jsd(found, *known, epsilon) for found, known in pairs],
            )
            for epsilon in EPSILONS
        }

    def take_ranks(self, ranks: Rows) -> None:
        self.ranks = [
            _stacked(ranks, batch.rows, batch.tokens.shape[1]).numpy() for batch in self.batches
        ]

    def tau(self) -> Rows:
        """Of the ranks taken."""
        found = [
            plain.all_kendall_tau(*pair) for pair in zip(self.batches, self.ranks, strict=True)
        ]
        return _by_text(self.batches, found)

    def _rows(self, values: Sequence[Tensor]) -> Rows:
        """Words only, by text."""
        pairs = zip(values, self.batches, strict=True)
        return _by_text(self.batches, [_words(x, batch.lengths) for x, batch in pairs])


class OurSide:
    """Every part as the audit does it, on the batches that it plans."""

    def __init__(
        self,
        model,
        texts: Sequence[Text],
        noise: Rows,
        dtype: torch.dtype,
        batch_size: int,
        seed: int,
    ):
        self.adapter, self.seed, self.dtype = wrap(model, dtype=dtype), seed, dtype
        where, enough = {name: [SITE] for name in TESTS}, BUDGET / batch_size
        size = make_memory_estimator(self.adapter, texts, where, {}, 0, enough, {})
        self.jobs = plan_batches(texts, where, {}, size, BUDGET, batch_size)
        self.batches = [collate(self.adapter, job, 0) for _, job in self.jobs]
        self.noise = [
            _padded(noise, batch.example_ids, batch.mask.shape[1]).to(dtype).transpose(0, 1)
            for batch in self.batches
        ]
        self.observe()

    def observe(self) -> None:
        """Anew, so that nothing is left of an earlier turn."""
        self.observations = [self.adapter.observe(batch) for batch in self.batches]

    def whole(self) -> None:
        """What ``attnprobe audit`` does with a batch, rows included."""
        for _, job in self.jobs:
            run_batch(
                self.adapter,
                collate(self.adapter, job, 0),
                {name: [SITE] for name in (*TESTS, PREDICTION_TEST)},
                {},
                self.seed,
            )

    def gradient(self) -> Rows:
        return self._rows(lambda o: o.compute_gradient_importance())

    def leave_one_out(self) -> Rows:
        """The change of the output, as of the predicted class; for two classes it is that of either."""
        return self._rows(
            lambda o: (self.adapter.compute_leave_one_out(o)[..., 1] - o.probs[:, None, 1]).abs()
        )

    def permutation(self) -> Rows:
        run = partial(permutation, site=SITE, seed=self.seed)
        return _by_text(
            self.batches,
            [run(observation=o).median_tvd.numpy() for o in self.observations],
        )

    def orders(self) -> Rows:
        """The permutations behind :meth:`permutation`, [100, keys] by text."""
        orders = [
            o.draw_permutations(0, N_PERMUTATIONS, self.seed)[:, :, 0] for o in self.observations
        ]
        return _by_text(self.batches, [order.transpose(0, 1).numpy() for order in orders])

    def search(self) -> Rows:
        return self._rows(self._search, self.noise)

    def _search(self, o: Observation, noise: Tensor) -> Tensor:
        distance = make_linear_distance(self.adapter.compute_token_logits(o), o.probs)
        return search_adversarial_attention(
            3 * noise, o.read(SITE), o.batch.mask, distance
        ).transpose(0, 1)

    def exact(self, epsilons: Sequence[float] | None = EPSILONS) -> dict[float, Rows]:
        found = [
            adversarial(o, SITE, Adversarial(method="exact", epsilons=epsilons))
            for o in self.observations
        ]
        return {
            epsilon: _by_text(
                self.batches,
                [result.epsilon_max_jsd[epsilon].numpy() for result in found],
            )
            for epsilon in EPSILONS
        }

    def probability(self) -> Rows:
        return _by_text(self.batches, [o.probs[:, 1].numpy() for o in self.observations])

    def attention(self) -> Rows:
        return self._rows(lambda o: o.read(SITE))

    def rank(self) -> Rows:
        """Ranks of attention, gradient and leave-one-out, [3, keys] by text: the input of both sides' τ."""
        return _by_text(
            self.batches,
            [self._rank(o).transpose(0, 1).numpy() for o in self.observations],
        )

    def _rank(self, o: Observation) -> Tensor:
        values = torch.stack(
            [o.read(SITE), o.compute_gradient_importance(), o.compute_leave_one_out_importance()]
        ).flatten(0, 1)
        tolerance = torch.finfo(self.dtype).eps  # as in ``correlation``
        ranks = dense_rank(
            values, o.batch.mask.repeat(3, 1), rtol=256 * tolerance, atol=64 * tolerance
        )
        return ranks.view(3, *o.batch.mask.shape)

    def take_ranks(self, ranks: Rows) -> None:
        self.ranks = [
            _stacked(ranks, b.example_ids, b.mask.shape[1]).to(self.dtype) for b in self.batches
        ]

    def tau(self) -> Rows:
        """τ and p of the three pairs of the ranks taken, [3, 2] by text."""
        known = [Known(*pair) for pair in zip(self.batches, self.ranks, strict=True)]
        of_pairs = Correlation(tops=())  # τ alone, as on the plain side
        found = [correlation(o, SITE, of_pairs) for o in known]
        names = (
            "attention_gradient",
            "attention_leave_one_out",
            "gradient_leave_one_out",
        )
        tables = [
            [[getattr(r, f"{name}_{x}").numpy() for x in ("tau", "p_value")] for name in names]
            for r in found
        ]
        return _by_text(self.batches, [np.array(table).transpose(2, 0, 1) for table in tables])

    def _rows(self, compute: Callable[..., Tensor], *more: Sequence) -> Rows:
        """Words only, by text, of what comes as [batch, ..., keys]."""
        values = [compute(o, *extra) for o, *extra in zip(self.observations, *more, strict=True)]
        lengths = [batch.mask.sum(-1) + 2 for batch in self.batches]
        return _by_text(self.batches, [_words(x, n) for x, n in zip(values, lengths, strict=True)])


def _by_text(batches: Sequence, values: Sequence[Sequence]) -> Rows:
    """Values of batches, each [batch, ...], by the row of their text in the data."""
    rows = [
        batch.rows if isinstance(batch, plain.Documents) else batch.example_ids for batch in batches
    ]
    return {
        row: x
        for ids, found in zip(rows, values, strict=True)
        for row, x in zip(ids, found, strict=True)
    }


def _words(values: Tensor, lengths: Tensor) -> list[np.ndarray]:
    """[batch, ..., keys] without start, end and padding."""
    return [
        x[..., 1 : n - 1].detach().numpy() for x, n in zip(values, lengths.tolist(), strict=True)
    ]


def _padded(rows: Rows, wanted: Sequence[int], n_keys: int) -> Tensor:
    """[batch, starts, keys] from [starts, length] by text."""
    padded = torch.zeros(len(wanted), plain.N_STARTS, n_keys, dtype=torch.float32)
    for place, row in enumerate(wanted):
        padded[place, :, : rows[row].shape[1]] = torch.from_numpy(rows[row])
    return padded


def _stacked(ranks: Rows, wanted: Sequence[int], n_keys: int) -> Tensor:
    """[3, batch, keys] from [3, keys or more] by text, whose padding may differ."""
    stacked = torch.zeros(3, len(wanted), n_keys)
    for place, row in enumerate(wanted):
        values = torch.from_numpy(ranks[row])[:, :n_keys]
        stacked[:, place, : values.shape[1]] = values
    return stacked


def _stacked_orders(orders: Rows, batch: plain.Documents) -> Tensor:
    """Recorded permutations as an index, [permutations, batch, keys]; padding stays in place."""
    n_keys = batch.tokens.shape[1]
    index = np.tile(np.arange(n_keys), (N_PERMUTATIONS, len(batch.rows), 1))
    for place, row in enumerate(batch.rows):
        order = orders[row][:, :n_keys]
        index[:, place, : order.shape[1]] = order
    return torch.from_numpy(index)


def _replayed(orders: Rows) -> Callable[[plain.Documents], Tensor]:
    """Draws recorded permutations one after the other."""
    turns = iter(range(N_PERMUTATIONS))

    def draw(documents: plain.Documents) -> Tensor:
        turn, n_keys = next(turns), documents.tokens.shape[1]
        index = np.tile(np.arange(n_keys), (len(documents.rows), 1))
        for place, row in enumerate(documents.rows):
            order = orders[row][turn][:n_keys]
            index[place, : len(order)] = order
        return torch.from_numpy(index)

    return draw
