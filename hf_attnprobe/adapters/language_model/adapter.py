"""A decoder that answers from a passage, as an :class:`AttentionModel`.

A BiLSTM classifier is a Transformer with one query; a decoder with a passage is a model whose
keys are the passage's units and whose queries are the rows behind the passage.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.language_model.kv_cache_passes import (
    PromptPass,
    PassageState,
    PromptRunner,
)
from hf_attnprobe.adapters.language_model.prompt import (
    N_EXTRA_COLUMNS,
    ROW_CHOICES,
    AnswerHead,
    KeyColumns,
    Prompt,
    apply_knockout,
    rescale_columns,
)
from hf_attnprobe.adapters.language_model.prompt_batching import run_batched, run_jobs_together
from hf_attnprobe.adapters.pretrained import PretrainedModelInfo
from hf_attnprobe.adapters.transformer.attention_hooks import (
    OutputHook,
    detach_attention,
    unpack_heads,
    find_visible_keys,
)
from hf_attnprobe.adapters.transformer.layout import (
    create_example_inputs,
    compute_gradient_times_input,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    record_outputs,
    get_relative_tolerance,
)
from hf_attnprobe.adapters.transformer.replay import check_edits_reach_logits
from hf_attnprobe.adapters.transformer.task_heads import compute_candidate_scores
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import (
    KNOCKOUTS,
    AttentionModelBase,
    Batch,
    HeadOutputs,
    HeadValues,
    KeptPositions,
    Observation,
    OutputProjections,
    LayerReader,
    Reference,
    S,
    Site,
)


PASSAGE_OPERATORS = ("deletion", "gap")
"""How units are left out: the others close up, or keep their positions."""
TYPICAL_LARGE_LOGIT = 32
"""Logits of this size round by so many eps."""
PROMPTS_PER_BATCH = 8
"""Prompts of like length whose passes are one on a GPU; on a CPU that takes no less time."""


T = TypeVar("T")


class LanguageModelAdapter(PretrainedModelInfo, PromptRunner, AttentionModelBase):
    """Reads and edits what the rows behind a passage give its units.

    Like :class:`~hf_attnprobe.adapters.transformer.adapter.TransformerAdapter` it works on a
    twin that shares the model's weights. One prompt is a batch.

    Args:
        model: with a causal language-modelling head.
        dtype: what to compute in; ``None``: as loaded.
        rows: which rows tests may move, see ``ROW_CHOICES``.
        unit: what the units are, in one word.
        tokens_per_pass: how many keys to feed at once in replays; ``None``: by device.
        ignored: further options of other adapters.
    """

    model: PreTrainedModel
    max_batch_size = 1

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        dtype: torch.dtype | None = None,
        rows: str = "behind",
        unit: str = "sentence",
        tokens_per_pass: int | None = None,
        **ignored: Any,
    ) -> None:
        if rows not in ROW_CHOICES:
            raise AttnProbeError(f"expected rows to be one of {', '.join(ROW_CHOICES)}, got {rows!r}")
        PretrainedModelInfo.__init__(self, model)
        head = AnswerHead(model.config.get_text_config().vocab_size)
        PromptRunner.__init__(self, model, head, dtype=dtype, tokens_per_pass=tokens_per_pass)
        self.label_names: list[str] = []
        self.rows, self.unit = rows, unit
        self._unchecked = set(range(len(self.layers)))
        self._check_causal()
        self.shared_heads = self._sharing()

    def _check_causal(self) -> None:
        """Raises AttnProbeError where a token sees a later one."""

        def check(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            if find_visible_keys(scores).triu(1).any():
                raise AttnProbeError(
                    "expected a language model whose tokens see no later ones, "
                    f"{type(self.model).__name__} is none as it is configured; an encoder "
                    "needs is_decoder=True"
                )
            return weights

        with torch.no_grad():
            self.compute_logits(create_example_inputs(self.model), check)

    @property
    def prediction(self) -> Prediction:
        return self.head.prediction

    def _sharing(self) -> list[list[Site]]:
        sets: list[list[Site]] = []
        for layer, n_shared in enumerate(self.n_sharing_heads):
            if n_shared <= 1:
                continue
            heads = [Site(layer, head) for head in range(self.n_heads[layer])]
            for start in range(0, len(heads), n_shared):
                end = start + n_shared
                sets.append(heads[start:end])
        return sets

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        if capability is HeadValues:
            return (
                "expected one value per unit, a passage's unit has one per token; "
                "leave the test out"
            )
        if capability is OutputProjections:
            return self._head_support.no_projections
        if capability is HeadOutputs:
            return self._head_support.no_outputs
        if capability is KeptPositions and not self.keeps_positions:
            return (
                f"expected a model that takes position_ids from 0 on, {type(self.model).__name__} "
                "does not; leave the test out"
            )
        return super().lacks(capability, site)

    @property
    def n_parallel_batches(self) -> int:
        """How many prompts an audit works on at once, see :meth:`run_jobs_together`."""
        is_gpu = self.model.device.type != "cpu"
        return PROMPTS_PER_BATCH if is_gpu and self.can_join_prompts else 1

    def run_jobs_together(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """What jobs return, each of another prompt; edits and deletions of all are one pass."""
        return run_jobs_together(jobs, self.run_passes)

    # Batches and observations

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """A batch of one prompt with its answer.

        Args:
            inputs: each [1, tokens]: ``input_ids``, ``unit_ids`` (number of the unit, −1
                in none), ``labelled`` (1 at the answer's tokens, the last ones) and
                perhaps ``other_ids`` (the other answer's token where it differs first, −1
                elsewhere).
            example_ids, labels: as for other models.
        """
        missing = {"input_ids", "unit_ids", "labelled"} - inputs.keys()
        if missing:
            raise AttnProbeError(
                f"expected prompts with answers, got texts without {', '.join(sorted(missing))}; "
                f"{type(self.model).__name__} is a language model: audit it on Answers"
            )
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        inputs.setdefault("other_ids", torch.full_like(inputs["input_ids"], -1))
        self._check_inputs(inputs)
        names = ("input_ids", "unit_ids", "labelled", "other_ids")
        kept = {name: inputs[name] for name in names}
        kept["kept"] = self.prefill(kept).kept
        prompt = Prompt(kept, self.rows)
        columns = torch.arange(prompt.n_columns, device=self.model.device)
        mask = torch.ones_like(columns, dtype=torch.bool)
        of_keys = prompt.get_columns(prompt.n_tokens).column_of_key
        content = (columns < prompt.n_columns - N_EXTRA_COLUMNS) & torch.isin(columns, of_keys)
        return Batch(kept, mask[None], content[None], tuple(example_ids), labels)

    def _check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        ids = inputs["input_ids"]
        if len(ids) != 1:
            raise AttnProbeError(f"expected one prompt in a batch, got {len(ids)}")
        largest = int(ids.max())
        if self.n_embeddings is not None and largest >= self.n_embeddings:
            raise AttnProbeError(
                f"expected token ids below {self.n_embeddings}, got {largest}; use the "
                "tokenizer of this model"
            )

        is_answer = inputs["labelled"][0]
        n_answer = int(is_answer.sum())
        if not 0 < n_answer < len(is_answer) or not is_answer[-n_answer:].all():
            raise AttnProbeError("expected a prompt that ends in an answer, got none")

        in_unit = inputs["unit_ids"][0] >= 0
        in_passage = in_unit[: -n_answer - 1]
        in_answer = in_unit[-n_answer:]
        if not in_passage.any() or in_answer.any():
            raise AttnProbeError("expected a passage with units in front of the answer, got none")

    def observe(self, batch: Batch) -> Observation:
        prefilled = self.prefill(batch.inputs)
        prompt = Prompt(batch.inputs, self.rows)
        for keys_values in (prefilled.keys_values, None):
            state = PassageState(prompt, prefilled.kept, keys_values)
            observation, scores = self._observed(batch, state)
            if self.scores_agree(scores, prefilled.scores):
                if self.has_length_dependent_positions:
                    self._check_last_token(observation)
                return observation
        error = float((scores - prefilled.scores).abs().max())
        raise AttnProbeError(
            f"self-check: attention that is only read moved the logits by {error:.1e}; "
            "this model cannot be audited, please report it"
        )

    @torch.no_grad()
    def _observed(self, batch: Batch, state: PassageState) -> tuple[Observation, Tensor]:
        """An observation with its scores [1, scores]."""
        attention: list[Tensor] = []
        visible: list[Tensor] = []

        def note(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
            attention.append(columns.sum_by_column(rows))
            seen = columns.sum_by_column(find_visible_keys(scores[:, 0]).float()) > 0
            visible.append(seen & batch.content_mask[:, None])
            return rows

        with record_outputs(self.layout.blocks) as outputs:
            scores = self.compute_row_scores(state, note)
        state = state._replace(outputs=tuple(outputs), visible=tuple(visible))
        probs = self.head.compute_probs(scores, batch.inputs)
        return Observation(self, batch, probs, tuple(attention), state), scores

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        return observation.state.visible[layer]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        """The mean over the rows that predict the answer."""
        if site.query is not None:
            return values[:, site.query]
        n_answer = observation.state.prompt.n_answer
        return values[:, -n_answer:].mean(1)

    def compute_native_probs(self, batch: Batch) -> Tensor:
        """The user's own model on the prompt and answer as they are."""
        return self._by_own_model(batch, batch.inputs["input_ids"], 1)

    def _by_own_model(
        self,
        batch: Batch,
        ids: Tensor,
        n_behind: int = 0,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Probabilities [1, entries] of the answer by the user's own model.

        Args:
            ids: int [1, tokens], of the prompt, or what is left of it, and the answer.
            n_behind: of the last rows those that predict nothing of the answer.
            visible: bool [tokens, tokens], the keys that each row may look at.
        """
        kept = batch.inputs["kept"]
        n_read = kept.shape[1] + n_behind
        given: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if "logits_to_keep" in self.forward_parameters:
            given["logits_to_keep"] = n_read
        if visible is not None:
            kind = self.user_model.dtype
            shown = torch.zeros(visible.shape, dtype=kind, device=ids.device)
            hidden = shown.masked_fill(~visible, torch.finfo(kind).min)
            given["attention_mask"] = hidden[None, None]
        logits = self.compute_native_output(given).logits[:, -n_read:][:, : kept.shape[1]]
        scores = compute_candidate_scores(logits, kept)
        return self.head.compute_probs(scores.flatten(1), batch.inputs)

    @torch.no_grad()
    def measure_native_differences(self, observation: Observation, unit: int) -> dict[str, float]:
        """How far a deletion and a knockout are from passes of the user's own model.

        Those know neither twin nor cache: one reads a shorter prompt, one has a mask over the
        unit's cells, where masks by row change nothing else (with windows they do).

        Returns:
            Largest differences of probabilities, by what was done.
        """
        batch, prompt = observation.batch, observation.state.prompt
        own = partial(self._by_own_model, batch)
        found: dict[str, float] = {}
        gone = torch.zeros_like(batch.content_mask)[None]
        gone[..., unit] = True
        left = prompt.find_remaining_tokens([unit])
        if len(left) >= prompt.n_answer:
            ours = self.erase_inputs(observation, gone)[0]
            shorter = torch.cat([prompt.ids[:, left], batch.inputs["input_ids"][:, -1:]], 1)
            found["deletion"] = _apart(ours, own(shorter, n_behind=1))

        causal = torch.ones_like(prompt.ids[0], dtype=torch.bool)
        causal = causal.expand(prompt.n_tokens, -1).tril()
        looks = causal.clone()
        is_gone = prompt.get_columns(prompt.n_tokens).column_of_key == unit
        looks[prompt.first_row :, is_gone] = False
        if not looks.any(-1).all():
            return found
        stays = (~gone)[..., None, None, :].to(observation.attention[0].dtype)
        kept = dict.fromkeys(range(len(self.layers)), stays)
        ours = self.replay_masked(observation, kept, operator="renormalised")[0]
        rounding = self._own_rounding
        try:
            error = _apart(ours, own(prompt.ids, visible=looks))
            if not error <= rounding:
                as_it_is = own(prompt.ids, visible=causal)
                if not _apart(as_it_is, observation.probs) <= rounding:
                    return found
        except Exception:  # a model raises whatever it likes
            return found
        return found | {"knockout": error}

    # Edits

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        lowest = min(attention)
        if lowest in self._unchecked:
            self._check(observation, [lowest])
        return self._probs(observation, self._replay_scores(observation, attention))

    def _probs(self, observation: Observation, scores: Tensor) -> Tensor:
        return self.head.compute_probs(scores, observation.batch.inputs)

    def _replay_scores(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Scores [copies, 1, scores] with other totals of the units."""
        for layer, edited in attention.items():
            self.check_site(Site(layer))
            if edited.shape[1:] != observation.attention[layer].shape:
                expected = ["copies", *observation.attention[layer].shape]
                raise AttnProbeError(
                    f"expected attention {expected} for layer {layer}, got {list(edited.shape)}"
                )
        return self._replayed(observation, attention, rescale_columns)

    def replay_masked(
        self,
        observation: Observation,
        kept: Mapping[int, Tensor],
        *,
        operator: str = "none",
    ) -> Tensor:
        if operator not in KNOCKOUTS:
            raise AttnProbeError(
                f"expected an operator out of {', '.join(KNOCKOUTS)}, got {operator!r}"
            )
        n_copies = max(map(len, kept.values()))
        shapes = {layer: observation.attention[layer].shape for layer in kept}
        every = {n: one.expand(n_copies, *shapes[n]) for n, one in kept.items()}
        scores = self._replayed(observation, every, partial(apply_knockout, operator=operator))
        return self._probs(observation, scores)

    def _replayed(
        self,
        observation: Observation,
        edits: Mapping[int, Tensor],
        change: Callable[[Tensor, Tensor, KeyColumns, Tensor], Tensor],
    ) -> Tensor:
        """Returns scores [copies, 1, scores]; ``change`` takes the rows of a layer and its edit."""
        lowest, state = min(edits), observation.state
        ids = state.prompt.ids.expand(len(edits[lowest]), -1)

        def of(copies: slice) -> PromptPass:
            part = {layer: every[copies, 0] for layer, every in edits.items()}

            def edit(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
                if layer not in part:
                    return rows
                return change(rows, scores, columns, part[layer])

            return PromptPass(state, ids[copies], state.first_run_row, edit, layer=lowest)

        return self._in_parts(of, ids)

    def _in_parts(self, of: Callable[[slice], PromptPass], ids: Tensor) -> Tensor:
        """Scores [copies, 1, scores], as many copies at once as a pass may hold.

        Args:
            of: makes a pass of some copies.
            ids: int [copies, tokens], of all.
        """
        n_copies, n_tokens = ids.shape
        n_at_once = max(1, self.tokens_per_pass // n_tokens)
        starts = range(0, n_copies, n_at_once)
        parts = [slice(start, start + n_at_once) for start in starts]
        passes = [*map(of, parts)]
        scores = torch.cat([*run_batched(passes, self.run_passes)])
        return scores[:, None]

    # Heads

    @torch.no_grad()
    def replay_outputs(self, observation: Observation, site: Site, outputs: Tensor) -> Tensor:
        self.check_site(site)
        self.require(HeadOutputs, site)
        state, n_heads = observation.state, self.n_heads[site.layer]
        n_rows = state.prompt.n_rows
        ids = state.prompt.ids.expand(len(outputs), -1)

        def of(copies: slice) -> PromptPass:
            new = outputs[copies, 0]

            def replace(layer: int, output: Tensor, values: Tensor) -> Tensor:
                if layer != site.layer:
                    return output
                heads = unpack_heads(output, n_heads).clone()
                rows = heads[:, site.head, -n_rows:]
                chosen = slice(None) if site.query is None else site.query
                rows[:, chosen] = new[:, chosen].to(rows.dtype)
                return heads.reshape(output.shape)

            tap = OutputHook(replace)
            return PromptPass(state, ids[copies], state.first_run_row, tap=tap, layer=site.layer)

        return self._probs(observation, self._in_parts(of, ids))

    @torch.no_grad()
    def set_reference(self, *batches: Batch) -> None:
        """Keeps the head outputs of the rows behind the passages."""
        self.require(HeadOutputs)
        self.reference = Reference.concatenate([self._reference_of(batch) for batch in batches])

    def _reference_of(self, batch: Batch) -> Reference:
        observation = self.observe(batch)
        n_rows = observation.state.prompt.n_rows
        outputs: list[Tensor] = []

        def note(layer: int, output: Tensor, values: Tensor) -> Tensor:
            outputs.append(unpack_heads(output, self.n_heads[layer])[:, :, -n_rows:])
            return output

        self.compute_row_scores(observation.state, tap=OutputHook(note))
        return Reference(batch.example_ids, torch.tensor([n_rows]), tuple(outputs))

    def get_output_projections(self) -> tuple[Tensor, ...]:
        self.require(OutputProjections)
        assert self._head_support.projections is not None
        return self._head_support.projections

    @torch.no_grad()
    def read_token_attention(self, observation: Observation, read: LayerReader[S]) -> list[S]:
        n_tokens, found = observation.state.prompt.n_tokens, []
        last: list[Tensor] = []

        def note(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
            last[:] = [rows[0, ..., :n_tokens]]
            return rows

        def with_values(layer: int, output: Tensor, values: Tensor) -> Tensor:
            of_heads = values[0].repeat_interleave(self.n_heads[layer] // values.shape[1], dim=0)
            found.append(read(layer, last[0], of_heads))
            return output

        self.compute_row_scores(observation.state, note, OutputHook(with_values))
        return found

    # Units left out

    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        """See the protocol; the whole prompt's where nothing is left out."""
        columns = observation.batch.mask.shape[1]
        each = torch.eye(columns, dtype=torch.bool, device=observation.probs.device)
        return self.erase_inputs(observation, each[:, None]).transpose(0, 1)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """See the protocol. By "deletion" the tokens behind close up, by "gap" they keep
        their positions. Equal sets of units are run once.
        """
        if operator not in PASSAGE_OPERATORS:
            raise AttnProbeError(
                f"expected units to be erased by one of {', '.join(PASSAGE_OPERATORS)}, got {operator!r}"
            )
        if operator == "gap":
            self.require(KeptPositions)
        known: dict[tuple[int, ...], Tensor] = observation.remember(("erased", operator), dict)
        gone = (erased & observation.batch.content_mask)[:, 0]
        names = [tuple(row.nonzero()[:, 0].tolist()) for row in gone]
        prompt: Prompt = observation.state.prompt
        shorter: dict[tuple[int, ...], PromptPass] = {}
        for name in dict.fromkeys(names):
            left = prompt.find_remaining_tokens(name)
            if not name or len(left) < prompt.n_answer:  # nothing is gone, or nobody answers
                known[name] = observation.probs[0]
            elif name not in known:
                shorter[name] = self._without(observation, left, operator)
        for name, scores in zip(shorter, run_batched([*shorter.values()], self.run_passes), strict=True):
            known[name] = self._probs(observation, scores)[0]
        return torch.stack([known[name] for name in names])[:, None]

    def _without(self, observation: Observation, left: Tensor, by: str) -> PromptPass:
        """A pass over the tokens at the places ``left``, int [n], from their first change on."""
        state: PassageState = observation.state
        prompt, is_gap = state.prompt, by == "gap"
        ids = prompt.ids[:, left]
        n_same = 0 if state.keys_values is None else prompt.find_first_changed_row(left)
        n_behind = 0
        if self.has_length_dependent_positions and not is_gap:
            # of as many tokens as the model itself reads
            last = observation.batch.inputs["input_ids"][:, -1:]
            ids, n_behind = torch.cat([ids, last], 1), 1
        places = left if is_gap else None
        return PromptPass(state, ids, n_same, places=places, n_behind=n_behind)

    # Gradients

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Returns the gradient by total of a unit, whose tokens move in proportion."""
        seen: list[Tensor] = []

        def mark(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
            totals = columns.sum_by_column(rows)
            totals = totals.clone() if totals.requires_grad else totals.requires_grad_()
            seen.append(totals)
            return rescale_columns(rows, scores, columns, totals)

        with torch.enable_grad():
            scores = self.compute_row_scores(observation.state, mark)
            probs = self._probs(observation, scores)
            explained = compute_shifted_probability(probs, target).sum()
            slopes = torch.autograd.grad(explained, seen, materialize_grads=True)
        return [s.to(a.dtype) for s, a in zip(slopes, observation.attention, strict=True)]

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """See the protocol: summed over a unit's tokens."""
        prompt, kept = observation.state.prompt, observation.state.kept

        def explained() -> Tensor:
            probs = self._probs(observation, self.compute_answer_scores(prompt.ids, kept, detach_attention))
            return compute_shifted_probability(probs, target).sum()

        slopes = compute_gradient_times_input(self.layout.embeddings, explained, prompt.n_tokens)
        return prompt.get_columns(prompt.n_tokens).sum_by_column(slopes)

    # The answer

    def _said(self, observation: Observation, probs: Tensor) -> Tensor:
        """Probabilities [..., batch, answer tokens, entries]."""
        n_answer = observation.state.prompt.n_answer
        return probs.unflatten(-1, (n_answer, -1)) * n_answer

    def compute_log_prob(self, observation: Observation, probs: Tensor) -> Tensor:
        return self._said(observation, probs)[..., 0].log().sum(-1)

    def compute_contrast(self, observation: Observation, probs: Tensor) -> Tensor:
        n_answer = observation.state.prompt.n_answer
        other_ids = observation.batch.inputs["other_ids"]
        differs = other_ids[0, -n_answer:] >= 0
        if not differs.any():
            return torch.full_like(probs[..., 0], torch.nan)
        place = int(differs.int().argmax())
        by_place = self._said(observation, probs)
        each = by_place[..., place, :].log()
        return each[..., 0] - each[..., 1]

    def is_greedy(self, observation: Observation) -> Tensor:
        """See the protocol; what rounding of the logits decides is the model's own too.

        In half precision one pass over an answer and its generation step by step differ by it.
        """
        each = self._said(observation, observation.probs)[..., :-1].log()
        rounding = TYPICAL_LARGE_LOGIT * torch.finfo(self.model.dtype).eps
        return (each[..., 0] >= each.amax(-1) - rounding).all(-1)

    def compute_probs_without_passage(self, observation: Observation) -> Tensor:
        return self.erase_inputs(observation, observation.batch.content_mask[None])[0]

    def count_unit_tokens(self, observation: Observation) -> Tensor:
        prompt = observation.state.prompt
        units = prompt.unit_ids[prompt.unit_ids >= 0]
        return units.bincount(minlength=prompt.n_columns)[None]

    def get_row_positions(self, observation: Observation) -> Tensor:
        prompt = observation.state.prompt
        return torch.arange(prompt.first_row, prompt.n_tokens, device=prompt.ids.device)

    def find_answer_rows(self, observation: Observation) -> Tensor:
        prompt = observation.state.prompt
        return self.get_row_positions(observation) >= prompt.n_tokens - prompt.n_answer

    # Whether edits arrive

    def self_check(self, batch: Batch) -> None:
        """Tries the first, the middle and the last layer; others when they are first edited.

        Also that the user's own model, which reads the answer's last token too, says the same.
        """
        observation = self.observe(batch)
        self._check_last_token(observation)
        top = len(self.layers) - 1
        self._check(observation, sorted({0, top // 2, top}))

    @property
    def _own_rounding(self) -> float:
        """How far the user's own model may be away: the coarser of both formats."""
        kinds = (self.model.dtype, self.user_model.dtype)
        return max(get_relative_tolerance(kind) for kind in kinds)

    def _check_last_token(self, observation: Observation) -> None:
        batch = observation.batch
        error = float((self.compute_native_probs(batch) - observation.probs).abs().max())
        if not error <= self._own_rounding:
            raise AttnProbeError(
                f"self-check: probabilities of text {batch.example_ids[0]} differ by {error:.1e} "
                "where the answer's last token is read too, which changes nothing where tokens see "
                "no later ones and positions do not depend on the length; this model cannot be "
                "audited on it"
            )

    def _check(self, observation: Observation, layers: Sequence[int]) -> None:
        native = self.prefill(observation.batch.inputs).scores
        names, dtype = self.layer_names, self.model.dtype
        check_edits_reach_logits(observation, native, self._replay_scores, names, dtype, layers)
        self._unchecked.difference_update(layers)


def _apart(ours: Tensor, own: Tensor) -> float:
    """The largest difference of two probabilities."""
    return float((ours - own).abs().max())
