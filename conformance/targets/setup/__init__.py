"""``gqa setup``: the installers of the programs that targets need."""
