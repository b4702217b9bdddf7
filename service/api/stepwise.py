"""Validation of a submission, job by job and layer by layer.

pydantic validates a whole body, with the list of all its faults, without giving up the interpreter lock: some tenths of a second
for a large body, and more than a minute for one that is made of faults. Here every step is short, and there are no more steps
after the first hundred faults.
"""

from contextlib import suppress
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from service.api.faults import is_tag
from service.api.problems import FAULTS_MAX, Fault, Problem, ProblemType, fault_of, json_pointer
from service.config.settings import Settings
from service.wire.bodies import JobBody, LayerBody, SubmissionBody

LISTED_MAX: Final = 1000
"""Faults of one job or one layer above which only their number is given."""

Path = tuple[str | int, ...]

_JOB: Final = TypeAdapter(JobBody)
_LAYER: Final = TypeAdapter(LayerBody)
_SOME_LAYER: Final = LayerBody(name="x", forward_s=0.0, backward_s=0.0, parameter_bytes=0, activation_bytes=0)
"""In the place of an invalid layer while the rest of its job is validated."""


def validated(document: Any, settings: Settings, *, is_small: bool) -> Any:
    """The document with a :class:`JobBody` in the place of each job. Raises Problem (422) if a job has faults.

    What is neither a job nor a list of jobs is left for the validation of the whole body.
    """
    if not isinstance(document, dict):
        return document
    if is_small and "jobs" not in document:
        # At once: the parts are for large bodies, and for the list of the faults.
        with suppress(ValidationError):
            return _JOB.validate_python(document)
    parts = _Parts(settings)
    if "jobs" not in document:
        job = parts.job(document, ("<one>",))
        parts.end()
        return job
    jobs = document["jobs"]
    if not isinstance(jobs, list):
        return document
    if len(jobs) > settings.jobs_per_request_max:
        raise too_many_jobs(settings.jobs_per_request_max, "/jobs")
    found = [parts.job(job, ("<many>", "jobs", index)) for index, job in enumerate(jobs)]
    parts.end()
    return {**document, "jobs": found}


def too_many_jobs(most: int, pointer: str) -> Problem:
    """422 for more jobs than a request may have."""
    detail = f"at most {most} jobs per request, elements of arrays included (setting jobs_per_request_max)"
    return Problem(ProblemType.INVALID_BODY, faults=[Fault(detail, pointer=pointer)])


class _Parts:
    """The validation of the parts of one body, with their faults so far."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._faults: list[Fault] = []

    def job(self, job: Any, path: Path) -> Any:
        """The job. Raises Problem once there are more than a hundred faults."""
        graph = job.get("graph") if isinstance(job, dict) else None
        if isinstance(graph, dict):
            job = {**job, "graph": self._graph(graph, (*path, "graph"))}
        return self._part(_JOB, job, path, job)

    def end(self) -> None:
        """Raise Problem if there are faults."""
        if self._faults:
            raise Problem(ProblemType.INVALID_BODY, faults=self._faults)

    def _graph(self, graph: dict[str, Any], path: Path) -> dict[str, Any]:
        limits = {"layers": self._settings.layers_max, "edges": self._settings.edges_max}
        for key, most in limits.items():
            entries = graph.get(key)
            if isinstance(entries, list) and len(entries) > most:
                self._faults.append(Fault(too_many_entries(key, most, len(entries)), pointer=_pointer((*path, key))))
                graph = {**graph, key: entries[:1]}
        layers = graph.get("layers")
        if not isinstance(layers, list):
            return graph
        path = (*path, "<layers-graph>", "layers")
        found = [self._part(_LAYER, layer, (*path, index), _SOME_LAYER) for index, layer in enumerate(layers)]
        return {**graph, "layers": found}

    def _part(self, kind: TypeAdapter[Any], value: Any, path: Path, instead: Any) -> Any:
        """The validated value, or ``instead`` if it has faults."""
        try:
            return kind.validate_python(value)
        except ValidationError as error:
            self._add(error, path)
            return instead

    def _add(self, error: ValidationError, path: Path) -> None:
        count = error.error_count()
        if count > LISTED_MAX:
            self._faults.append(Fault(f"has {count} faults", pointer=_pointer(path)))
        else:
            self._faults += [
                fault_of({**found, "loc": ("body", *path, *found["loc"])}, SubmissionBody)
                for found in error.errors(include_url=False)
            ]
        if len(self._faults) > FAULTS_MAX:
            self.end()


def too_many_entries(key: str, most: int, count: int) -> str:
    """The fault of a graph's list that is longer than a setting allows."""
    return f"must have at most {most} entries, the setting {key}_max (got {count})"


def _pointer(path: Path) -> str:
    return json_pointer(part for part in path if not is_tag(part))
