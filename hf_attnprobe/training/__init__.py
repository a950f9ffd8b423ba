"""Training of classifiers, and of a small decoder for demonstrations.

An interrupted training can be run again with the same output folder. It continues at the last saved
epoch and reaches the same weights.

Main functions:

- :func:`hf_attnprobe.train` trains an attention classifier or fine-tunes a Transformer.
- :func:`hf_attnprobe.train_classifier` trains an attention classifier from scratch.
- :func:`hf_attnprobe.training.run.fine_tune` fine-tunes a pretrained Transformer.
- :func:`hf_attnprobe.training.decoder.train_decoder` trains a small language model to copy.

Start reading in ``run.py``. ``procedures.py`` holds the papers' training settings, and
``trainer.py`` the training loop that all these functions share.
"""
