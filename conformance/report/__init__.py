"""Reports of results: each format is a module, imported only where it is used."""
