"""What ``--ep`` names: runtimes, their programs, and how those are found."""
