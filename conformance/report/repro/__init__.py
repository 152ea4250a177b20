"""Bug reports: the text of one result, and a stand-alone program that reproduces it."""
