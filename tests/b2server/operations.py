"""The JSON operations of B2's native API (v2, v3 and v4 where they differ), one function each."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.b2server.state import ALL_CAPABILITIES, Bucket, Json, Key, Refusal, State, Version, sha1_hex


def authorized(state: State, version: str, base: str, key_id: str, secret: str) -> Json:
    """The answer of b2_authorize_account. Its shape changed with each version of the API."""
    token, key = state.authorize(key_id, secret)
    buckets = [state.buckets[name] for name in key.buckets or () if name in state.buckets]
    sizes = {
        "absoluteMinimumPartSize": state.minimum_part_size,
        "apiUrl": base,
        "downloadUrl": base,
        "recommendedPartSize": state.part_size,
        "s3ApiUrl": base,
    }
    ends = None if key.expires_at is None else int(key.expires_at * 1000)
    answer: Json = {"accountId": "account0", "authorizationToken": token, "applicationKeyExpirationTimestamp": ends}
    only = {
        "capabilities": list(key.capabilities),
        "namePrefix": key.prefix,
        "bucketId": buckets[0].bucket_id if buckets else None,
        "bucketName": buckets[0].name if buckets else None,
    }
    if version == "v4":
        allowed = {
            "capabilities": list(key.capabilities),
            "namePrefix": key.prefix,
            "buckets": None if key.buckets is None else [{"id": b.bucket_id, "name": b.name} for b in buckets],
        }
        return answer | {"apiInfo": {"storageApi": sizes | {"infoType": "storageApi", "allowed": allowed}}}
    if version == "v3":
        return answer | {"apiInfo": {"storageApi": sizes | only | {"infoType": "storageApi"}}}
    return answer | sizes | {"allowed": only}


def bucket_json(bucket: Bucket) -> Json:
    return {
        "accountId": "account0",
        "bucketId": bucket.bucket_id,
        "bucketName": bucket.name,
        "bucketType": "allPrivate",
        "bucketInfo": {},
        "corsRules": [],
        "lifecycleRules": bucket.lifecycle_rules,
        "options": [],
        "revision": 1,
        "defaultServerSideEncryption": {"isClientAuthorizedToRead": True, "value": {"algorithm": None, "mode": None}},
        "fileLockConfiguration": {"isClientAuthorizedToRead": False, "value": None},
        "replicationConfiguration": {"isClientAuthorizedToRead": False, "value": None},
    }


def b2_list_buckets(state: State, key: Key, ask: Json, base: str) -> Json:
    state.need(key, "listBuckets")
    name, bucket_id = ask.get("bucketName"), ask.get("bucketId")
    if key.buckets is not None and name not in key.buckets and not bucket_id:
        raise Refusal(401, "unauthorized", "the key is limited to a bucket")
    found = [b for b in state.buckets.values() if name in (None, b.name) and bucket_id in (None, b.bucket_id)]
    return {"buckets": [bucket_json(bucket) for bucket in found]}


def b2_create_bucket(state: State, key: Key, ask: Json, base: str) -> Json:
    state.need(key, "writeBuckets")
    if ask["bucketName"] in state.buckets:
        raise Refusal(400, "duplicate_bucket_name", "taken")
    bucket = Bucket(f"bucket{state.number():08d}", ask["bucketName"])
    state.buckets[bucket.name] = bucket
    return bucket_json(bucket)


KEY_NAME = re.compile(r"[A-Za-z0-9-]{1,100}")
OF_A_BUCKET = frozenset(
    ["listBuckets", "readBuckets", "listFiles", "readFiles", "shareFiles", "writeFiles", "deleteFiles"]
)
LONGEST_KEY_S = 1000 * 86_400


def _key_json(state: State, key: Key) -> Json:
    return {
        "accountId": "account0",
        "applicationKeyId": key.key_id,
        "bucketIds": None if key.buckets is None else [state.buckets[name].bucket_id for name in key.buckets],
        "capabilities": list(key.capabilities),
        "expirationTimestamp": None if key.expires_at is None else int(key.expires_at * 1000),
        "keyName": key.name,
        "namePrefix": key.prefix,
        "options": [],
    }


def b2_create_key(state: State, key: Key, ask: Json, base: str) -> Json:
    state.need(key, "writeKeys")
    ids = ask.get("bucketIds") or ([ask["bucketId"]] if ask.get("bucketId") else None)
    names = tuple(state.bucket_by_id(bucket_id).name for bucket_id in ids) if ids else None
    capabilities, valid_s = tuple(ask["capabilities"]), ask.get("validDurationInSeconds")
    if not KEY_NAME.fullmatch(ask["keyName"]):
        raise Refusal(400, "bad_request", f"illegal key name: {ask['keyName']}")
    if not set(capabilities) <= (OF_A_BUCKET if ids else set(ALL_CAPABILITIES)) or not capabilities:
        raise Refusal(400, "bad_request", f"capabilities that such a key cannot have: {capabilities}")
    if valid_s is not None and not (isinstance(valid_s, int) and 0 < valid_s < LONGEST_KEY_S):
        raise Refusal(400, "bad_request", "validDurationInSeconds must be positive and less than 1000 days")
    number, ends = state.number(), None if valid_s is None else time.time() + valid_s
    key_id, secret = f"0000key{number:08d}", f"K000secret{number}"
    made = Key(key_id, secret, capabilities, names, ask.get("namePrefix"), ask["keyName"], ends)
    state.keys[made.key_id] = made
    return _key_json(state, made) | {"applicationKey": made.secret}


def b2_list_keys(state: State, key: Key, ask: Json, base: str) -> Json:
    """Without secrets, and without the keys that have expired; the master key is not one of them."""
    state.need(key, "listKeys")
    start, limit = ask.get("startApplicationKeyId") or "", _limit(state, ask, "maxKeyCount", 100)
    listed = (one for one in state.keys.values() if not one.is_expired and "master" not in one.key_id)
    found = sorted((one for one in listed if one.key_id >= start), key=lambda one: one.key_id)
    return {
        "keys": [_key_json(state, one) for one in found[:limit]],
        "nextApplicationKeyId": found[limit].key_id if len(found) > limit else None,
    }


def b2_delete_key(state: State, key: Key, ask: Json, base: str) -> Json:
    """Its tokens live on: the key alone is gone."""
    state.need(key, "deleteKeys")
    found = state.keys.pop(ask["applicationKeyId"], None)
    if found is None:
        raise Refusal(400, "bad_request", f"application key does not exist: {ask['applicationKeyId']}")
    return _key_json(state, found)


def _limit(state: State, ask: Json, field: str, default: int) -> int:
    return min(int(ask.get(field) or default), state.longest_page)


def _listed(version: Version) -> Json:
    """Listings tell the size twice; rclone reads this one (rclone: backend/b2/api/types.go, ``File``)."""
    return version.as_json() | {"size": len(version.data)}


def _folded(files: list[Json], ask: Json) -> list[Json]:
    """With a delimiter, what lies below a folder is listed as that folder, once."""
    delimiter, prefix = ask.get("delimiter"), ask.get("prefix") or ""
    if not delimiter:
        return files
    shown: list[Json] = []
    folders: set[str] = set()
    for file in files:
        head, found, _ = str(file["fileName"])[len(prefix) :].partition(delimiter)
        if not found:
            shown.append(file)
        elif head not in folders:
            folders.add(head)
            folder = {
                "fileName": f"{prefix}{head}{delimiter}",
                "action": "folder",
                "fileId": None,
                "contentLength": 0,
                "size": 0,
            }
            shown.append(file | folder | {"contentSha1": None, "contentType": None, "uploadTimestamp": 0})
    return shown


def b2_list_file_names(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket, prefix = state.bucket_by_id(ask["bucketId"]), ask.get("prefix") or ""
    state.need(key, "listFiles", bucket, prefix)
    start = ask.get("startFileName") or ""
    current = [_listed(version) for version in state.current(bucket, prefix)]
    found = [file for file in _folded(current, ask) if str(file["fileName"]).encode() >= start.encode()]
    limit = _limit(state, ask, "maxFileCount", 100)
    return {"files": found[:limit], "nextFileName": found[limit]["fileName"] if len(found) > limit else None}


def b2_list_file_versions(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket, prefix = state.bucket_by_id(ask["bucketId"]), ask.get("prefix") or ""
    state.need(key, "listFiles", bucket, prefix)
    found = _folded([_listed(version) for version in state.sorted_versions(bucket, prefix)], ask)
    start, start_id = ask.get("startFileName"), ask.get("startFileId")
    if start is not None:
        found = [file for file in found if str(file["fileName"]).encode() >= start.encode()]
        ids = [file["fileId"] for file in found]
        if start_id in ids:
            found = found[ids.index(start_id) :]
    limit = _limit(state, ask, "maxFileCount", 100)
    beyond = found[limit] if len(found) > limit else {}
    return {
        "files": found[:limit],
        "nextFileName": beyond.get("fileName"),
        "nextFileId": beyond.get("fileId"),
    }


def b2_list_unfinished_large_files(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket, prefix = state.bucket_by_id(ask["bucketId"]), ask.get("namePrefix") or ""
    state.need(key, "listFiles", bucket, prefix)
    found = sorted(
        (v for v in state.sorted_versions(bucket, prefix, stale=False) if v.action == "start"), key=lambda v: v.file_id
    )
    found = [v for v in found if v.file_id >= (ask.get("startFileId") or "")]
    limit = min(_limit(state, ask, "maxFileCount", 100), 100)
    return {
        "files": [version.as_json() for version in found[:limit]],
        "nextFileId": found[limit].file_id if len(found) > limit else None,
    }


def b2_list_parts(state: State, key: Key, ask: Json, base: str) -> Json:
    version = state.unfinished(ask["fileId"])
    state.need(key, "writeFiles", version.bucket, version.name)
    numbers = sorted(n for n in version.parts if n >= (ask.get("startPartNumber") or 1))
    limit = min(_limit(state, ask, "maxPartCount", 1000), 1000)
    return {
        "parts": [
            {
                "fileId": version.file_id,
                "partNumber": number,
                "contentLength": len(version.parts[number]),
                "contentSha1": sha1_hex(version.parts[number]),
                "uploadTimestamp": version.timestamp,
            }
            for number in numbers[:limit]
        ],
        "nextPartNumber": numbers[limit] if len(numbers) > limit else None,
    }


def b2_get_upload_url(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket = state.bucket_by_id(ask["bucketId"])
    state.need(key, "writeFiles", bucket)
    token = f"upload_{state.number()}"
    state.upload_tokens[token] = (key, bucket.bucket_id)
    return {
        "bucketId": bucket.bucket_id,
        "uploadUrl": f"{base}/b2api/v4/b2_upload_file/{bucket.bucket_id}/{state.number()}",
        "authorizationToken": token,
    }


def b2_get_upload_part_url(state: State, key: Key, ask: Json, base: str) -> Json:
    version = state.unfinished(ask["fileId"])
    state.need(key, "writeFiles", version.bucket, version.name)
    token = f"upload_{state.number()}"
    state.upload_tokens[token] = (key, version.file_id)
    return {
        "fileId": version.file_id,
        "uploadUrl": f"{base}/b2api/v4/b2_upload_part/{version.file_id}/{state.number()}",
        "authorizationToken": token,
    }


def b2_start_large_file(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket = state.bucket_by_id(ask["bucketId"])
    state.need(key, "writeFiles", bucket, ask["fileName"])
    return state.add(bucket, ask["fileName"], "start", ask["contentType"], ask.get("fileInfo") or {}).as_json()


def b2_finish_large_file(state: State, key: Key, ask: Json, base: str) -> Json:
    found = state.versions.get(str(ask["fileId"]))
    if found is not None:
        state.need(key, "writeFiles", found.bucket, found.name)
    return state.finish(ask["fileId"], ask["partSha1Array"]).as_json()


def b2_cancel_large_file(state: State, key: Key, ask: Json, base: str) -> Json:
    version = state.unfinished(ask["fileId"])
    state.need(key, "writeFiles", version.bucket, version.name)
    del state.versions[version.file_id]
    return {
        "fileId": version.file_id,
        "accountId": "account0",
        "bucketId": version.bucket.bucket_id,
        "fileName": version.name,
    }


def b2_get_file_info(state: State, key: Key, ask: Json, base: str) -> Json:
    version = state.version(ask["fileId"])
    state.need(key, "readFiles", version.bucket, version.name)
    return version.as_json()


def b2_hide_file(state: State, key: Key, ask: Json, base: str) -> Json:
    bucket = state.bucket_by_id(ask["bucketId"])
    state.need(key, "writeFiles", bucket, ask["fileName"])
    if all(version.name != ask["fileName"] for version in state.sorted_versions(bucket, ask["fileName"])):
        raise Refusal(400, "no_such_file", "nothing to hide")
    return state.add(bucket, ask["fileName"], "hide", "application/x-bz-hide-marker", {}).as_json()


def b2_delete_file_version(state: State, key: Key, ask: Json, base: str) -> Json:
    version = state.versions.get(str(ask["fileId"]))
    if version is None or version.name != ask["fileName"]:
        raise Refusal(400, "file_not_present", "File not present")
    state.need(key, "deleteFiles", version.bucket, version.name)
    del state.versions[version.file_id]
    return {"fileId": version.file_id, "fileName": version.name}


def _range_of(ask: Json, data: bytes) -> bytes:
    if not ask.get("range"):
        return data
    first, last = str(ask["range"]).removeprefix("bytes=").split("-")
    return data[int(first) : int(last) + 1]


def b2_copy_file(state: State, key: Key, ask: Json, base: str) -> Json:
    source = state.version(ask["sourceFileId"])
    bucket = state.bucket_by_id(ask.get("destinationBucketId") or source.bucket.bucket_id)
    state.need(key, "readFiles", source.bucket, source.name)
    state.need(key, "writeFiles", bucket, ask["fileName"])
    replace = ask.get("metadataDirective") == "REPLACE"
    info: dict[str, Any] = (ask.get("fileInfo") or {}) if replace else source.info
    kind = ask["contentType"] if replace else source.content_type
    return state.store(bucket, ask["fileName"], _range_of(ask, source.data), kind, info).as_json()


def b2_copy_part(state: State, key: Key, ask: Json, base: str) -> Json:
    source, target = state.version(ask["sourceFileId"]), state.unfinished(ask["largeFileId"])
    state.need(key, "readFiles", source.bucket, source.name)
    state.need(key, "writeFiles", target.bucket, target.name)
    data = _range_of(ask, source.data)
    state.add_part(target.file_id, int(ask["partNumber"]), data)
    return {
        "fileId": target.file_id,
        "partNumber": ask["partNumber"],
        "contentLength": len(data),
        "contentSha1": sha1_hex(data),
        "uploadTimestamp": target.timestamp,
    }


OPERATIONS = {name: function for name, function in globals().items() if name.startswith("b2_")}
