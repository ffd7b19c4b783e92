"""Requests that are made from /openapi.json, fitting and not, break nothing."""

import time

import httpx
import hypothesis
import pytest
import requests
import schemathesis
from conftest import DEVICE
from schemathesis import GenerationMode

# Seconds for all operations together, and for one request; a longer one is hung up on, as clients do.
BUDGET = 40
PATIENCE = 5
N_EXAMPLES = 40


class Enough(Exception):
    """The time is up. An exception, because hypothesis would go on making examples that nobody sends."""


@pytest.mark.skipif(DEVICE != "cpu", reason="the routes are the same on every device")
def test_no_request_breaks_the_server(small):
    headers = {"X-Api-Key": small.key}
    schema = schemathesis.openapi.from_url(f"{small.url}/openapi.json", headers=headers)
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) >= 20
    sent, broken = {}, []
    for operation in operations:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            seconds = BUDGET / len(operations) / 2
            sent[operation.label, mode.value] = send_all(operation, mode, seconds, small.url, headers, broken)
    assert not broken, "\n".join(broken)
    assert httpx.get(f"{small.url}/health").json() == {"status": "ok"}
    # Of what can be asked at all something was asked.
    assert sum(sent.values()) >= len(operations), sent


def send_all(operation, mode, seconds, url, headers, broken):
    """Returns how many requests were sent."""
    deadline = time.monotonic() + seconds
    n_sent = 0

    def send(case):
        nonlocal n_sent
        # The first one is sent however late it is: one operation may have used up its time in making it.
        if n_sent and time.monotonic() > deadline:
            raise Enough
        n_sent += 1
        try:
            status = case.call(base_url=url, headers=headers, timeout=PATIENCE).status_code
        except requests.Timeout:
            return
        except requests.ConnectionError as error:
            status = error
        # 501: not this model or these flags. 503: loading, or no slot is free.
        if not isinstance(status, int) or (status >= 500 and status not in (501, 503)):
            broken.append(f"{status}: {case.as_curl_command()}")

    settings = hypothesis.settings(
        max_examples=N_EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        hypothesis.given(case=operation.as_strategy(generation_mode=mode))(settings(send))()
    except (Enough, hypothesis.errors.Unsatisfiable):
        # The latter: an operation without parameters has no wrong ones.
        pass
    return n_sent
