"""What the transfer child can be asked of a step of which each machine has a part (``checkpoints.parts``)."""

from __future__ import annotations

from supervisor.checkpoints.verbs import Publish


class SendPart(Publish, do="publish-part"):
    """``known``: names of files that another machine sends. ok: files [``ManifestFile``], those without an id, and
    sent_bytes; or other: true, and nothing was sent, because the store commits other content under this step's name.
    """

    known: list[str]


class OpenStep(Publish, do="publish-open"):
    """``files``: all names of the step. ok: nothing; the store commits no content under this step's name any more."""


class CommitParts(Publish, do="publish-parts"):
    """``sent``: what the machines answered, a file once. ok: as of "publish"."""

    sent: list[object]
