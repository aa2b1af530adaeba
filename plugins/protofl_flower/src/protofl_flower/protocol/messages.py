"""Messages between a deployed run and its nodes: one JSON text and a list of byte strings.

A *request* names the run, the digest of its plan (and the plan, until a node knows it), the trial,
the versions of clients that the node must keep, and the jobs of one stage for the node's clients.
Each job names the version of its client on which it builds. A *response* has one reply per job, and
for each client that trained the version that lies on the node's disk. A version is the length and
the CRC-32 of a client's file, in hexadecimal digits, or empty for the state that the seed gives; a
file has less than 2^40 bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

import protofl as pf

VERSION = re.compile(r"(?:[1-9a-f][0-9a-f]{0,9}-[0-9a-f]{8})?\Z")
FILE = re.compile(r"client-\d{5,9}-t\d{1,9}-r\d{1,9}\.safetensors\Z")
RUN = re.compile(r"[0-9a-f]{16}\Z")

LONGEST = 64 << 20
"""Characters of a text that is read, at most."""


class MalformedMessage(Exception):
    """A message is not what the protocol says."""


@dataclass
class Blobs:
    """Byte strings of a message; equal ones are held once."""

    parts: list[bytes] = field(default_factory=list)
    _places: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: bytes) -> int | None:
        """Return the place of a byte string; None for an empty one."""
        if not data:
            return None
        digest = sha256(data).digest()
        if digest not in self._places:
            self._places[digest] = len(self.parts)
            self.parts.append(data)
        return self._places[digest]


def version_of(size: int, crc: int) -> str:
    """Return the version of a client whose file has this length and CRC-32."""
    return f"{size:x}-{crc:08x}"


def digest_of(text: str) -> str:
    """Return the digest by which a plan is known."""
    return sha256(text.encode()).hexdigest()


def without_data_sizes(plan: str) -> str:
    """Return a plan, as JSON, without what other nodes tell of their data."""
    options = json.loads(plan)
    options["options"].get("dataset", {}).pop("told", None)
    return json.dumps(options)


def read(text: str) -> dict[str, Any]:
    """Parse the text of a message.

    Raises:
        MalformedMessage: The text is not a JSON object.
    """
    try:
        if len(text) > LONGEST:
            raise MalformedMessage(f"its text has {len(text)} characters")
        result = json.loads(text)
    except (ValueError, RecursionError):
        raise MalformedMessage("its text is not JSON") from None
    if not isinstance(result, dict):
        raise MalformedMessage("its text is not a JSON object")
    return result


def blob_at(place: Any, blobs: Sequence[bytes]) -> bytes:  # noqa: ANN401 - whatever was sent
    """Return the byte string at a place; empty for None.

    Raises:
        MalformedMessage: There is none.
    """
    if place is None:
        return b""
    if type(place) is not int or not 0 <= place < len(blobs):
        raise MalformedMessage(f"it has no blob {str(place)[:20]!r}")
    return blobs[place]


def matching(pattern: re.Pattern[str], value: Any) -> str:  # noqa: ANN401 - whatever was sent
    """Return a value that has the form of a version, a run or a client's file.

    Raises:
        MalformedMessage: The value has another form.
    """
    if isinstance(value, str) and pattern.match(value):
        return value
    raise MalformedMessage(f"{str(value)[:80]!r} is not a version, run or file")


def kept_in(asked: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the names and the other versions that a request names to be kept.

    Raises:
        MalformedMessage: One has another form.
    """
    names, versions = asked.get("names"), asked.get("keep")
    if not isinstance(names, dict) or not isinstance(versions, list):
        raise MalformedMessage("it doesn't say which versions to keep")
    named = {matching(FILE, name): matching(VERSION, v) for name, v in names.items()}
    return named, [matching(VERSION, version) for version in versions]


@dataclass(frozen=True)
class Answer:
    """The reply to a job, and the version of the client on the node's disk after it.

    Attributes:
        header: The values of the reply, or ``{"failure": …}``.
        blob: Its bytes.
        version: The version.
        wrong: What is wrong with the answer, if it is none.
    """

    header: dict[str, Any] = field(default_factory=dict)
    blob: bytes = b""
    version: str = ""
    wrong: str = ""

    def reply(self, kinds: Collection[str]) -> pf.backends.Reply:
        """Return the reply.

        Args:
            kinds: The kinds that answer the job.

        Raises:
            MalformedMessage: The header describes no such reply, or a reply that no node sends.
        """
        kind = self.header.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise MalformedMessage(f"kind is {shown(kind)}, expected {' or '.join(kinds)}")
        known = {f.name for f in fields(pf.backends.Reply.kinds[kind])} - {"blob"}
        if further := sorted(self.header.keys() - known - {"kind"}):
            raise MalformedMessage(f"{shown(further[0])} is not a value of a {kind}")
        if self.header.get("profile", "") != "":
            raise MalformedMessage(
                f"profile is {shown(self.header['profile'])}, and a node sends none"
            )
        notes = self.header.get("notes", [])
        if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
            raise MalformedMessage(f"notes is {shown(notes)}, expected a list of texts")
        try:
            return pf.backends.Reply.from_header(self.header, self.blob)
        except pf.RunFailure as error:
            raise MalformedMessage(error.what) from None


def shown(value: Any) -> str:  # noqa: ANN401 - whatever was sent
    """Return a foreign value as a short text."""
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return repr(text[:40])


def response(answers: Sequence[Answer]) -> tuple[str, list[bytes]]:
    """Return the message of a node's answers."""
    blobs, replies = Blobs(), []
    for answer in answers:
        place = blobs.add(answer.blob)
        replies.append({"header": answer.header, "blob": place, "version": answer.version})
    return json.dumps({"replies": replies}), blobs.parts


def answers_in(parsed: dict[str, Any], blobs: Sequence[bytes], count: int) -> list[Answer]:
    """Return the answers of a response to that many jobs.

    Raises:
        MalformedMessage: The response has other parts.
    """
    replies = parsed.get("replies")
    if not isinstance(replies, list) or len(replies) != count:
        raise MalformedMessage(f"it doesn't answer its {count} jobs")
    if further := sorted(parsed.keys() - {"replies"}):
        raise MalformedMessage(f"{shown(further[0])} is not a part of a response")
    if len(blobs) > 2 * count:
        raise MalformedMessage(f"it has {len(blobs)} blobs for {count} jobs")
    return [_answer(reply, blobs) for reply in replies]


def _answer(reply: Any, blobs: Sequence[bytes]) -> Answer:  # noqa: ANN401 - whatever was sent
    """Return an answer; a wrong one names what is wrong, so that the others count."""
    try:
        if not isinstance(reply, dict) or not isinstance(reply.get("header"), dict):
            raise MalformedMessage("a reply in it has no header")
        if further := sorted(reply.keys() - {"header", "blob", "version"}):
            raise MalformedMessage(f"{shown(further[0])} is not a part of a reply")
        version = matching(VERSION, reply.get("version"))
        return Answer(reply["header"], blob_at(reply.get("blob"), blobs), version)
    except MalformedMessage as error:
        return Answer(wrong=str(error))
