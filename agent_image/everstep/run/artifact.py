"""`everstep.Artifact`, apart from what keeps files (everstep.run.artifacts): only a run that has one imports its model."""

from pydantic import BaseModel, ConfigDict


class Artifact(BaseModel):
    """A file that was kept: what `everstep.artifact` gives. Plain data, so a step may return it; `open(artifact)` opens it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    path: str
    """As it was given; a relative one counts from the process's working directory."""
    sha256: str
    size: int
    """Bytes."""

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.path
