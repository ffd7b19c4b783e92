"""What the tests share. `tests/clients/run` starts the servers and names them in the environment."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import anthropic
import httpx
import openai
import pytest

MODEL = "smollm2"
DEVICE = os.environ["ONEBIT_DEVICE"]
URL = os.environ["ONEBIT_URL"]


@pytest.fixture(scope="session")
def client():
    """OpenAI's own client. It refuses replies that its types do not describe, and does not ask twice."""
    with openai.OpenAI(
        base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="session")
def claude():
    """Anthropic's own client, as strict."""
    with anthropic.Anthropic(
        base_url=URL, api_key="none", max_retries=0, timeout=120, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture(scope="session")
def http():
    """Plain HTTP to the same server."""
    with httpx.Client(base_url=URL, timeout=120) as http:
        yield http


@pytest.fixture(scope="session")
def small():
    """The server with a small context, a small body limit and an API key."""
    env = os.environ
    return SimpleNamespace(
        url=env["ONEBIT_SMALL_URL"],
        key=env["ONEBIT_API_KEY"],
        context=int(env["ONEBIT_SMALL_CONTEXT"]),
        body_limit=int(env["ONEBIT_BODY_LIMIT"]),
    )


@pytest.fixture(scope="session")
def loading():
    """The URL of a server whose model never gets loaded."""
    return os.environ["ONEBIT_LOADING_URL"] or pytest.skip("llama-server cannot be kept loading")


@pytest.fixture
def same_text(request):
    """Keeps a greedy answer for the next device, or compares it with the one before."""
    path = Path(os.environ["ONEBIT_TEXTS"])

    def check(text):
        known = json.loads(path.read_text()) if path.exists() else {}
        other = known.setdefault(request.node.nodeid, {"device": DEVICE, "text": text})
        assert text == other["text"], f"{DEVICE} answers another text than {other['device']}"
        path.write_text(json.dumps(known))

    return check
