"""From an outcome to a verdict, compared with the contract and with known defects."""
