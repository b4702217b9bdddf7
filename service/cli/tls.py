"""``sooner tls ...``: files for encrypted connections."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.fail import EXIT_FAILED, fail, settings_or_fail
from service.cli.options import DataDirOption
from service.cli.output import JsonFlag, print_result

DAYS = 365


def create_command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder for cert.pem and key.pem. Default: tls in the data folder.", file_okay=False),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", help="A name or an address of the service; repeatable. Default: localhost and this host's name."
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="Days for which it is valid.")] = DAYS,
    data_dir: DataDirOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a self-signed certificate and its key, and print the settings that use them."""
    from service.config.settings import SettingsError
    from service.runtime.tls import TlsArgumentError, TlsError, make_pair, names_of_host

    hosts = list(dict.fromkeys(host or names_of_host()))
    try:
        place = folder.absolute() if folder else settings_or_fail({"data_dir": data_dir}).prepare_data_dir() / "tls"
        cert, key = make_pair(place, hosts, days)
    except (SettingsError, TlsArgumentError) as error:
        fail(str(error))
    except TlsError as error:
        fail(str(error), EXIT_FAILED)
    text = f"SOONER_TLS_CERT={cert}\nSOONER_TLS_KEY={key}\nSOONER_TLS_CA={cert}"
    document = {"schema": "sooner.tls/1", "cert": str(cert), "key": str(key), "hosts": hosts, "days": days}
    print_result(document, text, as_json)
