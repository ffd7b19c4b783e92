"""Responses with OpenAI's client."""

import json

import jsonschema
import openai
import pytest
from asking import CAPITAL, COUNTING, chat_answer, events
from conftest import MODEL
from test_tools import FUNCTIONS

QUESTION = CAPITAL[0]["content"]
TOOLS = [
    {"type": "function", "name": name, "description": function["description"], "parameters": function["parameters"],
     "strict": True}
    for name, function in FUNCTIONS.items()
]


def ask(client, input=QUESTION, **params):
    params = {"temperature": 0, "max_output_tokens": 32, **params}
    return client.responses.create(model=MODEL, input=input, **params)


def final(client, input=QUESTION, **params):
    """The whole at the end of a stream. The client's own helper accepts none that was cut."""
    *_, last = ask(client, input, stream=True, **params)
    assert last.type == f"response.{last.response.status}"
    return last.response


def test_an_answer_has_every_part(client, same_text):
    reply = ask(client)
    chat = chat_answer(client, CAPITAL, False)
    assert reply.output_text == chat.text
    assert (reply.object, reply.status, reply.model) == ("response", "completed", MODEL)
    assert reply.id.startswith("resp_") and reply.error is None and reply.incomplete_details is None
    (item,) = reply.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert reply.usage.input_tokens == chat.usage.prompt_tokens
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    same_text(reply.output_text)


def test_a_stream_says_the_same(client):
    for text in (QUESTION, COUNTING[0]["content"]):
        assert final(client, text).output_text == ask(client, text).output_text


def test_the_official_client_rebuilds_a_stream(client):
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=64) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        rebuilt = stream.get_final_response()
    assert "".join(deltas) == rebuilt.output_text == ask(client, max_output_tokens=64).output_text


def test_a_stream_has_its_events_in_order(http):
    body = {"model": MODEL, "input": QUESTION, "max_output_tokens": 32, "temperature": 0, "stream": True}
    frames = [(name, json.loads(data)) for name, data in events(http.post("/v1/responses", json=body))]
    names = [name for name, _ in frames]
    assert all(name == data["type"] for name, data in frames)
    assert [data["sequence_number"] for _, data in frames] == list(range(len(frames)))
    deltas = names.count("response.output_text.delta")
    assert deltas > 0
    assert names == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_an_answer_that_was_cut_is_incomplete(client):
    for form in (ask, final):
        reply = form(client, COUNTING[0]["content"], max_output_tokens=3)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_instructions_and_items(client):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Ada."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello Ada."}]},
        {"role": "user", "content": QUESTION},
    ]
    reply = ask(client, items, instructions="Answer in one word.")
    assert reply.output_text and reply.usage.input_tokens > ask(client).usage.input_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_time"}], ids=["required", "named"])
def test_a_forced_function_is_called(client, choice):
    params = {"tools": TOOLS, "tool_choice": choice, "max_output_tokens": 256}
    found = []
    for form in (ask, final):
        calls = [item for item in form(client, **params).output if item.type == "function_call"]
        assert calls
        for call in calls:
            assert call.call_id and call.status == "completed"
            jsonschema.validate(json.loads(call.arguments), FUNCTIONS[call.name]["parameters"])
        found.append([(call.name, call.arguments) for call in calls])
    assert found[0] == found[1]
    if isinstance(choice, dict):
        assert {name for name, _ in found[0]} == {"get_time"}


def test_a_functions_result_is_taken(client):
    items = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": "call_1", "name": "get_time", "arguments": '{"city":"X"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "12:00"},
    ]
    assert ask(client, items, tools=TOOLS, tool_choice="none", max_output_tokens=8).output


def test_a_schema_holds(client):
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"],
              "additionalProperties": False}
    text = {"format": {"type": "json_schema", "name": "number", "strict": True, "schema": schema}}
    for form in (ask, final):
        jsonschema.validate(json.loads(form(client, text=text, temperature=1).output_text), schema)


def test_what_is_not_kept_is_refused(client):
    for params in ({"previous_response_id": "resp_1"}, {"extra_body": {"input": None}}):
        with pytest.raises(openai.BadRequestError):
            ask(client, **params)
