"""Objects of S3 and of services that speak its protocol, through the client of s3fs; its settings come from AWS_* variables."""

import asyncio
import base64
import contextlib
import hashlib
import itertools
import logging
import os
import pathlib
from collections.abc import Callable
from typing import Any

import aiohttp
import fsspec.asyn
import s3fs
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
)
from botocore.exceptions import ConnectionError as EndpointError
from botocore.parsers import ResponseParserError

from spanjax.storage.checksums import BLOCK
from spanjax.storage.objects import (
    ABSENT,
    CONNECTIONS,
    LOOPS,
    NONCE,
    Absent,
    ConditionFailedError,
    Entry,
    MissingObjectError,
    Place,
    StorageError,
    TransientError,
    Tries,
    Written,
    in_parallel,
    new_loop,
    part_size,
    request_seconds,
)

_MAX_PARTS = 9000  # S3 takes 10,000
_BUSY = frozenset(
    {"SlowDown", "InternalError", "RequestTimeout", "RequestTimeTooSkewed", "ServiceUnavailable", "Throttling",
     "ThrottlingException", "RequestLimitExceeded", "TooManyRequests", "BadDigest", "OperationAborted",
     "ConditionalRequestConflict", "IncompleteBody"}
)  # fmt: skip
_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401"})
_NETWORK = (EndpointError, HTTPClientError, ResponseStreamingError, IncompleteReadError, ResponseParserError, aiohttp.ClientError,
            asyncio.TimeoutError, fsspec.asyn.FSTimeoutError, ConnectionError, TimeoutError)  # fmt: skip


class S3:
    """The backend of s3://."""

    def __init__(self) -> None:
        # every retry is one of `Tries`, where it is limited and logged; checksums are sent as Content-MD5, which services
        # without the newer checksums understand
        config = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "connect_timeout": 10,
            "read_timeout": 60,
            "max_pool_connections": 4 * CONNECTIONS,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
        options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False, "config_kwargs": config}
        self._systems = [s3fs.S3FileSystem(loop=new_loop(), **options) for _ in range(LOOPS)]
        self._next = itertools.count()

    def _call(
        self, method: str, body_size: int = 0, *, write: Callable[[bytes], object] | None = None, **arguments: Any
    ) -> Any:
        """One request; the body of an answer is passed to `write` while it arrives, and "Body" is the number of its bytes."""

        system = self._systems[next(self._next) % LOOPS]

        async def request() -> Any:
            client: Any = await system.set_session()
            answer = await getattr(client, method)(**arguments)
            if "Body" in answer and write is not None:
                async with answer["Body"] as stream:
                    answer["Body"] = 0
                    while data := await stream.read(BLOCK):
                        write(data)
                        answer["Body"] += len(data)
            return answer

        return fsspec.asyn.sync(system.loop, request, timeout=request_seconds(body_size))

    def head(self, place: Place) -> Entry | None:
        """Size and ETag. A missing bucket is told from a missing object by a listing, as HEAD has no text."""
        try:
            found = self._call("head_object", Bucket=place.bucket, Key=place.key)
        except ClientError as error:
            if _status(error) != 404:
                raise
            self._call("list_objects_v2", Bucket=place.bucket, Prefix=place.key, MaxKeys=1)
            return None
        return Entry("", int(found["ContentLength"]), found["ETag"])

    def get(
        self, place: Place, start: int, stop: int | None, version: str | None, write: Callable[[bytes], object]
    ) -> str:
        """The version is the ETag."""
        options: dict[str, Any] = {"Bucket": place.bucket, "Key": place.key}
        if start or stop is not None:
            options["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        if version is not None:
            options["IfMatch"] = version
        try:
            found = self._call("get_object", (stop or 2**30) - start, write=write, **options)
        except ClientError as error:
            if _status(error) == 412:
                raise StorageError(f"{place}: it was replaced while it was read; run the same command again") from error
            raise
        if found["Body"] != int(found["ContentLength"]):
            raise TransientError(f"{found['Body']:,} of {found['ContentLength']:,} bytes arrived")
        return found["ETag"]

    def put(self, place: Place, data: bytes, only_if: str | Absent | None, nonce: str) -> Written:
        """Writes an object; the service compares its md5."""
        options: dict[str, Any] = {} if only_if is None else {"IfMatch": only_if}
        if only_if is ABSENT:
            options = {"IfNoneMatch": "*"}
        digest = hashlib.md5(data).digest()
        try:
            answer = self._call(
                "put_object",
                len(data),
                Bucket=place.bucket,
                Key=place.key,
                Body=data,
                ContentMD5=base64.b64encode(digest).decode(),
                Metadata={NONCE: nonce},
                **options,
            )
        except ClientError as error:
            missing = options.get("IfMatch") and _code(error) == "NoSuchKey"
            if _status(error) == 412 or missing:
                raise ConditionFailedError(f"{place}: somebody else wrote it meanwhile") from error
            raise
        return Written(answer["ETag"], _md5(answer, place))

    def nonce(self, place: Place) -> tuple[str, str]:
        """Reads the metadata."""
        try:
            found = self._call("head_object", Bucket=place.bucket, Key=place.key)
        except ClientError as error:
            if _status(error) == 404:
                return "", ""
            raise
        return found.get("Metadata", {}).get(NONCE, ""), found["ETag"]

    def upload(self, file: pathlib.Path, place: Place, size: int, tries: Tries) -> Written:
        """A multipart upload, which is aborted when it fails: its parts would cost money."""
        target: dict[str, Any] = {"Bucket": place.bucket, "Key": place.key}
        upload = tries.run(lambda _: self._call("create_multipart_upload", **target))["UploadId"]
        length = part_size(size, _MAX_PARTS)
        source = os.open(file, os.O_RDONLY)

        def send(number: int) -> tuple[str, bytes]:
            # read when it is sent, so that only the parts on their way are in memory
            data = os.pread(source, length, number * length)
            digest = hashlib.md5(data).digest()
            encoded = base64.b64encode(digest).decode()
            options: dict[str, Any] = {
                "UploadId": upload,
                "PartNumber": number + 1,
                "Body": data,
                "ContentMD5": encoded,
            }
            return tries.run(lambda _: self._call("upload_part", len(data), **target, **options))["ETag"], digest

        try:
            parts = in_parallel(send, range(-(-size // length)))
            tags = [{"ETag": tag, "PartNumber": number} for number, (tag, _) in enumerate(parts, 1)]
            whole = hashlib.md5(b"".join(digest for _, digest in parts)).hexdigest() + f"-{len(parts)}"
            return tries.run(lambda failed: self._complete(place, upload, tags, whole, failed))
        except BaseException:
            self._abort(place, upload)
            raise
        finally:
            os.close(source)

    def _complete(self, place: Place, upload: str, tags: list[dict[str, Any]], whole: str, failed: int) -> Written:
        try:
            answer = self._call(
                "complete_multipart_upload",
                Bucket=place.bucket,
                Key=place.key,
                UploadId=upload,
                MultipartUpload={"Parts": tags},
            )
        except ClientError as error:
            # an earlier try that was carried out, although its answer was lost, has ended this upload
            entry = self.head(place) if failed and _code(error) == "NoSuchUpload" else None
            if entry is None or entry.version.strip('"') != whole:
                raise
            return Written(entry.version, "")
        reported = _md5(answer, place, parts=True).partition(":")[2]
        if reported and reported != whole:
            raise StorageError(
                f"{place}: the store's checksum {reported} is not that of the bytes sent; upload it again"
            )
        return Written(answer["ETag"], "")

    def _abort(self, place: Place, upload: str) -> None:
        # the first error is the one to report; rules of the bucket remove what is left
        with contextlib.suppress(Exception):
            self._call("abort_multipart_upload", Bucket=place.bucket, Key=place.key, UploadId=upload)

    def list_page(self, place: Place, token: str) -> tuple[list[Entry], str]:
        """A page of 1000."""
        prefix = f"{place.key}/" if place.key else ""
        more: dict[str, Any] = {"ContinuationToken": token} if token else {}
        found = self._call("list_objects_v2", Bucket=place.bucket, Prefix=prefix, **more)
        found["Name"]  # a page of some other service parses as an empty listing without it
        entries = [
            Entry(each["Key"].removeprefix(prefix), int(each["Size"]), each["ETag"])
            for each in found.get("Contents", ())
        ]
        return entries, found.get("NextContinuationToken", "")

    def delete(self, places: list[Place]) -> None:
        """One request for each bucket."""
        for bucket in sorted({place.bucket for place in places}):
            keys = [{"Key": place.key} for place in places if place.bucket == bucket]
            answer = self._call("delete_objects", Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
            for problem in answer.get("Errors", ()):
                raise ClientError({"Error": problem, "ResponseMetadata": {"HTTPStatusCode": 0}}, "DeleteObjects")

    def explain(self, error: BaseException, place: Place) -> Exception:
        """Sorts by the error's code, or by its type where no answer came."""
        if isinstance(error, StorageError | TransientError):
            return error
        if isinstance(error, NoCredentialsError | PartialCredentialsError):
            return StorageError(
                f"{place}: no credentials ({error}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        if isinstance(error, ClientError):
            return _explained(error, place)
        if isinstance(error, _NETWORK):
            return TransientError(str(error) or type(error).__name__)
        if isinstance(error, KeyError):
            return StorageError(f"{place}: the answer is not one of S3 (no {error}): check AWS_ENDPOINT_URL")
        if isinstance(error, BotoCoreError | ValueError):
            return StorageError(f"{place}: {error}: check the address and the AWS_* variables")
        return TransientError(f"{type(error).__name__}: {error}") if isinstance(error, OSError) else _as_error(error)


def _as_error(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _explained(error: ClientError, place: Place) -> Exception:
    code, status = _code(error), _status(error)
    text = error.response.get("Error", {}).get("Message") or code
    if code in _BUSY or status in (408, 429, 500, 502, 503, 504):
        return TransientError(f"{status or ''} {code}: {text}".strip())
    if code in _KEYS or status == 401:
        return StorageError(
            f"{place}: the credentials are refused ({code}: {text}): check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,"
            " AWS_SESSION_TOKEN and AWS_PROFILE"
        )
    if code == "AccessDenied" or status == 403:
        return StorageError(
            f"{place}: access is denied ({error.operation_name}): give these credentials the rights to list, read, write"
            f" and delete objects of s3://{place.bucket}, or use others"
        )
    if code == "NoSuchBucket":
        return StorageError(f"{place}: no bucket {place.bucket!r}: check its name and AWS_ENDPOINT_URL, or create it")
    if code == "NoSuchKey":
        return MissingObjectError(f"{place}: no such object; check the address")
    if status == 412:
        return ConditionFailedError(f"{place}: somebody else wrote it meanwhile")
    return StorageError(
        f"{place}: the service answers {status} {code} to {error.operation_name}: {text}; check the address and"
        " AWS_ENDPOINT_URL"
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _md5(answer: dict[str, Any], place: Place, parts: bool = False) -> str:
    """Returns the ETag as "md5:HEX" where it is one: not for other encryptions, nor in directory buckets."""
    tag = answer["ETag"].strip('"')
    plain = answer.get("ServerSideEncryption") in (None, "AES256") and not answer.get("SSECustomerAlgorithm")
    digest = tag.partition("-")[0] if parts else tag
    is_md5 = len(digest) == 32 and set(digest) <= set("0123456789abcdef")
    return f"md5:{tag}" if plain and is_md5 and not place.bucket.endswith("--x-s3") else ""


def connect() -> S3:
    """Returns the backend."""
    # they tell at every start where they found what
    for name in ("aiobotocore", "botocore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return S3()
