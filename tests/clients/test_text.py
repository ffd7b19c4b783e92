"""Stop strings, characters over token borders, seeds, several answers, log-probabilities."""

import math

import pytest
from asking import COUNTING, EXOTIC, LOOSE, chat, chat_answer, gbnf, text
from conftest import DEVICE

SENTENCE = "One, two, three, four and five. The END of it."

STOPS = [
    (["three"], "One, two, "),
    (["wo, thr"], "One, t"),
    (["END", "and"], "One, two, three, four "),
    # The one that comes first in the text wins, whatever their order, and where two begin at the same place both are cut.
    (["four", "two", "tw"], "One, "),
    (["O"], ""),
    # Shown to the end: what could have begun a stop string must not stay held back.
    (["it. And"], SENTENCE),
    (["never there"], SENTENCE),
    ("END", "One, two, three, four and five. The "),
    (["", "five"], "One, two, three, four and "),
]


@pytest.mark.parametrize("stop,expected", STOPS, ids=[str(stop) for stop, _ in STOPS])
def test_nothing_of_a_stop_string_is_shown(client, stop, expected):
    params = {"stop": stop, "extra_body": {"grammar": gbnf(SENTENCE)}}
    whole = text(client, "Say it:", False, **params)
    streamed = text(client, "Say it:", True, **params)
    assert (whole.text, whole.finish) == (expected, "stop")
    assert (streamed.text, streamed.finish) == (expected, "stop")
    # Each piece extends the answer: had any of the stop string been shown, the joined text would hold it.
    assert all(expected.startswith("".join(streamed.pieces[: n + 1])) for n in range(len(streamed.pieces)))


@pytest.mark.parametrize("max_tokens", [2, 5, 8, 11])
def test_text_held_back_is_shown_at_the_end(client, max_tokens):
    # Every character of the sentence could begin this stop string, or be inside it.
    stop = [SENTENCE + "!", "two, three, four and five. The END of it?"]
    params = {"stop": stop, "max_tokens": max_tokens, "extra_body": {"grammar": gbnf(SENTENCE)}}
    whole = text(client, "Say it:", False, **params)
    streamed = text(client, "Say it:", True, **params)
    assert whole.text and SENTENCE.startswith(whole.text)
    assert (streamed.text, streamed.finish) == (whole.text, whole.finish) == (whole.text, "length")


def test_stops_of_a_chat_cut_its_own_text(client):
    free = chat_answer(client, COUNTING, False).text
    for start, length in [(3, 4), (7, 1), (len(free) // 2, 6)]:
        stop = free[start : start + length]
        expected = free[: free.find(stop)]
        for stream in (False, True):
            answer = chat_answer(client, COUNTING, stream, stop=[stop])
            # A chat parser may trim white space at the end of the whole.
            assert answer.text.rstrip() == expected.rstrip(), (stop, stream)
            assert answer.finish == "stop"


@pytest.mark.parametrize("max_tokens", [*range(1, 13), 40] if DEVICE == "cpu" else [3, 7, 40])
def test_characters_are_never_cut(client, max_tokens):
    params = {"max_tokens": max_tokens, "extra_body": {"grammar": gbnf(EXOTIC)}}
    whole = text(client, "Say it:", False, **params)
    streamed = text(client, "Say it:", True, **params)
    assert EXOTIC.startswith(whole.text), whole.text
    assert (streamed.text, streamed.finish) == (whole.text, whole.finish)
    # The last characters may lack tokens; all that is whole is there.
    assert len(whole.text) >= (max_tokens - 3) // 4


def test_all_of_an_exotic_text_arrives(client):
    for ask in (text, lambda *args, **kwargs: chat_answer(args[0], COUNTING, args[2], **kwargs)):
        for stream in (False, True):
            answer = ask(client, "Say it:", stream, max_tokens=120, extra_body={"grammar": gbnf(EXOTIC)})
            assert (answer.text, answer.finish) == (EXOTIC, "stop")


def test_a_stop_string_of_many_bytes(client):
    for stop in ["🦀", "👩\u200d👩", "語の"]:
        for stream in (False, True):
            params = {"max_tokens": 120, "stop": [stop], "extra_body": {"grammar": gbnf(EXOTIC)}}
            assert text(client, "Say it:", stream, **params).text == EXOTIC[: EXOTIC.find(stop)]


def test_exotic_questions_are_understood(http):
    for content in [EXOTIC, "\u0000", "\U0010ffff", "a\r\n\tb", "<|im_end|>"]:
        reply = http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}], "max_tokens": 1})
        assert reply.status_code == 200, (content, reply.text)


def test_a_seed_repeats_and_others_differ(client):
    def ask(seed, stream=False):
        return chat_answer(client, COUNTING, stream, temperature=1.0, seed=seed, max_tokens=16).text

    first = ask(1)
    assert ask(1) == first and ask(1, stream=True) == first
    assert any(ask(seed) != first for seed in (2, 3, 4))
    # At temperature 0 nothing is drawn.
    assert len({chat_answer(client, COUNTING, False, seed=seed).text for seed in (1, 2)}) == 1


def test_without_a_seed_answers_differ(client):
    texts = {chat_answer(client, COUNTING, False, temperature=1.5, max_tokens=16).text for _ in range(4)}
    assert len(texts) > 1


def test_n_answers(client):
    params = {"n": 3, "temperature": 1.0, "seed": 7, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
    reply = chat(client, COUNTING, **params)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in reply.choices]
    assert len(set(texts)) > 1
    # The usage is that of all answers, and of one prompt.
    assert reply.usage.completion_tokens == 3 * 12
    assert reply.usage.prompt_tokens == chat(client, COUNTING, max_tokens=1).usage.prompt_tokens

    streamed, usages, finished = ["", "", ""], [], []
    for chunk in chat(client, COUNTING, stream=True, stream_options={"include_usage": True}, **params):
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
            finished += [choice.index] if choice.finish_reason else []
    assert streamed == texts
    assert sorted(finished) == [0, 1, 2]
    assert len(usages) == 1 and usages[0].completion_tokens == reply.usage.completion_tokens


def test_n_equal_answers_at_temperature_0(client):
    reply = chat(client, COUNTING, n=2, max_tokens=8)
    assert len({choice.message.content for choice in reply.choices}) == 1 and len(reply.choices) == 2


def check_logprobs(content, entries, n_top):
    assert "".join(entry.token for entry in entries) == content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == n_top
        top = [other.logprob for other in entry.top_logprobs]
        assert top == sorted(top, reverse=True) and all(logprob <= 0 for logprob in top)
        # They are a part of the whole vocabulary, whose probabilities sum to 1.
        assert sum(math.exp(logprob) for logprob in top) <= 1 + 1e-5
        # At temperature 0 the likeliest is chosen.
        if n_top:
            assert entry.top_logprobs[0].token == entry.token
            assert math.isclose(top[0], entry.logprob, abs_tol=1e-5)


@pytest.mark.parametrize("n_top", [0, 5, 20])
def test_logprobs_of_a_chat(client, n_top):
    params = {"logprobs": True, "top_logprobs": n_top, "max_tokens": 8}
    choice = chat(client, COUNTING, **params).choices[0]
    check_logprobs(choice.message.content, choice.logprobs.content, n_top)
    entries, content = [], ""
    for chunk in chat(client, COUNTING, stream=True, **params):
        for streamed in chunk.choices:
            content += streamed.delta.content or ""
            entries += streamed.logprobs.content if streamed.logprobs else []
    assert content == choice.message.content
    check_logprobs(content, entries, n_top)
    assert [entry.token for entry in entries] == [entry.token for entry in choice.logprobs.content]


def test_logprobs_are_the_models_own(client):
    # Before samplers: neither temperature nor top_k changes them.
    def first(**params):
        entry = chat(client, COUNTING, logprobs=True, top_logprobs=3, max_tokens=1, **params).choices[0]
        return [(top.token, top.logprob) for top in entry.logprobs.content[0].top_logprobs]

    greedy = first()
    for other in (first(temperature=2.0, seed=1), first(temperature=1.0, seed=1, extra_body={"top_k": 1})):
        assert [token for token, _ in other] == [token for token, _ in greedy]
        assert all(math.isclose(a, b, abs_tol=0.05) for (_, a), (_, b) in zip(other, greedy))


def test_logprobs_only_when_asked(client):
    assert chat(client, COUNTING, max_tokens=1).choices[0].logprobs is None


def test_logprobs_of_a_text(client):
    reply = client.completions.create(model="x", prompt="The sky is", max_tokens=6, temperature=0, logprobs=3)
    choice = reply.choices[0]
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.tokens) == len(choice.logprobs.text_offset)
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)
    for top in choice.logprobs.top_logprobs:
        assert sum(math.exp(logprob) for logprob in top.values()) <= 1 + 1e-5


def test_prompts_of_every_form(client, http, same_text):
    ids = http.post("/tokenize", json={"content": "The sky is"}).json()["tokens"]
    expected = text(client, "The sky is", False, max_tokens=6)
    for prompt in (ids, ["The sky is"], [ids]):
        answer = text(client, prompt, False, max_tokens=6)
        assert (answer.text, answer.finish) == (expected.text, expected.finish), prompt
    assert text(client, "The sky is", True, max_tokens=6).text == expected.text
    several = client.completions.create(model="x", prompt=["The sky is", "One, two,"], max_tokens=6, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == expected.text
    same_text(several.choices[1].text)


def test_an_empty_prompt_has_an_empty_answer(client):
    answer = text(client, "", False)
    assert (answer.text, answer.finish, answer.usage.total_tokens) == ("", "length", 0)


def test_text_usage_in_a_stream(client):
    options = {"model": "x", "prompt": "The sky is", "max_tokens": 3, "temperature": 0, "stream": True}
    chunks = list(LOOSE.completions.create(**options, stream_options={"include_usage": True}))
    assert not chunks[-1].choices and chunks[-1].usage.completion_tokens == 3
    assert [chunk for chunk in chunks if chunk.usage] == chunks[-1:]
