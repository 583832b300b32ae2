"""A mock cluster for the operator process: an API server over HTTP, a kubelet's hand, an agent that writes a genuine journal.

Belongs here: as much of Kubernetes as can make an operator go wrong. Must not be here: anything the operator runs with.
"""
