"""One process per engine: each answers the same commands on stdin (see `child`), in an environment of its own.

Belongs here: how each engine runs n empty steps of one run, and how its durability settings are read back. Files here import
nothing of the project but `child` (and Everstep in everstep_child), since peers live in a virtual environment of their own.
Must not be here: timing, tables, installation.
"""
