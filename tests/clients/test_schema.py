"""Answers in JSON: a validator looks at every one."""

import json
import re
from typing import Literal

import jsonschema
import pytest
from asking import COUNTING, chat, chat_answer
from conftest import DEVICE, MODEL
from pydantic import BaseModel, Field

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "guest", None, 7]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 2},
        "address": {
            "type": "object",
            "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}, "born": {"$ref": "#/$defs/day"}},
            "required": ["zip", "born"],
            "additionalProperties": False,
        },
        "note": {"anyOf": [{"type": "null"}, {"type": "boolean"}, {"const": "none"}]},
    },
    "required": ["name", "age", "role", "tags", "address", "note"],
    "additionalProperties": False,
    "$defs": {"day": {"type": "string", "format": "date"}},
}
ASKED = [{"role": "user", "content": "Invent a person."}]


def response_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}


def check(text, schema):
    value = json.loads(text)
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator)
    if schema is PERSON:
        # The form of a date, which is as much as a grammar knows: it has no calendar, and allows a 31st of February.
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", value["address"]["born"])


@pytest.mark.parametrize("seed", range(20))
def test_the_schema_holds_at_temperature_1(client, seed):
    params = {"response_format": response_format(PERSON), "temperature": 1.0, "seed": seed, "max_tokens": 400}
    answer = chat_answer(client, ASKED, stream=seed % 4 == 3, **params)
    assert answer.finish == "stop", answer.text
    check(answer.text, PERSON)


def test_a_streamed_answer_is_the_same(client, same_text):
    params = {"response_format": response_format(PERSON), "max_tokens": 400}
    whole, streamed = (chat_answer(client, ASKED, stream, **params) for stream in (False, True))
    assert streamed.text == whole.text
    check(whole.text, PERSON)
    same_text(whole.text)


def test_any_object(client):
    for seed in range(4 if DEVICE == "cpu" else 1):
        params = {"response_format": {"type": "json_object"}, "temperature": 1.0, "seed": seed, "max_tokens": 200}
        answer = chat_answer(client, ASKED, False, **params)
        # An object has no end of its own; one that was cut is a beginning of one.
        assert answer.text.lstrip().startswith("{")
        if answer.finish == "stop":
            assert isinstance(json.loads(answer.text), dict)


def test_an_object_with_a_schema_of_its_own(client):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}}, "required": ["n"], "additionalProperties": False}
    answer = chat_answer(client, ASKED, False, response_format={"type": "json_object", "schema": schema})
    check(answer.text, schema)


class Step(BaseModel):
    kind: Literal["think", "do"]
    amount: int = Field(ge=1, le=9)


class Plan(BaseModel):
    steps: list[Step] = Field(min_length=1, max_length=2)
    done: bool


def test_parse_returns_the_clients_own_type(client):
    reply = client.chat.completions.parse(model=MODEL, messages=ASKED, response_format=Plan, max_tokens=120)
    assert isinstance(reply.choices[0].message.parsed, Plan)


def test_a_text_completion_with_a_schema(http):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    body = {"prompt": "JSON:", "json_schema": schema, "max_tokens": 64, "temperature": 1, "seed": 1}
    for path, read in [
        ("/v1/completions", lambda reply: reply["choices"][0]["text"]),
        ("/completion", lambda reply: reply["content"]),
    ]:
        check(read(http.post(path, json=body).json()), schema)


def test_a_grammar_of_the_client(client):
    # And text mode asks for nothing.
    params = {"extra_body": {"grammar": 'root ::= ("yes" | "no")'}, "response_format": {"type": "text"}}
    assert chat(client, COUNTING, **params).choices[0].message.content in ("yes", "no")


@pytest.mark.parametrize(
    "format,word",
    [
        ({"type": "yaml"}, "response_format"),
        (response_format({"type": "object", "properties": {"a": {"$ref": "#/$defs/nowhere"}}}), "nowhere"),
        (response_format({"type": "unheard_of"}), "unheard_of"),
        (response_format({"type": "integer", "multipleOf": 3}), "multipleOf"),
        (response_format({"not": {"type": "string"}}), "not"),
        ("json_object", "response_format"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_cannot_be_enforced_is_refused(http, format, word, stream):
    body = {"messages": ASKED, "response_format": format, "max_tokens": 8, "stream": stream}
    reply = http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400, reply.text
    assert word in reply.json()["error"]["message"]
