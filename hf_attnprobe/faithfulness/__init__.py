"""Faithfulness tests: one module per test, with its paper, measure and interpretation.

A test is a function that takes an observation (a batch that the model has read), a site (layer and
head) and options, and returns its statistics, each with one number per text. The test, its function
and its module have the same name, for example ``erasure`` in ``erasure.py``.

- ``registry.py`` is the place to start: it describes a test (:class:`FaithfulnessTest`), registers
  new ones (:func:`register_test`) and loads all of them (:func:`load_tests`).
- ``options.py`` holds the built-in tests' options. It imports neither torch nor any test, so that a
  command line with a wrong option is refused quickly.
- ``scale.py`` measures three parts of the faithfulness number and gives their formulas and papers;
  ``erasure.py`` measures the fourth.
- ``rankings.py`` computes the token rankings that several tests compare, such as attention,
  gradients and leave-one-out.
- ``passage_units.py`` measures how much less likely a language model's answer becomes without one
  unit (for example a sentence) in its passage.
"""
