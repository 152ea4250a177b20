"""What every part may use: the operator's signature, dtypes, paths, and YAML with line numbers."""
