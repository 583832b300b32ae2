"""A multi-node kind cluster anywhere, our container images without a registry, and faults to provoke on the nodes.

Belongs here: bringing an engine, kind and a node image up, cluster life cycle, building and loading images, node faults.
Does not belong here: anything that knows of runs, journals or the operator; assertions of tests.
"""
