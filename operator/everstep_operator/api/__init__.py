"""The words and shapes of Everstep's Kubernetes API: group, conditions, reasons, labels, models of spec and status, and one pure
builder per child object (pod, Secret, HumanRequest).

Belongs here: everything a `kubectl get -o yaml` of ours can show. Every function is pure and returns plain dicts or models.
Must not be here: calls to the API server (`cluster`), choices (`decide`), the journal.
"""
