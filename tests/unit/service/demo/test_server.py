"""The folder of the demo."""

import shutil

from service.demo.server import CLUSTER, temporary_place


def test_the_folder_is_deleted_unless_it_is_kept() -> None:
    with temporary_place() as place:
        assert place.cluster_file.read_text() == CLUSTER
    assert not place.folder.exists()
    with temporary_place(keep=True) as kept:
        (kept.data_dir / "sooner.db").touch()
    try:
        assert (kept.data_dir / "sooner.db").exists()
    finally:
        shutil.rmtree(kept.folder)
