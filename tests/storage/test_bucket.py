"""`rl-supervisor check --online`: what a key, a bucket and a folder are told to lack before a run depends on them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.base.retry import Retry
from supervisor.cli import check
from supervisor.storage import open_store
from supervisor.storage.bucket import MANY_VERSIONS, Bucket, _hides_checkpoints, survey
from tests.b2server import ALL_CAPABILITIES, B2Server, Key

RUN = '[run]\nid = "r7"\n[job]\nkind = "command"\n[job.plain]\nstart = ["true"]\nresume = ["true", "{step}"]\n[store]\n'


@pytest.fixture
def server() -> Iterator[B2Server]:
    with B2Server("the-bucket", 100_000, 5_000) as made:
        yield made


def checked(folder: Path, store: str, environ: dict[str, str]) -> dict[str, Any]:
    """The report of `check --online --json`, made in this process."""
    path = folder / "run.toml"
    path.write_text(RUN + store)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = check.check(path, as_json=True, online=True, environ=environ)
    report: dict[str, Any] = json.loads(told.getvalue())
    assert (code == 0) == report["ok"]
    return report


def of_b2(folder: Path, server: B2Server, key: Key) -> dict[str, Any]:
    server.add_key(key)
    return checked(folder, f'url = "b2://the-bucket/team"\nrealm = "{server.url}"\n', server.environ(key))


def without(*names: str) -> Key:
    capabilities = tuple(name for name in ALL_CAPABILITIES if name not in names)
    return Key("000narrow", "K-narrow", capabilities, ("the-bucket",))


@pytest.mark.soak
def test_a_good_key_finds_what_the_run_has_there(tmp_path: Path, server: B2Server) -> None:
    """Asked as a person's shell does it; what the other tests here ask, they ask of the same code in this process."""
    for name in ("step_10/manifest.json", "step_10/a", "step_20/manifest.json", "step_30/a", "latest.json"):
        server.put(f"team/r7/{name}", b"x")
    path = tmp_path / "run.toml"
    path.write_text(f'{RUN}url = "b2://the-bucket/team"\nrealm = "{server.url}"\n')
    command = [sys.executable, "-m", "supervisor.cli.main", "check", "--online", "--json", str(path)]
    environ = {**os.environ, **server.environ(server.add_key(without()))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True)
    assert "The store answers; it holds 5 files of this run, 2 published steps up to 20." in report["notes"]


@pytest.mark.parametrize("lacking", [("listFiles",), ("readFiles",), ("writeFiles",), ("readFiles", "writeFiles")])
def test_a_key_that_cannot_publish_or_restore_is_a_problem(
    tmp_path: Path, server: B2Server, lacking: tuple[str, ...]
) -> None:
    [problem] = of_b2(tmp_path, server, without(*lacking))["problems"]
    assert problem.startswith(
        f"The application key ...rrow lacks {', '.join(lacking)}. Make an application key for this"
    )


def test_a_key_that_may_not_delete_is_told_and_is_none(tmp_path: Path, server: B2Server) -> None:
    report = of_b2(tmp_path, server, without("deleteFiles"))
    assert report["ok"]
    [found] = [one for one in report["findings"] if one["id"] == "store-no-delete"]
    assert found["severity"] == "warning"
    assert "store.keep_last has no effect and the bucket grows with every step" in found["sentence"]


def test_a_key_for_another_prefix_is_told_which(tmp_path: Path, server: B2Server) -> None:
    key = Key("000other", "K-other", ALL_CAPABILITIES, ("the-bucket",), "else/where/")
    [problem] = of_b2(tmp_path, server, key)["problems"]
    assert "only reaches names that start with 'else/where/'. Correct store.url or run.id" in problem


def test_old_versions_that_pile_up_are_told(server: B2Server) -> None:
    for _ in range(MANY_VERSIONS + 1):
        server.put("team/r7/latest.json", b"x" * 100)
    store = open_store("b2://the-bucket/team", server.url, server.environ())
    [note] = [note for note in survey(store, "r7").notes if "old versions" in note]
    assert note.startswith(
        f"{MANY_VERSIONS} old versions of names, 0.0 GB, are kept behind the present files and billed."
    )


def test_the_pod_that_holds_the_run_is_named(tmp_path: Path) -> None:
    from supervisor.checkpoints.claims import claim
    from supervisor.checkpoints.writers import writer_name

    url = (tmp_path / "store").as_uri()
    claim(open_store(url, None, {}), "r7", writer_name("gpu-17", "ab" * 8, "cd" * 4), 0.0)
    report = checked(tmp_path, f'url = "{url}"\n', {})
    [note] = [note for note in report["notes"] if "holds the run" in note]
    assert note.startswith("Pod gpu-17 holds the run (generation 1). Another pod that is started waits")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"fileNamePrefix": "", "daysFromUploadingToHiding": 30}, "hides every file in it 30 days after its upload"),
        ({"fileNamePrefix": "team/", "daysFromUploadingToHiding": 7}, "hides every file below team/ 7 days after"),
        ({"fileNamePrefix": "team/r7/step_1", "daysFromUploadingToHiding": 7}, "below team/r7/step_1 7 days"),
        ({"fileNamePrefix": "other/", "daysFromUploadingToHiding": 7}, ""),
        ({"fileNamePrefix": "", "daysFromUploadingToHiding": None, "daysFromHidingToDeleting": 1}, ""),
    ],
)
def test_a_lifecycle_rule_that_takes_checkpoints_away_is_told(rule: dict[str, Any], told: str) -> None:
    sentence = _hides_checkpoints(rule, "team/r7/")
    assert told in sentence if told else not sentence


def test_the_rules_are_those_that_b2_tells(server: B2Server) -> None:
    store = open_store("b2://the-bucket/team", server.url, server.environ())
    bucket = store.bucket()  # type: ignore[attr-defined]
    assert isinstance(bucket, Bucket)
    assert bucket.rules == []


CANCELS = "daysFromStartingToCancelingUnfinishedLargeFiles"


@pytest.mark.parametrize(
    ("rules", "covered"),
    [
        ([], False),
        ([{"fileNamePrefix": "", CANCELS: 7}], True),
        ([{"fileNamePrefix": "team/", CANCELS: 7}], True),
        ([{"fileNamePrefix": "other/", CANCELS: 7}], False),
        ([{"fileNamePrefix": "", "daysFromHidingToDeleting": 1, CANCELS: None}], False),
    ],
)
def test_a_bucket_that_cancels_no_unfinished_uploads_is_told(
    server: B2Server, rules: list[dict[str, Any]], *, covered: bool
) -> None:
    server.state.buckets["the-bucket"].lifecycle_rules = rules
    store = open_store("b2://the-bucket/team", server.url, server.environ())
    told = [note for note in survey(store, "r7").notes if "never finished" in note]
    assert [f"{CANCELS}: 7" in note for note in told] == ([] if covered else [True])


def test_a_key_that_may_not_ask_for_the_rules_is_told_nothing_of_them(tmp_path: Path, server: B2Server) -> None:
    report = of_b2(tmp_path, server, without("listBuckets"))
    assert report["ok"]
    assert not [one for one in report["findings"] if one["id"] == "store-no-backstop"]


class Answers:
    """A botocore client of which one operation matters here."""

    def __init__(self, answer: dict[str, Any] | str) -> None:
        self.answer = answer

    def get_bucket_lifecycle_configuration(self, **asked: str) -> dict[str, Any]:
        if isinstance(self.answer, str):
            from botocore.exceptions import ClientError

            raise ClientError({"Error": {"Code": self.answer}}, "GetBucketLifecycleConfiguration")
        return self.answer


ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}


@pytest.mark.parametrize(
    ("answer", "cancels"),
    [
        ("NoSuchLifecycleConfiguration", False),
        ("AccessDenied", None),
        ("NotImplemented", None),
        ({"Rules": [{"Status": "Enabled", "Filter": {"Prefix": ""}, **ABORT}]}, True),
        ({"Rules": [{"Status": "Enabled", "Prefix": "team/", **ABORT}]}, True),
        ({"Rules": [{"Status": "Enabled", "Filter": {"Prefix": "other/"}, **ABORT}]}, False),
        ({"Rules": [{"Status": "Disabled", "Filter": {}, **ABORT}]}, False),
        ({"Rules": [{"Status": "Enabled", "Filter": {}, "Expiration": {"Days": 30}}]}, False),
    ],
)
def test_an_s3_bucket_tells_whether_it_cancels_unfinished_uploads(
    answer: dict[str, Any] | str, *, cancels: bool | None
) -> None:
    from supervisor.storage.s3 import S3Store
    from supervisor.storage.s3client import S3Client

    client = S3Client.__new__(S3Client)
    client.bucket, client.key_id, client.retry = "the-bucket", "AKIA1234", Retry(tries=1)
    client._client = Answers(answer)
    store = S3Store.__new__(S3Store)
    store.url, store._client, store._prefix = "s3://the-bucket/team", client, "team/"
    assert store.cancels_unfinished("r7/") is cancels


def test_a_folder_that_may_not_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    store = open_store((tmp_path / "store").as_uri(), None, {})
    [problem] = survey(store, "r7").problems
    assert problem.startswith(f"Nothing may be written to {tmp_path}/store by user id {os.geteuid()}")


def test_an_s3_store_without_its_library_is_one_sentence_with_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    path = tmp_path / "run.toml"
    path.write_text(f'{RUN}url = "s3://the-bucket/team"\n')
    assert check.check(path, as_json=True, online=True) == 1
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    pip = f"{sys.executable} -m pip install 'rl-supervisor[s3]'"
    assert problem == f"The store s3://the-bucket/team needs botocore, which is not installed here: {pip}"
