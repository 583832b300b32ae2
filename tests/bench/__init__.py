"""Speed and memory, as ratios against a floor in the same run. `make bench` runs it; no test is timed.

Belongs here: measurements. Must not be here: a check that fails because a machine was slow.
"""
