"""Adapter for any Transformer: read its attention, edit it, and run the layers above the edit.

Start reading with `adapter`, which implements the protocol by calling the other modules.

- `adapter`: `TransformerAdapter`, and the conversion of tokenizer output to batches.
- `attention_hooks`: `hook_attention`, which passes attention weights through an edit function.
- `layout`: finding the modules that compute attention and embeddings, by running an example.
- `recorded_blocks`: recording block calls, and skipping them in a later forward pass.
- `replay`: forward passes with edited attention, and checks that an edit reaches the logits.
- `partial_replay`: faster replays that compute only changed rows.
- `task_heads`: conversion of a model's output to a prediction, one class per task.
"""
