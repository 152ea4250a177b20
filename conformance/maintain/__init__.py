"""Commands for maintainers of the corpus: ``python -m conformance.maintain.NAME``."""
