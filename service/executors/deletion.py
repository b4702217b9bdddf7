"""Deletes what a job left, whatever it is: without recursion, long paths, or a descriptor for each level."""

import contextlib
import os
import stat
from pathlib import Path

from service.runtime.untrusted import PRIVATE_FOLDER, open_folder

_MOVED = ".deleted-"
_FOLDERS_AT_ONCE = 1000
"""Names kept in memory; the rest is listed again later."""


def delete_path(path: Path) -> None:
    """Delete a file or a folder with all that is in it; nothing if it does not exist. Raises OSError.

    The parent folder is trusted: it may be a link.
    """
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        delete_entry(parent, path.name)
    finally:
        os.close(parent)


def delete_entry(parent: int, name: str) -> None:
    """Delete ``name`` in the folder of the descriptor ``parent``, as :func:`delete_path` does. Links are not followed.

    Inner folders are moved to the top before they are emptied. So a tree of any depth needs three descriptors and O(entries)
    system calls.
    """
    try:
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
        if not is_folder:
            os.unlink(name, dir_fd=parent)
            return
        top = _open(name, parent)
    except FileNotFoundError:
        return
    try:
        moved = 0
        while folders := _delete_files(top):
            for folder in folders:
                inner = _open(folder, top)
                try:
                    while deeper := _delete_files(inner):
                        for entry in deeper:
                            moved = _move_up(entry, inner, top, moved)
                finally:
                    os.close(inner)
                os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _open(name: str, parent: int) -> int:
    """A descriptor of a folder whose entries this process may delete and move, and no other user may add to."""
    descriptor = open_folder(name, parent)
    status = os.fstat(descriptor)
    with contextlib.suppress(PermissionError):  # of another owner: what it forbids shows below
        if status.st_uid != os.geteuid():
            os.fchown(descriptor, os.geteuid(), -1)
        if stat.S_IMODE(status.st_mode) != PRIVATE_FOLDER:
            os.fchmod(descriptor, PRIVATE_FOLDER)
    return descriptor


def _delete_files(folder: int) -> list[str]:
    """Delete what is no folder; returns the names of the first folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
                if len(folders) == _FOLDERS_AT_ONCE:
                    break
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
    return folders


def _move_up(name: str, folder: int, top: int, moved: int) -> int:
    """Move a folder into ``top`` under the first free number after ``moved``; returns the number."""
    while True:
        moved += 1
        target = f"{_MOVED}{moved}"
        try:
            os.stat(target, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            os.close(_open(name, folder))  # a folder can be moved only by who may write into it
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
            return moved
