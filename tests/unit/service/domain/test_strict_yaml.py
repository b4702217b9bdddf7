"""What people write is read strictly: no value is lost, nothing expands without end, and a date is text."""

import json
from pathlib import Path

import pytest

from policies.model.cluster import Cluster, Server
from service.config.cluster_file import ClusterFileError, load_cluster
from service.config.settings import SettingsError, load_settings
from service.domain.strict_yaml import (
    NODES_MAX,
    RepeatedKeyError,
    StrictYamlError,
    parse_yaml,
    parse_yaml_documents,
    unique_keys,
)
from service.plans.files import load_yaml as load_plan
from service.plans.values import ReadError
from service.sim.faults_file import FaultsError, load_faults

CLUSTER = Cluster("one", (Server("a", 1),))


def bomb(levels: int) -> str:
    """Nine entries, nine times over for each level."""
    return "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, levels + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus: 1\nname: a\ngpus: 2\n", "line 3: gpus: occurs twice"),
        ("jobs:\n- {name: a}\n- {name: a, 'name': b}\n", "line 3: name: occurs twice"),
        ('"a\\nb": 1\n"a\\nb": 2\n', "line 2: 'a\\nb': occurs twice"),
        ("a: &a {b: *a}\n", f"line 1: its aliases expand to more than {NODES_MAX:,} entries"),
        ("&a [*a]", f"line 1: its aliases expand to more than {NODES_MAX:,} entries"),
        ("&a {b: *a}", f"line 1: its aliases expand to more than {NODES_MAX:,} entries"),
        ("[" * 3_000, "YAML is nested too deeply to be read"),
        ("a: [", "is not YAML: while parsing a flow node"),
        ("a: *b", "is not YAML: found undefined alias"),
        ('a: !!int ""', "is not YAML: a value is not of the type that its tag (!!) names"),
        ("a: !!int '-'", "is not YAML: a value is not of the type that its tag (!!) names"),
        ('a: !!float ""', "is not YAML: a value is not of the type that its tag (!!) names"),
        ("a: !!bool perhaps", "is not YAML: a value is not of the type that its tag (!!) names"),
        ("a: !!timestamp now", "is not YAML: a value is not of the type that its tag (!!) names"),
        ("\x00", "is not YAML: unacceptable character"),
    ],
)
def test_what_people_cannot_have_meant_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(StrictYamlError) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_aliases_expand_up_to_the_limit() -> None:
    assert len(parse_yaml(bomb(5))["a5"]) == 9
    with pytest.raises(StrictYamlError, match=f"line 6: its aliases expand to more than {NODES_MAX:,} entries"):
        parse_yaml(bomb(20))


def test_each_document_is_read_as_strictly() -> None:
    assert parse_yaml_documents("a: 2026-01-01\n---\n- 1\n---\n") == [{"a": "2026-01-01"}, [1], None]
    assert parse_yaml_documents("") == []
    for text, message in (("a: 1\n---\nb: 1\nb: 2\n", "line 4: b: occurs twice"), ("a: 1\n---\n&x [*x]\n", "line 3: ")):
        with pytest.raises(StrictYamlError, match=message):
            parse_yaml_documents(text)


def test_a_mapping_may_override_what_it_merges() -> None:
    text = "base: &base {gpus: 1, name: a}\njob: {<<: *base, gpus: 2}\n"
    assert parse_yaml(text)["job"] == {"gpus": 2, "name": "a"}


def test_a_date_is_its_text_and_other_values_are_as_in_yaml() -> None:
    text = "[2026-01-01, 2026-01-01 10:00:00, 1, 1.5, yes, ~, 2026-99-99]"
    assert parse_yaml(text) == ["2026-01-01", "2026-01-01 10:00:00", 1, 1.5, True, None, "2026-99-99"]
    assert parse_yaml("") is None


def test_json_has_each_key_once() -> None:
    assert json.loads('{"a": {"a": 1}}', object_pairs_hook=unique_keys) == {"a": {"a": 1}}
    with pytest.raises(RepeatedKeyError, match=r"^a: occurs twice$"):
        json.loads('[{"a": 1, "a": 1}]', object_pairs_hook=unique_keys)


def test_every_file_of_people_is_read_so(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("schema: a\nport: 1\nport: 2\n")
    readers = (
        (load_cluster, ClusterFileError),
        (lambda path: load_faults(path, CLUSTER), FaultsError),
        (load_plan, ReadError),
        (lambda path: load_settings(file=path), SettingsError),
    )
    for reader, error in readers:
        with pytest.raises(error) as caught:
            reader(file)
        assert str(caught.value) == f"{file}: line 3: port: occurs twice"
