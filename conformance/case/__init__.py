"""A case: a call of the operator and its contract, read from YAML and expanded."""
