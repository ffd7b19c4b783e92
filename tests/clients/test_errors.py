"""Every error status, as the clients see it."""

import json

import anthropic
import httpx
import openai
import pytest
from asking import CAPITAL, MODEL, chat


def error_of(reply, status):
    """The body of an error, which has OpenAI's shape."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"].startswith("application/json")
    error = reply.json()["error"]
    assert error["code"] == status
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and "param" in error
    return error


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b'{"a": \xff}', b'{"stream": "yes"}', b'{"temperature": "hot"}'])
def test_400_for_bad_bodies(http, path, body):
    error = error_of(http.post(path, content=body), 400)
    assert error["type"] == "invalid_request_error"


def test_400_says_where_json_breaks(http):
    error = error_of(http.post("/v1/chat/completions", content=b'{"messages": [],\n  oops}'), 400)
    assert "line 2" in error["message"]


@pytest.mark.parametrize(
    "change,param",
    [
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"temperature": "1"}, "temperature"),
        ({"stop": [1]}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
    ],
    ids=str,
)
def test_400_names_the_field(client, change, param):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, CAPITAL, extra_body=change)
    assert caught.value.param == param and param in caught.value.message
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_400_when_the_context_overflows(small, stream):
    words = "word " * (2 * small.context)
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key=small.key, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, [{"role": "user", "content": words}], stream=stream)
    body = caught.value.body
    assert caught.value.type == "exceed_context_size_error"
    assert body["n_prompt_tokens"] > body["n_ctx"] == small.context
    assert str(body["n_prompt_tokens"]) in body["message"] and str(small.context) in body["message"]


def test_the_context_ends_an_answer(small):
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key=small.key, max_retries=0) as client:
        reply = chat(client, CAPITAL, max_tokens=None, extra_body={"ignore_eos": True})
    assert reply.choices[0].finish_reason == "length"
    assert small.context - 2 <= reply.usage.total_tokens <= small.context + 1


@pytest.mark.parametrize("key", ["wrong", None, "clients-test-ke", "clients-test-key2"])
def test_401_without_the_key(small, key):
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    body = {"messages": CAPITAL, "max_tokens": 1}
    for method, path in [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/no/such/path")]:
        reply = httpx.request(method, small.url + path, headers=headers, json=body if method == "POST" else None)
        assert error_of(reply, 401)["type"] == "authentication_error"
    assert httpx.get(f"{small.url}/health", headers=headers).status_code == 200


def test_401_is_the_clients_own_error(small):
    with openai.OpenAI(base_url=f"{small.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
    with anthropic.Anthropic(base_url=small.url, api_key="wrong", max_retries=0) as claude:
        with pytest.raises(anthropic.AuthenticationError):
            claude.messages.create(model=MODEL, max_tokens=1, messages=CAPITAL)


def test_either_header_carries_the_key(small):
    for headers in ({"Authorization": f"Bearer {small.key}"}, {"X-Api-Key": small.key}):
        assert httpx.get(f"{small.url}/v1/models", headers=headers).status_code == 200
    # The first header counts when both are there.
    both = {"Authorization": "Bearer wrong", "X-Api-Key": small.key}
    assert httpx.get(f"{small.url}/v1/models", headers=both).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Origin": "https://evil.example"}, {"Origin": "null"}],
    ids=str,
)
def test_403_for_other_peoples_pages(http, headers):
    body = {"messages": CAPITAL, "max_tokens": 1}
    error_of(http.post("/v1/chat/completions", json=body, headers=headers), 403)


def test_pages_of_this_machine_are_let_in(http):
    for headers in ({"Host": "localhost:1"}, {"Host": "127.0.0.1"}, {"Host": "[::1]:8000"}):
        assert http.get("/v1/models", headers=headers).status_code == 200, headers
    origin = "http://localhost:3000"
    reply = http.post("/v1/chat/completions", json={"messages": CAPITAL, "max_tokens": 1}, headers={"Origin": origin})
    assert reply.status_code == 200
    preflight = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    assert http.options("/v1/chat/completions", headers=preflight).status_code == 200


def test_404_for_what_is_not_there(http, client):
    for method, path in [("GET", "/v1/nothing"), ("POST", "/nothing"), ("GET", "/v1/chat/completions"), ("PUT", "/v1/models")]:
        assert error_of(http.request(method, path), 404)["type"] == "not_found_error"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_413_for_a_body_beyond_the_limit(small):
    content = json.dumps({"messages": [{"role": "user", "content": "x" * small.body_limit}]})
    reply = httpx.post(f"{small.url}/v1/chat/completions", content=content, headers={"X-Api-Key": small.key})
    assert str(small.body_limit) in error_of(reply, 413)["message"]


def test_501_for_what_this_model_cannot_do(http, client):
    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model=MODEL, input="x")
    assert caught.value.status_code == 501 and caught.value.type == "not_supported_error"
    for path in ["/v1/rerank", "/props", "/infill"]:
        body = {"query": "q", "documents": ["d"], "input_prefix": "a", "input_suffix": "b"}
        assert error_of(http.post(path, json=body), 501)["type"] == "not_supported_error", path


def test_503_while_loading(loading):
    for method, path in [("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")]:
        error = error_of(httpx.request(method, loading + path), 503)
        assert (error["message"], error["type"]) == ("Loading model", "unavailable_error")
    with openai.OpenAI(base_url=f"{loading}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, CAPITAL)
    assert caught.value.status_code == 503


def test_hanging_up_frees_the_server(http):
    # More streams than slots, all left in the middle; a short question is answered soon after.
    for _ in range(6):
        body = {"messages": CAPITAL, "max_tokens": 1500, "stream": True, "ignore_eos": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            assert next(reply.iter_lines()).startswith("data: ")
    assert http.post("/v1/chat/completions", json={"messages": CAPITAL, "max_tokens": 1}, timeout=20).status_code == 200


def test_more_questions_than_slots_wait(client):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(chat, client, CAPITAL, max_tokens=8) for _ in range(8)]
        replies = [future.result() for future in futures]
    assert all("Paris" in reply.choices[0].message.content for reply in replies)
