"""The results file: its records, how it is written, read and joined."""
