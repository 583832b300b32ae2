"""What Prometheus can read of the operator. Names start with `everstep_`; labels are bounded words, never a run's name."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

LATENCY_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RESUME_BUCKETS_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 300.0, 600.0, 1800.0)


class Metrics:
    """One set per process; `registry` is what /metrics shows."""

    def __init__(self) -> None:
        disable_created_metrics()  # a second series per counter that nobody reads
        self.registry = CollectorRegistry()
        r = self.registry
        self.reconciles = Counter("everstep_reconciles", "Reconciles by outcome (ok, error).", ["outcome"], registry=r)
        self.reconcile_s = Histogram(
            "everstep_reconcile_seconds", "Time of one reconcile.", buckets=LATENCY_BUCKETS_S, registry=r
        )
        self.actions = Counter(
            "everstep_actions",
            "What was done for runs, by kind and outcome (done, moved = the world had changed, refused).",
            ["action", "outcome"],
            registry=r,
        )
        self.errors = Counter("everstep_errors", "Reconciles that failed, by error class.", ["error"], registry=r)
        self.api_requests = Counter(
            "everstep_api_requests",
            "Requests to the API server by verb, resource and HTTP status (or unreachable).",
            ["verb", "resource", "status"],
            registry=r,
        )
        self.attempts = Counter("everstep_attempts", "Pods created, one per attempt.", registry=r)
        self.attempts_ended = Counter(
            "everstep_attempts_ended",
            "Attempts that ended, by class as in status.attempts: Disruption, OutOfMemory, Application, NotStarted, Parked, …",
            ["class"],
            registry=r,
        )
        self.loss_to_resume_s = Histogram(
            "everstep_loss_to_resume_seconds",
            "From the end of a lost attempt to the end of the next one's replay.",
            buckets=RESUME_BUCKETS_S,
            registry=r,
        )
        self.swept = Counter("everstep_journals_swept", "Journals of deleted runs that were removed.", registry=r)
        self.queue_depth = Gauge("everstep_queue_depth", "Runs waiting for a worker.", registry=r)
        self.queue_delayed = Gauge("everstep_queue_delayed", "Runs with a timer and nothing else to do.", registry=r)
        self.queue_oldest_s = Gauge(
            "everstep_queue_oldest_wait_seconds", "How long the longest-waiting run has waited.", registry=r
        )
        self.resync_age_s = Gauge(
            "everstep_resync_age_seconds", "Time since all runs were last listed completely.", registry=r
        )
        self.store_up = Gauge("everstep_store_up", "1 while the journal store answers.", registry=r)
        self.store_problems = Gauge(
            "everstep_store_problems", "Findings of the durability check that keep runs from starting.", registry=r
        )
        self.runs = Gauge("everstep_runs", "Runs by status.summary.", ["summary"], registry=r)

    def count_request(self, verb: str, resource: str, status: str) -> None:
        """One request to the API server."""
        self.api_requests.labels(verb, resource, status).inc()
