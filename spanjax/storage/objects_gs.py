"""Objects of Google Cloud Storage, through the session and the credentials of gcsfs; STORAGE_EMULATOR_HOST names another host."""

import asyncio
import base64
import hashlib
import io
import itertools
import json
import os
import pathlib
import re
import urllib.parse
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
import fsspec.asyn
import gcsfs
import google.auth.exceptions
from gcsfs.retry import HttpError

from spanjax.json_files import JsonError, parse_json
from spanjax.storage.checksums import hex_digest
from spanjax.storage.objects import (
    ABSENT,
    LOOPS,
    NONCE,
    PART,
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
    request_seconds,
)

_RESUME = 308  # the answer to a part of an upload that is not the last one
_BUSY = (408, 429, 500, 502, 503, 504)
READ = 2**20  # bytes that wait in a connection before it pauses: with aiohttp's 64 KiB it pauses after every read
_GENERATION = "x-goog-generation"
_ENTRY = "generation,size,name"


class _AnswerError(Exception):
    """An answer that is no success: its status and its text."""

    def __init__(self, status: int, body: bytes):
        try:
            found = parse_json(body, dict).get("error", {})
            text = found.get("message", "") if isinstance(found, dict) else str(found)
        except JsonError:
            text = re.sub(r"<[^>]*>|\s+", " ", body[:300].decode("utf-8", "replace")).strip()
        self.status, self.text = status, str(text)
        super().__init__(f"{status} {text}".strip())


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes
    size: int
    """Bytes of the body, also of one that was passed on."""

    def json(self) -> dict[str, Any]:
        try:
            return parse_json(self.body, dict)
        except JsonError:
            raise _AnswerError(self.status, self.body) from None


class GoogleStorage:
    """The backend of gs://, over the JSON API."""

    def __init__(self) -> None:
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "") not in ("", "default")
        # an emulator needs no credentials, and looking for those of a machine of Google takes seconds elsewhere
        anonymous = emulator and not os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        self._systems = [
            gcsfs.GCSFileSystem(
                token="anon" if anonymous else None,
                loop=new_loop(),
                skip_instance_cache=True,
                use_listings_cache=False,
                session_kwargs={"auto_decompress": False, "trust_env": True},
            )
            for _ in range(LOOPS)
        ]
        self._next = itertools.count()

    def _call(
        self,
        method: str,
        url: str,
        *,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        expected: int = 0,
        write: Callable[[bytes], object] | None = None,
        **parameters: Any,
    ) -> _Answer:
        """One request to a path of the API, or to a whole URL; _AnswerError for a status from 300 on, but 308.

        With `write` the body of a successful answer is passed to it while it arrives.
        """
        system = self._systems[next(self._next) % LOOPS]  # in turn: a loop passes its bytes through one thread
        if not url.startswith("http"):
            url = f"{system.base.removesuffix('storage/v1/')}{url}"
        sent = {"Accept-Encoding": "identity", **(headers or {})}
        limit = request_seconds(len(data or b"") + expected)

        async def request() -> _Answer:
            session: Any = await system._set_session()
            system.credentials.apply(sent)
            timeout = aiohttp.ClientTimeout(limit, sock_read=60)
            options = {"timeout": timeout, "allow_redirects": False, "read_bufsize": READ}
            body = None if data is None else io.BytesIO(data)
            async with session.request(method, url, params=parameters, data=body, headers=sent, **options) as answer:
                found, received = b"", 0
                if write is None or answer.status >= 300 or _GENERATION not in answer.headers:
                    found = await answer.read()
                else:
                    while piece := await answer.content.readany():
                        write(piece)
                        received += len(piece)
                return _Answer(answer.status, answer.headers, found, received or len(found))

        answer: Any = fsspec.asyn.sync(system.loop, request, timeout=limit + 1)
        if answer.status >= 300 and answer.status != _RESUME:
            raise _AnswerError(answer.status, answer.body)
        return answer

    def head(self, place: Place) -> Entry | None:
        """Size and generation."""
        found = self._metadata(place)
        return None if found is None else Entry("", int(found["size"]), str(found["generation"]))

    def _metadata(self, place: Place) -> dict[str, Any] | None:
        try:
            return self._call("GET", _object(place)).json()
        except _AnswerError as error:
            if error.status == 404 and not _no_bucket(error):
                return None
            raise

    def get(
        self, place: Place, start: int, stop: int | None, version: str | None, write: Callable[[bytes], object]
    ) -> str:
        """The version is the generation."""
        headers = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"} if start or stop is not None else {}
        condition: dict[str, Any] = {} if version is None else {"ifGenerationMatch": version}
        try:
            answer = self._call(
                "GET",
                _object(place),
                headers=headers,
                expected=(stop or 2**30) - start,
                write=write,
                alt="media",
                **condition,
            )
        except _AnswerError as error:
            if error.status == 412:
                raise StorageError(f"{place}: it was replaced while it was read; run the same command again") from error
            raise
        length = int(answer.headers.get("Content-Length", answer.size))
        if answer.size != length:
            raise TransientError(f"{answer.size:,} of {length:,} bytes arrived")
        if _GENERATION not in answer.headers:  # another service: its page was not passed on
            raise _AnswerError(answer.status, answer.body)
        return answer.headers[_GENERATION]

    def put(self, place: Place, data: bytes, only_if: str | Absent | None, nonce: str) -> Written:
        """Writes an object; the service compares its md5."""
        condition: dict[str, Any] = (
            {} if only_if is None else {"ifGenerationMatch": "0" if only_if is ABSENT else str(only_if)}
        )
        digest = base64.b64encode(hashlib.md5(data).digest()).decode()
        description = {"name": place.key, "md5Hash": digest, "metadata": {NONCE: nonce}}
        # a boundary that no content holds
        boundary = uuid.uuid4().hex
        body = b"".join(
            (
                f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n".encode(),
                json.dumps(description).encode(),
                f"\r\n--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{boundary}--".encode(),
            )
        )
        headers = {"Content-Type": f"multipart/related; boundary={boundary}"}
        try:
            answer = self._call(
                "POST", _uploads(place), data=body, headers=headers, uploadType="multipart", **condition
            ).json()
        except _AnswerError as error:
            if error.status == 412 or (error.status == 404 and only_if not in (None, ABSENT) and not _no_bucket(error)):
                raise ConditionFailedError(f"{place}: somebody else wrote it meanwhile") from error
            raise
        return _written(answer)

    def nonce(self, place: Place) -> tuple[str, str]:
        """Reads the metadata."""
        found = self._metadata(place)
        return ("", "") if found is None else (found.get("metadata", {}).get(NONCE, ""), str(found["generation"]))

    def upload(self, file: pathlib.Path, place: Place, size: int, tries: Tries) -> Written:
        """A resumable upload: after a failed part the service tells how much it has."""
        start = {"X-Upload-Content-Type": "application/octet-stream", "X-Upload-Content-Length": str(size)}
        headers = {"Content-Type": "application/json; charset=UTF-8", **start}
        body = json.dumps({"name": place.key}).encode()
        session = tries.run(
            lambda _: self._call("POST", _uploads(place), data=body, headers=headers, uploadType="resumable")
        ).headers["Location"]
        digest, at, answer = hashlib.md5(), 0, None
        hashed = 0
        with open(file, "rb") as source:
            while answer is None or answer.status == _RESUME:
                source.seek(at)
                data = source.read(PART)
                digest.update(data[hashed - at :])  # a part that arrived in pieces was hashed when it was first sent
                hashed = max(hashed, at + len(data))
                answer = tries.run(lambda failed, data=data, at=at: self._send(session, data, at, size, failed))
                if answer.status == _RESUME:
                    at = _received(answer)
        written = _written(answer.json())
        if written.checksum.startswith("md5:") and written.checksum != f"md5:{digest.hexdigest()}":
            raise StorageError(
                f"{place}: the store's {written.checksum} is not that of the bytes sent; upload it again"
            )
        return written

    def _send(self, session: str, data: bytes, at: int, size: int, failed: int) -> _Answer:
        if failed:
            answer = self._call("PUT", session, headers={"Content-Range": f"bytes */{size}"})
            # the last part, or a piece of this one, may have arrived although its answer was lost
            if answer.status != _RESUME or _received(answer) > at:
                return answer
        content = f"bytes {at}-{at + len(data) - 1}/{size}"
        return self._call("PUT", session, data=data, headers={"Content-Range": content})

    def list_page(self, place: Place, token: str) -> tuple[list[Entry], str]:
        """A page of 1000."""
        prefix = f"{place.key}/" if place.key else ""
        more: dict[str, Any] = {"pageToken": token} if token else {}
        found = self._call(
            "GET", f"storage/v1/b/{_quoted(place.bucket)}/o", prefix=prefix, maxResults="1000",
            fields=f"nextPageToken,items({_ENTRY})", **more,
        ).json()  # fmt: skip
        entries = [
            Entry(each["name"].removeprefix(prefix), int(each["size"]), str(each["generation"]))
            for each in found.get("items", ())
        ]
        return entries, found.get("nextPageToken", "")

    def delete(self, places: list[Place]) -> None:
        """One request for each object."""

        def remove(place: Place) -> None:
            try:
                self._call("DELETE", _object(place))
            except _AnswerError as error:
                if error.status != 404 or _no_bucket(error):
                    raise

        in_parallel(remove, places)

    def explain(self, error: BaseException, place: Place) -> Exception:
        """Sorts by the status of the answer, or by the type where none came."""
        if isinstance(error, StorageError | TransientError):
            return error
        if isinstance(error, _AnswerError):
            return _explained(error, place)
        if isinstance(error, google.auth.exceptions.TransportError):
            return TransientError(str(error))
        if isinstance(error, google.auth.exceptions.GoogleAuthError | HttpError):
            return StorageError(f"{place}: no valid credentials ({error}): {_CREDENTIALS}")
        if isinstance(error, KeyError):
            return StorageError(f"{place}: the answer is not one of Google's (no {error}): check STORAGE_EMULATOR_HOST")
        if isinstance(error, aiohttp.InvalidURL):
            return StorageError(f"{place}: {error} is no address: check STORAGE_EMULATOR_HOST")
        if isinstance(error, aiohttp.ClientError | asyncio.TimeoutError | fsspec.asyn.FSTimeoutError | OSError):
            return TransientError(str(error) or type(error).__name__)
        return error if isinstance(error, Exception) else RuntimeError(str(error))


_CREDENTIALS = "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"


def _explained(error: _AnswerError, place: Place) -> Exception:
    if error.status in _BUSY or (error.status == 403 and "rate" in error.text.lower()):
        return TransientError(str(error))
    if error.status == 401:
        return StorageError(f"{place}: the credentials are missing or refused ({error.text}): {_CREDENTIALS}")
    if error.status == 403:
        return StorageError(
            f"{place}: access is denied ({error.text}): give these credentials the rights to list, read, write and delete"
            f" objects of gs://{place.bucket}, or use others"
        )
    if error.status == 404 and _no_bucket(error):
        return StorageError(
            f"{place}: no bucket {place.bucket!r}: check its name and STORAGE_EMULATOR_HOST, or create it"
        )
    if error.status == 404 and "no such object" in error.text.lower():
        return MissingObjectError(f"{place}: no such object; check the address")
    if error.status == 412:
        return ConditionFailedError(f"{place}: somebody else wrote it meanwhile")
    return StorageError(
        f"{place}: the service answers {error}; expected an answer of Google Cloud Storage: check the address and"
        " STORAGE_EMULATOR_HOST"
    )


def _no_bucket(error: _AnswerError) -> bool:
    return "bucket" in error.text.lower() and "no such object" not in error.text.lower()


def _received(answer: _Answer) -> int:
    """Number of bytes that an upload has; none without a range."""
    return int(answer.headers["Range"].rpartition("-")[2]) + 1 if "Range" in answer.headers else 0


def _written(answer: Mapping[str, Any]) -> Written:
    for name, kind in (("md5Hash", "md5"), ("crc32c", "crc32c")):
        if answer.get(name):
            return Written(str(answer["generation"]), f"{kind}:{hex_digest(answer[name])}")
    return Written(str(answer["generation"]))


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _object(place: Place) -> str:
    return f"storage/v1/b/{_quoted(place.bucket)}/o/{_quoted(place.key)}"


def _uploads(place: Place) -> str:
    return f"upload/storage/v1/b/{_quoted(place.bucket)}/o"


def connect() -> GoogleStorage:
    """Returns the backend."""
    return GoogleStorage()
