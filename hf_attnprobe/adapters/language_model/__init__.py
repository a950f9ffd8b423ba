"""Adapter for decoders that answer a question from a passage.

A passage consists of units, such as sentences, and tests measure how the answer depends on them.
Start reading with `adapter`.

- `adapter`: `LanguageModelAdapter`, which implements the protocol.
- `prompt`: a prompt with its answer, the assignment of tokens to units, and edits of unit weights.
- `kv_cache_passes`: forward passes over the last tokens of a prompt, with cached keys and values.
- `continuations`: scores of several continuations after shortened copies of a prompt.
- `prompt_batching`: running the forward passes of several prompts as one batch.
"""
