"""Random agent programs, crashed anywhere: what the engine promises about concurrency, held against it thousands of times.

Here belong the generator, its world, the checks and the planted bugs that show the checks at work. What one feature does is for
tests/unit; real processes and SIGKILL are for tests/crash.
"""
