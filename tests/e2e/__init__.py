"""End to end on a real kind cluster: one file per kind of failure, judged by the outside world's own count.

Belongs here: scenarios a user could see with kubectl. Must not be here: anything that can be shown without a cluster.
"""
