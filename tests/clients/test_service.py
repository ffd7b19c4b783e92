"""llama-server's own endpoints, as scripts and launchers use them."""

import json

import pytest
from asking import CAPITAL, EXOTIC, chat_answer, events, gbnf, text
from conftest import MODEL


def test_health(http):
    for path in ("/health", "/v1/health"):
        assert http.get(path).json() == {"status": "ok"}


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokens_and_back(http, prefix):
    for content in ["Hello world", EXOTIC, "", " \n\t "]:
        tokens = http.post(f"{prefix}/tokenize", json={"content": content}).json()["tokens"]
        assert http.post(f"{prefix}/detokenize", json={"tokens": tokens}).json() == {"content": content}


def test_pieces(http):
    tokens = http.post("/tokenize", json={"content": "a🦀", "with_pieces": True}).json()["tokens"]
    raw = b"".join(piece.encode() if isinstance(piece := token["piece"], str) else bytes(piece) for token in tokens)
    assert raw.decode() == "a🦀" and any(isinstance(token["piece"], list) for token in tokens)
    assert http.post("/tokenize", json={}).json() == {"tokens": []}


def test_special_tokens_are_parsed_unless_not(http):
    def tokens(**params):
        return http.post("/tokenize", json={"content": "<|im_end|>", **params}).json()["tokens"]

    assert len(tokens()) == 1 and len(tokens(parse_special=False)) > 1


def test_apply_template(http, client):
    prompt = http.post("/apply-template", json={"messages": CAPITAL}).json()["prompt"]
    assert CAPITAL[0]["content"] in prompt and prompt.endswith("<|im_start|>assistant\n")
    # The prompt that a chat uses.
    assert text(client, prompt, False, max_tokens=8).text == chat_answer(client, CAPITAL, False, max_tokens=8).text


def test_props(http):
    props = http.get("/props").json()
    assert props["total_slots"] >= 1 and props["default_generation_settings"]["n_ctx"] == 2048
    assert props["model_alias"] == MODEL and "im_start" in props["chat_template"]
    assert {"bos_token", "eos_token", "build_info", "modalities"} <= props.keys()


def test_slots(http):
    slots = http.get("/slots").json()
    assert [slot["id"] for slot in slots] == list(range(len(slots)))
    assert all(slot["n_ctx"] == 2048 and slot["is_processing"] is False for slot in slots)
    assert len(slots) == http.get("/props").json()["total_slots"]


def metrics(http):
    lines = http.get("/metrics").text.splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line and not line.startswith("#")}


def test_metrics_count(http, client):
    before = metrics(http)
    usage = chat_answer(client, CAPITAL, False, max_tokens=5).usage
    after = metrics(http)
    grown = {name: after[name] - before[name] for name in after}
    prompt = grown["llamacpp:prompt_tokens_total"] + grown["llamacpp:prompt_tokens_cached_total"]
    assert (prompt, grown["llamacpp:tokens_predicted_total"]) == (usage.prompt_tokens, 5)


def test_native_completion(http, client, same_text):
    body = {"prompt": "The sky is", "n_predict": 8, "temperature": 0, "return_tokens": True}
    reply = http.post("/completion", json=body).json()
    assert reply["content"] == text(client, "The sky is", False, max_tokens=8).text
    assert reply["stop"] is True and reply["stop_type"] == "limit" and reply["truncated"] is False
    assert reply["tokens_predicted"] == len(reply["tokens"]) == 8
    assert reply["generation_settings"]["n_predict"] == 8
    assert http.post("/detokenize", json={"tokens": reply["tokens"]}).json()["content"] == reply["content"]
    same_text(reply["content"])


def test_native_stream(http):
    body = {"prompt": "Say:", "n_predict": 60, "temperature": 0, "return_tokens": True, "stream": True}
    frames = events(http.post("/completion", json={**body, "grammar": gbnf(EXOTIC)}))
    frames = [json.loads(data) for name, data in frames]
    assert all(frame["stop"] is False for frame in frames[:-1]) and frames[-1]["stop"] is True
    content = "".join(frame["content"] for frame in frames)
    tokens = [token for frame in frames for token in frame["tokens"]]
    assert EXOTIC.startswith(content) and len(content) > 10
    # No id is lost inside a character that took several tokens; the end token has no text.
    assert len(tokens) == frames[-1]["tokens_predicted"] - (frames[-1]["stop_type"] == "eos")
    whole = http.post("/completion", json={**body, "grammar": gbnf(EXOTIC), "stream": False}).json()
    assert (content, tokens) == (whole["content"], whole["tokens"])


def test_native_probabilities(http):
    body = {"prompt": "The sky is", "n_predict": 3, "temperature": 0, "n_probs": 4}
    probabilities = http.post("/completion", json=body).json()["completion_probabilities"]
    assert len(probabilities) == 3
    assert all(len(entry["top_logprobs"]) == 4 and entry["logprob"] <= 0 for entry in probabilities)


def test_native_stop(http):
    body = {"prompt": "Say:", "n_predict": 60, "temperature": 0, "grammar": gbnf("one two three"), "stop": ["two"]}
    reply = http.post("/completion", json=body).json()
    assert (reply["content"], reply["stop_type"], reply["stopping_word"]) == ("one ", "word", "two")


def test_aliases_without_v1(http):
    body = {"messages": CAPITAL, "max_tokens": 2, "temperature": 0}
    assert http.post("/chat/completions", json=body).json()["object"] == "chat.completion"
    assert http.get("/models").json()["data"][0]["id"] == MODEL
    assert http.post("/completions", json={"prompt": "a", "n_predict": 1}).json()["stop"] is True
