"""Faithfulness tests: one module per test, with its paper, measure and interpretation.

A test is a function of an observation, a site and options that returns one number per text for each
of its statistics. The module, the function and the name on the command line are the same, for
example ``erasure`` in ``erasure.py``.

- ``registry.py`` is the place to start: it describes a test (:class:`FaithfulnessTest`), registers
  new ones (:func:`register_test`) and loads all of them (:func:`load_tests`).
- ``options.py`` holds the options of the built-in tests. It imports neither torch nor any test, so
  that a command line with a wrong option is refused quickly.
- ``scale.py`` measures three of the four parts of the faithfulness number, with formulas and
  papers; ``erasure.py`` measures the fourth.
- ``rankings.py`` computes the rankings of tokens that several tests compare, such as attention,
  gradients and leave-one-out.
- ``passage_units.py`` measures what the answer of a language model loses without a unit of its
  passage.
"""
