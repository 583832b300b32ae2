"""Everything that talks to the API server, and nothing else: live reads, guarded writes, Events.

    api      one HTTP request through kubernetes.aio; foreign errors become everstep_operator.errors; writes are rate-limited
    client   the operator's verbs: get_run, list_pods, create_pod, patch_status, delete_pod, …
    own      the operator's own Secrets, made once
    events   core/v1 Events, merged by name so that `kubectl describe` shows a count
    views    the server's dictionaries as the views that decide reads; pure

Objects travel as plain JSON dictionaries, as the API server sent them: what a newer server adds is neither lost nor refused.

Rights the operator needs, in each watched namespace or cluster-wide (watch and list include kopf's):

    everstep.dev  agentruns                get list watch delete      delete: ttlSecondsAfterFinished
    everstep.dev  agentruns/status         patch
    everstep.dev  agentruns/finalizers     update                     owner references with blockOwnerDeletion, where enforced
    everstep.dev  humanrequests            get list watch create
    everstep.dev  humanrequests/status     patch
    core          pods                     get list watch create delete
    core          secrets                  get create                 a run's own Secret; goalFrom
    core          configmaps               get                        goalFrom
    core          events                   get create patch
    core          nodes                    get                        optional (cluster-scoped): sees lost nodes sooner
    core          secrets (own namespace)  get create patch           the operator's own, by name; patch: wrapping keys alone

Must not be here: decisions, the journal, Redis, kopf.
"""
