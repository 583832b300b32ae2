"""The journal: records, their canonical bytes, the hash chain, the keys, and the stores that keep them.

Belongs here: everything needed to write, read, fence and prove a journal, with no knowledge of agents.
Must not be here: the run loop, commands, Kubernetes (`everstep.run`, `everstep.cli`, `everstep.local` are never imported).
"""
