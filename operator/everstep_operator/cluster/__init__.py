"""Everything that talks to the API server, and nothing else: live reads, guarded writes, Events.

    api      one HTTP request through kubernetes.aio; foreign errors become everstep_operator.errors; writes are rate-limited
    client   the operator's verbs: get_run, list_pods, create_pod, patch_status, delete_pod, …
    events   core/v1 Events, merged by name so that `kubectl describe` shows a count

Objects travel as plain JSON dictionaries, as the API server sent them: what a newer server adds is neither lost nor refused.

Must not be here: decisions, the journal, Redis, kopf.
"""
