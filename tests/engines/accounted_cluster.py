"""An emulated Slurm cluster with accounting: MariaDB and slurmdbd in its throw-away folder."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

from service.slurm.commands import SlurmError
from tests.engines.slurm_cluster import SlurmCluster, wait_for

PACKAGES: Final = ("slurmdbd", "mariadb-server")
_PORT: Final = 16917
"""Of slurmdbd; those of the cluster follow, beside those of the cluster without a database."""
_COMMANDS: Final = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb-admin", "sacct")
_SETTINGS: Final = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "127.0.0.1",
    "AccountingStoragePort": str(_PORT),
    "AccountingStorageTRES": "gres/gpu,gres/gpu:a100",
}
_CONF: Final = """
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=accounting
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
"""


def missing() -> str:
    """What is missing on this machine, in one sentence; "" if nothing is."""
    absent = [command for command in _COMMANDS if shutil.which(command) is None]
    if absent:
        return (
            f"Slurm's accounting is not installed ({', '.join(absent)}): apt-get install --no-install-recommends "
            + (" ".join(PACKAGES))
        )
    return ""


class AccountedCluster(SlurmCluster):
    """The emulated cluster, whose controller reports to a database."""

    def __init__(self) -> None:
        lacking = missing()
        if lacking:
            raise RuntimeError(lacking)
        self._mariadb: subprocess.Popen[bytes] | None = None
        super().__init__(_SETTINGS, port=_PORT + 1)

    def _write(self, settings: Mapping[str, str]) -> None:
        # The socket of munge, by which the controller proves to the database who it is.
        super()._write({**settings, "AccountingStoragePass": f"{self.folder}/run/munge.sock"})

    def start_controller(self, *, forgetful: bool = False) -> None:
        """Start slurmctld; the first time its database before it, without which it does not start."""
        if self._mariadb is None:
            (self.folder / "slurmdbd.conf").write_text(_CONF.format(folder=self.folder, port=_PORT))
            (self.folder / "slurmdbd.conf").chmod(0o600)
            self._start_mariadb()
            self.start_database()
        super().start_controller(forgetful=forgetful)

    def start_database(self) -> None:
        """Start slurmdbd, and wait until it answers."""
        self._run("env", f"MYSQL_UNIX_PORT={self.folder}/run/mariadb.sock", "slurmdbd")
        wait_for(self._answers, "slurmdbd answers")

    def stop_database(self) -> None:
        """Stop slurmdbd. The controller keeps what it would report."""
        self._signal("slurmdbd", signal.SIGKILL)

    def close(self) -> None:
        """End all daemons, and delete the folder."""
        if self._mariadb is not None:
            self._signal("slurmdbd", signal.SIGKILL)
            self._mariadb.kill()
            self._mariadb.wait()
        super().close()

    def _answers(self) -> bool:
        with contextlib.suppress(SlurmError):
            self.commands.run("sacctmgr", "--noheader", "show", "tres", timeout_s=5.0)
            return True
        return False

    def _start_mariadb(self) -> None:
        data, run = self.folder / "mariadb", self.folder / "run"
        data.mkdir()
        run.chmod(0o777)
        shutil.chown(data, "mysql")
        common = ("--no-defaults", "--user=mysql", f"--datadir={data}")
        self._run("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
        with (self.folder / "log" / "mariadb.log").open("wb") as log:
            self._mariadb = subprocess.Popen(
                ["mariadbd", *common, f"--socket={run}/mariadb.sock", "--skip-networking", "--innodb-buffer-pool-size=16M"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", env=dict(os.environ),
            )  # fmt: skip
        wait_for((run / "mariadb.sock").exists, "mariadbd answers")
