"""Static analysis of agent code: what would differ between the first run and a replay, found before it is run.

Belongs here: reading source (ast), following calls through a project's modules, and the rules. Must not be here: anything that
imports or runs the code under check, or knows of runs, journals and stores.
"""
