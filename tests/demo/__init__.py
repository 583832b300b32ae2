"""The two demonstrations: an agent triages a backlog while its process, its pod, its node and its operator are taken away.

Belongs here: causing the losses, following the run, adding up what the outside world saw. Must not be here: anything that makes
the run succeed; that is Everstep's work, and the demo fails if a count is wrong.
"""
