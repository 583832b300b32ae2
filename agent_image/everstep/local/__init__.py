"""Local mode: a supervisor on one machine in the operator's place, with the journal in SQLite.

Belongs here: the directory `.everstep`, the anchor file, the locks, the agent process and what is done when it ends.
Must not be here: click, rich, anything that prints; the agent's own code (it runs in the child alone).
"""
