"""SeaweedFS as an S3 server for tests: one process, its data in a temporary folder."""

from __future__ import annotations

import ctypes
import functools
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import botocore.session
from botocore.config import Config

ACCESS_KEY = "AKIATESTTESTTEST0001"
SECRET_KEY = "testsecrettestsecrettestsecrettest0001"
STARTS = 3
READY_S = 60
# A client reads a megabyte of JSON, which says what S3 is, in 0.2 s of processor time, and each test opens some. All of
# one process share the reader, as all clients of one session do.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)


class Seaweed:
    """``with Seaweed(folder) as server``: answers at ``server.url`` to ACCESS_KEY."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = 0
        self._ports: list[int] = []

    @staticmethod
    def program() -> str | None:
        beside = Path(sys.executable).with_name("weed")
        return str(beside) if beside.exists() else shutil.which("weed")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def admin(self) -> Any:
        return botocore.session.Session().create_client(
            "s3",
            region_name="us-east-1",
            endpoint_url=self.url,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )

    def __enter__(self) -> Seaweed:
        for left in range(STARTS - 1, -1, -1):
            try:
                return self._start(self._folder / f"data-{left}")
            except RuntimeError:  # a port that was free a moment ago is somebody's by now
                self.__exit__(None, None, None)
                if not left:
                    raise
        raise AssertionError("it is returned or raised above")

    def _start(self, data: Path) -> Seaweed:
        keys = [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}]
        everything = ["Admin", "Read", "Write", "List", "Tagging"]
        settings = self._folder / "s3.json"
        settings.write_text(json.dumps({"identities": [{"name": "t", "credentials": keys, "actions": everything}]}))
        data.mkdir()
        ports = self._ports = _free_ports(8)
        self.port = ports[0]
        names = ("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc")
        names += ("volume.port", "volume.port.grpc")
        self._log = (self._folder / "weed.log").open("wb")
        program = self.program()
        assert program is not None
        self._process = subprocess.Popen(
            [
                *(program, "-logtostderr=true", "server", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
                *("-filer", "-s3", f"-s3.config={settings}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0"),
                *("-master.volumeSizeLimitMB=256", "-volume.max=0", "-master.telemetry=false"),
                *(f"-{name}={port}" for name, port in zip(names, ports, strict=True)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
            preexec_fn=_die_with_parent,
        )
        self._wait()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                admin = self.admin()
                admin.create_bucket(Bucket="ready")
                admin.put_object(Bucket="ready", Key="x", Body=b"x")
                return
            except Exception:  # whatever a server that comes up may answer
                time.sleep(0.05)
        log = (self._folder / "weed.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"SeaweedFS did not come up in {READY_S} s:\n{log}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        for socket_file in [file for port in self._ports for file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]:
            socket_file.unlink()  # the server makes them there, and was given no time to take them away


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
