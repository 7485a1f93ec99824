"""News that something was created, moved or deleted in a folder, where the file system tells: an aid, never a need."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchdog.events import FileSystemEvent

MAX_FOLDERS = 24  # each costs two threads in some versions of watchdog
RETRY_S = 60.0


class FolderEvents:
    """Watches folders (not what is below them) with inotify and remembers whether anything happened.

    Only creations, moves and deletions are asked for: with writes among them, each log line would be an event.
    Network volumes send no events and machines run out of inotify watches; neither is an error, so the caller also
    looks by itself now and then.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None) -> None:
        self._on_news = on_news
        self._news = threading.Event()
        self._observer: Any = None
        self._watches: dict[tuple[str, int], Any] = {}
        self._failed_at = float("-inf")

    def news(self) -> bool:
        """Did anything happen since the last call?"""
        had = self._news.is_set()
        self._news.clear()
        return had

    def watch(self, folders: Collection[str]) -> None:
        """Watch exactly these folders from now on (at most ``MAX_FOLDERS``)."""
        wanted = {}
        for folder in sorted(folders)[:MAX_FOLDERS]:
            try:
                # With the inode: a folder that was deleted and made again is another one for inotify.
                wanted[folder, os.stat(folder).st_ino] = folder  # noqa: PTH116
            except OSError:
                continue
        for key in self._watches.keys() - wanted.keys():
            self._observer.unschedule(self._watches.pop(key))
        if time.monotonic() - self._failed_at < RETRY_S:
            return
        for key in wanted.keys() - self._watches.keys():
            try:
                self._watches[key] = self._schedule(wanted[key])
            except OSError:
                # No watch left (fs.inotify.max_user_watches or max_user_instances), or the folder is gone again.
                self._failed_at = time.monotonic()
                return

    def close(self) -> None:
        """Watch nothing any more."""
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(5)
            self._observer = None
        self._watches.clear()

    def _schedule(self, folder: str) -> Any:
        # Here and not at the top: 5 MiB, for runs that follow logs only.
        from watchdog.events import (
            DirCreatedEvent,
            DirDeletedEvent,
            DirMovedEvent,
            FileCreatedEvent,
            FileDeletedEvent,
            FileMovedEvent,
            FileSystemEventHandler,
        )
        from watchdog.observers import Observer

        events = self

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                events._news.set()
                events._on_news()

        if self._observer is None:
            self._observer = Observer()
            self._observer.daemon = True
            self._observer.start()
        kinds: list[type[FileSystemEvent]] = [
            FileCreatedEvent,
            FileMovedEvent,
            FileDeletedEvent,
            DirCreatedEvent,
            DirMovedEvent,
            DirDeletedEvent,
        ]
        return self._observer.schedule(Handler(), folder, event_filter=kinds)
