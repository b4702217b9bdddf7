"""The graph that ``sooner graph`` prints, as the graph of a job."""

import json

from httpx import Client

from policies.training.hardware import GPU_MODELS
from service.cli.graph import graph_body
from service.graphs.document import Limits, found_in
from tests.api.helpers import plain_job
from tests.unit.service.graphs.traces import transformer


def test_a_traced_graph_is_accepted_and_cut_into_stages(client: Client) -> None:
    found = found_in(transformer(12).trace(), GPU_MODELS["H100"], None, 1, Limits(2000, 20_000))
    graph = json.loads(json.dumps(graph_body(found.graph)))
    job = plain_job(graph=graph, parallelism={"stages": 2, "replicas": [1, 1], "tensor": [1, 1]})
    job.pop("gpus", None)
    answer = client.post("/v1/jobs", json=job)
    assert answer.status_code == 201, answer.text
    stages = client.get(f"/v1/jobs/{answer.json()['id']}/spec").json()["graph"]["stages"]
    assert stages[0]["name"].startswith("embed..blocks.")
    assert sum(stage["parameter_bytes"] for stage in stages) == 4 * found.parameters
