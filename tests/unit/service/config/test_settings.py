"""Settings: every one has a limit, a reason and a source, and a wrong value is one clear line."""

import math
import re
from pathlib import Path

import pytest

from service.config.environment import CONFIG_FILE_VARIABLE, OTHER_VARIABLES, LocalService, usual_service
from service.config.settings import Settings, SettingsError, _unit, env_name, load_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*map(env_name, Settings.model_fields), CONFIG_FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def test_the_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.policy, settings.preemption) == (
        "127.0.0.1",
        8765,
        "asrpt",
        "guided",
    )
    assert settings.data_dir == tmp_path / "share" / "sooner"
    assert settings.database_url == f"sqlite:///{tmp_path}/share/sooner/sooner.db"
    assert settings.cluster is None
    assert (settings.cycles_kept_s, settings.logs_kept_s, settings.idempotency_kept_s) == (2_592_000, 604_800, 86_400)
    assert {line.source for line in settings.describe()} == {"default"}


def test_without_a_data_home_it_is_the_usual_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_settings().data_dir == tmp_path / ".local" / "share" / "sooner"


def test_flags_beat_the_environment_which_beats_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "sooner.yaml"
    file.write_text("port: 1\nhost: file\npolicy: file\n")
    monkeypatch.setenv(CONFIG_FILE_VARIABLE, str(file))
    monkeypatch.setenv("SOONER_PORT", "2")
    monkeypatch.setenv("SOONER_HOST", "env")
    settings = load_settings({"port": 3, "host": None})
    assert (settings.port, settings.host, settings.policy) == (3, "env", "file")
    sources = {line.name: line.source for line in settings.describe()}
    assert (sources["port"], sources["host"], sources["policy"], sources["lease_s"]) == (
        "flag",
        "env",
        "file",
        "default",
    )


def test_an_empty_variable_is_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_PORT", "")
    settings = load_settings()
    assert settings.port == 8765
    assert next(line.source for line in settings.describe() if line.name == "port") == "default"


DURATIONS = [name for name in Settings.model_fields if _unit(name) == "seconds"]


@pytest.mark.parametrize("name", DURATIONS)
def test_every_duration_may_be_written_with_a_unit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """In the environment, in the file, on the command line; as everywhere else."""
    field = Settings.model_fields[name]
    low, high = (next(getattr(rule, kind) for rule in field.metadata if hasattr(rule, kind)) for kind in ("ge", "le"))
    wanted_s = math.floor(high) if low < 1.0 else math.ceil(low)
    text = f"{wanted_s}s"
    assert getattr(load_settings({name: text}), name) == wanted_s
    monkeypatch.setenv(env_name(name), text)
    assert getattr(load_settings(), name) == wanted_s
    monkeypatch.delenv(env_name(name))
    file = tmp_path / "sooner.yaml"
    file.write_text(f"{name}: {text}\n")
    assert getattr(load_settings(file=file), name) == wanted_s
    with pytest.raises(SettingsError, match=rf"{name} .*'soon' is not a duration"):
        load_settings({name: "soon"})


def test_a_duration_has_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, seconds in (("2h", 7200.0), ("90s", 90.0), ("90", 90.0), ("1d12h", 129_600.0), ("00:10:00", 600.0)):
        monkeypatch.setenv("SOONER_LEASE_S", text)
        assert load_settings().lease_s == seconds
    monkeypatch.setenv("SOONER_LEASE_S", "31d")
    with pytest.raises(SettingsError, match=r"lease_s \(SOONER_LEASE_S\): must be at most 2592000, not '31d'"):
        load_settings()


def test_lists_and_options_have_a_plain_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOONER_ALLOWED_HOSTS", "gpu1, gpu1.example.org ,")
    monkeypatch.setenv("SOONER_POLICY_OPTIONS", "tau=1.5, queue = skip")
    settings = load_settings()
    assert settings.allowed_hosts == ("gpu1", "gpu1.example.org")
    assert settings.policy_options == {"tau": "1.5", "queue": "skip"}
    shown = {line.name: line.value for line in settings.describe()}
    assert (shown["allowed_hosts"], shown["policy_options"]) == ("gpu1,gpu1.example.org", "tau=1.5,queue=skip")
    monkeypatch.delenv("SOONER_ALLOWED_HOSTS")
    monkeypatch.delenv("SOONER_POLICY_OPTIONS")
    file = tmp_path / "sooner.yaml"
    file.write_text("allowed_hosts: [a, b]\npolicy_options: {tau: 1.5}\n")
    settings = load_settings(file=file)
    assert (settings.allowed_hosts, settings.policy_options) == (("a", "b"), {"tau": "1.5"})


def test_options_of_a_command_are_split_as_by_a_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_SLURM_EXTRA_ARGS", "--exclude=node1,node2 '--constraint=a&b' --mem=0")
    settings = load_settings()
    assert settings.slurm_extra_args == ("--exclude=node1,node2", "--constraint=a&b", "--mem=0")
    shown = {line.name: line.value for line in settings.describe()}
    assert shown["slurm_extra_args"] == "--exclude=node1,node2 '--constraint=a&b' --mem=0"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 65_536}, r"port .*must be at most 65535, not 65536"),
        ({"port": -1}, r"port .*: must be at least 0, not -1$"),
        ({"policy": ""}, r"policy .*: must have at least 1 character, not ''$"),
        ({"port": "http"}, r"port \(command line\): must be a whole number, not 'http'$"),
        (
            {"webhook_private_addresses": "perhaps"},
            r"webhook_private_addresses .*must be true or false, not 'perhaps'$",
        ),
        (
            {"forecast_timeout_s": "soon"},
            r"forecast_timeout_s \(command line\): 'soon' is not a duration; write .* HH:MM:SS$",
        ),
        ({"over_run": "triple"}, r"over_run .*'double' or 'attained', not 'triple'"),
        ({"preemption": "sometimes"}, r"preemption .*'never', 'guided' or 'always'"),
        ({"executor": "kubernetes"}, r"executor .*'local', 'fake', 'slurm' or 'ray'"),
        ({"poll_period_s": math.nan}, r"poll_period_s .*finite"),
        ({"lease_s": math.inf}, r"lease_s .*finite"),
        ({"policy_options": "tau"}, r"policy_options .*name=value"),
        ({"allowed_hosts": ""}, r"allowed_hosts .*at least 1"),
        ({"page_size_default": 300, "page_size_max": 200}, r"page_size_default 300 is above page_size_max 200"),
        ({"slurm_extra_args": "--qos=high -N2"}, r"slurm_extra_args .*'-N2' is not an option in one word"),
        ({"slurm_extra_args": "--nodel=a"}, r"slurm_extra_args .*the service sets --nodelist itself"),
        ({"slurm_extra_args": ["--a\nb"]}, r"slurm_extra_args .*is not an option in one word"),
        ({"slurm_extra_args": ["--qos=high"] * 51}, r"slurm_extra_args .*51 arguments; at most 50"),
        ({"slurm_partition": "a;b"}, r"slurm_partition .*'a;b'"),
        ({"colour": "red"}, r"colour"),
    ],
)
def test_a_wrong_value_is_one_line_with_name_and_limit(flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(flags)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_PORT", "seventy")
    with pytest.raises(SettingsError, match=r"^port \(SOONER_PORT\): .*'seventy'$"):
        load_settings()


def _numbers() -> list[tuple[str, float, float]]:
    found = []
    for name, field in Settings.model_fields.items():
        bounds = {type(item).__name__: item for item in field.metadata}
        if field.annotation in (int, float):
            found.append((name, bounds["Ge"].ge, bounds["Le"].le))
    return found


@pytest.mark.parametrize(("name", "least", "most"), _numbers())
def test_every_number_is_taken_at_its_limits_and_refused_beyond(name: str, least: float, most: float) -> None:
    others = {"page_size_max": 10_000} if name == "page_size_default" else {"page_size_default": 1}
    for value in (least, most):
        flags = {**others, name: value}
        assert getattr(load_settings(flags), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(SettingsError, match=name):
            load_settings({**others, name: value})


def test_every_setting_says_what_it_is_for() -> None:
    for line in load_settings().describe():
        assert line.description.endswith("."), line.name
        assert len(line.description) > 40, line.name
        assert line.env == f"SOONER_{line.name.upper()}"
        if re.search(r"(?<!per)_s(_min|_max)?$", line.name):
            assert line.unit == "seconds", line.name
        if "_bytes" in line.name:
            assert line.unit == "bytes", line.name


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("database_url", "postgresql://ada:secret@db/sooner", "postgresql://ada:***@db/sooner"),
        ("database_url", "postgresql://db/s?user=a&password=secret&x=1", "postgresql://db/s?user=a&password=***&x=1"),
        ("database_url", "postgresql:///s?sslpassword=secret", "postgresql:///s?sslpassword=***"),
        ("otlp_endpoint", "https://ada:secret@traces:4318", "https://ada:***@traces:4318"),
    ],
)
def test_a_password_is_not_shown(name: str, url: str, expected: str) -> None:
    settings = load_settings({name: url})
    shown = next(line.value for line in settings.describe() if line.name == name)
    assert shown == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("port: [", "is not YAML"),
        ("- port", "expected lines of the form"),
        ("colour: red", "'colour' is not a setting"),
        ("port: 70000", "port .*sooner.yaml.*65535"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "sooner.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=words) as caught:
        load_settings(file=file)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_an_error_but_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load_settings(file=tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing yet\n")
    assert load_settings(file=tmp_path / "empty.yaml").port == 8765


def test_the_data_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    settings = load_settings({"data_dir": tmp_path / "deep" / "data"})
    assert settings.prepare_data_dir().stat().st_mode & 0o777 == 0o700
    assert settings.prepare_data_dir() == tmp_path / "deep" / "data", "again is fine"


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(SettingsError, match="chmod go-w"):
        load_settings({"data_dir": folder}).prepare_data_dir()


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(SettingsError, match=r"data_dir \(SOONER_DATA_DIR\)"):
        load_settings({"data_dir": tmp_path / "data"}).prepare_data_dir()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().port = 1  # type: ignore[misc]


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_POLCY", "fifo")
    with pytest.raises(SettingsError, match=r"^SOONER_POLCY is not a setting; did you mean 'SOONER_POLICY'\?$"):
        load_settings()


def test_the_common_prefix_makes_no_variable_more_like_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_NOSUCH", "1")
    listed = "remove it, then `sooner config show` lists those that are"
    with pytest.raises(SettingsError, match=rf"^SOONER_NOSUCH is not a setting; {listed}$"):
        load_settings()


def test_an_unknown_name_in_the_file_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    file = tmp_path / "sooner.yaml"
    file.write_text("polcy: fifo\n")
    with pytest.raises(SettingsError, match=r"'polcy' is not a setting; did you mean 'policy'\?$"):
        load_settings(file=file)


def test_variables_of_programs_and_of_commands_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in OTHER_VARIABLES - {CONFIG_FILE_VARIABLE}:
        monkeypatch.setenv(variable, "1")
    assert load_settings().policy == "asrpt"


def test_a_client_finds_the_usual_service_where_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in (None, str(tmp_path / "data"), "~/data"):
        if folder is not None:
            monkeypatch.setenv("SOONER_DATA_DIR", folder)
        settings = load_settings()
        assert usual_service() == LocalService(settings.host, settings.port, settings.data_dir)
    monkeypatch.setenv("SOONER_PORT", "1")
    assert usual_service() is None
    monkeypatch.delenv("SOONER_PORT")
    monkeypatch.setenv("SOONER_POLCY", "fifo")
    assert usual_service() is None


def test_the_folder_of_the_servers_is_an_absolute_path_and_is_not_looked_for_here(tmp_path: Path) -> None:
    settings = load_settings(
        {"executor": "slurm", "shared_dir": str(tmp_path), "shared_dir_on_nodes": "/no/such/folder"}
    )
    assert (settings.shared_dir, str(settings.shared_dir_on_nodes)) == (tmp_path, "/no/such/folder")
    for name, value, limit in (
        ("shared_dir_on_nodes", "folder", "must be an absolute path"),
        ("node_python", "python3 -I", "match the pattern"),
        ("executor", "kubernetes", "'local', 'fake', 'slurm' or 'ray'"),
    ):
        with pytest.raises(SettingsError, match=limit) as refused:
            load_settings({name: value})
        assert name in str(refused.value) and value in str(refused.value)


@pytest.mark.parametrize("address", ["head:6379", "10.0.0.1:1", "[fd00::1]:65535"])
def test_the_head_of_ray_is_a_host_and_a_port(address: str) -> None:
    assert load_settings({"ray_address": address}).ray_address == address


@pytest.mark.parametrize("address", ["head", "head:0", "head:65536", "http://head:6379", "fd00::1:6379", ":6379"])
def test_another_address_of_ray_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"ray_address.*must be host:port with a port from 1 to 65535") as refused:
        load_settings({"ray_address": address})
    assert address in str(refused.value)


@pytest.mark.parametrize(
    ("host", "kept"),
    [("[::1]", "::1"), ("::1", "::1"), ("[::]", "::"), ("127.0.0.1", "127.0.0.1"), ("[head]", "[head]")],
)
def test_an_ipv6_address_to_listen_on_may_have_brackets(host: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOONER_HOST", host)
    assert load_settings().host == kept
