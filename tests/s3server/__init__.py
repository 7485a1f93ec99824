"""A real S3 server (SeaweedFS, from the package index) behind a proxy that keeps a journal and makes faults."""

from tests.s3server.proxy import Proxy
from tests.s3server.seaweed import ACCESS_KEY, SECRET_KEY, Seaweed

__all__ = ["ACCESS_KEY", "SECRET_KEY", "Proxy", "Seaweed"]
