"""The operator: watches AgentRuns, decides what each needs, and acts, so that every run has exactly one live attempt.

    handlers  kopf decorators that only put a key into our queue      queue     one worker per key
    api       the words of the CRDs, models, builders of objects      decide    pure: observed + now → actions + next look
    cluster   the only caller of Kubernetes                           journal_view  the only caller of the journal

Must not be here: agent code, the run loop, anything the SDK needs.
"""

__version__ = "0.1.0"
