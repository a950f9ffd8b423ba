"""Adapter for a decoder that answers from a passage.

In the attention that tests see, the keys are the passage's units, such as sentences, and the
queries are the tokens (rows) after the passage. See `hf_attnprobe.protocol.AnswersFromPassage`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_attnprobe.adapters.language_model.kv_cache_passes import (
    KeysValues,
    PassageState,
    PromptPass,
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
    find_visible_keys,
    unpack_heads,
)
from hf_attnprobe.adapters.transformer.layout import (
    compute_gradient_times_input,
    create_example_inputs,
)
from hf_attnprobe.adapters.transformer.recorded_blocks import (
    get_relative_tolerance,
    record_outputs,
)
from hf_attnprobe.adapters.transformer.replay import check_edits_reach_logits
from hf_attnprobe.adapters.transformer.task_heads import compute_candidate_scores
from hf_attnprobe.core.errors import AttnProbeError, UndefinedLogitsError
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.protocol import (
    KNOCKOUTS,
    AttentionModelBase,
    Batch,
    HeadOutputs,
    HeadValues,
    KeptPositions,
    LayerReader,
    Observation,
    OutputProjections,
    ReferenceOutputs,
    S,
    Site,
)


PASSAGE_OPERATORS = ("deletion", "gap")
"""Erasure operators, which remove units of a passage from a prompt.

- "deletion": later tokens move to earlier positions.
- "gap": later tokens keep their positions.
"""
MAX_FINE_EPSILON = 1e-4
"""Largest machine epsilon at which the rounding of an answer's loss is negligible.

That of float32 is 1e-7. That of float16 is 1e-3, and that of bfloat16 is 8e-3.
"""
TYPICAL_LARGE_LOGIT = 32
"""A large logit of a typical language model, used to estimate rounding errors of logits.

The rounding error is estimated as 32 times the machine epsilon of the model's data type.
"""
PROMPTS_PER_BATCH = 8
"""Number of prompts in a batch on a GPU.

On a CPU, batches save no time, so prompts run one after the other.
"""


T = TypeVar("T")


class LanguageModelAdapter(PretrainedModelInfo, PromptRunner, AttentionModelBase):
    """Adapter that reads and edits a decoder's attention to the units of a passage.

    Like `TransformerAdapter`, it works on a copy of the model that shares its weights. A batch is
    one prompt with its answer.

    Args:
        model: A model with a causal language-modelling head.
        dtype: Data type for all computations. None keeps the weights' type.
        rows: Rows (query tokens) that tests may edit, one of `ROW_CHOICES`.
        unit: Name of a passage's unit, such as "sentence".
        tokens_per_pass: Largest token count of a forward pass in replays. None chooses it by
            device.
        **ignored_options: Options for other adapters.
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
        **ignored_options: Any,
    ) -> None:
        if rows not in ROW_CHOICES:
            raise AttnProbeError(
                f"expected rows to be one of {', '.join(ROW_CHOICES)}, got {rows!r}"
            )

        PretrainedModelInfo.__init__(self, model)
        head = AnswerHead(model.config.get_text_config().vocab_size)
        PromptRunner.__init__(self, model, head, dtype=dtype, tokens_per_pass=tokens_per_pass)
        self.label_names: list[str] = []
        self.rows, self.unit = rows, unit
        self._unchecked_layers = set(range(len(self.layers)))
        self._check_causal()
        self.shared_heads = self._group_sharing_heads()

    def _check_causal(self) -> None:
        """Check on an example that tokens can only attend to earlier tokens and to themselves."""

        def check_mask(layer: int, weights: Tensor, scores: Tensor) -> Tensor:
            # The part above the diagonal contains the attention to later tokens.
            if find_visible_keys(scores).triu(1).any():
                raise AttnProbeError(
                    "expected a causal language model, but in "
                    f"{type(self.model).__name__}, tokens attend to later tokens. If it is an "
                    "encoder, set is_decoder=True in its configuration."
                )
            return weights

        with torch.no_grad():
            self.compute_logits(create_example_inputs(self.model), check_mask)

    @property
    def prediction(self) -> Prediction:
        """Description of the prediction vector, which contains the answer's tokens."""
        return self.head.prediction

    def _group_sharing_heads(self) -> list[list[Site]]:
        """List groups of heads that share keys and values (grouped-query attention)."""
        groups: list[list[Site]] = []
        for layer, group_size in enumerate(self.n_sharing_heads):
            if group_size <= 1:
                continue
            heads = [Site(layer, head) for head in range(self.n_heads[layer])]
            for start in range(0, len(heads), group_size):
                end = start + group_size
                groups.append(heads[start:end])
        return groups

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Return why the model does not support a type of test, or None if it does.

        See `AttentionModelBase.lacks`.
        """
        if capability is HeadValues:
            return (
                "the test needs one value vector per unit, but a unit of a passage has one per "
                "token; remove this test"
            )
        if capability is OutputProjections:
            return self._head_support.no_projections
        if capability is HeadOutputs:
            return self._head_support.no_outputs
        if capability is KeptPositions and not self.keeps_positions:
            return (
                "the test needs a model that accepts position_ids counted from 0, but "
                f"{type(self.model).__name__} does not; remove this test"
            )
        return super().lacks(capability, site)

    @property
    def n_parallel_batches(self) -> int:
        """Number of prompts that an audit processes concurrently; see `run_jobs_together`."""
        is_gpu = self.model.device.type != "cpu"
        return PROMPTS_PER_BATCH if is_gpu and self.can_join_prompts else 1

    def run_jobs_together(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Run the tests on several prompts at the same time.

        Forward passes of different prompts are joined into batches; see `prompt_batching`.

        Args:
            jobs: Functions without arguments, one per prompt. Each runs all tests on its prompt.

        Returns:
            The result of each function.
        """
        return run_jobs_together(jobs, self.run_passes)

    # Batches and observations

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch from one prompt with its answer.

        The inputs are tensors `[1, tokens]`:

        - `input_ids`: token ids of the prompt and the answer.
        - `unit_ids`: each token's unit index, or -1 outside all units.
        - `labelled`: 1 for the answer's tokens, which come last, and 0 otherwise.
        - `other_ids` (optional): -1, except at the first token at which an alternative answer
          differs. There it is the alternative answer's token id.
        - `candidate_ids` (optional): candidate words for each answer token, see `AnswerHead`. Without
          them, the model runs on the whole prompt, and its most likely words are the candidates.

        Args:
            inputs: The inputs by name.
            example_ids: Data set id for the prompt.
            labels: Not used by tests of language models.

        Returns:
            A batch whose keys are the units and the two extra columns.

        Raises:
            UndefinedLogitsError: If a logit of the answer is NaN or infinite.
            AttnProbeError: If the inputs are not a single prompt with a passage and an answer.
        """
        missing = {"input_ids", "unit_ids", "labelled"} - inputs.keys()
        if missing:
            raise AttnProbeError(
                f"the inputs lack {', '.join(sorted(missing))}. {type(self.model).__name__} is a "
                "language model, so pass prompts with answers (Answers)."
            )
        inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
        inputs.setdefault("other_ids", torch.full_like(inputs["input_ids"], -1))
        self._check_inputs(inputs)
        names = ("input_ids", "unit_ids", "labelled", "other_ids")
        batch_inputs = {name: inputs[name] for name in names}
        if "candidate_ids" in inputs:
            batch_inputs["candidate_ids"] = inputs["candidate_ids"]
        else:
            try:
                batch_inputs["candidate_ids"] = self.prefill(batch_inputs).candidates
            except UndefinedLogitsError as error:
                raise UndefinedLogitsError(f"text {example_ids[0]}: {error}") from error
        prompt = Prompt(batch_inputs, self.rows)
        columns = torch.arange(prompt.n_columns, device=self.model.device)
        mask = torch.ones_like(columns, dtype=torch.bool)
        column_of_key = prompt.get_columns(prompt.n_tokens).column_of_key
        is_unit = columns < prompt.n_columns - N_EXTRA_COLUMNS
        content = is_unit & torch.isin(columns, column_of_key)
        return Batch(batch_inputs, mask[None], content[None], tuple(example_ids), labels)

    def _check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        """Check that the inputs are a single prompt with a passage and an answer."""
        ids = inputs["input_ids"]
        if len(ids) != 1:
            raise AttnProbeError(
                f"expected a batch with one prompt, got {len(ids)} prompts; prepare each prompt "
                "separately"
            )
        largest_id = int(ids.max())
        if self.n_embeddings is not None and largest_id >= self.n_embeddings:
            raise AttnProbeError(
                f"expected token ids below {self.n_embeddings}, got {largest_id}; use this model's "
                "tokenizer"
            )

        is_answer = inputs["labelled"][0]
        n_answer = int(is_answer.sum())
        if not 0 < n_answer < len(is_answer) or not is_answer[-n_answer:].all():
            raise AttnProbeError(
                "expected a prompt that ends with its answer. The input named 'labelled' must be 1 "
                "for the answer's tokens, and 0 for all tokens before them."
            )

        is_in_unit = inputs["unit_ids"][0] >= 0
        is_in_passage = is_in_unit[: -n_answer - 1]
        is_in_answer = is_in_unit[-n_answer:]
        if not is_in_passage.any() or is_in_answer.any():
            raise AttnProbeError(
                "expected a passage before the answer, but the input 'unit_ids' does not mark one; "
                "set it to -1 for all tokens outside the passage"
            )

    def observe(self, batch: Batch) -> Observation:
        """Run the model on a prompt, and sum its attention over the tokens of each unit.

        The first tokens of the prompt are taken from a cache of keys and values. If this changes
        the scores, the model is run again without the cache. See `AttentionModel.observe`.

        Raises:
            AttnProbeError: If recording the attention changes the scores.
        """
        prefill = self.prefill(batch.inputs)
        prompt = Prompt(batch.inputs, self.rows)
        for keys_values in (prefill.keys_values, None):
            state = PassageState(prompt, prefill.candidates, keys_values)
            observation, scores = self._observe_rows(batch, state)
            if self.scores_agree(scores, prefill.scores):
                if self.has_length_dependent_positions:
                    self._check_last_token(observation)
                return observation
        error = float((scores - prefill.scores).abs().max())
        raise AttnProbeError(
            f"self-check failed: recording the attention changed the logits by {error:.1e}. "
            "This model cannot be audited. Please report this problem."
        )

    def observe_with_keys(self, batch: Batch, keys_values: KeysValues | None) -> Observation:
        """Run the model on the last tokens of a prompt whose first tokens have run before.

        Args:
            batch: The prompt with its answer.
            keys_values: Keys and values of at least all tokens before the first row that tests may
                edit. With None, all tokens run.

        Returns:
            An observation, as by `observe`.
        """
        prompt = Prompt(batch.inputs, self.rows)
        state = PassageState(prompt, batch.inputs["candidate_ids"], keys_values)
        observation, _ = self._observe_rows(batch, state)
        return observation

    @torch.no_grad()
    def _observe_rows(self, batch: Batch, state: PassageState) -> tuple[Observation, Tensor]:
        """Run the model on the tokens that are not in the cache, and record their attention.

        The attention is summed over the tokens of each unit, such as a sentence.

        Args:
            batch: The prompt.
            state: The prompt with its cached keys and values.

        Returns:
            An observation, and the answer scores `[1, scores]`.
        """
        attention: list[Tensor] = []
        visible: list[Tensor] = []

        def record_layer(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
            attention.append(columns.sum_by_column(rows))
            n_visible = columns.sum_by_column(find_visible_keys(scores[:, 0]).float())
            visible.append((n_visible > 0) & batch.content_mask[:, None])
            return rows

        with record_outputs(self.layout.blocks) as outputs:
            scores = self.compute_row_scores(state, record_layer)
        state = state._replace(outputs=tuple(outputs), visible=tuple(visible))
        probs = self.head.compute_probs(scores, batch.inputs)
        return Observation(self, batch, probs, tuple(attention), state), scores

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        """Return whether each row can attend to each unit, bool `[1, rows, columns]`."""
        return observation.state.visible[layer]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        """Average values over the tokens that predict the answer.

        If the site has a query, only the values of this token are returned.

        Args:
            observation: The observed prompt.
            values: Values for each token, `[batch, rows, ...]`.
            site: The site, with or without a query.
        """
        if site.query is not None:
            return values[:, site.query]
        n_answer = observation.state.prompt.n_answer
        return values[:, -n_answer:].mean(1)

    def compute_native_probs(self, batch: Batch) -> Tensor:
        """Compute the prediction vector with the original model (without hooks), `[1, entries]`."""
        return self._run_user_model(batch, batch.inputs["input_ids"], 1)

    def _run_user_model(
        self,
        batch: Batch,
        ids: Tensor,
        n_trailing_rows: int = 0,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Compute the probabilities of an answer with the original model (without hooks).

        Args:
            batch: The prompt.
            ids: Token ids of the (possibly shortened) prompt and the answer, int `[1, tokens]`.
            n_trailing_rows: Number of tokens at the end that do not predict an answer token.
            visible: Whether each token can attend to each other token, bool `[tokens, tokens]`.
                With None, the attention mask of the model is used.

        Returns:
            Prediction vector `[1, entries]`.
        """
        candidates = batch.inputs["candidate_ids"]
        n_read = candidates.shape[1] + n_trailing_rows
        arguments: dict[str, Any] = {"input_ids": ids, "use_cache": False}
        if "logits_to_keep" in self.forward_parameters:
            arguments["logits_to_keep"] = n_read
        if visible is not None:
            # The model adds a mask with four axes to the attention scores, so hidden keys get a
            # very negative number.
            dtype = self.user_model.dtype
            bias = torch.zeros(visible.shape, dtype=dtype, device=ids.device)
            bias = bias.masked_fill(~visible, torch.finfo(dtype).min)
            arguments["attention_mask"] = bias[None, None]
        logits = self.compute_native_output(arguments).logits
        answer_logits = logits[:, -n_read:][:, : candidates.shape[1]]
        scores = compute_candidate_scores(answer_logits, candidates)
        return self.head.compute_probs(scores.flatten(1), batch.inputs)

    @property
    def rounds_coarsely(self) -> bool:
        """Whether the model computes in half precision, in which rounding changes losses visibly."""
        return torch.finfo(self.model.dtype).eps > MAX_FINE_EPSILON

    @torch.no_grad()
    def measure_rounding(self, observation: Observation, max_units: int, seed: int) -> Tensor:
        """Measure by how much rounding changes the answer's losses without each unit.

        The losses are measured again with input embeddings that differ by less than their own rounding
        error (Monte Carlo arithmetic, Parker et al. 2000). All later numbers are then rounded
        differently. The second passes run the original model over each shorter prompt alone, without a
        cache. Running the same prompts again would not show the rounding, because a batch or a cache
        often changes no bit.

        Args:
            observation: The observed prompt.
            max_units: Largest number of units that are deleted, the first ones.
            seed: Seed for the changes of the embeddings.

        Returns:
            Absolute differences between the two losses, in nats, `[units]`.
        """
        batch, prompt = observation.batch, observation.state.prompt
        units = batch.content_mask[0].nonzero()[:, 0].tolist()
        # At least one row must remain for every token of the answer.
        units = [u for u in units if len(prompt.find_remaining_tokens([u])) >= prompt.n_answer]
        units = units[:max_units]
        if not units:
            return torch.zeros(0)
        is_deleted = torch.zeros(len(units), *batch.content_mask.shape, dtype=torch.bool)
        is_deleted[range(len(units)), 0, units] = True
        is_deleted = is_deleted.to(batch.content_mask.device)
        probs = self.erase_inputs(observation, is_deleted)
        last_id = batch.inputs["input_ids"][:, -1:]
        with perturb_embeddings(self.user_model, seed):
            whole_probs = self.compute_native_probs(batch)
            shorter_probs = []
            for unit in units:
                remaining = prompt.find_remaining_tokens([unit])
                shorter_ids = torch.cat([prompt.ids[:, remaining], last_id], 1)
                shorter_probs.append(self._run_user_model(batch, shorter_ids, n_trailing_rows=1))

        def compute_losses(whole: Tensor, shorter: Tensor) -> Tensor:
            log_prob = self.compute_log_prob(observation, whole)
            return log_prob - self.compute_log_prob(observation, shorter)[:, 0]

        losses = compute_losses(observation.probs, probs)
        return (losses - compute_losses(whole_probs, torch.stack(shorter_probs))).abs()

    @torch.no_grad()
    def measure_native_differences(self, observation: Observation, unit: int) -> dict[str, float]:
        """Compare a deletion and a knockout with the original model, without hooks or cache.

        The deletion is compared with a pass over a shorter prompt. The knockout is compared with a
        pass in which an attention mask hides the unit. The second comparison is left out if an
        explicit mask changes the model in other respects, as in models with sliding windows.

        Args:
            observation: The observed prompt.
            unit: Index of the unit that is deleted and knocked out.

        Returns:
            Largest probability differences, with the keys "deletion" and "knockout". A comparison
            that is not possible is left out.
        """
        batch, prompt = observation.batch, observation.state.prompt
        run_user_model = partial(self._run_user_model, batch)
        differences: dict[str, float] = {}
        is_unit = torch.zeros_like(batch.content_mask)[None]
        is_unit[..., unit] = True
        remaining = prompt.find_remaining_tokens([unit])
        if len(remaining) >= prompt.n_answer:
            probs = self.erase_inputs(observation, is_unit)[0]
            last_id = batch.inputs["input_ids"][:, -1:]
            shorter_ids = torch.cat([prompt.ids[:, remaining], last_id], 1)
            native_probs = run_user_model(shorter_ids, n_trailing_rows=1)
            differences["deletion"] = _compute_largest_difference(probs, native_probs)

        causal = torch.ones_like(prompt.ids[0], dtype=torch.bool)
        causal = causal.expand(prompt.n_tokens, -1).tril()
        visible = causal.clone()
        is_unit_key = prompt.get_columns(prompt.n_tokens).column_of_key == unit
        visible[prompt.first_row :, is_unit_key] = False
        if not visible.any(-1).all():
            return differences
        unit_factors = (~is_unit)[..., None, None, :].to(observation.attention[0].dtype)
        factors = dict.fromkeys(range(len(self.layers)), unit_factors)
        probs = self.replay_masked(observation, factors, operator="renormalised")[0]
        tolerance = self._native_tolerance
        try:
            native_probs = run_user_model(prompt.ids, visible=visible)
            error = _compute_largest_difference(probs, native_probs)
            if not error <= tolerance:
                masked_probs = run_user_model(prompt.ids, visible=causal)
                mask_error = _compute_largest_difference(masked_probs, observation.probs)
                if not mask_error <= tolerance:
                    return differences
        except Exception:
            # A model may raise arbitrary exceptions.
            return differences
        return differences | {"knockout": error}

    # Edits

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Run the model again with new attention to each unit, and compute its predictions.

        The new attention of a unit is divided among its tokens. See `AttentionModel.replay`.
        """
        lowest_layer = min(attention)
        if lowest_layer in self._unchecked_layers:
            self._check_layers(observation, [lowest_layer])
        return self._compute_probs(observation, self._replay_scores(observation, attention))

    def _compute_probs(self, observation: Observation, scores: Tensor) -> Tensor:
        """Compute prediction vectors from scores."""
        return self.head.compute_probs(scores, observation.batch.inputs)

    def _replay_scores(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Run the model again with new attention to each unit, and compute its answer scores.

        Args:
            observation: The observed prompt.
            attention: New attention to each unit by layer, each `[copies, 1, ...]`.

        Returns:
            Scores `[copies, 1, scores]`.
        """
        for layer, edited in attention.items():
            self.check_site(Site(layer))
            if edited.shape[1:] != observation.attention[layer].shape:
                axes = ["copies", *map(str, observation.attention[layer].shape)]
                raise AttnProbeError(
                    f"expected attention of shape [{', '.join(axes)}] for layer {layer}, "
                    f"got {list(edited.shape)}"
                )
        return self._replay_edits(observation, attention, rescale_columns)

    def replay_masked(
        self,
        observation: Observation,
        factors: Mapping[int, Tensor],
        *,
        operator: str = "none",
    ) -> Tensor:
        """Block the attention to some units (knockout), and compute the predictions.

        See `AnswersFromPassage.replay_masked`.
        """
        if operator not in KNOCKOUTS:
            raise AttnProbeError(
                f"expected the knockout operator to be one of {', '.join(KNOCKOUTS)}, "
                f"got {operator!r}"
            )
        n_copies = max(map(len, factors.values()))
        shapes = {layer: observation.attention[layer].shape for layer in factors}
        expanded = {
            layer: layer_factors.expand(n_copies, *shapes[layer])
            for layer, layer_factors in factors.items()
        }
        knockout = partial(apply_knockout, operator=operator)
        scores = self._replay_edits(observation, expanded, knockout)
        return self._compute_probs(observation, scores)

    def _replay_edits(
        self,
        observation: Observation,
        edits: Mapping[int, Tensor],
        apply_edit: Callable[[Tensor, Tensor, KeyColumns, Tensor], Tensor],
    ) -> Tensor:
        """Edit the attention in several copies of a prompt, and compute their answer scores.

        Args:
            observation: The observed prompt.
            edits: Edit data by layer, such as new attention weights, each `[copies, 1, ...]`.
            apply_edit: Function that receives attention weights, scores before the softmax, the
                assignment of tokens to units, and the edit data of a layer. It returns edited
                weights.

        Returns:
            Scores `[copies, 1, scores]`.
        """
        lowest_layer = min(edits)
        state = observation.state
        ids = state.prompt.ids.expand(len(edits[lowest_layer]), -1)

        def create_pass(copies: slice) -> PromptPass:
            chunk = {layer: data[copies, 0] for layer, data in edits.items()}

            def edit(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
                if layer not in chunk:
                    return rows
                return apply_edit(rows, scores, columns, chunk[layer])

            return PromptPass(state, ids[copies], state.first_run_row, edit, layer=lowest_layer)

        return self._run_in_chunks(create_pass, ids)

    def _run_in_chunks(self, create_pass: Callable[[slice], PromptPass], ids: Tensor) -> Tensor:
        """Split copies of a prompt into chunks, run the model on each, and return the scores.

        Args:
            create_pass: Function that receives a slice of the copies and returns the description of
                a forward pass over them.
            ids: Token ids of all copies, int `[copies, tokens]`.

        Returns:
            Scores `[copies, 1, scores]`.
        """
        n_copies, n_tokens = ids.shape
        chunk_size = max(1, self.tokens_per_pass // n_tokens)
        starts = range(0, n_copies, chunk_size)
        chunks = [slice(start, start + chunk_size) for start in starts]
        passes = [create_pass(chunk) for chunk in chunks]
        chunk_scores = run_batched(passes, self.run_passes)
        return torch.cat([*chunk_scores])[:, None]

    # Heads

    @torch.no_grad()
    def replay_outputs(self, observation: Observation, site: Site, outputs: Tensor) -> Tensor:
        """Replace the output of a head, and compute the predictions; see `HeadOutputs`."""
        self.check_site(site)
        self.require(HeadOutputs, site)
        state = observation.state
        n_heads = self.n_heads[site.layer]
        n_rows = state.prompt.n_rows
        ids = state.prompt.ids.expand(len(outputs), -1)

        def create_pass(copies: slice) -> PromptPass:
            new_outputs = outputs[copies, 0]

            def replace_output(layer: int, output: Tensor, values: Tensor) -> Tensor:
                if layer != site.layer:
                    return output
                head_outputs = unpack_heads(output, n_heads).clone()
                rows = head_outputs[:, site.head, -n_rows:]
                replaced = slice(None) if site.query is None else site.query
                rows[:, replaced] = new_outputs[:, replaced].to(rows.dtype)
                return head_outputs.reshape(output.shape)

            return PromptPass(
                state,
                ids[copies],
                state.first_run_row,
                output_hook=OutputHook(replace_output),
                layer=site.layer,
            )

        return self._compute_probs(observation, self._run_in_chunks(create_pass, ids))

    @torch.no_grad()
    def set_reference(self, *batches: Batch) -> None:
        """Run the model on reference prompts, and store the outputs of all heads.

        Tests replace the head outputs of other prompts by these outputs; see `HeadOutputs`.

        Args:
            batches: The reference prompts.
        """
        self.require(HeadOutputs)
        references = [self._create_reference(batch) for batch in batches]
        self.reference = ReferenceOutputs.concatenate(references)

    def _create_reference(self, batch: Batch) -> ReferenceOutputs:
        """Run the model on a prompt, and record the outputs of all heads.

        Only the outputs for the tokens (rows) that tests may edit are recorded.
        """
        observation = self.observe(batch)
        n_rows = observation.state.prompt.n_rows
        outputs: list[Tensor] = []

        def record_output(layer: int, output: Tensor, values: Tensor) -> Tensor:
            outputs.append(unpack_heads(output, self.n_heads[layer])[:, :, -n_rows:])
            return output

        self.compute_row_scores(observation.state, output_hook=OutputHook(record_output))
        identities = tuple(batch.list_identities())
        return ReferenceOutputs(
            batch.example_ids, torch.tensor([n_rows]), tuple(outputs), identities
        )

    def get_output_projections(self) -> tuple[Tensor, ...]:
        """Return each head's slice of the output projection; see `OutputProjections`."""
        self.require(OutputProjections)
        assert self._head_support.projections is not None
        return self._head_support.projections

    @torch.no_grad()
    def read_token_attention(self, observation: Observation, read_layer: LayerReader[S]) -> list[S]:
        """Call a function with each layer's attention and values; see `AnswersFromPassage`."""
        n_tokens = observation.state.prompt.n_tokens
        results: list[S] = []
        last_weights: list[Tensor] = []

        def record_weights(layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns) -> Tensor:
            # Keep only the current layer's weights, until its values are known.
            last_weights[:] = [rows[0, ..., :n_tokens]]
            return rows

        def read_values(layer: int, output: Tensor, values: Tensor) -> Tensor:
            n_sharing_heads = self.n_heads[layer] // values.shape[1]
            head_values = values[0].repeat_interleave(n_sharing_heads, dim=0)
            results.append(read_layer(layer, last_weights[0], head_values))
            return output

        self.compute_row_scores(observation.state, record_weights, OutputHook(read_values))
        return results

    # Erasing units

    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        """Compute the prediction vectors after erasing each unit alone, `[1, columns, entries]`.

        The extra columns contain the prediction for the whole prompt.
        """
        n_columns = observation.batch.mask.shape[1]
        single_units = torch.eye(n_columns, dtype=torch.bool, device=observation.probs.device)
        return self.erase_inputs(observation, single_units[:, None]).transpose(0, 1)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Delete units from a prompt, and compute the predictions; see `EditableInputs`.

        The result for each set of deleted units is cached, in case it is requested again.
        """
        if operator not in PASSAGE_OPERATORS:
            raise AttnProbeError(
                f"expected the erasure operator to be one of {', '.join(PASSAGE_OPERATORS)}, "
                f"got {operator!r}"
            )
        if operator == "gap":
            self.require(KeptPositions)
        cache: dict[tuple[int, ...], Tensor] = observation.remember(("erased", operator), dict)
        is_erased = (erased & observation.batch.content_mask)[:, 0]
        unit_sets = [tuple(row.nonzero()[:, 0].tolist()) for row in is_erased]
        prompt: Prompt = observation.state.prompt
        new_passes: dict[tuple[int, ...], PromptPass] = {}
        for unit_set in dict.fromkeys(unit_sets):
            remaining = prompt.find_remaining_tokens(unit_set)
            if not unit_set or len(remaining) < prompt.n_answer:
                # Nothing is erased, or too few rows would remain to predict the answer.
                cache[unit_set] = observation.probs[0]
            elif unit_set not in cache:
                new_passes[unit_set] = self._create_deletion_pass(observation, remaining, operator)
        new_scores = run_batched([*new_passes.values()], self.run_passes)
        for unit_set, scores in zip(new_passes, new_scores, strict=True):
            cache[unit_set] = self._compute_probs(observation, scores)[0]
        return torch.stack([cache[unit_set] for unit_set in unit_sets])[:, None]

    def _create_deletion_pass(
        self, observation: Observation, remaining: Tensor, operator: str
    ) -> PromptPass:
        """Describe a forward pass over a shortened prompt.

        The tokens before the first deletion are taken from the cache of keys and values.

        Args:
            observation: The observed prompt.
            remaining: Positions of the remaining tokens, int `[remaining tokens]`.
            operator: One of `PASSAGE_OPERATORS`.
        """
        state: PassageState = observation.state
        prompt = state.prompt
        is_gap = operator == "gap"
        ids = prompt.ids[:, remaining]
        has_cache = state.keys_values is not None
        n_prefix_tokens = prompt.find_first_changed_row(remaining) if has_cache else 0
        n_trailing_rows = 0
        if self.has_length_dependent_positions and not is_gap:
            # The original model reads the answer's last token too. It is added here, so that both
            # texts have the same length.
            last_id = observation.batch.inputs["input_ids"][:, -1:]
            ids = torch.cat([ids, last_id], 1)
            n_trailing_rows = 1
        positions = remaining if is_gap else None
        return PromptPass(
            state, ids, n_prefix_tokens, positions=positions, n_trailing_rows=n_trailing_rows
        )

    # Gradients

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Compute how the explained probability depends on the attention to each unit (gradient).

        The attention to a unit is the sum of the weights of its tokens. If it changes, the weights
        of all its tokens change by the same factor.
        """
        layer_sums: list[Tensor] = []

        # This edit does not change the attention. It only stores the sums in each layer, for which
        # the gradient is computed afterwards.
        def require_gradient(
            layer: int, rows: Tensor, scores: Tensor, columns: KeyColumns
        ) -> Tensor:
            sums = columns.sum_by_column(rows)
            sums = sums.clone() if sums.requires_grad else sums.requires_grad_()
            layer_sums.append(sums)
            return rescale_columns(rows, scores, columns, sums)

        with torch.enable_grad():
            scores = self.compute_row_scores(observation.state, require_gradient)
            probs = self._compute_probs(observation, scores)
            explained = compute_shifted_probability(probs, target).sum()
            gradients = torch.autograd.grad(explained, layer_sums, materialize_grads=True)
        return [
            gradient.to(attention.dtype)
            for gradient, attention in zip(gradients, observation.attention, strict=True)
        ]

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """Compute gradient × input for each token, and sum it over the tokens of each unit.

        See `Differentiable.compute_gradient_times_input`.
        """
        prompt, candidates = observation.state.prompt, observation.state.candidates

        def compute_explained() -> Tensor:
            scores = self.compute_answer_scores(prompt.ids, candidates, detach_attention)
            probs = self._compute_probs(observation, scores)
            return compute_shifted_probability(probs, target).sum()

        values = compute_gradient_times_input(
            self.layout.embeddings, compute_explained, prompt.n_tokens
        )
        return prompt.get_columns(prompt.n_tokens).sum_by_column(values)

    # The answer

    def _group_probs_by_token(self, observation: Observation, probs: Tensor) -> Tensor:
        """Reshape prediction vectors to distributions `[..., batch, answer tokens, outcomes]`."""
        n_answer = observation.state.prompt.n_answer
        return probs.unflatten(-1, (n_answer, -1)) * n_answer

    def compute_log_prob(self, observation: Observation, probs: Tensor) -> Tensor:
        """Compute the log-probability of the whole answer; see `AnswersFromPassage`."""
        return self._group_probs_by_token(observation, probs)[..., 0].log().sum(-1)

    def compute_contrast(self, observation: Observation, probs: Tensor) -> Tensor:
        """Compute the log-odds of the answer against an alternative answer.

        They are computed at the first token at which both answers differ. See
        `AnswersFromPassage.compute_contrast`.
        """
        n_answer = observation.state.prompt.n_answer
        other_ids = observation.batch.inputs["other_ids"]
        differs = other_ids[0, -n_answer:] >= 0
        if not differs.any():
            return torch.full_like(probs[..., 0], torch.nan)
        # The index of the first answer token at which both answers differ.
        position = int(differs.int().argmax())
        token_probs = self._group_probs_by_token(observation, probs)
        log_probs = token_probs[..., position, :].log()
        # The first outcome is the answer's token, the second the alternative answer's token.
        return log_probs[..., 0] - log_probs[..., 1]

    def is_greedy(self, observation: Observation) -> Tensor:
        """Check whether each token of the answer is the most likely one (greedy decoding).

        The check tolerates rounding errors: in half precision, one pass over an answer and its
        generation token by token give slightly different logits.
        """
        token_probs = self._group_probs_by_token(observation, observation.probs)
        # The first outcome is the answer's token. The last one, all remaining words, is left out.
        log_probs = token_probs[..., :-1].log()
        rounding = TYPICAL_LARGE_LOGIT * torch.finfo(self.model.dtype).eps
        return (log_probs[..., 0] >= log_probs.amax(-1) - rounding).all(-1)

    def compute_probs_without_passage(self, observation: Observation) -> Tensor:
        """Compute the prediction vectors with all units erased; see `AnswersFromPassage`."""
        return self.erase_inputs(observation, observation.batch.content_mask[None])[0]

    def count_unit_tokens(self, observation: Observation) -> Tensor:
        """Count the tokens per unit; see `AnswersFromPassage`."""
        prompt = observation.state.prompt
        units = prompt.unit_ids[prompt.unit_ids >= 0]
        return units.bincount(minlength=prompt.n_columns)[None]

    def get_row_positions(self, observation: Observation) -> Tensor:
        """Return the prompt position of each editable row's token; see `AnswersFromPassage`."""
        prompt = observation.state.prompt
        return torch.arange(prompt.first_row, prompt.n_tokens, device=prompt.ids.device)

    def find_answer_rows(self, observation: Observation) -> Tensor:
        """Find the rows that predict the answer; see `AnswersFromPassage`."""
        prompt = observation.state.prompt
        return self.get_row_positions(observation) >= prompt.n_tokens - prompt.n_answer

    # Self-checks

    def self_check(self, batch: Batch) -> None:
        """Check on one prompt that the adapter works correctly for this model.

        - Editing the attention of the first, middle and last layer must change the logits. Other
          layers are checked before their first edit.
        - The original model (without hooks) must predict the same probabilities as the adapter,
          which does not read the last token of the answer.

        Raises:
            AttnProbeError: If a check fails.
        """
        observation = self.observe(batch)
        self._check_last_token(observation)
        top_layer = len(self.layers) - 1
        self._check_layers(observation, sorted({0, top_layer // 2, top_layer}))

    @property
    def _native_tolerance(self) -> float:
        """Largest allowed probability difference between the adapter and the original model.

        It depends on the less precise of their two data types.
        """
        dtypes = (self.model.dtype, self.user_model.dtype)
        return max(get_relative_tolerance(dtype) for dtype in dtypes)

    def _check_last_token(self, observation: Observation) -> None:
        """Check that the adapter and the original model predict the same probabilities.

        The original model also reads the answer's last token, which must not have any effect on the
        predictions for earlier tokens.
        """
        batch = observation.batch
        error = float((self.compute_native_probs(batch) - observation.probs).abs().max())
        if not error <= self._native_tolerance:
            raise AttnProbeError(
                "self-check failed: the answer's last token changed the probabilities of earlier "
                f"tokens by {error:.1e}. This model cannot be audited on text "
                f"{batch.example_ids[0]}, so leave the text out."
            )

    def _check_layers(self, observation: Observation, layers: Sequence[int]) -> None:
        """Check that editing the attention of some layers changes the logits.

        Afterwards, these layers are marked as checked.
        """
        native = self.prefill(observation.batch.inputs).scores
        names, dtype = self.layer_names, self.model.dtype
        check_edits_reach_logits(observation, native, self._replay_scores, names, dtype, layers)
        self._unchecked_layers.difference_update(layers)


@contextmanager
def perturb_embeddings(model: PreTrainedModel, seed: int) -> Iterator[None]:
    """Change a model's input embeddings by less than their rounding error, inside a ``with`` block.

    Args:
        model: A language model.
        seed: Seed for the relative changes, which are uniform and at most half the machine epsilon.
    """

    def change_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        changes = torch.rand(output.shape[1:], generator=generator).to(output.device) - 0.5
        factors = 1 + torch.finfo(output.dtype).eps * changes
        return (output.float() * factors).to(output.dtype)

    handle = model.get_input_embeddings().register_forward_hook(change_output)
    try:
        yield
    finally:
        handle.remove()


def _compute_largest_difference(probs: Tensor, native_probs: Tensor) -> float:
    """Compute the largest absolute difference between two prediction vectors."""
    return float((probs - native_probs).abs().max())
