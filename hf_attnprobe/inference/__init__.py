"""Inference: encode texts for a model, form batches, generate answers, and run the model.

Main names:

- :func:`~hf_attnprobe.inference.choices.encode_examples` turns data set rows into texts for a
  model: single texts, pairs, choices, prompts or images.
- :func:`~hf_attnprobe.inference.answers.prepare_prompts` renders prompts for a language model and
  generates missing answers.
- :func:`~hf_attnprobe.inference.batching.form_batches` and
  :func:`~hf_attnprobe.inference.batching.collate` make batches.
- :func:`~hf_attnprobe.inference.outputs.read_outputs` returns predictions and attention for a split.

Start reading at :class:`~hf_attnprobe.inference.encoding.Text`, which represents one text in all
other modules.
"""
