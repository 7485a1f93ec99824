"""What the keys of B2 and S3 must be able to do, and what to tell a person if one is missing or too narrow.

Keys never stand in a run file, a request, a sentence or a log: only the environment or systemd credentials hold them.
"""

from __future__ import annotations

NEEDED = ("listFiles", "readFiles", "writeFiles", "deleteFiles")
"""Capabilities that publishing, restoring and pruning need together; listBuckets as well for a key of all buckets."""

MAKE_A_KEY = (
    f"Make an application key for this bucket with {', '.join(NEEDED)} (to look and to restore listFiles and readFiles "
    "are enough; a key of all buckets needs listBuckets besides) and set B2_APPLICATION_KEY_ID and B2_APPLICATION_KEY "
    "(or the systemd credentials b2_application_key_id and b2_application_key)"
)
MAKE_AN_S3_KEY = (
    "Make an access key that may list this bucket and its unfinished uploads, and read, write and delete its objects "
    "(to look and to restore, list and read), and set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the systemd "
    "credentials aws_access_key_id and aws_secret_access_key)"
)
