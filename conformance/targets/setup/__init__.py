"""Installers of the programs that targets need: ``gqa setup``."""
