"""The run: everything that happens in an agent process, from claim to exit.

Belongs here: the event loop and its delivery order, scopes and keys, steps and their tries, the writer queue's use, the
process's start and end. Must not be here: commands, supervisors, Kubernetes.
"""
