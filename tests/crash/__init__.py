"""Real processes, real stores, SIGKILL and SIGSTOP at every named fault point; effects are counted in a file beside the journal.

Belongs here: scenarios that end or pause an agent process. Must not be here: clusters, mocks, anything in one process.
"""
