"""Used by every other package: the operator's signature, dtypes, paths, YAML with positions."""
