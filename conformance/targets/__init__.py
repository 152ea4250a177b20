"""The targets that ``--ep`` names, the programs that they need, and how to install those."""
