"""Recorded journals that today's code must replay, or refuse for the right reason.

One file per journal: `<name>.jsonl`, first line what it is, then its records as they were stored. Journals of a release are never
changed afterwards; `python -m tests.histories.record NAME` adds one.
"""
