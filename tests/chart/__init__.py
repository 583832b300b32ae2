"""The charts, rendered by real helm. No cluster: what only an API server can say is in tests/e2e/test_api_refusals.py.

Belongs here: what the charts render, refuse and document, and that the operator's rights are exactly the calls its code makes.
"""
