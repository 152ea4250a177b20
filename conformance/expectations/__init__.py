"""Known verdicts of cases: read, compared with results, checked, and written from results."""
