"""One request until it has an answer: other nodes, pauses, a deadline. Steps alone, no network (`steps`).

A write that was sent and not answered may have taken effect. It is sent again with the same request id, so that it
takes effect once. If that does not lead to an answer either, the error is OutcomeUnknown.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from isthmus.client.answers import Verdict, error_of, judge, reason_of
from isthmus.client.errors import BadRequest, ClientError, Conflict, OutcomeUnknown, Refused, Retryable, ServerFault
from isthmus.client.names import Key
from isthmus.client.nodes import Nodes
from isthmus.client.routes import LEADER_HEADER, PATH
from isthmus.client.steps import Endpoint, NoAnswer, Operation, Request, Response, Send, Sleep

log = logging.getLogger("isthmus.client")

TOO_LARGE: Final = 413
"""The status of a request that is over a limit of the node, which depends on the request alone."""

PAUSE_FIRST_S: Final = 0.05
"""Pause before the second attempt, doubled with each further one; an election takes a fraction of a second."""
PAUSE_MAX_S: Final = 2.0

RETRY_AFTER_MAX_S: Final = 5.0
"""Longest Retry-After that is followed; nodes send 1."""

TIME_MAX_S: Final = 86_400
"""Longest time of a call: a day, which no request needs."""

SURVEY_TIMEOUT_S: Final = 1.0
"""Wait for routes: a node answers them from memory, and any node does."""

ATTEMPTS_PER_CALL: Final = 3
"""Without `attempt_timeout_s` an attempt may take this part of the time of its call, so that a node that is silent
leaves time for others."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long, and how often."""

    timeout_s: float
    attempt_timeout_s: float | None
    connect_timeout_s: float
    attempts: int


def pause_s(attempt: int, chance: random.Random) -> float:
    """The pause after an attempt (0, 1, ...): doubled each time, between half and all of it, so that clients spread."""
    return min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(attempt, 16)) * chance.uniform(0.5, 1.0)


def checked_seconds(name: str, value: float) -> float:
    """A time limit of an option or a call. Raises BadRequest."""
    if not isinstance(value, int | float) or not 0 < value <= TIME_MAX_S:
        raise BadRequest(
            f"{name} is {value!r}: it must be above 0 and at most {TIME_MAX_S} seconds", reason="bad-option"
        )
    return float(value)


class Exchange:
    """Sends requests to the nodes of a cluster. `now_s` is a monotonic clock, `authorization` gives the value of that
    header, None: there is none. `chance` gives request ids and the lengths of pauses: the system's, unless a test needs
    the same ones again."""

    def __init__(
        self,
        nodes: Nodes,
        limits: Limits,
        now_s: Callable[[], float],
        authorization: Callable[[], bytes] | None,
        chance: random.Random,
    ) -> None:
        self.nodes = nodes
        self.limits = limits
        self.now_s = now_s
        self.chance = chance
        self._authorization = authorization

    def deadline_s(self, timeout_s: float | None) -> float:
        """When a call ends that begins now. Raises BadRequest."""
        return self.now_s() + (self.limits.timeout_s if timeout_s is None else checked_seconds("timeout_s", timeout_s))

    def read(self, request: Request, key: Key | None, deadline_s: float) -> Operation[Response]:
        """The answer to a read. Raises Retryable, Refused, BadRequest, ServerFault."""
        return self._until_answered(request, key, deadline_s, None)

    def write(self, request: Request, key: Key | None, deadline_s: float, request_id: str) -> Operation[Response]:
        """The answer to a write, whose request id is in the request. Raises OutcomeUnknown, Conflict, and as `read`."""
        return self._until_answered(request, key, deadline_s, request_id)

    def _until_answered(
        self, request: Request, key: Key | None, deadline_s: float, request_id: str | None
    ) -> Operation[Response]:
        tried: set[Endpoint] = set()
        failure: ClientError | None = None
        uncertain: ClientError | None = None
        uncertain_at: set[Endpoint] = set()
        begun_s = self.now_s()
        wait_s: float | None = 0.0
        for attempt in range(self.limits.attempts):
            try:
                if wait_s:
                    yield Sleep(wait_s)
                yield from self._survey(key, deadline_s)
                left_s = deadline_s - self.now_s()
                if left_s <= 0:
                    break
                node = self.nodes.pick(key, tried, self.now_s())
                answer = yield self._send(node, request, left_s, deadline_s - begun_s)
            except ClientError as error:  # the client was closed, or its token file has gone
                if uncertain is None:
                    raise
                raise self._given_up(error, uncertain, request_id) from error
            verdict, found = self._judged(node, key, answer)
            if verdict is Verdict.DONE:
                assert isinstance(answer, Response)
                return answer
            # A node that finds the request too large has not taken it before either.
            was_refused = found.status == TOO_LARGE and uncertain_at == {node}
            if verdict is Verdict.FINAL and (uncertain is None or isinstance(found, Conflict) or was_refused):
                raise found
            if verdict is Verdict.UNCERTAIN and request_id is not None:
                uncertain = failure = found
                uncertain_at.add(node)
            elif failure is None or not self._says_nothing(answer, left_s, deadline_s - begun_s):
                failure = found
            tried.add(node)
            wait_s = self._wait_s(attempt, answer, tried)
            log.debug("%s %s: attempt %d failed: %s", request.method, request.target, attempt + 1, failure)
            last = verdict is Verdict.FINAL or attempt + 1 == self.limits.attempts
            if last or wait_s is None or wait_s >= deadline_s - self.now_s():
                break
        raise self._given_up(failure, uncertain, request_id)

    def _attempt_s(self, whole_s: float) -> float:
        """How long an attempt may take, of a call with `whole_s`."""
        limit_s = self.limits.attempt_timeout_s
        return whole_s / ATTEMPTS_PER_CALL if limit_s is None else limit_s

    def _says_nothing(self, answer: Response | NoAnswer, left_s: float, whole_s: float) -> bool:
        """Whether an attempt was cut short by the end of the call: then an earlier failure tells more."""
        return isinstance(answer, NoAnswer) and answer.silent and left_s < self._attempt_s(whole_s)

    def _send(self, node: Endpoint, request: Request, left_s: float, whole_s: float) -> Send:
        if self._authorization is not None:
            headers = (*request.headers, (b"Authorization", self._authorization()))
            request = Request(request.method, request.target, headers, request.body)
        attempt_s = min(left_s, self._attempt_s(whole_s))
        return Send(node, request, attempt_s, min(attempt_s, self.limits.connect_timeout_s))

    def _judged(self, node: Endpoint, key: Key | None, answer: Response | NoAnswer) -> tuple[Verdict, ClientError]:
        """The verdict on an answer, and the error for it unless the verdict is DONE."""
        if isinstance(answer, NoAnswer):
            if answer.busy:
                return Verdict.LATER, Retryable(answer.why, reason="no-connection")
            self.nodes.failed(node, self.now_s())
            if answer.tls:
                return Verdict.LATER, Refused(f"{node}: {answer.why}", reason="tls")
            if answer.unreadable:
                return Verdict.UNCERTAIN, ServerFault(f"{node}: {answer.why}", reason="bad-answer")
            error = Retryable(f"{node} did not answer: {answer.why}", reason="no-answer")
            return Verdict.UNCERTAIN if answer.sent else Verdict.LATER, error
        self.nodes.answered(node)
        leader = answer.headers.get(LEADER_HEADER)
        if leader and key is not None:
            self.nodes.learn(key, leader)
        verdict = judge(answer)
        if verdict is Verdict.DONE:
            return verdict, _NO_ERROR
        if verdict is not Verdict.FINAL:
            self.nodes.refused()
        return verdict, error_of(answer)

    def _wait_s(self, attempt: int, answer: Response | NoAnswer, tried: set[Endpoint]) -> float | None:
        """The pause before the next attempt; None: no further one."""
        if isinstance(answer, NoAnswer):
            if not answer.busy and self.nodes.others(tried):
                return 0.0
            return None if answer.tls else pause_s(attempt, self.chance)
        if reason_of(answer) == "not-leader" and answer.headers.get(LEADER_HEADER) and attempt == 0:
            return 0.0
        wait_s = pause_s(attempt, self.chance)
        try:
            asked_s = min(RETRY_AFTER_MAX_S, float(int(answer.headers.get("retry-after", "0"))))
        except ValueError:
            asked_s = 0.0
        return max(wait_s, asked_s * self.chance.uniform(1.0, 1.25)) if asked_s > 0 else wait_s

    def _given_up(
        self, failure: ClientError | None, uncertain: ClientError | None, request_id: str | None
    ) -> ClientError:
        if uncertain is not None:
            last = "" if failure is uncertain else f"; then: {failure}"
            made = OutcomeUnknown(
                f"the write may or may not have taken effect: {uncertain.message}{last}",
                reason=uncertain.reason if uncertain.status == 504 else "outcome-unknown",
                status=uncertain.status,
                request_id=request_id or "",
            )
            made.__cause__ = failure
            return made
        return failure or Retryable("the time for the call was over before an attempt", reason="timeout")

    def _survey(self, key: Key | None, deadline_s: float) -> Operation[None]:
        """Read the routes if that is due. Its failure is none of the request."""
        survey = self.nodes.survey(key, self.now_s())
        if survey is None:
            return
        reported = False
        try:
            left_s = min(SURVEY_TIMEOUT_S, deadline_s - self.now_s())
            if left_s > 0:
                headers = ((b"If-None-Match", survey.etag.encode("utf-8", "surrogateescape")),) if survey.etag else ()
                answer = yield self._send(
                    survey.node, Request(b"GET", PATH, headers), left_s, left_s * ATTEMPTS_PER_CALL
                )
                reported = True
                self.nodes.surveyed(survey, answer, self.now_s())
        finally:
            if not reported:
                self.nodes.survey_ended()


_NO_ERROR: Final = ClientError("", reason="")
