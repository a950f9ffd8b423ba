"""Any Transformer behind the protocol of tests: tap, edit, resume."""
