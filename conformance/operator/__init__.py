"""The operator: its signature, the fields of a call, and a description of each of its parts."""
